/* A consumer name that belongs to another queue, or to a queue of that name in another vhost. */
#include "registration.h"

#include "onceward/base/fault.h"

void registration_refuse(const struct registration *r, struct fault *f)
{
    fault_set(
        f,
        "consumer \"%s\" belongs to queue \"%s\" in vhost \"%s\", not to queue \"%s\"%s%s%s: set takes_over "
        "to \"%s\" if this queue has replaced that one, or that one was a mistake; else give this queue "
        "a consumer name of its own",
        r->consumer, r->other_queue, r->other_vhost, r->queue, r->vhost ? " in vhost \"" : "",
        r->vhost ? r->vhost : "", r->vhost ? "\"" : "", r->other_queue);
}
