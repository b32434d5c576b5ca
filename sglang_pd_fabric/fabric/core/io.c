/* The I/O thread: the only code on the per-page path. It posts what the NICs take, polls what they
 * report, counts immediates, and sleeps when nothing has happened for a while. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "cpus.h"
#include "engine.h"
#include "ending.h"
#include "error.h"
#include "paths.h"
#include "renew.h"

#define CQ_BATCH 64
#define SWEEP_NS 100000000u
#define STANDSTILL_NS 1000000000u /* we never look this late, unless we did not run */
#define DRAIN_QUIET_NS 2000000u
#define DRAIN_NS 100000000u

/* Longest sleeps. A queue with a descriptor wakes us; without one we have to look again. */
#define BUSY_WAIT_NS 1000000u
#define IDLE_WAIT_NS 50000000u
#define BUSY_POLL_NS 20000u
#define IDLE_POLL_NS 1000000u
#define LONG_IDLE_NS 1000000000u
#define LONG_IDLE_POLL_NS 2000000u

static int read_errors(spf_engine *engine, struct spf_nic *nic)
{
    for (int errors = 0;; errors++) {
        /* Newer libraries write a longer entry than our headers know; room must be zero before. */
        union {
            struct fi_cq_err_entry entry;
            char room[256];
        } error;
        memset(&error, 0, sizeof error);
        if (fi_cq_readerr(nic->cq, &error.entry, 0) != 1)
            return errors;
        engine->last_event_ns = spf_now();
        spf_end_of_write(engine, error.entry.op_context, error.entry.err ? error.entry.err : EIO);
    }
}

/* A standstill, by which those that write to us may have given us up. */
static void count_standstill(spf_engine *engine, uint64_t now)
{
    uint64_t still = now - engine->alive_ns;
    uint64_t stall = engine->config.stall_ns, absence = engine->config.absence_ns;
    uint64_t patience = stall < absence ? stall : absence;
    if (still > STANDSTILL_NS && still + STANDSTILL_NS > patience)
        atomic_fetch_add(&engine->standstills, 1);
}

static int poll_nic(spf_engine *engine, struct spf_nic *nic)
{
    struct fi_cq_data_entry entries[CQ_BATCH];
    int events = 0;
    if (!nic->ep) /* taken out, or not opened anew yet; libfabric 1.17 crashes when such a queue is read */
        return 0;
    for (;;) {
        ssize_t n = fi_cq_read(nic->cq, entries, CQ_BATCH);
        if (n == -FI_EAVAIL) {
            int errors = read_errors(engine, nic);
            if (!errors)
                return events;
            events += errors;
            continue;
        }
        if (n <= 0)
            return events;
        engine->last_event_ns = spf_now();
        count_standstill(engine, engine->last_event_ns); /* before anything that came meanwhile counts */
        for (ssize_t i = 0; i < n; i++) {
            uint64_t flags = entries[i].flags;
            if ((flags & (FI_REMOTE_CQ_DATA | FI_REMOTE_WRITE)) && !(flags & FI_WRITE))
                spf_count_immediate(engine, (uint32_t)entries[i].data);
            else
                spf_end_of_write(engine, entries[i].op_context, 0);
        }
        events += (int)n;
        if (n < CQ_BATCH)
            return events;
    }
}

static void accept_plan(spf_engine *engine, struct spf_plan *plan)
{
    struct spf_transfer *transfer = plan->transfer;
    if (spf_plan_start(plan))
        spf_transfer_fail(transfer, ENOMEM);
    spf_transfer_list(engine, transfer);
    if (transfer->active_plans == transfer->held_plans)
        transfer->moving_since_ns = spf_now(); /* not since it was submitted: that may have been our own delay */
    transfer->active_plans++;
    if (transfer->peer->removed)
        spf_transfer_fail(transfer, ESHUTDOWN);
    if (!engine->window && !transfer->peer->slots.words)
        spf_transfer_fail(transfer, ENETDOWN);
    plan->next = NULL;
    if (engine->last_plan)
        engine->last_plan->next = plan;
    else
        engine->first_plan = plan;
    engine->last_plan = plan;
}

static void finish_call(spf_engine *engine, struct spf_call *call)
{
    int rc = call->run(engine, call->argument, call->err);
    pthread_mutex_lock(&engine->lock);
    call->rc = rc;
    call->done = 1; /* the caller's stack frame may be gone once the lock is free */
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

static int read_inbox(spf_engine *engine)
{
    int items = 0;
    for (struct spf_item *item = spf_inbox_take(&engine->inbox), *next; item; item = next) {
        next = item->next;
        items++;
        if (item->kind == SPF_ITEM_CALL) {
            finish_call(engine, (struct spf_call *)item);
        } else if (item->kind == SPF_ITEM_PLAN) {
            accept_plan(engine, (struct spf_plan *)item);
        } else {
            struct spf_transfer *transfer = (struct spf_transfer *)item;
            transfer->released = 1;
            if (spf_transfer_quiet(transfer))
                spf_transfer_destroy(engine, transfer);
        }
    }
    if (items)
        engine->last_event_ns = spf_now();
    return items;
}

/* Fails transfers whose peer has taken nothing for too long. libfabric reports a frozen peer on no
 * provider, and a dead one not on all (shared-memory writes stay outstanding for ever). */
static void sweep(spf_engine *engine, uint64_t now)
{
    if (now - engine->last_sweep_ns < SWEEP_NS)
        return;
    engine->last_sweep_ns = now;
    spf_check_nics(engine);
    spf_renew_failed(engine);
    spf_check_paths(engine, now);
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next) {
        if (transfer->active_plans == transfer->held_plans) /* it is quiet, or waits for us */
            continue;
        /* Progress of the peer counts: a transfer may only be waiting for its turn. */
        uint64_t since = transfer->moving_since_ns, limit = engine->config.limit_ns;
        uint64_t moved = transfer->peer->progress_ns > since ? transfer->peer->progress_ns : since;
        int stalled = now > moved && now - moved > engine->config.stall_ns;
        if (stalled)
            transfer->peer->lost = 0; /* none of its paths works: the next transfer may try them all */
        if (stalled || (limit && now > since && now - since > limit))
            spf_transfer_fail(transfer, ETIMEDOUT);
    }
}

/* Whether every queue is empty and will wake us through its descriptor. */
static int can_wait_on_queues(spf_engine *engine)
{
    for (uint32_t i = 0; i < engine->config.nic_count; i++) {
        struct spf_nic *nic = &engine->nics[i];
        if (!nic->ep)
            continue;
        struct fid *fid = &nic->cq->fid;
        if (nic->wait_fd < 0 || fi_trywait(nic->fabric, &fid, 1) != FI_SUCCESS)
            return 0;
    }
    return 1;
}

static void sleep_until_event(spf_engine *engine, uint64_t nanoseconds, int with_queues)
{
    struct pollfd fds[1 + SPF_MAX_NICS] = { { .fd = engine->event_fd, .events = POLLIN } };
    nfds_t n = 1;
    for (uint32_t i = 0; with_queues && i < engine->config.nic_count; i++)
        if (engine->nics[i].ep)
            fds[n++] = (struct pollfd){ .fd = engine->nics[i].wait_fd, .events = POLLIN };
    struct timespec limit = { (time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u) };
    spf_count(&engine->counters.sleeps, 1);
    ppoll(fds, n, &limit, NULL);
    uint64_t drained;
    ssize_t got = read(engine->event_fd, &drained, sizeof drained);
    (void)got;
}

static uint64_t idle_poll(const spf_engine *engine, uint64_t now)
{
    return now - engine->last_event_ns > LONG_IDLE_NS ? LONG_IDLE_POLL_NS : IDLE_POLL_NS;
}

static void rest(spf_engine *engine)
{
    uint64_t now = spf_now();
    sweep(engine, now);
    uint64_t spin = engine->gated_plans ? engine->config.gate_spin_ns : engine->config.spin_ns;
    if (now - engine->last_event_ns < spin) {
        sched_yield();
        return;
    }
    int busy = engine->first_plan || engine->in_flight;
    atomic_store(&engine->sleeping, 1);
    if (spf_inbox_empty(&engine->inbox) && !spf_progress_moved(engine)) {
        if (!engine->config.profile.wait_fd)
            sleep_until_event(engine, busy ? BUSY_POLL_NS : idle_poll(engine, now), 0);
        else if (can_wait_on_queues(engine))
            sleep_until_event(engine, busy ? BUSY_WAIT_NS : IDLE_WAIT_NS, 1);
    }
    atomic_store(&engine->sleeping, 0);
}

static int open_nics(spf_engine *engine, spf_error *err)
{
    const spf_engine_config *config = &engine->config;
    for (uint32_t i = 0; i < config->nic_count; i++) {
        int rc = spf_nic_open(&engine->nics[i], engine->library, &config->profile, &config->nics[i], err);
        if (rc) {
            while (i--)
                spf_nic_close(&engine->nics[i], engine->library);
            return rc;
        }
    }
    engine->max_bytes = UINT64_MAX;
    for (uint32_t i = 0; i < config->nic_count; i++) {
        uint64_t bytes = engine->nics[i].info->ep_attr->max_msg_size;
        engine->max_bytes = bytes < engine->max_bytes ? bytes : engine->max_bytes;
        engine->window += engine->nics[i].window;
    }
    return 0;
}

static void close_nics(spf_engine *engine)
{
    /* Endpoints first: closing one may still place bytes that have arrived (libfabric 1.17 over tcp). */
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        spf_nic_disconnect(&engine->nics[i]);
    for (uint32_t r = 0; r < atomic_load(&engine->region_count); r++)
        for (uint32_t i = 0; i < engine->config.nic_count; i++)
            fi_close(&engine->regions[r].mr[i]->fid);
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        spf_nic_close(&engine->nics[i], engine->library);
}

/* Before an endpoint closes: what it has received counts, and libfabric 1.17 over tcp crashes when one closes on
 * top of unread events. */
void spf_io_drain(spf_engine *engine, uint32_t nics)
{
    uint64_t start = spf_now(), now = start;
    engine->last_event_ns = start;
    while (now - engine->last_event_ns < DRAIN_QUIET_NS && now - start < DRAIN_NS) {
        for (uint32_t i = 0; i < engine->config.nic_count; i++)
            if (nics >> i & 1)
                poll_nic(engine, &engine->nics[i]);
        now = spf_now();
    }
}

static int is_written_to(const spf_engine *engine, const spf_peer *peer)
{
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next)
        if (transfer->peer == peer && !peer->slots.words && !spf_transfer_quiet(transfer))
            return 1;
    return 0;
}

void spf_notice_standstill(spf_engine *engine)
{
    uint64_t now = spf_now(), still = now - engine->alive_ns;
    count_standstill(engine, now);
    engine->alive_ns = now;
    if (still <= STANDSTILL_NS || still - STANDSTILL_NS <= engine->config.stall_ns)
        return;
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next) {
        if (!spf_transfer_quiet(transfer))
            spf_transfer_fail(transfer, ETIMEDOUT);
        atomic_store(&transfer->cancelled, 1); /* whoever is about to hand over more has not noticed yet */
    }
    for (struct spf_peer *peer = engine->peers, *next; peer; peer = next) {
        next = peer->next;
        if (is_written_to(engine, peer)) /* libfabric would go on with what it has queued: that ends with the peer */
            spf_io_remove_peer(engine, peer);
    }
}

/* While the engine stops: whether something is unfinished and may still take its time. */
static int may_drain(const spf_engine *engine, uint64_t *stop_ns)
{
    if (!*stop_ns)
        *stop_ns = engine->drain_ns < UINT64_MAX - spf_now() ? spf_now() + engine->drain_ns : UINT64_MAX;
    return (engine->first_plan || engine->in_flight) && spf_now() < *stop_ns;
}

void *spf_io_main(void *argument)
{
    spf_engine *engine = argument;
    prctl(PR_SET_NAME, "pd_fabric_io");
    prctl(PR_SET_TIMERSLACK, 1000ul);
    spf_cpus_shorten_slice();
    int rc = spf_cpus_pin(engine->config.cpus, engine->config.cpu_count, &engine->start_error);
    rc = rc ? rc : open_nics(engine, &engine->start_error);
    pthread_mutex_lock(&engine->lock);
    engine->start_rc = rc;
    engine->started = 1;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    if (rc)
        return NULL;
    uint64_t stop_ns = 0;
    engine->alive_ns = spf_now();
    while (!atomic_load(&engine->stopping) || may_drain(engine, &stop_ns)) {
        spf_notice_standstill(engine);
        int events = read_inbox(engine);
        for (uint32_t i = 0; i < engine->config.nic_count; i++)
            events += poll_nic(engine, &engine->nics[i]);
        spf_renew_nics(engine);
        events += spf_post_plans(engine) + spf_warm_peers(engine);
        if (events)
            sweep(engine, engine->last_event_ns);
        else
            rest(engine);
    }
    read_inbox(engine);
    spf_io_drop_all(engine);
    spf_io_drain(engine, UINT32_MAX);
    close_nics(engine);
    return NULL;
}
