/* libfabric's tcp keeps the connection to an address that was removed from the address vector, and goes on sending
 * what it has queued: from memory that is another request's by then, into pages that may be. Only the endpoint as
 * a whole can be closed, with everybody's connections. So we look for the socket and disconnect it; the provider
 * finds a broken connection, as it would if the peer had ended. */
#include "cut.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define MOST_DESCRIPTORS (1u << 20) /* fs.nr_open, unless somebody has raised it */

static int is_same(const struct sockaddr_storage *one, const struct sockaddr_storage *other)
{
    if (one->ss_family != other->ss_family)
        return 0;
    if (one->ss_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)one, *b = (const void *)other;
        return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
    }
    if (one->ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const void *)one, *b = (const void *)other;
        return a->sin6_port == b->sin6_port && memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr) == 0;
    }
    return 0;
}

static void cut(int fd, const struct sockaddr_storage *target)
{
    struct sockaddr_storage found = { 0 };
    socklen_t bytes = sizeof found;
    if (getpeername(fd, (struct sockaddr *)&found, &bytes) == 0 && is_same(&found, target)) {
        const struct sockaddr nobody = { .sa_family = AF_UNSPEC };
        connect(fd, &nobody, sizeof nobody); /* tcp(7): dissolves the association; the other end sees a reset */
    }
}

/* 0: the list was read to its end. */
static int cut_listed(DIR *folder, const struct sockaddr_storage *target)
{
    const struct dirent *entry;
    rewinddir(folder); /* and it is read anew */
    while ((errno = 0, entry = readdir(folder)))
        if (entry->d_name[0] != '.')
            cut(atoi(entry->d_name), target);
    return errno;
}

/* Every number that a descriptor can have. */
static void cut_any(const struct sockaddr_storage *target)
{
    struct rlimit limit = { MOST_DESCRIPTORS, MOST_DESCRIPTORS };
    getrlimit(RLIMIT_NOFILE, &limit);
    for (rlim_t fd = 0; fd < limit.rlim_max && fd < MOST_DESCRIPTORS; fd++) /* the soft limit may have been lowered */
        cut((int)fd, target);
}

DIR *spf_cut_prepare(void)
{
    return opendir("/proc/self/fd");
}

void spf_cut_connections(DIR *descriptors, const uint8_t *address)
{
    struct sockaddr_storage target;
    memcpy(&target, address, sizeof target);
    if (!descriptors || cut_listed(descriptors, &target))
        cut_any(&target);
}
