/* The progress word between threads: one moves it, others submit plans that wait for it, and the I/O thread sleeps
 * and wakes in between. Every page arrives, and none before its step was shown. */
#include <pthread.h>
#include <stdlib.h>

#include "engines.h"
#include "trace.h"

#define LAYERS 8
#define FORWARDS 200
#define PAGES 4
#define PAGE 512

static struct side from, to;
static spf_peer *peer;

static void *run_forwards(void *unused)
{
    (void)unused;
    uint64_t seed = 5;
    for (uint64_t forward = 1; forward <= FORWARDS; forward++)
        for (uint64_t step = 0; step <= LAYERS; step++) {
            spf_progress_store(from.engine, forward << SPF_STEP_BITS | step);
            if (check_random(&seed) % 4 == 0)
                usleep((useconds_t)(check_random(&seed) % 100)); /* now and then the I/O thread falls asleep */
        }
    spf_progress_store(from.engine, (uint64_t)(FORWARDS + 1) << SPF_STEP_BITS);
    return NULL;
}

static void a_word_moves_while_plans_come_and_go(void)
{
    spf_engine_config config = plain_config();
    config.gate_spin_ns = 20000;
    from = open_configured_side(LAYERS * PAGES * PAGE, &config);
    to = open_side(LAYERS * PAGES * PAGE);
    peer = introduce(&from, &to);
    fill(&from, 3);
    spf_copy copies[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        copies[layer] = (spf_copy){ .src_offset = layer * PAGES * PAGE, .dst_offset = layer * PAGES * PAGE,
                                    .src_stride = PAGE, .dst_stride = PAGE, .bytes = PAGE, .after = layer + 1 };
    uint32_t pages[PAGES] = { 3, 1, 2, 0 };
    pthread_t producer;
    CHECK_EQUAL(pthread_create(&producer, NULL, run_forwards, NULL), 0);
    for (uint64_t forward = 1; forward <= FORWARDS; forward++) {
        uint32_t slot = (uint32_t)(forward % 32);
        uint32_t generation = spf_slot_generation(to.engine, slot);
        spf_transfer *transfer = NULL;
        CHECK_EQUAL(spf_transfer_open(from.engine, peer, slot, generation, 0, &transfer, NULL), 0);
        CHECK_EQUAL(spf_transfer_submit(transfer, copies, LAYERS, pages, pages, PAGES, forward, NULL), 0);
        if (forward % 7 == 0) {
            spf_transfer_cancel(transfer);
            WAIT_FOR(quiet(transfer));
        } else {
            WAIT_FOR(spf_slot_units(to.engine, slot) == LAYERS * PAGES);
        }
        WAIT_FOR(quiet(transfer));
        CHECK_EQUAL(status_of(transfer).error, 0);
        spf_transfer_release(transfer);
        spf_slot_advance(to.engine, slot);
    }
    pthread_join(producer, NULL);
    CHECK(memcmp(from.memory, to.memory, from.bytes) == 0);
    CHECK_EQUAL(spf_progress_read(from.engine) >> SPF_STEP_BITS, FORWARDS + 1);
    spf_peer_remove(from.engine, peer);
    close_side(&from);
    close_side(&to);
}

#define EVENTS 100000

static struct spf_trace trace;

static void *write_events(void *unused)
{
    (void)unused;
    for (uint64_t i = 0; i < EVENTS; i++) {
        spf_trace_event event = { .ns = i, .bytes = ~i };
        spf_trace_write(&trace, &event);
    }
    return NULL;
}

static void the_trace_keeps_order_and_counts_what_it_loses(void)
{
    trace = (struct spf_trace){ 0 };
    CHECK_EQUAL(spf_trace_init(&trace, 1000), 0);
    CHECK_EQUAL(trace.count, 1024);
    pthread_t writer;
    CHECK_EQUAL(pthread_create(&writer, NULL, write_events, NULL), 0);
    uint64_t seen = 0, next = 0;
    spf_trace_event events[100];
    int over = 0;
    while (!over) {
        over = atomic_load(&trace.written) + atomic_load(&trace.lost) == EVENTS;
        for (uint32_t n; (n = spf_trace_read(&trace, events, 100)); seen += n)
            for (uint32_t i = 0; i < n; i++) {
                CHECK(events[i].ns >= next && events[i].bytes == ~events[i].ns);
                next = events[i].ns + 1;
            }
    }
    pthread_join(writer, NULL);
    CHECK_EQUAL(seen + atomic_load(&trace.lost), EVENTS);
    spf_trace_free(&trace);
}

static const struct check_case cases[] = {
    CASE(a_word_moves_while_plans_come_and_go),
    CASE(the_trace_keeps_order_and_counts_what_it_loses),
};

int main(int argc, char **argv)
{
    return run_over_providers(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
