/* Two engines in one process, real libfabric: opening, moving bytes, ending early. Neither engine is
 * closed while the other writes: libfabric's shm gives both the same mapping, so that is tested with two
 * processes (test_processes.c). */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "check.h"
#include "engines.h"

#define PAGE 4096u
#define SMALL (64u * PAGE)
#define LARGE (64u << 20)

static void refuse(const spf_engine_config *config, int code, const char *word)
{
    spf_engine *engine = NULL;
    spf_error err = { 0 };
    int rc = spf_engine_open(library, config, &engine, &err);
    if (!rc || !strstr(err.text, word) || engine)
        printf("%d: %s\n", rc, err.text);
    CHECK(rc < 0 && !engine && err.code == rc);
    CHECK(strstr(err.text, word));
    if (code)
        CHECK_EQUAL(rc, -code);
    CHECK_EQUAL(spf_engine_open(library, config, &engine, NULL), rc);
}

static void an_engine_that_cannot_open_says_why(void)
{
    spf_engine_config config = plain_config();
    config.profile.provider = "no-such-provider";
    refuse(&config, 0, "no-such-provider");
    config = plain_config();
    config.nics[0].domain = "no-such-domain";
    refuse(&config, 0, "no-such-domain");
    config = plain_config();
    config.nic_count = 0;
    refuse(&config, EINVAL, "0");
    config.nic_count = SPF_MAX_NICS + 1;
    refuse(&config, EINVAL, "9");
    config = plain_config();
    config.slot_count = 0;
    refuse(&config, EINVAL, "slots");
    config.slot_count = (1u << SPF_SLOT_BITS) + 1;
    refuse(&config, EINVAL, "8193");
    config = plain_config();
    if (strcmp(provider, "tcp") == 0) {
        config.nics[0].source = "192.0.2.1"; /* TEST-NET-1: nobody's */
        refuse(&config, 0, "192.0.2.1");
        config.nics[0].source = "not an address";
        refuse(&config, 0, "not an address");
        config = plain_config();
        config.nic_count = 2; /* the first opens, the second does not */
        config.nics[1].source = "192.0.2.1";
        refuse(&config, 0, "192.0.2.1");
    }
}

static void pages_arrive_byte_for_byte(void)
{
    static const uint64_t sizes[] = { 1, 7, 100, 4096, 65536, 3000000 };
    struct side from = open_side(12000000), to = open_side(12000000);
    spf_peer *peer = introduce(&from, &to);
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        from.bytes = sizes[i] * 4 < 200000 ? sizes[i] * 50 : sizes[i] * 4;
        fill(&from, i + 1);
        spf_transfer *transfer = send_all(&from, peer, i, 1, sizes[i]);
        WAIT_FOR(spf_slot_units(to.engine, i) == from.bytes / sizes[i]);
        CHECK(memcmp(from.memory, to.memory, from.bytes) == 0);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, 0);
        CHECK_EQUAL(status_of(transfer).bytes_done, from.bytes);
        spf_transfer_release(transfer);
    }
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

static void a_transfer_of_nothing_is_quiet(void)
{
    struct side from = open_side(SMALL), to = open_side(SMALL);
    spf_peer *peer = introduce(&from, &to);
    spf_transfer *transfer = NULL;
    CHECK_EQUAL(spf_transfer_open(from.engine, peer, 0, 1, 0, &transfer, NULL), 0);
    CHECK(quiet(transfer));
    CHECK_EQUAL(spf_transfer_submit(transfer, NULL, 0, NULL, NULL, 0, 0, NULL), 0);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, 0);
    CHECK_EQUAL(status_of(transfer).writes_done, 0);
    spf_transfer_release(transfer);
    spf_transfer_open(from.engine, peer, 0, 1, 0, &transfer, NULL);
    spf_transfer_release(transfer); /* never submitted */
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

static void bad_slots_generations_and_peers_are_refused(void)
{
    struct side from = open_side(SMALL), to = open_side(SMALL);
    spf_peer *peer = introduce(&from, &to), *none = NULL;
    spf_transfer *transfer = NULL;
    CHECK_EQUAL(spf_transfer_open(from.engine, peer, 1u << SPF_SLOT_BITS, 1, 0, &transfer, NULL), -EINVAL);
    CHECK_EQUAL(spf_transfer_open(from.engine, peer, 0, 0, 0, &transfer, NULL), -EINVAL);
    CHECK_EQUAL(spf_transfer_open(from.engine, peer, 0, 128, 0, &transfer, NULL), -EINVAL);
    uint8_t address[SPF_ADDRESS_BYTES] = { 0 };
    CHECK_EQUAL(spf_peer_add(from.engine, address, 0, NULL, 0, 0, &none, NULL), -EINVAL);
    CHECK_EQUAL(spf_peer_add(from.engine, address, SPF_MAX_NICS + 1, NULL, 0, 0, &none, NULL), -EINVAL);
    CHECK_EQUAL(spf_peer_add(from.engine, address, 1, NULL, SPF_MAX_REGIONS + 1, 0, &none, NULL), -EINVAL);
    spf_remote_region wrapping = { .base = UINT64_MAX - 10, .bytes = 100 };
    CHECK_EQUAL(spf_peer_add(from.engine, address, 1, &wrapping, 1, 0, &none, NULL), -EINVAL);
    spf_region_info region;
    CHECK_EQUAL(register_host(from.engine, NULL, 10, &region, NULL), -EINVAL);
    CHECK_EQUAL(register_host(from.engine, from.memory, 0, &region, NULL), -EINVAL);
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

/* Whatever a peer sends as its address, we refuse it or fail its transfers, and go on. */
static void a_garbage_address_harms_nobody(void)
{
    spf_engine_config config = plain_config();
    config.stall_ns = 300000000u;
    struct side from = open_configured_side(SMALL, &config), to = open_side(SMALL);
    uint64_t seed = 99;
    for (int round = 0; round < 6; round++) {
        uint8_t *address = malloc(SPF_ADDRESS_BYTES); /* on the heap: a sanitizer sees who reads past it */
        spf_nic_info good;
        spf_engine_nic(to.engine, 0, &good);
        for (int i = 0; i < SPF_ADDRESS_BYTES; i++)
            address[i] = round == 0 ? 0 : round == 1 ? 0xFF : (uint8_t)(1 + check_random(&seed) % 255);
        if (round >= 4)
            memcpy(address, good.address, round == 4 ? 2 : good.address_bytes / 2);
        spf_remote_region remote = { .bytes = SMALL };
        spf_peer *peer = NULL;
        if (spf_peer_add(from.engine, address, 1, &remote, 1, 0, &peer, NULL) == 0) {
            spf_transfer *transfer = send_all(&from, peer, 0, 1, PAGE);
            WAIT_FOR(status_of(transfer).error || quiet(transfer));
            spf_peer_remove(from.engine, peer);
            WAIT_FOR(quiet(transfer));
            spf_transfer_release(transfer);
        }
        free(address);
    }
    spf_peer *peer = introduce(&from, &to);
    spf_transfer *transfer = send_all(&from, peer, 1, 1, PAGE);
    WAIT_FOR(spf_slot_units(to.engine, 1) == SMALL / PAGE);
    spf_transfer_release(transfer);
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

static void a_cancelled_transfer_becomes_quiet_and_the_next_one_works(void)
{
    struct side from = open_side(LARGE), to = open_side(LARGE);
    spf_peer *peer = introduce(&from, &to);
    for (int round = 0; round < 5; round++) {
        spf_transfer *transfer = send_all(&from, peer, 0, spf_slot_generation(to.engine, 0), 256 * PAGE);
        if (round)
            WAIT_FOR(status_of(transfer).units_done >= (uint64_t)round * 4);
        spf_transfer_cancel(transfer);
        WAIT_FOR(quiet(transfer));
        spf_transfer_status seen = status_of(transfer);
        CHECK(seen.units_done <= LARGE / (256 * PAGE));
        spf_transfer_release(transfer);
        spf_slot_advance(to.engine, 0);
    }
    fill(&from, 7);
    spf_transfer *transfer = send_all(&from, peer, 1, 1, 256 * PAGE);
    WAIT_FOR(spf_slot_units(to.engine, 1) == LARGE / (256 * PAGE));
    CHECK(memcmp(from.memory, to.memory, LARGE) == 0);
    spf_transfer_release(transfer);
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

static void a_removed_peer_fails_its_transfers_and_leaves_them_quiet(void)
{
    struct side from = open_side(LARGE), to = open_side(LARGE);
    for (int round = 0; round < 4; round++) {
        spf_peer *peer = introduce(&from, &to);
        spf_transfer *kept = send_all(&from, peer, 0, 1, 256 * PAGE);
        spf_transfer *let_go = send_all(&from, peer, 1, 1, 256 * PAGE);
        spf_transfer_release(let_go);
        if (round)
            WAIT_FOR(status_of(kept).units_done >= (uint64_t)round);
        spf_peer_remove(from.engine, peer);
        WAIT_FOR(quiet(kept));
        spf_transfer_status seen = status_of(kept);
        CHECK(seen.error || seen.units_done == LARGE / (256 * PAGE));
        spf_transfer_release(kept);
    }
    spf_peer *peer = introduce(&from, &to);
    spf_transfer *transfer = send_all(&from, peer, 2, 1, 256 * PAGE);
    WAIT_FOR(spf_slot_units(to.engine, 2) == LARGE / (256 * PAGE));
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(status_of(transfer).error, 0);
    spf_transfer_release(transfer);
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

static void submitting_to_a_removed_peer_fails(void)
{
    struct side from = open_side(SMALL), to = open_side(SMALL);
    spf_peer *peer = introduce(&from, &to);
    spf_transfer *transfer = NULL;
    spf_copy copy = { .bytes = PAGE };
    uint32_t page = 0;
    CHECK_EQUAL(spf_transfer_open(from.engine, peer, 0, 1, 0, &transfer, NULL), 0);
    spf_peer_remove(from.engine, peer);
    CHECK_EQUAL(spf_transfer_submit(transfer, &copy, 1, &page, &page, 1, 0, NULL), 0);
    WAIT_FOR(quiet(transfer));
    CHECK(status_of(transfer).error < 0);
    CHECK_EQUAL(status_of(transfer).writes_done, 0);
    spf_transfer_release(transfer);
    close_side(&from);
    close_side(&to);
}

static void a_peer_added_twice_survives_the_removal_of_one(void)
{
    struct side from = open_side(SMALL), to = open_side(SMALL);
    for (uint32_t slot = 0; slot < 4; slot += 2) {
        spf_peer *peers[2] = { introduce(&from, &to), introduce(&from, &to) };
        spf_peer *removed = peers[slot / 2], *kept = peers[1 - slot / 2];
        spf_transfer *transfer = send_all(&from, kept, slot, 1, PAGE);
        WAIT_FOR(spf_slot_units(to.engine, slot) == SMALL / PAGE);
        spf_transfer_release(transfer);
        spf_peer_remove(from.engine, removed);
        fill(&from, slot + 1);
        transfer = send_all(&from, kept, slot + 1, 1, PAGE);
        WAIT_FOR(spf_slot_units(to.engine, slot + 1) == SMALL / PAGE);
        CHECK(memcmp(from.memory, to.memory, SMALL) == 0);
        spf_transfer_release(transfer);
        spf_peer_remove(from.engine, kept);
    }
    close_side(&from);
    close_side(&to);
}

static void a_released_transfer_still_delivers(void)
{
    struct side from = open_side(SMALL), to = open_side(SMALL);
    fill(&from, 11);
    spf_peer *peer = introduce(&from, &to);
    for (uint32_t slot = 0; slot < 64; slot++)
        spf_transfer_release(send_all(&from, peer, slot, 1, PAGE));
    for (uint32_t slot = 0; slot < 64; slot++)
        WAIT_FOR(spf_slot_units(to.engine, slot) == SMALL / PAGE);
    CHECK(memcmp(from.memory, to.memory, SMALL) == 0);
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

#define SENDERS 4
#define ROUNDS 40

struct sender {
    struct side *from, *to;
    spf_peer *peer;
    uint32_t slot;
};

static void *send_again_and_again(void *argument)
{
    struct sender *me = argument;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t generation = spf_slot_generation(me->to->engine, me->slot);
        spf_transfer *transfer = send_all(me->from, me->peer, me->slot, generation, PAGE);
        int cancelled = round % 5 == 4;
        if (cancelled)
            spf_transfer_cancel(transfer);
        else
            WAIT_FOR(spf_slot_units(me->to->engine, me->slot) == SMALL / PAGE);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, 0);
        CHECK(cancelled || status_of(transfer).units_done == SMALL / PAGE);
        spf_transfer_release(transfer);
        spf_slot_advance(me->to->engine, me->slot);
    }
    return NULL;
}

static void many_threads_share_an_engine(void)
{
    struct side from = open_side(SMALL), to = open_side(SMALL);
    spf_peer *peer = introduce(&from, &to);
    struct sender senders[SENDERS];
    pthread_t threads[SENDERS];
    for (uint32_t i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){ &from, &to, peer, i };
        pthread_create(&threads[i], NULL, send_again_and_again, &senders[i]);
    }
    for (int i = 0; i < 20; i++) { /* calls for the I/O thread in between */
        spf_peer *other = introduce(&from, &to);
        spf_region_info region;
        CHECK_EQUAL(register_host(from.engine, from.memory, SMALL, &region, NULL), 0);
        spf_peer_remove(from.engine, other);
    }
    for (int i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(an_engine_that_cannot_open_says_why),
        CASE(pages_arrive_byte_for_byte),
        CASE(a_transfer_of_nothing_is_quiet),
        CASE(bad_slots_generations_and_peers_are_refused),
        CASE(a_garbage_address_harms_nobody),
        CASE(a_cancelled_transfer_becomes_quiet_and_the_next_one_works),
        CASE(a_removed_peer_fails_its_transfers_and_leaves_them_quiet),
        CASE(submitting_to_a_removed_peer_fails),
        CASE(a_peer_added_twice_survives_the_removal_of_one),
        CASE(a_released_transfer_still_delivers),
        CASE(many_threads_share_an_engine),
    };
    return run_over_providers(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
