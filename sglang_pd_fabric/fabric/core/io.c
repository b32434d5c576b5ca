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
#include "mapped.h"

#define WRITES_PER_ROUND 32
#define COPIES_PER_ROUND 4
#define CQ_BATCH 64
#define SWEEP_NS 100000000u
#define DRAIN_QUIET_NS 2000000u
#define DRAIN_NS 100000000u

/* Longest sleeps. A queue with a descriptor wakes us; without one we have to look again. */
#define BUSY_WAIT_NS 1000000u
#define IDLE_WAIT_NS 50000000u
#define BUSY_POLL_NS 20000u
#define IDLE_POLL_NS 1000000u

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

static int poll_nic(spf_engine *engine, struct spf_nic *nic)
{
    struct fi_cq_data_entry entries[CQ_BATCH];
    int events = 0;
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

/* The NIC with the fewest writes in flight among those not in the set, or NULL when all are full. */
static struct spf_nic *pick_nic(spf_engine *engine, uint32_t without, uint32_t *index)
{
    struct spf_nic *best = NULL;
    for (uint32_t i = 0; i < engine->config.nic_count; i++) {
        struct spf_nic *nic = &engine->nics[i];
        if (without >> i & 1 || nic->in_flight >= nic->window)
            continue;
        if (!best || nic->in_flight < best->in_flight) {
            best = nic;
            *index = i;
        }
    }
    return best;
}

/* Posts one write of the plan. 1: posted; 0: not now; -1: the transfer has failed. */
static int post_write(spf_engine *engine, struct spf_plan *plan)
{
    struct spf_transfer *transfer = plan->transfer;
    struct spf_peer *peer = transfer->peer;
    if (peer->in_flight >= engine->peer_window)
        return 0;
    struct spf_record *record = spf_ledger_take(&engine->ledger);
    if (!record) {
        spf_transfer_fail(transfer, ENOMEM);
        return -1;
    }
    struct spf_nic *nic;
    /* A NIC that says "again" (its connection is not up, or never will be) must not hold up the others. */
    for (uint32_t index = 0, busy = 0; (nic = pick_nic(engine, busy, &index)); busy |= 1u << index) {
        struct spf_cursor cursor = plan->cursor;
        struct spf_write write;
        spf_plan_next(plan, &cursor, engine->regions, index, nic->segments, nic->write_bytes, &write);
        int rc = spf_nic_post(nic, &write, peer->address[index], transfer->immediate | write.units,
                              &record->context);
        if (rc == -FI_EAGAIN) {
            spf_count(&engine->counters.again, 1);
            continue;
        }
        if (rc) {
            spf_ledger_put(&engine->ledger, record);
            spf_transfer_fail(transfer, rc);
            return -1;
        }
        record->plan = plan;
        record->nic = nic;
        record->units = write.units;
        record->bytes = write.bytes;
        plan->cursor = cursor;
        plan->in_flight++;
        nic->in_flight++;
        peer->in_flight++;
        engine->in_flight++;
        spf_count(&engine->counters.posted, 1);
        return 1;
    }
    spf_ledger_put(&engine->ledger, record);
    return 0;
}

static int post_plan(spf_engine *engine, struct spf_plan *plan)
{
    int posted = 0;
    int mapped = spf_peer_is_mapped(plan->transfer->peer);
    while (posted < (mapped ? COPIES_PER_ROUND : WRITES_PER_ROUND)) {
        if (spf_transfer_stopped(plan->transfer) || spf_cursor_at_end(plan, &plan->cursor)) {
            plan->posted = 1;
            break;
        }
        if (mapped)
            spf_mapped_write(engine, plan);
        else if (post_write(engine, plan) == 0)
            break;
        posted++;
    }
    return posted;
}

static int post_plans(spf_engine *engine)
{
    int posted = 0;
    struct spf_plan *previous = NULL;
    for (struct spf_plan *plan = engine->first_plan, *next; plan; plan = next) {
        next = plan->next;
        posted += post_plan(engine, plan);
        if (!plan->posted) {
            previous = plan;
            continue;
        }
        if (previous)
            previous->next = next;
        else
            engine->first_plan = next;
        if (engine->last_plan == plan)
            engine->last_plan = previous;
        spf_plan_settle(engine, plan);
    }
    if (posted)
        engine->last_event_ns = spf_now();
    return posted;
}

static void accept_plan(spf_engine *engine, struct spf_plan *plan)
{
    struct spf_transfer *transfer = plan->transfer;
    spf_transfer_list(engine, transfer);
    if (transfer->active_plans++ == 0)
        transfer->active_since_ns = plan->submitted_ns;
    if (transfer->peer->removed)
        spf_transfer_fail(transfer, ESHUTDOWN);
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
    spf_fail_for_nics(engine);
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next) {
        /* Progress of the peer counts: a transfer may only be waiting for its turn. */
        uint64_t moved = atomic_load_explicit(&transfer->submitted_ns, memory_order_relaxed);
        moved = transfer->peer->progress_ns > moved ? transfer->peer->progress_ns : moved;
        if (!spf_transfer_quiet(transfer) && now > moved && now - moved > engine->config.stall_ns)
            spf_transfer_fail(transfer, ETIMEDOUT);
    }
}

/* Whether every queue is empty and will wake us through its descriptor. */
static int can_wait_on_queues(spf_engine *engine)
{
    for (uint32_t i = 0; i < engine->config.nic_count; i++) {
        struct spf_nic *nic = &engine->nics[i];
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
        fds[n++] = (struct pollfd){ .fd = engine->nics[i].wait_fd, .events = POLLIN };
    struct timespec limit = { (time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u) };
    spf_count(&engine->counters.sleeps, 1);
    ppoll(fds, n, &limit, NULL);
    uint64_t drained;
    ssize_t got = read(engine->event_fd, &drained, sizeof drained);
    (void)got;
}

static void rest(spf_engine *engine)
{
    uint64_t now = spf_now();
    sweep(engine, now);
    if (now - engine->last_event_ns < engine->config.spin_ns) {
        sched_yield();
        return;
    }
    int busy = engine->first_plan || engine->in_flight;
    atomic_store(&engine->sleeping, 1);
    if (spf_inbox_empty(&engine->inbox)) {
        if (!engine->config.profile.wait_fd)
            sleep_until_event(engine, busy ? BUSY_POLL_NS : IDLE_POLL_NS, 0);
        else if (can_wait_on_queues(engine))
            sleep_until_event(engine, busy ? BUSY_WAIT_NS : IDLE_WAIT_NS, 1);
    }
    atomic_store(&engine->sleeping, 0);
}

void spf_io_remove_peer(spf_engine *engine, spf_peer *peer)
{
    peer->removed = 1;
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next)
        if (transfer->peer == peer && !spf_transfer_quiet(transfer))
            spf_transfer_fail(transfer, ESHUTDOWN);
    spf_ledger_each(&engine->ledger, peer, spf_orphan, engine);
    struct spf_peer **link = &engine->peers;
    while (*link != peer)
        link = &(*link)->next;
    *link = peer->next;
    spf_warm_end(engine, peer);
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        spf_peer_forget(engine, peer, i);
}

void spf_io_drop_all(spf_engine *engine)
{
    read_inbox(engine);
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next) {
        spf_transfer_fail(transfer, ESHUTDOWN);
        transfer->released = 0; /* freed below, not on the way */
    }
    post_plans(engine);
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next)
        spf_ledger_each(&engine->ledger, transfer->peer, spf_orphan, engine);
    while (engine->transfers)
        spf_transfer_destroy(engine, engine->transfers);
    while (engine->peers) {
        struct spf_peer *peer = engine->peers;
        engine->peers = peer->next;
        spf_peer_dereference(peer);
    }
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
    /* Half of what the NICs take together at most: one frozen peer must leave room for the others. */
    uint32_t window = 0;
    for (uint32_t i = 0; i < config->nic_count; i++)
        window += engine->nics[i].window;
    engine->peer_window = window / 2 < config->profile.peer_window ? window / 2 : config->profile.peer_window;
    engine->peer_window = engine->peer_window ? engine->peer_window : 1;
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

/* Reads what has arrived, for as long as more comes but not for long: libfabric 1.17 over tcp crashes
 * when an endpoint closes on top of unread events. */
static void drain(spf_engine *engine)
{
    uint64_t start = spf_now(), now = start;
    engine->last_event_ns = start;
    while (now - engine->last_event_ns < DRAIN_QUIET_NS && now - start < DRAIN_NS) {
        for (uint32_t i = 0; i < engine->config.nic_count; i++)
            poll_nic(engine, &engine->nics[i]);
        now = spf_now();
    }
}

void *spf_io_main(void *argument)
{
    spf_engine *engine = argument;
    prctl(PR_SET_NAME, "pd_fabric_io");
    prctl(PR_SET_TIMERSLACK, 1000ul);
    int rc = spf_cpus_pin(engine->config.cpus, engine->config.cpu_count, &engine->start_error);
    rc = rc ? rc : open_nics(engine, &engine->start_error);
    pthread_mutex_lock(&engine->lock);
    engine->start_rc = rc;
    engine->started = 1;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    if (rc)
        return NULL;
    while (!atomic_load(&engine->stopping)) {
        int events = read_inbox(engine);
        for (uint32_t i = 0; i < engine->config.nic_count; i++)
            events += poll_nic(engine, &engine->nics[i]);
        events += post_plans(engine) + spf_warm_peers(engine);
        if (events)
            sweep(engine, engine->last_event_ns);
        else
            rest(engine);
    }
    spf_io_drop_all(engine);
    drain(engine);
    close_nics(engine);
    return NULL;
}
