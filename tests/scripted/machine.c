/* [rec] recorded, [man] from libfabric's manual or its headers, [src] from its sources, [here] seen on
 * this project's machine with libfabric 2.5 and 1.17 (FABRIC.md). Nothing else is known of these devices
 * here: what no mark covers is filled in so that the record is whole. */
#include "machine.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <string.h>

#define RDMA_CAPS (FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_RECV | FI_SEND | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define EFA_OPTION(n) (-(0xefa << 16) + (n))

/* fi_info --verbose on a p5 (100 Gbit/s device 0xefa1), libfabric 2.0, as published at le.qun.ch in
 * "Harnessing 3200 Gbps Network" and in a second listing of the same device in other people's notes. */
static const struct description efa_p5 = {
    .provider = "efa",                                      /* [rec] */
    .fabric = "efa",                                        /* [rec] */
    .domains = { "rdmap79s0-rdm", "rdmap80s0-rdm", "rdmap81s0-rdm", "rdmap82s0-rdm" }, /* first: [rec] */
    .caps = RDMA_CAPS | FI_HMEM | FI_LOCAL_COMM | FI_REMOTE_COMM, /* [rec], HMEM [man] */
    .mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM, /* [rec] */
    .optional_mr_mode = FI_MR_LOCAL,                        /* [man] "does not require FI_MR_LOCAL" */
    .address_format = FI_ADDR_EFA,                          /* [rec] */
    .address_bytes = 32,                                    /* [rec] */
    .key_bytes = 4,                                         /* [rec] */
    .immediate_bytes = 4,                                   /* [rec] */
    .tx_size = 4096, .iov_limit = 4, .rma_iov_limit = 1, .inject_size = 4096, /* [rec] */
    .max_write_bytes = UINT64_MAX,                          /* [rec] */
    .since = FI_VERSION(1, 17),
    .offloads_from = FI_VERSION(1, 18),                     /* [man] FI_OPT_EFA_USE_DEVICE_RDMA */
    .hardware = 1,
    .aborts_without_event_queue = 1,                        /* [src] efa_base_ep_write_eq_error */
    .write_flags = 1ull << 60,                              /* [man] FI_EFA_WR_HIGH_PPS */
    .write_flags_since = FI_VERSION(2, 6),
    .options = {
        { 11, 1, 0 },                                       /* FI_OPT_SHARED_MEMORY_PERMITTED [src] */
        { 10, 1, -FI_EINVAL },                              /* FI_OPT_CUDA_API_PERMITTED without CUDA [src] */
        { EFA_OPTION(0), 8, 0 },                            /* FI_OPT_EFA_RNR_RETRY [man] */
    },
};

/* The same device; what the wire protocol gave is gone. [man] fi_efa(7) of 2.2 */
static const struct description efa_direct_p5 = {
    .provider = "efa",
    .fabric = "efa-direct",                                 /* [rec] fi_info -p efa of 2.1 lists it first */
    .domains = { "rdmap79s0-rdm", "rdmap80s0-rdm", "rdmap81s0-rdm", "rdmap82s0-rdm" },
    .caps = RDMA_CAPS | FI_HMEM | FI_LOCAL_COMM | FI_REMOTE_COMM,
    .mode = FI_CONTEXT2,                                    /* [man] Modes */
    .mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM, /* [man] */
    .address_format = FI_ADDR_EFA,
    .address_bytes = 32,
    .key_bytes = 4,
    .immediate_bytes = 4,
    .tx_size = 4096, .iov_limit = 1, .rma_iov_limit = 1, .inject_size = 32,
    .max_write_bytes = 1ull << 30,                          /* [man] "maximum RDMA size of the device" */
    .since = FI_VERSION(2, 1),
    .hardware = 1,
    .aborts_without_event_queue = 1,
    .wants_initiator_known = 1,                             /* [man] RMA operations */
    .write_flags = 1ull << 60,
    .write_flags_since = FI_VERSION(2, 6),
    .options = { { 11, 1, 0 }, { 10, 1, 0 } },              /* [src] efa_ep_setopt takes and ignores both */
};

/* ConnectX-7 through rxm. [src] verbs_info.c, [man] fi_verbs(7), fi_rxm(7); no listing was found. */
static const struct description verbs_cx7 = {
    .provider = "verbs;ofi_rxm",
    .fabric = "IB-0xfe80000000000000",                      /* [rec] of an irdma device */
    .domains = { "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7" },
    .caps = RDMA_CAPS | FI_HMEM | FI_LOCAL_COMM | FI_REMOTE_COMM,
    .mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, /* [src] */
    .optional_mr_mode = FI_MR_HMEM,
    .address_format = FI_SOCKADDR_IN,
    .address_bytes = 16,
    .key_bytes = 4,
    .immediate_bytes = 4,                                   /* [src] */
    .tx_size = 384,                                         /* [src] */
    .iov_limit = 4, .rma_iov_limit = 1, .inject_size = 64,
    .max_write_bytes = 1ull << 30,                          /* [src] port_attr.max_msg_sz */
    .since = FI_VERSION(1, 17),
    .hardware = 1,
    .has_wait_fd = 1,
};

static const struct description tcp_2_5 = {
    .provider = "tcp",                                      /* [here], as all of it */
    .fabric = "127.0.0.0/8",
    .domains = { "eth0", "lo" },
    .caps = RDMA_CAPS | FI_LOCAL_COMM | FI_REMOTE_COMM,     /* HMEM is refused */
    .mr_mode = 0,
    .address_format = FI_SOCKADDR_IN,
    .address_bytes = 16,
    .key_bytes = 8,
    .immediate_bytes = 8,
    .tx_size = 256, .iov_limit = 4, .rma_iov_limit = 4, .inject_size = 128,
    .max_write_bytes = UINT64_MAX,
    .since = FI_VERSION(2, 0),
    .has_wait_fd = 1,
};

static const struct description tcp_rxm_1_17 = {
    .provider = "tcp;ofi_rxm",                              /* [here] */
    .fabric = "127.0.0.0/8",
    .domains = { "eth0", "lo" },
    .caps = RDMA_CAPS | FI_LOCAL_COMM | FI_REMOTE_COMM,
    .mr_mode = 0,
    .address_format = FI_SOCKADDR_IN,
    .address_bytes = 16,
    .key_bytes = 8,
    .immediate_bytes = 8,
    .tx_size = 2048, .iov_limit = 4, .rma_iov_limit = 4, .inject_size = 16384,
    .max_write_bytes = UINT64_MAX,
    .since = FI_VERSION(1, 17),
    .has_wait_fd = 1,
};

static const struct description shm = {
    .provider = "shm",                                      /* [here] */
    .fabric = "shm",
    .domains = { "shm" },
    .caps = RDMA_CAPS | FI_HMEM | FI_LOCAL_COMM,
    .mr_mode = 0,
    .optional_mr_mode = FI_MR_VIRT_ADDR,                    /* comes back where it is offered */
    .address_format = FI_ADDR_STR,
    .address_bytes = 32,
    .key_bytes = 8,
    .immediate_bytes = 8,
    .tx_size = 1024, .iov_limit = 4, .rma_iov_limit = 4, .inject_size = 4096,
    .max_write_bytes = UINT64_MAX,
    .since = FI_VERSION(1, 17),
};

/* No device at all, but what the address and key rules of fi_mr(3) permit and none of the others does:
 * offsets, keys of ours that have one byte, a small queue, few segments. */
static const struct description odd = {
    .provider = "odd",
    .fabric = "odd",
    .domains = { "odd0", "odd1" },
    .caps = RDMA_CAPS,
    .mode = FI_CONTEXT,
    .mr_mode = FI_MR_LOCAL,
    .address_format = FI_FORMAT_UNSPEC,
    .address_bytes = 5,
    .key_bytes = 1,
    .immediate_bytes = 4,
    .tx_size = 8, .iov_limit = 3, .rma_iov_limit = 2, .inject_size = 0,
    .max_write_bytes = 64 << 10,
    .since = FI_VERSION(1, 17),
};

static const struct machine machines[] = {
    { "p5", FI_VERSION(2, 6), { &efa_direct_p5, &efa_p5, &tcp_2_5, &shm } },
    { "p5-libfabric-2.5", FI_VERSION(2, 5), { &efa_direct_p5, &efa_p5, &tcp_2_5, &shm } },
    { "p5-libfabric-1.17", FI_VERSION(1, 17), { &efa_p5, &tcp_rxm_1_17, &shm } },
    { "hgx-h100-cx7", FI_VERSION(2, 5), { &verbs_cx7, &tcp_2_5, &tcp_rxm_1_17, &shm } },
    { "laptop", FI_VERSION(2, 5), { &tcp_2_5, &tcp_rxm_1_17, &shm } },
    { "debian-12", FI_VERSION(1, 17), { &tcp_rxm_1_17, &shm } },
    { "odd", FI_VERSION(2, 5), { &odd } },
    { "bare", FI_VERSION(2, 5), { 0 } },
};

const struct machine *machine_named(const char *name)
{
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        if (strcmp(machines[i].name, name) == 0)
            return &machines[i];
    return NULL;
}
