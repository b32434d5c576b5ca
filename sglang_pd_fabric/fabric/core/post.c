/* Posting: cuts plans into writes and hands them to the NICs, as far as these take them and as far as the
 * progress word allows. On the I/O thread. */
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "ending.h"
#include "mapped.h"
#include "paths.h"

#define WRITES_PER_ROUND 32

static const spf_remote_region *some_region(const spf_peer *peer)
{
    for (uint32_t i = 0; i < peer->region_count; i++)
        if (peer->regions[i].bytes)
            return &peer->regions[i];
    return NULL;
}

int spf_peer_takes_writes(const spf_peer *peer)
{
    return some_region(peer) != NULL;
}

int spf_post_empty(spf_engine *engine, const spf_peer *peer, uint32_t nic, uint64_t flags, void *context)
{
    const struct spf_region *local = &engine->regions[0]; /* lkey for providers that want one */
    const spf_remote_region *remote = some_region(peer);
    struct spf_write write = {
        .local[0] = { .iov_base = local->address },
        .descriptors[0] = fi_mr_desc(local->mr[nic]),
        .remote[0] = { .addr = remote->base, .key = remote->keys[peer->pair[nic]] },
        .segments = 1,
    };
    return spf_nic_post(&engine->nics[nic], &write, peer->address[nic], SPF_EMPTY_IMMEDIATE, flags, context);
}

/* The NIC with the fewest writes in flight among those not in the set, or NULL when all are full; `first` write to
 * a peer goes over a full one too. Of equal ones it is the first from `turn` on. */
static struct spf_nic *pick_nic(spf_engine *engine, uint32_t turn, uint32_t without, int first, uint32_t *index)
{
    struct spf_nic *best = NULL;
    uint32_t count = engine->config.nic_count;
    for (uint32_t n = 0, i = turn; n < count; n++, i = i + 1 < count ? i + 1 : 0) {
        struct spf_nic *nic = &engine->nics[i];
        if (without >> i & 1 || !nic->ep || (nic->in_flight >= nic->window && !first))
            continue;
        if (!best || nic->in_flight < best->in_flight) {
            best = nic;
            *index = i;
        }
    }
    return best;
}

/* The record of a write that was posted. */
static void enter(spf_engine *engine, struct spf_plan *plan, uint32_t nic, const struct spf_write *write, int confirms,
                  struct spf_record *record)
{
    struct spf_peer *peer = plan->transfer->peer;
    record->plan = plan;
    record->nic = nic;
    record->units = write->units;
    record->after = write->after;
    record->bytes = write->bytes;
    record->confirms = confirms;
    plan->in_flight++;
    plan->open &= ~(1u << nic);
    engine->nics[nic].in_flight++;
    peer->in_flight++;
    if (peer->on[nic]++ == 0)
        peer->moved_ns[nic] = spf_now();
    peer->asked[nic] += (uint32_t)confirms;
    engine->in_flight++;
}

/* Hands a write to a NIC. 0, -FI_EAGAIN, or the provider's error: then nothing of it has left.
 *
 * Where a write ends when it is sent (profile: confirm), the last one for now asks for its delivery, which is that
 * of all before it on its path; and so does one at a time before, for a break to be noticed while more is posted. */
static int post_on(spf_engine *engine, struct spf_plan *plan, uint32_t index, struct spf_record *record)
{
    struct spf_transfer *transfer = plan->transfer;
    struct spf_peer *peer = transfer->peer;
    struct spf_nic *nic = &engine->nics[index];
    struct spf_cursor cursor = plan->cursor;
    struct spf_write write;
    spf_plan_next(plan, &cursor, engine->regions, index, nic->segments, nic->write_bytes, &write);
    int last = spf_cursor_at_end(plan, &cursor) || spf_cursor_waits(plan, &cursor);
    int confirm = engine->config.profile.confirm, confirms = confirm && (last || !peer->asked[index]);
    uint64_t ns = spf_trace_time(engine);
    int rc = spf_nic_post(nic, &write, peer->address[index], transfer->immediate | write.units,
                          confirms ? FI_DELIVERY_COMPLETE : 0, &record->context);
    if (rc)
        return rc;
    spf_trace_of_write(engine, SPF_TRACE_POST, ns, transfer, &write, index);
    enter(engine, plan, index, &write, confirms, record);
    plan->cursor = cursor;
    plan->open |= (uint32_t)(confirm && !confirms) << index;
    spf_count_posted(engine, plan, write.units);
    return 0;
}

/* Asks for the delivery of what is open, with an empty write behind it on each path. What cannot be asked for now
 * stays open. */
static void confirm_paths(spf_engine *engine, struct spf_plan *plan)
{
    struct spf_transfer *transfer = plan->transfer;
    struct spf_peer *peer = transfer->peer;
    const struct spf_write empty = { 0 };
    if (peer->removed)
        plan->open = 0;
    for (uint32_t i = 0; plan->open >> i; i++) {
        if (!(plan->open >> i & 1))
            continue;
        struct spf_record *record = spf_ledger_take(&engine->ledger);
        int lost = spf_paths_lost(engine, peer) >> i & 1;
        int rc = !record ? -ENOMEM
                 : lost  ? -ENETDOWN
                         : spf_post_empty(engine, peer, i, FI_DELIVERY_COMPLETE, &record->context);
        if (rc == 0) {
            enter(engine, plan, i, &empty, 1, record);
            continue;
        }
        if (record)
            spf_ledger_put(&engine->ledger, record);
        if (rc != -FI_EAGAIN)
            spf_path_fail(engine, transfer, i, rc);
    }
}

/* Writes that are still on their way to the same engine from before it was removed: they use its credits too. */
static uint32_t dying_writes(const spf_engine *engine, const struct spf_peer *peer)
{
    uint32_t writes = 0;
    for (const struct spf_peer *other = engine->dying_peers ? engine->peers : NULL; other; other = other->next)
        if (other->dying && memcmp(other->names[0], peer->names[0], SPF_ADDRESS_BYTES) == 0)
            writes += other->in_flight;
    return writes;
}

/* A peer may have as many writes in flight as there is room left for others, but one always: so however many of
 * them are frozen, nobody waits for them. */
static int peer_is_full(const spf_engine *engine, const struct spf_peer *peer)
{
    uint32_t room = engine->in_flight < engine->window ? engine->window - engine->in_flight : 0;
    uint32_t dying = dying_writes(engine, peer);
    return (dying && dying + peer->in_flight >= peer->window) ||
           (peer->in_flight && peer->in_flight >= (room < peer->window ? room : peer->window));
}

/* Posts one write of the plan. 1: posted; 0: not now; -1: the transfer has failed. */
static int post_write(spf_engine *engine, struct spf_plan *plan)
{
    struct spf_transfer *transfer = plan->transfer;
    struct spf_peer *peer = transfer->peer;
    if (peer_is_full(engine, peer))
        return 0;
    int first = peer->in_flight == 0;
    struct spf_record *record = spf_ledger_take(&engine->ledger);
    if (!record) {
        spf_transfer_fail(transfer, ENOMEM);
        return -1;
    }
    /* A NIC that says "again" (its connection is not up, or never will be) must not hold up the others. */
    uint32_t index, busy = 0;
    while (pick_nic(engine, transfer->turn, busy | spf_paths_lost(engine, peer), first, &index)) {
        int rc = post_on(engine, plan, index, record);
        if (rc == 0) {
            transfer->turn = index + 1 < engine->config.nic_count ? index + 1 : 0;
            return 1;
        }
        busy |= 1u << index;
        if (rc == -FI_EAGAIN) {
            spf_count(&engine->counters.again, 1);
        } else if (!spf_path_lose(engine, peer, index, rc)) {
            spf_ledger_put(&engine->ledger, record);
            spf_transfer_fail(transfer, rc);
            return -1;
        }
    }
    spf_ledger_put(&engine->ledger, record);
    return 0;
}

/* Keeps count of the plans that wait for the progress word, and of those with nothing under way besides. */
static void wait_for_progress(spf_engine *engine, struct spf_plan *plan, int gated)
{
    struct spf_transfer *transfer = plan->transfer;
    int held = gated && !plan->in_flight;
    engine->gated_plans += (uint32_t)(gated - plan->gated);
    plan->gated = gated;
    if (plan->held && !held && transfer->active_plans == transfer->held_plans)
        transfer->moving_since_ns = engine->last_event_ns;
    int stops = held && !plan->held;
    transfer->held_plans += (uint32_t)(held - plan->held);
    plan->held = held;
    if (stops)
        spf_count_busy(transfer);
}

static int post_plan(spf_engine *engine, struct spf_plan *plan)
{
    int posted = 0, ended = 0, waits = 0;
    int mapped = spf_peer_is_mapped(plan->transfer->peer), most = mapped ? 1 : WRITES_PER_ROUND;
    while (posted < most) {
        spf_notice_standstill(engine);
        ended = spf_transfer_stopped(plan->transfer) || spf_cursor_at_end(plan, &plan->cursor);
        waits = !ended && spf_cursor_waits(plan, &plan->cursor);
        if (ended || waits)
            break;
        if (mapped)
            spf_mapped_copy(engine, plan);
        else if (post_write(engine, plan) == 0)
            break;
        posted++;
    }
    if (ended || waits)
        confirm_paths(engine, plan);
    plan->posted = ended && !plan->open;
    wait_for_progress(engine, plan, waits);
    return posted;
}

static void look_at_progress(spf_engine *engine)
{
    uint64_t progress = atomic_load_explicit(engine->progress, memory_order_acquire);
    if (progress == engine->last_progress)
        return;
    engine->last_progress = progress;
    engine->last_event_ns = spf_now();
    spf_trace_event event = { .ns = engine->last_event_ns, .kind = SPF_TRACE_STEP, .progress = progress };
    spf_trace_write(&engine->trace, &event);
}

int spf_post_plans(spf_engine *engine)
{
    int posted = 0;
    struct spf_plan *previous = NULL;
    look_at_progress(engine);
    for (struct spf_plan *plan = engine->first_plan, *next; plan; plan = next) {
        next = plan->next;
        plan->steps = spf_forward_steps(plan->forward, engine->last_progress);
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
