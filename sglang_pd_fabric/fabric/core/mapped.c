#include "mapped.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "ending.h"

/* Between two looks at the NICs: some 30 us of copying, against a microsecond for a look. All plans that copy
 * share it, each with a part that still outweighs the change from one plan to the next. */
#define ROUND_BYTES (256u << 10)
#define PLAN_BYTES (16u << 10)

#define LINE 64u
#define AHEAD 768u        /* how far before the copy the source is fetched; the best of 512 to 2048 on Zen 4 */
#define STREAM_BYTES 512u /* smaller pieces (rows of metadata) are read soon: they go through the cache */

#ifdef __SSE2__
/* Copies lines past the cache. A page is not read again soon, and a line that is written whole need not be
 * read from memory first, which memcpy does. `next` is the piece that will be copied after this one: a
 * hardware prefetcher does not know where that is. */
static void stream(uint8_t *to, const uint8_t *from, size_t bytes, const uint8_t *next)
{
    for (size_t i = 0; i < bytes; i += LINE) {
        /* A number: it may lie behind the end of a short piece, where a prefetch does no harm. */
        uintptr_t ahead = i + AHEAD < bytes ? (uintptr_t)from + i + AHEAD : (uintptr_t)next + i + AHEAD - bytes;
        _mm_prefetch((const void *)ahead, _MM_HINT_T0);
        const __m128i *source = (const void *)(from + i);
        __m128i *target = (void *)(to + i);
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
}

static void copy_piece(uint8_t *to, const uint8_t *from, size_t bytes, const uint8_t *next)
{
    size_t streamed = bytes < STREAM_BYTES || (uintptr_t)to % sizeof(__m128i) ? 0 : bytes - bytes % LINE;
    stream(to, from, streamed, next);
    memcpy(to + streamed, from + streamed, bytes - streamed);
}

/* Streamed stores are not ordered by the count's release. */
static void order_copies(void)
{
    _mm_sfence();
}
#else
static void copy_piece(uint8_t *to, const uint8_t *from, size_t bytes, const uint8_t *next)
{
    (void)next;
    memcpy(to, from, bytes);
}

static void order_copies(void)
{
}
#endif

/* after: the first piece of the next write. */
static void copy_write(const struct spf_write *write, const uint8_t *after)
{
    for (uint32_t i = 0; i < write->segments; i++) {
        const uint8_t *next = i + 1 < write->segments ? write->local[i + 1].iov_base : after;
        copy_piece((uint8_t *)(uintptr_t)write->remote[i].addr, write->local[i].iov_base,
                   write->local[i].iov_len, next);
    }
}

/* What one plan may copy before it is another one's turn. */
static uint64_t plan_bytes(const spf_engine *engine)
{
    uint32_t plans = 0;
    for (const struct spf_plan *plan = engine->first_plan; plan; plan = plan->next)
        if (spf_peer_is_mapped(plan->transfer->peer) && !plan->held && ++plans == ROUND_BYTES / PLAN_BYTES)
            break;
    return ROUND_BYTES / (plans ? plans : 1);
}

static void count(spf_engine *engine, const struct spf_plan *plan, const struct spf_write *all,
                  uint64_t since_ns)
{
    struct spf_transfer *transfer = plan->transfer;
    order_copies();
    spf_slots_count(&transfer->peer->slots, transfer->immediate | all->units);
    transfer->peer->progress_ns = engine->last_event_ns;
    spf_count_posted(engine, plan, all->units);
    spf_trace_of_write(engine, SPF_TRACE_POST, since_ns, transfer, all, 0);
    spf_trace_of_write(engine, SPF_TRACE_DONE, spf_trace_time(engine), transfer, all, 0);
    spf_count_done(engine, transfer, all->units, all->bytes);
}

static void take(spf_engine *engine, struct spf_plan *plan, uint64_t bytes, struct spf_write *write)
{
    spf_plan_next(plan, &plan->cursor, engine->regions, 0, SPF_MAX_SEGMENTS, bytes, write);
}

static int more_to_copy(const struct spf_plan *plan)
{
    return !spf_cursor_at_end(plan, &plan->cursor) && !spf_cursor_waits(plan, &plan->cursor);
}

/* Copies until its share of the round is used up, and counts what was copied. */
void spf_mapped_copy(spf_engine *engine, struct spf_plan *plan)
{
    struct spf_write writes[2]; /* one is copied, the other comes after it */
    struct spf_write all = { 0 }; /* what was copied and not counted yet: its units, bytes and step */
    uint64_t room = plan_bytes(engine), bytes = 0;
    uint64_t ns = spf_trace_time(engine);
    take(engine, plan, room, &writes[0]);
    for (int now = 0, more = 1; more; now = !now) {
        const struct spf_write *write = &writes[now];
        bytes += write->bytes;
        more = bytes < room && more_to_copy(plan);
        if (more)
            take(engine, plan, room - bytes, &writes[!now]);
        if (all.units + write->units > SPF_MAX_UNITS) { /* more than an immediate can say */
            count(engine, plan, &all, ns);
            all.units = 0;
            all.bytes = 0;
        }
        copy_write(write, writes[more ? !now : now].local[0].iov_base);
        all.units += write->units;
        all.bytes += write->bytes;
        all.after = write->after;
    }
    count(engine, plan, &all, ns);
}
