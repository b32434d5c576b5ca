/* Paths: from each of our NICs to one of the peer's. A path that fails is not used again for this peer, a NIC
 * that fails not for any; what is posted from then on goes over the others. On the I/O thread.
 *
 * A write that was under way on a lost path may have been counted by the receiver or not, and no provider says
 * which. Posting it again could count it twice, so its transfer fails; where another path is left it says so
 * (status: retry), and the whole transfer may be repeated with a new generation of the slot, for which nothing
 * of the old one counts. A write that the provider refused has not left, and goes over another path at once. */
#ifndef SPF_PATHS_H
#define SPF_PATHS_H

#include "engine.h"

/* Bit i: our NIC i cannot write to the peer. */
static inline uint32_t spf_paths_lost(const spf_engine *engine, const struct spf_peer *peer)
{
    return engine->nics_out | peer->lost;
}

/* Something failed on the path: whether the error is one of paths and another is left. Then this one is lost. */
int spf_path_lose(spf_engine *engine, struct spf_peer *peer, uint32_t nic, int error);
/* Takes a NIC out: its endpoint closes, so that nothing of it can reach a peer any more, and what was under
 * way on it has failed. */
void spf_nic_take_out(spf_engine *engine, uint32_t nic, int error);
/* An error that no write is to blame for may have cost any: the NIC is taken out, or if it is the last one, what is
 * unfinished fails. */
void spf_check_nics(spf_engine *engine);
/* A path that has taken nothing for as long as a peer may, while another one to this peer has, is lost: what is on
 * it has failed, and is quiet when it ends. Where we can we end it. */
void spf_check_paths(spf_engine *engine, uint64_t now);

#endif
