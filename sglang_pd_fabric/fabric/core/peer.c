/* Peers: other engines that we may write to, over NICs or through mapped memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "error.h"

/* A peer in the list that our NIC already knows by the same name, or NULL. */
static const spf_peer *namesake(const spf_engine *engine, const spf_peer *peer, uint32_t nic)
{
    const spf_peer *other = engine->peers;
    while (other && (other->slots.words || memcmp(other->names[other->pair[nic]], peer->names[peer->pair[nic]], SPF_ADDRESS_BYTES)))
        other = other->next;
    return other;
}

void spf_peer_forget(spf_engine *engine, spf_peer *peer, uint32_t nic)
{
    /* Without an endpoint (it was taken out, or is to be opened anew) there may be no address vector. */
    if (!peer->slots.words && engine->nics[nic].ep && !namesake(engine, peer, nic))
        fi_av_remove(engine->nics[nic].av, &peer->address[nic], 1, 0);
}

static int insert_addresses(spf_engine *engine, void *argument, spf_error *err)
{
    spf_peer *peer = argument;
    for (uint32_t i = 0; i < engine->config.nic_count; i++) {
        peer->pair[i] = i % peer->nic_count;
        const spf_peer *known = namesake(engine, peer, i);
        int rc = 0;
        if (known)
            peer->address[i] = known->address[i];
        else
            rc = spf_nic_insert(&engine->nics[i], engine->library, peer->names[peer->pair[i]],
                                &peer->address[i], err);
        if (rc) {
            while (i--)
                spf_peer_forget(engine, peer, i);
            return rc;
        }
    }
    return 0;
}

static int link_peer(spf_engine *engine, void *argument, spf_error *err)
{
    spf_peer *peer = argument;
    (void)err;
    peer->next = engine->peers;
    engine->peers = peer;
    return 0;
}

static int insert_peer(spf_engine *engine, void *argument, spf_error *err)
{
    int rc = insert_addresses(engine, argument, err);
    rc = rc ? rc : link_peer(engine, argument, err);
    if (!rc)
        spf_warm_begin(engine, argument);
    return rc;
}

static spf_peer *new_peer(const spf_remote_region *regions, uint32_t region_count, spf_error *err)
{
    if (region_count > SPF_MAX_REGIONS) {
        spf_fail(err, EINVAL, "the peer offers %u regions; at most %d are possible", region_count,
                 SPF_MAX_REGIONS);
        return NULL;
    }
    for (uint32_t i = 0; i < region_count; i++)
        if (regions[i].bytes > UINT64_MAX - regions[i].base) {
            spf_fail(err, EINVAL, "the peer's region %u of %llu bytes at %llu wraps around", i,
                     (unsigned long long)regions[i].bytes, (unsigned long long)regions[i].base);
            return NULL;
        }
    spf_peer *peer = calloc(1, sizeof *peer + region_count * sizeof *regions);
    if (!peer) {
        spf_fail(err, ENOMEM, "out of memory");
        return NULL;
    }
    peer->region_count = region_count;
    atomic_init(&peer->references, 1);
    if (region_count)
        memcpy(peer->regions, regions, region_count * sizeof *regions);
    return peer;
}

int spf_peer_add(spf_engine *engine, const uint8_t *addresses, uint32_t nic_count,
                 const spf_remote_region *regions, uint32_t region_count, uint32_t credits, spf_peer **out,
                 spf_error *err)
{
    if (nic_count == 0 || nic_count > SPF_MAX_NICS)
        return spf_fail(err, EINVAL, "the peer offers %u NICs; 1 to %d are possible", nic_count,
                        SPF_MAX_NICS);
    spf_peer *peer = new_peer(regions, region_count, err);
    if (!peer)
        return -EINVAL;
    peer->nic_count = nic_count;
    peer->window = engine->config.profile.peer_window;
    if (credits && credits < peer->window)
        peer->window = credits;
    memcpy(peer->names, addresses, (size_t)nic_count * SPF_ADDRESS_BYTES);
    int rc = spf_engine_call(engine, insert_peer, peer, err);
    if (rc) {
        free(peer);
        return rc;
    }
    *out = peer;
    return 0;
}

int spf_peer_map(spf_engine *engine, uint64_t *slot_words, uint32_t slot_count,
                 const spf_remote_region *regions, uint32_t region_count, spf_peer **out,
                 spf_error *err)
{
    if (!slot_words || slot_count == 0 || slot_count > 1u << SPF_SLOT_BITS)
        return spf_fail(err, EINVAL, "%u mapped slots; 1 to %d are possible", slot_count,
                        1 << SPF_SLOT_BITS);
    spf_peer *peer = new_peer(regions, region_count, err);
    if (!peer)
        return -EINVAL;
    spf_slots_map(&peer->slots, slot_count, slot_words);
    spf_engine_call(engine, link_peer, peer, err);
    *out = peer;
    return 0;
}

void spf_peer_dereference(spf_peer *peer)
{
    if (atomic_fetch_sub(&peer->references, 1) == 1)
        free(peer);
}

static int remove_peer(spf_engine *engine, void *argument, spf_error *err)
{
    (void)err;
    spf_io_remove_peer(engine, argument);
    return 0;
}

void spf_peer_remove(spf_engine *engine, spf_peer *peer)
{
    spf_engine_call(engine, remove_peer, peer, NULL);
    spf_peer_dereference(peer);
}
