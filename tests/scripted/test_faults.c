/* What goes wrong below us: storms of "again", refused posts, error completions, writes that vanish. */
#include <rdma/fi_errno.h>

#include "pairs.h"

static void a_storm_of_again_delays_and_loses_nothing(void)
{
    static const char *const machines[][2] = { { "p5", "efa" }, { "hgx-h100-cx7", "verbs" }, { "laptop", "tcp" } };
    for (size_t i = 0; i < 3; i++) {
        spf_engine_config config = config_for(machines[i][1], 1);
        struct pair pair = join(machines[i][0], &config);
        for (uint32_t slot = 0; slot < 4; slot++) {
            scripted_again(NULL, 25u << slot);
            arrives_whole(&pair, slot);
        }
        CHECK(stats_of(&pair.from).post_again >= 50);
        part(&pair);
    }
}

static void an_endless_storm_ends_with_the_deadline_of_its_transfer(void)
{
    spf_engine_config config = config_for("efa", 1);
    config.stall_ns = 1000000000;
    struct pair pair = join("p5", &config);
    scripted_again(NULL, SCRIPTED_ALL);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 0);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, -ETIMEDOUT);
    CHECK_EQUAL(stats_of(&pair.from).writes_posted, 0);
    CHECK_EQUAL(spf_slot_units(pair.to.engine, 0), 0);
    spf_transfer_release(transfer);
    scripted_again(NULL, 0);
    arrives_whole(&pair, 1);
    part(&pair);
}

static void a_nic_that_says_again_for_ever_does_not_stop_the_others(void)
{
    spf_engine_config config = config_for("efa", 4);
    struct pair pair = join("p5", &config);
    for (uint32_t slot = 0; slot < 4; slot++) { /* also the one that is tried first */
        scripted_again(config.nics[slot].domain, SCRIPTED_ALL);
        arrives_whole(&pair, slot);
    }
    part(&pair);
}

static void a_refused_post_fails_its_transfer_and_nobody_elses(void)
{
    static const int codes[] = { -FI_EINVAL, -FI_ENOENT, -FI_EIO, -FI_EOPNOTSUPP };
    spf_engine_config config = config_for("efa", 1);
    struct pair pair = join("p5", &config);
    for (uint32_t i = 0; i < 4; i++) {
        scripted_refuse(10 * i, codes[i]);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, 2 * i, 1, PAGE, 5);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, codes[i]);
        CHECK_EQUAL(status_of(transfer).units_done, 10 * i);
        WAIT_FOR(spf_slot_units(pair.to.engine, 2 * i) == 10 * i);
        spf_transfer_release(transfer);
        arrives_whole(&pair, 2 * i + 1);
    }
    CHECK_EQUAL(stats_of(&pair.from).writes_failed, 0); /* nothing that was posted */
    part(&pair);
}

/* The error codes of prov/efa/src/efa_errno.h that a dying or restarted peer brings. */
static void an_error_completion_fails_its_transfer_and_nobody_elses(void)
{
    static const int prov_errno[] = { 7, 8, 9, 10, 13, 14, 15, 4111 };
    spf_engine_config config = config_for("efa", 1);
    struct pair pair = join("p5", &config);
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t failed = stats_of(&pair.from).writes_failed;
        scripted_fate(5 * i, 1, FAILED, FI_EIO, prov_errno[i]);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, 2 * i, 1, PAGE, 5);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, -FI_EIO);
        CHECK_EQUAL(stats_of(&pair.from).writes_failed, failed + 1);
        CHECK(spf_slot_units(pair.to.engine, 2 * i) < PAGES);
        spf_transfer_release(transfer);
        arrives_whole(&pair, 2 * i + 1);
    }
    part(&pair);
}

static void errors_in_a_row_are_all_read(void)
{
    spf_engine_config config = config_for("efa", 2);
    config.profile.window = 512;
    config.profile.peer_window = 256;
    config.profile.queue_entries = 2048;
    struct pair pair = join("p5", &config);
    scripted_hold(1);
    scripted_fate(0, 200, FAILED, FI_EIO, 9);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == PAGES);
    scripted_hold(0);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(stats_of(&pair.from).writes_failed, 200);
    CHECK_EQUAL(status_of(transfer).units_done, PAGES - 200);
    spf_transfer_release(transfer);
    arrives_whole(&pair, 1);
    part(&pair);
}

static void a_write_that_arrived_and_failed_counts_at_the_receiver_once(void)
{
    spf_engine_config config = config_for("efa", 1);
    struct pair pair = join("p5", &config);
    scripted_fate(PAGES - 1, 1, FAILED_BUT_DELIVERED, FI_EIO, 13);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, -FI_EIO);
    CHECK_EQUAL(status_of(transfer).units_done, PAGES - 1);
    WAIT_FOR(spf_slot_units(pair.to.engine, 0) == PAGES);
    arrives_whole(&pair, 1);
    CHECK_EQUAL(spf_slot_units(pair.to.engine, 0), PAGES);
    spf_transfer_release(transfer);
    part(&pair);
}

static void a_completion_is_no_proof_of_arrival(void)
{
    spf_engine_config config = config_for("tcp", 1);
    struct pair pair = join("laptop", &config);
    scripted_fate(1, 1, LOST, 0, 0);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, 0);
    CHECK_EQUAL(status_of(transfer).units_done, PAGES);
    arrives_whole(&pair, 1); /* in order: all of the first has arrived that ever will */
    CHECK(spf_slot_units(pair.to.engine, 0) < PAGES);
    spf_transfer_release(transfer);
    part(&pair);
}

static void an_error_that_belongs_to_no_write_fails_what_is_unfinished(void)
{
    spf_engine_config config = config_for("efa", 2);
    struct pair pair = join("p5", &config);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == 16);
    scripted_internal_error("rdmap80s0-rdm", FI_EIO);
    WAIT_FOR(status_of(transfer).error == -FI_EIO);
    CHECK(!quiet(transfer)); /* what was posted has yet to end */
    scripted_hold(0);
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
    arrives_whole(&pair, 1);
    part(&pair);
}

/* As the messenger repeats a transfer: as a whole, with a new generation of its slot. */
static void repeat(struct pair *pair, spf_transfer *transfer, uint32_t slot)
{
    CHECK_EQUAL(status_of(transfer).retry, 1);
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
    uint32_t generation = spf_slot_advance(pair->to.engine, slot);
    transfer = send_pages(&pair->from, pair->peer, slot, generation, PAGE, slot + 3);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, 0);
    WAIT_FOR(spf_slot_units(pair->to.engine, slot) == PAGES);
    CHECK(memcmp(pair->from.memory, pair->to.memory, pair->from.bytes) == 0);
    spf_transfer_release(transfer);
}

static void a_nic_with_an_internal_error_is_left_to_the_others(void)
{
    spf_engine_config config = config_for("efa", 4);
    struct pair pair = join("p5", &config);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == 16);
    scripted_internal_error(config.nics[1].domain, FI_EIO);
    WAIT_FOR(status_of(transfer).error == -FI_EIO);
    scripted_hold(0);
    repeat(&pair, transfer, 0);
    CHECK(stats_of(&pair.from).writes_orphaned);
    scripted_again(config.nics[1].domain, SCRIPTED_ALL); /* it is not even asked any more */
    uint64_t again = look().again;
    arrives_whole(&pair, 1);
    CHECK_EQUAL(look().again, again);
    part(&pair);
}

/* Nothing of a refused post has left: it goes over another NIC at once, and the transfer does not notice. */
static void a_post_that_a_broken_path_refuses_goes_over_another(void)
{
    spf_engine_config config = config_for("efa", 4);
    struct pair pair = join("p5", &config);
    scripted_refuse(7, -FI_ENOTCONN);
    arrives_whole(&pair, 0);
    CHECK_EQUAL(stats_of(&pair.from).paths_lost, 1);
    CHECK_EQUAL(stats_of(&pair.from).writes_failed, 0);
    part(&pair);
}

/* Whether the receiver got it or not: it may not be posted again under the same count. */
static void a_write_that_a_broken_path_lost_costs_its_transfer_which_is_repeated(void)
{
    static const enum scripted_fate fates[] = { FAILED, FAILED_BUT_DELIVERED };
    for (uint32_t slot = 0; slot < 2; slot++) {
        spf_engine_config config = config_for("efa", 4);
        struct pair pair = join("p5", &config);
        scripted_fate(9, 1, fates[slot], FI_ECONNRESET, 0);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, slot, 1, PAGE, 5);
        WAIT_FOR(status_of(transfer).error == -FI_ECONNRESET);
        repeat(&pair, transfer, slot);
        CHECK_EQUAL(stats_of(&pair.from).paths_lost, 1);
        part(&pair);
    }
}

/* Nobody is told that it takes nothing, and the other one goes on all the time. */
static void a_path_that_takes_nothing_is_not_hidden_by_one_that_works(void)
{
    enum { MOST = 60 };
    spf_engine_config config = config_for("efa", 2);
    config.stall_ns = 1000000000;
    struct pair pair = join("p5", &config);
    scripted_freeze("rdmap80s0-rdm", 1);
    spf_transfer *all[MOST], *first = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    uint32_t count = 0;
    all[count++] = first;
    while (!status_of(first).error) {
        uint64_t before = stats_of(&pair.from).nic_bytes[0];
        CHECK(count < MOST);
        all[count] = send_pages(&pair.from, pair.peer, count, 1, PAGE, 5);
        count++;
        WAIT_FOR(status_of(first).error || stats_of(&pair.from).nic_bytes[0] > before);
        usleep(40000); /* there are 64 slots */
    }
    CHECK_EQUAL(status_of(first).error, -ETIMEDOUT);
    CHECK(status_of(first).retry && !quiet(first));
    CHECK_EQUAL(stats_of(&pair.from).paths_lost, 1);
    scripted_freeze("rdmap80s0-rdm", 0);
    for (uint32_t i = 0; i < count; i++) {
        WAIT_FOR(quiet(all[i]));
        spf_transfer_release(all[i]);
    }
    uint64_t before = stats_of(&pair.from).nic_bytes[1];
    arrives_whole(&pair, MOST);
    CHECK_EQUAL(stats_of(&pair.from).nic_bytes[1], before);
    part(&pair);
}

static void an_error_of_what_was_asked_for_loses_no_path(void)
{
    spf_engine_config config = config_for("efa", 4);
    struct pair pair = join("p5", &config);
    scripted_fate(9, 1, FAILED, FI_EACCES, 0);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(status_of(transfer).error == -FI_EACCES);
    CHECK_EQUAL(status_of(transfer).retry, 0);
    CHECK_EQUAL(stats_of(&pair.from).paths_lost, 0);
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
    arrives_whole(&pair, 1);
    part(&pair);
}

static void a_late_end_of_a_write_to_a_removed_peer_changes_nothing(void)
{
    spf_engine_config config = config_for("tcp", 1);
    config.profile.segments = 1;
    struct pair pair = join("laptop", &config);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == 16);
    spf_peer_remove(pair.from.engine, pair.peer);
    WAIT_FOR(quiet(transfer));
    spf_engine_stats before = stats_of(&pair.from);
    CHECK_EQUAL(before.writes_orphaned, 16);
    spf_transfer_release(transfer);
    pair.peer = introduce(&pair.from, &pair.to, 1);
    scripted_hold(0);
    WAIT_FOR(spf_slot_units(pair.to.engine, 0) == 16);
    arrives_whole(&pair, 1);
    CHECK_EQUAL(stats_of(&pair.from).writes_failed, before.writes_failed);
    CHECK_EQUAL(stats_of(&pair.from).units_completed, PAGES);
    part(&pair);
}

static void an_engine_closes_on_top_of_writes_that_are_under_way(void)
{
    spf_engine_config config = config_for("efa-direct", 2);
    struct pair pair = join("p5", &config);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(look().on_wire == 16);
    spf_transfer_release(transfer);
    close_end(&pair.from);
    close_end(&pair.to);
    leave(pair.library);
}

static void whatever_happens_every_posted_write_ends_once(void)
{
    static const enum scripted_fate fates[] = { DELIVERED, FAILED, FAILED_BUT_DELIVERED, LOST };
    spf_engine_config config = config_for("efa", 3);
    struct pair pair = join("p5", &config);
    uint64_t seed = 42;
    for (uint32_t slot = 0; slot < 60; slot++) {
        scripted_order((enum scripted_order)(slot % 3), slot + 1);
        scripted_again(NULL, check_random(&seed) % 200);
        scripted_fate(check_random(&seed) % PAGES, check_random(&seed) % 30, fates[slot % 4], FI_EIO, 13);
        if (slot % 7 == 3)
            scripted_refuse(check_random(&seed) % PAGES, -FI_EIO);
        spf_transfer *transfer = send_pages(&pair.from, pair.peer, slot, 1, PAGE, slot + 1);
        if (slot % 5 == 4)
            spf_transfer_cancel(transfer);
        WAIT_FOR(quiet(transfer));
        CHECK(spf_slot_units(pair.to.engine, slot) <= PAGES);
        spf_transfer_release(transfer);
        scripted_refuse(0, 0);
    }
    spf_engine_stats stats = stats_of(&pair.from);
    CHECK_EQUAL(stats.writes_posted, stats.writes_completed + stats.writes_failed);
    CHECK_EQUAL(stats.writes_posted, look().posts);
    CHECK_EQUAL(look().on_wire, 0);
    part(&pair);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_storm_of_again_delays_and_loses_nothing),
        CASE(an_endless_storm_ends_with_the_deadline_of_its_transfer),
        CASE(a_nic_that_says_again_for_ever_does_not_stop_the_others),
        CASE(a_refused_post_fails_its_transfer_and_nobody_elses),
        CASE(an_error_completion_fails_its_transfer_and_nobody_elses),
        CASE(errors_in_a_row_are_all_read),
        CASE(a_write_that_arrived_and_failed_counts_at_the_receiver_once),
        CASE(a_completion_is_no_proof_of_arrival),
        CASE(an_error_that_belongs_to_no_write_fails_what_is_unfinished),
        CASE(a_nic_with_an_internal_error_is_left_to_the_others),
        CASE(a_post_that_a_broken_path_refuses_goes_over_another),
        CASE(a_write_that_a_broken_path_lost_costs_its_transfer_which_is_repeated),
        CASE(a_path_that_takes_nothing_is_not_hidden_by_one_that_works),
        CASE(an_error_of_what_was_asked_for_loses_no_path),
        CASE(a_late_end_of_a_write_to_a_removed_peer_changes_nothing),
        CASE(an_engine_closes_on_top_of_writes_that_are_under_way),
        CASE(whatever_happens_every_posted_write_ends_once),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
