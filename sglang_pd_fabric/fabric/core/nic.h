/* One NIC: a libfabric domain with one RDM endpoint, its completion queue and its address vector.
 * Owned by the I/O thread once the engine runs (FI_THREAD_DOMAIN: nobody else may touch it). */
#ifndef SPF_NIC_H
#define SPF_NIC_H

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include "api.h"

#define SPF_MAX_SEGMENTS 8

struct spf_nic {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_eq *eq;        /* NULL unless the profile wants one */
    struct fid_ep *ep;
    int wait_fd;              /* -1 where the queue has none */
    uint32_t segments;        /* most segments in one write */
    uint64_t write_bytes;     /* most bytes in one write, unless one page is larger */
    uint64_t write_flags;
    uint32_t options;         /* bit i: option i of the profile was taken */
    int emulated;             /* 1, 0, or -1 where the provider does not say */
    uint32_t in_flight;
    uint32_t stranded;        /* writes to removed peers that have not ended */
    uint32_t window;
    uint8_t address[SPF_ADDRESS_BYTES];
    size_t address_bytes;
};

/* The pieces of one write, filled by transfer.c. */
struct spf_write {
    struct iovec local[SPF_MAX_SEGMENTS];
    void *descriptors[SPF_MAX_SEGMENTS];
    struct fi_rma_iov remote[SPF_MAX_SEGMENTS];
    uint32_t segments;
    uint32_t units;
    uint32_t after;           /* of its last piece */
    uint64_t bytes;
};

int spf_nic_open(struct spf_nic *nic, const spf_library *library, const spf_profile *profile,
                 const spf_nic_config *config, spf_error *err);
/* 0, or the negative errno of an error that the provider could blame on no write: the NIC is done for. */
int spf_nic_failure(struct spf_nic *nic);
/* Closes the endpoint: from here on nothing is read from or written to registered memory. */
void spf_nic_disconnect(struct spf_nic *nic);
/* Closes endpoint and queues and opens others, without any peer. 0 or an error: then it is disconnected. */
int spf_nic_reopen(struct spf_nic *nic, const spf_library *library, const spf_profile *profile);
void spf_nic_close(struct spf_nic *nic, const spf_library *library);
/* Without an endpoint the address is checked only: who opens it anew inserts all of them. */
int spf_nic_insert(struct spf_nic *nic, const spf_library *library, const uint8_t *address,
                   fi_addr_t *peer, spf_error *err);
/* flags: besides those of every write. 0, -FI_EAGAIN, or the provider's error. */
int spf_nic_post(struct spf_nic *nic, const struct spf_write *write, fi_addr_t peer,
                 uint32_t immediate, uint64_t flags, void *context);

#endif
