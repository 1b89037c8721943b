#pragma once

#include "onceward/base/job.h"
#include "onceward/config/config.h"
#include "onceward/core/message.h"

#include <stdbool.h>
#include <stdint.h>

struct fault;

/* The broker: one connection with one consuming channel (1) and one for questions (2), for one queue.
 *
 * Nothing here blocks after the connection was handed over: methods go through a buffer, answers are matched
 * in broker_next, frames are assembled into messages here. One thread. Acks name a tag together with the
 * generation of its channel: a tag of an old channel cannot be sent on a new one. */

struct broker;

/* Starts connecting and logging in, on a helper thread: TCP or TLS, name resolution, login with capabilities
 * (consumer_cancel_notify, connection.blocked, basic.nack, publisher_confirms) and a connection name, both
 * channels open. The job's result is a struct broker_attempt *. Secrets are read from their files here. NULL:
 * no thread; f is set. */
struct job *broker_connect(const struct config_broker *c, const struct config_queue *q, const char *instance,
                           struct fault *f);

/* Unpacks the result: 0 and *ret_broker, or -1 and the fault. Frees the attempt either way. */
int broker_attempt_take(void *result, struct broker **ret_broker, struct fault *f);

/* Frees it. When it is neither lost nor closed, connection.close is sent first, without waiting for the
 * answer; the broker may then forget the latest acks. broker_close and BROKER_CLOSED do it properly. NULL is
 * ignored. */
void broker_free(struct broker *b);

/* The descriptor to poll for reading, or -1: lost. */
int broker_fd(const struct broker *b);

/* "4.3.6", as the server says it. */
const char *broker_version(const struct broker *b);

/* A delivery tag and the channel it belongs to. */
struct broker_tag {
    uint64_t generation; /* unique for each opening of a channel in this process; never 0 */
    uint64_t number;
};

enum broker_event_kind {
    BROKER_NOTHING,   /* nothing more now; poll */
    BROKER_DELIVERY,  /* message is the receiver's (message_free) */
    BROKER_DRAINED,   /* a delivery that did not fit into `room`: it was read and thrown away; tag, body_len
                         and n_bytes are set */
    BROKER_CONSUMING, /* consume-ok; consumer says which */
    BROKER_STOPPED,   /* cancel-ok for our cancel; consumer says which */
    BROKER_CANCELLED, /* the broker cancelled the consumer (fault says so). The adapter reopens the channel by
                         itself: CHANNEL_LOST follows */
    BROKER_CHANNEL_LOST, /* channel 1 was closed (code, text in fault); all its tags are void. It is being
                            opened again */
    BROKER_CHANNEL_OPEN, /* channel 1 is open (also reported once after connecting); consume now;
                            tag.generation is its */
    BROKER_DEPTH,        /* answer to broker_ask_depth; depth -1: not to be had, fault says why */
    BROKER_BLOCKED,      /* connection.blocked (reason in fault) */
    BROKER_UNBLOCKED,
    BROKER_CLOSED, /* close-ok after broker_close, nothing more comes */
};

struct broker_event {
    enum broker_event_kind kind;
    struct broker_tag tag;
    uint32_t consumer; /* number given to broker_consume */
    struct message *message;
    uint64_t body_len;
    uint64_t n_bytes;       /* of a delivery, also of a drained one: message_bytes */
    int64_t delivery_count; /* drained: x-delivery-count, */
    int64_t n_rejected;     /* and message_rejections */
    int64_t depth;
    struct fault fault;
};

/* Asks whether the queue is a stream: channel 1 hands out nothing, not even BROKER_CONSUMING, before that is
 * known. When it is one, the connection is lost, with the fault's code "stream". No message of an ordinary
 * queue is touched; but where the queue is not known to be empty, the broker writes a line into its log. Once
 * asked, until channel 1 is lost, it does nothing more. */
void broker_ask_stream(struct broker *b, bool is_empty);

/* Is it known, since channel 1 was opened, that the queue is none? */
bool broker_is_no_stream(const struct broker *b);

/* What may be allocated now for a message; a larger one is drained. */
struct broker_room {
    size_t body;
    size_t whole; /* message_bytes; at least body */
    /* One that was delivered so often is taken whatever the room is, up to that much of a body; 0: none is. */
    int64_t urgent_count;
    size_t urgent_body;
};

/* The next event, without blocking. Call until BROKER_NOTHING. 0; or -1: the connection is lost (f says why),
 * only broker_free may follow. */
int broker_next(struct broker *b, struct broker_room room, struct broker_event *ev, struct fault *f);

/* Heartbeats: call at least once a second, also while nothing is readable. -1: lost. */
int broker_tick(struct broker *b, struct fault *f);

/* Writing never blocks: everything is put into one buffer and goes out as far as the socket takes it.
 * broker_ack, broker_return and broker_reject are only buffered, so that many cost one system call: call
 * broker_flush at the end of a batch, at the latest before waiting. The others are sent at once, behind what
 * is buffered. broker_next flushes too when it has nothing more to read. 0, or -1: lost. */
int broker_flush(struct broker *b, struct fault *f);

/* Is something left in the buffer because the socket was full? Then poll for POLLOUT as well, and call
 * broker_flush. */
bool broker_wants_write(const struct broker *b);

/* May about n more small methods be put into the buffer? When not, call again later: the broker does not
 * read. */
bool broker_can_write(const struct broker *b, size_t n);

/* Is channel 1 open? */
bool broker_channel_is_open(const struct broker *b);

/* qos(prefetch, per consumer) and basic.consume under a fresh tag made from `consumer` (a number that the
 * caller never uses twice on a connection). Answered by BROKER_CONSUMING, or CHANNEL_LOST (404, 403). 0, or
 * -1: lost. While the channel is not open nothing is sent (0): CHANNEL_LOST, if not taken yet, and
 * CHANNEL_OPEN follow. */
int broker_consume(struct broker *b, uint32_t consumer, int prefetch, struct fault *f);

/* basic.cancel of that consumer; deliveries may come until BROKER_STOPPED. What it delivered stays ackable.
 * As broker_consume while the channel is not open. */
int broker_cancel(struct broker *b, uint32_t consumer, struct fault *f);

/* Asks for the queue's depth (passive declare on channel 2, which is opened again when that closes it). At
 * most one at a time: a second one is ignored. */
int broker_ask_depth(struct broker *b, struct fault *f);

/* basic.ack. multiple: everything up to the tag on that channel. 0; 1: the tag's channel is gone, nothing was
 * sent; -1: lost. Number 0 is refused as 1 (with multiple it would ack everything). */
int broker_ack(struct broker *b, struct broker_tag tag, bool multiple, struct fault *f);

/* basic.nack(requeue=true): not this message's fault. As broker_ack. */
int broker_return(struct broker *b, struct broker_tag tag, struct fault *f);

/* basic.reject(requeue=false): dead. As broker_ack. */
int broker_reject(struct broker *b, struct broker_tag tag, struct fault *f);

/* Closes channel 1 and opens it again: CHANNEL_LOST, then CHANNEL_OPEN follow. For a consumer that gets
 * nothing though it should. */
void broker_reopen(struct broker *b, const char *why);

/* Closes in steps, so that the latest acks count: lingers for 0.3 s after the last byte sent, channel.close,
 * its answer, connection.close. BROKER_CLOSED follows; until then call broker_next and broker_tick as ever.
 * Nothing else can be sent any more. Unacked deliveries should be returned before. */
int broker_close(struct broker *b, struct fault *f);

/* --- for commands: blocking, each with the connect timeout as its deadline --- */

/* Connects, checks that the queue exists and is not a stream, and disconnects. -1: f
 * says what is wrong. */
int broker_check(const struct config_broker *c, const struct config_queue *q, struct fault *f);

/* Takes one message of the queue and gives it back, which the broker counts as a delivery. 0: *ret is the caller's
 * (message_free), without its body where that is above max_message; 1: the queue is empty; -1: it could not be taken, or
 * nobody knows whether it was given back in time (it is, when the connection ends). */
int broker_sample(const struct config_broker *c, const struct config_queue *q, struct message **ret,
                  struct fault *f);

/* The vhost that a queue is on: its own, or the URL's. The caller owns *ret. -1: the URL cannot be read. */
int broker_vhost(const struct config_broker *c, const struct config_queue *q, char **ret, struct fault *f);

struct publisher;

/* A connection with publisher confirms, for the vhost given (NULL: the URL's). */
int publisher_open(const struct config_broker *c, const char *vhost, const char *instance,
                   struct publisher **ret, struct fault *f);

/* Publishes persistent and mandatory to the default exchange with this routing key, and waits for the
 * confirm. 0: confirmed and routed; 1: no such queue (returned); -1: not confirmed, its fate is unknown. Left
 * out of the message, as the broker's own dead-lettering does: `expiration` (it would expire again), the
 * headers CC and BCC (they would send copies to other queues); and a `user_id` that is not the connection's
 * own (the broker refuses it). */
int publisher_send(struct publisher *p, const char *queue, const struct message *m, struct fault *f);

void publisher_close(struct publisher *p);
