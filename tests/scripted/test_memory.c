/* Registration: host memory, memory of a GPU by dmabuf and by address, many NICs at once, refusals. */
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include "ends.h"

#define ROUNDS 20

static spf_engine_config config_with_gpu(uint32_t nics)
{
    spf_engine_config config = config_for("efa-direct", nics);
    config.profile.caps = FI_HMEM;
    config.profile.mr_mode |= FI_MR_HMEM;
    return config;
}

static struct scripted_registrations registrations(void)
{
    struct scripted_registrations seen;
    scripted_registrations_look(&seen);
    return seen;
}

/* Nobody reads it: any address does for a GPU. */
static spf_memory on_gpu(uint64_t address, int dmabuf_fd, uint64_t offset)
{
    return (spf_memory){ address, 3 * PAGE, .cuda_device = 5, .dmabuf_fd = dmabuf_fd, .dmabuf_offset = offset };
}

static spf_memory on_host(const struct end *end, uint64_t page)
{
    return (spf_memory){ (uint64_t)(uintptr_t)end->memory + page * PAGE, PAGE, .cuda_device = -1, .dmabuf_fd = -1 };
}

static int register_one(const struct end *end, spf_memory memory, spf_region_info *out, spf_error *err)
{
    uint32_t done;
    return spf_regions_register(end->engine, &memory, 1, 0, out, &done, err);
}

static void memory_of_a_gpu_is_registered_as_such(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_with_gpu(2);
    struct end end = open_end(library, &config, PAGE);
    spf_region_info region;
    CHECK_EQUAL(register_one(&end, on_gpu(1 << 20, -1, 0), &region, NULL), 0);
    CHECK_EQUAL(registrations().host, 2); /* the end's own */
    CHECK_EQUAL(registrations().cuda, 2);
    CHECK_EQUAL(registrations().dmabuf, 0);
    CHECK_EQUAL(registrations().device, 5);
    CHECK_EQUAL(region.base, 1 << 20);
    CHECK(!region.by_dmabuf[0] && !region.by_dmabuf[1]);
    close_end(&end);
    leave(library);
}

static void a_dmabuf_goes_to_every_nic_with_the_offset_of_the_memory_in_it(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_with_gpu(2);
    struct end end = open_end(library, &config, PAGE);
    spf_region_info region;
    CHECK_EQUAL(register_one(&end, on_gpu((1 << 20) + 512, STDOUT_FILENO, 512), &region, NULL), 0);
    CHECK_EQUAL(registrations().dmabuf, 2);
    CHECK_EQUAL(registrations().fd, STDOUT_FILENO);
    CHECK_EQUAL(registrations().offset, 512);
    CHECK_EQUAL(registrations().bytes, 3 * PAGE);
    CHECK_EQUAL(registrations().base, 1 << 20);
    CHECK_EQUAL(region.base, (1 << 20) + 512);
    CHECK(region.by_dmabuf[0] && region.by_dmabuf[1] && !region.by_dmabuf[2]);
    close_end(&end);
    leave(library);
}

static void a_dmabuf_that_is_refused_gives_way_to_the_address(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_with_gpu(1);
    struct end end = open_end(library, &config, PAGE);
    spf_region_info region;
    scripted_refuse_dmabuf(-FI_EOPNOTSUPP);
    CHECK_EQUAL(register_one(&end, on_gpu(1 << 20, STDOUT_FILENO, 0), &region, NULL), 0);
    CHECK_EQUAL(registrations().dmabuf, 0);
    CHECK_EQUAL(registrations().cuda, 1);
    CHECK(!region.by_dmabuf[0]);
    close_end(&end);
    leave(library);
}

static void an_old_interface_is_never_asked_for_a_dmabuf(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_with_gpu(1);
    config.profile.api_version = FI_VERSION(1, 18);
    struct end end = open_end(library, &config, PAGE);
    spf_region_info region;
    CHECK_EQUAL(register_one(&end, on_gpu(1 << 20, STDOUT_FILENO, 0), &region, NULL), 0);
    CHECK(!region.by_dmabuf[0]);
    close_end(&end);
    leave(library); /* the provider would have called it a violation */
}

static void where_neither_works_the_error_has_both_reasons(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_with_gpu(1);
    struct end end = open_end(library, &config, PAGE);
    spf_region_info region;
    spf_error err = { 0 };
    scripted_refuse_dmabuf(-FI_EOPNOTSUPP);
    scripted_refuse_registration(0, SCRIPTED_ALL, -FI_EFAULT);
    CHECK_EQUAL(register_one(&end, on_gpu(1 << 20, STDOUT_FILENO, 0), &region, &err), -FI_EFAULT);
    /* On whichever of the two is first to fail. */
    CHECK(strstr(err.text, "fi_mr_regattr of 12288 bytes at 0x100000 on rdmap"));
    CHECK(strstr(err.text, "as dmabuf: Operation not supported"));
    CHECK(strstr(err.text, "by address: Bad address"));
    close_end(&end);
    leave(library);
}

static void all_nics_register_at_the_same_time(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 4);
    for (int round = 0; round < ROUNDS; round++) {
        struct end end = open_end(library, &config, 8 * PAGE);
        spf_memory memories[8];
        spf_region_info regions[8];
        uint32_t done;
        for (uint32_t i = 0; i < 8; i++)
            memories[i] = on_host(&end, i);
        scripted_register_together(4); /* returns only when all four are inside */
        CHECK_EQUAL(spf_regions_register(end.engine, memories, 8, UINT64_MAX, regions, &done, NULL), 0);
        CHECK_EQUAL(done, 8);
        for (uint32_t i = 0; i < 8; i++) {
            CHECK_EQUAL(regions[i].region, i + 1);
            for (uint32_t n = 1; n < 4; n++)
                CHECK(regions[i].keys[n] != regions[i].keys[0]);
        }
        close_end(&end);
    }
    leave(library);
}

static void a_spent_budget_ends_the_call_and_the_caller_comes_again(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 2);
    struct end end = open_end(library, &config, 5 * PAGE);
    spf_memory memories[5];
    spf_region_info regions[5];
    uint32_t total = 0, done;
    for (uint32_t i = 0; i < 5; i++)
        memories[i] = on_host(&end, i);
    for (; total < 5; total += done) {
        CHECK_EQUAL(spf_regions_register(end.engine, memories + total, 5 - total, 0, regions + total, &done, NULL), 0);
        CHECK_EQUAL(done, 1);
        CHECK_EQUAL(regions[total].region, total + 1);
    }
    CHECK_EQUAL(registrations().host, 2 * 6);
    close_end(&end);
    leave(library);
}

static void when_one_memory_fails_those_of_the_call_are_closed_and_it_is_named(void)
{
    spf_library *library = enter("p5");
    for (uint32_t nics = 1; nics <= 4; nics++)
        for (uint64_t after = 0; after < 6; after++) {
            spf_engine_config config = config_for("efa", nics);
            struct end end = open_end(library, &config, 6 * PAGE);
            spf_memory memories[6];
            spf_region_info regions[6];
            spf_error err = { 0 };
            uint32_t done;
            for (uint32_t i = 0; i < 6; i++)
                memories[i] = on_host(&end, i);
            uint64_t open = look().open_objects;
            scripted_refuse_registration(after * nics, 1, -FI_ENOMEM);
            CHECK_EQUAL(spf_regions_register(end.engine, memories, 6, UINT64_MAX, regions, &done, &err), -FI_ENOMEM);
            CHECK_EQUAL(look().open_objects, open);
            if (nics == 1)
                CHECK_EQUAL(done, after);
            char address[32];
            snprintf(address, sizeof address, "at %#llx on", (unsigned long long)memories[done].address);
            CHECK(strstr(err.text, address) && strstr(err.text, "Cannot allocate memory"));
            CHECK_EQUAL(spf_regions_register(end.engine, memories, 6, UINT64_MAX, regions, &done, &err), 0);
            CHECK_EQUAL(regions[0].region, 1);
            close_end(&end);
        }
    leave(library);
}

static void nothing_is_registered_of_a_list_that_makes_no_sense(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    struct end end = open_end(library, &config, PAGE);
    spf_memory memories[2] = { on_host(&end, 0), on_host(&end, 0) };
    spf_region_info regions[2];
    uint32_t done;
    memories[1].bytes = UINT64_MAX;
    CHECK_EQUAL(spf_regions_register(end.engine, memories, 2, 0, regions, &done, NULL), -EINVAL);
    CHECK_EQUAL(done, 1);
    memories[1].bytes = 0;
    CHECK_EQUAL(spf_regions_register(end.engine, memories, 2, 0, regions, &done, NULL), -EINVAL);
    CHECK_EQUAL(registrations().host, 1);
    CHECK_EQUAL(spf_regions_register(end.engine, memories, 0, 0, regions, &done, NULL), 0);
    CHECK_EQUAL(done, 0);
    close_end(&end);
    leave(library);
}

static void the_table_of_regions_has_an_end_and_what_is_closed_makes_room(void)
{
    static spf_memory memories[SPF_MAX_REGIONS];
    static spf_region_info regions[SPF_MAX_REGIONS];
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 2);
    struct end end = open_end(library, &config, PAGE);
    spf_error err = { 0 };
    uint32_t done;
    for (uint32_t i = 0; i < SPF_MAX_REGIONS; i++)
        memories[i] = on_host(&end, 0);
    CHECK_EQUAL(spf_regions_register(end.engine, memories, SPF_MAX_REGIONS, UINT64_MAX, regions, &done, &err), -ENOSPC);
    CHECK(strstr(err.text, "1 memory regions are registered, 8192 more are wanted; 8192 are possible"));
    CHECK_EQUAL(spf_regions_close(end.engine, 0, 0, NULL), 0);
    CHECK_EQUAL(spf_regions_register(end.engine, memories, 40, UINT64_MAX, regions, &done, NULL), 0);
    CHECK_EQUAL(regions[39].region, 39);
    CHECK_EQUAL(spf_regions_close(end.engine, 41, 0, NULL), -EINVAL);
    CHECK_EQUAL(spf_regions_close(end.engine, 40, 0, NULL), 0);
    CHECK_EQUAL(spf_regions_close(end.engine, 10, 0, NULL), 0);
    CHECK_EQUAL(register_one(&end, memories[0], regions, NULL), 0);
    CHECK_EQUAL(regions[0].region, 10);
    close_end(&end);
    leave(library);
}

static void memory_under_writes_stays_registered_unless_no_plan_can_mean_it(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 2);
    struct end from = open_end(library, &config, 16 * PAGE), to = open_end(library, &config, 16 * PAGE);
    spf_error err = { 0 };
    fill(&from, 9);
    spf_peer *peer = introduce(&from, &to, 1);
    scripted_hold(1);
    spf_transfer *transfer = send_pages(&from, peer, 1, 1, PAGE, 3);
    CHECK_EQUAL(spf_regions_close(from.engine, 0, 0, &err), -EBUSY);
    CHECK(strstr(err.text, "writes are under way"));
    spf_region_info region;
    CHECK_EQUAL(register_one(&from, on_host(&to, 0), &region, NULL), 0);
    CHECK_EQUAL(spf_regions_close(from.engine, region.region, 1, NULL), 0);
    scripted_hold(0);
    WAIT_FOR(quiet(transfer));
    CHECK_EQUAL(spf_regions_close(from.engine, 0, 0, NULL), 0);
    spf_transfer_release(transfer);
    close_end(&from);
    close_end(&to);
    leave(library);
}

static void other_memory_may_be_registered_while_pages_move(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 4);
    struct end from = open_end(library, &config, 256 * PAGE), to = open_end(library, &config, 256 * PAGE);
    spf_peer *peer = introduce(&from, &to, 1);
    for (uint32_t slot = 1; slot <= ROUNDS; slot++) {
        spf_region_info region;
        fill(&from, slot);
        spf_transfer *transfer = send_pages(&from, peer, slot, 1, PAGE, slot);
        CHECK_EQUAL(register_one(&from, on_host(&from, slot), &region, NULL), 0);
        CHECK_EQUAL(register_one(&to, on_host(&to, slot), &region, NULL), 0);
        WAIT_FOR(quiet(transfer) && spf_slot_units(to.engine, slot) == 256);
        CHECK_EQUAL(status_of(transfer).error, 0);
        CHECK(memcmp(from.memory, to.memory, from.bytes) == 0);
        spf_transfer_release(transfer);
    }
    close_end(&from);
    close_end(&to);
    leave(library);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(memory_of_a_gpu_is_registered_as_such),
        CASE(a_dmabuf_goes_to_every_nic_with_the_offset_of_the_memory_in_it),
        CASE(a_dmabuf_that_is_refused_gives_way_to_the_address),
        CASE(an_old_interface_is_never_asked_for_a_dmabuf),
        CASE(where_neither_works_the_error_has_both_reasons),
        CASE(all_nics_register_at_the_same_time),
        CASE(a_spent_budget_ends_the_call_and_the_caller_comes_again),
        CASE(when_one_memory_fails_those_of_the_call_are_closed_and_it_is_named),
        CASE(nothing_is_registered_of_a_list_that_makes_no_sense),
        CASE(the_table_of_regions_has_an_end_and_what_is_closed_makes_room),
        CASE(memory_under_writes_stays_registered_unless_no_plan_can_mean_it),
        CASE(other_memory_may_be_registered_while_pages_move),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
