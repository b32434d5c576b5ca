/* The bare libfabric loop: what the provider gives to a program that does nothing else.
 *
 * No ledger, no plans, no slots, no stalls: one endpoint, one region, writes with an immediate each,
 * polling the queue without rest. It shares no code with the core on purpose, so that it can be a judge of it. */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define MAX_SEGMENTS 4
#define CQ_BATCH 64
#define ROUNDS_PER_CLOCK 1024

struct spb_raw {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *mr;
    uint8_t *buffer;
    fi_addr_t peer;
    uint64_t peer_base, peer_key;
    void (*freeinfo)(struct fi_info *info);
    const char *(*strerror)(int code);
};

struct functions {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
};

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int fail(const spb_raw *raw, char *error, const char *what, long code)
{
    snprintf(error, SPB_ERROR_BYTES, "%s: %s", what,
             raw && raw->strerror ? raw->strerror((int)(code < 0 ? -code : code)) : "failed");
    return -1;
}

static int load(spb_raw *raw, struct functions *call, const char *library, char *error)
{
    const char *names[] = { "fi_getinfo", "fi_dupinfo", "fi_fabric", "fi_freeinfo", "fi_strerror" };
    void *slots[] = { &call->getinfo, &call->dupinfo, &call->fabric, &raw->freeinfo, &raw->strerror };
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        void *symbol = handle ? dlsym(handle, names[i]) : NULL;
        if (!symbol)
            return fail(NULL, error, library, 0);
        memcpy(slots[i], &symbol, sizeof symbol);
    }
    return 0;
}

static int find(spb_raw *raw, const struct functions *call, const char *provider, const char *source,
                char *error)
{
    struct fi_info *hints = call->dupinfo(NULL);
    if (!hints)
        return fail(NULL, error, "fi_allocinfo", 0);
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    int rc = call->getinfo(FI_VERSION(1, 17), source, NULL, source ? FI_SOURCE : 0, hints, &raw->info);
    raw->freeinfo(hints);
    return rc ? fail(raw, error, "fi_getinfo", rc) : 0;
}

static int open_all(spb_raw *raw, const struct functions *call, uint64_t bytes, char *error)
{
    struct fi_cq_attr cq = { .size = 8192, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE };
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    uint64_t access = FI_WRITE | FI_READ | FI_REMOTE_WRITE;
    int rc = call->fabric(raw->info->fabric_attr, &raw->fabric, NULL);
    rc = rc ? rc : fi_domain(raw->fabric, raw->info, &raw->domain, NULL);
    rc = rc ? rc : fi_cq_open(raw->domain, &cq, &raw->cq, NULL);
    rc = rc ? rc : fi_av_open(raw->domain, &av, &raw->av, NULL);
    rc = rc ? rc : fi_endpoint(raw->domain, raw->info, &raw->ep, NULL);
    rc = rc ? rc : fi_ep_bind(raw->ep, &raw->cq->fid, FI_TRANSMIT | FI_RECV);
    rc = rc ? rc : fi_ep_bind(raw->ep, &raw->av->fid, 0);
    rc = rc ? rc : fi_enable(raw->ep);
    rc = rc ? rc : fi_mr_reg(raw->domain, raw->buffer, bytes, access, 0, 1, 0, &raw->mr, NULL);
    return rc ? fail(raw, error, "opening an endpoint", rc) : 0;
}

int spb_raw_open(const char *library, const char *provider, const char *source, void *buffer,
                 uint64_t bytes, spb_raw **out, char *error)
{
    struct functions call;
    spb_raw *raw = calloc(1, sizeof *raw);
    if (!raw)
        return fail(NULL, error, "memory", 0);
    raw->buffer = buffer;
    if (load(raw, &call, library, error) || find(raw, &call, provider, source, error) ||
        open_all(raw, &call, bytes, error)) {
        spb_raw_close(raw);
        return -1;
    }
    *out = raw;
    return 0;
}

void spb_raw_invite(const spb_raw *raw, uint8_t *address, uint64_t *base, uint64_t *key)
{
    size_t room = SPB_ADDRESS_BYTES;
    memset(address, 0, room);
    fi_getname(&raw->ep->fid, address, &room);
    *base = raw->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)raw->buffer : 0;
    *key = fi_mr_key(raw->mr);
}

int spb_raw_connect(spb_raw *raw, const uint8_t *address, uint64_t base, uint64_t key, char *error)
{
    raw->peer_base = base;
    raw->peer_key = key;
    int rc = fi_av_insert(raw->av, address, 1, &raw->peer, 0, NULL);
    return rc == 1 ? 0 : fail(raw, error, "fi_av_insert", rc);
}

/* Reads the queue once: how many events of the kind came, or -1. */
static long poll_queue(spb_raw *raw, int immediates, char *error)
{
    struct fi_cq_data_entry entries[CQ_BATCH];
    long found = 0;
    ssize_t n = fi_cq_read(raw->cq, entries, CQ_BATCH);
    if (n == -FI_EAGAIN) {
        sched_yield(); /* the other side may need this core */
        return 0;
    }
    if (n < 0) {
        union {
            struct fi_cq_err_entry entry;
            char room[256];
        } unread = { 0 };
        fi_cq_readerr(raw->cq, &unread.entry, 0);
        return fail(raw, error, "the completion queue", unread.entry.err ? unread.entry.err : n);
    }
    for (ssize_t i = 0; i < n; i++)
        found += !!(entries[i].flags & FI_REMOTE_CQ_DATA) == immediates;
    return found;
}

static ssize_t post(spb_raw *raw, const uint64_t *to, const uint64_t *from, size_t pages, size_t page_bytes,
                    void *context)
{
    struct iovec local[MAX_SEGMENTS];
    struct fi_rma_iov remote[MAX_SEGMENTS];
    void *desc[MAX_SEGMENTS];
    for (size_t i = 0; i < pages; i++) {
        local[i] = (struct iovec){ raw->buffer + from[i], page_bytes };
        remote[i] = (struct fi_rma_iov){ raw->peer_base + to[i], page_bytes, raw->peer_key };
        desc[i] = fi_mr_desc(raw->mr);
    }
    struct fi_msg_rma message = { .msg_iov = local, .desc = desc, .iov_count = pages, .addr = raw->peer,
                                  .rma_iov = remote, .rma_iov_count = pages, .context = context, .data = 1 };
    return fi_writemsg(raw->ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION);
}

int spb_raw_write(spb_raw *raw, const uint64_t *to, const uint64_t *from, size_t n, size_t page_bytes,
                  uint32_t segments, uint32_t window, uint64_t limit_ns, char *error)
{
    if (segments == 0 || segments > MAX_SEGMENTS)
        return fail(NULL, error, "segments", 0);
    /* One context for each write: a provider may use it until the write has ended. */
    struct fi_context2 *contexts = calloc(n / segments + 1, sizeof *contexts);
    if (!contexts)
        return fail(NULL, error, "memory", 0);
    uint64_t start = now();
    size_t page = 0, posted = 0, ended = 0;
    int rc = 0;
    for (unsigned round = 1; !rc && (page < n || ended < posted); round++) {
        while (page < n && posted - ended < window) {
            size_t pages = n - page < segments ? n - page : segments;
            ssize_t sent = post(raw, to + page, from + page, pages, page_bytes, &contexts[posted]);
            if (sent == -FI_EAGAIN)
                break;
            if (sent) {
                rc = fail(raw, error, "fi_writemsg", sent);
                break;
            }
            page += pages;
            posted++;
        }
        long found = poll_queue(raw, 0, error);
        if (found < 0)
            rc = -1;
        else
            ended += (size_t)found;
        if (round % ROUNDS_PER_CLOCK == 0 && now() - start > limit_ns)
            rc = fail(NULL, error, "the time limit of a write", 0);
    }
    free(contexts);
    return rc;
}

int spb_raw_receive(spb_raw *raw, size_t n, uint64_t limit_ns, uint64_t *end_ns, char *error)
{
    uint64_t start = now();
    for (unsigned round = 1; n; round++) {
        long found = poll_queue(raw, 1, error);
        if (found < 0)
            return -1;
        n -= (size_t)found;
        if (n && round % ROUNDS_PER_CLOCK == 0 && now() - start > limit_ns)
            return fail(NULL, error, "the time limit of a receive", 0);
    }
    *end_ns = now();
    return 0;
}

int spb_raw_register(spb_raw *raw, const uint64_t *addresses, const uint64_t *bytes, size_t n, uint64_t *ns,
                     char *error)
{
    const uint64_t access = FI_WRITE | FI_READ | FI_REMOTE_WRITE;
    struct fid_mr **regions = calloc(n, sizeof *regions);
    if (!regions)
        return fail(NULL, error, "memory", 0);
    int rc = 0;
    size_t done = 0;
    uint64_t start = now();
    while (!rc && done < n) {
        void *address = (void *)(uintptr_t)addresses[done];
        rc = fi_mr_reg(raw->domain, address, bytes[done], access, 0, done + 2, 0, &regions[done], NULL);
        done += !rc;
    }
    *ns = now() - start;
    while (done)
        fi_close(&regions[--done]->fid);
    free(regions);
    return rc ? fail(raw, error, "fi_mr_reg", rc) : 0;
}

void spb_raw_close(spb_raw *raw)
{
    struct fid *all[] = { raw->ep ? &raw->ep->fid : NULL,         raw->mr ? &raw->mr->fid : NULL,
                          raw->av ? &raw->av->fid : NULL,         raw->cq ? &raw->cq->fid : NULL,
                          raw->domain ? &raw->domain->fid : NULL, raw->fabric ? &raw->fabric->fid : NULL };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            fi_close(all[i]);
    if (raw->info)
        raw->freeinfo(raw->info);
    free(raw);
}
