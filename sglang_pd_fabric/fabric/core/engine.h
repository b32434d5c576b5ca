/* The engine: NICs, regions, slots and the I/O thread that works for them. engine.c and peer.c
 * are what callers see; io.c is the thread. */
#ifndef SPF_ENGINE_H
#define SPF_ENGINE_H

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api.h"
#include "inbox.h"
#include "ledger.h"
#include "library.h"
#include "nic.h"
#include "slots.h"
#include "trace.h"
#include "transfer.h"

/* Something to run on the I/O thread while the caller waits. */
struct spf_call {
    struct spf_item item;
    int (*run)(spf_engine *engine, void *argument, spf_error *err);
    void *argument;
    spf_error *err;
    int rc;
    int done;
};

struct spf_counters {
    _Atomic uint64_t posted, completed, failed, bytes, units, early, again, orphaned, paths_lost, renewed, sleeps;
    _Atomic uint64_t nic_bytes[SPF_MAX_NICS];
};

struct spf_engine {
    const spf_library *library;
    spf_engine_config config;
    struct spf_nic nics[SPF_MAX_NICS];  /* [io] after the start */
    struct spf_slots slots;
    struct spf_region *regions;         /* written by the I/O thread, then published by the count */
    _Atomic uint32_t region_count;
    struct spf_counters counters;
    struct spf_trace trace;             /* written by the I/O thread */
    _Atomic uint64_t *progress;         /* the progress word: own_progress, or memory of the caller's */
    _Atomic uint64_t own_progress;
    _Atomic uint32_t nics_out;          /* bit i: NIC i has failed and is not used any more; set by the I/O thread */
    _Atomic uint32_t standstills;       /* see spf_standstills; counted by the I/O thread */
    DIR *descriptors;                   /* for spf_cut_connections, where the profile cuts */
    uint64_t max_bytes;                 /* of one write, on any NIC; fixed after the start */

    struct spf_inbox inbox;
    int event_fd;
    atomic_int sleeping;
    atomic_int stopping;
    uint64_t drain_ns;                  /* how long what is unfinished may still take then */
    pthread_t thread;
    pthread_mutex_t lock;               /* guards rc and done of calls, and the start */
    pthread_cond_t changed;
    int started;
    int start_rc;
    spf_error start_error;

    struct spf_ledger ledger;           /* [io] and all below */
    struct spf_plan *first_plan, *last_plan;
    struct spf_transfer *transfers;
    struct spf_peer *peers;
    uint32_t window;                    /* writes in flight on all NICs together, at most */
    uint32_t gated_plans;               /* plans that wait for the progress word */
    uint32_t cold_peers;                /* how many wait for their first write */
    uint32_t dying_peers;               /* how many are removed and have writes in flight */
    uint32_t in_flight;
    uint64_t last_progress;             /* the progress word as last seen */
    uint64_t last_event_ns;
    uint64_t last_sweep_ns;
    uint64_t alive_ns;                  /* when it last made sure that the process runs */
};

/* The immediate of a write of zero bytes: slot, generation and units are zero. */
#define SPF_EMPTY_IMMEDIATE 0u

uint64_t spf_now(void);
/* Hands an item to the I/O thread and wakes it when it sleeps. */
void spf_engine_push(spf_engine *engine, struct spf_item *item);
/* Runs something on the I/O thread and waits for its result. */
int spf_engine_call(spf_engine *engine, int (*run)(spf_engine *, void *, spf_error *), void *argument,
                    spf_error *err);
/* The I/O thread. */
void *spf_io_main(void *engine);
/* On the I/O thread: if the process stood still (SIGSTOP, a suspended machine) for longer than anybody waits for us,
 * everything unfinished fails: what was to be written may be somebody else's pages by now. */
void spf_notice_standstill(spf_engine *engine);
/* Reads what has arrived at these NICs (bits), for as long as more comes but not for long. */
void spf_io_drain(spf_engine *engine, uint32_t nics);
/* On the I/O thread (post.c): posts what may be posted and fits; how many writes. */
int spf_post_plans(spf_engine *engine);
/* Whether the progress word shows more than was last seen. */
static inline int spf_progress_moved(const spf_engine *engine)
{
    return atomic_load(engine->progress) != engine->last_progress;
}
/* Ends everything that is unfinished; after the thread has stopped. */
void spf_io_drop_all(spf_engine *engine);
/* On the I/O thread: the peer's transfers fail, its writes are orphaned, or where they outlive it, waited for. */
void spf_io_remove_peer(spf_engine *engine, spf_peer *peer);
/* On the I/O thread: the last write to a dying peer has ended. */
void spf_peer_died(spf_engine *engine, spf_peer *peer);
void spf_peer_dereference(spf_peer *peer);
/* On the I/O thread, for a peer that is not in the list: takes its address out of the NIC's address
 * vector unless another peer has the same one (removing it once removes it for all on shm). */
void spf_peer_forget(spf_engine *engine, spf_peer *peer, uint32_t nic);
/* Counts an immediate that arrived, unless its write was empty. */
static inline void spf_count_immediate(spf_engine *engine, uint32_t immediate)
{
    if (immediate != SPF_EMPTY_IMMEDIATE)
        spf_slots_count(&engine->slots, immediate);
}
/* Whether a write may go to the peer at all: it has a region that is not empty. */
int spf_peer_takes_writes(const spf_peer *peer);
/* On the I/O thread: writes zero bytes to the peer, which count nothing, over one of our NICs. */
int spf_post_empty(spf_engine *engine, const spf_peer *peer, uint32_t nic, uint64_t flags, void *context);
/* Warm-up, on the I/O thread: begin when the peer is in the list, end before it leaves it. */
void spf_warm_begin(spf_engine *engine, spf_peer *peer);
void spf_warm_end(spf_engine *engine, spf_peer *peer);
/* Makes first contact where it is due; how many NICs of peers were settled. */
int spf_warm_peers(spf_engine *engine);

#endif
