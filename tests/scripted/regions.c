/* Memory regions of the scripted provider: by address, of a GPU, by dmabuf. */
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>

#include "provider.h"

#ifndef FI_MR_DMABUF
#define FI_MR_DMABUF (1ull << 40)
#endif

/* struct fi_mr_dmabuf of libfabric 1.20 and later. */
struct dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void *base_addr;
};

static int region_close(struct fid *fid)
{
    struct region *region = (struct region *)fid;
    lock();
    check_owner(region->domain, "fi_close of a memory region");
    for (struct wire *write = world.wire; write; write = write->next)
        for (size_t i = 0; i < write->segments; i++) {
            uint8_t *at = write->local[i].iov_base;
            if (!write->arrived && write->from->domain == region->domain && at >= region->base &&
                at < region->base + region->bytes)
                violate("a memory region is closed under a write that reads from it");
        }
    unlink_from(&region->domain->regions, region, offsetof(struct region, next));
    adopt(region->domain, -1);
    free(region);
    return unlock(0);
}

static struct fi_ops region_fid_ops = { .size = sizeof(struct fi_ops), .close = region_close };

struct region *region_of(const struct domain *domain, uint64_t key)
{
    struct region *region = domain->regions;
    while (region && region->fid.key != key)
        region = region->next;
    return region;
}

/* Any thread may be inside of it, but no two in one domain. */
static void enter(struct domain *domain)
{
    lock();
    if (domain->registering)
        violate("two threads are inside fi_mr_reg of one domain (FI_THREAD_DOMAIN)");
    domain->registering = 1;
    if (world.together) {
        if (++world.inside == world.together) {
            world.together = world.inside = 0;
            pthread_cond_broadcast(&world.met);
        }
        while (world.together)
            pthread_cond_wait(&world.met, &world.lock);
    }
    unlock(0);
    sched_yield(); /* a real one takes time: others get the chance to do wrong */
    lock();
}

static int leave(struct domain *domain, int rc)
{
    domain->registering = 0;
    return unlock(rc);
}

static int refused(void)
{
    if (world.registrations_before_refusal) {
        world.registrations_before_refusal--;
        return 0;
    }
    if (!world.registrations_to_refuse)
        return 0;
    world.registrations_to_refuse--;
    return world.registration_rc;
}

static int add(struct domain *domain, void *base, size_t bytes, uint64_t access, uint64_t key,
               struct fid_mr **out)
{
    const struct description *is = domain->is;
    if (is->mr_mode & FI_MR_PROV_KEY)
        key = domain->next_key++;
    else if (is->key_bytes < 8 && key >> (8 * is->key_bytes))
        violate("a key of more than %zu bytes", is->key_bytes);
    if (region_of(domain, key))
        return -FI_ENOKEY;
    struct region *region = calloc(1, sizeof *region);
    region->fid.fid.fclass = FI_CLASS_MR;
    region->fid.fid.ops = &region_fid_ops;
    region->fid.mem_desc = region;
    region->fid.key = key;
    region->domain = domain;
    region->base = base;
    region->bytes = bytes;
    region->access = access;
    region->next = domain->regions;
    domain->regions = region;
    adopt(domain, 1);
    *out = &region->fid;
    return 0;
}

static int region_open(struct fid *fid, const void *base, size_t bytes, uint64_t access, uint64_t offset,
                       uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
    struct domain *domain = (struct domain *)fid;
    (void)context;
    enter(domain);
    if (offset || flags)
        violate("fi_mr_reg with an offset or flags");
    int rc = refused();
    rc = rc ? rc : add(domain, (void *)(uintptr_t)base, bytes, access, key, out);
    world.registered.host += !rc;
    return leave(domain, rc);
}

static int take_dmabuf(const struct domain *domain, const struct dmabuf *dmabuf)
{
    if (FI_VERSION_LT(domain->api_version, FI_VERSION(1, 20)))
        violate("a dmabuf over an interface that does not know it");
    if (fcntl(dmabuf->fd, F_GETFD) < 0)
        violate("a dmabuf whose descriptor is closed");
    if (world.dmabuf_rc)
        return world.dmabuf_rc;
    world.registered.dmabuf++;
    world.registered.fd = dmabuf->fd;
    world.registered.offset = dmabuf->offset;
    world.registered.bytes = dmabuf->len;
    world.registered.base = (uint64_t)(uintptr_t)dmabuf->base_addr;
    return 0;
}

static int region_open_attr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
    struct domain *domain = (struct domain *)fid;
    enter(domain);
    if (attr->offset || attr->iov_count != 1 || attr->auth_key_size || flags & ~FI_MR_DMABUF)
        violate("fi_mr_regattr with an offset, flags, or not one piece");
    if (attr->iface != FI_HMEM_CUDA || !domain->hmem)
        violate("memory of a GPU in a domain that was opened without FI_HMEM");
    int rc = 0;
    struct iovec whole = *attr->mr_iov;
    if (flags & FI_MR_DMABUF) {
        const struct dmabuf *dmabuf = (const void *)attr->mr_iov;
        whole = (struct iovec){ (uint8_t *)dmabuf->base_addr + dmabuf->offset, dmabuf->len };
        rc = take_dmabuf(domain, dmabuf);
    }
    rc = rc ? rc : refused();
    rc = rc ? rc : add(domain, whole.iov_base, whole.iov_len, attr->access, attr->requested_key, out);
    world.registered.cuda += !rc;
    world.registered.device = attr->device.cuda;
    return leave(domain, rc);
}

struct fi_ops_mr region_ops = { .size = sizeof region_ops, .reg = region_open, .regattr = region_open_attr };
