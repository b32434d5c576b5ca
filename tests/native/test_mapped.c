/* Copies into a mapped peer, under the sanitizers: sizes and alignments, both ways of copying, many at once.
 * The peer is plain memory of this process; tests/fabric/test_mapped.py maps another one's. */
#include <stdatomic.h>
#include <stdlib.h>

#include "check.h"
#include "engines.h"

#define BYTES (4u << 20)
#define SLOTS 16u

struct target {
    uint8_t *memory;
    _Atomic uint64_t words[SLOTS];
    spf_peer *peer;
};

/* offset: of the region in the memory, so that pages do not lie at multiples of anything. */
static void map(struct side *from, struct target *to, uint64_t offset)
{
    to->memory = calloc(1, BYTES + offset);
    for (uint32_t i = 0; i < SLOTS; i++)
        atomic_init(&to->words[i], (uint64_t)1 << 32);
    spf_remote_region region = { .base = (uintptr_t)to->memory + offset, .bytes = BYTES };
    CHECK_EQUAL(spf_peer_map(from->engine, (uint64_t *)to->words, SLOTS, &region, 1, &to->peer, NULL), 0);
}

static void unmap(struct side *from, struct target *to)
{
    spf_peer_remove(from->engine, to->peer);
    free(to->memory);
}

static uint32_t units(struct target *to, uint32_t slot)
{
    return (uint32_t)atomic_load_explicit(&to->words[slot], memory_order_acquire);
}

static void pages_arrive_byte_for_byte(void)
{
    static const uint64_t sizes[] = { 1, 63, 64, 500, 512, 1000, 1024, 73728, 300000 };
    static const uint64_t offsets[] = { 0, 16, 17 };
    for (uint32_t o = 0; o < sizeof offsets / sizeof *offsets; o++) {
        struct side from = open_side(BYTES);
        struct target to;
        map(&from, &to, offsets[o]);
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            from.bytes = sizes[i] < 100000 ? sizes[i] * 50 : BYTES;
            fill(&from, i + 1);
            spf_transfer *transfer = send_all(&from, to.peer, i, 1, sizes[i]);
            uint64_t pages = from.bytes / sizes[i];
            WAIT_FOR(units(&to, i) == pages);
            CHECK(memcmp(from.memory, to.memory + offsets[o], pages * sizes[i]) == 0);
            WAIT_FOR(quiet(transfer));
            CHECK_EQUAL(status_of(transfer).error, 0);
            CHECK_EQUAL(status_of(transfer).bytes_done, pages * sizes[i]);
            spf_transfer_release(transfer);
        }
        unmap(&from, &to);
        close_side(&from);
    }
}

static void more_units_than_an_immediate_holds_are_all_counted(void)
{
    struct side from = open_side(BYTES);
    struct target to;
    map(&from, &to, 0);
    spf_transfer *transfer = send_all(&from, to.peer, 0, 1, 4);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(units(&to, 0), BYTES / 4);
    CHECK_EQUAL(status_of(transfer).units_done, BYTES / 4);
    spf_transfer_release(transfer);
    unmap(&from, &to);
    close_side(&from);
}

static void many_at_once_end_and_one_that_is_cancelled_too(void)
{
    struct side from = open_side(BYTES);
    struct target to;
    map(&from, &to, 0);
    fill(&from, 1);
    spf_transfer *transfers[SLOTS];
    for (uint32_t i = 0; i < SLOTS; i++)
        transfers[i] = send_all(&from, to.peer, i, 1, 1000);
    spf_transfer_cancel(transfers[0]);
    for (uint32_t i = 1; i < SLOTS; i++)
        WAIT_FOR(units(&to, i) == BYTES / 1000);
    for (uint32_t i = 0; i < SLOTS; i++) {
        WAIT_FOR(quiet(transfers[i]));
        CHECK_EQUAL(units(&to, i), status_of(transfers[i]).units_done);
        spf_transfer_release(transfers[i]);
    }
    CHECK(memcmp(from.memory, to.memory, BYTES / 1000 * 1000) == 0);
    unmap(&from, &to);
    close_side(&from);
}

static void a_removed_peer_is_left_alone(void)
{
    struct side from = open_side(BYTES);
    struct target to;
    map(&from, &to, 0);
    spf_transfer *transfer = send_all(&from, to.peer, 0, 1, 64);
    unmap(&from, &to); /* a copy into it from here on is a use after free */
    WAIT_FOR(quiet(transfer));
    spf_transfer_release(transfer);
    close_side(&from);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(pages_arrive_byte_for_byte),
        CASE(more_units_than_an_immediate_holds_are_all_counted),
        CASE(many_at_once_end_and_one_that_is_cancelled_too),
        CASE(a_removed_peer_is_left_alone),
    };
    return run_over_providers(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
