/* Cuts the connections to a peer whose provider has no call for it. */
#ifndef SPF_CUT_H
#define SPF_CUT_H

#include <stdint.h>

/* Every TCP connection of this process to that address (as libfabric names it: a sockaddr) is reset, at once and
 * for both ends. What was queued for it, in libfabric or in the kernel, does not leave any more. */
void spf_cut_connections(const uint8_t *address);

#endif
