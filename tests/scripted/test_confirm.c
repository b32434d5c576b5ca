/* A provider whose writes end when they are sent (tcp). What was sent may still be lost with its connection, so a
 * transfer is done when its delivery is confirmed, and a break before that is noticed. */
#include <rdma/fi_errno.h>

#include "pairs.h"

static spf_engine_config confirming(uint32_t nics)
{
    spf_engine_config config = config_for("tcp", nics);
    config.profile.confirm = 1;
    return config;
}

/* All pages to one slot, as far as a provider takes them that tells us nothing of their arrival. Every write that
 * asks for no confirmation has ended. */
static spf_transfer *send_into_sockets(struct pair *pair, uint32_t slot, uint32_t generation)
{
    scripted_complete_first(1);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair->from, pair->peer, slot, generation, PAGE, slot + 3);
    WAIT_FOR(look().confirmations > 1 && stats_of(&pair->from).writes_posted == PAGES / 4);
    WAIT_FOR(stats_of(&pair->from).writes_completed + look().confirmations >= PAGES / 4);
    CHECK(look().confirmations < PAGES / 8);
    return transfer;
}

static void a_transfer_is_done_when_its_delivery_is_confirmed(void)
{
    for (uint32_t nics = 1; nics <= 2; nics++) {
        spf_engine_config config = confirming(nics);
        struct pair pair = join("laptop", &config);
        scripted_must_confirm(1);
        spf_transfer *transfer = send_into_sockets(&pair, 0, 1);
        CHECK(!quiet(transfer));
        CHECK_EQUAL(spf_slot_units(pair.to.engine, 0), 0);
        scripted_must_confirm(0);
        scripted_hold(0);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, 0);
        CHECK_EQUAL(status_of(transfer).units_done, PAGES);
        WAIT_FOR(spf_slot_units(pair.to.engine, 0) == PAGES);
        CHECK(memcmp(pair.from.memory, pair.to.memory, pair.from.bytes) == 0);
        spf_engine_stats stats = stats_of(&pair.from);
        CHECK_EQUAL(stats.writes_posted, PAGES / 4); /* an empty write is none */
        CHECK_EQUAL(stats.writes_completed, PAGES / 4);
        spf_transfer_release(transfer);
        part(&pair);
    }
}

/* The pages of an aborted request go to another one when its transfer is quiet. */
static void a_cancelled_transfer_is_quiet_when_nothing_of_it_can_arrive_any_more(void)
{
    spf_engine_config config = confirming(2);
    struct pair pair = join("laptop", &config);
    scripted_must_confirm(1);
    scripted_hold(1); /* nothing has ended: the window is full before all is posted */
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == 16);
    CHECK_EQUAL(look().confirmations, 2); /* the first on each path */
    spf_transfer_cancel(transfer);
    WAIT_FOR(look().confirmations == 4);
    scripted_complete_first(1);
    WAIT_FOR(status_of(transfer).writes_done == 14);
    CHECK(!quiet(transfer));
    scripted_must_confirm(0);
    scripted_hold(0);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(look().on_wire, 0);
    CHECK_EQUAL(status_of(transfer).error, 0);
    CHECK(status_of(transfer).units_done < PAGES);
    WAIT_FOR(spf_slot_units(pair.to.engine, 0) == status_of(transfer).units_done);
    spf_transfer_release(transfer);
    part(&pair);
}

static void a_break_before_the_confirmation_spoils_the_transfer(void)
{
    for (uint32_t broken = 0; broken < 2; broken++) {
        spf_engine_config config = confirming(2);
        struct pair pair = join("laptop", &config);
        spf_transfer *transfer = send_into_sockets(&pair, 0, 1);
        scripted_break(config.nics[broken].domain, FI_ECONNRESET);
        WAIT_FOR(status_of(transfer).error == -FI_ECONNRESET);
        CHECK_EQUAL(status_of(transfer).retry, 1);
        scripted_hold(0);
        WAIT_FOR(quiet(transfer));
        CHECK(spf_slot_units(pair.to.engine, 0) < PAGES);
        spf_transfer_release(transfer);
        uint32_t generation = spf_slot_advance(pair.to.engine, 0);
        transfer = send_pages(&pair.from, pair.peer, 0, generation, PAGE, 9);
        WAIT_FOR(spf_slot_units(pair.to.engine, 0) == PAGES && quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, 0);
        CHECK(memcmp(pair.from.memory, pair.to.memory, pair.from.bytes) == 0);
        CHECK_EQUAL(stats_of(&pair.from).paths_lost, 1);
        spf_transfer_release(transfer);
        part(&pair);
    }
}

static void a_confirmation_that_is_not_taken_now_comes_later(void)
{
    spf_engine_config config = confirming(1);
    struct pair pair = join("laptop", &config);
    for (uint32_t slot = 0; slot < 20; slot++) {
        scripted_hold(1);
        scripted_complete_first(slot % 2);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, slot, 1, PAGE, slot + 3);
        WAIT_FOR(look().confirmations);
        scripted_again(NULL, 7 * slot); /* also in the middle of a round */
        scripted_hold(0);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, 0);
        WAIT_FOR(spf_slot_units(pair.to.engine, slot) == PAGES);
        CHECK_EQUAL(look().on_wire, 0);
        spf_transfer_release(transfer);
        scripted_again(NULL, 0);
    }
    CHECK(look().again);
    part(&pair);
}

/* Connections break at any moment. */
static void what_is_done_without_an_error_has_arrived(void)
{
    spf_engine_config config = confirming(2);
    struct pair pair = join("laptop", &config);
    uint64_t seed = 42, failed = 0;
    for (uint32_t slot = 0; slot < 60; slot++) {
        scripted_complete_first((int)(check_random(&seed) % 4) != 0);
        scripted_hold(1);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, slot, 1, PAGE, slot + 1);
        WAIT_FOR(look().confirmations);
        if (slot % 3)
            scripted_break(config.nics[slot % 3 - 1].domain, FI_ECONNRESET);
        else
            scripted_release(check_random(&seed) % 40);
        scripted_hold(0);
        WAIT_FOR(quiet(transfer));
        if (status_of(transfer).error == 0) {
            WAIT_FOR(spf_slot_units(pair.to.engine, slot) == PAGES);
        } else {
            failed++;
        }
        spf_transfer_release(transfer);
        spf_peer_remove(pair.from.engine, pair.peer); /* its paths are as good as new */
        pair.peer = introduce(&pair.from, &pair.to, 1);
    }
    spf_engine_stats stats = stats_of(&pair.from);
    CHECK_EQUAL(stats.writes_posted, stats.writes_completed + stats.writes_failed);
    CHECK(failed > 10 && failed <= 40);
    part(&pair);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_transfer_is_done_when_its_delivery_is_confirmed),
        CASE(a_cancelled_transfer_is_quiet_when_nothing_of_it_can_arrive_any_more),
        CASE(a_break_before_the_confirmation_spoils_the_transfer),
        CASE(a_confirmation_that_is_not_taken_now_comes_later),
        CASE(what_is_done_without_an_error_has_arrived),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
