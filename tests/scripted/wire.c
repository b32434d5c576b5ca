/* Writes under way: what may be posted, where its bytes go, and how its end is told. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "provider.h"

void queue_push(struct queue *queue, const struct fi_cq_err_entry *is)
{
    struct entry *entry = calloc(1, sizeof *entry);
    uint64_t one = 1;
    entry->is = *is;
    *queue->last = entry;
    queue->last = &entry->next;
    if (++queue->unread > world.seen.most_unread)
        world.seen.most_unread = queue->unread;
    if (queue->unread > queue->size)
        violate("a completion queue of %zu entries overran", queue->size);
    if (queue->wait_fd >= 0) {
        ssize_t written = write(queue->wait_fd, &one, sizeof one);
        (void)written;
    }
}

void wake_all(void)
{
    uint64_t one = 1;
    for (struct queue *queue = world.queues; queue; queue = queue->next)
        if (queue->wait_fd >= 0) {
            ssize_t written = write(queue->wait_fd, &one, sizeof one);
            (void)written;
        }
}

static uint64_t random_below(uint64_t limit)
{
    world.seed ^= world.seed >> 12;
    world.seed ^= world.seed << 25;
    world.seed ^= world.seed >> 27;
    return world.seed * 0x2545F4914F6CDD1Du % limit;
}

static int uses(const struct description *is, uint64_t mode)
{
    return !!((is->mr_mode | is->optional_mr_mode) & mode);
}

/* Posting */

static uint64_t check_segments(const struct endpoint *endpoint, const struct fi_msg_rma *message)
{
    const struct description *is = endpoint->domain->is;
    uint64_t local = 0, remote = 0;
    if (message->iov_count > is->iov_limit || message->rma_iov_count > is->rma_iov_limit)
        violate("%zu local and %zu remote segments; the limits are %zu and %zu", message->iov_count,
                message->rma_iov_count, is->iov_limit, is->rma_iov_limit);
    for (size_t i = 0; i < message->rma_iov_count; i++)
        remote += message->rma_iov[i].len;
    for (size_t i = 0; i < message->iov_count; i++) {
        const struct iovec *iov = &message->msg_iov[i];
        const struct region *region = message->desc ? message->desc[i] : NULL;
        local += iov->iov_len;
        if (!uses(is, FI_MR_LOCAL))
            continue;
        if (!region || region->domain != endpoint->domain)
            violate("a local segment without this NIC's descriptor (FI_MR_LOCAL)");
        else if ((uint8_t *)iov->iov_base < region->base ||
                 (uint8_t *)iov->iov_base + iov->iov_len > region->base + region->bytes)
            violate("a local segment outside the region of its descriptor");
    }
    if (local != remote)
        violate("%lu local bytes for %lu remote bytes", (unsigned long)local, (unsigned long)remote);
    return local;
}

static void check_context(const struct endpoint *endpoint, void *context)
{
    const struct description *is = endpoint->domain->is;
    for (const struct wire *write = world.wire; write; write = write->next)
        if (!write->completed && write->context == context)
            violate("a context is used by two writes at once");
    if (is->mode & (FI_CONTEXT | FI_CONTEXT2)) /* it is the provider's until the write has ended */
        memset(context, 0xa5, is->mode & FI_CONTEXT2 ? sizeof(struct fi_context2) : sizeof(struct fi_context));
}

static int check_flags(const struct description *is, uint64_t flags)
{
    uint64_t own = FI_VERSION_GE(world.machine->version, is->write_flags_since) ? is->write_flags : 0;
    if ((flags & (FI_REMOTE_CQ_DATA | FI_COMPLETION)) != (FI_REMOTE_CQ_DATA | FI_COMPLETION))
        violate("a write without an immediate or a completion");
    if (flags & ~(FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_DELIVERY_COMPLETE | own)) {
        violate("a write with flags %#lx that this provider does not know", (unsigned long)flags);
        return -FI_EINVAL;
    }
    world.seen.flags |= flags;
    return 0;
}

/* Whether the script lets the post pass. */
static int admit(const struct endpoint *endpoint)
{
    int here = !world.again_domain[0] || strcmp(world.again_domain, endpoint->domain->name) == 0;
    if ((world.again && here) || endpoint->in_queue >= endpoint->domain->is->tx_size) {
        if (world.again && here && world.again != SCRIPTED_ALL)
            world.again--;
        world.seen.again++;
        return -FI_EAGAIN;
    }
    if (world.refuse_rc && world.refuse_after-- == 0) {
        int rc = world.refuse_rc;
        world.refuse_rc = 0;
        return rc;
    }
    return 0;
}

static void decide_fate(struct wire *write)
{
    write->fate = DELIVERED;
    if (world.fate_after) {
        world.fate_after--;
    } else if (world.fate_count) {
        if (world.fate_count != SCRIPTED_ALL)
            world.fate_count--;
        write->fate = world.fate;
        write->err = world.fate_err;
        write->prov_errno = world.fate_prov_errno;
    }
}

void wire_complete(struct wire *write, int err, int prov_errno)
{
    struct fi_cq_err_entry entry = { .op_context = write->context, .flags = FI_RMA | FI_WRITE };
    entry.err = err;
    entry.prov_errno = prov_errno;
    write->completed = 1;
    world.seen.confirmations -= (uint64_t)write->confirms;
    write->from->in_queue--;
    queue_push(write->from->queue, &entry);
}

static void enqueue(struct endpoint *endpoint, const struct fi_msg_rma *message, uint64_t flags)
{
    struct wire *write = calloc(1, sizeof *write);
    write->from = endpoint;
    memcpy(write->to, endpoint->vector->addresses[message->addr], MAX_ADDRESS);
    write->segments = message->iov_count;
    memcpy(write->local, message->msg_iov, message->iov_count * sizeof *write->local);
    memcpy(write->remote, message->rma_iov, message->rma_iov_count * sizeof *write->remote);
    write->immediate = message->data;
    write->context = message->context;
    write->held = world.hold;
    write->confirms = !!(flags & FI_DELIVERY_COMPLETE);
    endpoint->vector->open[message->addr] = !write->confirms;
    world.seen.confirmations += (uint64_t)write->confirms;
    decide_fate(write);
    struct wire **end = &world.wire;
    while (*end)
        end = &(*end)->next;
    *end = write;
    endpoint->in_queue++;
    world.seen.on_wire++;
    write->arrived = endpoint->broken != 0;
    if (endpoint->broken)
        wire_complete(write, endpoint->broken, 0);
}

static int post(struct endpoint *endpoint, const struct fi_msg_rma *message, uint64_t flags)
{
    const struct description *is = endpoint->domain->is;
    check_owner(endpoint->domain, "fi_writemsg");
    int rc = check_flags(is, flags);
    rc = rc ? rc : admit(endpoint);
    if (rc)
        return rc;
    if (message->addr >= endpoint->vector->count || !endpoint->vector->valid[message->addr]) {
        violate("a write to an address that is not in the address vector");
        return -FI_EINVAL;
    }
    if (message->iov_count > MAX_IOV || message->iov_count != message->rma_iov_count)
        return -FI_EINVAL; /* providers take it, ours has no use for it */
    uint64_t bytes = check_segments(endpoint, message);
    if (bytes > is->max_write_bytes)
        return -FI_EMSGSIZE;
    if (is->immediate_bytes < 8 && message->data >> (8 * is->immediate_bytes))
        violate("an immediate of more than %zu bytes", is->immediate_bytes);
    check_context(endpoint, message->context);
    enqueue(endpoint, message, flags);
    struct scripted_seen *seen = &world.seen;
    seen->posts++;
    seen->empty_posts += bytes == 0;
    seen->most_in_queue = endpoint->in_queue > seen->most_in_queue ? endpoint->in_queue : seen->most_in_queue;
    seen->most_segments = message->iov_count > seen->most_segments ? message->iov_count : seen->most_segments;
    seen->most_bytes = bytes > seen->most_bytes ? bytes : seen->most_bytes;
    wake_all();
    return 0;
}

static ssize_t writemsg(struct fid_ep *fid, const struct fi_msg_rma *message, uint64_t flags)
{
    lock();
    return unlock(post((struct endpoint *)fid, message, flags));
}

struct fi_ops_rma wire_ops = { .size = sizeof wire_ops, .writemsg = writemsg };

/* Arriving */

static uint8_t *target_of(const struct endpoint *to, const struct fi_rma_iov *iov)
{
    const struct region *region = region_of(to->domain, iov->key);
    if (!region || !(region->access & FI_REMOTE_WRITE)) {
        violate("key %#lx is of no region of %s that may be written", (unsigned long)iov->key, to->domain->name);
        return NULL;
    }
    uint64_t origin = uses(to->domain->is, FI_MR_VIRT_ADDR) ? (uint64_t)(uintptr_t)region->base : 0;
    uint64_t offset = iov->addr - origin;
    if (offset > region->bytes || iov->len > region->bytes - offset) {
        violate("%zu bytes at %#lx are outside their region: virtual address and offset mixed up?", iov->len,
                (unsigned long)iov->addr);
        return NULL;
    }
    return region->base + offset;
}

static void place(const struct wire *write, const struct endpoint *to)
{
    for (size_t i = 0; i < write->segments; i++) {
        uint8_t *target = target_of(to, &write->remote[i]);
        if (target && write->remote[i].len)
            memcpy(target, write->local[i].iov_base, write->remote[i].len);
    }
    queue_push(to->queue, &(struct fi_cq_err_entry){
        .flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, .data = write->immediate });
    world.seen.deliveries++;
}

static void arrive(struct wire *write)
{
    const struct endpoint *to = endpoint_at(write->to);
    enum scripted_fate fate = write->fate;
    int err = 0, prov_errno = 0;
    write->arrived = 1;
    if (fate == SWALLOWED)
        return;
    if (fate == FAILED || fate == FAILED_BUT_DELIVERED) {
        err = write->err;
        prov_errno = write->prov_errno;
    } else if (fate == DELIVERED && !to) {
        err = FI_ECANCELED;
    } else if (fate == DELIVERED && to->domain->is->wants_initiator_known &&
               !knows(to->vector, write->from->address)) {
        err = FI_EIO;
        prov_errno = 14; /* prov/efa/src/efa_errno.h: unknown peer */
    }
    if (to && ((fate == DELIVERED && !err) || fate == FAILED_BUT_DELIVERED))
        place(write, to);
    if (!write->completed)
        wire_complete(write, err, prov_errno);
}

static int may_arrive(const struct wire *write, const struct queue *read)
{
    const struct endpoint *to = endpoint_at(write->to);
    return !write->held && !write->arrived && (write->from->domain->is->hardware || !to || to->queue == read);
}

/* The next write in the script's order that fits. */
static struct wire *choose(int (*fits)(const struct wire *, const struct queue *), const struct queue *read)
{
    struct wire *chosen = NULL;
    uint64_t n = 0;
    for (struct wire *write = world.wire; write; write = write->next) {
        if (!fits(write, read))
            continue;
        n++;
        if (!chosen || world.order == REVERSED || (world.order == SHUFFLED && random_below(n) == 0))
            chosen = write;
    }
    return chosen;
}

void wire_sweep(void)
{
    for (struct wire **link = &world.wire; *link;) {
        struct wire *write = *link;
        if (write->arrived && write->completed) {
            *link = write->next;
            free(write);
            world.seen.on_wire--;
        } else {
            link = &write->next;
        }
    }
}

static void move(const struct queue *read)
{
    if (world.complete_first)
        for (struct wire *write = world.wire; write; write = write->next)
            if (!write->completed && !write->confirms && (write->fate == DELIVERED || write->fate == LOST))
                wire_complete(write, 0, 0);
    for (struct wire *write; (write = choose(may_arrive, read));)
        arrive(write);
    wire_sweep();
}

static int is_held(const struct wire *write, const struct queue *read)
{
    (void)read;
    return write->held;
}

uint64_t scripted_release(uint64_t count)
{
    uint64_t n = 0;
    lock();
    for (struct wire *write; n < count && (write = choose(is_held, NULL)); n++)
        write->held = 0;
    wake_all();
    unlock(0);
    return n;
}

int wire_has(const struct address_vector *vector, const uint8_t *address)
{
    for (const struct wire *write = world.wire; write; write = write->next)
        if (write->from->vector == vector && !write->completed && write->local[0].iov_len &&
            memcmp(write->to, address, MAX_ADDRESS) == 0)
            return 1;
    return 0;
}

void wire_drop(struct endpoint *endpoint)
{
    for (struct wire *write = world.wire; write; write = write->next)
        if (write->from == endpoint) {
            world.seen.confirmations -= (uint64_t)(write->confirms && !write->completed);
            write->arrived = write->completed = 1;
        }
    wire_sweep();
}

/* Reading */

static ssize_t read_queue(struct queue *queue, struct fi_cq_data_entry *out, size_t count)
{
    size_t n = 0;
    check_owner(queue->domain, "fi_cq_read");
    connect_anew(queue);
    if (queue->frozen)
        return -FI_EAGAIN;
    move(queue);
    if (queue->first && queue->first->is.err)
        return -FI_EAVAIL;
    for (struct entry *entry; n < count && (entry = queue->first) && !entry->is.err; n++) {
        out[n] = (struct fi_cq_data_entry){ .op_context = entry->is.op_context, .flags = entry->is.flags,
                                            .data = entry->is.data };
        queue->first = entry->next;
        if (!queue->first)
            queue->last = &queue->first;
        queue->unread--;
        free(entry);
    }
    return n ? (ssize_t)n : -FI_EAGAIN;
}

static ssize_t queue_read(struct fid_cq *fid, void *buffer, size_t count)
{
    lock();
    return unlock((int)read_queue((struct queue *)fid, buffer, count));
}

static ssize_t queue_readerr(struct fid_cq *fid, struct fi_cq_err_entry *out, uint64_t flags)
{
    struct queue *queue = (struct queue *)fid;
    (void)flags;
    lock();
    struct entry *entry = queue->first;
    if (!entry || !entry->is.err)
        return unlock(-FI_EAGAIN);
    if (out->err_data || out->err_data_size)
        violate("fi_cq_readerr into an entry that was not zeroed");
    *out = entry->is;
    queue->first = entry->next;
    if (!queue->first)
        queue->last = &queue->first;
    queue->unread--;
    free(entry);
    return unlock(1);
}

struct fi_ops_cq queue_ops = { .size = sizeof queue_ops, .read = queue_read, .readerr = queue_readerr };
