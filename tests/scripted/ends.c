#include "ends.h"

#include <rdma/fi_domain.h>

#define SERVED (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)
#define EFA_OPTIONS                                   \
    .options = { { 11, 1, 0 }, { -(0xefa << 16), 8, 7 } }

static const struct {
    const char *name;
    spf_profile profile;
    const char *domains[4];
} known[] = {
    { "efa",
      { .provider = "efa", .fabric = "efa", .api_version = FI_VERSION(1, 20), .segments = 1,
        .outlives = 1, .event_queue = 1, .emulation = -(0xefa << 16) + 2, .option_count = 2, EFA_OPTIONS },
      { "rdmap79s0-rdm", "rdmap80s0-rdm", "rdmap81s0-rdm", "rdmap82s0-rdm" } },
    { "efa-direct",
      { .provider = "efa", .fabric = "efa-direct", .api_version = FI_VERSION(1, 20), .segments = 1,
        .outlives = 1, .event_queue = 1, .option_count = 1, EFA_OPTIONS },
      { "rdmap79s0-rdm", "rdmap80s0-rdm", "rdmap81s0-rdm", "rdmap82s0-rdm" } },
    { "verbs",
      { .provider = "verbs;ofi_rxm", .api_version = FI_VERSION(1, 20), .segments = 1, .outlives = 1,
        .wait_fd = 1 },
      { "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3" } },
    { "tcp", { .provider = "tcp", .segments = 4, .wait_fd = 1 }, { "eth0", "lo" } },
    { "shm", { .provider = "shm", .segments = 4 }, { "shm", "shm" } },
    { "odd", { .provider = "odd", .segments = 8 }, { "odd0", "odd1" } },
};

spf_library *enter(const char *machine)
{
    spf_library *library = NULL;
    spf_error err = { 0 };
    scripted_machine(machine);
    if (spf_library_open("libscripted.so", &library, &err)) {
        printf("%s\n", err.text);
        CHECK(!"the scripted provider opens");
    }
    return library;
}

spf_engine_config config_for(const char *profile, uint32_t nics)
{
    spf_engine_config config = { .nic_count = nics, .slot_count = 64, .spin_ns = 1000,
                                 .stall_ns = 60000000000u };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, profile) != 0)
            continue;
        config.profile = known[i].profile;
        for (uint32_t n = 0; n < nics; n++)
            config.nics[n].domain = known[i].domains[n];
    }
    CHECK(config.profile.provider);
    config.profile.mr_mode = SERVED;
    config.profile.write_bytes = 1u << 20;
    config.profile.window = 32;
    config.profile.peer_window = 16;
    config.profile.queue_entries = 256;
    return config;
}

struct end open_end(spf_library *library, const spf_engine_config *config, uint64_t bytes)
{
    struct end end = { .bytes = bytes, .memory = calloc(1, bytes), .nics = config->nic_count };
    spf_error err = { 0 };
    if (spf_engine_open(library, config, &end.engine, &err) ||
        register_host(end.engine, end.memory, bytes, &end.region, &err)) {
        printf("%s\n", err.text);
        CHECK(!"an engine opens");
    }
    return end;
}

void close_end(struct end *end)
{
    spf_engine_close(end->engine, 0);
    free(end->memory);
}

spf_peer *introduce(struct end *from, struct end *to, int with_regions)
{
    uint8_t addresses[SPF_MAX_NICS * SPF_ADDRESS_BYTES];
    spf_remote_region remote = { .base = to->region.base, .bytes = to->bytes };
    for (uint32_t i = 0; i < to->nics; i++) {
        spf_nic_info nic;
        spf_engine_nic(to->engine, i, &nic);
        memcpy(addresses + (size_t)i * SPF_ADDRESS_BYTES, nic.address, SPF_ADDRESS_BYTES);
        remote.keys[i] = to->region.keys[i];
    }
    spf_peer *peer = NULL;
    CHECK_EQUAL(spf_peer_add(from->engine, addresses, to->nics, &remote, with_regions ? 1 : 0, 0, &peer, NULL), 0);
    return peer;
}

spf_transfer *send_pages(struct end *from, spf_peer *peer, uint32_t slot, uint32_t generation,
                         uint64_t page_bytes, uint64_t seed)
{
    uint32_t pages = (uint32_t)pages_of(from, page_bytes);
    uint32_t *order = malloc(pages * sizeof *order);
    /* No page follows its predecessor: every page is a write, or a segment, of its own. */
    uint32_t step = seed ? 3 + 2 * (uint32_t)(seed % (pages / 2 - 2)) : 1;
    for (uint32_t i = 0; i < pages; i++)
        order[i] = (i * step + (uint32_t)seed) % pages;
    spf_copy copy = { .src_stride = page_bytes, .dst_stride = page_bytes, .bytes = page_bytes };
    spf_transfer *transfer = NULL;
    CHECK_EQUAL(spf_transfer_open(from->engine, peer, slot, generation, 0, &transfer, NULL), 0);
    CHECK_EQUAL(spf_transfer_submit(transfer, &copy, 1, order, order, pages, 0, NULL), 0);
    free(order);
    return transfer;
}

void fill(struct end *end, uint64_t seed)
{
    for (uint64_t i = 0; i < end->bytes; i++)
        end->memory[i] = (uint8_t)(check_random(&seed) >> 32);
}

uint64_t pages_of(const struct end *end, uint64_t page_bytes)
{
    return end->bytes / page_bytes;
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

spf_engine_stats stats_of(const struct end *end)
{
    spf_engine_stats stats;
    spf_engine_stats_read(end->engine, &stats);
    return stats;
}

struct scripted_seen look(void)
{
    struct scripted_seen seen;
    scripted_look(&seen);
    return seen;
}

void leave(spf_library *library)
{
    struct scripted_seen seen = look();
    if (seen.violations)
        printf("%s\n", seen.violation);
    CHECK_EQUAL(seen.violations, 0);
    CHECK_EQUAL(seen.open_objects, 0);
    spf_library_close(library);
}
