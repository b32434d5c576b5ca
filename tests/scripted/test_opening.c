/* What is asked of fi_getinfo and made of its answer, for each recorded provider. */
#include <rdma/fi_errno.h>

#include "ends.h"
#include "library.h"
#include "nic.h"

static const struct {
    const char *machine, *profile, *provider, *fabric;
} pairs[] = {
    { "p5", "efa", "efa", "efa" },
    { "p5", "efa-direct", "efa", "efa-direct" },
    { "p5", "tcp", "tcp", "127.0.0.0/8" },
    { "p5-libfabric-2.5", "efa", "efa", "efa" },
    { "p5-libfabric-1.17", "efa", "efa", "efa" },
    { "hgx-h100-cx7", "verbs", "verbs;ofi_rxm", "IB-0xfe80000000000000" },
    { "hgx-h100-cx7", "tcp", "tcp", "127.0.0.0/8" },
    { "laptop", "shm", "shm", "shm" },
    { "debian-12", "tcp", "tcp;ofi_rxm", "127.0.0.0/8" },
    { "debian-12", "shm", "shm", "shm" },
    { "odd", "odd", "odd", "odd" },
};

static void move_bytes(spf_library *library, const spf_engine_config *config, uint64_t page_bytes)
{
    struct end from = open_end(library, config, 64 * page_bytes);
    struct end to = open_end(library, config, 64 * page_bytes);
    spf_peer *back = introduce(&to, &from, 0), *peer = introduce(&from, &to, 1);
    fill(&from, page_bytes);
    for (uint32_t slot = 0; slot < 3; slot++) {
        spf_transfer *transfer = send_pages(&from, peer, slot, 1, page_bytes, slot);
        WAIT_FOR(spf_slot_units(to.engine, slot) == 64);
        CHECK(memcmp(from.memory, to.memory, from.bytes) == 0);
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, 0);
        spf_transfer_release(transfer);
    }
    spf_peer_remove(from.engine, peer);
    spf_peer_remove(to.engine, back);
    close_end(&from);
    close_end(&to);
}

static void every_recorded_provider_opens_and_moves_bytes(void)
{
    static const uint64_t sizes[] = { 1, 1024, 16384 };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (uint32_t nics = 1; nics <= 2; nics++) {
                spf_library *library = enter(pairs[i].machine);
                spf_engine_config config = config_for(pairs[i].profile, nics);
                move_bytes(library, &config, sizes[s]);
                leave(library);
            }
}

static void the_answer_that_is_taken_is_the_one_that_was_meant(void)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        spf_library *library = enter(pairs[i].machine);
        spf_engine_config config = config_for(pairs[i].profile, 1);
        struct end end = open_end(library, &config, PAGE);
        spf_nic_info nic;
        spf_engine_nic(end.engine, 0, &nic);
        CHECK(strcmp(nic.provider, pairs[i].provider) == 0);
        CHECK(strcmp(nic.fabric, pairs[i].fabric) == 0);
        CHECK(!config.nics[0].domain || strcmp(nic.domain, config.nics[0].domain) == 0);
        close_end(&end);
        leave(library);
    }
}

static int emulated(const char *machine, uint32_t api)
{
    spf_library *library = enter(machine);
    spf_engine_config config = config_for("efa", 1);
    config.profile.api_version = api;
    struct end end = open_end(library, &config, PAGE);
    spf_nic_info nic;
    spf_engine_nic(end.engine, 0, &nic);
    close_end(&end);
    leave(library);
    return nic.emulated;
}

static void efa_is_asked_for_with_an_interface_that_offloads_writes(void)
{
    CHECK_EQUAL(emulated("p5", FI_VERSION(1, 20)), 0);
    CHECK_EQUAL(emulated("p5", FI_VERSION(1, 17)), 1);                /* what 1.17 headers would ask for */
    CHECK_EQUAL(emulated("p5-libfabric-1.17", FI_VERSION(1, 20)), 1); /* more than the library has */
}

static void options_are_set_before_the_start_and_unknown_ones_left_out(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    config.profile.options[config.profile.option_count++] = (spf_option){ 4711, 4, 1 };
    struct end end = open_end(library, &config, PAGE);
    spf_nic_info nic;
    spf_engine_nic(end.engine, 0, &nic);
    CHECK_EQUAL(nic.options, 3);
    close_end(&end);
    leave(library);
}

static void an_option_that_is_refused_is_named(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    config.profile.options[config.profile.option_count++] = (spf_option){ 10, 1, 0 }; /* there is no CUDA */
    spf_engine *engine = NULL;
    spf_error err = { 0 };
    CHECK_EQUAL(spf_engine_open(library, &config, &engine, &err), -EINVAL);
    CHECK(strstr(err.text, "fi_setopt 10") && strstr(err.text, "rdmap79s0-rdm"));
    leave(library);
}

static void refuse(spf_library *library, const spf_engine_config *config, const char *word)
{
    spf_engine *engine = NULL;
    spf_error err = { 0 };
    CHECK(spf_engine_open(library, config, &engine, &err) < 0);
    if (!strstr(err.text, word))
        printf("%s\n", err.text);
    CHECK(strstr(err.text, word));
}

static void a_provider_that_is_not_there_is_named_and_nothing_stays_open(void)
{
    spf_library *library = enter("laptop");
    spf_engine_config config = config_for("efa", 1);
    refuse(library, &config, "provider efa, domain rdmap79s0-rdm");
    config = config_for("tcp", 2);
    config.nics[1].domain = "eth7"; /* the first NIC opens */
    refuse(library, &config, "eth7");
    config = config_for("tcp", 1);
    config.profile.fabric = "10.0.0.0/8";
    refuse(library, &config, "fi_getinfo");
    config = config_for("shm", 1);
    config.profile.wait_fd = 1;
    refuse(library, &config, "fi_cq_open");
    leave(library);
}

static void a_gpu_is_wanted_only_from_providers_that_have_it(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("tcp", 1);
    config.profile.caps = FI_HMEM;
    config.profile.mr_mode |= FI_MR_HMEM;
    refuse(library, &config, "fi_getinfo");
    config = config_for("efa", 1);
    config.profile.caps = FI_HMEM;
    config.profile.mr_mode |= FI_MR_HMEM;
    struct end end = open_end(library, &config, PAGE);
    spf_nic_info nic;
    spf_engine_nic(end.engine, 0, &nic);
    CHECK(nic.mr_mode & FI_MR_HMEM);
    close_end(&end);
    leave(library);
}

static void an_internal_error_is_told_once_through_the_event_queue(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    struct spf_nic nic;
    CHECK_EQUAL(spf_nic_open(&nic, library, &config.profile, &config.nics[0], NULL), 0);
    CHECK_EQUAL(spf_nic_failure(&nic), 0);
    scripted_internal_error("rdmap79s0-rdm", FI_EIO);
    CHECK_EQUAL(spf_nic_failure(&nic), -FI_EIO);
    CHECK_EQUAL(spf_nic_failure(&nic), 0);
    spf_nic_close(&nic, library);
    leave(library);
}

static void without_an_event_queue_efa_would_end_the_process(void)
{
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    struct spf_nic nic;
    config.profile.event_queue = 0;
    CHECK_EQUAL(spf_nic_open(&nic, library, &config.profile, &config.nics[0], NULL), 0);
    CHECK_EQUAL(spf_nic_failure(&nic), 0);
    scripted_internal_error("rdmap79s0-rdm", FI_EIO);
    CHECK(strstr(look().violation, "abort()"));
    spf_nic_close(&nic, library);
    scripted_machine("bare");
    spf_library_close(library);
}

static void flags_of_a_newer_library_reach_it(void)
{
    const uint64_t high_pps = 1ull << 60;
    spf_library *library = enter("p5");
    spf_engine_config config = config_for("efa", 1);
    config.profile.write_flags = high_pps;
    move_bytes(library, &config, PAGE);
    CHECK(look().flags & high_pps);
    leave(library);
    library = enter("p5-libfabric-2.5");
    config.profile.write_flags = 0; /* what profiles.py gives for 2.5 */
    move_bytes(library, &config, PAGE);
    leave(library);
}

static void a_newer_library_is_asked_for_what_the_headers_know_unless_a_profile_wants_more(void)
{
    spf_library *library = enter("p5");
    CHECK_EQUAL(spf_library_api_version(library, 0), spf_header_version());
    CHECK_EQUAL(spf_library_api_version(library, FI_VERSION(1, 20)), FI_VERSION(1, 20));
    CHECK_EQUAL(spf_library_api_version(library, FI_VERSION(9, 0)), FI_VERSION(2, 6));
    leave(library);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(every_recorded_provider_opens_and_moves_bytes),
        CASE(the_answer_that_is_taken_is_the_one_that_was_meant),
        CASE(efa_is_asked_for_with_an_interface_that_offloads_writes),
        CASE(options_are_set_before_the_start_and_unknown_ones_left_out),
        CASE(an_option_that_is_refused_is_named),
        CASE(a_provider_that_is_not_there_is_named_and_nothing_stays_open),
        CASE(a_gpu_is_wanted_only_from_providers_that_have_it),
        CASE(an_internal_error_is_told_once_through_the_event_queue),
        CASE(without_an_event_queue_efa_would_end_the_process),
        CASE(flags_of_a_newer_library_reach_it),
        CASE(a_newer_library_is_asked_for_what_the_headers_know_unless_a_profile_wants_more),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
