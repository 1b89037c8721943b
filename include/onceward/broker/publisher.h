#pragma once

#include "onceward/base/slice.h"
#include "onceward/config/config.h"

struct fault;
struct message;

/* Publishing with confirms, one message at a time, on a connection of its own: for commands, which may wait.
 * Every wait has the connect timeout as its deadline. One thread. */

struct publisher;

/* A connection with publisher confirms, for the vhost given (NULL: the URL's). */
int publisher_open(const struct config_broker *c, const char *vhost, const char *instance,
                   struct publisher **ret, struct fault *f);

/* Publishes persistent and mandatory to the default exchange with this routing key, and waits for the
 * confirm. 0: confirmed and routed; 1: no such queue (returned); -1: not confirmed, its fate is unknown. Left
 * out of the message: `expiration` (it would expire again), headers of an earlier journey (header_is_spent);
 * and a `user_id` that is not the connection's own (the broker refuses it). */
int publisher_send(struct publisher *p, const char *queue, const struct message *m, struct fault *f);

/* The same for a message whose properties are kept as they came from a broker (struct message's
 * content_header): what is not left out goes out byte for byte. -1 also when they have not AMQP's form, and
 * nothing was sent. */
int publisher_send_raw(struct publisher *p, const char *queue, struct slice content_header, struct slice body,
                       struct fault *f);

/* Publishes it to that exchange as it is, with nothing left out. 0, 1 (no queue is bound there) and -1 as
 * above. */
int publisher_send_to(struct publisher *p, struct slice exchange, struct slice routing_key,
                      const struct message *m, struct fault *f);

void publisher_close(struct publisher *p);
