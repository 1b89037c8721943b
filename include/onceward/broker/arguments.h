#pragma once

#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/broker/broker.h"
#include "onceward/config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The arguments that a queue was declared with. AMQP has no question for them, but a declare that differs from the
 * queue is refused, and the refusal names one argument with its present value (406). So declares are sent one after
 * another, each with all arguments known so far, until one is equal.
 *
 * No declare can create a queue that has vanished in between: each carries an argument that only streams have, with a
 * value that is invalid for every queue (x-max-age "?"). Other kinds of queues do not compare it, and for a missing
 * queue the declare is refused because of it.
 *
 * The user needs `configure` on the queue. Policies are not visible. The broker logs a line for each refused
 * declare. */

enum { ARGUMENT_ABSENT = -1 };

struct broker_arguments {
    int server_major, server_minor; /* of the broker's version */
    enum broker_kind kind;
    bool durable, auto_delete;
    bool exclusive; /* to another connection: nothing else is known */
    bool single_active_consumer;
    bool has_dead_letter_exchange; /* else a policy may set one */
    bool rejects_publish;          /* x-overflow is reject-publish or reject-publish-dlx */
    bool has_delivery_limit;       /* else a policy, or the broker's default, may set one */
    int64_t delivery_limit;        /* negative: none, from RabbitMQ 4 on */
    int64_t max_length, max_bytes; /* x-max-length(-bytes); ARGUMENT_ABSENT */
    int64_t max_priority;          /* x-max-priority; ARGUMENT_ABSENT */
    int64_t expires_ms;            /* x-expires; ARGUMENT_ABSENT */
    char delayed_retry[16];        /* x-delayed-retry-type; empty: absent */
};

/* The part that matters for returns. */
struct queue_limits;
void broker_arguments_limits(const struct broker_arguments *a, struct queue_limits *ret);

/* Warning if the broker drops messages at the delivery limit (returns_limit), or NULL. */
const char *broker_arguments_drop_warning(const struct broker_arguments *a, int limit);

/* Warning if the delivery limit (returns_limit) is too small to be protected, or NULL. */
const char *broker_arguments_limit_warning(int limit);

/* Reason why order per key cannot hold on this queue, or NULL. limit: returns_limit. holds_dead: order.on_dead is
 * hold. */
const char *broker_arguments_order_refusal(const struct broker_arguments *a, int limit, bool holds_dead);

/* The same for a queue whose arguments cannot be read. */
const char *broker_arguments_order_unread(int limit, bool holds_dead);

/* Were the arguments read? Otherwise the reason. */
enum arguments_answer {
    ARGUMENTS_READ,
    ARGUMENTS_FORBIDDEN,  /* the user has no `configure` permission on the queue */
    ARGUMENTS_NO_QUEUE,   /* the queue does not exist */
    ARGUMENTS_UNREADABLE, /* the answer is incomplete: the broker has cut a long queue name */
};

/* Reads the arguments. Blocks for at most the connect timeout: for commands. 0: *answer, and *ret if they were read,
 * else the reason in f. -1: no connection, f. */
int broker_arguments(const struct config_broker *c, const char *vhost, const char *queue,
                     struct broker_arguments *ret, enum arguments_answer *answer, struct fault *f);

/* The same on a helper thread, for n queues of one virtual host. The job's result is for arguments_attempt_take.
 * NULL: f. */
struct job *arguments_start(const struct config_broker *c, const char *vhost,
                            const struct broker_queue *queues, size_t n, const char *instance,
                            struct fault *f);

/* The arguments of one queue. */
struct arguments_found {
    uint32_t number; /* of the queue, as given */
    enum arguments_answer answer;
    struct broker_arguments arguments;
    char why[256]; /* the reason; empty if they were read */
};

/* Unpacks the result. 0: *ret with *ret_n of them, which the caller frees. -1: no connection, f. */
int arguments_attempt_take(void *result, struct arguments_found **ret, size_t *ret_n, struct fault *f);
