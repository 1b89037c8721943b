#pragma once

#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/base/slice.h"
#include "onceward/config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Publishing many messages with confirms, on a connection of its own, for a loop that never blocks.
 *
 * A broker that is short of memory or disk stops reading from connections that publish
 * (https://www.rabbitmq.com/docs/alarms). A connection of its own keeps publishing from delaying the acks of the
 * queues.
 *
 * The sender has one channel. When the broker closes it, the sender opens it again, and its tags begin at 1. One
 * thread. */

struct sender;
struct buf;
struct message;

/* Starts connecting and logging in, on a helper thread; the job's result is for sender_attempt_take. vhost NULL: the
 * URL's. why: shown in the connection's name, for the broker's operators. Everything is copied. NULL: no thread could
 * be started, or a name is too long; f is set. */
enum sender_purpose { SENDER_RELAYS, SENDER_RENEWS };
struct job *sender_connect(const struct config_broker *c, enum sender_purpose why, const char *vhost,
                           const char *instance, struct fault *f);

/* Unpacks the result and frees it: 0 and *ret, with its channel open; or -1 and the fault. */
int sender_attempt_take(void *result, struct sender **ret, struct fault *f);

/* Frees s, after sending connection.close unless the connection is lost. NULL is allowed. */
void sender_free(struct sender *s);

/* For commands, which may block: waits until there is input, or room for pending output, or the deadline has passed. */
void sender_wait(struct sender *s, int64_t deadline_ms);

/* For commands: ends the connection in step with the broker, which would log a warning about a broken one. Returns
 * when the broker has closed the connection, or at the deadline. Only sender_free may follow. */
void sender_close(struct sender *s, int64_t deadline_ms);

/* Descriptor to poll for reading; -1: lost. */
int sender_fd(const struct sender *s);

/* "4.3.6", as the server reports it. */
const char *sender_version(const struct sender *s);

/* User of the login. */
const char *sender_user(const struct sender *s);

/* Name of the cluster, as the broker reports it, or else the broker's address. */
const char *sender_cluster(const struct sender *s);

enum sender_event_kind {
    SENDER_NOTHING,      /* no more events now: poll */
    SENDER_CONFIRMED,    /* the tag, and with `multiple` all before it; `refused`: a nack */
    SENDER_RETURNED,     /* a message without a bound queue; its confirm follows */
    SENDER_CHANNEL_LOST, /* the broker closed the channel (fault, code); unconfirmed messages have an unknown
                            outcome */
    SENDER_CHANNEL_OPEN, /* the channel is open again */
    SENDER_BLOCKED,      /* connection.blocked, with its reason in fault */
    SENDER_UNBLOCKED,
};

struct sender_event {
    enum sender_event_kind kind;
    uint64_t tag;
    bool multiple, refused;
    /* For a returned message, which has no tag; valid until the next call. */
    struct slice message_id, exchange, routing_key;
    uint64_t body_len;
    struct fault fault; /* code: AMQP's reply code */
};

/* Returns the next event, without blocking. To be called until SENDER_NOTHING. 0. -1: the connection is lost, f says
 * why, and only sender_free may follow. */
int sender_next(struct sender *s, struct sender_event *ev, struct fault *f);

/* Handles heartbeats, at least once a second. -1: lost. */
int sender_tick(struct sender *s, struct fault *f);

/* Sends as much as the socket takes, and the rest of a body that did not fit. For the end of a turn. -1: lost. */
int sender_flush(struct sender *s, struct fault *f);

/* Is output pending? Then poll for writing too. */
bool sender_wants_write(const struct sender *s);

/* Bytes that the socket has not taken yet. */
size_t sender_unsent(const struct sender *s);

/* May a message be sent now? If not, try again after a flush, or when the channel is open. */
bool sender_can_send(const struct sender *s);

/* Largest size of a message's property flags and property list, which must fit into one frame. */
size_t sender_header_max(const struct sender *s);

/* Appends the property flags and list of a message. -1: AMQP cannot encode one of its properties or names. */
int sender_encode(struct buf *out, const struct message *m, struct fault *f);

/* Appends to out the property flags and list of a message that a broker sent (struct message's content_header), for
 * publishing it again: persistent, without its `expiration` unless that is kept, without headers of an earlier
 * journey (header_is_spent) and without a `user_id` other than the connection's own. *ret points into out. -1:
 * malformed AMQP. */
int sender_edit(const struct sender *s, struct buf *out, struct slice content_header, bool keeps_expiration,
                struct slice *ret, struct fault *f);

/* A message: the property flags and list of its content header (AMQP 0-9-1, section 4.2.6.1), and its body.
 * Exchange and routing key have at most 255 bytes each. */
struct sender_message {
    struct slice exchange, routing_key, content_header, body;
    bool mandatory; /* the broker returns the message if no queue takes it */
};

/* Publishes the message and returns its tag. Requires sender_can_send. The sender copies everything that the socket
 * does not take yet: the caller may free the message at once. */
uint64_t sender_send(struct sender *s, const struct sender_message *m);
