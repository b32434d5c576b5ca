/* A libfabric without a network: a write does nothing but end, and its immediate arrives here.
 *
 * An engine that opens this module as its libfabric runs all of its own code for sender and receiver
 * (plans, ledger, posting, polling, counting) in one I/O thread, over a provider that costs a few
 * nanoseconds. What remains is our own cost. Only what the core calls is here.
 *
 * As provider "pin" it locks the pages of a region, which is what a real NIC's registration spends its time
 * with, and refuses what RLIMIT_MEMLOCK does not allow. */
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench.h"

#define EXPORT __attribute__((visibility("default")))
#define RING 4096u /* a power of two, of writes */

struct null_event {
    void *context;
    uint64_t immediate;
};

/* One queue for the process: a null engine has one NIC and one thread. */
static struct {
    struct null_event ring[RING];
    uint32_t tail;            /* next to be filled */
    uint32_t head[2];         /* next whose completion is read, and whose immediate is */
    int kind;                 /* which of the two the next read looks for */
} queue;

/* Where the engine's time goes: what passes between our calls is the engine's. One read brings either
 * completions or immediates, so that each has its own time; the
 * clock is read a few times for 32 writes. */
static struct {
    _Atomic uint64_t spent[SPB_STAGES];
    _Atomic uint64_t first_write_ns;
    int stage;
    int posted;               /* something, in this stage */
    uint64_t since_ns;
} stages = { .stage = SPB_POSTING };

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A stage ends. Time between a read that brought nothing and the next write is nobody's: it may be sleep. */
static uint64_t end_stage(void)
{
    uint64_t time = now();
    if (stages.stage != SPB_POSTING || stages.posted)
        atomic_fetch_add_explicit(&stages.spent[stages.stage], time - stages.since_ns, memory_order_relaxed);
    stages.posted = 0;
    return time;
}

uint64_t spb_null_spent_ns(int stage)
{
    return atomic_exchange(&stages.spent[stage], 0);
}

uint64_t spb_null_first_write_ns(void)
{
    return atomic_exchange(&stages.first_write_ns, 0);
}

static int ok_close(struct fid *fid)
{
    free(fid);
    return 0;
}

static int ok_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    (void)fid, (void)other, (void)flags;
    return 0;
}

static int ok_control(struct fid *fid, int command, void *argument)
{
    (void)fid, (void)command, (void)argument;
    return 0;
}

static struct fi_ops fid_ops = { .size = sizeof fid_ops, .close = ok_close, .bind = ok_bind,
                                 .control = ok_control };

static void *make(size_t bytes)
{
    struct fid *fid = calloc(1, bytes); /* every object starts with its fid */
    if (fid)
        fid->ops = &fid_ops;
    return fid;
}

static ssize_t writemsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    (void)ep, (void)flags;
    if (!stages.posted) {
        uint64_t none = 0;
        stages.since_ns = end_stage();
        stages.stage = SPB_POSTING;
        stages.posted = 1;
        atomic_compare_exchange_strong(&stages.first_write_ns, &none, stages.since_ns);
    }
    if (queue.tail - queue.head[0] == RING || queue.tail - queue.head[1] == RING)
        return -FI_EAGAIN;
    queue.ring[queue.tail++ % RING] = (struct null_event){ message->context, message->data };
    return 0;
}

static ssize_t read_queue(struct fid_cq *cq, void *buffer, size_t count)
{
    (void)cq;
    end_stage();
    struct fi_cq_data_entry *out = buffer;
    size_t n = 0;
    for (int tries = 0; n == 0 && tries < 2; tries++) {
        int immediates = queue.kind;
        uint32_t *head = &queue.head[immediates];
        for (; n < count && *head != queue.tail; n++, ++*head) {
            const struct null_event *event = &queue.ring[*head % RING];
            out[n] = immediates ? (struct fi_cq_data_entry){ .flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                                                             .data = event->immediate }
                                : (struct fi_cq_data_entry){ .op_context = event->context,
                                                             .flags = FI_RMA | FI_WRITE };
        }
        stages.stage = n == 0 ? SPB_POSTING : immediates ? SPB_COUNTING : SPB_COMPLETING;
        queue.kind = !immediates;
    }
    stages.since_ns = now();
    return n ? (ssize_t)n : -FI_EAGAIN;
}

static ssize_t read_error(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
    (void)cq, (void)entry, (void)flags;
    return -FI_EAGAIN;
}

static int get_name(fid_t fid, void *address, size_t *room)
{
    (void)fid;
    *room = sizeof "null";
    memcpy(address, "null", *room);
    return 0;
}

static int insert(struct fid_av *av, const void *address, size_t count, fi_addr_t *out, uint64_t flags,
                  void *context)
{
    (void)av, (void)address, (void)flags, (void)context;
    for (size_t i = 0; i < count; i++)
        out[i] = 0;
    return (int)count;
}

static int remove_address(struct fid_av *av, fi_addr_t *address, size_t count, uint64_t flags)
{
    (void)av, (void)address, (void)count, (void)flags;
    return 0;
}

static int reg(struct fid *fid, const void *buffer, size_t bytes, uint64_t access, uint64_t offset,
               uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
    (void)fid, (void)buffer, (void)bytes, (void)access, (void)offset, (void)flags, (void)context;
    *out = make(sizeof **out);
    if (*out)
        (*out)->key = key;
    return *out ? 0 : -FI_ENOMEM;
}

struct locked {
    struct fid_mr mr;
    void *start;
    size_t bytes;
};

static int unlock_region(struct fid *fid)
{
    struct locked *region = (struct locked *)fid;
    munlock(region->start, region->bytes);
    free(region);
    return 0;
}

static struct fi_ops locked_ops = { .size = sizeof locked_ops, .close = unlock_region };

static int lock_region(struct fid *fid, const void *buffer, size_t bytes, uint64_t access, uint64_t offset,
                       uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
    (void)fid, (void)access, (void)offset, (void)flags, (void)context;
    if (mlock(buffer, bytes))
        return -errno;
    struct locked *region = make(sizeof *region);
    if (!region)
        return -FI_ENOMEM;
    region->mr.fid.ops = &locked_ops;
    region->mr.key = key;
    region->start = (void *)(uintptr_t)buffer;
    region->bytes = bytes;
    *out = &region->mr;
    return 0;
}

static struct fi_ops_rma rma_ops = { .size = sizeof rma_ops, .writemsg = writemsg };
static struct fi_ops_cm cm_ops = { .size = sizeof cm_ops, .getname = get_name };
static struct fi_ops_cq cq_ops = { .size = sizeof cq_ops, .read = read_queue, .readerr = read_error };
static struct fi_ops_av av_ops = { .size = sizeof av_ops, .insert = insert, .remove = remove_address };
static struct fi_ops_mr mr_ops = { .size = sizeof mr_ops, .reg = reg };
static struct fi_ops_mr pin_ops = { .size = sizeof pin_ops, .reg = lock_region };

static int open_av(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
    (void)domain, (void)attr, (void)context;
    *out = make(sizeof **out);
    if (*out)
        (*out)->ops = &av_ops;
    return *out ? 0 : -FI_ENOMEM;
}

static int open_cq(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
    (void)domain, (void)attr, (void)context;
    *out = make(sizeof **out);
    if (*out)
        (*out)->ops = &cq_ops;
    return *out ? 0 : -FI_ENOMEM;
}

static int open_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context)
{
    (void)domain, (void)info, (void)context;
    *out = make(sizeof **out);
    if (!*out)
        return -FI_ENOMEM;
    (*out)->rma = &rma_ops;
    (*out)->cm = &cm_ops;
    return 0;
}

static struct fi_ops_domain domain_ops = { .size = sizeof domain_ops, .av_open = open_av,
                                           .cq_open = open_cq, .endpoint = open_ep };

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context)
{
    const char *provider = info->fabric_attr->prov_name;
    (void)fabric, (void)context;
    *out = make(sizeof **out);
    if (!*out)
        return -FI_ENOMEM;
    (*out)->ops = &domain_ops;
    (*out)->mr = provider && strcmp(provider, "pin") == 0 ? &pin_ops : &mr_ops;
    return 0;
}

static struct fi_ops_fabric fabric_ops = { .size = sizeof fabric_ops, .domain = open_domain };

EXPORT int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
    (void)attr, (void)context;
    *out = make(sizeof **out);
    if (*out)
        (*out)->ops = &fabric_ops;
    return *out ? 0 : -FI_ENOMEM;
}

EXPORT void fi_freeinfo(struct fi_info *info)
{
    if (!info)
        return;
    if (info->fabric_attr) {
        free(info->fabric_attr->prov_name);
        free(info->fabric_attr->name);
    }
    if (info->domain_attr)
        free(info->domain_attr->name);
    free(info->tx_attr);
    free(info->rx_attr);
    free(info->ep_attr);
    free(info->domain_attr);
    free(info->fabric_attr);
    free(info);
}

/* What we offer depends in nothing but the provider's name on what it is a copy of. */
EXPORT struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    struct fi_info *out = calloc(1, sizeof *out);
    if (!out)
        return NULL;
    out->tx_attr = calloc(1, sizeof *out->tx_attr);
    out->rx_attr = calloc(1, sizeof *out->rx_attr);
    out->ep_attr = calloc(1, sizeof *out->ep_attr);
    out->domain_attr = calloc(1, sizeof *out->domain_attr);
    out->fabric_attr = calloc(1, sizeof *out->fabric_attr);
    if (!out->tx_attr || !out->rx_attr || !out->ep_attr || !out->domain_attr || !out->fabric_attr) {
        fi_freeinfo(out);
        return NULL;
    }
    if (info && info->fabric_attr->prov_name)
        out->fabric_attr->prov_name = strdup(info->fabric_attr->prov_name);
    out->domain_attr->name = strdup("null0");
    out->addr_format = FI_FORMAT_UNSPEC;
    out->ep_attr->type = FI_EP_RDM;
    out->ep_attr->max_msg_size = SIZE_MAX;
    out->tx_attr->size = RING;
    out->tx_attr->iov_limit = out->tx_attr->rma_iov_limit = 4;
    out->domain_attr->cq_data_size = 8;
    out->domain_attr->mr_key_size = 8;
    return out;
}

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **info)
{
    (void)version, (void)node, (void)service, (void)flags;
    *info = fi_dupinfo(hints);
    return *info ? 0 : -FI_ENOMEM;
}

EXPORT const char *fi_strerror(int code)
{
    return strerror(code);
}

EXPORT uint32_t fi_version(void)
{
    return FI_VERSION(1, 17);
}
