/* On which CPUs a thread runs. */
#ifndef SPF_CPUS_H
#define SPF_CPUS_H

#include <stdint.h>

#include "api.h"

/* Keeps the calling thread, and those that it will start, on these CPUs; 0 of them: wherever it may run now. */
int spf_cpus_pin(const uint32_t *cpus, uint32_t count, spf_error *err);

#endif
