/* The inbox of the I/O thread: many threads push, one takes all. A push is one compare-and-swap;
 * taking is one exchange, after which the items stand in the order in which they came. */
#ifndef SPF_INBOX_H
#define SPF_INBOX_H

#include <stdatomic.h>
#include <stddef.h>

enum spf_item_kind { SPF_ITEM_CALL, SPF_ITEM_PLAN, SPF_ITEM_RELEASE };

struct spf_item {
    struct spf_item *next;
    enum spf_item_kind kind;
};

struct spf_inbox {
    struct spf_item *_Atomic head;
};

static inline void spf_inbox_push(struct spf_inbox *inbox, struct spf_item *item)
{
    item->next = atomic_load_explicit(&inbox->head, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&inbox->head, &item->next, item,
                                                  memory_order_seq_cst, memory_order_relaxed))
        ;
}

static inline int spf_inbox_empty(struct spf_inbox *inbox)
{
    return atomic_load(&inbox->head) == NULL;
}

static inline struct spf_item *spf_inbox_take(struct spf_inbox *inbox)
{
    struct spf_item *newest = atomic_exchange(&inbox->head, NULL);
    struct spf_item *oldest = NULL;
    while (newest) {
        struct spf_item *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

#endif
