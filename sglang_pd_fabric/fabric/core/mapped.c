#include "mapped.h"

#include <string.h>

#include "ending.h"

void spf_mapped_write(spf_engine *engine, struct spf_plan *plan)
{
    struct spf_transfer *transfer = plan->transfer;
    struct spf_write write;
    spf_plan_next(plan, &plan->cursor, engine->regions, 0, SPF_MAX_SEGMENTS,
                  engine->config.profile.write_bytes, &write);
    for (uint32_t i = 0; i < write.segments; i++)
        memcpy((void *)(uintptr_t)write.remote[i].addr, write.local[i].iov_base, write.local[i].iov_len);
    spf_slots_count(&transfer->peer->slots, transfer->immediate | write.units);
    transfer->peer->progress_ns = engine->last_event_ns;
    spf_count_posted(engine, plan, write.units);
    spf_count_done(engine, transfer, write.units, write.bytes);
}
