/* The scripted provider's own objects. All of it is under world.lock. */
#ifndef SCRIPTED_PROVIDER_H
#define SCRIPTED_PROVIDER_H

#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "machine.h"
#include "scripted.h"

#define MAX_ADDRESS 32
#define MAX_IOV 8

struct domain {
    struct fid_domain fid;
    const struct description *is;
    char name[64];
    uint32_t api_version;
    int children;
    pthread_t owner;          /* FI_THREAD_DOMAIN: nobody else may call, but to register memory */
    int registering;          /* a call is inside fi_mr_reg: no other may come */
    int hmem;                 /* opened for memory of a GPU */
    struct region *regions;
    uint64_t next_key;
};

struct region {
    struct fid_mr fid;
    struct domain *domain;
    uint8_t *base;
    size_t bytes;
    uint64_t access;
    struct region *next;
};

struct address_vector {
    struct fid_av fid;
    struct domain *domain;
    uint8_t (*addresses)[MAX_ADDRESS];
    uint8_t *valid;
    uint8_t *open;            /* the newest write there does not ask for its delivery */
    size_t count;
};

struct entry {
    struct fi_cq_err_entry is;
    struct entry *next;
};

struct queue {
    struct fid_cq fid;
    struct domain *domain;
    size_t size, unread;
    int wait_fd;
    int frozen;
    struct entry *first, **last;
    struct queue *next;
};

struct events {
    struct fid_eq fid;
    int err;
};

struct endpoint {
    struct fid_ep fid;
    struct domain *domain;
    struct queue *queue;
    struct address_vector *vector;
    struct events *events;
    int enabled;
    size_t in_queue;          /* writes posted and not completed */
    int broken;               /* what posts fail with until its queue is read: then it connects anew */
    uint8_t address[MAX_ADDRESS];
    struct endpoint *next;
};

struct wire {                 /* a write under way */
    struct endpoint *from;
    uint8_t to[MAX_ADDRESS];
    struct iovec local[MAX_IOV];
    struct fi_rma_iov remote[MAX_IOV];
    size_t segments;
    uint64_t immediate;
    void *context;
    enum scripted_fate fate;
    int err, prov_errno;
    int held, completed, arrived;
    int confirms;             /* it completes when it has arrived, and never before */
    struct wire *next;
};

struct world {
    pthread_mutex_t lock;
    const struct machine *machine;
    struct endpoint *endpoints;
    struct queue *queues;
    struct wire *wire;
    uint32_t next_address, next_domain;
    struct scripted_seen seen;

    int hold, complete_first, must_confirm;
    enum scripted_order order;
    uint64_t seed;
    char again_domain[64];
    uint64_t again;
    uint64_t refuse_after;
    int refuse_rc;
    uint64_t fate_after, fate_count;
    enum scripted_fate fate;
    int fate_err, fate_prov_errno;

    struct scripted_registrations registered;
    uint64_t registrations_before_refusal, registrations_to_refuse;
    int registration_rc, dmabuf_rc;
    uint64_t endpoints_to_refuse, endpoints_refused;
    int endpoint_rc;
    int together, inside;     /* calls of fi_mr_reg that wait for each other */
    pthread_cond_t met;
};

extern struct world world;

static inline void lock(void)
{
    pthread_mutex_lock(&world.lock);
}

static inline int unlock(int rc)
{
    pthread_mutex_unlock(&world.lock);
    return rc;
}

/* objects.c. change: of the number of objects that are open, in the domain too unless it is NULL. */
void adopt(struct domain *domain, int change);
/* Takes an object out of a list; next: where in it the link is. */
void unlink_from(void *list, void *object, size_t next);
int vector_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *context);
int queue_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *context);
int events_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out, void *context);
int knows(const struct address_vector *vector, const uint8_t *address);

/* regions.c */
extern struct fi_ops_mr region_ops;
struct region *region_of(const struct domain *domain, uint64_t key);

/* provider.c */
void violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether a call comes from the domain's own thread. */
void check_owner(const struct domain *domain, const char *call);
struct endpoint *endpoint_at(const uint8_t *address);

/* wire.c */
extern struct fi_ops_rma wire_ops;
extern struct fi_ops_cq queue_ops;
void queue_push(struct queue *queue, const struct fi_cq_err_entry *entry);
/* Whether bytes are on their way to the address from an endpoint with this vector. */
int wire_has(const struct address_vector *vector, const uint8_t *address);
/* Ends writes of an endpoint that closes. */
void wire_drop(struct endpoint *endpoint);
/* Tells the initiator of the end of a write. */
void wire_complete(struct wire *write, int err, int prov_errno);
/* Forgets the writes that have arrived and ended. */
void wire_sweep(void);

/* connections.c: what reading a queue does to the connections of its endpoints. */
void connect_anew(const struct queue *queue);
void wake_all(void);

/* getinfo.c */
int answer(uint32_t version, const char *node, const struct fi_info *hints, struct fi_info **list);

#endif
