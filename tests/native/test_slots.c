/* The receiver's counters: an immediate counts for its own generation or not at all. */
#include <pthread.h>

#include "check.h"
#include "slots.h"

static struct spf_slots fresh(uint32_t count)
{
    struct spf_slots slots;
    CHECK_EQUAL(spf_slots_init(&slots, count, NULL), 0);
    return slots;
}

static uint32_t units(struct spf_slots *slots, uint32_t slot)
{
    return (uint32_t)atomic_load(&slots->words[slot]);
}

static uint32_t generation(struct spf_slots *slots, uint32_t slot)
{
    return (uint32_t)(atomic_load(&slots->words[slot]) >> 32);
}

static void a_table_has_1_to_8192_slots(void)
{
    struct spf_slots slots;
    CHECK(spf_slots_init(&slots, 0, NULL) < 0);
    CHECK(spf_slots_init(&slots, (1u << SPF_SLOT_BITS) + 1, NULL) < 0);
    slots = fresh(1u << SPF_SLOT_BITS);
    spf_slots_free(&slots);
}

static void the_widest_values_do_not_touch_each_other(void)
{
    struct spf_slots slots = fresh(1u << SPF_SLOT_BITS);
    uint32_t last = (1u << SPF_SLOT_BITS) - 1;
    for (uint32_t i = 1; i < SPF_MAX_GENERATION; i++)
        spf_slots_advance(&slots, last);
    spf_slots_count(&slots, spf_immediate(last, SPF_MAX_GENERATION, SPF_MAX_UNITS));
    CHECK_EQUAL(generation(&slots, last), SPF_MAX_GENERATION);
    CHECK_EQUAL(units(&slots, last), SPF_MAX_UNITS);
    CHECK_EQUAL(units(&slots, 0) + units(&slots, last - 1), 0);
    CHECK_EQUAL(spf_immediate(last, SPF_MAX_GENERATION, SPF_MAX_UNITS), UINT32_MAX);
    spf_slots_free(&slots);
}

static void an_early_immediate_is_kept(void)
{
    struct spf_slots slots = fresh(4);
    spf_slots_count(&slots, spf_immediate(3, 1, 7));
    spf_slots_count(&slots, spf_immediate(3, 1, 5));
    CHECK_EQUAL(units(&slots, 3), 12);
    CHECK_EQUAL(spf_slots_advance(&slots, 3), 2);
    spf_slots_count(&slots, spf_immediate(3, 2, 9)); /* before anyone looks at generation 2 */
    CHECK_EQUAL(units(&slots, 3), 9);
    CHECK_EQUAL(slots.units_counted, 21);
    spf_slots_free(&slots);
}

static void a_late_immediate_is_not_counted_for_the_new_owner(void)
{
    struct spf_slots slots = fresh(1);
    spf_slots_advance(&slots, 0);
    spf_slots_count(&slots, spf_immediate(0, 1, 100));
    CHECK_EQUAL(units(&slots, 0), 0);
    CHECK_EQUAL(slots.late, 1);
    CHECK_EQUAL(slots.unknown, 0);
    spf_slots_free(&slots);
}

static void an_immediate_of_no_slot_is_unknown(void)
{
    struct spf_slots slots = fresh(2);
    spf_slots_count(&slots, 0);
    spf_slots_count(&slots, spf_immediate(2, 1, 1));
    spf_slots_count(&slots, spf_immediate(1, 0, 1));
    spf_slots_count(&slots, spf_immediate(1, 1, 0));
    spf_slots_count(&slots, UINT32_MAX);
    CHECK_EQUAL(slots.unknown, 5);
    CHECK_EQUAL(slots.late, 0);
    CHECK_EQUAL(units(&slots, 0) + units(&slots, 1), 0);
    spf_slots_free(&slots);
}

static void generations_wrap_to_one_and_never_to_zero(void)
{
    struct spf_slots slots = fresh(1);
    for (uint32_t i = 0; i < 3 * SPF_MAX_GENERATION; i++) {
        uint32_t before = generation(&slots, 0);
        CHECK_EQUAL(spf_slots_advance(&slots, 0), before == SPF_MAX_GENERATION ? 1 : before + 1);
        CHECK_EQUAL(units(&slots, 0), 0);
        spf_slots_count(&slots, spf_immediate(0, generation(&slots, 0), 1));
    }
    spf_slots_free(&slots);
}

static void too_many_units_do_not_reach_the_generation(void)
{
    struct spf_slots slots = fresh(1);
    atomic_store(&slots.words[0], (uint64_t)1 << 32 | (UINT32_MAX - 10));
    spf_slots_count(&slots, spf_immediate(0, 1, 11));
    CHECK_EQUAL(generation(&slots, 0), 1);
    CHECK_EQUAL(slots.unknown, 1);
    spf_slots_count(&slots, spf_immediate(0, 1, 10));
    CHECK_EQUAL(units(&slots, 0), UINT32_MAX);
    spf_slots_free(&slots);
}

/* Three threads count generation 1 on every slot while a fourth ends it. */
#define COUNTERS 3
#define EACH 20

static struct spf_slots shared;

static void *count_generation_one(void *argument)
{
    (void)argument;
    for (uint32_t slot = 0; slot < shared.count; slot++)
        for (int i = 0; i < EACH; i++)
            spf_slots_count(&shared, spf_immediate(slot, 1, 3));
    return NULL;
}

static void *advance_all(void *argument)
{
    uint64_t *strays = argument;
    for (uint32_t slot = 0; slot < shared.count; slot++) {
        spf_slots_advance(&shared, slot);
        *strays += units(&shared, slot);
    }
    return NULL;
}

static void threads_that_race_an_advance_never_count_for_the_new_owner(void)
{
    shared = fresh(1u << SPF_SLOT_BITS);
    pthread_t threads[COUNTERS + 1];
    uint64_t strays = 0;
    for (int i = 0; i < COUNTERS; i++)
        pthread_create(&threads[i], NULL, count_generation_one, NULL);
    pthread_create(&threads[COUNTERS], NULL, advance_all, &strays);
    for (int i = 0; i <= COUNTERS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t slot = 0; slot < shared.count; slot++)
        strays += units(&shared, slot);
    CHECK_EQUAL(strays, 0);
    CHECK_EQUAL(shared.units_counted / 3 + shared.late, (uint64_t)COUNTERS * EACH * shared.count);
    spf_slots_free(&shared);
}

static void threads_lose_no_immediate(void)
{
    shared = fresh(2);
    pthread_t threads[COUNTERS];
    for (int i = 0; i < COUNTERS; i++)
        pthread_create(&threads[i], NULL, count_generation_one, NULL);
    for (int i = 0; i < COUNTERS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQUAL(units(&shared, 0), 3 * EACH * COUNTERS);
    CHECK_EQUAL(units(&shared, 1), 3 * EACH * COUNTERS);
    spf_slots_free(&shared);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_table_has_1_to_8192_slots),
        CASE(the_widest_values_do_not_touch_each_other),
        CASE(an_early_immediate_is_kept),
        CASE(a_late_immediate_is_not_counted_for_the_new_owner),
        CASE(an_immediate_of_no_slot_is_unknown),
        CASE(generations_wrap_to_one_and_never_to_zero),
        CASE(too_many_units_do_not_reach_the_generation),
        CASE(threads_that_race_an_advance_never_count_for_the_new_owner),
        CASE(threads_lose_no_immediate),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
