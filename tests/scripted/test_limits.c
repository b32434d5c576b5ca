/* The limits that a provider names are kept, and so are our own. "odd" is no device, but has the smallest
 * of everything: 8 writes, 3 local and 2 remote segments, 64 KiB, keys of one byte. */
#include "ends.h"

static struct scripted_seen carry(const char *machine, const spf_engine_config *config, uint64_t page_bytes,
                                  uint64_t seed)
{
    spf_library *library = enter(machine);
    struct end from = open_end(library, config, 256 * page_bytes);
    struct end to = open_end(library, config, 256 * page_bytes);
    spf_peer *peer = introduce(&from, &to, 1);
    fill(&from, 5);
    spf_transfer *transfer = send_pages(&from, peer, 0, 1, page_bytes, seed);
    WAIT_FOR(spf_slot_units(to.engine, 0) == 256);
    CHECK(memcmp(from.memory, to.memory, from.bytes) == 0);
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
    spf_peer_remove(from.engine, peer);
    close_end(&from);
    close_end(&to);
    struct scripted_seen seen = look();
    leave(library);
    return seen;
}

/* Several peers: one alone never gets more than half of the window. */
static void the_send_queue_is_never_asked_for_more_than_it_has(void)
{
    enum { PEERS = 4 };
    spf_library *library = enter("odd");
    spf_engine_config config = config_for("odd", 1);
    config.profile.window = config.profile.peer_window = 4096;
    struct end from = open_end(library, &config, 256 * PAGE), to[PEERS];
    spf_peer *peer[PEERS];
    spf_transfer *transfer[PEERS];
    scripted_hold(1);
    for (uint32_t i = 0; i < PEERS; i++) {
        to[i] = open_end(library, &config, 256 * PAGE);
        peer[i] = introduce(&from, &to[i], 1);
        transfer[i] = send_pages(&from, peer[i], 0, 1, PAGE, 3 + i);
    }
    WAIT_FOR(look().most_in_queue == 8);
    scripted_hold(0);
    for (uint32_t i = 0; i < PEERS; i++) {
        WAIT_FOR(spf_slot_units(to[i].engine, 0) == 256 && quiet(transfer[i]));
        spf_transfer_release(transfer[i]);
        spf_peer_remove(from.engine, peer[i]);
        close_end(&to[i]);
    }
    CHECK_EQUAL(look().most_in_queue, 8);
    CHECK_EQUAL(look().again, 0);
    close_end(&from);
    leave(library);
}

static void a_write_has_no_more_segments_than_either_side_allows(void)
{
    spf_engine_config config = config_for("odd", 1);
    CHECK_EQUAL(carry("odd", &config, 512, 3).most_segments, 2);
    config = config_for("tcp", 1);
    CHECK_EQUAL(carry("laptop", &config, 512, 3).most_segments, 4);
    config.profile.segments = 3;
    CHECK_EQUAL(carry("laptop", &config, 512, 3).most_segments, 3);
    config = config_for("efa", 1);
    config.profile.segments = 4;
    CHECK_EQUAL(carry("p5", &config, 512, 3).most_segments, 1);
}

static void a_write_has_no_more_bytes_than_the_provider_allows(void)
{
    spf_engine_config config = config_for("odd", 1);
    CHECK_EQUAL(carry("odd", &config, PAGE, 0).most_bytes, 64 << 10); /* one long run */
    config = config_for("efa", 1);
    CHECK_EQUAL(carry("p5", &config, PAGE, 0).most_bytes, 1 << 20);
    config.profile.write_bytes = 3 * PAGE;
    CHECK_EQUAL(carry("p5", &config, PAGE, 0).most_bytes, 3 * PAGE);
}

/* Whatever is stuck, as much room as one peer has is left for the next: 16 of 32, then 8, then 4. */
static void peers_that_are_stuck_leave_room_for_the_next(void)
{
    enum { STUCK = 3 };
    static const uint64_t on_wire[] = { 16, 24, 28 };
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    struct end from = open_end(library, &config, 64 * PAGE), to[STUCK];
    spf_peer *peer[STUCK];
    spf_transfer *stuck[STUCK];
    scripted_hold(1);
    for (uint32_t i = 0; i < STUCK; i++) {
        to[i] = open_end(library, &config, 64 * PAGE);
        peer[i] = introduce(&from, &to[i], 1);
        stuck[i] = send_pages(&from, peer[i], i, 1, PAGE, 7);
        WAIT_FOR(look().on_wire == on_wire[i]);
    }
    for (uint64_t ended = 0, released; (released = scripted_release(4)); ended += released)
        WAIT_FOR(stats_of(&from).writes_completed == ended + released &&
                 look().on_wire == stats_of(&from).writes_posted - ended - released);
    for (uint32_t i = 0; i < STUCK; i++) {
        WAIT_FOR((scripted_release(SCRIPTED_ALL), quiet(stuck[i])));
        WAIT_FOR(spf_slot_units(to[i].engine, i) == 64);
    }
    CHECK(look().most_in_queue < 32);
    for (uint32_t i = 0; i < STUCK; i++) {
        spf_transfer_release(stuck[i]);
        spf_peer_remove(from.engine, peer[i]);
        close_end(&to[i]);
    }
    close_end(&from);
    leave(library);
}

/* A queue of 256, of which 32 are for own writes, and 16 in flight from each: 14 may write at once. */
static void as_many_writers_as_fit_the_queue_do_not_overrun_a_receiver_that_pauses(void)
{
    enum { WRITERS = 14 };
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    struct end from[WRITERS], to = open_end(library, &config, 64 * PAGE);
    spf_peer *peer[WRITERS];
    spf_transfer *transfer[WRITERS];
    CHECK_EQUAL((config.profile.queue_entries - config.profile.window) / config.profile.peer_window, WRITERS);
    scripted_hold(1);
    for (uint32_t i = 0; i < WRITERS; i++) {
        from[i] = open_end(library, &config, 64 * PAGE);
        peer[i] = introduce(&from[i], &to, 1);
        transfer[i] = send_pages(&from[i], peer[i], i, 1, PAGE, 9);
    }
    for (uint64_t left = WRITERS * 64; left; left -= WRITERS * 16) {
        WAIT_FOR(look().on_wire == WRITERS * 16); /* all that may be in flight: it arrives at one blow */
        CHECK_EQUAL(scripted_release(WRITERS * 16), WRITERS * 16);
        uint32_t counted = 0;
        do {
            counted = 0;
            for (uint32_t i = 0; i < WRITERS; i++)
                counted += spf_slot_units(to.engine, i);
        } while (counted != WRITERS * 64 - left + WRITERS * 16 && (usleep(100), 1));
    }
    CHECK(look().most_unread <= look().queue_entries);
    for (uint32_t i = 0; i < WRITERS; i++) {
        WAIT_FOR(quiet(transfer[i]));
        spf_transfer_release(transfer[i]);
        spf_peer_remove(from[i].engine, peer[i]);
        close_end(&from[i]);
    }
    close_end(&to);
    leave(library);
}

static void a_queue_holds_at_least_the_own_writes_of_its_nic(void)
{
    spf_library *library = enter("hgx-h100-cx7");
    spf_engine_config config = config_for("verbs", 1);
    config.profile.queue_entries = 1;
    struct end end = open_end(library, &config, PAGE);
    CHECK(look().queue_entries >= 384);
    close_end(&end);
    leave(library);
}

static void keys_of_ours_are_never_taken_twice(void)
{
    spf_library *library = enter("odd");
    spf_engine_config config = config_for("odd", 2);
    struct end end = open_end(library, &config, 64 * PAGE);
    uint8_t taken[2][256] = { { 0 } };
    for (uint32_t nic = 0; nic < 2; nic++)
        taken[nic][end.region.keys[nic]] = 1;
    for (uint32_t i = 0; i < 40; i++) { /* random bytes: they do collide */
        spf_region_info region;
        CHECK_EQUAL(register_host(end.engine, end.memory, (i + 1) * PAGE, &region, NULL), 0);
        CHECK_EQUAL(region.base, 0);
        for (uint32_t nic = 0; nic < 2; nic++) {
            CHECK(region.keys[nic] < 256 && !taken[nic][region.keys[nic]]);
            taken[nic][region.keys[nic]] = 1;
        }
    }
    close_end(&end);
    leave(library);
}

static void keys_of_the_providers_are_used_as_they_are(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 4);
    struct end end = open_end(library, &config, PAGE);
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < a; b++)
            CHECK(end.region.keys[a] != end.region.keys[b]);
    CHECK_EQUAL(end.region.base, (uintptr_t)end.memory);
    close_end(&end);
    leave(library);
}

static void nics_of_unequal_number_use_the_keys_of_the_nic_that_they_write_to(void)
{
    static const uint32_t counts[][2] = { { 1, 4 }, { 4, 1 }, { 3, 2 }, { 2, 3 } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        spf_library *library = enter("p5");
        spf_engine_config here = config_for("efa", counts[i][0]), there = config_for("efa", counts[i][1]);
        struct end from = open_end(library, &here, 256 * PAGE), to = open_end(library, &there, 256 * PAGE);
        spf_peer *peer = introduce(&from, &to, 1);
        fill(&from, i + 1);
        spf_transfer *transfer = send_pages(&from, peer, 0, 1, PAGE, 11);
        WAIT_FOR(spf_slot_units(to.engine, 0) == 256);
        CHECK(memcmp(from.memory, to.memory, from.bytes) == 0);
        WAIT_FOR(quiet(transfer));
        spf_transfer_release(transfer);
        spf_peer_remove(from.engine, peer);
        close_end(&from);
        close_end(&to);
        leave(library);
    }
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(the_send_queue_is_never_asked_for_more_than_it_has),
        CASE(a_write_has_no_more_segments_than_either_side_allows),
        CASE(a_write_has_no_more_bytes_than_the_provider_allows),
        CASE(peers_that_are_stuck_leave_room_for_the_next),
        CASE(as_many_writers_as_fit_the_queue_do_not_overrun_a_receiver_that_pauses),
        CASE(a_queue_holds_at_least_the_own_writes_of_its_nic),
        CASE(keys_of_ours_are_never_taken_twice),
        CASE(keys_of_the_providers_are_used_as_they_are),
        CASE(nics_of_unequal_number_use_the_keys_of_the_nic_that_they_write_to),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
