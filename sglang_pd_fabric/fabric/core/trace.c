#include "trace.h"

#include <errno.h>
#include <stdlib.h>

int spf_trace_init(struct spf_trace *trace, uint32_t events)
{
    if (events == 0)
        return 0;
    if (events > 1u << 24)
        return -EINVAL;
    trace->count = 1;
    while (trace->count < events)
        trace->count *= 2;
    trace->events = calloc(trace->count, sizeof *trace->events);
    return trace->events ? 0 : -ENOMEM;
}

void spf_trace_free(struct spf_trace *trace)
{
    free(trace->events);
}

void spf_trace_write(struct spf_trace *trace, const spf_trace_event *event)
{
    if (!trace->count)
        return;
    uint64_t written = atomic_load_explicit(&trace->written, memory_order_relaxed);
    if (written - atomic_load_explicit(&trace->taken, memory_order_acquire) == trace->count) {
        atomic_fetch_add_explicit(&trace->lost, 1, memory_order_relaxed);
        return;
    }
    trace->events[written & (trace->count - 1)] = *event;
    atomic_store_explicit(&trace->written, written + 1, memory_order_release);
}

uint32_t spf_trace_read(struct spf_trace *trace, spf_trace_event *events, uint32_t count)
{
    uint64_t taken = atomic_load_explicit(&trace->taken, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&trace->written, memory_order_acquire);
    uint32_t n = 0;
    for (; n < count && taken + n != written; n++)
        events[n] = trace->events[(taken + n) & (trace->count - 1)];
    atomic_store_explicit(&trace->taken, taken + n, memory_order_release);
    return n;
}
