/* What a provider says about itself, as data: the answers of fi_getinfo that the scripted provider gives.
 * machine.c has them and says of each number where it comes from. */
#ifndef SCRIPTED_MACHINE_H
#define SCRIPTED_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#define MAX_DOMAINS 8
#define MAX_KNOWN_OPTIONS 8

struct known_option {
    int number;
    size_t bytes;
    int rc;                   /* what fi_setopt answers */
};

struct description {
    const char *provider, *fabric;
    const char *domains[MAX_DOMAINS + 1];
    uint64_t caps;
    uint64_t mode;            /* what the caller has to serve */
    uint64_t mr_mode;         /* what it asks for */
    uint64_t optional_mr_mode;/* what it takes when it is offered */
    uint32_t address_format;
    size_t address_bytes;
    size_t key_bytes;
    size_t immediate_bytes;
    size_t tx_size, iov_limit, rma_iov_limit, inject_size;
    uint64_t max_write_bytes;
    uint32_t since;           /* first libfabric that has it */
    uint32_t offloads_from;   /* interface version below which writes are emulated, 0: never emulated */
    int hardware;             /* moves bytes without the target's software */
    int has_wait_fd;
    int aborts_without_event_queue;
    int wants_initiator_known;/* the target needs the initiator's address */
    uint64_t write_flags;     /* of its own, and the first libfabric that takes them */
    uint32_t write_flags_since;
    struct known_option options[MAX_KNOWN_OPTIONS];
};

struct machine {
    const char *name;
    uint32_t version;         /* of its libfabric */
    const struct description *has[8];
};

/* NULL for an unknown name. */
const struct machine *machine_named(const char *name);

#endif
