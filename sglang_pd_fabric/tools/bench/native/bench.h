/* What Python sees of the bench's native loops. build.py hands the part between the two marks to cffi.
 *
 * pages.c is the memcpy loop, raw.c the bare libfabric loop, forward.c a forward pass without a model, null.c a
 * libfabric without a network, which build.py puts into the same module: its path is what the engine opens to
 * be measured alone. */
#ifndef SPB_BENCH_H
#define SPB_BENCH_H

#include <stddef.h>
#include <stdint.h>

/* cdef begin */
#define SPB_ADDRESS_BYTES 256
#define SPB_ERROR_BYTES 256

/* What an engine does between its calls of the null provider. */
#define SPB_POSTING 0    /* cuts plans, keeps the ledger, posts */
#define SPB_COMPLETING 1 /* retires its own writes */
#define SPB_COUNTING 2   /* counts immediates */
#define SPB_STAGES 3

typedef struct spb_raw spb_raw;

/* Copies n pages: page i from source + from[i] to target + to[i]. */
void spb_copy_pages(uint8_t *target, const uint8_t *source, const uint64_t *to, const uint64_t *from,
                    size_t n, size_t page_bytes);

/* One endpoint over one registered buffer. source: address to bind, or NULL. 0, or -1 and a text. */
int spb_raw_open(const char *library, const char *provider, const char *source, void *buffer,
                 uint64_t bytes, spb_raw **out, char *error);
/* What a writer needs: endpoint address, base and key of the buffer. */
void spb_raw_invite(const spb_raw *raw, uint8_t *address, uint64_t *base, uint64_t *key);
int spb_raw_connect(spb_raw *raw, const uint8_t *address, uint64_t base, uint64_t key, char *error);
/* Writes n pages, `segments` pages and one immediate each write, `window` writes in flight, and
 * returns when all have completed here. */
int spb_raw_write(spb_raw *raw, const uint64_t *to, const uint64_t *from, size_t n, size_t page_bytes,
                  uint32_t segments, uint32_t window, uint64_t limit_ns, char *error);
/* Polls until n immediates have come; end_ns is when (CLOCK_MONOTONIC). */
int spb_raw_receive(spb_raw *raw, size_t n, uint64_t limit_ns, uint64_t *end_ns, char *error);
/* Registers n buffers one after the other and closes them again; ns: what registering took. */
int spb_raw_register(spb_raw *raw, const uint64_t *addresses, const uint64_t *bytes, size_t n, uint64_t *ns,
                     char *error);
void spb_raw_close(spb_raw *raw);

/* Of the null provider: time since the last call that the stage took, and when the first write since the
 * last call was posted (CLOCK_MONOTONIC, 0 for not yet). */
uint64_t spb_null_spent_ns(int stage);
uint64_t spb_null_first_write_ns(void);

/* Moves a progress word. */
typedef void spb_store(void *target, uint64_t word);
/* A plain store, as a GPU's: nobody is woken. */
void spb_store_word(void *word, uint64_t value);
/* A forward pass: moves the word after each of its layers, the first one layer_ns from now. stamps[layers]: when,
 * taken right before each store (CLOCK_MONOTONIC). counted: what the counter showed when the last layer was done. */
void spb_forward_run(spb_store *store, void *target, uint64_t forward, uint32_t layers, uint64_t layer_ns,
                     const uint64_t *counter, uint64_t *stamps, uint64_t *counted);
/* Waits, mostly asleep, until the counter shows the value; ns: when that was seen. -1: it took too long. */
int spb_await(const uint64_t *counter, uint64_t value, uint64_t limit_ns, uint64_t *ns);
/* cdef end */

#endif
