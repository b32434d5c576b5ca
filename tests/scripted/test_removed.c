/* Removed peers, where a NIC goes on with what was posted: it reads our memory, and writes the peer's, until it
 * reports. Until then the pages are in use on both sides. */
#include <rdma/fi_errno.h>

#include "engine.h"
#include "pairs.h"

#define HELD 16u /* peer_window */

static const struct {
    const char *machine, *profile;
} nics[] = { { "p5", "efa" }, { "p5", "efa-direct" }, { "hgx-h100-cx7", "verbs" } };

static struct pair join_nics(size_t kind, const spf_engine_config *config, spf_peer **back)
{
    struct pair pair = join(nics[kind].machine, config);
    *back = introduce(&pair.to, &pair.from, 0); /* efa-direct takes nothing from strangers */
    return pair;
}

static void part_nics(struct pair *pair, spf_peer *back)
{
    spf_peer_remove(pair->to.engine, back);
    part(pair);
}

/* A transfer that has all on the wire that may be there, and a peer that was removed under it. */
static spf_transfer *removed_in_mid_transfer(struct pair *pair, uint32_t slot)
{
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair->from, pair->peer, slot, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == HELD);
    spf_peer_remove(pair->from.engine, pair->peer);
    return transfer;
}

/* Returns after a whole round of the I/O thread. */
static int nothing(spf_engine *engine, void *argument, spf_error *err)
{
    (void)engine, (void)argument, (void)err;
    return 0;
}

static void one_round(const struct end *end)
{
    spf_engine_call(end->engine, nothing, NULL, NULL);
    spf_engine_call(end->engine, nothing, NULL, NULL);
}

static void its_transfers_are_quiet_when_the_last_write_was_reported(void)
{
    for (size_t kind = 0; kind < 3; kind++) {
        spf_engine_config config = config_for(nics[kind].profile, 1);
        spf_peer *back;
        struct pair pair = join_nics(kind, &config, &back);
        spf_transfer *transfer = removed_in_mid_transfer(&pair, 0);
        CHECK_EQUAL(status_of(transfer).error, -ESHUTDOWN);
        for (uint32_t left = HELD; left; left--) { /* in any order */
            one_round(&pair.from);
            CHECK(!quiet(transfer));
            scripted_release(1);
            WAIT_FOR(look().on_wire == left - 1);
        }
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).units_done, HELD);
        CHECK_EQUAL(stats_of(&pair.from).writes_posted, HELD);
        CHECK_EQUAL(stats_of(&pair.from).writes_orphaned, 0);
        spf_transfer_release(transfer);
        scripted_hold(0);
        pair.peer = introduce(&pair.from, &pair.to, 1);
        arrives_whole(&pair, 1);
        part_nics(&pair, back);
    }
}

static void an_error_ends_a_write_to_a_removed_peer_too(void)
{
    spf_engine_config config = config_for("efa", 1);
    spf_peer *back;
    struct pair pair = join_nics(0, &config, &back);
    scripted_fate(3, HELD, FAILED, FI_EIO, 14);
    spf_transfer *transfer = removed_in_mid_transfer(&pair, 0);
    spf_transfer_release(transfer); /* nobody but its writes holds it, nor the peer */
    one_round(&pair.from);
    scripted_hold(0);
    WAIT_FOR(stats_of(&pair.from).writes_failed == HELD - 3);
    scripted_fate(0, 0, DELIVERED, 0, 0);
    pair.peer = introduce(&pair.from, &pair.to, 1);
    arrives_whole(&pair, 1);
    part_nics(&pair, back);
}

/* As a messenger does that connects anew: the NIC keeps the address for it, and the receiver its credits. */
static void who_comes_meanwhile_keeps_the_address_and_shares_the_credits(void)
{
    for (size_t kind = 0; kind < 3; kind++) {
        spf_engine_config config = config_for(nics[kind].profile, 1);
        spf_peer *back;
        struct pair pair = join_nics(kind, &config, &back);
        spf_transfer *first = removed_in_mid_transfer(&pair, 0);
        pair.peer = introduce(&pair.from, &pair.to, 1);
        spf_transfer *next = send_pages(&pair.from, pair.peer, 1, 1, PAGE, 5);
        one_round(&pair.from);
        CHECK_EQUAL(look().on_wire, HELD);
        scripted_release(1);
        WAIT_FOR(look().posts == HELD + 1);
        spf_peer_remove(pair.from.engine, pair.peer); /* once more */
        pair.peer = introduce(&pair.from, &pair.to, 1);
        one_round(&pair.from);
        CHECK(!quiet(first) && !quiet(next));
        scripted_hold(0);
        WAIT_FOR(quiet(first) && quiet(next));
        CHECK_EQUAL(status_of(next).units_done, 1);
        spf_transfer_release(first);
        spf_transfer_release(next);
        arrives_whole(&pair, 2);
        CHECK_EQUAL(look().most_in_queue, HELD);
        part_nics(&pair, back);
    }
}

static void a_nic_that_is_taken_out_ends_its_writes_to_removed_peers(void)
{
    spf_engine_config config = config_for("efa", 2);
    spf_peer *back;
    struct pair pair = join_nics(0, &config, &back);
    spf_transfer *transfer = removed_in_mid_transfer(&pair, 0);
    spf_nic_remove(pair.from.engine, 0);
    one_round(&pair.from);
    CHECK(!quiet(transfer)); /* the other NIC has not reported */
    spf_nic_remove(pair.from.engine, 1);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(stats_of(&pair.from).writes_orphaned, HELD);
    spf_transfer_release(transfer);
    scripted_hold(0);
    pair.peer = introduce(&pair.from, &pair.to, 1);
    part_nics(&pair, back);
}

static void an_engine_closes_while_writes_to_removed_peers_are_on_the_wire(void)
{
    for (int held = 0; held < 2; held++) {
        spf_engine_config config = config_for("verbs", 1);
        spf_peer *back;
        struct pair pair = join_nics(2, &config, &back);
        spf_transfer *transfer = removed_in_mid_transfer(&pair, 0);
        pair.peer = introduce(&pair.from, &pair.to, 1);
        spf_transfer_release(transfer);
        if (!held)
            scripted_hold(0);
        spf_peer_remove(pair.to.engine, back);
        spf_engine_close(pair.from.engine, held ? 0 : 60000000000u);
        free(pair.from.memory);
        CHECK_EQUAL(look().on_wire, 0);
        CHECK_EQUAL(look().deliveries, held ? 0 : HELD);
        close_end(&pair.to);
        leave(pair.library);
    }
}

static int stand_still(spf_engine *engine, void *argument, spf_error *err)
{
    (void)engine, (void)argument, (void)err;
    return usleep(1200000); /* a second and the deadline */
}

static void a_standstill_of_ours_waits_for_what_was_posted_before_it(void)
{
    spf_engine_config config = config_for("efa", 1);
    config.stall_ns = 50000000;
    spf_peer *back;
    struct pair pair = join_nics(0, &config, &back);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == HELD);
    spf_engine_call(pair.from.engine, stand_still, NULL, NULL);
    WAIT_FOR(status_of(transfer).error == -ETIMEDOUT);
    one_round(&pair.from);
    CHECK(!quiet(transfer));
    spf_peer_remove(pair.from.engine, pair.peer); /* the caller has still had it */
    one_round(&pair.from);
    CHECK(!quiet(transfer));
    scripted_hold(0);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(stats_of(&pair.from).writes_orphaned, 0);
    spf_transfer_release(transfer);
    pair.peer = introduce(&pair.from, &pair.to, 1);
    part_nics(&pair, back);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(its_transfers_are_quiet_when_the_last_write_was_reported),
        CASE(an_error_ends_a_write_to_a_removed_peer_too),
        CASE(who_comes_meanwhile_keeps_the_address_and_shares_the_credits),
        CASE(a_nic_that_is_taken_out_ends_its_writes_to_removed_peers),
        CASE(an_engine_closes_while_writes_to_removed_peers_are_on_the_wire),
        CASE(a_standstill_of_ours_waits_for_what_was_posted_before_it),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
