/* Writes to the dead, which never end: what becomes of them, of their endpoint and of everybody else. */
#include "pairs.h"

static void writes_that_never_end_are_let_go_when_their_peer_is(void)
{
    spf_engine_config config = config_for("shm", 1);
    config.stall_ns = 1000000000;
    struct pair pair = join("laptop", &config);
    scripted_fate(0, 3, SWALLOWED, 0, 0);
    spf_transfer *transfer = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(status_of(transfer).error == -ETIMEDOUT);
    CHECK(!quiet(transfer)); /* its source pages may still be read */
    struct end other = open_end(pair.library, &config, PAGES * PAGE);
    spf_peer *peer = introduce(&pair.from, &other, 1);
    spf_peer_remove(pair.from.engine, pair.peer);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(stats_of(&pair.from).writes_orphaned, 3);
    spf_transfer_release(transfer);
    struct end old = pair.to;
    pair.to = other;
    pair.peer = peer;
    arrives_whole(&pair, 1);
    close_end(&old);
    part(&pair);
}

/* The queue has 1024 places, and each of the dead keeps fifteen. What others are waiting for is not lost with them. */
static void endpoints_that_hold_writes_to_the_dead_are_opened_anew_when_they_are_idle(void)
{
    enum { DEATHS = 70, LEFT = 15 };
    spf_engine_config config = config_for("shm", 2);
    config.profile.renew = 1;
    struct pair pair = join("laptop", &config);
    for (uint32_t i = 0; i < DEATHS; i++) {
        scripted_fate(0, LEFT, SWALLOWED, 0, 0);
        uint64_t before = stats_of(&pair.from).writes_posted;
        spf_transfer *lost = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
        WAIT_FOR(stats_of(&pair.from).writes_posted >= before + LEFT);
        spf_peer *dead = pair.peer;
        pair.peer = introduce(&pair.from, &pair.to, 1);
        spf_peer_remove(pair.from.engine, dead);
        WAIT_FOR(quiet(lost));
        spf_transfer_release(lost);
    }
    WAIT_FOR(stats_of(&pair.from).endpoints_renewed >= DEATHS);
    CHECK(stats_of(&pair.from).writes_orphaned >= LEFT * DEATHS);
    arrives_whole(&pair, 1);
    part(&pair);
}

/* As in a process that is short of file descriptors for a while. What was added meanwhile is not lost, and what was
 * removed needs no address. */
static void an_endpoint_that_cannot_be_opened_anew_is_tried_again(void)
{
    for (uint32_t count = 1; count <= 2; count++) {
        spf_engine_config config = config_for("shm", count);
        config.profile.renew = 1;
        struct pair pair = join("laptop", &config);
        scripted_fate(0, 3, SWALLOWED, 0, 0);
        spf_transfer *lost = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
        WAIT_FOR(stats_of(&pair.from).writes_completed == PAGES / 4 - 3); /* the rest is swallowed */
        spf_peer *other = introduce(&pair.from, &pair.to, 1);
        scripted_refuse_endpoints(SCRIPTED_ALL, -EMFILE);
        spf_peer_remove(pair.from.engine, pair.peer);
        WAIT_FOR(quiet(lost) && scripted_refused_endpoints() >= 3);
        spf_transfer_release(lost);
        pair.peer = introduce(&pair.from, &pair.to, 1);
        spf_peer_remove(pair.from.engine, other);
        CHECK_EQUAL(spf_nics_removed(pair.from.engine), 0);
        scripted_refuse_endpoints(0, 0);
        WAIT_FOR(stats_of(&pair.from).endpoints_renewed == count);
        arrives_whole(&pair, 1);
        for (uint32_t i = 0; i < count; i++)
            CHECK(stats_of(&pair.from).nic_bytes[i]);
        part(&pair);
    }
}

/* Its address is known to others: it keeps it. */
static void an_endpoint_that_was_written_to_is_not_opened_anew(void)
{
    spf_engine_config config = config_for("shm", 1);
    config.profile.renew = 1;
    struct pair pair = join("laptop", &config);
    spf_peer *back = introduce(&pair.to, &pair.from, 1);
    spf_transfer *here = send_pages(&pair.to, back, 5, 1, PAGE, 5);
    WAIT_FOR(spf_slot_units(pair.from.engine, 5) == PAGES && quiet(here));
    spf_transfer_release(here);
    scripted_fate(0, 3, SWALLOWED, 0, 0);
    spf_transfer *lost = send_pages(&pair.from, pair.peer, 0, 1, PAGE, 5);
    WAIT_FOR(stats_of(&pair.from).writes_completed == PAGES / 4 - 3); /* the rest is swallowed */
    spf_peer_remove(pair.from.engine, pair.peer);
    WAIT_FOR(quiet(lost));
    spf_transfer_release(lost);
    pair.peer = introduce(&pair.from, &pair.to, 1);
    fill(&pair.from, 1);
    arrives_whole(&pair, 1);
    CHECK_EQUAL(stats_of(&pair.from).endpoints_renewed, 0);
    spf_peer_remove(pair.to.engine, back);
    part(&pair);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(writes_that_never_end_are_let_go_when_their_peer_is),
        CASE(endpoints_that_hold_writes_to_the_dead_are_opened_anew_when_they_are_idle),
        CASE(an_endpoint_that_cannot_be_opened_anew_is_tried_again),
        CASE(an_endpoint_that_was_written_to_is_not_opened_anew),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
