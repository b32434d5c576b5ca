/* How a test scripts the provider. The provider is libscripted.so, which the core opens as its libfabric;
 * a test program is linked to the same file, so that both mean the same objects.
 *
 * One process is the whole world: both engines open endpoints here, bytes move by memcpy. Nothing happens
 * by time. A write lies on the wire until somebody reads a completion queue: any queue for hardware, the
 * target's for providers that work in software. All calls may come from any thread. */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include <stddef.h>
#include <stdint.h>

#define SCRIPTED_ALL UINT64_MAX

enum scripted_order { IN_ORDER, REVERSED, SHUFFLED };

enum scripted_fate {
    DELIVERED,                /* and completed, as it should be */
    FAILED,                   /* error completion, nothing arrived */
    FAILED_BUT_DELIVERED,     /* error completion, everything arrived */
    LOST,                     /* completed without delivery (tcp, whose connection broke) */
    SWALLOWED,                /* neither (shm, whose peer died) */
};

struct scripted_seen {
    uint64_t posts;           /* accepted ones, as all below */
    uint64_t again;           /* posts that were told to come again */
    uint64_t empty_posts;     /* of no bytes */
    uint64_t confirmations;   /* writes that ask for their delivery and have not completed, now */
    uint64_t deliveries;
    uint64_t on_wire;         /* now */
    uint64_t most_in_queue;   /* of any endpoint: writes posted and not completed */
    uint64_t most_segments;   /* of any write */
    uint64_t most_bytes;      /* of any write */
    uint64_t most_unread;     /* of any completion queue: entries that nobody had read */
    uint64_t queue_entries;   /* of the smallest completion queue that was opened */
    uint64_t flags;           /* of all writes together */
    uint64_t open_objects;    /* now */
    uint64_t violations;      /* what a caller of libfabric must not do */
    char violation[256];      /* the first of them */
};

/* Memory that was registered, and how. */
struct scripted_registrations {
    uint64_t host, cuda, dmabuf;
    int device;               /* of the last one on a GPU */
    int fd;                   /* of the last dmabuf, as all below */
    uint64_t offset, bytes, base;
};

/* Forgets the world and its script, and becomes a machine of machine.c. Nothing may be open. */
void scripted_machine(const char *name);
void scripted_look(struct scripted_seen *out);

void scripted_registrations_look(struct scripted_registrations *out);

/* After as many more registrations, the next ones are refused with rc. */
void scripted_refuse_registration(uint64_t after, uint64_t count, int rc);
/* The next endpoints are not opened; rc: what fi_endpoint says. */
void scripted_refuse_endpoints(uint64_t count, int rc);
/* How many there were of them. */
uint64_t scripted_refused_endpoints(void);
/* Every dmabuf is refused with rc; 0: none. */
void scripted_refuse_dmabuf(int rc);
/* The next registrations wait inside fi_mr_reg until as many are there at once. */
void scripted_register_together(int count);

/* From now on posts stay on the wire; off lets all of them go. */
void scripted_hold(int on);
/* Lets as many held writes go, in the order that is set; returns how many there were. */
uint64_t scripted_release(uint64_t count);
void scripted_order(enum scripted_order order, uint64_t seed);
/* The initiator learns of the end of a write before (1) or after (0) it arrives. */
void scripted_complete_first(int on);

/* From now on whoever reads a queue must have asked for the delivery of some write to each target, or of all. */
void scripted_must_confirm(int on);
/* The connections of a domain break: what is on the wire from there vanishes, and what had not completed fails, as
 * does what is posted before the queue is read the next time. Then there are new ones. */
void scripted_break(const char *domain, int err);

/* The next posts say FI_EAGAIN; domain: only there, or NULL. SCRIPTED_ALL: for ever. */
void scripted_again(const char *domain, uint64_t posts);
/* After as many more posts, one is refused with rc. */
void scripted_refuse(uint64_t after, int rc);
/* What becomes of count posts, after as many others. err and prov_errno are for the error completion. */
void scripted_fate(uint64_t after, uint64_t count, enum scripted_fate fate, int err, int prov_errno);
/* Queues of the domain are not read: who polls them sees nothing. */
void scripted_freeze(const char *domain, int on);
/* An error that the provider can blame on no write. */
void scripted_internal_error(const char *domain, int err);
/* A completion queue of the process gets an immediate that nobody sent. */
void scripted_stray_immediate(uint32_t immediate);

#endif
