/* Connections under the writes: they break, and come again. */
#include <string.h>

#include "provider.h"

void scripted_break(const char *domain, int err)
{
    lock();
    for (struct wire *write = world.wire; write; write = write->next) {
        if (strcmp(write->from->domain->name, domain) != 0)
            continue;
        write->arrived = 1;
        if (!write->completed)
            wire_complete(write, err, 0);
    }
    for (struct endpoint *endpoint = world.endpoints; endpoint; endpoint = endpoint->next)
        if (strcmp(endpoint->domain->name, domain) == 0) {
            endpoint->broken = err;
            for (size_t i = 0; i < endpoint->vector->count; i++)
                endpoint->vector->open[i] = 0; /* who asks for it is told */
        }
    wire_sweep();
    unlock(0);
}

/* Whether a write there that has not completed asks for its delivery. */
static int confirms(const struct endpoint *from, const uint8_t *to)
{
    for (const struct wire *write = world.wire; write; write = write->next)
        if (write->from == from && write->confirms && !write->completed && memcmp(write->to, to, MAX_ADDRESS) == 0)
            return 1;
    return 0;
}

void connect_anew(const struct queue *queue)
{
    for (struct endpoint *endpoint = world.endpoints; endpoint; endpoint = endpoint->next) {
        if (endpoint->queue != queue)
            continue;
        endpoint->broken = 0;
        for (size_t i = 0; world.must_confirm && i < endpoint->vector->count; i++)
            if (endpoint->vector->open[i] && !confirms(endpoint, endpoint->vector->addresses[i]))
                violate("a queue is read while nothing asks for the delivery of what was written last");
    }
}
