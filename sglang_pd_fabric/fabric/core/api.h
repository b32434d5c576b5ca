/* What Python sees of the core. build.py hands the part between the two marks to cffi as it stands,
 * so it holds plain declarations only: no include, no macro but integer constants.
 *
 * The core moves bytes between registered memory regions of two processes with one-sided writes, each
 * carrying a 32-bit immediate, and counts immediates on the receiver. It knows NICs, regions, peers,
 * slots, transfers and plans; it does not know what a page holds.
 *
 * Threads: one I/O thread per engine owns every libfabric object. Any thread may call any function
 * here; what needs the I/O thread is handed to it and, where a result is returned, waited for.
 * Every function that can fail returns 0 or a negative errno and fills *err. */
#ifndef SPF_API_H
#define SPF_API_H

#include <stddef.h>
#include <stdint.h>

/* cdef begin */
#define SPF_MAX_NICS 8
#define SPF_MAX_REGIONS 8192
#define SPF_ADDRESS_BYTES 256
#define SPF_MAX_OPTIONS 8

/* The immediate: | slot 13 | generation 7 | units 12 |, most significant first. */
#define SPF_SLOT_BITS 13
#define SPF_GENERATION_BITS 7
#define SPF_UNIT_BITS 12

/* A progress word: | forward pass 48 | steps 16 |. It only grows. */
#define SPF_STEP_BITS 16

typedef struct spf_library spf_library;
typedef struct spf_engine spf_engine;
typedef struct spf_peer spf_peer;
typedef struct spf_transfer spf_transfer;

typedef struct spf_error {
    int code;
    char text[512];
} spf_error;

/* An endpoint option to set before the endpoint is enabled. One that the library does not know is skipped. */
typedef struct spf_option {
    int32_t number;           /* FI_OPT_* */
    uint32_t bytes;           /* of its value: 1 (bool), 4 (int) or 8 (size_t) */
    uint64_t value;
} spf_option;

/* What differs between providers, decided in fabric/profiles.py. Zero means the provider's choice. */
typedef struct spf_profile {
    const char *provider;     /* libfabric's provider name */
    const char *fabric;       /* libfabric's fabric name, NULL for any */
    uint32_t api_version;     /* newest interface to ask for, FI_VERSION; 0 is that of the headers */
    uint64_t caps;            /* FI_* besides messages and remote writes */
    uint64_t mr_mode;         /* FI_MR_* bits that we can serve */
    uint64_t write_flags;     /* of each write, besides those for its immediate and its completion */
    uint64_t write_bytes;     /* most bytes in one write, unless one page is larger */
    uint32_t segments;        /* most (local, remote) pairs in one write, capped by the provider's limit */
    uint32_t window;          /* writes in flight per NIC */
    uint32_t peer_window;     /* of those, to one peer */
    uint32_t queue_entries;   /* completion queue of a NIC, for its own writes and for immediates */
    int wait_fd;              /* the completion queue has a descriptor that an idle thread can sleep on */
    int event_queue;          /* bind one: without it the provider ends the process on internal errors */
    int warm_up;              /* connect at spf_peer_add, not with the first page */
    int renew;                /* open an endpoint anew that has writes that never end, when it is idle */
    int cut;                  /* a removed peer's connections stay, with what is queued for them: cut them */
    int outlives;             /* a write goes on after its peer was removed, until the provider has reported it */
    int confirm;              /* a write ends when it is sent: ask for the delivery of some, and of the last */
    int32_t emulation;        /* FI_OPT_* that tells whether writes are emulated, 0 for none */
    uint32_t option_count;
    spf_option options[SPF_MAX_OPTIONS];
} spf_profile;

typedef struct spf_nic_config {
    const char *domain;       /* libfabric domain (the NIC), NULL for the provider's first */
    const char *source;       /* local address to bind, NULL for the provider's choice */
} spf_nic_config;

typedef struct spf_engine_config {
    spf_profile profile;
    spf_nic_config nics[SPF_MAX_NICS];
    uint32_t nic_count;
    uint32_t slot_count;      /* completion slots, at most 1 << SPF_SLOT_BITS */
    uint64_t *slot_words;     /* memory for them that peers may map, or NULL */
    uint64_t *progress_word;  /* memory that a GPU can store into, or NULL for a word of the engine's own */
    uint32_t trace_events;    /* room for as many events; 0: no trace */
    uint64_t spin_ns;         /* how long the I/O thread spins after its last event before it sleeps */
    uint64_t gate_spin_ns;    /* the same while a plan waits for the progress word; the largest: nobody wakes it */
    uint64_t stall_ns;        /* a transfer whose peer takes nothing for this long has failed */
    uint64_t absence_ns;      /* peers may give us up when we stand still for this long, see spf_standstills */
    uint64_t limit_ns;        /* a transfer that is at it for this long has failed; 0: no limit */
    const uint32_t *cpus;     /* where the I/O thread runs; read only while the engine is opened */
    uint32_t cpu_count;       /* 0: wherever the caller may run */
} spf_engine_config;

typedef struct spf_nic_info {
    char provider[64];
    char fabric[64];
    char domain[64];
    uint8_t address[SPF_ADDRESS_BYTES];
    uint32_t address_bytes;
    uint32_t segments;
    uint64_t mr_mode;         /* FI_MR_* bits that the provider asks for */
    uint64_t max_write_bytes;
    uint32_t window;          /* writes in flight, capped by the provider's queue */
    uint32_t options;         /* bit i: option i of the profile was taken */
    int32_t emulated;         /* 1: writes are emulated by the provider; 0: not; -1: it does not say */
} spf_nic_info;

/* Memory to register: of the host, or of a CUDA device. */
typedef struct spf_memory {
    uint64_t address;         /* first byte */
    uint64_t bytes;
    int32_t cuda_device;      /* -1: it is memory of the host */
    int32_t dmabuf_fd;        /* a dmabuf that it lies in, or -1; needed only until it is registered */
    uint64_t dmabuf_offset;   /* where in it */
} spf_memory;

typedef struct spf_region_info {
    uint32_t region;          /* index of the region in this engine */
    uint64_t base;            /* what a peer adds to an offset: the address, or 0 with offset addressing */
    uint64_t keys[SPF_MAX_NICS];
    uint8_t by_dmabuf[SPF_MAX_NICS]; /* 1 where the NIC took the dmabuf, 0 where it took the address */
} spf_region_info;

typedef struct spf_remote_region {
    uint64_t base;
    uint64_t bytes;
    uint64_t keys[SPF_MAX_NICS];
} spf_remote_region;

/* Page p of the copy goes from source + src_stride * src_pages[p] to dst + dst_stride * dst_pages[p]. */
typedef struct spf_copy {
    uint32_t src_region;
    uint32_t dst_region;
    uint64_t src_offset;
    uint64_t dst_offset;
    uint64_t src_stride;
    uint64_t dst_stride;
    uint64_t bytes;           /* bytes of one page */
    uint32_t after;           /* steps of its forward pass that must be done before it may be read */
} spf_copy;

enum {
    SPF_TRACE_STEP,           /* the progress word was seen to have moved */
    SPF_TRACE_POST,           /* a write was handed to the provider */
    SPF_TRACE_DONE            /* a write has ended well */
};

typedef struct spf_trace_event {
    uint64_t ns;              /* CLOCK_MONOTONIC */
    uint64_t progress;        /* STEP: the word */
    uint64_t bytes;
    uint32_t kind;
    uint32_t immediate;       /* slot, generation and units of the write */
    uint32_t after;           /* of the write's last copy */
    uint32_t nic;
} spf_trace_event;

typedef struct spf_transfer_status {
    uint64_t plans_submitted;
    uint64_t plans_finished;  /* equal to plans_submitted: quiet, nothing of it is on a wire */
    uint64_t units_done;
    uint64_t bytes_done;
    uint64_t writes_done;
    uint64_t busy_ns;         /* time in which something was on its way, or could have been */
    int error;                /* 0, or the negative errno of its first failure */
    int retry;                /* it failed on one path, and another is left: it may be repeated */
} spf_transfer_status;

typedef struct spf_engine_stats {
    uint64_t writes_posted;
    uint64_t writes_completed;
    uint64_t writes_failed;
    uint64_t bytes_completed;
    uint64_t units_completed;
    uint64_t post_again;            /* posts that the provider asked to repeat */
    uint64_t units_counted;         /* receiver: units that immediates brought */
    uint64_t immediates_late;       /* receiver: immediates of a generation that is over */
    uint64_t immediates_unknown;    /* receiver: immediates that no slot of ours can mean */
    uint64_t writes_orphaned;       /* writes to a removed peer whose end nobody will learn */
    uint64_t paths_lost;            /* from one of our NICs to one of a peer's */
    uint64_t sleeps;
    uint64_t units_early;           /* units posted before their forward pass had ended */
    uint64_t trace_lost;            /* events for which the trace had no room */
    uint64_t endpoints_renewed;     /* closed and opened again because writes to the dead were left on them */
    uint64_t nic_bytes[SPF_MAX_NICS]; /* of bytes_completed, what went over each NIC; none is copied memory */
} spf_engine_stats;

int spf_library_open(const char *path, spf_library **out, spf_error *err);
void spf_library_close(spf_library *library);
uint32_t spf_library_version(const spf_library *library);
uint32_t spf_header_version(void);
/* One line "provider<TAB>fabric<TAB>domain" for each RDM endpoint that can write with an immediate. */
int spf_library_providers(const spf_library *library, char *text, size_t room, spf_error *err);

int spf_engine_open(const spf_library *library, const spf_engine_config *config, spf_engine **out,
                    spf_error *err);
/* Waits for what is unfinished for at most drain_ns, then ends it. The caller releases its transfers before;
 * its peers end here too. No other call may be under way, none may follow. */
void spf_engine_close(spf_engine *engine, uint64_t drain_ns);
void spf_engine_stats_read(const spf_engine *engine, spf_engine_stats *out);
void spf_engine_nic(const spf_engine *engine, uint32_t nic, spf_nic_info *out);

/* Registers memory, in order, with every NIC, one thread for each NIC; starts nothing new after budget_ns.
 * *done: how many there are now (at least one); the caller comes again for the rest. The I/O thread waits
 * meanwhile, so the budget is what writes under way may be held up for, besides one region. When one fails,
 * those of this call are closed again, and *done is the index of the one that failed. */
int spf_regions_register(spf_engine *engine, const spf_memory *memories, uint32_t count, uint64_t budget_ns,
                         spf_region_info *out, uint32_t *done, spf_error *err);
/* Closes the regions from this index on: those that were registered last. -EBUSY while writes are under
 * way, unless no plan can mean them (unused). No plan that reads from them may be submitted meanwhile. */
int spf_regions_close(spf_engine *engine, uint32_t first, int unused, spf_error *err);

/* Stops using a NIC: writes under way on it have failed, its endpoint closes, later ones go over the others. */
void spf_nic_remove(spf_engine *engine, uint32_t nic);
/* Bit i: NIC i is not used any more, because it was removed or has failed. What was on its way to it is lost. */
uint32_t spf_nics_removed(const spf_engine *engine);
/* How often the process stood still for so long that writers may have given us up. Counted before anything that
 * came meanwhile is. */
uint32_t spf_standstills(const spf_engine *engine);

/* addresses: nic_count rows of SPF_ADDRESS_BYTES, in the order of the keys of the regions. credits: the most
 * writes that may be in flight to the peer, by its own word; 0: it said none, and ours counts alone. */
int spf_peer_add(spf_engine *engine, const uint8_t *addresses, uint32_t nic_count,
                 const spf_remote_region *regions, uint32_t region_count, uint32_t credits, spf_peer **out,
                 spf_error *err);
/* A peer on this host whose memory is mapped here: bases are addresses in this process. The I/O thread
 * copies and counts in the peer's slots instead of posting. The mapping must last until the peer is removed. */
int spf_peer_map(spf_engine *engine, uint64_t *slot_words, uint32_t slot_count,
                 const spf_remote_region *regions, uint32_t region_count, spf_peer **out,
                 spf_error *err);
/* Its unfinished transfers fail; the handle is invalid from here on. They are quiet soon, or (profile: outlives)
 * when the last of their writes has been reported. */
void spf_peer_remove(spf_engine *engine, spf_peer *peer);

uint32_t spf_slot_generation(const spf_engine *engine, uint32_t slot);
uint32_t spf_slot_units(const spf_engine *engine, uint32_t slot);
/* Ends the present generation and returns the next one; its early immediates are kept. */
uint32_t spf_slot_advance(spf_engine *engine, uint32_t slot);

/* Moves the progress word, from any thread, and wakes the I/O thread where it sleeps. Release order: who sees
 * the word sees what was stored before it. A GPU stores into the word itself. */
void spf_progress_store(spf_engine *engine, uint64_t word);
uint64_t spf_progress_read(const spf_engine *engine);

/* Takes what the trace holds, oldest first, at most count events; one caller at a time. */
uint32_t spf_trace_take(spf_engine *engine, spf_trace_event *events, uint32_t count);

/* A transfer: everything one sender writes for one slot of one peer. Handles are owned by the caller
 * until spf_transfer_release; the core keeps what it still needs. nic: the one with whose turn it begins. */
int spf_transfer_open(spf_engine *engine, spf_peer *peer, uint32_t slot, uint32_t generation, uint32_t nic,
                      spf_transfer **out, spf_error *err);
/* forward 0: all may be posted at once. Otherwise a copy waits until the progress word shows its steps of that
 * forward pass, or a later pass; copies must then be in the order of their steps. */
int spf_transfer_submit(spf_transfer *transfer, const spf_copy *copies, uint32_t copy_count,
                        const uint32_t *src_pages, const uint32_t *dst_pages, uint32_t page_count,
                        uint64_t forward, spf_error *err);
void spf_transfer_status_read(const spf_transfer *transfer, spf_transfer_status *out);
void spf_transfer_cancel(spf_transfer *transfer);
void spf_transfer_release(spf_transfer *transfer);
/* cdef end */

#endif
