/* Memory regions: registered with every NIC of the engine, in parallel, and closed again.
 *
 * Who may call: FI_THREAD_DOMAIN asks that calls into a domain do not overlap, not that they come from one
 * thread. The I/O thread, which owns the domains, lends each of them to one helper and works for the first
 * itself; it touches none before all helpers have ended. A real NIC pins and maps every page, so a large
 * pool takes seconds on each, and eight NICs one after the other eight times as long. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine.h"
#include "error.h"

#define KEY_TRIES 16
/* From libfabric 1.20 on, which our headers may not know (fi_mr(3)). */
#ifndef FI_MR_DMABUF
#define FI_MR_DMABUF (1ull << 40)
#endif
#define DMABUF_SINCE FI_VERSION(1, 20)

/* struct fi_mr_dmabuf. */
struct dmabuf {
    int fd;
    uint64_t offset;          /* of the first byte to register */
    size_t bytes;
    void *base;               /* address of the dmabuf's first byte */
};

struct batch {
    spf_engine *engine;
    const spf_memory *memories;
    spf_region_info *out;
    uint32_t count;
    uint32_t first;           /* index of the first region in the engine's table */
    uint64_t deadline_ns;
    uint32_t *done;
    pthread_mutex_t lock;     /* guards both below */
    uint32_t started;         /* memories that some NIC has begun with: all NICs have to catch up */
    int failed;
};

/* One NIC's part. */
struct helper {
    struct batch *batch;
    uint32_t nic;
    uint32_t registered;
    int rc;
    spf_error error;
    pthread_t thread;
    int has_thread;
};

static int ask(const struct spf_nic *nic, const spf_memory *memory, uint64_t key, int by_dmabuf,
               struct fid_mr **mr)
{
    const uint64_t access = FI_WRITE | FI_READ | FI_REMOTE_WRITE;
    void *address = (void *)(uintptr_t)memory->address;
    if (memory->cuda_device < 0)
        return fi_mr_reg(nic->domain, address, memory->bytes, access, 0, key, 0, mr, NULL);
    struct iovec whole = { address, memory->bytes };
    struct dmabuf dmabuf = { memory->dmabuf_fd, memory->dmabuf_offset, memory->bytes,
                             (uint8_t *)address - memory->dmabuf_offset };
    /* Newer libraries read a longer struct than our headers know: the rest of it is zero. */
    union {
        struct fi_mr_attr attr;
        char room[256];
    } wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.attr.mr_iov = by_dmabuf ? (const struct iovec *)(const void *)&dmabuf : &whole;
    wanted.attr.iov_count = 1;
    wanted.attr.access = access;
    wanted.attr.requested_key = key;
    wanted.attr.iface = FI_HMEM_CUDA;
    wanted.attr.device.cuda = memory->cuda_device;
    return fi_mr_regattr(nic->domain, &wanted.attr, by_dmabuf ? FI_MR_DMABUF : 0, mr);
}

/* Random keys: a writer that still knows an earlier process must not reach into this one. */
static int ask_with_key(const struct spf_nic *nic, const spf_memory *memory, int by_dmabuf,
                        struct fid_mr **mr)
{
    uint64_t key;
    if (getrandom(&key, sizeof key, 0) != (ssize_t)sizeof key)
        return -errno;
    size_t key_bytes = nic->info->domain_attr->mr_key_size;
    if (key_bytes < sizeof key)
        key &= ((uint64_t)1 << (8 * key_bytes)) - 1;
    int rc = -FI_ENOKEY;
    for (int i = 0; rc == -FI_ENOKEY && i < KEY_TRIES; i++) /* taken, where keys are short */
        rc = ask(nic, memory, key ^ (uint64_t)i, by_dmabuf, mr);
    return rc;
}

/* By dmabuf where there is one and it is taken, otherwise by address: for memory of a GPU that means the
 * kernel's peer-memory module. */
static int register_one(struct helper *helper, const spf_memory *memory, struct fid_mr **mr,
                        spf_region_info *out)
{
    const spf_engine *engine = helper->batch->engine;
    const struct spf_nic *nic = &engine->nics[helper->nic];
    int by_dmabuf = memory->dmabuf_fd >= 0 &&
                    FI_VERSION_GE(nic->info->fabric_attr->api_version, DMABUF_SINCE);
    int refusal = by_dmabuf ? ask_with_key(nic, memory, 1, mr) : 0;
    out->by_dmabuf[helper->nic] = by_dmabuf && !refusal;
    int rc = by_dmabuf && !refusal ? 0 : ask_with_key(nic, memory, 0, mr);
    out->keys[helper->nic] = rc ? 0 : fi_mr_key(*mr);
    if (!rc)
        return 0;
    return spf_fail(&helper->error, rc, "%s of %llu bytes at %#llx on %s: %s%s%s%s",
                    memory->cuda_device < 0 ? "fi_mr_reg" : "fi_mr_regattr", (unsigned long long)memory->bytes,
                    (unsigned long long)memory->address, nic->info->domain_attr->name,
                    refusal ? "as dmabuf: " : "", refusal ? spf_library_text(engine->library, refusal) : "",
                    refusal ? "; by address: " : "", spf_library_text(engine->library, rc));
}

/* The first NIC to come to a memory decides whether there is time for it; the others follow. */
static int may_begin(struct batch *batch, uint32_t index)
{
    pthread_mutex_lock(&batch->lock);
    int leads = index == batch->started;
    int go = index < batch->count && !batch->failed &&
             (!leads || index == 0 || spf_now() < batch->deadline_ns);
    batch->started += (uint32_t)(go && leads);
    pthread_mutex_unlock(&batch->lock);
    return go;
}

static void help(struct helper *helper)
{
    struct batch *batch = helper->batch;
    while (!helper->rc && may_begin(batch, helper->registered)) {
        uint32_t i = helper->registered;
        struct fid_mr **mr = &batch->engine->regions[batch->first + i].mr[helper->nic];
        helper->rc = register_one(helper, &batch->memories[i], mr, &batch->out[i]);
        helper->registered += !helper->rc;
    }
    if (helper->rc) {
        pthread_mutex_lock(&batch->lock);
        batch->failed = 1;
        pthread_mutex_unlock(&batch->lock);
    }
}

static void *help_main(void *argument)
{
    prctl(PR_SET_NAME, "pd_fabric_reg");
    help(argument);
    return NULL;
}

/* On the cores of the process: the I/O thread, which starts it, may have only one. */
static void start(struct helper *helper)
{
    cpu_set_t cores;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (sched_getaffinity(getpid(), sizeof cores, &cores) == 0)
        pthread_attr_setaffinity_np(&attr, sizeof cores, &cores);
    helper->has_thread = pthread_create(&helper->thread, &attr, help_main, helper) == 0;
    pthread_attr_destroy(&attr);
}

static void close_regions(spf_engine *engine, uint32_t nic, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++)
        fi_close(&engine->regions[i].mr[nic]->fid);
}

static void publish(const struct batch *batch)
{
    spf_engine *engine = batch->engine;
    int virtual_addresses = engine->nics[0].info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    for (uint32_t i = 0; i < batch->started; i++) {
        const spf_memory *memory = &batch->memories[i];
        struct spf_region *region = &engine->regions[batch->first + i];
        region->address = (uint8_t *)(uintptr_t)memory->address;
        region->bytes = memory->bytes;
        batch->out[i].region = batch->first + i;
        batch->out[i].base = virtual_addresses ? memory->address : 0;
    }
    *batch->done = batch->started;
    atomic_store(&engine->region_count, batch->first + batch->started);
}

static int register_batch(spf_engine *engine, void *argument, spf_error *err)
{
    struct batch *batch = argument;
    struct helper helpers[SPF_MAX_NICS] = { 0 };
    uint32_t nics = engine->config.nic_count;
    batch->first = atomic_load(&engine->region_count);
    if (batch->count > SPF_MAX_REGIONS - batch->first)
        return spf_fail(err, ENOSPC, "%u memory regions are registered, %u more are wanted; %d are possible",
                        batch->first, batch->count, SPF_MAX_REGIONS);
    uint64_t now = spf_now();
    batch->deadline_ns = batch->deadline_ns < UINT64_MAX - now ? now + batch->deadline_ns : UINT64_MAX;
    for (uint32_t i = 0; i < nics; i++) {
        helpers[i] = (struct helper){ .batch = batch, .nic = i };
        if (i)
            start(&helpers[i]);
    }
    for (uint32_t i = 0; i < nics; i++)
        if (!helpers[i].has_thread)
            help(&helpers[i]); /* the first NIC, and those for which there was no thread */
    const struct helper *failed = NULL;
    for (uint32_t i = 0; i < nics; i++) {
        if (helpers[i].has_thread)
            pthread_join(helpers[i].thread, NULL);
        if (helpers[i].rc && (!failed || helpers[i].registered < failed->registered))
            failed = &helpers[i];
    }
    if (!failed) {
        publish(batch);
        return 0;
    }
    for (uint32_t i = 0; i < nics; i++)
        close_regions(engine, i, batch->first, helpers[i].registered);
    *batch->done = failed->registered;
    return spf_fail(err, failed->rc, "%s", failed->error.text);
}

int spf_regions_register(spf_engine *engine, const spf_memory *memories, uint32_t count, uint64_t budget_ns,
                         spf_region_info *out, uint32_t *done, spf_error *err)
{
    *done = 0;
    memset(out, 0, count * sizeof *out);
    for (uint32_t i = 0; i < count; i++)
        if (!memories[i].address || !memories[i].bytes ||
            memories[i].bytes > UINT64_MAX - memories[i].address) {
            *done = i;
            return spf_fail(err, EINVAL, "a memory region of %llu bytes at %#llx",
                            (unsigned long long)memories[i].bytes, (unsigned long long)memories[i].address);
        }
    struct batch batch = { .engine = engine, .memories = memories, .out = out, .count = count,
                           .deadline_ns = budget_ns, .done = done, .lock = PTHREAD_MUTEX_INITIALIZER };
    int rc = count ? spf_engine_call(engine, register_batch, &batch, err) : 0;
    pthread_mutex_destroy(&batch.lock);
    return rc;
}

struct closing {
    uint32_t first;
    int unused;
};

static int close_from(spf_engine *engine, void *argument, spf_error *err)
{
    const struct closing *wanted = argument;
    uint32_t first = wanted->first, count = atomic_load(&engine->region_count);
    if (first > count)
        return spf_fail(err, EINVAL, "region %u: there are %u", first, count);
    if (!wanted->unused && (engine->in_flight || engine->first_plan))
        return spf_fail(err, EBUSY, "memory cannot be unregistered while writes are under way");
    atomic_store(&engine->region_count, first);
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        close_regions(engine, i, first, count - first);
    return 0;
}

int spf_regions_close(spf_engine *engine, uint32_t first, int unused, spf_error *err)
{
    struct closing wanted = { first, unused };
    return spf_engine_call(engine, close_from, &wanted, err);
}
