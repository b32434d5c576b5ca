/* Plans: what is refused, and how what is accepted is cut into writes. Every cut is compared with the
 * plain list of pages that the plan means. */
#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "slots.h"
#include "transfer.h"

#define SRC_BYTES 1000000u
#define DST_BYTES 2000000u

static struct fid_mr memory = { .mem_desc = &memory };
static struct spf_region regions[2];
static spf_transfer transfer;

static uint64_t max_bytes = UINT64_MAX; /* in one write, by the NICs */

static void build_world(void)
{
    for (uint32_t i = 0; i < 2; i++)
        regions[i] = (struct spf_region){
            .address = (uint8_t *)(uintptr_t)(0x10000000u * (i + 1)), .bytes = SRC_BYTES, .mr = { &memory }
        };
    spf_peer *peer = calloc(1, sizeof *peer + 2 * sizeof *peer->regions);
    peer->nic_count = 1;
    peer->region_count = 2;
    for (uint32_t i = 0; i < 2; i++)
        peer->regions[i] = (spf_remote_region){ .base = (i + 1) * 0x70000000u, .bytes = DST_BYTES, .keys = { 77 + i } };
    transfer.peer = peer;
}

static int make(struct spf_plan **plan, const spf_copy *copies, uint32_t copy_count, const uint32_t *src,
                const uint32_t *dst, uint32_t pages, spf_error *err)
{
    int rc = spf_plan_create(&transfer, regions, 2, copies, copy_count, src, dst, pages, 0, max_bytes, plan, err);
    return rc ? rc : spf_plan_start(*plan);
}

static int verdict(spf_copy copy, uint32_t src, uint32_t dst)
{
    struct spf_plan *plan = NULL;
    spf_error err = { 0 };
    int rc = make(&plan, &copy, 1, &src, &dst, 1, &err);
    if (rc == 0)
        spf_plan_destroy(plan);
    else
        CHECK(strstr(err.text, "copy 0"));
    return rc;
}

/* One page of each copy, in order; walks along with the writes. */
struct walk {
    const spf_copy *copies;
    const uint32_t *src, *dst;
    uint32_t copy_count, pages, copy, page;
};

static void step(struct walk *walk, const struct iovec *local, const struct fi_rma_iov *remote,
                 uint64_t at)
{
    CHECK(walk->copy < walk->copy_count);
    const spf_copy *copy = &walk->copies[walk->copy];
    const struct spf_region *src = &regions[copy->src_region];
    const spf_remote_region *dst = &transfer.peer->regions[copy->dst_region];
    uint8_t *from = src->address + copy->src_offset + copy->src_stride * walk->src[walk->page];
    uint64_t to = dst->base + copy->dst_offset + copy->dst_stride * walk->dst[walk->page];
    CHECK((uint8_t *)local->iov_base + at == from);
    CHECK_EQUAL(remote->addr + at, to);
    CHECK_EQUAL(remote->key, dst->keys[0]);
    CHECK(from + copy->bytes <= src->address + src->bytes);
    CHECK(to + copy->bytes <= dst->base + dst->bytes);
    if (++walk->page == walk->pages) {
        walk->page = 0;
        walk->copy++;
    }
}

/* Cuts the whole plan, checks every write, returns how many there were. */
static uint32_t cut(const spf_copy *copies, uint32_t copy_count, const uint32_t *src, const uint32_t *dst,
                    uint32_t pages, uint32_t segments, uint64_t write_bytes)
{
    struct spf_plan *plan = NULL;
    spf_error err = { 0 };
    CHECK_EQUAL(make(&plan, copies, copy_count, src, dst, pages, &err), 0);
    struct walk walk = { copies, src, dst, copy_count, pages, 0, 0 };
    struct spf_cursor cursor = plan->cursor;
    uint32_t writes = 0;
    while (!spf_cursor_at_end(plan, &cursor)) {
        struct spf_write write;
        spf_plan_next(plan, &cursor, regions, 0, segments, write_bytes, &write);
        writes++;
        CHECK(write.segments >= 1 && write.segments <= segments);
        CHECK(write.units >= 1 && write.units <= SPF_MAX_UNITS);
        CHECK(write.bytes <= write_bytes || write.units == 1);
        uint64_t bytes = 0;
        uint32_t units = 0;
        for (uint32_t i = 0; i < write.segments; i++) {
            CHECK_EQUAL(write.local[i].iov_len, write.remote[i].len);
            CHECK(write.descriptors[i] == &memory);
            uint64_t at = 0;
            while (at < write.local[i].iov_len) {
                uint64_t page = copies[walk.copy].bytes;
                step(&walk, &write.local[i], &write.remote[i], at);
                at += page;
                units++;
            }
            CHECK_EQUAL(at, write.local[i].iov_len);
            bytes += at;
        }
        CHECK_EQUAL(units, write.units);
        CHECK_EQUAL(bytes, write.bytes);
    }
    CHECK_EQUAL(walk.copy, pages ? copy_count : 0);
    spf_plan_destroy(plan);
    return writes;
}

static void ascending(uint32_t *pages, uint32_t count, uint32_t first)
{
    for (uint32_t i = 0; i < count; i++)
        pages[i] = first + i;
}

static void a_run_contiguous_on_both_sides_is_one_segment(void)
{
    uint32_t src[100], dst[100];
    ascending(src, 100, 3);
    ascending(dst, 100, 40);
    spf_copy copy = { .src_stride = 1000, .dst_stride = 1000, .bytes = 1000 };
    CHECK_EQUAL(cut(&copy, 1, src, dst, 100, 1, 1u << 20), 1);
    CHECK_EQUAL(cut(&copy, 1, src, dst, 100, 1, 50000), 2);
    CHECK_EQUAL(cut(&copy, 1, src, dst, 100, 1, 1999), 100);
}

static void a_hole_on_either_side_starts_a_segment(void)
{
    uint32_t src[] = { 1, 2, 3, 5, 6, 7 }, dst[] = { 1, 2, 4, 5, 6, 7 };
    spf_copy copy = { .src_stride = 10, .dst_stride = 10, .bytes = 10 };
    CHECK_EQUAL(cut(&copy, 1, src, dst, 6, 8, 1u << 20), 1);
    CHECK_EQUAL(cut(&copy, 1, src, dst, 6, 2, 1u << 20), 2);
    CHECK_EQUAL(cut(&copy, 1, src, dst, 6, 1, 1u << 20), 3);
}

static void strides_larger_than_the_page_are_never_coalesced(void)
{
    uint32_t pages[64];
    ascending(pages, 64, 0);
    spf_copy wide_src = { .src_stride = 20, .dst_stride = 10, .bytes = 10 };
    spf_copy wide_dst = { .src_stride = 10, .dst_stride = 20, .bytes = 10 };
    CHECK_EQUAL(cut(&wide_src, 1, pages, pages, 64, 4, 1u << 20), 16);
    CHECK_EQUAL(cut(&wide_dst, 1, pages, pages, 64, 4, 1u << 20), 16);
}

static void one_write_never_carries_more_units_than_an_immediate_holds(void)
{
    static uint32_t pages[20000];
    ascending(pages, 20000, 0);
    spf_copy copy = { .src_stride = 1, .dst_stride = 1, .bytes = 1 };
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 4095, 8, 1u << 20), 1);
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 4096, 8, 1u << 20), 2);
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 20000, 8, 1u << 20), 5);
    spf_copy two[] = { copy, copy };
    CHECK_EQUAL(cut(two, 2, pages, pages, 4095, 8, 1u << 20), 2);
}

static void a_page_larger_than_a_write_goes_alone(void)
{
    uint32_t pages[8];
    ascending(pages, 8, 0);
    spf_copy copy = { .src_stride = 5000, .dst_stride = 5000, .bytes = 5000 };
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 8, 8, 4096), 8);
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 8, 8, 0), 8);
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 8, 8, 9999), 8);
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 8, 8, 10000), 4);
}

static void a_plan_of_zero_pages_or_zero_copies_has_no_write(void)
{
    uint32_t page = UINT32_MAX;
    spf_copy copy = { .src_region = 99, .dst_region = 99 };
    CHECK_EQUAL(cut(&copy, 1, NULL, NULL, 0, 4, 4096), 0);
    CHECK_EQUAL(cut(NULL, 0, NULL, NULL, 0, 4, 4096), 0);
    struct spf_plan *plan = NULL;
    CHECK_EQUAL(make(&plan, NULL, 0, &page, &page, 1, NULL), 0);
    CHECK(spf_cursor_at_end(plan, &plan->cursor));
    spf_plan_destroy(plan);
}

static void a_page_may_end_at_the_end_of_its_region_and_not_one_byte_further(void)
{
    spf_copy copy = { .src_stride = 100, .dst_stride = 100, .bytes = 100 };
    CHECK_EQUAL(verdict(copy, SRC_BYTES / 100 - 1, DST_BYTES / 100 - 1), 0);
    CHECK_EQUAL(verdict(copy, SRC_BYTES / 100, 0), -ERANGE);
    CHECK_EQUAL(verdict(copy, 0, DST_BYTES / 100), -ERANGE);
    copy.src_offset = 1;
    CHECK_EQUAL(verdict(copy, SRC_BYTES / 100 - 1, 0), -ERANGE);
    CHECK_EQUAL(verdict(copy, SRC_BYTES / 100 - 2, 0), 0);
    spf_copy whole = { .bytes = SRC_BYTES };
    CHECK_EQUAL(verdict(whole, 0, 0), 0);
    whole.bytes++;
    CHECK_EQUAL(verdict(whole, 0, 0), -ERANGE);
}

static void numbers_that_wrap_are_refused(void)
{
    spf_copy good = { .src_stride = 8, .dst_stride = 8, .bytes = 8 };
    uint64_t huge[] = { UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63, (uint64_t)1 << 62, (uint64_t)1 << 32 };
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        spf_copy copy = good;
        copy.bytes = huge[i];
        CHECK_EQUAL(verdict(copy, 1, 1), -ERANGE);
        copy = good, copy.src_offset = huge[i];
        CHECK_EQUAL(verdict(copy, 1, 1), -ERANGE);
        copy = good, copy.dst_offset = huge[i];
        CHECK_EQUAL(verdict(copy, 1, 1), -ERANGE);
        copy = good, copy.src_stride = huge[i];
        CHECK_EQUAL(verdict(copy, 8, 1), -ERANGE);
        copy = good, copy.dst_stride = huge[i];
        CHECK_EQUAL(verdict(copy, 1, 8), -ERANGE);
    }
    CHECK_EQUAL(verdict(good, UINT32_MAX, 0), -ERANGE);
    CHECK_EQUAL(verdict(good, 0, UINT32_MAX), -ERANGE);
}

static void unknown_regions_and_empty_pages_are_refused(void)
{
    spf_copy copy = { .src_region = 2, .bytes = 1 };
    CHECK_EQUAL(verdict(copy, 0, 0), -EINVAL);
    copy = (spf_copy){ .dst_region = 2, .bytes = 1 };
    CHECK_EQUAL(verdict(copy, 0, 0), -EINVAL);
    copy = (spf_copy){ .bytes = 0 };
    CHECK_EQUAL(verdict(copy, 0, 0), -EINVAL);
}

static void a_page_larger_than_the_nics_can_write_is_refused(void)
{
    spf_copy copy = { .src_stride = 100, .dst_stride = 100, .bytes = 100 };
    max_bytes = 100;
    CHECK_EQUAL(verdict(copy, 0, 0), 0);
    max_bytes = 99;
    CHECK_EQUAL(verdict(copy, 0, 0), -EMSGSIZE);
    max_bytes = UINT64_MAX;
}

static void only_the_highest_page_decides_whatever_its_place(void)
{
    spf_copy copy = { .src_stride = 100, .dst_stride = 100, .bytes = 100 };
    uint32_t src[] = { 5, SRC_BYTES / 100, 7 }, dst[] = { 0, 1, 2 };
    struct spf_plan *plan = NULL;
    CHECK_EQUAL(make(&plan, &copy, 1, src, dst, 3, NULL), -ERANGE);
}

static int gated(const spf_copy *copies, uint32_t copy_count, uint64_t forward, struct spf_plan **plan)
{
    uint32_t pages[] = { 0, 1, 2, 3 };
    spf_error err = { 0 };
    int rc = spf_plan_create(&transfer, regions, 2, copies, copy_count, pages, pages, 4, forward, max_bytes, plan, &err);
    return rc ? rc : spf_plan_start(*plan);
}

#define FORWARD 7
#define WORD(forward, steps) ((uint64_t)(forward) << SPF_STEP_BITS | (steps))

static void a_word_counts_for_its_forward_pass_and_for_all_before(void)
{
    CHECK_EQUAL(spf_forward_steps(FORWARD, 0), 0);
    CHECK_EQUAL(spf_forward_steps(FORWARD, WORD(FORWARD - 1, 60)), 0);
    CHECK_EQUAL(spf_forward_steps(FORWARD, WORD(FORWARD, 0)), 0);
    CHECK_EQUAL(spf_forward_steps(FORWARD, WORD(FORWARD, 61)), 61);
    CHECK_EQUAL(spf_forward_steps(FORWARD, WORD(FORWARD, 65535)), 65535);
    CHECK_EQUAL(spf_forward_steps(FORWARD, WORD(FORWARD + 1, 0)), SPF_ALL_STEPS);
    CHECK_EQUAL(spf_forward_steps(0, 0), SPF_ALL_STEPS);
}

static void no_write_holds_a_copy_that_waits(void)
{
    spf_copy copies[6];
    static const uint32_t after[] = { 0, 1, 1, 2, 4, 4 };
    for (uint32_t i = 0; i < 6; i++)
        copies[i] = (spf_copy){ .src_stride = 10, .dst_stride = 10, .bytes = 10, .after = after[i] };
    struct spf_plan *plan = NULL;
    CHECK_EQUAL(gated(copies, 6, FORWARD, &plan), 0);
    static const uint64_t words[] = { 0, WORD(FORWARD, 1), WORD(FORWARD, 2), WORD(FORWARD, 3), WORD(FORWARD, 9) };
    static const uint32_t units[] = { 4, 8, 4, 0, 8 };
    for (uint32_t i = 0; i < 5; i++) {
        plan->steps = spf_forward_steps(plan->forward, words[i]);
        uint32_t sent = 0;
        while (!spf_cursor_at_end(plan, &plan->cursor) && !spf_cursor_waits(plan, &plan->cursor)) {
            struct spf_write write;
            spf_plan_next(plan, &plan->cursor, regions, 0, 8, 1u << 20, &write);
            CHECK(write.units && write.after <= plan->steps);
            sent += write.units;
        }
        CHECK_EQUAL(sent, units[i]);
    }
    CHECK(spf_cursor_at_end(plan, &plan->cursor));
    spf_plan_destroy(plan);
}

static void steps_out_of_order_or_out_of_range_are_refused(void)
{
    spf_copy copies[2] = { { .bytes = 10, .after = 2 }, { .bytes = 10, .after = 1 } };
    struct spf_plan *plan = NULL;
    CHECK_EQUAL(gated(copies, 2, FORWARD, &plan), -EINVAL);
    copies[1].after = 65535;
    CHECK_EQUAL(gated(copies, 2, ((uint64_t)1 << 48) - 1, &plan), 0);
    spf_plan_destroy(plan);
    CHECK_EQUAL(gated(copies, 2, (uint64_t)1 << 48, &plan), -EINVAL);
    copies[1].after = 65536;
    CHECK_EQUAL(gated(copies, 2, FORWARD, &plan), -EINVAL);
    CHECK_EQUAL(gated(copies, 2, 0, &plan), 0); /* nothing waits, so nothing is wrong */
    spf_plan_destroy(plan);
}

/* Page 2^32-1 followed by page 0 is no run: as one, it would end outside a region of 4 GiB. */
static void a_run_does_not_wrap_around_the_last_page_id(void)
{
    uint64_t src_bytes = regions[0].bytes, dst_bytes = transfer.peer->regions[0].bytes;
    regions[0].bytes = transfer.peer->regions[0].bytes = (uint64_t)1 << 32;
    uint32_t pages[] = { UINT32_MAX - 1, UINT32_MAX, 0, 1 };
    spf_copy copy = { .src_stride = 1, .dst_stride = 1, .bytes = 1 };
    CHECK_EQUAL(cut(&copy, 1, pages, pages, 4, 1, 1u << 20), 2);
    regions[0].bytes = src_bytes;
    transfer.peer->regions[0].bytes = dst_bytes;
}

static void random_plans_are_cut_into_exactly_their_pages(void)
{
    uint64_t seed = 42;
    for (int round = 0; round < 3000; round++) {
        uint32_t src[96], dst[96], pages = (uint32_t)(check_random(&seed) % 97);
        uint32_t copy_count = (uint32_t)(check_random(&seed) % 5);
        spf_copy copies[4];
        for (uint32_t i = 0; i < copy_count; i++) {
            uint64_t bytes = 1 + check_random(&seed) % 700;
            copies[i] = (spf_copy){
                .src_region = check_random(&seed) % 2,
                .dst_region = check_random(&seed) % 2,
                .src_offset = check_random(&seed) % 1000,
                .dst_offset = check_random(&seed) % 1000,
                .src_stride = bytes + (check_random(&seed) % 3 ? 0 : check_random(&seed) % 300),
                .dst_stride = bytes + (check_random(&seed) % 3 ? 0 : check_random(&seed) % 300),
                .bytes = bytes,
            };
        }
        for (uint32_t i = 0; i < pages; i++) {
            int joined = i && check_random(&seed) % 4;
            src[i] = joined ? src[i - 1] + 1 : (uint32_t)(check_random(&seed) % 800);
            dst[i] = joined ? dst[i - 1] + 1 : (uint32_t)(check_random(&seed) % 1800);
        }
        cut(copies, copy_count, src, dst, pages, 1 + (uint32_t)(check_random(&seed) % SPF_MAX_SEGMENTS),
            check_random(&seed) % 5000);
    }
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_run_contiguous_on_both_sides_is_one_segment),
        CASE(a_hole_on_either_side_starts_a_segment),
        CASE(strides_larger_than_the_page_are_never_coalesced),
        CASE(one_write_never_carries_more_units_than_an_immediate_holds),
        CASE(a_page_larger_than_a_write_goes_alone),
        CASE(a_plan_of_zero_pages_or_zero_copies_has_no_write),
        CASE(a_page_may_end_at_the_end_of_its_region_and_not_one_byte_further),
        CASE(numbers_that_wrap_are_refused),
        CASE(unknown_regions_and_empty_pages_are_refused),
        CASE(a_page_larger_than_the_nics_can_write_is_refused),
        CASE(a_word_counts_for_its_forward_pass_and_for_all_before),
        CASE(no_write_holds_a_copy_that_waits),
        CASE(steps_out_of_order_or_out_of_range_are_refused),
        CASE(only_the_highest_page_decides_whatever_its_place),
        CASE(a_run_does_not_wrap_around_the_last_page_id),
        CASE(random_plans_are_cut_into_exactly_their_pages),
    };
    build_world();
    int rc = check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
    free(transfer.peer);
    return rc;
}
