#pragma once

#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/config/config.h"
#include "onceward/core/delivery_copy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The broker: one connection to a virtual host, with a consuming channel for each queue and one channel for questions.
 *
 * No call blocks once the connection is handed over: methods go through one buffer, and broker_next matches answers
 * and assembles frames into messages. One thread. The caller numbers the queues; calls and events use these numbers.
 * Events of one queue's channel affect no other queue: a channel that is closed, cancelled or silent is opened again
 * automatically, under another number if needed. An ack names a tag and the generation of its channel: a tag of an old
 * channel cannot be sent on a new one. */

struct broker;
struct message;

/* Kind of a queue. AMQP has no question for it: see broker_ask_kind. */
enum broker_kind {
    BROKER_KIND_UNKNOWN,
    BROKER_KIND_CLASSIC,
    BROKER_KIND_QUORUM, /* the only kind whose x-delivery-count is the broker's own */
    BROKER_KIND_STREAM, /* refused: its channel returns no events and stays closed. The question is repeated
                           every 15 s, and the channel opened when another queue has taken the stream's place
                           */
    BROKER_KIND_OTHER,  /* another kind, or unavailable (the fault of BROKER_KIND has the reason). Counts are
                          then taken for the broker's own: a needless dead letter is better than a lost
                          message */
};

/* A queue to be consumed. */
struct broker_queue {
    const char *name;      /* 1 to 255 bytes; copied */
    uint32_t number;       /* the caller's, unique on this connection, below 65536 */
    int64_t timeout_ms;    /* the argument x-consumer-timeout, if the broker accepts it; 0: not sent */
    enum broker_kind kind; /* if known already, so that the question is not repeated; else UNKNOWN */
};

/* Starts connecting and logging in, on a helper thread: TCP or TLS, name resolution, login with capabilities
 * (consumer_cancel_notify, connection.blocked, basic.nack, publisher_confirms) and a connection name. vhost
 * NULL: the URL's. The job's result is for broker_attempt_take. Secrets are read from their files here.
 * Everything is copied. NULL: no thread, or a name that is too long; f is set. */
struct job *broker_connect(const struct config_broker *c, const char *vhost,
                           const struct broker_queue *queues, size_t n_queues, const char *instance,
                           struct fault *f);

/* Unpacks the result and frees it. 0: *ret_broker. -1: the fault, also if the broker allows fewer channels than there
 * are queues and the one for questions. All channels are opened at once, without waiting: BROKER_CHANNEL_OPEN of each
 * queue follows. */
int broker_attempt_take(void *result, struct broker **ret_broker, struct fault *f);

/* Frees b. Unless the connection is lost or closed, connection.close is sent first, without waiting for the answer;
 * the broker may then lose the latest acks. broker_close and BROKER_CLOSED avoid that. NULL is allowed. */
void broker_free(struct broker *b);

/* Descriptor to poll for reading; -1: lost. */
int broker_fd(const struct broker *b);

/* "4.3.6", as the server reports it. */
const char *broker_version(const struct broker *b);

/* Name of the cluster, as the broker reports it. */
const char *broker_cluster(const struct broker *b);

enum broker_event_kind {
    BROKER_NOTHING, /* no event now: poll */

    /* About a queue. */
    BROKER_DELIVERY,  /* message is the receiver's (message_free) */
    BROKER_SKIPPED,   /* a delivery that did not fit into the queue's room: read and discarded */
    BROKER_CONSUMING, /* consume-ok for copy.consumer */
    BROKER_STOPPED,   /* cancel-ok for our cancel of copy.consumer */
    BROKER_CANCELLED, /* the broker cancelled the consumer (fault). The channel is opened again automatically:
                         CHANNEL_LOST follows */
    BROKER_CHANNEL_LOST, /* the channel was closed (reason, fault), so all its tags are void. It is being
                            opened again, except that of a stream */
    BROKER_CHANNEL_OPEN, /* the channel is open (also once after connecting): consume now;
                            copy.tag.generation is its generation */
    BROKER_DEPTH,        /* answer to broker_ask_depth: depth and n_consumers; depth -1: unknown (reason,
                     fault) */
    BROKER_KIND,         /* queue_kind is known; of a stream CHANNEL_LOST follows */

    /* About the connection. */
    BROKER_BLOCKED, /* connection.blocked, with its reason in fault */
    BROKER_UNBLOCKED,
    BROKER_CLOSED, /* close-ok after broker_close: the last event */
};

/* Reason why a channel is lost, or a question has no answer. */
enum broker_reason {
    BROKER_REASON_NONE,
    BROKER_REASON_NO_QUEUE,  /* 404: the queue does not exist, or its node is down */
    BROKER_REASON_FORBIDDEN, /* 403: the user lacks a permission, or another consumer is exclusive */
    BROKER_REASON_CANCELLED, /* follows BROKER_CANCELLED */
    BROKER_REASON_STREAM,    /* a stream; broker_reopen opens the channel at once */
    BROKER_REASON_REOPENED,  /* broker_reopen */
    BROKER_REASON_SILENT,    /* no answer to a question in time */
    BROKER_REASON_OTHER,     /* 406 and all others: see the fault */
};

struct broker_event {
    enum broker_event_kind kind;
    uint32_t queue; /* number of the queue */
    /* For DELIVERY and SKIPPED; consumer is the number given to broker_consume. The meaning of
     * delivery_count depends on the queue's kind: a message that carries it is returned once the kind is known, or
     * is known to be unavailable. */
    struct delivery_copy copy;
    struct message *message;
    int64_t depth;       /* ready messages */
    int64_t n_consumers; /* of all connections; correct on classic queues, and on quorum queues from 4.3 on */
    enum broker_kind queue_kind; /* as known now */
    enum broker_reason reason;
    struct fault fault; /* also of a delivery: its properties are malformed AMQP, and those behind the fault
                           are missing */
};

/* Memory that a queue's next message may take; a larger message is skipped. */
struct broker_room {
    size_t body;
    size_t whole; /* message_bytes; at least body */
    /* A redelivered message with at least this x-delivery-count is taken in any case, with a body of up to
     * urgent_body, except on a classic queue; 0: none. */
    int64_t urgent_count;
    size_t urgent_body;
    bool each; /* the bounds are for each message alone; those received before it do not count */
};

/* Called for the headers of a delivery, with the queue's number. urgent_count is read only for a redelivered message.
 * Must not call the broker. */
typedef struct broker_room broker_room_fn(void *context, uint32_t queue, bool redelivered);

/* Returns the next event, without blocking. To be called until BROKER_NOTHING, even if nothing is readable. 0. -1:
 * the connection is lost (f says why), and only broker_free may follow. */
int broker_next(struct broker *b, broker_room_fn *room, void *context, struct broker_event *ev,
                struct fault *f);

/* Handles heartbeats and overdue answers, at least once a second, even if nothing is readable. -1: lost. */
int broker_tick(struct broker *b, struct fault *f);

/* Flushes the output buffer. Writing never blocks: the socket takes as much as it can. broker_ack, broker_requeue and
 * broker_reject are only buffered, so that many cost one system call; the flush is due at the end of a turn, before
 * waiting. Other methods are sent at once, behind the buffered ones. broker_next flushes too when it has nothing more
 * to read. 0, or -1: lost. */
int broker_flush(struct broker *b, struct fault *f);

/* Is output pending because the socket was full? Then poll for POLLOUT as well, and call broker_flush. */
bool broker_wants_write(const struct broker *b);

/* May about n more small methods of that queue be buffered? If not, try again after a flush: the broker does not
 * read, or the queue has used its share of the buffer. */
bool broker_can_write(const struct broker *b, uint32_t queue, size_t n);

/* Is the queue's channel open? */
bool broker_channel_is_open(const struct broker *b, uint32_t queue);

/* Sends qos(prefetch, per consumer) and basic.consume under a new tag made from `consumer` (a number that the caller
 * never reuses for a queue on a connection). BROKER_CONSUMING or CHANNEL_LOST answers. 0, or -1: lost. While the
 * channel is not open nothing is sent (0): CHANNEL_LOST, unless returned already, and CHANNEL_OPEN follow. */
int broker_consume(struct broker *b, uint32_t queue, uint32_t consumer, int prefetch, struct fault *f);

/* Sends basic.cancel for that consumer. Deliveries may arrive until BROKER_STOPPED, and can still be acked
 * afterwards. Like broker_consume while the channel is not open. */
int broker_cancel(struct broker *b, uint32_t queue, uint32_t consumer, struct fault *f);

/* Asks for the queue's depth and number of consumers (passive declare on the channel for questions). At most
 * one at a time per queue: a second one is ignored. Questions about several queues are sent together. */
int broker_ask_depth(struct broker *b, uint32_t queue, struct fault *f);

/* Asks for the queue's kind. No message is touched, but the broker logs a line. Until BROKER_KIND the queue's channel
 * returns no events, not even BROKER_CONSUMING; other queues continue. Does nothing if the kind is known. The loss of
 * the channel ends the question; if the queue is missing, the known kind is dropped too.
 *
 * The broker's files ask by themselves when a delivery arrives that only the kind explains (with x-stream-offset, or
 * redelivered with x-delivery-count), and when broker_ask_depth finds messages in a queue whose consumer got none. */
int broker_ask_kind(struct broker *b, uint32_t queue, struct fault *f);

/* Known kind of the queue. */
enum broker_kind broker_kind_of(const struct broker *b, uint32_t queue);

/* basic.ack. multiple: everything up to the tag on that channel. 0; 1: the tag's channel is lost, nothing was
 * sent; -1: lost. Number 0 is refused as 1 (with multiple it would ack everything). */
int broker_ack(struct broker *b, struct broker_tag tag, bool multiple, struct fault *f);

/* basic.nack(requeue=true): the message is not at fault. Like broker_ack. */
int broker_requeue(struct broker *b, struct broker_tag tag, struct fault *f);

/* basic.reject(requeue=false): the message is dead. Like broker_ack. */
int broker_reject(struct broker *b, struct broker_tag tag, struct fault *f);

/* Closes the queue's channel and opens it again: CHANNEL_LOST, then CHANNEL_OPEN follow. For a consumer that gets no
 * deliveries although it should, and for another try of a former stream. */
void broker_reopen(struct broker *b, uint32_t queue, const char *why);

/* Closes in steps, so that the latest acks count: lingers for 0.3 s after the last byte sent, sends channel.close for
 * all channels, waits for their answers, and sends connection.close. BROKER_CLOSED follows; until then broker_next
 * and broker_tick are needed as usual. No other method can be sent any more. Unacked deliveries should be requeued
 * before. */
int broker_close(struct broker *b, struct fault *f);

/* --- for commands: blocking, with the connect timeout as the deadline --- */

/* Connects, checks that the queue exists and is not a stream, and disconnects. -1: f says what failed. */
int broker_check(const struct config_broker *c, const struct config_queue *q, struct fault *f);

/* Takes one message of the queue and requeues it, which the broker counts as a delivery. 0: *ret is the caller's
 * (message_free), without its body if that is above max_message, and *server_major is the first number of the
 * broker's version. 1: none is ready in the queue. -1: none could be taken, or it is unknown whether the message was
 * requeued in time (the end of the connection requeues it). */
int broker_sample(const struct config_broker *c, const struct config_queue *q, struct message **ret,
                  int *server_major, struct fault *f);

/* Vhost of a queue: its own, or the URL's. The caller owns *ret. -1: the URL cannot be read. */
int broker_vhost(const struct config_broker *c, const struct config_queue *q, char **ret, struct fault *f);
