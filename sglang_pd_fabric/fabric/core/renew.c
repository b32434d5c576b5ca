#include "renew.h"

#include <fcntl.h>
#include <unistd.h>

#include "ending.h"

int spf_renews(const spf_engine *engine)
{
    const struct spf_slots *slots = &engine->slots;
    return engine->config.profile.renew && !atomic_load(&slots->units_counted) && !atomic_load(&slots->late) &&
           !atomic_load(&slots->unknown);
}

static int insert_peers(spf_engine *engine, uint32_t index)
{
    int rc = 0;
    for (spf_peer *peer = engine->peers; !rc && peer; peer = peer->next)
        if (!peer->slots.words)
            rc = spf_nic_insert(&engine->nics[index], engine->library, peer->names[peer->pair[index]],
                                &peer->address[index], NULL);
    return rc;
}

/* shm of libfabric 2.5 crashes in fi_enable when it cannot open its file. */
static int has_spare_descriptor(const spf_engine *engine)
{
    int spare = fcntl(engine->event_fd, F_DUPFD_CLOEXEC, 0);
    return spare >= 0 && close(spare) == 0;
}

static void renew(spf_engine *engine, uint32_t index)
{
    if (!has_spare_descriptor(engine))
        return;
    int rc = spf_nic_reopen(&engine->nics[index], engine->library, &engine->config.profile);
    spf_ledger_reclaim(&engine->ledger, index); /* the queue that could still tell of them is closed */
    rc = rc ? rc : insert_peers(engine, index);
    if (rc)
        spf_nic_disconnect(&engine->nics[index]); /* and is tried again */
    else
        spf_count(&engine->counters.renewed, 1);
}

void spf_renew_failed(spf_engine *engine)
{
    for (uint32_t i = 0; i < engine->config.nic_count; i++)
        if (!engine->nics[i].ep && !(engine->nics_out >> i & 1))
            renew(engine, i);
}

/* Whether writes over the NIC have ended that may not have arrived: with their connection they would be lost. */
static int has_unconfirmed(const spf_engine *engine, uint32_t index)
{
    for (const struct spf_plan *plan = engine->first_plan; plan; plan = plan->next)
        if (plan->open >> index & 1)
            return 1;
    return 0;
}

void spf_renew_nics(spf_engine *engine)
{
    if (!spf_renews(engine))
        return;
    for (uint32_t i = 0; i < engine->config.nic_count; i++) {
        const struct spf_nic *nic = &engine->nics[i];
        if (nic->ep && nic->stranded && !nic->in_flight && !has_unconfirmed(engine, i))
            renew(engine, i);
    }
}
