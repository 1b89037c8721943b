/* Refusals of a registration. The consumer name belongs to another queue, or to a queue of that name in another vhost
 * or at another broker; or the queue belongs to another consumer. */
#include "registration.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"

#include <string.h>

enum { KEY_SHOWN = 100 }; /* bytes of an order key in a refusal */

static void add_quoted(struct buf *b, const char *before, const char *name)
{
    if (name)
        buf_printf(b, "%s\"%s\"", before, name);
}

bool registration_is_of_other_broker(const struct registration *r)
{
    return r->broker && strcmp(r->broker, r->other_broker) != 0 && r->vhost &&
           strcmp(r->vhost, r->other_vhost) == 0 && strcmp(r->queue, r->other_queue) == 0;
}

void registration_refuse(const struct registration *r, struct fault *f)
{
    bool moved = r->broker && r->other_broker && strcmp(r->broker, r->other_broker) != 0;
    struct buf text = {0};

    buf_printf(&text, "consumer \"%s\" belongs to queue \"%s\" in vhost \"%s\"", r->consumer, r->other_queue,
               r->other_vhost);
    add_quoted(&text, moved ? " at broker " : "", moved ? r->other_broker : NULL);
    buf_printf(&text, ", not to queue \"%s\"", r->queue);
    add_quoted(&text, " in vhost ", r->vhost);
    add_quoted(&text, " at broker ", moved ? r->broker : NULL);
    buf_printf(
        &text,
        ": set takes_over to \"%s\" if this queue has replaced that one, or that one was a mistake; else "
        "give this "
        "queue a consumer name of its own",
        r->other_queue);
    fault_set(f, "%s", buf_text(&text));
    buf_deinit(&text);
}

void registration_refuse_taken(const struct registration *r, struct fault *f)
{
    fault_set(
        f,
        "queue \"%s\" in vhost \"%s\" belongs to consumer \"%s\", not to consumer \"%s\": messages that were "
        "completed under that name would be done again; set takes_over to \"%s\" to continue with its "
        "rows, or remove them with `onceward forget`",
        r->queue, r->vhost ? r->vhost : "", r->former, r->consumer, r->former);
}

void registration_refuse_order(const struct registration *r, struct fault *f)
{
    fault_set(
        f,
        "consumer \"%s\" reads \"%s\" in order, and \"%s\" would move keys to other partitions, so that "
        "later messages "
        "of a key come before earlier ones: (1) stop publishing, (2) wait until all partitions are empty "
        "and nothing is "
        "unacked, (3) change queues and bindings, (4) start all replicas with the new range and with "
        "takes_over "
        "\"%s\", which confirms this, (5) publish again",
        r->consumer, r->other_queue, r->queue, r->other_queue);
}

void registration_refuse_mode(const struct registration *r, const char *order_key, const char *recorded,
                              bool is_running, struct fault *f)
{
    struct buf text = {0};

    if (*order_key && *recorded)
        buf_printf(&text, "with order.key %.*s, and this configuration has %.*s", KEY_SHOWN, recorded,
                   KEY_SHOWN, order_key);
    else
        buf_printf(&text, "%s order.key, and this configuration has %s", *recorded ? "with" : "without",
                   *recorded ? "none" : "it");
    fault_set(
        f,
        "consumer \"%s\" is recorded %s: replicas of one consumer that "
        "do not all keep the order would break it; expected the same in all replicas, or, to change it, "
        "stop all "
        "replicas and set takes_over to \"%s\", which confirms this%s",
        r->consumer, buf_text(&text), r->other_queue,
        is_running ? "; another replica still runs with the recorded setting" : "");
    buf_deinit(&text);
}
