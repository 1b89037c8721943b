#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;

/* What may go back to the broker. A return is dear: quorum queues count it, and drop what was delivered too
 * often; bounded queues drop at the head. A value. */

enum queue_kind { KIND_UNKNOWN, KIND_CLASSIC, KIND_QUORUM };

enum { LIMIT_UNKNOWN = -1, LIMIT_NONE = 0, LIMIT_LEAST = 5, LIMIT_SINCE_4 = 20 };

/* The queue's arguments, as far as they matter here. */
struct queue_limits {
    bool read;          /* false: they could not be read, and the rest means nothing */
    int delivery_limit; /* x-delivery-limit; LIMIT_NONE: -1, LIMIT_UNKNOWN: absent, so a policy may set one */
    bool drops_head;    /* a full queue drops its oldest message, not the new one */
    bool single_active; /* x-single-active-consumer: a consumer that is cancelled hands the queue on */
};

struct returns {
    enum queue_kind kind;
    int configured; /* queues.<name>.delivery_limit, else broker.delivery_limit; LIMIT_UNKNOWN: neither */
    int server_major, server_minor; /* of the broker's version; 0: not known yet */
    struct queue_limits limits;
    bool
        ordered; /* no message of the queue is renewed or returned alone, so none is near the limit by itself */
    const char *no_renewal; /* why no message of the queue can be renewed, of static memory; NULL: they can */
    bool told;              /* a line about an unknown or assumed limit was logged */
};

/* The limit as far as it is known: LIMIT_UNKNOWN, LIMIT_NONE (a classic queue), or a number of deliveries;
 * the smallest of what was configured and read. */
int returns_limit(const struct returns *r);

/* Is the limit RabbitMQ's own, which nobody has told? */
bool returns_limit_is_assumed(const struct returns *r);

/* "its x-delivery-limit is 5": what is known of the limit, and the key to set where that is too little. */
void returns_limit_words(const struct returns *r, struct buf *ret);

/* Is the limit unknown, or so small that a few crashes in a row reach it? */
bool returns_limit_is_near(const struct returns *r);

/* How often it was delivered before, as far as that is believed: x-delivery-count means something on quorum
 * queues only. */
int64_t returns_count(const struct returns *r, int64_t delivery_count);

/* The number of earlier deliveries from which on a message is renewed, if its queue counts; INT64_MAX: never. Two
 * before the limit. An unknown limit counts as LIMIT_LEAST, the smallest that `check` accepts. */
int64_t returns_renew_count(const struct returns *r);

/* The same for a message that cannot be renewed. */
int64_t returns_near_count(const struct returns *r);

/* Is it near the limit and cannot be renewed: not to be returned any more, and stored whole when it arrives
 * so? */
bool returns_is_near(const struct returns *r, int64_t delivery_count);

/* Deliveries so near the limit that a claim owner which ends twice more would lose them: they are renewed, or stored
 * whole, even while their rows are at work elsewhere. */
bool returns_is_last(const struct returns *r, int64_t delivery_count);

/* Does the broker count a basic.nack with requeue as a delivery? RabbitMQ before 4.3 does
 * (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling). */
bool returns_are_counted(const struct returns *r);

/* Does the broker put what is returned behind what waits? RabbitMQ before 4.3 does on quorum queues without a
 * delivery limit. (Where nobody has told one there may be none.) Elsewhere it comes right back. */
bool returns_go_behind(const struct returns *r);

/* To be told once: a count came from a queue whose limit nobody has told. */
bool returns_limit_is_missing(struct returns *r, int64_t delivery_count);
