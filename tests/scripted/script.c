/* What a test may ask of the world, and tell it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

void scripted_machine(const char *name)
{
    const struct machine *machine = machine_named(name);
    lock();
    if (!machine || world.seen.open_objects) {
        fprintf(stderr, "scripted_machine(%s): %s\n", name, machine ? "objects are open" : "there is none");
        abort();
    }
    world.machine = machine;
    world.seen = (struct scripted_seen){ 0 };
    world.hold = world.complete_first = world.must_confirm = 0;
    world.order = IN_ORDER;
    world.again = world.refuse_after = world.fate_after = world.fate_count = 0;
    world.again_domain[0] = '\0';
    world.refuse_rc = 0;
    world.registered = (struct scripted_registrations){ 0 };
    world.registrations_before_refusal = world.registrations_to_refuse = 0;
    world.dmabuf_rc = world.together = 0;
    world.endpoints_to_refuse = world.endpoints_refused = 0;
    unlock(0);
}

void scripted_look(struct scripted_seen *out)
{
    lock();
    *out = world.seen;
    unlock(0);
}

void scripted_hold(int on)
{
    lock();
    world.hold = on;
    unlock(0);
    if (!on)
        scripted_release(SCRIPTED_ALL);
}

void scripted_order(enum scripted_order order, uint64_t seed)
{
    lock();
    world.order = order;
    world.seed = seed;
    unlock(0);
}

void scripted_complete_first(int on)
{
    lock();
    world.complete_first = on;
    unlock(0);
}

void scripted_must_confirm(int on)
{
    lock();
    world.must_confirm = on;
    unlock(0);
}

void scripted_again(const char *domain, uint64_t posts)
{
    lock();
    snprintf(world.again_domain, sizeof world.again_domain, "%s", domain ? domain : "");
    world.again = posts;
    unlock(0);
}

void scripted_refuse(uint64_t after, int rc)
{
    lock();
    world.refuse_after = after;
    world.refuse_rc = rc;
    unlock(0);
}

void scripted_fate(uint64_t after, uint64_t count, enum scripted_fate fate, int err, int prov_errno)
{
    lock();
    world.fate_after = after;
    world.fate_count = count;
    world.fate = fate;
    world.fate_err = err;
    world.fate_prov_errno = prov_errno;
    unlock(0);
}

void scripted_freeze(const char *domain, int on)
{
    lock();
    for (struct queue *queue = world.queues; queue; queue = queue->next)
        if (strcmp(queue->domain->name, domain) == 0)
            queue->frozen = on;
    wake_all();
    unlock(0);
}

void scripted_internal_error(const char *domain, int err)
{
    lock();
    for (struct endpoint *endpoint = world.endpoints; endpoint; endpoint = endpoint->next) {
        if (strcmp(endpoint->domain->name, domain) != 0)
            continue;
        if (endpoint->events)
            endpoint->events->err = err;
        else if (endpoint->domain->is->aborts_without_event_queue)
            violate("%s has no event queue: the provider would have called abort()", domain);
    }
    unlock(0);
}

void scripted_stray_immediate(uint32_t immediate)
{
    lock();
    for (struct queue *queue = world.queues; queue; queue = queue->next)
        queue_push(queue, &(struct fi_cq_err_entry){ .flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                                                     .data = immediate });
    unlock(0);
}

void scripted_registrations_look(struct scripted_registrations *out)
{
    lock();
    *out = world.registered;
    unlock(0);
}

void scripted_refuse_registration(uint64_t after, uint64_t count, int rc)
{
    lock();
    world.registrations_before_refusal = after;
    world.registrations_to_refuse = count;
    world.registration_rc = rc;
    unlock(0);
}

void scripted_refuse_endpoints(uint64_t count, int rc)
{
    lock();
    world.endpoints_to_refuse = count;
    world.endpoint_rc = rc;
    unlock(0);
}

uint64_t scripted_refused_endpoints(void)
{
    lock();
    uint64_t refused = world.endpoints_refused;
    unlock(0);
    return refused;
}

void scripted_refuse_dmabuf(int rc)
{
    lock();
    world.dmabuf_rc = rc;
    unlock(0);
}

void scripted_register_together(int count)
{
    lock();
    world.together = count;
    unlock(0);
}
