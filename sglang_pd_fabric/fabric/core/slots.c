#include "slots.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(SPF_SLOT_BITS + SPF_GENERATION_BITS + SPF_UNIT_BITS == 32, "the immediate has 32 bits");
_Static_assert(1 << SPF_SLOT_BITS >= 4096, "4,096 requests in flight per decode rank");

static uint32_t generation_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

_Static_assert(sizeof(_Atomic uint64_t) == sizeof(uint64_t), "words are shared between processes");

void spf_slots_map(struct spf_slots *slots, uint32_t count, uint64_t *words)
{
    slots->words = (_Atomic uint64_t *)words;
    slots->count = count;
    slots->borrowed = 1;
    atomic_init(&slots->units_counted, 0);
    atomic_init(&slots->late, 0);
    atomic_init(&slots->unknown, 0);
}

int spf_slots_init(struct spf_slots *slots, uint32_t count, uint64_t *memory)
{
    if (count == 0 || count > 1u << SPF_SLOT_BITS)
        return -EINVAL;
    uint64_t *words = memory ? memory : calloc(count, sizeof *words);
    if (!words)
        return -ENOMEM;
    spf_slots_map(slots, count, words);
    slots->borrowed = memory != NULL;
    for (uint32_t i = 0; i < count; i++)
        atomic_init(&slots->words[i], (uint64_t)1 << 32);
    return 0;
}

void spf_slots_free(struct spf_slots *slots)
{
    if (!slots->borrowed)
        free(slots->words);
    slots->words = NULL;
}

uint32_t spf_immediate(uint32_t slot, uint32_t generation, uint32_t units)
{
    return slot << (SPF_GENERATION_BITS + SPF_UNIT_BITS) | generation << SPF_UNIT_BITS | units;
}

void spf_slots_count(struct spf_slots *slots, uint32_t immediate)
{
    uint32_t slot = immediate >> (SPF_GENERATION_BITS + SPF_UNIT_BITS);
    uint32_t generation = (immediate >> SPF_UNIT_BITS) & SPF_MAX_GENERATION;
    uint32_t units = immediate & SPF_MAX_UNITS;
    if (slot >= slots->count || generation == 0 || units == 0) {
        atomic_fetch_add_explicit(&slots->unknown, 1, memory_order_relaxed);
        return;
    }
    uint64_t word = atomic_load_explicit(&slots->words[slot], memory_order_relaxed);
    do {
        if (generation_of(word) != generation) {
            atomic_fetch_add_explicit(&slots->late, 1, memory_order_relaxed);
            return;
        }
        if ((uint32_t)word > UINT32_MAX - units) { /* would carry into the generation */
            atomic_fetch_add_explicit(&slots->unknown, 1, memory_order_relaxed);
            return;
        }
        /* Release: who reads the count also sees the bytes that were placed before it. */
    } while (!atomic_compare_exchange_weak_explicit(&slots->words[slot], &word, word + units,
                                                    memory_order_release, memory_order_relaxed));
    atomic_fetch_add_explicit(&slots->units_counted, units, memory_order_relaxed);
}

uint32_t spf_slots_advance(struct spf_slots *slots, uint32_t slot)
{
    uint64_t word = atomic_load_explicit(&slots->words[slot], memory_order_relaxed);
    uint32_t next;
    do {
        next = generation_of(word) == SPF_MAX_GENERATION ? 1 : generation_of(word) + 1;
    } while (!atomic_compare_exchange_weak_explicit(&slots->words[slot], &word, (uint64_t)next << 32,
                                                    memory_order_acq_rel, memory_order_relaxed));
    return next;
}
