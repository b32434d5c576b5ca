#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "slots.h"

/* Whether offset + stride * page + bytes <= limit for every page up to highest, without overflow. */
static int fits(uint64_t offset, uint64_t stride, uint32_t highest, uint64_t bytes, uint64_t limit)
{
    uint64_t end;
    if (__builtin_mul_overflow(stride, (uint64_t)highest, &end))
        return 0;
    if (__builtin_add_overflow(end, offset, &end) || __builtin_add_overflow(end, bytes, &end))
        return 0;
    return end <= limit;
}

static int check_copy(const spf_copy *copy, uint32_t index, const struct spf_region *regions,
                      uint32_t region_count, const spf_peer *peer, uint32_t highest_src,
                      uint32_t highest_dst, uint64_t max_bytes, spf_error *err)
{
    if (copy->bytes == 0)
        return spf_fail(err, EINVAL, "copy %u moves zero bytes per page", index);
    if (copy->src_region >= region_count)
        return spf_fail(err, EINVAL, "copy %u reads region %u, but %u are registered", index,
                        copy->src_region, region_count);
    if (copy->dst_region >= peer->region_count)
        return spf_fail(err, EINVAL, "copy %u writes region %u of a peer that offered %u", index,
                        copy->dst_region, peer->region_count);
    const struct spf_region *src = &regions[copy->src_region];
    const spf_remote_region *dst = &peer->regions[copy->dst_region];
    if (!fits(copy->src_offset, copy->src_stride, highest_src, copy->bytes, src->bytes))
        return spf_fail(err, ERANGE,
                        "copy %u: source page %u of %llu bytes ends outside its region of %llu bytes",
                        index, highest_src, (unsigned long long)copy->bytes,
                        (unsigned long long)src->bytes);
    if (!fits(copy->dst_offset, copy->dst_stride, highest_dst, copy->bytes, dst->bytes))
        return spf_fail(
            err, ERANGE,
            "copy %u: destination page %u of %llu bytes ends outside the peer's region of %llu bytes",
            index, highest_dst, (unsigned long long)copy->bytes, (unsigned long long)dst->bytes);
    if (copy->bytes > max_bytes)
        return spf_fail(err, EMSGSIZE, "copy %u has pages of %llu bytes; one write of this NIC holds %llu", index,
                        (unsigned long long)copy->bytes, (unsigned long long)max_bytes);
    return 0;
}

/* Copies page ids and returns the highest. */
static uint32_t take_pages(uint32_t *to, const uint32_t *from, uint32_t count)
{
    uint32_t highest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = from[i];
        to[i] = page;
        highest = page > highest ? page : highest;
    }
    return highest;
}

static int check_steps(const spf_copy *copies, uint32_t count, uint64_t forward, spf_error *err)
{
    if (forward >> (64 - SPF_STEP_BITS))
        return spf_fail(err, EINVAL, "forward pass %llu does not fit the progress word", (unsigned long long)forward);
    for (uint32_t i = 0; i < count; i++) {
        if (copies[i].after >> SPF_STEP_BITS)
            return spf_fail(err, EINVAL, "copy %u waits for step %u of its forward pass; at most %d are possible",
                            i, copies[i].after, (1 << SPF_STEP_BITS) - 1);
        if (i && copies[i].after < copies[i - 1].after)
            return spf_fail(err, EINVAL, "copy %u waits for step %u, the one before it for step %u: they must be in order",
                            i, copies[i].after, copies[i - 1].after);
    }
    return 0;
}

static struct spf_plan *new_plan(uint32_t copy_count, uint32_t page_count)
{
    size_t copies = sizeof(spf_copy) * copy_count, pages = sizeof(uint32_t) * page_count;
    struct spf_plan *plan = malloc(sizeof *plan + copies + 2 * pages);
    if (!plan)
        return NULL;
    memset(plan, 0, sizeof *plan);
    plan->item.kind = SPF_ITEM_PLAN;
    plan->copy_count = copy_count;
    plan->page_count = page_count;
    plan->copies = (spf_copy *)(plan + 1);
    plan->src_pages = (uint32_t *)(plan->copies + copy_count);
    plan->dst_pages = plan->src_pages + page_count;
    return plan;
}

int spf_plan_create(spf_transfer *transfer, const struct spf_region *regions, uint32_t region_count,
                    const spf_copy *copies, uint32_t copy_count, const uint32_t *src_pages,
                    const uint32_t *dst_pages, uint32_t page_count, uint64_t forward, uint64_t max_bytes,
                    struct spf_plan **out, spf_error *err)
{
    int rc = forward ? check_steps(copies, copy_count, forward, err) : 0;
    if (rc)
        return rc;
    struct spf_plan *plan = new_plan(copy_count, page_count);
    if (!plan)
        return spf_fail(err, ENOMEM, "out of memory for a plan of %u pages", page_count);
    plan->transfer = transfer;
    plan->forward = forward;
    if (copy_count)
        memcpy(plan->copies, copies, copy_count * sizeof *copies);
    uint32_t highest_src = take_pages(plan->src_pages, src_pages, page_count);
    uint32_t highest_dst = take_pages(plan->dst_pages, dst_pages, page_count);
    for (uint32_t i = 0; !rc && page_count && i < copy_count; i++)
        rc = check_copy(&copies[i], i, regions, region_count, transfer->peer, highest_src, highest_dst, max_bytes,
                        err);
    if (rc) {
        spf_plan_destroy(plan);
        return rc;
    }
    *out = plan;
    return 0;
}

int spf_plan_start(struct spf_plan *plan)
{
    const uint32_t *src = plan->src_pages, *dst = plan->dst_pages;
    struct spf_run *runs = malloc((plan->page_count ? plan->page_count : 1) * sizeof *runs);
    uint32_t n = 0;
    if (!runs)
        return -ENOMEM;
    for (uint32_t i = 0; i < plan->page_count; i++) {
        struct spf_run *last = n ? &runs[n - 1] : NULL;
        /* In 64 bits: page 0 does not follow page 2^32 - 1. */
        if (last && src[i] == (uint64_t)last->src + last->count &&
            dst[i] == (uint64_t)last->dst + last->count)
            last->count++;
        else
            runs[n++] = (struct spf_run){ src[i], dst[i], 1 };
    }
    plan->runs = runs;
    plan->run_count = n;
    plan->steps = plan->forward ? 0 : SPF_ALL_STEPS;
    return 0;
}

uint32_t spf_forward_steps(uint64_t forward, uint64_t progress)
{
    uint64_t current = progress >> SPF_STEP_BITS;
    if (!forward || current > forward)
        return SPF_ALL_STEPS;
    return current == forward ? (uint32_t)(progress & ((1u << SPF_STEP_BITS) - 1)) : 0;
}

void spf_plan_destroy(struct spf_plan *plan)
{
    free(plan->runs);
    free(plan);
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void spf_plan_next(const struct spf_plan *plan, struct spf_cursor *cursor,
                   const struct spf_region *regions, uint32_t nic, uint32_t segments,
                   uint64_t write_bytes, struct spf_write *write)
{
    const spf_peer *peer = plan->transfer->peer;
    write->segments = 0;
    write->units = 0;
    write->bytes = 0;
    write->after = 0;
    while (write->segments < segments && write->units < SPF_MAX_UNITS &&
           !spf_cursor_at_end(plan, cursor) && !spf_cursor_waits(plan, cursor)) {
        const spf_copy *copy = &plan->copies[cursor->copy];
        const struct spf_run *run = &plan->runs[cursor->run];
        int contiguous = copy->bytes == copy->src_stride && copy->bytes == copy->dst_stride;
        uint64_t room = (write_bytes > write->bytes ? write_bytes - write->bytes : 0) / copy->bytes;
        if (room == 0 && write->segments)
            break;
        uint64_t pages = at_most(run->count - cursor->page, SPF_MAX_UNITS - write->units);
        pages = contiguous ? at_most(pages, room ? room : 1) : 1;

        const struct spf_region *src = &regions[copy->src_region];
        const spf_remote_region *dst = &peer->regions[copy->dst_region];
        uint64_t src_page = run->src + cursor->page;
        uint64_t dst_page = run->dst + cursor->page;
        uint32_t i = write->segments++;
        write->local[i].iov_base = src->address + copy->src_offset + copy->src_stride * src_page;
        write->local[i].iov_len = copy->bytes * pages;
        write->descriptors[i] = fi_mr_desc(src->mr[nic]);
        write->remote[i].addr = dst->base + copy->dst_offset + copy->dst_stride * dst_page;
        write->remote[i].len = copy->bytes * pages;
        write->remote[i].key = dst->keys[peer->pair[nic]];
        write->after = copy->after;
        write->units += (uint32_t)pages;
        write->bytes += copy->bytes * pages;

        cursor->page += (uint32_t)pages;
        if (cursor->page == run->count) {
            cursor->page = 0;
            cursor->run++;
        }
        if (cursor->run == plan->run_count) {
            cursor->run = 0;
            cursor->copy++;
        }
    }
}
