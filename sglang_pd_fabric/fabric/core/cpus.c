#include "cpus.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "error.h"

#define MOST_CPUS 8192u /* the kernel's own limit */
#define SLICE_NS 100000u /* the shortest that the kernel grants */
#define RESET_ON_FORK 1u  /* SCHED_FLAG_RESET_ON_FORK of linux/sched.h */

static int fail(const uint32_t *cpus, uint32_t count, int code, const char *why, spf_error *err)
{
    char list[200] = "";
    for (size_t i = 0, used = 0; i < count && used + 16 < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%u", i ? "," : "", cpus[i]);
    return spf_fail(err, code, "the I/O thread cannot run on CPUs %s: %s", list, why);
}

int spf_cpus_pin(const uint32_t *cpus, uint32_t count, spf_error *err)
{
    if (!count)
        return 0;
    cpu_set_t *allowed = CPU_ALLOC(MOST_CPUS), *wanted = CPU_ALLOC(MOST_CPUS);
    size_t bytes = CPU_ALLOC_SIZE(MOST_CPUS);
    int rc = 0;
    if (!allowed || !wanted) {
        rc = spf_fail(err, ENOMEM, "out of memory");
    } else if (sched_getaffinity(0, bytes, allowed)) {
        rc = fail(cpus, count, errno, strerror(errno), err);
    } else {
        CPU_ZERO_S(bytes, wanted);
        for (uint32_t i = 0; i < count && !rc; i++) {
            /* The kernel would leave out some of them in silence, and let us out of our own limits. */
            if (cpus[i] >= MOST_CPUS || !CPU_ISSET_S(cpus[i], bytes, allowed))
                rc = fail(cpus, count, EINVAL, "this process may not use all of them", err);
            else
                CPU_SET_S(cpus[i], bytes, wanted);
        }
        if (!rc && sched_setaffinity(0, bytes, wanted))
            rc = fail(cpus, count, errno, strerror(errno), err);
    }
    CPU_FREE(allowed);
    CPU_FREE(wanted);
    return rc;
}

/* The kernel's struct sched_attr in its first form; the C library has neither it nor the calls. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

void spf_cpus_shorten_slice(void)
{
    struct attributes own = { .size = sizeof own };
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) || own.policy != SCHED_OTHER)
        return;
    own.runtime = SLICE_NS;
    own.flags |= RESET_ON_FORK; /* threads that it starts have work to do, and get the usual slice */
    syscall(SYS_sched_setattr, 0, &own, 0);
}
