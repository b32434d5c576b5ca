/* A sender and a receiver on a scripted machine, for tests of what goes wrong below them. */
#ifndef PAIRS_H
#define PAIRS_H

#include "ends.h"

#define PAGES 256u

struct pair {
    spf_library *library;
    struct end from, to;
    spf_peer *peer;
};

static inline struct pair join(const char *machine, const spf_engine_config *config)
{
    struct pair pair = { .library = enter(machine) };
    pair.from = open_end(pair.library, config, PAGES * PAGE);
    pair.to = open_end(pair.library, config, PAGES * PAGE);
    pair.peer = introduce(&pair.from, &pair.to, 1);
    fill(&pair.from, 1);
    return pair;
}

static inline void part(struct pair *pair)
{
    spf_peer_remove(pair->from.engine, pair->peer);
    close_end(&pair->from);
    close_end(&pair->to);
    leave(pair->library);
}

static inline void arrives_whole(struct pair *pair, uint32_t slot)
{
    spf_transfer *transfer = send_pages(&pair->from, pair->peer, slot, 1, PAGE, slot + 3);
    WAIT_FOR(spf_slot_units(pair->to.engine, slot) == PAGES);
    CHECK(memcmp(pair->from.memory, pair->to.memory, pair->from.bytes) == 0);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, 0);
    spf_transfer_release(transfer);
}

#endif
