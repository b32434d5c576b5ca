/* The whole test framework: a check that names its line, a table of cases, one runner. A failed check
 * ends the process at once, from whichever thread it came. */
#ifndef SPF_CHECK_H
#define SPF_CHECK_H

#include <inttypes.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition))                                                             \
            check_failed(__FILE__, __LINE__, #condition);                             \
    } while (0)

#define CHECK_EQUAL(seen, wanted)                                                     \
    do {                                                                              \
        int64_t check_seen = (int64_t)(seen), check_wanted = (int64_t)(wanted);       \
        if (check_seen != check_wanted) {                                             \
            printf("%" PRId64 " instead of %" PRId64 "\n", check_seen, check_wanted); \
            check_failed(__FILE__, __LINE__, #seen " == " #wanted);                   \
        }                                                                             \
    } while (0)

/* Waits for something that has no event to wait on. The limit only ends a hanging test. */
#define WAIT_FOR(condition)                                                           \
    do {                                                                              \
        time_t check_limit = time(NULL) + 60;                                         \
        while (!(condition)) {                                                        \
            if (time(NULL) > check_limit)                                             \
                check_failed(__FILE__, __LINE__, "within a minute: " #condition);     \
            usleep(100);                                                              \
        }                                                                             \
    } while (0)

#define CASE(function) { #function, function }

struct check_case {
    const char *name;
    void (*run)(void);
};

static inline void check_failed(const char *file, int line, const char *what)
{
    printf("%s:%d: not true: %s\n", file, line, what);
    fflush(stdout);
    _exit(1);
}

static inline int check_run(const struct check_case *cases, size_t count, const char *only)
{
    size_t ran = 0;
    for (size_t i = 0; i < count; i++) {
        if (only && strcmp(only, cases[i].name) != 0)
            continue;
        printf("%s ...", cases[i].name);
        fflush(stdout);
        cases[i].run();
        printf(" ok\n");
        ran++;
    }
    return ran ? 0 : 1;
}

/* xorshift64*: the same numbers on every machine. */
static inline uint64_t check_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du;
}

#endif
