/* Completion slots: the receiver's counters of units, one word each.
 *
 * A word holds the generation that owns the slot and the units counted for it. Both change in one
 * compare-and-swap, so an immediate of an older owner can never add to a newer one. A generation
 * starts when the one before it ends (spf_slot_advance), so an immediate that comes before its
 * receiver looks for it is kept. Generation 0 never exists: an all-zero immediate means nothing. */
#ifndef SPF_SLOTS_H
#define SPF_SLOTS_H

#include <stdatomic.h>
#include <stdint.h>

#include "api.h"

#define SPF_MAX_UNITS ((1u << SPF_UNIT_BITS) - 1)
#define SPF_MAX_GENERATION ((1u << SPF_GENERATION_BITS) - 1)

struct spf_slots {
    _Atomic uint64_t *words; /* generation << 32 | units */
    uint32_t count;
    int borrowed;            /* the words are somebody else's memory */
    _Atomic uint64_t units_counted;
    _Atomic uint64_t late;
    _Atomic uint64_t unknown;
};

/* memory: room for the words that outlives the table, or NULL. */
int spf_slots_init(struct spf_slots *slots, uint32_t count, uint64_t *memory);
/* A table over words that another process owns and has initialised. */
void spf_slots_map(struct spf_slots *slots, uint32_t count, uint64_t *words);
void spf_slots_free(struct spf_slots *slots);
uint32_t spf_immediate(uint32_t slot, uint32_t generation, uint32_t units);
/* Counts one immediate. */
void spf_slots_count(struct spf_slots *slots, uint32_t immediate);
uint32_t spf_slots_advance(struct spf_slots *slots, uint32_t slot);

#endif
