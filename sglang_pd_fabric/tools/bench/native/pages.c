/* The memcpy loop: what this machine can do for the same page lists without any transport. */
#include <string.h>

#include "bench.h"

void spb_copy_pages(uint8_t *target, const uint8_t *source, const uint64_t *to, const uint64_t *from,
                    size_t n, size_t page_bytes)
{
    for (size_t i = 0; i < n; i++)
        memcpy(target + to[i], source + from[i], page_bytes);
}
