/* Engines for the tests: two of them in one process, joined over the provider that is being tested.
 * LIBFABRIC in the environment names the library, PROVIDER limits the run to one of tcp and shm. */
#ifndef SPF_TEST_ENGINES_H
#define SPF_TEST_ENGINES_H

#include "api.h"
#include "check.h"
#include "regions.h"

extern spf_library *library;
extern const char *provider;

struct side {
    spf_engine *engine;
    uint8_t *memory;
    uint64_t bytes;
    spf_region_info region;
};

void open_library(void);
spf_engine_config plain_config(void);
struct side open_side(uint64_t bytes);
struct side open_configured_side(uint64_t bytes, const spf_engine_config *config);
void close_side(struct side *side);
/* Makes `to` known to `from`. */
spf_peer *introduce(struct side *from, struct side *to);
/* One transfer to slot of the peer: all of the source's memory in pages of page_bytes. */
spf_transfer *send_all(struct side *from, spf_peer *peer, uint32_t slot, uint32_t generation,
                       uint64_t page_bytes);
spf_transfer_status status_of(const spf_transfer *transfer);
int quiet(const spf_transfer *transfer);
int run_over_providers(const struct check_case *cases, size_t count, const char *only);
void fill(struct side *side, uint64_t seed);

#endif
