/* How writes, plans and transfers end: each exactly once, whatever happened to it. All of it runs on the
 * I/O thread. A write ends when it is reported or orphaned; a plan when nothing of it is left to post or
 * in flight; a transfer when its last plan has ended and its owner has released it. */
#ifndef SPF_ENDING_H
#define SPF_ENDING_H

#include "engine.h"

static inline void spf_count(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

/* One of its plans has stopped moving: if it was the last one, the time in which something moved is added up. */
void spf_count_busy(struct spf_transfer *transfer);
/* A write of the plan was handed to a NIC, or is about to be copied. */
void spf_count_posted(spf_engine *engine, const struct spf_plan *plan, uint32_t units);
/* Now, if there is a trace. */
uint64_t spf_trace_time(const spf_engine *engine);
/* An event of a write, of which units, bytes and step count, for the trace if there is one. */
void spf_trace_of_write(spf_engine *engine, uint32_t kind, uint64_t ns, const struct spf_transfer *transfer,
                        const struct spf_write *write, uint32_t nic);
/* A write of the transfer has ended well. */
void spf_count_done(spf_engine *engine, struct spf_transfer *transfer, uint32_t units, uint64_t bytes);
/* Keeps the first failure of a transfer; the rest of its plans is dropped. */
void spf_transfer_fail(struct spf_transfer *transfer, int code);
/* Something of the transfer was lost on the way over a NIC: it fails, with the mark that it may be repeated where
 * another is left. So do others to the same peer of which something may have been lost with it. */
void spf_path_fail(spf_engine *engine, struct spf_transfer *transfer, uint32_t nic, int code);
int spf_transfer_stopped(struct spf_transfer *transfer);
int spf_transfer_quiet(struct spf_transfer *transfer);
void spf_transfer_list(spf_engine *engine, struct spf_transfer *transfer);
void spf_transfer_destroy(spf_engine *engine, struct spf_transfer *transfer);
/* Ends the plan when all of it is posted (or dropped) and nothing of it is in flight. */
void spf_plan_settle(spf_engine *engine, struct spf_plan *plan);
/* The end of a posted write, by whatever way it was reported. */
void spf_end_of_write(spf_engine *engine, void *context, int error);
/* The write counts as failed now; its record waits for the provider's report, which may never come. */
void spf_orphan(spf_engine *engine, struct spf_record *record, int error);

#endif
