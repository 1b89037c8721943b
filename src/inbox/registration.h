#pragma once

#include <stdbool.h>

struct fault;

/* A queue, with the other queue that has its consumer name, or the other consumer that has the queue. */
struct registration {
    const char *consumer, *queue;
    const char *vhost, *broker; /* NULL: unknown */
    const char *other_queue, *other_vhost, *other_broker;
    const char *former;
};

/* Is the other queue this one at a broker of another name? */
bool registration_is_of_other_broker(const struct registration *r);

/* Writes the reason for a refusal, and the remedy, as `run` and `check` show it. */
void registration_refuse(const struct registration *r, struct fault *f);
void registration_refuse_taken(const struct registration *r, struct fault *f);

/* The same for an ordered queue whose range is not the recorded one. */
void registration_refuse_order(const struct registration *r, struct fault *f);

/* The same for a consumer whose other replicas have another order key, given as its sources; "": none. is_running:
 * takes_over confirms the change, and a replica with the other key still runs. */
void registration_refuse_mode(const struct registration *r, const char *order_key, const char *recorded,
                              bool is_running, struct fault *f);
