#include "engines.h"

#include <rdma/fi_domain.h>
#include <stdlib.h>

spf_library *library;
const char *provider;

void open_library(void)
{
    const char *path = getenv("LIBFABRIC");
    spf_error err = { 0 };
    if (spf_library_open(path ? path : "libfabric.so.1", &library, &err)) {
        printf("%s\n", err.text);
        exit(1);
    }
}

spf_engine_config plain_config(void)
{
    int tcp = strcmp(provider, "tcp") == 0;
    return (spf_engine_config){
        .profile = { .provider = provider,
                     .mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
                     .write_bytes = 1u << 20,
                     .segments = 4,
                     .window = 512,
                     .peer_window = 256,
                     .wait_fd = tcp },
        .nics = { { .source = tcp ? "127.0.0.1" : NULL } },
        .nic_count = 1,
        .slot_count = 64,
        .spin_ns = 50000,
        .stall_ns = 10000000000u,
    };
}

struct side open_configured_side(uint64_t bytes, const spf_engine_config *config)
{
    struct side side = { .bytes = bytes, .memory = calloc(1, bytes) };
    spf_error err = { 0 };
    if (spf_engine_open(library, config, &side.engine, &err) ||
        register_host(side.engine, side.memory, bytes, &side.region, &err)) {
        printf("%s\n", err.text);
        CHECK(!"an engine opens");
    }
    return side;
}

struct side open_side(uint64_t bytes)
{
    spf_engine_config config = plain_config();
    return open_configured_side(bytes, &config);
}

void close_side(struct side *side)
{
    spf_engine_close(side->engine, 0);
    free(side->memory);
}

spf_peer *introduce(struct side *from, struct side *to)
{
    spf_nic_info nic;
    spf_engine_nic(to->engine, 0, &nic);
    spf_remote_region remote = { .base = to->region.base, .bytes = to->bytes, .keys = { to->region.keys[0] } };
    spf_peer *peer = NULL;
    CHECK_EQUAL(spf_peer_add(from->engine, nic.address, 1, &remote, 1, 0, &peer, NULL), 0);
    return peer;
}

spf_transfer *send_all(struct side *from, spf_peer *peer, uint32_t slot, uint32_t generation,
                       uint64_t page_bytes)
{
    uint32_t pages = (uint32_t)(from->bytes / page_bytes);
    uint32_t *order = malloc(pages * sizeof *order);
    for (uint32_t i = 0; i < pages; i++)
        order[i] = i;
    spf_copy copy = { .src_stride = page_bytes, .dst_stride = page_bytes, .bytes = page_bytes };
    spf_transfer *transfer = NULL;
    CHECK_EQUAL(spf_transfer_open(from->engine, peer, slot, generation, 0, &transfer, NULL), 0);
    CHECK_EQUAL(spf_transfer_submit(transfer, &copy, 1, order, order, pages, 0, NULL), 0);
    free(order);
    return transfer;
}

spf_transfer_status status_of(const spf_transfer *transfer)
{
    spf_transfer_status status;
    spf_transfer_status_read(transfer, &status);
    return status;
}

int quiet(const spf_transfer *transfer)
{
    spf_transfer_status status = status_of(transfer);
    return status.plans_finished == status.plans_submitted;
}

void fill(struct side *side, uint64_t seed)
{
    for (uint64_t i = 0; i < side->bytes; i++)
        side->memory[i] = (uint8_t)(check_random(&seed) >> 32);
}

int run_over_providers(const struct check_case *cases, size_t count, const char *only)
{
    static const char *const providers[] = { "tcp", "shm" };
    const char *wanted = getenv("PROVIDER");
    int rc = 0;
    open_library();
    for (size_t i = 0; i < sizeof providers / sizeof *providers; i++) {
        provider = providers[i];
        if (wanted && strcmp(wanted, provider) != 0)
            continue;
        printf("-- %s\n", provider);
        rc |= check_run(cases, count, only);
    }
    spf_library_close(library);
    return rc;
}
