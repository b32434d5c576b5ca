#include "ledger.h"

#include <stdlib.h>

#define RECORDS_PER_BLOCK 256

struct spf_ledger_block {
    struct spf_ledger_block *next;
    struct spf_record records[RECORDS_PER_BLOCK];
};

static int grow(struct spf_ledger *ledger)
{
    struct spf_ledger_block *block = calloc(1, sizeof *block);
    if (!block)
        return -1;
    block->next = ledger->blocks;
    ledger->blocks = block;
    for (size_t i = 0; i < RECORDS_PER_BLOCK; i++)
        spf_ledger_put(ledger, &block->records[i]);
    return 0;
}

struct spf_record *spf_ledger_take(struct spf_ledger *ledger)
{
    if (!ledger->free && grow(ledger))
        return NULL;
    struct spf_record *record = ledger->free;
    ledger->free = record->next_free;
    record->next_free = NULL;
    return record;
}

void spf_ledger_put(struct spf_ledger *ledger, struct spf_record *record)
{
    record->plan = NULL;
    record->orphaned = record->warms = 0;
    record->next_free = ledger->free;
    ledger->free = record;
}

void spf_ledger_each(struct spf_ledger *ledger, const spf_peer *peer,
                     void (*visit)(void *argument, struct spf_record *record), void *argument)
{
    for (struct spf_ledger_block *block = ledger->blocks; block; block = block->next)
        for (size_t i = 0; i < RECORDS_PER_BLOCK; i++) {
            struct spf_record *record = &block->records[i];
            if (record->plan && record->plan->transfer->peer == peer)
                visit(argument, record);
        }
}

void spf_ledger_reclaim(struct spf_ledger *ledger, uint32_t nic)
{
    for (struct spf_ledger_block *block = ledger->blocks; block; block = block->next)
        for (size_t i = 0; i < RECORDS_PER_BLOCK; i++)
            if (block->records[i].orphaned && block->records[i].nic == nic)
                spf_ledger_put(ledger, &block->records[i]);
}

void spf_ledger_free(struct spf_ledger *ledger)
{
    while (ledger->blocks) {
        struct spf_ledger_block *next = ledger->blocks->next;
        free(ledger->blocks);
        ledger->blocks = next;
    }
    ledger->free = NULL;
}
