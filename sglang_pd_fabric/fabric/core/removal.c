/* Removing peers: what becomes of the writes that are on their way to them. On the I/O thread.
 *
 * A write that was posted ends when the provider has reported it. Where the provider never reports writes to the
 * dead (shm), or where we can end them ourselves (tcp: cut.c), they are orphaned. Where a write goes on after
 * fi_av_remove and is reported some time (profile: outlives), nothing can end it: a NIC repeats it out of our memory
 * until it has arrived or is given up. There a removed peer is dying until its last write has been reported: it takes
 * nothing more, its plans are not quiet, and its addresses stay in the address vectors. */
#include <errno.h>

#include "cut.h"
#include "ending.h"
#include "engine.h"
#include "renew.h"

/* Nothing that is queued for the peer leaves any more, before anybody is told that it is quiet. */
static void cut_off(spf_engine *engine, const spf_peer *peer)
{
    if (!engine->config.profile.cut || !peer->in_flight)
        return;
    for (uint32_t i = 0; i < peer->nic_count; i++)
        spf_cut_connections(engine->descriptors, peer->names[i]);
    spf_io_drain(engine, UINT32_MAX); /* the provider notices */
}

static void orphan(void *argument, struct spf_record *record)
{
    spf_orphan(argument, record, ESHUTDOWN);
}

static void leave_list(spf_engine *engine, spf_peer *peer)
{
    struct spf_peer **link = &engine->peers;
    while (*link != peer)
        link = &(*link)->next;
    *link = peer->next;
}

static void orphan_all(spf_engine *engine, spf_peer *peer)
{
    cut_off(engine, peer);
    uint32_t before[SPF_MAX_NICS];
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        before[i] = engine->nics[i].stranded;
    spf_ledger_each(&engine->ledger, peer, orphan, engine);
    leave_list(engine, peer);
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        if (engine->nics[i].stranded == before[i] || !spf_renews(engine))
            spf_peer_forget(engine, peer, i);
}

void spf_io_remove_peer(spf_engine *engine, spf_peer *peer)
{
    if (peer->removed)
        return;
    peer->removed = 1;
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next)
        if (transfer->peer == peer && !spf_transfer_quiet(transfer))
            spf_transfer_fail(transfer, ESHUTDOWN);
    spf_warm_end(engine, peer);
    peer->dying = engine->config.profile.outlives && peer->in_flight;
    if (peer->dying)
        engine->dying_peers++;
    else
        orphan_all(engine, peer);
}

void spf_peer_died(spf_engine *engine, spf_peer *peer)
{
    peer->dying = 0;
    engine->dying_peers--;
    leave_list(engine, peer);
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        spf_peer_forget(engine, peer, i);
}

void spf_io_drop_all(spf_engine *engine)
{
    for (struct spf_peer *peer = engine->peers, *next; peer; peer = next) {
        next = peer->next;
        peer->removed = 1;
        if (peer->dying) /* its transfers hold it, and its addresses end with their endpoint */
            leave_list(engine, peer);
        peer->dying = 0;
    }
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next) {
        spf_transfer_fail(transfer, ESHUTDOWN);
        transfer->released = 0; /* freed below, not on the way */
    }
    spf_post_plans(engine);
    for (struct spf_transfer *transfer = engine->transfers; transfer; transfer = transfer->next)
        spf_ledger_each(&engine->ledger, transfer->peer, orphan, engine);
    while (engine->transfers)
        spf_transfer_destroy(engine, engine->transfers);
    while (engine->peers) {
        struct spf_peer *peer = engine->peers;
        engine->peers = peer->next;
        spf_peer_dereference(peer);
    }
}
