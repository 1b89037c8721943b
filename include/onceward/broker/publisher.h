#pragma once

#include "onceward/base/slice.h"
#include "onceward/config/config.h"

struct fault;
struct message;

/* Publishing with confirms, on a connection of its own, for commands, which may block. Every wait has the connect
 * timeout as its deadline. One thread. */

struct publisher;

/* Opens a connection with publisher confirms to the given vhost (NULL: the URL's). */
int publisher_open(const struct config_broker *c, const char *vhost, const char *instance,
                   struct publisher **ret, struct fault *f);

/* Publishes persistent and mandatory, and waits for the confirm. The exchange "" is the default exchange, whose
 * routing key is a queue's name. 0: confirmed and routed. 1: no such queue (returned). -1: not confirmed; the outcome
 * is unknown, unless the broker reported it by a nack or by the AMQP code with which it closed the channel or the
 * connection.
 *
 * Left out of the message: `expiration` (it would expire again), headers of an earlier journey (header_is_spent), and a
 * `user_id` other than the connection's own (the broker refuses it). */
int publisher_send(struct publisher *p, const char *exchange, const char *routing_key,
                   const struct message *m, struct fault *f);

/* The same for a message whose properties are kept as a broker sent them (struct message's content_header): all
 * others are published byte for byte. -1 also for malformed AMQP, with nothing sent. */
int publisher_send_raw(struct publisher *p, const char *exchange, const char *routing_key,
                       struct slice content_header, struct slice body, struct fault *f);

/* Publishes the message unchanged to that exchange. 0, 1 (no queue is bound there) and -1 as above. */
int publisher_send_to(struct publisher *p, struct slice exchange, struct slice routing_key,
                      const struct message *m, struct fault *f);

/* Like publisher_send_raw to a queue, but does not wait for the confirm. All messages in flight must go to one queue.
 * When PUBLISHER_WINDOW messages are in flight, it first waits for a confirm. 1 and -1 may be about any message in
 * flight; nothing more may be published afterwards. */
enum { PUBLISHER_WINDOW = 256 };
int publisher_push(struct publisher *p, const char *queue, struct slice content_header, struct slice body,
                   struct fault *f);

/* Waits until at most n messages are in flight. 0. 1: one was returned, there is no such queue. -1: as above. */
int publisher_settle(struct publisher *p, size_t n, struct fault *f);

/* Number of messages confirmed and routed so far, counted from the first one without a gap. */
uint64_t publisher_confirmed(const struct publisher *p);

/* Is the connection or its channel lost, or a confirm overdue? Then nothing more can be published. */
bool publisher_is_lost(const struct publisher *p);

void publisher_close(struct publisher *p);
