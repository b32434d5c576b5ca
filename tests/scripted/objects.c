/* Address vectors, completion queues and event queues of the scripted provider. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "provider.h"

void adopt(struct domain *domain, int change)
{
    world.seen.open_objects += (uint64_t)change;
    if (domain)
        domain->children += change;
}

void unlink_from(void *list, void *object, size_t next)
{
    void **link = list;
    while (*link && *link != object)
        link = (void **)((char *)*link + next);
    if (*link)
        *link = *(void **)((char *)object + next);
}

/* Address vectors */

int knows(const struct address_vector *vector, const uint8_t *address)
{
    for (size_t i = 0; i < vector->count; i++)
        if (vector->valid[i] && memcmp(vector->addresses[i], address, MAX_ADDRESS) == 0)
            return 1;
    return 0;
}

static int vector_insert(struct fid_av *fid, const void *address, size_t count, fi_addr_t *out,
                         uint64_t flags, void *context)
{
    struct address_vector *vector = (struct address_vector *)fid;
    (void)context;
    lock();
    check_owner(vector->domain, "fi_av_insert");
    if (count != 1 || flags)
        violate("fi_av_insert of %zu addresses with flags %#lx", count, (unsigned long)flags);
    size_t n = vector->count++;
    vector->addresses = realloc(vector->addresses, vector->count * sizeof *vector->addresses);
    vector->valid = realloc(vector->valid, vector->count);
    vector->open = realloc(vector->open, vector->count);
    memset(vector->addresses[n], 0, MAX_ADDRESS);
    memcpy(vector->addresses[n], address, vector->domain->is->address_bytes);
    vector->valid[n] = 1;
    vector->open[n] = 0;
    *out = n;
    return unlock(1);
}

static int vector_remove(struct fid_av *fid, fi_addr_t *address, size_t count, uint64_t flags)
{
    struct address_vector *vector = (struct address_vector *)fid;
    (void)flags;
    lock();
    check_owner(vector->domain, "fi_av_remove");
    if (count != 1 || *address >= vector->count || !vector->valid[*address])
        violate("fi_av_remove of an address that is not there");
    else if (vector->domain->is->hardware && wire_has(vector, vector->addresses[*address]))
        violate("fi_av_remove of an address to which a NIC still writes"); /* efa may never report what it writes */
    else
        vector->valid[*address] = vector->open[*address] = 0;
    return unlock(0);
}

static int vector_close(struct fid *fid)
{
    struct address_vector *vector = (struct address_vector *)fid;
    lock();
    adopt(vector->domain, -1);
    free(vector->addresses);
    free(vector->valid);
    free(vector->open);
    free(vector);
    return unlock(0);
}

static struct fi_ops vector_fid_ops = { .size = sizeof(struct fi_ops), .close = vector_close };
static struct fi_ops_av vector_ops = { .size = sizeof vector_ops, .insert = vector_insert,
                                       .remove = vector_remove };

int vector_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
    struct address_vector *vector = calloc(1, sizeof *vector);
    (void)context;
    lock();
    if (attr->type != FI_AV_TABLE)
        violate("an address vector that is no table");
    vector->fid.fid.fclass = FI_CLASS_AV;
    vector->fid.fid.ops = &vector_fid_ops;
    vector->fid.ops = &vector_ops;
    vector->domain = (struct domain *)fid;
    adopt(vector->domain, 1);
    *out = &vector->fid;
    return unlock(0);
}

/* Completion queues */

static int queue_close(struct fid *fid)
{
    struct queue *queue = (struct queue *)fid;
    lock();
    for (struct endpoint *endpoint = world.endpoints; endpoint; endpoint = endpoint->next)
        if (endpoint->queue == queue)
            violate("a completion queue is closed under its endpoint");
    unlink_from(&world.queues, queue, offsetof(struct queue, next));
    adopt(queue->domain, -1);
    while (queue->first) {
        struct entry *next = queue->first->next;
        free(queue->first);
        queue->first = next;
    }
    if (queue->wait_fd >= 0)
        close(queue->wait_fd);
    free(queue);
    return unlock(0);
}

static int queue_control(struct fid *fid, int command, void *argument)
{
    struct queue *queue = (struct queue *)fid;
    if (command != FI_GETWAIT || queue->wait_fd < 0)
        return -FI_ENOSYS;
    *(int *)argument = queue->wait_fd;
    return 0;
}

static struct fi_ops queue_fid_ops = { .size = sizeof(struct fi_ops), .close = queue_close,
                                       .control = queue_control };

int queue_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
    struct domain *domain = (struct domain *)fid;
    (void)context;
    if (attr->wait_obj == FI_WAIT_FD && !domain->is->has_wait_fd)
        return -FI_ENOSYS;
    struct queue *queue = calloc(1, sizeof *queue);
    lock();
    if (attr->format != FI_CQ_FORMAT_DATA)
        violate("a completion queue without immediates");
    queue->fid.fid.fclass = FI_CLASS_CQ;
    queue->fid.fid.ops = &queue_fid_ops;
    queue->fid.ops = &queue_ops;
    queue->domain = domain;
    queue->size = attr->size;
    queue->wait_fd = attr->wait_obj == FI_WAIT_FD ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    queue->last = &queue->first;
    queue->next = world.queues;
    world.queues = queue;
    if (!world.seen.queue_entries || attr->size < world.seen.queue_entries)
        world.seen.queue_entries = attr->size;
    adopt(domain, 1);
    *out = &queue->fid;
    return unlock(0);
}

/* Event queues */

static ssize_t events_read(struct fid_eq *fid, uint32_t *event, void *buffer, size_t bytes, uint64_t flags)
{
    (void)event, (void)buffer, (void)bytes, (void)flags;
    lock();
    return unlock(((struct events *)fid)->err ? -FI_EAVAIL : -FI_EAGAIN);
}

static ssize_t events_readerr(struct fid_eq *fid, struct fi_eq_err_entry *out, uint64_t flags)
{
    struct events *events = (struct events *)fid;
    (void)flags;
    lock();
    if (out->err_data_size)
        violate("fi_eq_readerr into an entry that was not zeroed");
    out->err = events->err;
    events->err = 0;
    return unlock(1);
}

static int events_close(struct fid *fid)
{
    lock();
    adopt(NULL, -1);
    free(fid);
    return unlock(0);
}

static struct fi_ops events_fid_ops = { .size = sizeof(struct fi_ops), .close = events_close };
static struct fi_ops_eq events_ops = { .size = sizeof events_ops, .read = events_read,
                                       .readerr = events_readerr };

int events_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out, void *context)
{
    struct events *events = calloc(1, sizeof *events);
    (void)fabric, (void)attr, (void)context;
    lock();
    events->fid.fid.fclass = FI_CLASS_EQ;
    events->fid.fid.ops = &events_fid_ops;
    events->fid.ops = &events_ops;
    adopt(NULL, 1);
    *out = &events->fid;
    return unlock(0);
}
