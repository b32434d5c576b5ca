/* Writes to a peer whose memory is mapped into this process: one copy, no provider. The units are counted in
 * the peer's own slots, by the same rules as an immediate that came over a wire. On the I/O thread. */
#ifndef SPF_MAPPED_H
#define SPF_MAPPED_H

#include "engine.h"

static inline int spf_peer_is_mapped(const spf_peer *peer)
{
    return peer->slots.words != NULL;
}

/* Copies the plan's share of a round. Something of it is left, and may be copied. */
void spf_mapped_copy(spf_engine *engine, struct spf_plan *plan);

#endif
