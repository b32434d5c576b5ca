/* Engines over the scripted provider: two in one process, or more, joined over all their NICs. */
#ifndef SCRIPTED_ENDS_H
#define SCRIPTED_ENDS_H

#include <errno.h>
#include <stdlib.h>

#include "api.h"
#include "check.h"
#include "regions.h"
#include "scripted.h"

#define PAGE 4096u

struct end {
    spf_engine *engine;
    uint8_t *memory;
    uint64_t bytes;
    spf_region_info region;
    uint32_t nics;
};

/* Becomes the machine, and opens the provider as a libfabric. */
spf_library *enter(const char *machine);
/* What fabric/profiles.py says of efa, efa-direct, verbs, tcp and shm, with small windows, and "odd". */
spf_engine_config config_for(const char *profile, uint32_t nics);
struct end open_end(spf_library *library, const spf_engine_config *config, uint64_t bytes);
void close_end(struct end *end);
/* Makes `to` known to `from`. with_regions: 0 inserts the addresses only. */
spf_peer *introduce(struct end *from, struct end *to, int with_regions);
/* All of the source's memory, in a power of two of pages of page_bytes. seed: 0 takes them as they lie, in
 * long runs; others scatter them, each seed in its own way. */
spf_transfer *send_pages(struct end *from, spf_peer *peer, uint32_t slot, uint32_t generation,
                         uint64_t page_bytes, uint64_t seed);
void fill(struct end *end, uint64_t seed);
uint64_t pages_of(const struct end *end, uint64_t page_bytes);
spf_transfer_status status_of(const spf_transfer *transfer);
int quiet(const spf_transfer *transfer);
spf_engine_stats stats_of(const struct end *end);
struct scripted_seen look(void);
/* Nothing is open any more, and no rule of libfabric's was broken. */
void leave(spf_library *library);

#endif
