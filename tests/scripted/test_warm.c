/* First contact: connections are made before pages need them, and both sides know each other. */
#include <rdma/fi_errno.h>

#include "ends.h"

#define PAGES 64u

static spf_engine_config warm_config(const char *profile, uint32_t nics)
{
    spf_engine_config config = config_for(profile, nics);
    config.profile.warm_up = 1;
    return config;
}

static void deliver(struct end *from, struct end *to, spf_peer *peer, uint32_t slot)
{
    fill(from, slot + 1);
    spf_transfer *transfer = send_pages(from, peer, slot, 1, PAGE, 5);
    WAIT_FOR(spf_slot_units(to->engine, slot) == PAGES);
    CHECK(memcmp(from->memory, to->memory, from->bytes) == 0);
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
}

static void each_nic_writes_nothing_once_to_a_new_peer(void)
{
    static const char *const machines[][2] = { { "p5", "efa" }, { "hgx-h100-cx7", "verbs" }, { "laptop", "tcp" } };
    for (size_t i = 0; i < 3; i++) {
        spf_library *library = enter(machines[i][0]);
        spf_engine_config config = warm_config(machines[i][1], 2);
        struct end from = open_end(library, &config, PAGES * PAGE), to = open_end(library, &config, PAGES * PAGE);
        scripted_again(NULL, 100); /* it connects */
        spf_peer *peer = introduce(&from, &to, 1);
        WAIT_FOR(look().empty_posts == 2 && look().on_wire == 0);
        CHECK_EQUAL(stats_of(&from).writes_posted, 0);
        deliver(&from, &to, peer, 0);
        CHECK_EQUAL(look().empty_posts, 2);
        CHECK_EQUAL(stats_of(&to).immediates_unknown + stats_of(&to).immediates_late, 0);
        WAIT_FOR(stats_of(&to).units_counted == PAGES);
        spf_peer_remove(from.engine, peer);
        close_end(&from);
        close_end(&to);
        leave(library);
    }
}

static void a_peer_of_which_only_the_address_is_known_is_left_alone(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = warm_config("efa", 1);
    struct end from = open_end(library, &config, PAGES * PAGE), to = open_end(library, &config, PAGES * PAGE);
    spf_peer *back = introduce(&to, &from, 0), *peer = introduce(&from, &to, 1);
    deliver(&from, &to, peer, 0);
    CHECK_EQUAL(look().empty_posts, 1);
    spf_peer_remove(from.engine, peer);
    spf_peer_remove(to.engine, back);
    close_end(&from);
    close_end(&to);
    leave(library);
}

static void a_peer_that_cannot_be_reached_can_be_removed(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = warm_config("efa", 2);
    struct end from = open_end(library, &config, PAGES * PAGE), to = open_end(library, &config, PAGES * PAGE);
    scripted_again(NULL, SCRIPTED_ALL);
    spf_peer *dead = introduce(&from, &to, 1);
    WAIT_FOR(look().again > 10);
    spf_peer_remove(from.engine, dead);
    scripted_again(NULL, 0);
    spf_peer *peer = introduce(&from, &to, 1);
    deliver(&from, &to, peer, 0);
    spf_peer_remove(from.engine, peer);
    close_end(&from);
    close_end(&to);
    leave(library);
}

static void a_first_contact_that_fails_is_tried_again_by_the_first_page(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = warm_config("efa", 2);
    struct end from = open_end(library, &config, PAGES * PAGE), to = open_end(library, &config, PAGES * PAGE);
    scripted_fate(0, 1, FAILED, FI_EIO, 15);
    scripted_refuse(1, -FI_EIO);
    spf_peer *peer = introduce(&from, &to, 1);
    WAIT_FOR(look().posts == 1 && look().on_wire == 0);
    deliver(&from, &to, peer, 0);
    CHECK_EQUAL(stats_of(&from).writes_failed, 0);
    spf_peer_remove(from.engine, peer);
    close_end(&from);
    close_end(&to);
    leave(library);
}

static void efa_direct_needs_the_initiator_in_the_targets_address_vector(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa-direct", 2);
    struct end from = open_end(library, &config, PAGES * PAGE), to = open_end(library, &config, PAGES * PAGE);
    spf_peer *peer = introduce(&from, &to, 1);
    spf_transfer *transfer = send_pages(&from, peer, 0, 1, PAGE, 5);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, -FI_EIO);
    CHECK_EQUAL(spf_slot_units(to.engine, 0), 0);
    spf_transfer_release(transfer);
    spf_peer *back = introduce(&to, &from, 0);
    deliver(&from, &to, peer, 1);
    spf_peer_remove(to.engine, back);
    spf_peer_remove(from.engine, peer);
    close_end(&from);
    close_end(&to);
    leave(library);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(each_nic_writes_nothing_once_to_a_new_peer),
        CASE(a_peer_of_which_only_the_address_is_known_is_left_alone),
        CASE(a_peer_that_cannot_be_reached_can_be_removed),
        CASE(a_first_contact_that_fails_is_tried_again_by_the_first_page),
        CASE(efa_direct_needs_the_initiator_in_the_targets_address_vector),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
