/* On which CPUs a thread runs, and how soon. */
#ifndef SPF_CPUS_H
#define SPF_CPUS_H

#include <stdint.h>

#include "api.h"

/* Keeps the calling thread, and those that it will start, on these CPUs; 0 of them: wherever it may run now. */
int spf_cpus_pin(const uint32_t *cpus, uint32_t count, spf_error *err);

/* Asks the kernel to let the calling thread run soon after it wakes, before a longer-sliced one that computes: an
 * I/O thread has little to do each time, and the one that computes is often a Python thread that spins. Linux
 * obeys from 6.12 on; where it does not, or the thread has a policy of its own, nothing changes. */
void spf_cpus_shorten_slice(void);

#endif
