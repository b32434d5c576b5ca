#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "cut.h"
#include "error.h"
#include "paths.h"

uint64_t spf_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* After something was stored that the I/O thread looks at once more between setting `sleeping` and sleeping. */
static void wake(spf_engine *engine)
{
    if (!atomic_load(&engine->sleeping))
        return;
    uint64_t one = 1;
    /* Fails only when the counter is about to overflow, and then the thread wakes anyway. */
    ssize_t written = write(engine->event_fd, &one, sizeof one);
    (void)written;
}

void spf_engine_push(spf_engine *engine, struct spf_item *item)
{
    spf_inbox_push(&engine->inbox, item);
    wake(engine);
}

int spf_engine_call(spf_engine *engine, int (*run)(spf_engine *, void *, spf_error *), void *argument,
                    spf_error *err)
{
    struct spf_call item = { .item.kind = SPF_ITEM_CALL, .run = run, .argument = argument, .err = err };
    spf_engine_push(engine, &item.item);
    pthread_mutex_lock(&engine->lock);
    while (!item.done)
        pthread_cond_wait(&engine->changed, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    return item.rc;
}

static int start_thread(spf_engine *engine, spf_error *err)
{
    int rc = pthread_create(&engine->thread, NULL, spf_io_main, engine);
    if (rc)
        return spf_fail(err, rc, "cannot start the I/O thread: %s", strerror(rc));
    pthread_mutex_lock(&engine->lock);
    while (!engine->started)
        pthread_cond_wait(&engine->changed, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    if (engine->start_rc) {
        pthread_join(engine->thread, NULL);
        if (err)
            *err = engine->start_error;
    }
    return engine->start_rc;
}

static void destroy(spf_engine *engine)
{
    spf_ledger_free(&engine->ledger);
    spf_slots_free(&engine->slots);
    spf_trace_free(&engine->trace);
    free(engine->regions);
    if (engine->event_fd >= 0)
        close(engine->event_fd);
    if (engine->descriptors)
        closedir(engine->descriptors);
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->changed);
    free(engine);
}

int spf_engine_open(const spf_library *library, const spf_engine_config *config, spf_engine **out,
                    spf_error *err)
{
    if (config->nic_count == 0 || config->nic_count > SPF_MAX_NICS)
        return spf_fail(err, EINVAL, "an engine has 1 to %d NICs, not %u", SPF_MAX_NICS,
                        config->nic_count);
    spf_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return spf_fail(err, ENOMEM, "out of memory");
    engine->library = library;
    engine->config = *config;
    engine->progress = config->progress_word ? (_Atomic uint64_t *)config->progress_word : &engine->own_progress;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->changed, NULL);
    engine->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    engine->descriptors = config->profile.cut ? spf_cut_prepare() : NULL;
    engine->regions = calloc(SPF_MAX_REGIONS, sizeof *engine->regions);
    int rc = spf_slots_init(&engine->slots, config->slot_count, config->slot_words);
    if (rc)
        rc = spf_fail(err, rc, "%u completion slots: 1 to %d are possible", config->slot_count,
                      1 << SPF_SLOT_BITS);
    else if (engine->event_fd < 0 || !engine->regions || spf_trace_init(&engine->trace, config->trace_events))
        rc = spf_fail(err, ENOMEM, "out of memory or file descriptors");
    rc = rc ? rc : start_thread(engine, err);
    if (rc) {
        destroy(engine);
        return rc;
    }
    *out = engine;
    return 0;
}

static int stop(spf_engine *engine, void *argument, spf_error *err)
{
    (void)err;
    engine->drain_ns = *(uint64_t *)argument;
    atomic_store(&engine->stopping, 1);
    return 0;
}

void spf_engine_close(spf_engine *engine, uint64_t drain_ns)
{
    spf_engine_call(engine, stop, &drain_ns, NULL);
    pthread_join(engine->thread, NULL);
    destroy(engine);
}

void spf_engine_stats_read(const spf_engine *engine, spf_engine_stats *out)
{
    const struct spf_counters *counters = &engine->counters;
    *out = (spf_engine_stats){
        .writes_posted = atomic_load(&counters->posted),
        .writes_completed = atomic_load(&counters->completed),
        .writes_failed = atomic_load(&counters->failed),
        .bytes_completed = atomic_load(&counters->bytes),
        .units_completed = atomic_load(&counters->units),
        .post_again = atomic_load(&counters->again),
        .units_counted = atomic_load(&engine->slots.units_counted),
        .immediates_late = atomic_load(&engine->slots.late),
        .immediates_unknown = atomic_load(&engine->slots.unknown),
        .writes_orphaned = atomic_load(&counters->orphaned),
        .paths_lost = atomic_load(&counters->paths_lost),
        .sleeps = atomic_load(&counters->sleeps),
        .units_early = atomic_load(&counters->early),
        .trace_lost = atomic_load(&engine->trace.lost),
        .endpoints_renewed = atomic_load(&counters->renewed),
    };
    for (uint32_t nic = 0; nic < SPF_MAX_NICS; nic++)
        out->nic_bytes[nic] = atomic_load(&counters->nic_bytes[nic]);
}

static void copy_text(char *to, size_t room, const char *from)
{
    size_t length = from ? strlen(from) : 0;
    length = length < room ? length : room - 1;
    if (length)
        memcpy(to, from, length);
    to[length] = '\0';
}

void spf_engine_nic(const spf_engine *engine, uint32_t index, spf_nic_info *out)
{
    const struct spf_nic *nic = &engine->nics[index];
    memset(out, 0, sizeof *out);
    copy_text(out->provider, sizeof out->provider, nic->info->fabric_attr->prov_name);
    copy_text(out->fabric, sizeof out->fabric, nic->info->fabric_attr->name);
    copy_text(out->domain, sizeof out->domain, nic->info->domain_attr->name);
    memcpy(out->address, nic->address, nic->address_bytes);
    out->address_bytes = (uint32_t)nic->address_bytes;
    out->segments = nic->segments;
    out->mr_mode = (uint64_t)nic->info->domain_attr->mr_mode;
    out->max_write_bytes = nic->info->ep_attr->max_msg_size;
    out->window = nic->window;
    out->options = nic->options;
    out->emulated = nic->emulated;
}

static int remove_nic(spf_engine *engine, void *argument, spf_error *err)
{
    (void)err;
    spf_nic_take_out(engine, *(uint32_t *)argument, ENETDOWN);
    return 0;
}

uint32_t spf_nics_removed(const spf_engine *engine)
{
    return atomic_load(&engine->nics_out);
}

uint32_t spf_standstills(const spf_engine *engine)
{
    return atomic_load(&engine->standstills);
}

void spf_nic_remove(spf_engine *engine, uint32_t nic)
{
    spf_engine_call(engine, remove_nic, &nic, NULL);
}

void spf_progress_store(spf_engine *engine, uint64_t word)
{
    atomic_store(engine->progress, word);
    wake(engine);
}

uint64_t spf_progress_read(const spf_engine *engine)
{
    return atomic_load(engine->progress);
}

uint32_t spf_trace_take(spf_engine *engine, spf_trace_event *events, uint32_t count)
{
    return spf_trace_read(&engine->trace, events, count);
}

uint32_t spf_slot_generation(const spf_engine *engine, uint32_t slot)
{
    return (uint32_t)(atomic_load_explicit(&engine->slots.words[slot], memory_order_acquire) >> 32);
}

uint32_t spf_slot_units(const spf_engine *engine, uint32_t slot)
{
    return (uint32_t)atomic_load_explicit(&engine->slots.words[slot], memory_order_acquire);
}

uint32_t spf_slot_advance(spf_engine *engine, uint32_t slot)
{
    return spf_slots_advance(&engine->slots, slot);
}

int spf_transfer_open(spf_engine *engine, spf_peer *peer, uint32_t slot, uint32_t generation, uint32_t nic,
                      spf_transfer **out, spf_error *err)
{
    if (slot >= 1u << SPF_SLOT_BITS || generation == 0 || generation > SPF_MAX_GENERATION)
        return spf_fail(err, EINVAL, "slot %u, generation %u: at most %d and 1 to %u are possible",
                        slot, generation, (1 << SPF_SLOT_BITS) - 1, SPF_MAX_GENERATION);
    spf_transfer *transfer = calloc(1, sizeof *transfer);
    if (!transfer)
        return spf_fail(err, ENOMEM, "out of memory");
    transfer->item.kind = SPF_ITEM_RELEASE;
    transfer->engine = engine;
    transfer->peer = peer;
    transfer->immediate = spf_immediate(slot, generation, 0);
    transfer->turn = nic % engine->config.nic_count;
    atomic_fetch_add(&peer->references, 1);
    *out = transfer;
    return 0;
}

/* Whether the store that lets the plan begin is yet to come, and will wake the I/O thread: waking costs the caller
 * more than all the rest. */
static int comes_later(const spf_engine *engine, uint32_t after, uint64_t forward)
{
    return engine->config.gate_spin_ns != UINT64_MAX &&
           after > spf_forward_steps(forward, atomic_load(engine->progress));
}

int spf_transfer_submit(spf_transfer *transfer, const spf_copy *copies, uint32_t copy_count,
                        const uint32_t *src_pages, const uint32_t *dst_pages, uint32_t page_count,
                        uint64_t forward, spf_error *err)
{
    spf_engine *engine = transfer->engine;
    struct spf_plan *plan = NULL;
    uint64_t max_bytes = transfer->peer->slots.words ? UINT64_MAX : engine->max_bytes;
    int rc = spf_plan_create(transfer, engine->regions, atomic_load(&engine->region_count), copies,
                             copy_count, src_pages, dst_pages, page_count, forward, max_bytes, &plan, err);
    if (rc)
        return rc;
    atomic_fetch_add(&transfer->plans_submitted, 1);
    spf_inbox_push(&engine->inbox, &plan->item);
    if (!comes_later(engine, copy_count ? copies[0].after : 0, forward))
        wake(engine);
    return 0;
}

void spf_transfer_status_read(const spf_transfer *transfer, spf_transfer_status *out)
{
    /* Finished first: what a finished plan counted is then visible too. */
    out->plans_finished = atomic_load(&transfer->plans_finished);
    out->plans_submitted = atomic_load(&transfer->plans_submitted);
    out->units_done = atomic_load(&transfer->units_done);
    out->bytes_done = atomic_load(&transfer->bytes_done);
    out->writes_done = atomic_load(&transfer->writes_done);
    out->busy_ns = atomic_load(&transfer->busy_ns);
    out->error = atomic_load(&transfer->error);
    out->retry = atomic_load(&transfer->retry);
}

void spf_transfer_cancel(spf_transfer *transfer)
{
    atomic_store(&transfer->cancelled, 1);
}

void spf_transfer_release(spf_transfer *transfer)
{
    spf_engine_push(transfer->engine, &transfer->item);
}
