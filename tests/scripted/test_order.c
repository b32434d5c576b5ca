/* Order means nothing: writes arrive in any, immediates come early and late, ends are told before or after. */
#include "ends.h"

#define PAGES 128u

struct pair {
    spf_library *library;
    struct end from, to;
    spf_peer *peer;
};

static struct pair join(const char *machine, const char *profile, uint32_t nics)
{
    struct pair pair = { .library = enter(machine) };
    spf_engine_config config = config_for(profile, nics);
    config.profile.window = 512;
    config.profile.peer_window = 256;
    config.profile.queue_entries = 2048;
    pair.from = open_end(pair.library, &config, PAGES * PAGE);
    pair.to = open_end(pair.library, &config, PAGES * PAGE);
    pair.peer = introduce(&pair.from, &pair.to, 1);
    fill(&pair.from, 1);
    return pair;
}

static void part(struct pair *pair)
{
    spf_peer_remove(pair->from.engine, pair->peer);
    close_end(&pair->from);
    close_end(&pair->to);
    leave(pair->library);
}

static void a_full_count_means_that_every_byte_is_there_whatever_the_order(void)
{
    struct pair pair = join("p5", "efa", 4);
    for (uint32_t slot = 0; slot < 30; slot++) {
        fill(&pair.from, slot + 1);
        scripted_order((enum scripted_order)(slot % 3), slot + 1);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, slot, 1, PAGE, slot + 1);
        WAIT_FOR(spf_slot_units(pair.to.engine, slot) == PAGES);
        CHECK(memcmp(pair.from.memory, pair.to.memory, pair.from.bytes) == 0);
        WAIT_FOR(quiet(transfer));
        spf_transfer_release(transfer);
    }
    part(&pair);
}

static void the_count_is_full_with_the_last_write_and_not_before(void)
{
    struct pair pair = join("p5", "efa-direct", 2);
    spf_peer *back = introduce(&pair.to, &pair.from, 0);
    scripted_order(SHUFFLED, 17);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == PAGES);
    for (uint32_t arrived = 1; arrived <= PAGES; arrived++) {
        CHECK_EQUAL(scripted_release(1), 1);
        WAIT_FOR(spf_slot_units(pair.to.engine, 0) == arrived);
        CHECK((memcmp(pair.from.memory, pair.to.memory, pair.from.bytes) == 0) == (arrived == PAGES));
    }
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
    spf_peer_remove(pair.to.engine, back);
    part(&pair);
}

static void immediates_that_come_before_anybody_waits_are_kept(void)
{
    struct pair pair = join("p5", "efa", 1);
    uint32_t next = spf_slot_advance(pair.to.engine, 9);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 9, next, PAGE, 5);
    WAIT_FOR(quiet(transfer));
    WAIT_FOR(look().on_wire == 0);
    WAIT_FOR(spf_slot_units(pair.to.engine, 9) == PAGES); /* looked at for the first time */
    spf_transfer_release(transfer);
    part(&pair);
}

static void a_write_that_is_overtaken_by_its_slots_next_owner_is_late(void)
{
    struct pair pair = join("p5", "efa", 1);
    scripted_hold(1);
    spf_transfer *old = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == PAGES);
    CHECK_EQUAL(scripted_release(28), 28);
    WAIT_FOR(spf_slot_units(pair.to.engine, 0) == 28);
    uint32_t next = spf_slot_advance(pair.to.engine, 0);
    spf_transfer *new = send_pages(&pair.from, pair.peer, 0, next, PAGE, 6);
    WAIT_FOR(look().on_wire == 2 * PAGES - 28);
    scripted_order(SHUFFLED, 3);
    scripted_hold(0);
    WAIT_FOR(quiet(old) && quiet(new));
    WAIT_FOR(spf_slot_units(pair.to.engine, 0) == PAGES);
    WAIT_FOR(stats_of(&pair.to).immediates_late == PAGES - 28);
    spf_transfer_release(old);
    spf_transfer_release(new);
    part(&pair);
}

static void the_end_may_be_told_before_the_bytes_arrive(void)
{
    static const char *const machines[][2] = { { "laptop", "tcp" }, { "laptop", "shm" }, { "p5", "efa" } };
    for (size_t i = 0; i < 3; i++) {
        struct pair pair = join(machines[i][0], machines[i][1], 1);
        scripted_complete_first(1);
        scripted_hold(1);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).units_done, PAGES);
        CHECK_EQUAL(spf_slot_units(pair.to.engine, 0), 0);
        scripted_hold(0);
        WAIT_FOR(spf_slot_units(pair.to.engine, 0) == PAGES);
        CHECK(memcmp(pair.from.memory, pair.to.memory, pair.from.bytes) == 0);
        spf_transfer_release(transfer);
        part(&pair);
    }
}

static void immediates_that_nobody_sent_are_counted_for_no_slot(void)
{
    struct pair pair = join("p5", "efa", 1);
    scripted_stray_immediate(UINT32_MAX);
    scripted_stray_immediate(63u << 19 | 1u << 12); /* no units */
    scripted_stray_immediate(5u << 19 | 2u << 12 | 1); /* another generation */
    scripted_stray_immediate(0); /* a connection, nothing else */
    WAIT_FOR(stats_of(&pair.to).immediates_late == 1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(spf_slot_units(pair.to.engine, 0) == PAGES);
    CHECK_EQUAL(stats_of(&pair.to).immediates_unknown, 2);
    WAIT_FOR(stats_of(&pair.to).units_counted == PAGES); /* counted just after the slot */
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
    part(&pair);
}

static void a_receiver_that_is_not_polled_holds_up_software_providers_and_loses_nothing(void)
{
    struct pair pair = join("laptop", "shm", 1);
    scripted_freeze("shm", 1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().posts >= PAGES / 4);
    CHECK(!quiet(transfer));
    CHECK_EQUAL(spf_slot_units(pair.to.engine, 0), 0);
    scripted_freeze("shm", 0);
    WAIT_FOR(spf_slot_units(pair.to.engine, 0) == PAGES);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, 0);
    spf_transfer_release(transfer);
    part(&pair);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_full_count_means_that_every_byte_is_there_whatever_the_order),
        CASE(the_count_is_full_with_the_last_write_and_not_before),
        CASE(immediates_that_come_before_anybody_waits_are_kept),
        CASE(a_write_that_is_overtaken_by_its_slots_next_owner_is_late),
        CASE(the_end_may_be_told_before_the_bytes_arrive),
        CASE(immediates_that_nobody_sent_are_counted_for_no_slot),
        CASE(a_receiver_that_is_not_polled_holds_up_software_providers_and_loses_nothing),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
