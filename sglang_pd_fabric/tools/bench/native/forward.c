/* A forward pass without a model: the progress word of an engine is moved layer by layer at a steady pace.
 *
 * The caller's thread does it, without Python's lock, and sleeps between two layers: a GPU that computes takes
 * no core either. */
#include <errno.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

#include "bench.h"

#define STEP_BITS 16     /* as in the core's progress word */
#define LOOK_NS 20000u   /* between two looks at a counter */

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static uint64_t load(const uint64_t *word)
{
    return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_acquire);
}

void spb_store_word(void *word, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);
}

void spb_forward_run(spb_store *store, void *target, uint64_t forward, uint32_t layers, uint64_t layer_ns,
                     const uint64_t *counter, uint64_t *stamps, uint64_t *counted)
{
    prctl(PR_SET_TIMERSLACK, 1ul);
    uint64_t start = now();
    for (uint32_t layer = 1; layer <= layers; layer++) {
        sleep_until(start + layer * layer_ns);
        if (layer == layers)
            *counted = load(counter);
        stamps[layer - 1] = now();
        store(target, forward << STEP_BITS | layer);
    }
}

int spb_await(const uint64_t *counter, uint64_t value, uint64_t limit_ns, uint64_t *ns)
{
    prctl(PR_SET_TIMERSLACK, 1ul);
    for (uint64_t start = now();; sleep_until(*ns + LOOK_NS)) {
        uint64_t found = load(counter);
        *ns = now();
        if (found == value)
            return 0;
        if (*ns - start > limit_ns)
            return -1;
    }
}
