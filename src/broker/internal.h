#pragma once

/* Private to the connection:
 *
 *   broker.c     making and freeing it, its queue of events, what asks about its state
 *   methods.c    what the caller sends
 *   frames.c     what the broker sends, and broker_next
 *   content.c    messages put together from their frames
 *   channel.c    the life of a channel: opened, lost, opened again, given up
 *   questions.c  the channel for questions: depths, and what a queue is
 *   closing.c    the end of the connection, in steps
 */

#include "broker/wire.h"
#include "onceward/base/fault.h"
#include "onceward/broker/broker.h"

enum {
    OUT_MAX = 64 * 1024,  /* of the output buffer, for all queues together */
    SHARE_MIN = 4 * 1024, /* of it, for each: many queues may make it larger */
    FLUSH_AT = 16 * 1024, /* of what is pending */
    CHANNELS_SPARE = 32,  /* for those that do not answer that they are closed */
    QUESTION_MS = 5000,   /* a question that is not answered */
    KIND_OLD_MS = 600000, /* a doubt about a kind that was learnt is not asked sooner */
    SILENCE_MS = 2000,    /* of a consumer, though messages are ready */
    REFUSED_MS = 600000,  /* nor the depth of a queue that may not be asked for */
};

enum channel_state {
    CHANNEL_OPENING, /* we sent open */
    CHANNEL_OPEN,
    CHANNEL_CLOSING, /* we sent close; everything but its answer is dropped */
    CHANNEL_SHUT,    /* it stays closed */
};

enum content_state {
    CONTENT_NONE,
    CONTENT_HEADER, /* its method came */
    CONTENT_BODY,
};

/* A message being put together from its frames. */
struct content {
    enum content_state state;
    struct message *message; /* NULL: it is skipped */
    uint64_t tag, body_len, n_left;
    uint64_t n_bytes; /* with what its headers take */
    int64_t delivery_count, n_rejected;
    uint32_t consumer;
    bool redelivered, is_malformed;
};

struct queued_event {
    struct queued_event *next;
    struct broker_event event;
};

struct event_queue {
    struct queued_event *first, **last;
};

enum question { QUESTION_NONE, QUESTION_WANTED, QUESTION_ASKED };

/* A channel, and the queue that it is for; the one for questions has none. */
struct channel {
    uint16_t number; /* of AMQP: another one when the one before was given up */
    enum channel_state state;
    bool stays_shut; /* when it is closed: the queue is a stream */
    uint64_t generation;
    int64_t asked_ms; /* when close or open was sent */
    struct content content;
    int64_t consuming_ms; /* when the first consumer of this opening began; 0: none did */
    bool has_delivered;   /* since the channel was opened */

    char *queue;
    uint32_t queue_number; /* the caller's */
    int64_t timeout_ms;    /* for its consumers; 0: the broker's, or it has refused another one */

    enum question depth, kind_asked;
    enum broker_kind kind;
    int64_t kind_ms;       /* when that was learnt */
    int64_t refused_ms;    /* when its depth was refused to the user; 0: never */
    uint16_t n_unanswered; /* channels that were given up over questions about it, and have not ended */

    /* While the kind is asked, what the channel brings waits here. */
    struct event_queue held;
    size_t n_held_bytes;

    uint64_t written_in; /* the filling of the output buffer that n_written is of */
    size_t n_written;
};

/* A channel's number in AMQP: free, used, or given up and not ended yet. */
struct number {
    struct channel *user;
    struct channel *given_up_for; /* the one whose close, or whose queue's question, has no answer */
    bool over_question;
};

/* Of a consumer, in milliseconds. */
#define TIMEOUT_ARGUMENT "x-consumer-timeout"

/* The first words of a fault. */
#define CLOSED_CHANNEL "the broker closed the channel"

/* Asked, not answered; in the order of the answers. */
struct asked {
    struct channel *about;
    bool is_kind;
};

/* Closing goes in steps, for the sake of the latest acks. A quorum queue's channel forgets those that it has
 * not passed on yet when it is closed (https://github.com/rabbitmq/rabbitmq-server/issues/10327) and nothing
 * tells when it has: so it lingers. And every channel forgets what it has not worked on when its connection
 * is closed: so the answers to channel.close are waited for. What is forgotten is only delivered again, but
 * that would count against its message. */
enum close_state { CLOSE_NO, CLOSE_LINGERING, CLOSE_CHANNELS_SENT, CLOSE_SENT, CLOSE_DONE };

struct broker {
    struct wire wire;
    char *version, *cluster;
    struct channel *queues; /* n_queues */
    size_t n_queues;
    struct channel ask;
    struct number *numbers; /* n_numbers; 0 is the connection's */
    size_t n_numbers;
    struct channel **by_queue; /* n_by_queue; by the caller's numbers */
    size_t n_by_queue;
    struct event_queue events;
    struct asked *asked; /* room for two of each queue */
    size_t n_asked;
    int64_t answered_ms; /* when the first of them became the first */
    size_t n_wanted;     /* questions that are not sent */
    enum close_state closing;
    int64_t closing_ms; /* when channel.close was sent */
    uint64_t unique;    /* to this connection: part of its consumer tags */
    uint64_t filling;   /* of the output buffer: a new one whenever it got empty */
};

/* --- events.c --- */

/* A new event of that channel at the end of a queue of events. */
struct broker_event *event_add(struct event_queue *q, const struct channel *c, enum broker_event_kind kind);

/* The same, but it waits while the kind of c's queue is asked. */
struct broker_event *event_add_held(struct broker *b, struct channel *c, enum broker_event_kind kind);

/* Empties everything but the fault's memory. c NULL: of the connection. */
void event_init(struct broker_event *ev, const struct channel *c, enum broker_event_kind kind);

/* True: *ev is the first one, taken out. */
bool event_take(struct event_queue *q, struct broker_event *ev);
void events_free(struct event_queue *q);

/* The channel of the caller's queue of that number, which must exist. */
struct channel *channel_of_queue(const struct broker *b, uint32_t queue);

/* Does what c brings wait? */
static inline bool is_holding(const struct channel *c)
{
    return c->kind_asked != QUESTION_NONE;
}

/* Drops a message of which not all has come. */
void content_drop(struct content *c);

/* The name may be another queue's from now on. */
void kind_forget(struct channel *c);

/* A queue's channel is lost: what it held is void, and nobody waits for the kind any more. */
void held_drop(struct broker *b, struct channel *c);

/* Ends the connection for what the broker did. Answers -1. */
int broken(struct broker *b, struct fault *f, const char *what);

/* Sends what is buffered, as far as the socket takes it. */
int out_flush(struct broker *b, struct fault *f);

/* --- content.c --- */

int content_deliver(struct broker *b, struct channel *c, const amqp_basic_deliver_t *d, struct fault *f);

/* 1: ev is filled; 0: more is to come, or it waits; -1: lost. */
int content_begin(struct broker *b, struct channel *c, const amqp_frame_t *frame, broker_room_fn *room,
                  void *context, struct broker_event *ev, struct fault *f);
int content_body(struct broker *b, struct channel *c, const amqp_frame_t *frame, struct broker_event *ev,
                 struct fault *f);

/* --- methods.c --- */

/* The number that broker_consume was given; 0 for a foreign tag. */
uint32_t consumer_of_tag(amqp_bytes_t tag);

/* --- channel.c --- */

/* Gives it a number and opens it for the first time. */
void channel_init(struct broker *b, struct channel *c, uint16_t number);
void channel_open_again(struct broker *b, struct channel *c);

/* The channel that may have that generation, or NULL. */
struct channel *channel_of_generation(const struct broker *b, uint64_t generation);

/* Closes a queue's channel from this side: its tags are void from now on. */
void channel_give_up(struct broker *b, struct channel *c, enum broker_reason reason, const struct fault *why);

/* The queue is no stream, or not any more: its channel is opened. */
void channel_unshut(struct broker *b, struct channel *c);

/* As channel_give_up for the one for questions, which loses nothing but them. */
void channel_renew(struct broker *b, struct channel *c);

/* Its number is left to the broker, and it is opened under another one. False: there is none left. */
bool channel_move(struct broker *b, struct channel *c, struct channel *given_up_for, bool over_question);

/* A frame for a number that was given up. */
void number_frame(struct broker *b, struct number *n, uint16_t number, const amqp_frame_t *frame);

/* The broker closed it. 0, or -1: it refuses to be opened, the connection is of no use. */
int channel_closed(struct broker *b, struct channel *c, const amqp_channel_close_t *m, struct fault *f);
void channel_close_answered(struct broker *b, struct channel *c);
void channel_opened(struct broker *b, struct channel *c);

/* 0, or -1: its open is not answered, the connection is of no use. */
int channel_tick(struct broker *b, struct channel *c, struct fault *f);
enum broker_reason reason_of_code(uint16_t code);

/* --- questions.c --- */

/* Sends what waited for the channel of questions to be open. */
void questions_send(struct broker *b);

/* A method on that channel. */
void questions_method(struct broker *b, const amqp_method_t *m);

/* The channel is being closed by the broker: that is the answer to the first question. Before
 * channel_closed. */
void questions_refused(struct broker *b, const amqp_channel_close_t *m);

/* Gives up what the broker does not answer, and looks at streams again. 0, or -1: lost. */
int questions_tick(struct broker *b, struct fault *f);

/* A delivery came: perhaps only the kind of its queue explains it. */
void kind_doubt(struct broker *b, struct channel *c, const struct content *t);

/* --- closing.c --- */

void connection_close(struct broker *b);

/* Goes on when it has lingered long enough, or waited. */
void close_step(struct broker *b);
void close_frame(struct broker *b, struct channel *c, const amqp_frame_t *frame);
