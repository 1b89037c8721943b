#pragma once

#include "onceward/base/log.h"
#include "onceward/base/texts.h"
#include "onceward/core/application.h"
#include "onceward/core/batch_size.h"
#include "onceward/core/brake.h"
#include "onceward/core/consumer.h"
#include "onceward/core/database.h"
#include "onceward/core/delivery.h"
#include "onceward/core/outcome.h"
#include "onceward/core/returns.h"
#include "onceward/core/row.h"
#include "onceward/core/stats.h"
#include "onceward/core/timers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A queue: facts in, actions out. Everything that is decided about its messages is decided here; nothing is
 * done here. No I/O, no clock, no library, no thread; equal facts give equal actions.
 *
 * The shell (src/sidecar) and the simulator (test/sim) turn what the broker, the database, the application
 * and the clock say into facts, and carry actions out. A fact changes states and nothing else; queue_next
 * then answers, one at a time, what is to be done. Nothing is re-entrant: no fact is told while an action is
 * being taken. Times are milliseconds of one clock that never goes back; now_ms is never smaller than in the
 * call before.
 *
 * The application and the database are shared by queues: they belong to the shell, and outlive the queue.
 * Their own facts (a probe's result, a lost connection) are told to them directly, and then to each queue. */

/* Requests with several messages. The slices outlive the queue. */
struct queue_batch_rules {
    int max_messages; /* 0: each request has one, and no envelope */
    size_t max_bytes;
    struct slice consumer, queue; /* for the envelope */
    struct slice content_type;    /* of a message that has none; empty: it is left out */
    bool error_body;              /* words of the application are kept */
};

/* The configuration, as far as decisions need it. */
struct queue_rules {
    bool transaction; /* completion */
    int64_t token_window_ms, max_window_ms, commit_grace_ms, max_hold_ms, pause_hold_ms;
    int concurrency, prefetch, max_parked;
    size_t max_bytes, max_message_bytes;
    int max_attempts;
    int64_t backoff_ms, max_backoff_ms, max_age_ms; /* max_age_ms 0: off */
    const int *permanent_status;
    size_t n_permanent_status;
    int brake, revive;
    bool mismatch_is_duplicate, too_large_is_reject;
    bool ordered;         /* messages of one key go one after the other */
    bool unkeyed_is_dead; /* ordered: a message without a key is dead, not unordered */
    size_t store_response_bytes;
    int delivery_limit; /* LIMIT_UNKNOWN: not configured */
    int64_t stuck_ms, stuck_again_ms, stats_interval_ms;
    struct queue_batch_rules batch;
};

/* Why it stands still, and since when. */
struct queue_pause {
    int64_t since_ms; /* 0: not */
    bool told;
    char text[320];
};

struct queue_counts {
    struct counter received, completed, duplicates, retried, given_back, dead, renewed, suppressed;
};

enum drain_state { DRAIN_NO, DRAIN_FINISHING, DRAIN_RELEASING, DRAIN_LEAVING, DRAIN_DONE };

struct note; /* something to tell: see ACTION_TELL */

/* Limits that the partitions of one consumer share, and sums over them. A queue without partitions has its own. */
struct queue_share {
    struct limiter limiter;
    struct brake brake;
    size_t n_queues;
    size_t n_in_flight, accepted_units, reserved_units, n_bytes; /* as in struct queue_held */
    size_t n_parked, n_wanting, n_hanging;                       /* as the queues last said, in queue_time */
    int n_told[N_PAUSE_REASONS]; /* queues in that pause: the first and the last of them log it */
};

struct queue {
    struct queue_rules rules;
    struct queue_share *share; /* its own, or that of another partition */
    struct queue_share own;
    struct { /* its part in the sums of `share` */
        size_t n_parked;
        bool wants, hangs;
    } said;
    struct application *application;
    struct database *database;
    uint64_t number; /* of the queue, in the process: for application_take_place */
    uint64_t random; /* the state of its generator, for jitter */
    struct queue_held {
        struct list wanted[N_OPERATIONS], sent[N_OPERATIONS], waiting[N_WAITS];
        struct list unacked, ended;
        struct hash by_ref, by_id;
        struct list
            in_flight; /* requests, in the order of their starts; an extended one goes behind the others */
        struct list overdue;  /* requests in flight whose window is over */
        struct hash requests; /* all in flight, by their ref */
        struct timers timers;
        size_t n_bytes;
        size_t n_accepted;                     /* messages answered 202 and not ended: each keeps its slot */
        size_t n_reserved;                     /* claims on their way */
        size_t accepted_units, reserved_units; /* their shares of slots, see core/batches.h */
        uint64_t next_ref, next_request;
    } held;
    struct batches {
        struct batch_size size;
        bool knows; /* the application has echoed the count of a request */
        int n_bad;  /* answers in a row that say nothing about the messages */
    } batches;
    struct returns returns;
    struct queue_order { /* of an ordered queue */
        struct keys keys;
        const char *stop;      /* why its channel is to be closed, of static memory; NULL: it is not */
        int64_t stop_until_ms; /* then also with requests in flight */
        bool closing;          /* ACTION_REOPEN is on its way */
        int64_t blocked_ms, priority_ms; /* of the latest line of these events; 0: none */
    } order;
    struct consumer consumer;
    uint64_t generation; /* of its channel; 0: none */
    int n_others; /* other instances that may consume this queue, as presence says; 0: none, or not known */
    struct queue_pause pauses[N_PAUSE_REASONS];
    struct queue_lever {
        bool awaited; /* nothing is begun before it is known what operators want */
        bool paused;
        char by[128];         /* who paused or resumed it last */
        char give_up_by[128]; /* who gave up last what is in ids, or held */
        char *ids;            /* to give up: NUL-terminated ids, one behind the other. Owned */
        size_t ids_len;
    } lever;
    enum drain_state drain;
    int64_t drain_until_ms;
    bool ready;            /* it has consumed once */
    bool database_worked;  /* when it was looked at last */
    int64_t loop_until_ms; /* the pause of a message that is renewed again and again ends */
    bool limits_awaited;   /* the queue's arguments are asked for */
    bool left_to_others; /* a pause has lasted for pause_hold, and another replica consumes: nothing is taken
                            until it ends, but one at a time to try with */
    struct queue_flow {
        double service_us, claim_us; /* moving averages */
        double duplicates;           /* the share of what is new here that turns out to be completed */
        int64_t look_ms;             /* none that waits for a slot is worth a look before */
        int64_t claimed_ms;          /* the latest claim */
        bool looks_left;             /* some that wait for a slot may not have been looked at */
        bool last_chances;           /* there may be last chances among the claims that are wanted */
        int64_t crowded_ms;          /* when deliveries last went back to make room for others */
        int64_t left_ms;             /* when deliveries last went back because of a pause */
    } flow;
    int64_t tick_ms; /* of the last second's work */
    struct queue_notes {
        struct note *items;
        size_t at, n, cap;
        int64_t second[N_EVENTS]; /* of the latest lines of an event, */
        int n_lines[N_EVENTS];    /* and how many there were in it */
        int64_t early_answer_ms;
    } notes;
    struct queue_abandons {
        uint64_t *refs;
        size_t n, cap;
    } abandons;
    struct queue_consequences { /* of a step, for other deliveries: none between two facts */
        struct consequence {
            struct delivery *d;
            enum operation op;
        } * items;
        size_t at, n, cap;
        bool breaker_set, breaker_reset;
    } consequences;
    struct queue_asks {
        bool depth;
        const char *reopen; /* why; NULL: not asked */
        uint64_t holder;    /* of this delivery's row; 0: not asked */
        int64_t holder_ms;  /* asked last */
        bool large_letter;  /* one waits to be written */
    } asks;
    struct queue_counts counts;
};

/* application and database must outlive it; seed: of its jitter. number: at least 1, of this queue alone. */
void queue_init(struct queue *q, const struct queue_rules *rules, struct application *a, struct database *b,
                uint64_t number, uint64_t seed, int64_t now_ms);
void queue_deinit(struct queue *q);

/* q and `first` are partitions of one consumer: from now on they share their limits. Before any fact. */
void queue_join_share(struct queue *q, struct queue *first);

/* --- facts --- */

/* A delivery. message is taken; NULL: its body was skipped (too large, or no room). */
struct arrival {
    uint64_t generation, number;
    uint32_t consumer;
    bool redelivered;
    struct message *message;
    uint64_t body_len;
    size_t n_bytes;
    int64_t delivery_count, n_rejected, deaths;
    struct slice id;
    enum dead_reason no_id; /* DEAD_NONE: the id is good; else why not, with the words in no_id_text */
    const char *no_id_text;
    uint8_t fingerprint[16];
    bool has_key; /* of an ordered queue: */
    uint8_t key[KEY_BYTES];
};
void queue_delivered(struct queue *q, int64_t now_ms, const struct arrival *a);

/* What may be allocated for the next delivery. */
struct queue_room {
    size_t body, whole;
    int64_t near_count; /* one that was delivered so often may have max_message_bytes whatever the room is,
                           one at a time; INT64_MAX: none */
};
void queue_room(const struct queue *q, struct queue_room *ret);

/* The database's answer about the operation that was sent for ref. */
struct row {
    enum operation op; /* that was sent */
    enum row_answer answer;
    int attempt, crashes, takeovers, unproven_step;
    int batch_cap;       /* messages in the next request with it, at most; 0: as many as configured */
    int64_t unproven_ms; /* since the latest unproven charge; -1: none */
    int64_t wait_ms;     /* held, not_due, extended, claimed (look: what is left of the window) */
    int64_t age_ms;      /* claimed */
    bool taken_over;
    struct slice detail;  /* held: the holder; not_due, exhausted: the last error; mismatch: JSON; invalid,
                             retry: the error */
    int64_t letter;       /* buried: its id */
    const char *sqlstate; /* retry, invalid */
};
void queue_row(struct queue *q, int64_t now_ms, uint64_t ref, const struct row *r);

/* How long a batch of claims took: for claims ahead of free slots. */
void queue_claim_took(struct queue *q, int64_t took_us);

/* The application's answer to a request: a fact about each of its members. */
struct answer {
    enum answer_kind kind;
    int status;
    int64_t retry_after_ms; /* -1: none */
    int64_t batch;          /* the field Onceward-Batch; -1: none */
    bool cut;               /* the body is not whole */
    bool refused; /* unreachable: no connection could be made; false: there was none in time, or it broke
                     before anything was sent */
    struct slice body;
    const char *brief, *error; /* in words; without and with what the application wrote */
    int64_t took_us;
};
void queue_answered(struct queue *q, int64_t now_ms, uint64_t request, const struct answer *a);

/* The channel is open, and its tags carry this generation; or it is gone, with its connection or without.
 * code: of the broker, 0: none. */
void queue_channel_open(struct queue *q, int64_t now_ms, uint64_t generation, int server_major,
                        int server_minor, enum queue_kind kind);
void queue_channel_lost(struct queue *q, int64_t now_ms, int code, const char *reason);
void queue_kind_known(struct queue *q, enum queue_kind kind);

/* The queue's arguments are asked for: nothing is consumed until queue_limits_known. limits: with `read`
 * false when they could not be read. */
void queue_limits_await(struct queue *q);
void queue_limits_known(struct queue *q, const struct queue_limits *limits);

/* The result of ACTION_PUBLISH. why: in words; of static memory where it is refused. */
enum publication {
    PUBLICATION_CONFIRMED, /* a queue has it */
    PUBLICATION_FAILED,    /* refused by the broker for now, returned, or unknown: tried again later */
    PUBLICATION_REFUSED,   /* this message cannot be renewed */
    PUBLICATION_FORBIDDEN, /* no message of this queue can */
};
void queue_published(struct queue *q, int64_t now_ms, uint64_t ref, enum publication what, const char *why);
void queue_consuming(struct queue *q, int64_t now_ms, uint32_t number);
void queue_stopped(struct queue *q, int64_t now_ms, uint32_t number);
void queue_depth(struct queue *q, int64_t now_ms, int64_t depth, bool no_queue); /* -1: not to be had */

/* The database's connection is gone: what was at it is answered by queue_row as ROW_UNKNOWN before. Or a new
 * one is there. */
void queue_database_lost(struct queue *q, int64_t now_ms);
void queue_database_linked(struct queue *q, int64_t now_ms);

/* A probe has found that the application is not there, or not ready: in words, for the log. */
void queue_application_down(struct queue *q, int64_t now_ms, const char *why);

/* The queue cannot be consumed as configured: told by its reason until it is cleared with reason NULL. */
void queue_refused(struct queue *q, int64_t now_ms, enum pause_reason why, const char *reason);

/* A cautious start begins, or one of its reasons has gone. */
void queue_caution_begin(struct queue *q, enum caution why);
void queue_caution_end(struct queue *q, enum caution why);

/* Levers: what operators want, as it was read. Nothing is begun between queue_levers_await and the first
 * queue_lever_pause. Each is told in the log where it changes something; by: who, may be empty. */
void queue_levers_await(struct queue *q);
void queue_lever_pause(struct queue *q, int64_t now_ms, bool paused, const char *by, const char *why);

/* What waits for its time is looked at now. */
void queue_lever_retry(struct queue *q, int64_t now_ms, const char *by);

/* These messages become dead letters when they are next at hand; ids: as in struct queue_lever, all of them
 * each time. */
void queue_lever_give_up(struct queue *q, int64_t now_ms, const char *by, const char *ids, size_t ids_len);

/* So does what is held because everything fails, if it came before then. */
void queue_lever_give_up_held(struct queue *q, int64_t now_ms, const char *by, int64_t before_ms);

/* Other instances that may consume this queue (their queue_may_consume), as presence says; 0: none, or not
 * known. */
void queue_presence(struct queue *q, int64_t now_ms, int n_others);

/* Drain: consuming ends, what is out may finish until then; then it is released, and everything requeued.
 * DRAIN_DONE when nothing is held. Once more: no later than then. */
void queue_drain(struct queue *q, int64_t now_ms, int64_t until_ms);
/* What is left of the grace ends now. */
void queue_hurry(struct queue *q, int64_t now_ms);

/* The clock: timers, bounds, and once a second the rest. To be called in every turn, before queue_next. */
void queue_time(struct queue *q, int64_t now_ms);

/* --- actions --- */

enum action_kind {
    ACTION_NONE,
    ACTION_DATABASE, /* send d->op; of a claim that is `fresh`, or a letter that is new, make the token first
                      */
    ACTION_FORWARD, /* POST `request`, with its members; one that cannot be begun is answered as unreachable */
    ACTION_PUBLISH, /* a copy to its own queue, mandatory, on a connection that does not consume. Answered by
                       queue_published */
    ACTION_ABANDON, /* end the request `ref`, if it is still in flight: no answer is wanted. Before anything of
                       its members is freed */
    ACTION_ACK,     /* the tag, or with `multiple` all up to it */
    ACTION_REJECT,  /* requeue=false */
    ACTION_REQUEUE, /* nack, requeue=true */
    ACTION_CONSUME, /* under `number`, with `n` as its prefetch */
    ACTION_CANCEL,  /* consumer `number` */
    ACTION_REOPEN,  /* the channel; `text` says why */
    ACTION_ASK_DEPTH,
    ACTION_ASK_HOLDER, /* who locks the row of `ref`? */
    ACTION_TELL,       /* a line of the log */
};

/* A line: the shell knows which fields an event has. */
struct note {
    enum event event;
    const struct delivery *d; /* NULL: about the queue */
    const char *reason;       /* a term's name, of static memory; or NULL */
    char code[8];             /* an SQLSTATE; or empty */
    char *text;               /* in words; or NULL. Owned by the queue, until the next queue_next */
    struct texts errors;      /* the commonest, the first first. Owned likewise */
    int64_t ms, n;            /* -1: none */
    bool flag;
};

struct action {
    enum action_kind kind;
    struct delivery *d;
    struct request *request;
    uint64_t ref; /* of the delivery; of the request for FORWARD and ABANDON */
    bool multiple;
    uint64_t generation, tag;
    uint32_t number;
    int64_t n;
    const char *text;
    struct note note;
};

/* The next thing to be done; false: nothing now. can: a bit for each operation (1u << OP_x) that can be
 * carried out now: a batch of that kind can be sent, the request can be begun, the broker's buffer has room
 * (OP_ACK, OP_REJECT, OP_REQUEUE). What cannot is wanted until it can: that is how batches grow. What it
 * answers counts as done, so it must be carried out. */
bool queue_next(struct queue *q, int64_t now_ms, unsigned can, struct action *ret);

/* A letter that takes long to write: it goes beside the others, where CAN_BURY_LARGE is among what can be
 * carried out. */
enum { LETTER_LARGE_BYTES = 1 << 20, CAN_BURY_LARGE = 1 << N_OPERATIONS };

static inline bool queue_letter_is_large(const struct delivery *d)
{
    return d->copy.body_len > LETTER_LARGE_BYTES;
}

/* Of a burial without a row: each delivery has a letter of its own, known by claim.token, which the shell
 * makes when the letter `is_new`. Nothing else tells whether a letter is that of this message: another may
 * say the same, and each is rejected. What may have been written before is looked for by its token. */
bool queue_letter_is_new(const struct delivery *d);
bool queue_letter_is_looked_for(const struct delivery *d);

/* Frees what has ended, unless something is still to be told of it. Once a turn, when no action refers to it
 * any more. */
void queue_reap(struct queue *q);

/* When queue_time and queue_next may have something to do without a new fact; INT64_MAX: never. */
int64_t queue_deadline(const struct queue *q, int64_t now_ms);

/* For application_time: a message waits for a slot; its oldest request is older than half its window. */
bool queue_wants_slot(const struct queue *q);
bool queue_may_hang(const struct queue *q, int64_t now_ms);

/* --- what the stats line says --- */

enum queue_state queue_state(const struct queue *q);
/* Could it take a message now, if the broker delivered one? Also as a standby of a single active consumer. Other
 * replicas leave messages only where this is so. */
bool queue_may_consume(const struct queue *q);
uint64_t queue_number_of(uint64_t holder); /* the queue of an application's place.holder */
int queue_limit(const struct queue *q);    /* of requests that may be out now */
size_t queue_n_parked(const struct queue *q);
static inline size_t queue_n_in_flight(const struct queue *q) /* requests */
{
    return q->held.in_flight.len + q->held.overdue.len;
}
size_t queue_n_held(const struct queue *q);
int64_t queue_oldest_ms(const struct queue *q, int64_t now_ms);
const struct delivery *queue_find(const struct queue *q, uint64_t ref);
