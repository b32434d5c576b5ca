/* The ledger: every write that was posted stands here until it ends, and ends once.
 *
 * A record is the write's op_context. It knows whose write it is, so credits of the NIC and of the
 * peer, and the plan's count of writes in flight, are given back exactly when it is retired, whatever
 * happened to the write. A record whose peer was removed is orphaned: its credits are back, and it is
 * kept apart in case the provider still reports it. Owned by the I/O thread. */
#ifndef SPF_LEDGER_H
#define SPF_LEDGER_H

#include <rdma/fabric.h>

#include "transfer.h"

struct spf_record {
    struct fi_context2 context;   /* first: the provider may scribble here (FI_CONTEXT, FI_CONTEXT2) */
    struct spf_plan *plan;        /* NULL: free or orphaned */
    uint32_t nic;
    uint32_t units;
    uint32_t after;
    uint64_t bytes;
    int orphaned;
    int warms;                    /* a warm-up: nobody's from the start */
    int confirms;                 /* it ends when it has arrived, whatever the provider does with others */
    struct spf_record *next_free;
};

struct spf_ledger_block;

struct spf_ledger {
    struct spf_ledger_block *blocks;
    struct spf_record *free;
};

/* A record to post with, or NULL without memory. */
struct spf_record *spf_ledger_take(struct spf_ledger *ledger);
void spf_ledger_put(struct spf_ledger *ledger, struct spf_record *record);
/* Calls visit for each record that is in flight to the peer. */
void spf_ledger_each(struct spf_ledger *ledger, const spf_peer *peer,
                     void (*visit)(void *argument, struct spf_record *record), void *argument);
/* Frees the orphaned records of a NIC. Nothing may report them any more. */
void spf_ledger_reclaim(struct spf_ledger *ledger, uint32_t nic);
void spf_ledger_free(struct spf_ledger *ledger);

#endif
