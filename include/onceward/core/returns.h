#pragma once

#include "onceward/base/slice.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct buf;

/* Deliveries that may be requeued. Requeueing has a price: quorum queues count it, and drop a message at their
 * delivery limit; bounded queues drop their oldest message. A value. */

enum queue_kind { KIND_UNKNOWN, KIND_CLASSIC, KIND_QUORUM };

/* A limit of 0 drops a message with its first counted return. */
enum { LIMIT_UNKNOWN = -1, LIMIT_LEAST = 5, LIMIT_SINCE_4 = 20, LIMIT_NONE = INT_MAX };

/* The queue's arguments that matter here. */
struct queue_limits {
    bool read;          /* false: they could not be read, and the rest is meaningless */
    int delivery_limit; /* x-delivery-limit; LIMIT_NONE: unlimited; LIMIT_UNKNOWN: absent, so a policy may set one */
    bool drops_head;     /* a full queue drops its oldest message, not the new one */
    bool needs_consumer; /* auto-delete or x-expires: the broker deletes it when it has no consumer */
    bool single_active;  /* x-single-active-consumer: a consumer that is cancelled hands the queue on */
};

struct returns {
    enum queue_kind kind;
    int configured; /* queues.<name>.delivery_limit, else broker.delivery_limit; LIMIT_UNKNOWN: neither */
    int server_major, server_minor; /* the broker's version; 0: unknown */
    struct queue_limits limits;
    bool ordered; /* messages are never renewed or requeued alone, so none gets near the limit by itself */
    const char *no_renewal; /* why no message of the queue can be renewed, static text; NULL: they can be */
    int64_t no_renewal_until_ms; /* time of the next try; 0: the queue's arguments decide */
    bool told;                   /* a line about an unknown or assumed limit was logged */
};

/* Limit that the key delivery_limit sets, where 0 stands for none, and a negative number for an absent key. */
int returns_limit_of_key(int key);

/* The known limit: LIMIT_UNKNOWN, LIMIT_NONE (also for a classic queue), or a number of deliveries, the smaller one
 * of the configured and the read limit. */
int returns_limit(const struct returns *r);

/* Is the limit only assumed, from RabbitMQ's default? */
bool returns_limit_is_assumed(const struct returns *r);

/* Appends the known limit as text, and the key to set if that is too little: "its x-delivery-limit is 5". */
void returns_limit_words(const struct returns *r, struct buf *ret);

/* Is the limit unknown, or so small that a few crashes in a row reach it? */
bool returns_limit_is_near(const struct returns *r);

/* Does the broker drop each message with its first counted return, so that a delivery may not be returned at all? */
bool returns_leave_none(const struct returns *r);

/* Number of earlier deliveries, if it is credible: x-delivery-count is reliable on quorum queues only. */
int64_t returns_count(const struct returns *r, int64_t delivery_count);

/* Number of earlier deliveries from which on a message is renewed, if its queue counts: two before the limit.
 * INT64_MAX: never. An unknown limit counts as LIMIT_LEAST, the smallest that `check` accepts. */
int64_t returns_renew_count(const struct returns *r);

/* The same for a message that cannot be renewed. */
int64_t returns_near_count(const struct returns *r);

/* Is the message near the limit without a possible renewal? Then it must not be requeued, and is stored whole
 * if it arrives so. */
bool returns_is_near(const struct returns *r, int64_t delivery_count);

/* Is the delivery so near the limit that two more ends of its claim owner would lose it? Such deliveries are
 * renewed, or stored whole, even while their rows are claimed elsewhere. */
bool returns_is_last(const struct returns *r, int64_t delivery_count);

/* Does the broker count a basic.nack with requeue as a delivery? RabbitMQ before 4.3 does
 * (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling). */
bool returns_are_counted(const struct returns *r);

/* Does the broker put a requeued message behind the waiting ones? RabbitMQ before 4.3 does so on quorum
 * queues without a delivery limit (unknown limits included). Elsewhere it is redelivered at once. */
bool returns_go_behind(const struct returns *r);

/* Does the broker delete the queue, with its messages, when it has no consumer? May it, as far as is known? */
bool returns_need_consumer(const struct returns *r);
bool returns_may_need_consumer(const struct returns *r);

/* True once: the queue counts deliveries, but its limit is unknown. */
bool returns_limit_is_missing(struct returns *r, int64_t delivery_count);
