/* Warm-up: connecting to a peer before the first page has to go there.
 *
 * Most providers connect with the first write (tcp, rxm) or exchange a handshake with it (efa), which
 * costs from a millisecond to seconds. So where the profile says so, each of our NICs writes zero bytes
 * to a new peer, with an immediate that means nothing. No transfer owns such a write: its ledger record
 * is an orphan from the start, and how it ends changes nothing. */
#include "engine.h"

#define FORGET_NS 10000000000u /* after that the first page may do it */

void spf_warm_begin(spf_engine *engine, spf_peer *peer)
{
    if (!engine->config.profile.warm_up || !spf_peer_takes_writes(peer))
        return;
    peer->cold = (1u << engine->config.nic_count) - 1;
    peer->cold_since_ns = spf_now();
    engine->cold_peers++;
}

void spf_warm_end(spf_engine *engine, spf_peer *peer)
{
    if (peer->cold)
        engine->cold_peers--;
    peer->cold = 0;
}

/* 1: nothing more to do for this NIC; 0: not now. */
static int warm(spf_engine *engine, spf_peer *peer, uint32_t index)
{
    if (engine->nics_out >> index & 1)
        return 1;
    if (!engine->nics[index].ep)
        return 0;
    struct spf_record *record = spf_ledger_take(&engine->ledger);
    if (!record)
        return 0;
    record->orphaned = record->warms = 1;
    record->nic = index;
    int rc = spf_post_empty(engine, peer, index, 0, &record->context);
    if (rc)
        spf_ledger_put(&engine->ledger, record);
    return rc != -FI_EAGAIN;
}

int spf_warm_peers(spf_engine *engine)
{
    if (!engine->cold_peers || !atomic_load(&engine->region_count))
        return 0;
    int done = 0;
    uint64_t now = spf_now();
    for (spf_peer *peer = engine->peers; peer; peer = peer->next) {
        uint32_t before = peer->cold;
        for (uint32_t i = 0; i < engine->config.nic_count; i++)
            if (peer->cold >> i & 1 && warm(engine, peer, i)) {
                peer->cold &= ~(1u << i);
                done++;
            }
        if (before && now - peer->cold_since_ns > FORGET_NS)
            peer->cold = 0;
        if (before && !peer->cold)
            engine->cold_peers--;
    }
    return done;
}
