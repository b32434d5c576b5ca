/* libfabric's tcp keeps the connection to an address that was removed from the address vector, and goes on sending
 * what it has queued: from memory that is another request's by then, into pages that may be. Only the endpoint as
 * a whole can be closed, with everybody's connections. So we look for the socket and disconnect it; the provider
 * finds a broken connection, as it would if the peer had ended. */
#include "cut.h"

#include <dirent.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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

void spf_cut_connections(const uint8_t *address)
{
    struct sockaddr_storage target, found;
    memcpy(&target, address, sizeof target);
    DIR *folder = opendir("/proc/self/fd");
    if (!folder)
        return;
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        int fd = atoi(entry->d_name); /* "." and ".." are 0, which is no socket of libfabric's */
        socklen_t bytes = sizeof found;
        memset(&found, 0, sizeof found);
        if (fd > 0 && getpeername(fd, (struct sockaddr *)&found, &bytes) == 0 && is_same(&found, &target)) {
            const struct sockaddr nobody = { .sa_family = AF_UNSPEC };
            connect(fd, &nobody, sizeof nobody); /* tcp(7): dissolves the association; the other end sees a reset */
        }
    }
    closedir(folder);
}
