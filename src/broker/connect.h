#pragma once

#include "broker/wire.h"
#include "onceward/base/fault.h"
#include "onceward/broker/arguments.h"
#include "onceward/broker/broker.h"
#include "onceward/config/config.h"

/* TO_RELAY, TO_RENEW: to publish from the loop, which answers heartbeats. TO_ASK: only to read the arguments of
 * queues. */
enum purpose { TO_CONSUME, TO_PUBLISH, TO_RELAY, TO_RENEW, TO_ASK };

/* Queues to be consumed, with their names. */
struct queue_list {
    struct broker_queue *items;
    size_t n;
};

/* Reads the arguments of the queues, on channel 1, which is open. ret: one for each. -1: lost, or late. */
typedef int arguments_fn(amqp_connection_state_t c, const struct queue_list *queues, int64_t deadline_ms,
                         struct arguments_found *ret, struct fault *f);

/* Settings of a connection, copied, because the thread that connects may outlive its caller. */
struct target {
    enum purpose purpose;
    arguments_fn *ask; /* for TO_ASK */
    struct config_text url, user, password;
    struct config_tls tls;
    int64_t heartbeat_ms, timeout_ms;
    char *vhost;              /* NULL: the URL's */
    struct queue_list queues; /* empty for publishing */
    char *name;               /* the connection's name, for the broker's operators */
};

/* NULL: f says why the settings are refused. vhost may be NULL. */
struct target *target_new(enum purpose purpose, const struct config_broker *c, const char *vhost,
                          const struct broker_queue *queues, size_t n_queues, const char *instance,
                          struct fault *f);
void target_free(struct target *t);

/* The result of an attempt to connect. */
struct attempt {
    struct wire wire; /* wire.connection is NULL after a failure */
    struct queue_list queues;
    struct arguments_found *found;  /* for TO_ASK, one per queue; else NULL */
    char *version, *user, *cluster; /* cluster: the name that the broker reports */
    struct fault fault;
};

void attempt_free(struct attempt *a);

/* Connects and logs in; for publishing and relaying it also opens channel 1 in confirm mode. Blocks for at
 * most the target's timeout, not counting name resolution. Frees the target. Never NULL. For job_start, like
 * attempt_drop. */
void *attempt_run(void *target);
void attempt_drop(void *attempt);

/* The same for commands: runs on a thread of its own and gives up at the deadline. NULL: f says why. */
struct attempt *attempt_wait(struct target *t, int64_t deadline_ms, struct fault *f);
