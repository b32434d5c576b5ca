/* Many regions on several NICs of real libfabric: registered by a thread for each NIC, closed, and again. */
#include <errno.h>
#include <stdlib.h>

#include "engines.h"

#define REGIONS 500u
#define PIECE 4096u
#define NICS 3u

static spf_engine_config config_with_nics(void)
{
    static const char *const sources[NICS] = { "127.0.0.1", "127.0.0.2", "127.0.0.3" };
    spf_engine_config config = plain_config();
    config.nic_count = NICS;
    for (uint32_t i = 0; i < NICS; i++)
        config.nics[i].source = config.nics[0].source ? sources[i] : NULL;
    return config;
}

static void pieces_of(const struct side *side, spf_memory *memories)
{
    for (uint32_t i = 0; i < REGIONS; i++)
        memories[i] = (spf_memory){ (uint64_t)(uintptr_t)side->memory + i * PIECE, PIECE, .cuda_device = -1,
                                    .dmabuf_fd = -1 };
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void keys_are_unique(const spf_region_info *regions)
{
    static uint64_t keys[REGIONS];
    for (uint32_t nic = 0; nic < NICS; nic++) {
        for (uint32_t i = 0; i < REGIONS; i++)
            keys[i] = regions[i].keys[nic];
        qsort(keys, REGIONS, sizeof *keys, ascending);
        for (uint32_t i = 1; i < REGIONS; i++)
            CHECK(keys[i] != keys[i - 1]);
    }
}

static void many_regions_are_registered_closed_and_registered_again(void)
{
    static spf_memory memories[REGIONS];
    static spf_region_info regions[REGIONS];
    spf_engine_config config = config_with_nics();
    struct side side = open_configured_side(REGIONS * PIECE, &config);
    pieces_of(&side, memories);
    for (int round = 0; round < 3; round++) {
        uint32_t done = 0;
        CHECK_EQUAL(spf_regions_register(side.engine, memories, REGIONS, UINT64_MAX, regions, &done, NULL), 0);
        CHECK_EQUAL(done, REGIONS);
        CHECK_EQUAL(regions[REGIONS - 1].region, REGIONS);
        keys_are_unique(regions);
        CHECK_EQUAL(spf_regions_close(side.engine, 1, 0, NULL), 0);
    }
    close_side(&side);
}

static void a_list_that_needs_several_calls_is_the_same(void)
{
    static spf_memory memories[REGIONS];
    static spf_region_info regions[REGIONS];
    spf_engine_config config = config_with_nics();
    struct side side = open_configured_side(REGIONS * PIECE, &config);
    pieces_of(&side, memories);
    for (uint32_t total = 0, done; total < REGIONS; total += done) {
        CHECK_EQUAL(spf_regions_register(side.engine, memories + total, REGIONS - total, 20000, regions + total,
                                         &done, NULL), 0);
        CHECK(done);
    }
    for (uint32_t i = 0; i < REGIONS; i++)
        CHECK_EQUAL(regions[i].region, i + 1);
    keys_are_unique(regions);
    close_side(&side);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(many_regions_are_registered_closed_and_registered_again),
        CASE(a_list_that_needs_several_calls_is_the_same),
    };
    return run_over_providers(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
