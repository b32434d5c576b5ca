/* One region of host memory: what most tests need. */
#ifndef SPF_TEST_REGIONS_H
#define SPF_TEST_REGIONS_H

#include "api.h"

static inline int register_host(spf_engine *engine, void *address, uint64_t bytes, spf_region_info *out,
                                spf_error *err)
{
    spf_memory memory = { (uint64_t)(uintptr_t)address, bytes, .cuda_device = -1, .dmabuf_fd = -1 };
    uint32_t done;
    return spf_regions_register(engine, &memory, 1, 0, out, &done, err);
}

#endif
