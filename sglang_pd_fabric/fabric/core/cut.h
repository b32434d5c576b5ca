/* Cuts the connections to a peer whose provider has no call for it. */
#ifndef SPF_CUT_H
#define SPF_CUT_H

#include <dirent.h>
#include <stdint.h>

/* The list of the process's descriptors, opened before it counts: later there may be none left to open it with.
 * NULL where there is no such list. */
DIR *spf_cut_prepare(void);
/* Every TCP connection of this process to that address (as libfabric names it: a sockaddr) is reset, at once and
 * for both ends. What was queued for it, in libfabric or in the kernel, does not leave any more. Without a list, or
 * when it cannot be read, every number that a descriptor can have is tried. */
void spf_cut_connections(DIR *descriptors, const uint8_t *address);

#endif
