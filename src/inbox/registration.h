#pragma once

#include <stdbool.h>

struct fault;

/* A queue, and the other queue that has its consumer name, or the other consumer that has the queue. */
struct registration {
    const char *consumer, *queue;
    const char *vhost, *broker; /* NULL: unknown */
    const char *other_queue, *other_vhost, *other_broker;
    const char *former;
};

/* Why the queue is refused, and the remedy, in words that `run` and `check` share. */
void registration_refuse(const struct registration *r, struct fault *f);
void registration_refuse_taken(const struct registration *r, struct fault *f);

/* The same for an ordered queue whose range is not the recorded one. */
void registration_refuse_order(const struct registration *r, struct fault *f);

/* The same for a consumer whose other replicas have another order key, as a text of its sources; "": none.
 * is_running: takes_over confirms the change, and one of them still runs. */
void registration_refuse_mode(const struct registration *r, const char *order_key, const char *recorded,
                              bool is_running, struct fault *f);
