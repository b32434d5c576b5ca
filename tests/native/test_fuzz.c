/* Random arguments, sensible and absurd, against plain models, with the same seed everywhere: plans through a whole
 * engine, slots, and the lives of transfers and peers. The sanitizers see what the models do not. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "check.h"
#include "engines.h"
#include "slots.h"

#define REGIONS 2u
#define BYTES 20000u /* not of a page: what goes too far leaves its allocation */
#define SLOTS 16u
#define MAX_COPIES 6u
#define MAX_PAGES 24u

__extension__ typedef unsigned __int128 wide;

static uint64_t seed;

static uint64_t below(uint64_t limit)
{
    return check_random(&seed) % limit;
}

/* The sender's memory and a peer's that is mapped, each in regions with an allocation of their own. */
struct world {
    struct side from;
    uint8_t *source[REGIONS], *target[REGIONS], *want[REGIONS];
    _Atomic uint64_t words[SLOTS];
    spf_peer *peer;
};

static void open_world(struct world *world)
{
    spf_remote_region remote[REGIONS];
    spf_region_info region;
    *world = (struct world){ .from = open_side(64) };
    for (uint32_t i = 0; i < REGIONS; i++) {
        world->source[i] = malloc(BYTES);
        world->target[i] = calloc(1, BYTES);
        world->want[i] = calloc(1, BYTES);
        for (uint32_t b = 0; b < BYTES; b++)
            world->source[i][b] = (uint8_t)below(256);
        CHECK_EQUAL(register_host(world->from.engine, world->source[i], BYTES, &region, NULL), 0);
        CHECK_EQUAL(region.region, i + 1); /* region 0 is the side's own */
        remote[i] = (spf_remote_region){ .base = (uintptr_t)world->target[i], .bytes = BYTES };
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        atomic_init(&world->words[i], (uint64_t)1 << 32);
    CHECK_EQUAL(spf_peer_map(world->from.engine, (uint64_t *)world->words, SLOTS, remote, REGIONS, &world->peer, NULL),
                0);
}

static void close_world(struct world *world)
{
    spf_peer_remove(world->from.engine, world->peer);
    spf_engine_close(world->from.engine, 0);
    free(world->from.memory);
    for (uint32_t i = 0; i < REGIONS; i++) {
        free(world->source[i]);
        free(world->target[i]);
        free(world->want[i]);
    }
}

/* Small, at an end, or such that sums and products wrap. */
static uint64_t number(uint64_t usual)
{
    static const uint64_t absurd[] = { 0, 1, BYTES - 1, BYTES, BYTES + 1, UINT32_MAX, (uint64_t)1 << 32, INT64_MAX,
                                       (uint64_t)1 << 63, UINT64_MAX - 1, UINT64_MAX };
    return below(40) ? below(usual) : absurd[below(sizeof absurd / sizeof *absurd)];
}

struct submission {
    spf_copy copies[MAX_COPIES];
    uint32_t src[MAX_PAGES], dst[MAX_PAGES];
    uint32_t copy_count, page_count;
    uint64_t forward;
};

static void draw(struct submission *plan, uint64_t forward)
{
    plan->copy_count = (uint32_t)below(MAX_COPIES + 1);
    plan->page_count = (uint32_t)below(MAX_PAGES + 1);
    plan->forward = below(3) ? 0 : below(20) ? forward : number(1);
    for (uint32_t i = 0; i < plan->copy_count; i++) {
        uint64_t bytes = number(300);
        uint32_t after = i && below(30) ? plan->copies[i - 1].after + (uint32_t)below(3) : (uint32_t)number(4);
        plan->copies[i] = (spf_copy){
            .src_region = below(60) ? 1 + (uint32_t)below(REGIONS) : (uint32_t)number(5),
            .dst_region = below(60) ? (uint32_t)below(REGIONS) : (uint32_t)number(5),
            .src_offset = number(4000),
            .dst_offset = number(4000),
            .src_stride = below(3) ? bytes : number(300),
            .dst_stride = below(3) ? bytes : number(300),
            .bytes = bytes,
            .after = after,
        };
    }
    for (uint32_t i = 0; i < plan->page_count; i++) {
        int joined = i && below(4);
        plan->src[i] = joined ? plan->src[i - 1] + 1 : (uint32_t)number(40);
        plan->dst[i] = joined ? plan->dst[i - 1] + 1 : (uint32_t)number(40);
    }
}

static int fits(uint64_t offset, uint64_t stride, uint32_t page, uint64_t bytes, uint64_t limit)
{
    return (wide)offset + (wide)stride * page + bytes <= limit;
}

static int is_sound(const struct submission *plan)
{
    for (uint32_t i = 0; i < plan->copy_count; i++) {
        const spf_copy *copy = &plan->copies[i];
        if (plan->forward &&
            (plan->forward >> 48 || copy->after > 65535 || (i && copy->after < plan->copies[i - 1].after)))
            return 0;
        for (uint32_t p = 0; p < plan->page_count; p++)
            if (copy->bytes == 0 || copy->src_region > REGIONS || copy->dst_region >= REGIONS ||
                !fits(copy->src_offset, copy->src_stride, plan->src[p], copy->bytes, copy->src_region ? BYTES : 64) ||
                !fits(copy->dst_offset, copy->dst_stride, plan->dst[p], copy->bytes, BYTES))
                return 0;
    }
    return !(plan->forward >> 48);
}

static void apply(struct world *world, const struct submission *plan)
{
    for (uint32_t i = 0; plan->page_count && i < plan->copy_count; i++) { /* without pages it may mean any region */
        const spf_copy *copy = &plan->copies[i];
        const uint8_t *source = copy->src_region ? world->source[copy->src_region - 1] : world->from.memory;
        for (uint32_t p = 0; p < plan->page_count; p++)
            memcpy(world->want[copy->dst_region] + copy->dst_offset + copy->dst_stride * plan->dst[p],
                   source + copy->src_offset + copy->src_stride * plan->src[p], copy->bytes);
    }
}

static void a_plan_is_refused_or_does_exactly_what_it_says(void)
{
    struct world world;
    open_world(&world);
    spf_transfer *transfer = NULL;
    CHECK_EQUAL(spf_transfer_open(world.from.engine, world.peer, 3, 1, 0, &transfer, NULL), 0);
    uint32_t accepted = 0, refused = 0, units = 0;
    for (uint64_t round = 1; round <= 6000; round++) {
        struct submission plan;
        draw(&plan, round);
        spf_error err = { 0 };
        int rc = spf_transfer_submit(transfer, plan.copies, plan.copy_count, plan.src, plan.dst, plan.page_count,
                                     plan.forward, &err);
        CHECK_EQUAL(rc == 0, is_sound(&plan));
        refused += rc != 0;
        if (rc) {
            CHECK(rc == err.code && err.text[0]);
            continue;
        }
        accepted++;
        apply(&world, &plan);
        units += plan.copy_count * plan.page_count;
        spf_progress_store(world.from.engine, (plan.forward ? plan.forward : round) << SPF_STEP_BITS | 65535);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(atomic_load(&world.words[3]), (uint64_t)1 << 32 | units);
        for (uint32_t i = 0; i < REGIONS; i++)
            CHECK(memcmp(world.target[i], world.want[i], BYTES) == 0);
    }
    CHECK(accepted > 1000 && refused > 1000);
    CHECK_EQUAL(status_of(transfer).error, 0);
    CHECK_EQUAL(status_of(transfer).units_done, units);
    spf_transfer_release(transfer);
    close_world(&world);
}

static void what_waits_for_a_step_goes_with_it_and_not_before(void)
{
    struct world world;
    open_world(&world);
    spf_transfer *transfer = NULL;
    CHECK_EQUAL(spf_transfer_open(world.from.engine, world.peer, 0, 1, 0, &transfer, NULL), 0);
    uint32_t units = 0;
    for (uint64_t forward = 1; forward <= 300; forward++) {
        spf_copy copies[MAX_COPIES];
        uint32_t pages[MAX_PAGES], count = 1 + (uint32_t)below(MAX_PAGES), after = 0, done = 0;
        for (uint32_t i = 0; i < count; i++)
            pages[i] = i;
        for (uint32_t i = 0; i < MAX_COPIES; i++) {
            after += (uint32_t)below(3);
            copies[i] = (spf_copy){ .src_region = 1, .src_stride = 8, .dst_stride = 8, .bytes = 8, .after = after };
        }
        CHECK_EQUAL(spf_transfer_submit(transfer, copies, MAX_COPIES, pages, pages, count, forward, NULL), 0);
        for (uint32_t steps = 0; steps <= after; steps += 1 + (uint32_t)below(3)) {
            spf_progress_store(world.from.engine, forward << SPF_STEP_BITS | steps);
            while (done < MAX_COPIES && copies[done].after <= steps)
                done++;
            WAIT_FOR((uint32_t)atomic_load(&world.words[0]) >= units + done * count);
            CHECK_EQUAL((uint32_t)atomic_load(&world.words[0]), units + done * count);
        }
        spf_progress_store(world.from.engine, (forward + 1) << SPF_STEP_BITS);
        units += MAX_COPIES * count;
        WAIT_FOR(quiet(transfer) && (uint32_t)atomic_load(&world.words[0]) == units);
    }
    spf_transfer_release(transfer);
    close_world(&world);
}

static void slots_hold_what_a_plain_model_holds(void)
{
    struct spf_slots slots;
    struct { uint32_t generation, units; } model[SLOTS];
    uint64_t counted = 0, late = 0, unknown = 0;
    CHECK_EQUAL(spf_slots_init(&slots, SLOTS, NULL), 0);
    for (uint32_t i = 0; i < SLOTS; i++)
        model[i].generation = 1, model[i].units = 0;
    for (int round = 0; round < 300000; round++) {
        uint32_t immediate = (uint32_t)(check_random(&seed) >> 32), slot = (uint32_t)below(SLOTS + 1);
        if (below(4)) /* of a slot that there is, and often of its owner */
            immediate = spf_immediate(slot, slot < SLOTS && below(3) ? model[slot].generation : (uint32_t)below(128),
                                      (uint32_t)below(SPF_MAX_UNITS + 1));
        if (slot < SLOTS && below(10) == 0) {
            model[slot].generation = model[slot].generation % SPF_MAX_GENERATION + 1;
            model[slot].units = 0;
            CHECK_EQUAL(spf_slots_advance(&slots, slot), model[slot].generation);
        }
        slot = immediate >> 19;
        uint32_t generation = immediate >> 12 & 127, units = immediate & 4095;
        if (slot >= SLOTS || !generation || !units)
            unknown++;
        else if (generation != model[slot].generation)
            late++;
        else
            model[slot].units += units, counted += units;
        spf_slots_count(&slots, immediate);
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        CHECK_EQUAL(slots.words[i], (uint64_t)model[i].generation << 32 | model[i].units);
    CHECK_EQUAL(slots.units_counted, counted);
    CHECK_EQUAL(slots.late, late);
    CHECK_EQUAL(slots.unknown, unknown);
    spf_slots_free(&slots);
}

#define PEERS 3u
#define TRANSFERS 12u
#define LIVE_BYTES (256u << 10)

/* Transfers are opened, fed, cancelled and released, peers removed and added again, in any order and at any moment.
 * Peer 0 is mapped, the others are reached over the provider. */
static void transfers_and_peers_come_and_go_in_any_order(void)
{
    struct side from = open_side(LIVE_BYTES), to = open_side(LIVE_BYTES);
    uint8_t *target = malloc(LIVE_BYTES);
    static _Atomic uint64_t words[SLOTS];
    spf_peer *peers[PEERS] = { NULL };
    struct { spf_transfer *it; uint32_t peer; int cancelled; } transfers[TRANSFERS] = { { NULL, 0, 0 } };
    spf_remote_region mapped = { .base = (uintptr_t)target, .bytes = LIVE_BYTES };
    uint32_t pages[64], ended = 0;
    fill(&from, 1);
    for (int round = 0; round < 4000; round++) {
        uint32_t p = (uint32_t)below(PEERS), t = (uint32_t)below(TRANSFERS);
        spf_transfer *it = transfers[t].it;
        if (!peers[p] && p == 0)
            CHECK_EQUAL(spf_peer_map(from.engine, (uint64_t *)words, SLOTS, &mapped, 1, &peers[p], NULL), 0);
        else if (!peers[p])
            peers[p] = introduce(&from, &to);
        if (!it) {
            CHECK_EQUAL(spf_transfer_open(from.engine, peers[p], t, 1, (uint32_t)below(1000), &it, NULL), 0);
            transfers[t].it = it, transfers[t].peer = p, transfers[t].cancelled = 0;
        }
        uint64_t bytes = 1 + below(LIVE_BYTES / 64), what = below(100);
        spf_copy copy = { .src_stride = bytes, .dst_stride = bytes, .bytes = bytes };
        for (uint32_t i = 0; i < 64; i++)
            pages[i] = (uint32_t)below(64);
        if (what < 60) {
            CHECK_EQUAL(spf_transfer_submit(it, &copy, 1, pages, pages, (uint32_t)below(65), below(3) ? 0 : 1, NULL), 0);
        } else if (what < 70) {
            spf_transfer_cancel(it);
            transfers[t].cancelled = 1;
        } else if (what < 90) {
            if (below(2) && transfers[t].cancelled)
                WAIT_FOR(quiet(it));
            spf_transfer_release(it);
            transfers[t].it = NULL;
            ended++;
        } else if (what < 92 && peers[p]) { /* its transfers fail, and may be used as before until they are released */
            spf_peer_remove(from.engine, peers[p]);
            peers[p] = NULL;
            for (uint32_t i = 0; i < TRANSFERS; i++) {
                if (!transfers[i].it || transfers[i].peer != p)
                    continue;
                WAIT_FOR(quiet(transfers[i].it)); /* a removed peer is reached by nothing */
                spf_transfer_release(transfers[i].it);
                transfers[i].it = NULL;
            }
        } else if (what < 94) {
            spf_progress_store(from.engine, (uint64_t)1 << SPF_STEP_BITS | below(2));
        }
    }
    spf_progress_store(from.engine, (uint64_t)2 << SPF_STEP_BITS);
    for (uint32_t t = 0; t < TRANSFERS; t++)
        if (transfers[t].it) {
            WAIT_FOR(quiet(transfers[t].it));
            spf_transfer_release(transfers[t].it);
        }
    spf_engine_stats stats;
    for (uint32_t p = 0; p < PEERS; p++)
        if (peers[p])
            spf_peer_remove(from.engine, peers[p]);
    spf_engine_stats_read(from.engine, &stats);
    CHECK(ended > 300);
    CHECK_EQUAL(stats.writes_posted, stats.writes_completed + stats.writes_failed);
    close_side(&from);
    close_side(&to);
    free(target);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_plan_is_refused_or_does_exactly_what_it_says),
        CASE(what_waits_for_a_step_goes_with_it_and_not_before),
        CASE(slots_hold_what_a_plain_model_holds),
        CASE(transfers_and_peers_come_and_go_in_any_order),
    };
    const char *given = getenv("SEED");
    seed = given ? strtoull(given, NULL, 10) : 42;
    return run_over_providers(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
