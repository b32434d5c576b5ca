/* Transfers and plans: what is to be written, and how far it is.
 *
 * A transfer is all that one sender writes for one slot of one peer. It is handed over as plans: a list
 * of copies (one for each buffer: a layer's K, its V, the aux row) times a list of pages. A plan is
 * checked against the regions of both sides before anything of it is posted, and cut into writes as
 * the NICs take them: runs of pages that are contiguous on both sides become one segment, and several
 * segments one write, while the immediate still counts pages.
 *
 * Who may touch what: fields marked [io] belong to the I/O thread. */
#ifndef SPF_TRANSFER_H
#define SPF_TRANSFER_H

#include <stdatomic.h>

#include "api.h"
#include "inbox.h"
#include "nic.h"
#include "slots.h"

struct spf_region {
    uint8_t *address;
    uint64_t bytes;
    struct fid_mr *mr[SPF_MAX_NICS];
};

struct spf_peer {
    uint32_t nic_count;                 /* NICs of the peer */
    uint8_t names[SPF_MAX_NICS][SPF_ADDRESS_BYTES]; /* their addresses */
    fi_addr_t address[SPF_MAX_NICS];    /* for each NIC of ours: what names[pair] is called there */
    uint32_t pair[SPF_MAX_NICS];        /* which of the peer's NICs ours writes to */
    uint32_t window;                    /* most writes in flight */
    uint32_t in_flight;                 /* [io] */
    uint32_t on[SPF_MAX_NICS];          /* [io] of those, over each NIC of ours */
    uint64_t moved_ns[SPF_MAX_NICS];    /* [io] when one of these last ended well, or the first one was posted */
    uint32_t asked[SPF_MAX_NICS];       /* [io] of those over each NIC of ours, how many ask for their delivery */
    int removed;                        /* [io] */
    int dying;                          /* [io] removed, and some of its writes have not been reported (removal.c) */
    uint32_t lost;                      /* [io] bit i: our NIC i cannot reach it any more */
    uint32_t cold;                      /* [io] bit i: our NIC i has yet to write to it (warm.c) */
    uint64_t cold_since_ns;             /* [io] */
    uint64_t progress_ns;               /* [io] when it last took a write */
    struct spf_slots slots;             /* of a mapped peer; otherwise without words */
    struct spf_peer *next;              /* [io] in the engine's list of peers */
    atomic_uint references;             /* the caller's handle and one for each transfer */
    uint32_t region_count;
    spf_remote_region regions[];
};

struct spf_transfer {
    struct spf_item item;               /* how a release reaches the I/O thread */
    spf_engine *engine;
    spf_peer *peer;
    uint32_t immediate;                 /* slot and generation, units zero */
    atomic_int cancelled;
    atomic_int error;
    atomic_int retry;                   /* it failed on one path to its peer, and another is left */
    _Atomic uint64_t plans_submitted;
    _Atomic uint64_t plans_finished;
    _Atomic uint64_t units_done;
    _Atomic uint64_t bytes_done;
    _Atomic uint64_t writes_done;
    _Atomic uint64_t busy_ns;
    uint32_t turn;                      /* [io] which of equally busy NICs posts next */
    uint32_t active_plans;              /* [io] */
    uint32_t held_plans;                /* [io] those that only wait for their forward pass */
    uint64_t moving_since_ns;           /* [io] since when its peer has to take something */
    int released;                       /* [io] the caller let go of it */
    int listed;                         /* [io] it stands in the engine's list of transfers */
    struct spf_transfer *previous, *next; /* [io] */
};

/* Pages [src, src + count) go to [dst, dst + count). */
struct spf_run {
    uint32_t src, dst, count;
};

struct spf_cursor {
    uint32_t copy, run, page;
};

struct spf_plan {
    struct spf_item item;
    struct spf_transfer *transfer;
    uint64_t forward;                   /* whose progress its copies wait for; 0: none */
    struct spf_plan *next;              /* [io] plans with something left to post */
    struct spf_cursor cursor;           /* [io] first page not yet posted */
    uint32_t steps;                     /* [io] of its forward pass, as last seen */
    uint32_t in_flight;                 /* [io] writes posted and not ended */
    uint32_t open;                      /* [io] bit i: its last write over NIC i did not ask for its delivery */
    int posted;                         /* [io] nothing is left to post */
    int gated;                          /* [io] it waits for its forward pass */
    int held;                           /* [io] and for nothing else */
    uint32_t copy_count, page_count;
    uint32_t run_count;                 /* [io] */
    spf_copy *copies;                   /* this and the page ids lie behind the plan, in one allocation */
    uint32_t *src_pages, *dst_pages;
    struct spf_run *runs;               /* [io] from spf_plan_start on */
};

#define SPF_ALL_STEPS UINT32_MAX        /* the forward pass is over, or nothing waits for one */

/* Builds a plan that owns its memory. Everything it will write is checked here, against the regions of both
 * sides and against max_bytes, the largest write that the NICs can do. */
int spf_plan_create(spf_transfer *transfer, const struct spf_region *regions, uint32_t region_count,
                    const spf_copy *copies, uint32_t copy_count, const uint32_t *src_pages,
                    const uint32_t *dst_pages, uint32_t page_count, uint64_t forward, uint64_t max_bytes,
                    struct spf_plan **out, spf_error *err);
/* [io] Finds the runs: the caller pays for one look at every page only. 0 or -ENOMEM; then it has none. */
int spf_plan_start(struct spf_plan *plan);
/* How many steps of the forward pass the progress word shows. */
uint32_t spf_forward_steps(uint64_t forward, uint64_t progress);
void spf_plan_destroy(struct spf_plan *plan);

/* The next write of the plan for this NIC, from *cursor on, which is moved. It holds no copy that waits. */
void spf_plan_next(const struct spf_plan *plan, struct spf_cursor *cursor,
                   const struct spf_region *regions, uint32_t nic, uint32_t segments,
                   uint64_t write_bytes, struct spf_write *write);

/* Whether the copy at the cursor still waits for its forward pass. */
static inline int spf_cursor_waits(const struct spf_plan *plan, const struct spf_cursor *cursor)
{
    return cursor->copy < plan->copy_count && plan->copies[cursor->copy].after > plan->steps;
}

static inline int spf_cursor_at_end(const struct spf_plan *plan, const struct spf_cursor *cursor)
{
    return cursor->copy == plan->copy_count || plan->run_count == 0;
}

#endif
