#pragma once

/* Private to the connection:
 *
 *   broker.c     its start, its end, its state
 *   events.c     its queue of events, and shared functions
 *   methods.c    methods that the caller sends
 *   frames.c     frames from the broker, and broker_next
 *   content.c    assembles messages from their frames
 *   channel.c    the life of a channel: opened, lost, opened again, abandoned
 *   questions.c  the channel for questions: depths and kinds of queues
 *   closing.c    the end of the connection, in steps
 */

#include "broker/wire.h"
#include "onceward/base/fault.h"
#include "onceward/broker/broker.h"

enum {
    OUT_MAX = 64 * 1024,  /* the output buffer's limit, for all queues together */
    SHARE_MIN = 4 * 1024, /* minimum share of each queue: many queues may make the buffer larger */
    FLUSH_AT = 16 * 1024, /* pending bytes that trigger a flush */
    CHANNELS_SPARE = 32,  /* for channels whose close is not answered */
    QUESTION_MS = 5000,   /* time for the answer to a question */
    KIND_OLD_MS = 600000, /* minimum time before a known kind that is in doubt is asked for again */
    SILENCE_MS = 2000,    /* silence of a consumer although messages are ready */
    REFUSED_MS = 600000,  /* the same for the depth of a queue that the user may not ask for */
};

enum channel_state {
    CHANNEL_OPENING, /* open was sent */
    CHANNEL_OPEN,
    CHANNEL_CLOSING, /* close was sent; everything but its answer is dropped */
    CHANNEL_SHUT,    /* stays closed */
};

enum content_state {
    CONTENT_NONE,
    CONTENT_HEADER, /* expects a content header */
    CONTENT_BODY,
};

/* A message being assembled from its frames. */
struct content {
    enum content_state state;
    struct message *message; /* NULL: skipped */
    struct delivery_copy copy;
    uint64_t n_left;
    bool is_malformed;
};

struct queued_event {
    struct queued_event *next;
    struct broker_event event;
};

struct event_queue {
    struct queued_event *first, **last;
};

enum question { QUESTION_NONE, QUESTION_WANTED, QUESTION_ASKED };

/* A channel and its queue; the channel for questions has none. */
struct channel {
    uint16_t number; /* AMQP's number; another one when a number is abandoned */
    enum channel_state state;
    bool stays_shut; /* not opened again: the queue is a stream */
    uint64_t generation;
    int64_t asked_ms; /* time of the close or open */
    struct content content;
    int64_t consuming_ms; /* start of the first consumer of this opening; 0: none */
    bool has_delivered;   /* since the channel was opened */

    char *queue;
    uint32_t queue_number; /* number that the caller uses */
    int64_t timeout_ms;    /* for the consumers; 0: the broker's timeout, or another one was refused */

    enum question depth, kind_asked;
    enum broker_kind kind;
    int64_t kind_ms;       /* time of the latest answer about the kind */
    int64_t refused_ms;    /* time of the refusal of the depth to the user; 0: never */
    uint16_t n_unanswered; /* channels abandoned over questions about this queue that have not ended */

    /* Events that wait while the kind is asked for: kind_asked is not QUESTION_NONE. */
    struct event_queue held;
    size_t n_held_bytes;

    bool is_transactional; /* tx.select was sent since the channel was opened: see methods.c */
    bool is_uncommitted;   /* an ack, reject or requeue was written after the latest tx.commit */

    uint64_t written_in; /* the filling of the output buffer that n_written belongs to */
    size_t n_written;
};

/* An AMQP channel number: free, used, or abandoned and not ended yet. */
struct number {
    struct channel *user;
    struct channel *given_up_for; /* channel whose close, or whose queue's question, was not answered */
    bool over_question;
};

/* A consumer's argument, in milliseconds. */
#define TIMEOUT_ARGUMENT "x-consumer-timeout"

/* Beginning of the text of a fault. */
#define CLOSED_CHANNEL "the broker closed the channel"

/* Questions in flight, in the order of their answers. */
struct asked {
    struct channel *about;
    bool is_kind;
};

/* Closing goes in steps, so that the latest acks count. When a quorum queue's channel is closed, the broker drops
 * acks that it has not passed on yet (https://github.com/rabbitmq/rabbitmq-server/issues/10327), and nothing shows
 * when all are passed on: so Onceward lingers. Every channel drops unprocessed methods when its connection is closed:
 * so Onceward waits for the answers to channel.close. A lost ack only leads to a redelivery, but that would count
 * against its message. */
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
    struct asked *asked; /* has room for two per queue */
    size_t n_asked;
    int64_t answered_ms; /* time at which the first of them became the first */
    size_t n_wanted;     /* questions not sent yet */
    enum close_state closing;
    int64_t closing_ms;  /* time of channel.close */
    uint64_t unique;     /* unique to this connection: part of its consumer tags */
    uint64_t filling;    /* counter of the output buffer's fillings: increased when it becomes empty */
    bool is_uncommitted; /* a channel has uncommitted acks */
};

/* --- events.c --- */

/* Adds an event of that channel to a queue of events. */
struct broker_event *event_add(struct event_queue *q, const struct channel *c, enum broker_event_kind kind);

/* The same, but the event waits while the kind of c's queue is asked for. */
struct broker_event *event_add_held(struct broker *b, struct channel *c, enum broker_event_kind kind);

/* Empties everything except the fault's memory. c NULL: an event of the connection. */
void event_init(struct broker_event *ev, const struct channel *c, enum broker_event_kind kind);

/* True: *ev is the first event, removed. */
bool event_take(struct event_queue *q, struct broker_event *ev);
void events_free(struct event_queue *q);

/* Channel of the queue with the caller's number, which must exist. */
struct channel *channel_of_queue(const struct broker *b, uint32_t queue);

/* Drops an incomplete message. */
void content_drop(struct content *c);

/* Drops the known kind: the name may belong to another queue now. */
void kind_forget(struct channel *c);

/* A queue's channel is lost: its held events are void, and the question about its kind ends. */
void held_drop(struct broker *b, struct channel *c);

/* Ends the connection because of a violation by the broker. Returns -1. */
int broken(struct broker *b, struct fault *f, const char *what);

/* Commits the acks, rejects and requeues that were written since the latest commit. Called for each flush, before
 * any other method on the channel, and after each reject or requeue. */
void channel_commit(struct broker *b, struct channel *c);

/* Commits acks and sends buffered bytes, as many as the socket takes. */
int out_flush(struct broker *b, struct fault *f);

/* --- content.c --- */

int content_deliver(struct broker *b, struct channel *c, const amqp_basic_deliver_t *d, struct fault *f);

/* 1: ev is filled; 0: more frames are needed, or the event waits; -1: lost. */
int content_begin(struct broker *b, struct channel *c, const amqp_frame_t *frame, broker_room_fn *room,
                  void *context, struct broker_event *ev, struct fault *f);
int content_body(struct broker *b, struct channel *c, const amqp_frame_t *frame, struct broker_event *ev,
                 struct fault *f);

/* --- methods.c --- */

/* Number given to broker_consume; 0 for a foreign tag. */
uint32_t consumer_of_tag(amqp_bytes_t tag);

/* --- channel.c --- */

/* Gives the channel a number and opens it for the first time. */
void channel_init(struct broker *b, struct channel *c, uint16_t number);
void channel_open_again(struct broker *b, struct channel *c);

/* Finds the channel that may have that generation. NULL: none. */
struct channel *channel_of_generation(const struct broker *b, uint64_t generation);

/* Closes a queue's channel from this side and voids its tags. */
void channel_give_up(struct broker *b, struct channel *c, enum broker_reason reason, const struct fault *why);

/* Opens the channel of a queue that is no stream, or no longer one. */
void channel_unshut(struct broker *b, struct channel *c);

/* Like channel_give_up for the channel for questions, which loses only those. */
void channel_renew(struct broker *b, struct channel *c);

/* Leaves the channel's number to the broker, and opens it under another one. False: no number is free. */
bool channel_move(struct broker *b, struct channel *c, struct channel *given_up_for, bool over_question);

/* Handles a frame for an abandoned number. */
void number_frame(struct broker *b, struct number *n, uint16_t number, const amqp_frame_t *frame);

/* The broker closed the channel. 0, or -1: the channel cannot be opened, and the connection is useless. */
int channel_closed(struct broker *b, struct channel *c, const amqp_channel_close_t *m, struct fault *f);
void channel_close_answered(struct broker *b, struct channel *c);
void channel_opened(struct broker *b, struct channel *c);

/* 0, or -1: the open was not answered, and the connection is useless. */
int channel_tick(struct broker *b, struct channel *c, struct fault *f);
enum broker_reason reason_of_code(uint16_t code);

/* --- questions.c --- */

/* Sends questions that waited for the channel to open. */
void questions_send(struct broker *b);

/* Handles a method on that channel. */
void questions_method(struct broker *b, const amqp_method_t *m);

/* The broker closes the channel, which answers the first question. Before channel_closed. */
void questions_refused(struct broker *b, const amqp_channel_close_t *m);

/* Abandons overdue questions, and checks streams again. 0, or -1: lost. */
int questions_tick(struct broker *b, struct fault *f);

/* Handles a delivery that perhaps only the kind of its queue explains. */
void kind_doubt(struct broker *b, struct channel *c, const struct content *t);

/* --- closing.c --- */

void connection_close(struct broker *b);

/* Continues after lingering or waiting long enough. */
void close_step(struct broker *b);
void close_frame(struct broker *b, struct channel *c, const amqp_frame_t *frame);
