/* The scripted provider: libfabric's exported functions, and the objects that they open. What moves on
 * them is in wire.c, the script in script.c. It is strict where real providers are not: what a caller of
 * libfabric must not do is a violation, though much of it would work somewhere. */
#include "provider.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct world world = { .lock = PTHREAD_MUTEX_INITIALIZER, .met = PTHREAD_COND_INITIALIZER };

void violate(const char *format, ...)
{
    if (world.seen.violations++)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(world.seen.violation, sizeof world.seen.violation, format, args);
    va_end(args);
}

void check_owner(const struct domain *domain, const char *call)
{
    if (!pthread_equal(pthread_self(), domain->owner))
        violate("%s from another thread than its domain's (FI_THREAD_DOMAIN)", call);
    if (domain->registering)
        violate("%s while another thread is inside fi_mr_reg (FI_THREAD_DOMAIN)", call);
}

/* Endpoints */

struct endpoint *endpoint_at(const uint8_t *address)
{
    struct endpoint *endpoint = world.endpoints;
    while (endpoint && memcmp(endpoint->address, address, MAX_ADDRESS) != 0)
        endpoint = endpoint->next;
    return endpoint;
}

static int endpoint_close(struct fid *fid)
{
    struct endpoint *endpoint = (struct endpoint *)fid;
    lock();
    check_owner(endpoint->domain, "fi_close of an endpoint");
    unlink_from(&world.endpoints, endpoint, offsetof(struct endpoint, next));
    wire_drop(endpoint);
    adopt(endpoint->domain, -1);
    free(endpoint);
    return unlock(0);
}

static int endpoint_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct endpoint *endpoint = (struct endpoint *)fid;
    lock();
    if (endpoint->enabled)
        violate("fi_ep_bind after fi_enable");
    if (other->fclass == FI_CLASS_CQ && flags == (FI_TRANSMIT | FI_RECV))
        endpoint->queue = (struct queue *)other;
    else if (other->fclass == FI_CLASS_AV)
        endpoint->vector = (struct address_vector *)other;
    else if (other->fclass == FI_CLASS_EQ)
        endpoint->events = (struct events *)other;
    else
        violate("fi_ep_bind of something else");
    return unlock(0);
}

static int endpoint_control(struct fid *fid, int command, void *argument)
{
    struct endpoint *endpoint = (struct endpoint *)fid;
    (void)argument;
    if (command != FI_ENABLE)
        return -FI_ENOSYS;
    lock();
    if (!endpoint->queue || !endpoint->vector)
        violate("fi_enable without a queue or an address vector");
    endpoint->enabled = 1;
    return unlock(0);
}

static int endpoint_setopt(fid_t fid, int level, int name, const void *value, size_t bytes)
{
    const struct endpoint *endpoint = (struct endpoint *)fid;
    (void)value;
    if (level != FI_OPT_ENDPOINT)
        return -FI_ENOPROTOOPT;
    lock();
    if (endpoint->enabled)
        violate("fi_setopt after fi_enable");
    int rc = -FI_ENOPROTOOPT;
    for (size_t i = 0; i < MAX_KNOWN_OPTIONS && endpoint->domain->is->options[i].bytes; i++)
        if (endpoint->domain->is->options[i].number == name)
            rc = endpoint->domain->is->options[i].bytes == bytes ? endpoint->domain->is->options[i].rc
                                                                 : -FI_EINVAL;
    return unlock(rc);
}

static int endpoint_getopt(fid_t fid, int level, int name, void *value, size_t *bytes)
{
    const struct domain *domain = ((struct endpoint *)fid)->domain;
    (void)level;
    /* FI_OPT_EFA_EMULATED_WRITE */
    if (name != -(0xefa << 16) + 2 || !domain->is->offloads_from || *bytes != 1)
        return -FI_ENOPROTOOPT;
    *(uint8_t *)value = FI_VERSION_LT(domain->api_version, domain->is->offloads_from);
    return 0;
}

static int endpoint_name(fid_t fid, void *address, size_t *bytes)
{
    const struct endpoint *endpoint = (struct endpoint *)fid;
    size_t has = endpoint->domain->is->address_bytes;
    if (*bytes < has)
        return -FI_ETOOSMALL;
    memcpy(address, endpoint->address, has);
    *bytes = has;
    return 0;
}

static struct fi_ops endpoint_fid_ops = { .size = sizeof(struct fi_ops), .close = endpoint_close,
                                          .bind = endpoint_bind, .control = endpoint_control };
static struct fi_ops_ep endpoint_ops = { .size = sizeof endpoint_ops, .setopt = endpoint_setopt,
                                         .getopt = endpoint_getopt };
static struct fi_ops_cm endpoint_cm_ops = { .size = sizeof endpoint_cm_ops, .getname = endpoint_name };

static void give_address(struct endpoint *endpoint)
{
    uint32_t number = ++world.next_address;
    switch (endpoint->domain->is->address_format) {
    case FI_SOCKADDR_IN: {
        struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)number),
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        memcpy(endpoint->address, &address, sizeof address);
        break;
    }
    case FI_ADDR_STR:
        snprintf((char *)endpoint->address, MAX_ADDRESS, "fi_shm://%u", number);
        break;
    default:
        endpoint->address[0] = 0xfe;
        memcpy(endpoint->address + 1, &number, sizeof number);
    }
}

static int endpoint_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
    (void)info, (void)context;
    lock();
    if (world.endpoints_to_refuse) {
        if (world.endpoints_to_refuse != SCRIPTED_ALL)
            world.endpoints_to_refuse--;
        world.endpoints_refused++;
        return unlock(world.endpoint_rc);
    }
    struct endpoint *endpoint = calloc(1, sizeof *endpoint);
    endpoint->fid.fid.fclass = FI_CLASS_EP;
    endpoint->fid.fid.ops = &endpoint_fid_ops;
    endpoint->fid.ops = &endpoint_ops;
    endpoint->fid.cm = &endpoint_cm_ops;
    endpoint->fid.rma = &wire_ops;
    endpoint->domain = (struct domain *)fid;
    give_address(endpoint);
    endpoint->next = world.endpoints;
    world.endpoints = endpoint;
    adopt(endpoint->domain, 1);
    *out = &endpoint->fid;
    return unlock(0);
}

/* Domains and fabrics */

static int domain_close(struct fid *fid)
{
    struct domain *domain = (struct domain *)fid;
    lock();
    if (domain->children)
        violate("a domain is closed with %d objects open in it", domain->children);
    adopt(NULL, -1);
    free(domain);
    return unlock(0);
}

static struct fi_ops domain_fid_ops = { .size = sizeof(struct fi_ops), .close = domain_close };
static struct fi_ops_domain domain_ops = { .size = sizeof domain_ops, .av_open = vector_open,
                                           .cq_open = queue_open, .endpoint = endpoint_open };

static int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context)
{
    struct domain *domain = calloc(1, sizeof *domain);
    (void)fabric, (void)context;
    lock();
    domain->fid.fid.fclass = FI_CLASS_DOMAIN;
    domain->fid.fid.ops = &domain_fid_ops;
    domain->fid.ops = &domain_ops;
    domain->fid.mr = &region_ops;
    domain->api_version = info->fabric_attr->api_version;
    domain->owner = pthread_self();
    domain->hmem = !!(info->caps & FI_HMEM);
    domain->next_key = 0x1000ull * ++world.next_domain; /* a key of one NIC means nothing to another */
    snprintf(domain->name, sizeof domain->name, "%s", info->domain_attr->name);
    for (size_t i = 0; world.machine->has[i]; i++)
        if (strcmp(world.machine->has[i]->provider, info->fabric_attr->prov_name) == 0 &&
            strcmp(world.machine->has[i]->fabric, info->fabric_attr->name) == 0)
            domain->is = world.machine->has[i];
    adopt(NULL, 1);
    *out = &domain->fid;
    return unlock(0);
}

static int fabric_close(struct fid *fid)
{
    lock();
    adopt(NULL, -1);
    free(fid);
    return unlock(0);
}

static int trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
    (void)fabric, (void)count;
    struct queue *queue = (struct queue *)fids[0];
    uint64_t drained;
    lock();
    ssize_t got = read(queue->wait_fd, &drained, sizeof drained);
    return unlock(got > 0 || (queue->first && !queue->frozen) ? -FI_EAGAIN : 0);
}

static struct fi_ops fabric_fid_ops = { .size = sizeof(struct fi_ops), .close = fabric_close };
static struct fi_ops_fabric fabric_ops = { .size = sizeof fabric_ops, .domain = domain_open,
                                           .eq_open = events_open, .trywait = trywait };

/* What libfabric.so.1 exports */

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
    struct fid_fabric *fabric = calloc(1, sizeof *fabric);
    (void)attr, (void)context;
    lock();
    fabric->fid.fclass = FI_CLASS_FABRIC;
    fabric->fid.ops = &fabric_fid_ops;
    fabric->ops = &fabric_ops;
    adopt(NULL, 1);
    *out = fabric;
    return unlock(0);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
               const struct fi_info *hints, struct fi_info **list)
{
    (void)service, (void)flags;
    lock();
    if (FI_VERSION_LT(world.machine->version, version))
        return unlock(-FI_ENOSYS);
    return unlock(answer(version, node, hints, list));
}

uint32_t fi_version(void)
{
    return world.machine->version;
}

const char *fi_strerror(int code)
{
    return code == FI_ENODATA ? "No data available" : strerror(code);
}

char *fi_tostr(const void *data, enum fi_type type)
{
    (void)data, (void)type;
    return (char *)(uintptr_t)"scripted";
}
