#pragma once

/* Private to the broker's connection for one queue:
 *
 *   broker.c    making and freeing it, the queue of events, what asks about its state
 *   methods.c   what the worker sends
 *   frames.c    what the broker sends, and broker_next
 *   channel.c   the life of a channel: opened, lost, opened again
 */

#include "broker/wire.h"
#include "onceward/base/fault.h"
#include "onceward/broker/broker.h"

enum { CHANNEL_CONSUME = 1, CHANNEL_ASK = 2, OUT_MAX = 64 * 1024, FLUSH_AT = 16 * 1024 };

enum channel_state {
    CHANNEL_OPEN,
    CHANNEL_CLOSING, /* we sent close; everything but its answer is dropped */
    CHANNEL_OPENING, /* we sent open */
};

enum content_state {
    CONTENT_NONE,
    CONTENT_HEADER, /* its method came */
    CONTENT_BODY,
};

/* A message being put together from its frames. */
struct content {
    enum content_state state;
    struct message *message; /* NULL: it is being drained */
    uint64_t tag, body_len, n_left;
    uint64_t n_bytes;                   /* with what its headers take */
    int64_t delivery_count, n_rejected; /* of a body that is thrown away */
    uint32_t consumer;
};

struct channel {
    uint16_t number;
    enum channel_state state;
    uint64_t generation;
    int64_t asked_ms; /* when close or open was sent */
    struct content content;
};

struct queued_event {
    struct queued_event *next;
    struct broker_event event;
};

struct event_queue {
    struct queued_event *first, **last;
};

enum depth_state { DEPTH_IDLE, DEPTH_WANTED, DEPTH_ASKED };

/* Is the queue a stream? AMQP cannot be asked. A delivery with the header x-stream-offset makes one suspect,
 * but messages that were moved from a stream to an ordinary queue carry it too; and so does silence, since a
 * stream delivers only what comes after its consumer. There are two questions, on channel 2. First, unless
 * the queue is empty, basic.consume with an argument for streams: an ordinary queue refuses it by closing the
 * channel, and its type is named; a stream does so for another reason, since the channel has no prefetch.
 * Then basic.get: a stream refuses it by closing the connection; anything else answers, and what it hands
 * over is returned at once. What channel 1 delivers in the meantime waits in `held`. */
enum stream_state {
    STREAM_UNSUSPECTED,
    STREAM_UNSURE, /* to be asked by basic.consume */
    STREAM_PROBED,
    STREAM_SUSPECTED, /* to be asked by basic.get */
    STREAM_ASKED,
    STREAM_NOT
};

/* Closing goes in steps, for the sake of the latest acks. A quorum queue's channel forgets those that it has
 * not passed on yet when it is closed (https://github.com/rabbitmq/rabbitmq-server/issues/10327) and nothing
 * tells when it has: so it lingers. And every channel forgets what it has not worked on when its connection
 * is closed: so the answer to channel.close is waited for. What is forgotten is only delivered again, but
 * that would count against its message. */
enum close_state { CLOSE_NO, CLOSE_LINGERING, CLOSE_CHANNEL_SENT, CLOSE_SENT, CLOSE_DONE };

enum { LINGER_MS = 300 };

struct broker {
    struct wire wire;
    char *queue, *version;
    struct channel consume, ask;
    struct event_queue events, held;
    size_t n_held_bytes;
    enum depth_state depth;
    enum stream_state stream;
    enum close_state closing;
    uint64_t unique; /* to this connection: part of its consumer tags */
};

/* A new event at the end of a queue; its fields are zero but for the kind. */
struct broker_event *event_add(struct event_queue *q, enum broker_event_kind kind);

/* The same for an event of channel 1, which may have to wait. */
struct broker_event *event_add_consume(struct broker *b, enum broker_event_kind kind);

/* True: *ev is the first one, taken out. */
bool event_take(struct event_queue *q, struct broker_event *ev);
void events_free(struct event_queue *q);

/* Does channel 1 wait for the answer about streams? */
static inline bool is_holding(const struct broker *b)
{
    return b->stream != STREAM_UNSUSPECTED && b->stream != STREAM_NOT;
}

/* It is no stream: what was held comes out. */
void held_release(struct broker *b);

/* The number that broker_consume was given; 0 for a foreign tag. */
uint32_t consumer_of_tag(amqp_bytes_t tag);

/* Sends what waited for the channel of questions to be open. */
void questions_send(struct broker *b);

/* Sends connection.close. */
void connection_close(struct broker *b);

/* Sends channel.close when it has lingered long enough. */
void close_step(struct broker *b);

uint64_t generation_next(void);
void channel_open_again(struct broker *b, struct channel *c);

/* Closes channel 1 from this side: its tags are void from now on. The fault says why. */
void channel_give_up(struct broker *b, const struct fault *why);

/* Channel 2 took a consumer, which nobody wants: what it may have been given goes back. */
void ask_give_up(struct broker *b);

/* The broker closed it. 0, or -1: it refuses to be opened, the connection is of no use. */
int channel_closed(struct broker *b, struct channel *c, const amqp_channel_close_t *m, struct fault *f);

/* 0, or -1: its close or open is not answered, the connection is of no use. */
int channel_tick(struct broker *b, const struct channel *c, struct fault *f);
void channel_close_answered(struct broker *b, struct channel *c);
void channel_opened(struct broker *b, struct channel *c);
void content_drop(struct content *c);
