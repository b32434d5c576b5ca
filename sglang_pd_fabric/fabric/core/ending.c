#include "ending.h"

#include <errno.h>
#include <stdlib.h>

#include "paths.h"

void spf_transfer_fail(struct spf_transfer *transfer, int code)
{
    int none = 0;
    atomic_compare_exchange_strong(&transfer->error, &none, code < 0 ? code : -code);
}

static void lose(struct spf_transfer *transfer, int code, int another)
{
    if (another && !spf_transfer_stopped(transfer))
        atomic_store(&transfer->retry, 1);
    spf_transfer_fail(transfer, code);
}

void spf_path_fail(spf_engine *engine, struct spf_transfer *transfer, uint32_t nic, int code)
{
    int another = spf_path_lose(engine, transfer->peer, nic, code);
    lose(transfer, code, another);
    for (struct spf_plan *plan = engine->first_plan; plan; plan = plan->next) {
        if (!(plan->open >> nic & 1) || plan->transfer->peer != transfer->peer)
            continue;
        plan->open &= ~(1u << nic);
        lose(plan->transfer, code, another);
    }
}

int spf_transfer_stopped(struct spf_transfer *transfer)
{
    return atomic_load(&transfer->cancelled) || atomic_load(&transfer->error);
}

int spf_transfer_quiet(struct spf_transfer *transfer)
{
    return atomic_load(&transfer->plans_submitted) == atomic_load(&transfer->plans_finished);
}

void spf_transfer_list(spf_engine *engine, struct spf_transfer *transfer)
{
    if (transfer->listed)
        return;
    transfer->listed = 1;
    transfer->previous = NULL;
    transfer->next = engine->transfers;
    if (engine->transfers)
        engine->transfers->previous = transfer;
    engine->transfers = transfer;
}

void spf_transfer_destroy(spf_engine *engine, struct spf_transfer *transfer)
{
    if (transfer->listed) {
        if (transfer->previous)
            transfer->previous->next = transfer->next;
        else
            engine->transfers = transfer->next;
        if (transfer->next)
            transfer->next->previous = transfer->previous;
    }
    spf_peer_dereference(transfer->peer);
    free(transfer);
}

/* Ends the plan when all of it is posted (or dropped) and nothing of it is in flight. */
void spf_plan_settle(spf_engine *engine, struct spf_plan *plan)
{
    if (!plan->posted || plan->in_flight)
        return;
    struct spf_transfer *transfer = plan->transfer;
    int moved = !plan->held;
    engine->gated_plans -= plan->gated ? 1 : 0;
    transfer->held_plans -= plan->held ? 1 : 0;
    spf_plan_destroy(plan);
    transfer->active_plans--;
    if (moved)
        spf_count_busy(transfer);
    atomic_fetch_add(&transfer->plans_finished, 1);
    if (transfer->released && spf_transfer_quiet(transfer))
        spf_transfer_destroy(engine, transfer);
}

void spf_count_busy(struct spf_transfer *transfer)
{
    if (transfer->active_plans == transfer->held_plans)
        spf_count(&transfer->busy_ns, spf_now() - transfer->moving_since_ns);
}

void spf_count_posted(spf_engine *engine, const struct spf_plan *plan, uint32_t units)
{
    spf_count(&engine->counters.posted, 1);
    if (plan->steps != SPF_ALL_STEPS)
        spf_count(&engine->counters.early, units);
}

uint64_t spf_trace_time(const spf_engine *engine)
{
    return engine->trace.count ? spf_now() : 0;
}

void spf_trace_of_write(spf_engine *engine, uint32_t kind, uint64_t ns, const struct spf_transfer *transfer,
                        const struct spf_write *write, uint32_t nic)
{
    spf_trace_event event = { .ns = ns, .bytes = write->bytes, .kind = kind,
                              .immediate = transfer->immediate | write->units, .after = write->after, .nic = nic };
    spf_trace_write(&engine->trace, &event);
}

void spf_count_done(spf_engine *engine, struct spf_transfer *transfer, uint32_t units, uint64_t bytes)
{
    spf_count(&engine->counters.completed, 1);
    spf_count(&engine->counters.bytes, bytes);
    spf_count(&engine->counters.units, units);
    spf_count(&transfer->units_done, units);
    spf_count(&transfer->bytes_done, bytes);
    spf_count(&transfer->writes_done, 1);
}

static void retire(spf_engine *engine, struct spf_record *record, int error)
{
    struct spf_plan *plan = record->plan;
    struct spf_transfer *transfer = plan->transfer;
    struct spf_peer *peer = transfer->peer;
    engine->nics[record->nic].in_flight--;
    engine->in_flight--;
    peer->in_flight--;
    peer->on[record->nic]--;
    peer->asked[record->nic] -= (uint32_t)record->confirms;
    plan->in_flight--;
    int empty = record->units == 0;
    if (error) {
        spf_count(&engine->counters.failed, empty ? 0 : 1);
        spf_path_fail(engine, transfer, record->nic, error);
    } else if (!empty) {
        struct spf_write write = { .units = record->units, .after = record->after, .bytes = record->bytes };
        spf_trace_of_write(engine, SPF_TRACE_DONE, spf_trace_time(engine), transfer, &write, record->nic);
        spf_count_done(engine, transfer, record->units, record->bytes);
        spf_count(&engine->counters.nic_bytes[record->nic], record->bytes);
    }
    if (!error)
        peer->progress_ns = peer->moved_ns[record->nic] = engine->last_event_ns;
    if (peer->dying && !peer->in_flight)
        spf_peer_died(engine, peer); /* it ends with its last transfer, which may be this one */
    spf_plan_settle(engine, plan);
}

void spf_orphan(spf_engine *engine, struct spf_record *record, int error)
{
    spf_count(&engine->counters.orphaned, 1);
    retire(engine, record, error);
    record->plan = NULL;
    record->orphaned = 1;
    engine->nics[record->nic].stranded++;
}

/* The end of a posted write, by whatever way it was reported. */
void spf_end_of_write(spf_engine *engine, void *context, int error)
{
    struct spf_record *record = context;
    if (!record)
        return;
    struct spf_nic *nic = &engine->nics[record->nic];
    if (!record->orphaned)
        retire(engine, record, error);
    else if (!record->warms)
        nic->stranded--;
    spf_ledger_put(&engine->ledger, record);
}
