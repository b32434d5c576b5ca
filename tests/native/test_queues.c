/* The ledger of posted writes and the inbox of the I/O thread. */
#include <pthread.h>
#include <stdlib.h>

#include "check.h"
#include "inbox.h"
#include "ledger.h"

#define WRITES 1000

static void a_record_is_given_out_once_until_it_comes_back(void)
{
    struct spf_ledger ledger = { 0 };
    static struct spf_record *taken[WRITES];
    for (int i = 0; i < WRITES; i++) {
        taken[i] = spf_ledger_take(&ledger);
        CHECK(taken[i] && taken[i]->units == 0);
        taken[i]->units = 1;
    }
    for (int i = 0; i < WRITES; i++) {
        CHECK_EQUAL(taken[i]->units, 1);
        taken[i]->units = 0;
        spf_ledger_put(&ledger, taken[i]);
    }
    struct spf_ledger_block *before = ledger.blocks;
    for (int i = 0; i < WRITES; i++)
        CHECK(spf_ledger_take(&ledger));
    CHECK(ledger.blocks == before);
    spf_ledger_free(&ledger);
}

static void count_visit(void *argument, struct spf_record *record)
{
    int *visits = argument;
    record->plan = NULL;
    record->orphaned = 1;
    ++*visits;
}

static void a_visit_sees_the_writes_of_that_peer_and_no_orphan(void)
{
    struct spf_ledger ledger = { 0 };
    spf_peer *peers[2] = { calloc(1, sizeof(spf_peer)), calloc(1, sizeof(spf_peer)) };
    spf_transfer transfers[2] = { { .peer = peers[0] }, { .peer = peers[1] } };
    struct spf_plan plans[2] = { { .transfer = &transfers[0] }, { .transfer = &transfers[1] } };
    for (int i = 0; i < WRITES; i++)
        spf_ledger_take(&ledger)->plan = &plans[i % 3 == 0];
    int visits = 0;
    spf_ledger_each(&ledger, peers[1], count_visit, &visits);
    CHECK_EQUAL(visits, (WRITES + 2) / 3);
    spf_ledger_each(&ledger, peers[1], count_visit, &visits);
    CHECK_EQUAL(visits, (WRITES + 2) / 3);
    spf_ledger_free(&ledger);
    free(peers[0]);
    free(peers[1]);
}

static void a_record_that_came_back_is_no_orphan(void)
{
    struct spf_ledger ledger = { 0 };
    struct spf_record *record = spf_ledger_take(&ledger);
    record->orphaned = 1;
    spf_ledger_put(&ledger, record);
    CHECK(spf_ledger_take(&ledger) == record && !record->orphaned && !record->plan);
    spf_ledger_free(&ledger);
}

#define PUSHERS 3
#define PUSHES 50000

static struct spf_inbox inbox;
static struct numbered {
    struct spf_item item;
    int pusher, number;
} items[PUSHERS][PUSHES];

static void *push_all(void *argument)
{
    struct numbered *mine = argument;
    for (int i = 0; i < PUSHES; i++)
        spf_inbox_push(&inbox, &mine[i].item);
    return NULL;
}

static void every_item_is_taken_once_and_in_the_order_of_its_pusher(void)
{
    pthread_t threads[PUSHERS];
    for (int p = 0; p < PUSHERS; p++) {
        for (int i = 0; i < PUSHES; i++)
            items[p][i].pusher = p, items[p][i].number = i;
        pthread_create(&threads[p], NULL, push_all, items[p]);
    }
    int next[PUSHERS] = { 0 };
    for (int left = PUSHERS * PUSHES; left;) {
        struct spf_item *item = spf_inbox_take(&inbox), *following;
        for (; item; item = following, left--) {
            following = item->next;
            struct numbered *it = (struct numbered *)item;
            CHECK_EQUAL(it->number, next[it->pusher]);
            next[it->pusher]++;
        }
    }
    CHECK(spf_inbox_empty(&inbox));
    for (int p = 0; p < PUSHERS; p++)
        pthread_join(threads[p], NULL);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(a_record_is_given_out_once_until_it_comes_back),
        CASE(a_visit_sees_the_writes_of_that_peer_and_no_orphan),
        CASE(a_record_that_came_back_is_no_orphan),
        CASE(every_item_is_taken_once_and_in_the_order_of_its_pusher),
    };
    return check_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}
