#pragma once

#include "onceward/base/slice.h"
#include "onceward/config/config.h"

struct fault;
struct message;

/* Publishing with confirms, on a connection of its own: for commands, which may wait.
 * Every wait has the connect timeout as its deadline. One thread. */

struct publisher;

/* A connection with publisher confirms, for the vhost given (NULL: the URL's). */
int publisher_open(const struct config_broker *c, const char *vhost, const char *instance,
                   struct publisher **ret, struct fault *f);

/* Publishes persistent and mandatory to the default exchange with this routing key, and waits for the
 * confirm. 0: confirmed and routed; 1: no such queue (returned); -1: not confirmed, its fate is unknown,
 * unless the broker has said it: by nack, or by a code (of AMQP) with which it closed channel or connection.
 * Left out of the message: `expiration` (it would expire again), headers of an earlier journey
 * (header_is_spent); and a `user_id` that is not the connection's own (the broker refuses it). */
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

/* As publisher_send_raw, without waiting for the confirm: it is on its way when this returns. All that is on
 * its way goes to one queue. When PUBLISHER_WINDOW are, a confirm is waited for first. 1 and -1 may be about
 * any of those that are on their way; nothing more may be published after them. */
enum { PUBLISHER_WINDOW = 256 };
int publisher_push(struct publisher *p, const char *queue, struct slice content_header, struct slice body,
                   struct fault *f);

/* Waits until at most n are on their way. 0; 1: one was returned, there is no such queue; -1. */
int publisher_settle(struct publisher *p, size_t n, struct fault *f);

/* How many were confirmed and routed, of all that were ever published, from the first one on without a gap.
 */
uint64_t publisher_confirmed(const struct publisher *p);

/* Nothing more can be published: the connection is lost, or the broker has closed it or its channel, or a
 * confirm did not come in time. */
bool publisher_is_lost(const struct publisher *p);

void publisher_close(struct publisher *p);
