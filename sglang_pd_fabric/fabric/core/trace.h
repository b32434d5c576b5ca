/* The trace: what the I/O thread did when, for pictures and for measuring. A ring of events that the I/O thread
 * fills and one reader empties; what finds no room is counted and dropped. Off unless the engine was opened
 * with room for it. */
#ifndef SPF_TRACE_H
#define SPF_TRACE_H

#include <stdatomic.h>

#include "api.h"

struct spf_trace {
    spf_trace_event *events;
    uint32_t count;             /* a power of two; 0: off */
    _Atomic uint64_t written, taken, lost;
};

int spf_trace_init(struct spf_trace *trace, uint32_t events);
void spf_trace_free(struct spf_trace *trace);
void spf_trace_write(struct spf_trace *trace, const spf_trace_event *event);
uint32_t spf_trace_read(struct spf_trace *trace, spf_trace_event *events, uint32_t count);

#endif
