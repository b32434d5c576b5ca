#include "paths.h"

#include <errno.h>

#include "cut.h"
#include "ending.h"

static uint32_t all_nics(const spf_engine *engine)
{
    return (1u << engine->config.nic_count) - 1;
}

/* Errors of the way to the peer, and not of what was asked for (a wrong key, a bad address). */
static int is_of_path(int error)
{
    switch (error < 0 ? -error : error) {
    case ECANCELED:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EIO:
    case ENETDOWN:
    case ENETRESET:
    case ENETUNREACH:
    case ENODEV:
    case ENOTCONN:
    case EPIPE:
    case ESHUTDOWN:
    case ETIMEDOUT:
        return 1;
    default:
        return 0;
    }
}

int spf_path_lose(spf_engine *engine, struct spf_peer *peer, uint32_t nic, int error)
{
    uint32_t lost = spf_paths_lost(engine, peer) | 1u << nic;
    if (peer->removed || !(is_of_path(error) || engine->nics_out >> nic & 1))
        return 0;
    if (lost == all_nics(engine)) /* the last one stays: most providers connect anew */
        return 0;
    if (!(peer->lost >> nic & 1))
        spf_count(&engine->counters.paths_lost, 1);
    peer->lost |= 1u << nic;
    return 1;
}

struct loss {
    spf_engine *engine;
    uint32_t nic;
    int error;
};

static void lose_write(void *argument, struct spf_record *record)
{
    const struct loss *loss = argument;
    if (record->nic == loss->nic)
        spf_orphan(loss->engine, record, loss->error);
}

static void fail_write(void *argument, struct spf_record *record)
{
    const struct loss *loss = argument;
    if (record->nic == loss->nic)
        spf_path_fail(loss->engine, record->plan->transfer, loss->nic, loss->error);
}

static int is_stuck(const spf_engine *engine, const struct spf_peer *peer, uint32_t nic, uint64_t now)
{
    uint64_t stall = engine->config.stall_ns, moved = peer->moved_ns[nic];
    return peer->on[nic] && now > moved && now - moved > stall && peer->progress_ns > moved &&
           (now < peer->progress_ns || now - peer->progress_ns <= stall);
}

void spf_check_paths(spf_engine *engine, uint64_t now)
{
    for (struct spf_peer *peer = engine->peers; peer; peer = peer->next)
        for (uint32_t i = 0; i < engine->config.nic_count && !peer->removed; i++) {
            struct loss loss = { engine, i, ETIMEDOUT };
            if (spf_paths_lost(engine, peer) >> i & 1 || !is_stuck(engine, peer, i, now))
                continue;
            spf_ledger_each(&engine->ledger, peer, fail_write, &loss);
            if (!engine->config.profile.cut)
                continue;
            spf_cut_connections(engine->descriptors, peer->names[peer->pair[i]]);
            spf_io_drain(engine, 1u << i); /* the provider notices; libfabric 1.17 does not report all of them */
            spf_ledger_each(&engine->ledger, peer, lose_write, &loss);
        }
}

static void fail_unfinished(spf_engine *engine, int error)
{
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next)
        if (!transfer->peer->slots.words && !spf_transfer_quiet(transfer))
            spf_transfer_fail(transfer, error);
}

void spf_nic_take_out(spf_engine *engine, uint32_t index, int error)
{
    struct loss loss = { engine, index, error };
    if (engine->nics_out >> index & 1)
        return;
    spf_io_drain(engine, 1u << index); /* what has arrived counts */
    atomic_fetch_or(&engine->nics_out, 1u << index);
    engine->window -= engine->nics[index].window;
    spf_nic_disconnect(&engine->nics[index]);
    for (struct spf_peer *peer = engine->peers, *next; peer; peer = next) {
        next = peer->next; /* a dying one may end here */
        spf_ledger_each(&engine->ledger, peer, lose_write, &loss);
    }
    for (struct spf_peer *peer = engine->peers; peer; peer = peer->next)
        if (spf_paths_lost(engine, peer) == all_nics(engine))
            peer->lost = 0; /* what was lost is better than nothing */
    if (!engine->window)
        fail_unfinished(engine, error);
}

void spf_check_nics(spf_engine *engine)
{
    for (uint32_t i = 0; i < engine->config.nic_count; i++) {
        int error = engine->nics_out >> i & 1 ? 0 : spf_nic_failure(&engine->nics[i]);
        if (error && engine->window > engine->nics[i].window)
            spf_nic_take_out(engine, i, error);
        else if (error) /* the last one stays: it may go on */
            fail_unfinished(engine, error);
    }
}
