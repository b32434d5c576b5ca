/* Endpoints that are opened anew, on the I/O thread.
 *
 * tcp of libfabric 1.17 does not connect again to a peer whose connection was cut (see cut.c); a new endpoint does.
 * On shm a write to a process that has died never ends. libfabric (2.5) keeps its context for ever, and there are
 * only so many; and it crashes when the address of the dead is removed before the write has ended. So the address
 * of a removed peer stays while writes to it are left, and once nothing else is under way over the endpoint, it is
 * closed, which ends them, and opened again. Regions stay: they belong to the domain.
 *
 * The new endpoint has another address. So this is only for engines that nobody has written to. */
#ifndef SPF_RENEW_H
#define SPF_RENEW_H

#include "engine.h"

/* Whether this engine's endpoints may be opened anew. */
int spf_renews(const spf_engine *engine);
/* Opens anew what has to be and may be now. */
void spf_renew_nics(spf_engine *engine);
/* Tries once more what could not be opened anew (the process may have been short of descriptors). Until then nothing
 * is posted on it. */
void spf_renew_failed(spf_engine *engine);

#endif
