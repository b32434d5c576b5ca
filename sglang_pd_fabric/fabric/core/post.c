/* Posting: cuts plans into writes and hands them to the NICs, as far as these take them and as far as the
 * progress word allows. On the I/O thread. */
#include <errno.h>

#include "engine.h"
#include "ending.h"
#include "mapped.h"
#include "paths.h"

#define WRITES_PER_ROUND 32

/* The NIC with the fewest writes in flight among those not in the set, or NULL when all are full; `first` write to
 * a peer goes over a full one too. Of equal ones it is the first from `turn` on. */
static struct spf_nic *pick_nic(spf_engine *engine, uint32_t turn, uint32_t without, int first, uint32_t *index)
{
    struct spf_nic *best = NULL;
    uint32_t count = engine->config.nic_count;
    for (uint32_t n = 0, i = turn; n < count; n++, i = i + 1 < count ? i + 1 : 0) {
        struct spf_nic *nic = &engine->nics[i];
        if (without >> i & 1 || (nic->in_flight >= nic->window && !first))
            continue;
        if (!best || nic->in_flight < best->in_flight) {
            best = nic;
            *index = i;
        }
    }
    return best;
}

/* Hands a write to a NIC. 0, -FI_EAGAIN, or the provider's error: then nothing of it has left. */
static int post_on(spf_engine *engine, struct spf_plan *plan, uint32_t index, struct spf_record *record)
{
    struct spf_transfer *transfer = plan->transfer;
    struct spf_peer *peer = transfer->peer;
    struct spf_nic *nic = &engine->nics[index];
    struct spf_cursor cursor = plan->cursor;
    struct spf_write write;
    spf_plan_next(plan, &cursor, engine->regions, index, nic->segments, nic->write_bytes, &write);
    uint64_t ns = spf_trace_time(engine);
    int rc = spf_nic_post(nic, &write, peer->address[index], transfer->immediate | write.units, &record->context);
    if (rc)
        return rc;
    spf_trace_of_write(engine, SPF_TRACE_POST, ns, transfer, &write, index);
    record->plan = plan;
    record->nic = index;
    record->units = write.units;
    record->after = write.after;
    record->bytes = write.bytes;
    plan->cursor = cursor;
    plan->in_flight++;
    nic->in_flight++;
    peer->in_flight++;
    engine->in_flight++;
    spf_count_posted(engine, plan, write.units);
    return 0;
}

/* A peer may have as many writes in flight as there is room left for others, but one always: so however many of
 * them are frozen, nobody waits for them. */
static int peer_is_full(const spf_engine *engine, const struct spf_peer *peer)
{
    uint32_t room = engine->in_flight < engine->window ? engine->window - engine->in_flight : 0;
    return peer->in_flight && peer->in_flight >= (room < peer->window ? room : peer->window);
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
    int posted = 0;
    int mapped = spf_peer_is_mapped(plan->transfer->peer);
    int waits = 0;
    while (posted < (mapped ? 1 : WRITES_PER_ROUND)) {
        if (spf_transfer_stopped(plan->transfer) || spf_cursor_at_end(plan, &plan->cursor)) {
            plan->posted = 1;
            break;
        }
        waits = spf_cursor_waits(plan, &plan->cursor);
        if (waits)
            break;
        if (mapped)
            spf_mapped_copy(engine, plan);
        else if (post_write(engine, plan) == 0)
            break;
        posted++;
    }
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
