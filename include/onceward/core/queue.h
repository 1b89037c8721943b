#pragma once

#include "onceward/base/log.h"
#include "onceward/base/texts.h"
#include "onceward/core/application.h"
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

/* A queue: facts in, actions out. Every decision about its messages is made here, and nothing is carried out
 * here. No I/O, no clock, no library, no thread; equal facts give equal actions.
 *
 * The shell (src/sidecar) and the simulator (test/sim) turn events of the broker, the database, the
 * application and the clock into facts, and carry actions out. A fact only changes states; queue_next then
 * returns the actions, one at a time. Nothing is re-entrant: no fact is passed in while an action is being
 * taken. Times are milliseconds of one clock that never goes back; now_ms never decreases from call to call.
 *
 * Queues share applications and the database, which belong to the shell and outlive the queue. Their own
 * facts (a probe's result, a lost connection) are passed to them directly, and then to each queue. */

/* Requests with several messages. The slices outlive the queue. */
struct queue_batch_rules {
    int max_messages; /* 0: each request has one, and no envelope */
    size_t max_bytes;
    struct slice consumer, queue; /* for the envelope */
    struct slice content_type;    /* of a message that has none; empty: it is left out */
    bool error_body;              /* the application's text is kept */
};

/* The settings that matter for decisions. */
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
    bool unkeyed_is_dead; /* ordered: a message without a key becomes a dead letter; otherwise it is not
                             ordered */
    bool holds_dead;      /* ordered: a message that would die is held and keeps its key waiting, without a
                             dead letter */
    size_t store_response_bytes;
    int delivery_limit; /* LIMIT_UNKNOWN: not configured */
    int64_t stuck_ms, stuck_again_ms, stats_interval_ms;
    struct queue_batch_rules batch;
};

/* A pause, and its start. */
struct queue_pause {
    int64_t since_ms; /* 0: none */
    bool told;
    char text[320];
};

struct queue_counts {
    struct counter received, completed, duplicates, retried, given_back, dead, unkeyed, renewed, suppressed;
};

enum drain_state { DRAIN_NO, DRAIN_FINISHING, DRAIN_RELEASING, DRAIN_LEAVING, DRAIN_DONE };

struct note; /* a log line: see ACTION_TELL */

/* The queue that a key last came from, at its place in a table of fixed size. A later key may take the place. */
struct key_seen {
    uint8_t key[KEY_BYTES];
    uint64_t queue; /* number of the queue; 0: none */
};

/* Figures of another replica's subscription to an ordered queue, to detect that both receive messages. */
struct order_peer {
    uint64_t who; /* 0: none */
    int64_t subscription, received;
    uint64_t received_here; /* deliveries received here at that time */
    uint32_t own;           /* own subscription at that time */
    int step;
};

/* Limits that the partitions of one consumer share, and sums over them. A queue without partitions has its own. */
struct queue_share {
    struct limiter limiter;
    struct brake brake;
    size_t n_queues;
    size_t n_in_flight, accepted_units, reserved_units, n_bytes; /* as in struct queue_held */
    size_t n_parked, n_wanting, n_hanging;                       /* as last reported in queue_time */
    struct key_seen
        *keys_seen; /* of ordered partitions, N_KEYS_SEEN; NULL: none yet. Owned by the queue of `own` */
    int n_told[N_PAUSE_REASONS]; /* queues in that pause: the first and the last of them log it */
    struct handover_members {    /* replicas that are subscribed to an ordered consumer */
        uint64_t hash;
        int64_t since_ms; /* 0: unknown */
    } members;
    bool knows_batches; /* the application has echoed the count of a request */
    int n_bad_answers;  /* consecutive answers to batches that say nothing about the messages */
    struct {
        int64_t n, told_ms; /* messages without a key since the latest log line about it; its time, 0: none */
    } unkeyed;
};

/* A request whose answer is no longer awaited. */
struct abandon {
    uint64_t ref;
    struct buf body; /* the HTTP side may read it until the request is abandoned */
};

struct queue {
    struct queue_rules rules;
    struct queue_share *share; /* own, or that of another partition */
    struct queue_share own;
    struct { /* its part in the sums of `share` */
        size_t n_parked;
        bool wants, hangs;
    } said;
    struct application *application;
    struct database *database;
    uint64_t number; /* of the queue in the process: for application_take_place */
    uint64_t random; /* state of the generator for jitter */
    struct queue_held {
        struct list wanted[N_OPERATIONS], sent[N_OPERATIONS], waiting[N_WAITS];
        struct list unacked, ended;
        struct hash by_ref, by_id;
        struct list
            in_flight; /* requests, in the order of their starts; an extended one goes behind the others */
        struct list overdue;  /* requests in flight whose window has ended */
        struct hash requests; /* all requests in flight, by ref */
        struct timers timers;
        size_t n_bytes;
        size_t n_accepted;                     /* messages answered 202 that have not ended: each keeps its
                                                  slot */
        size_t n_reserved;                     /* claims in flight */
        size_t accepted_units, reserved_units; /* shares of slots of these, see core/batches.h */
        uint64_t next_ref, next_request;
    } held;
    struct batches {
        uint64_t half_failed[64]; /* ring of the latest failed requests of which one half has failed, too */
        size_t n_half_failed;
    } batches;
    struct quarantine {  /* the group that has the application to itself: see core/quarantine.h */
        uint64_t number; /* of the latest group */
        size_t n;        /* its members */
        bool is_open;    /* messages that may join were not all searched */
        bool is_sent;    /* its request was sent */
        int batch_cap;   /* of its first member, with failed_with: a request has one kind of members */
        uint64_t failed_with;
    } quarantine;
    struct returns returns;
    struct queue_order { /* of an ordered queue */
        struct keys keys;
        const char *stop;      /* why the channel will be closed, static text; NULL: it will not be */
        int64_t stop_until_ms; /* from then on even with requests in flight */
        bool closing;          /* ACTION_REOPEN was taken */
        struct order_run {     /* messages of one key, claimed for one request: see core/run_claims.h */
            uint64_t last;     /* latest message of the run; 0: none is being claimed */
            size_t left;       /* how many more may be claimed */
            size_t n_bytes;    /* of its body */
            int cap;           /* cap of each message, as in struct claim; 0: none */
            uint64_t failed_with;
        } run;
        int64_t blocked_ms, priority_ms, two_ms, loop_ms; /* latest log lines of these events; 0: none */
        struct order_limit {
            int64_t count;    /* deliveries of the message that stopped the queue; 0: not stopped */
            bool recorded;    /* the inbox has the stop */
            int64_t accepted; /* an operator has continued: up to this count; 0: none */
            int64_t retry;    /* number of the command that accepted them */
            int64_t outdated; /* the retry that the inbox may forget: its messages are done; 0: none */
        } limit;
        int64_t exclusive_again_ms; /* end of the pause because another replica received messages */
        struct order_peer peers[8];
        unsigned next_peer; /* place to be used next when all are taken */
    } order;
    struct handover {             /* of an ordered queue: which replica is active, see core/handover.h */
        uint64_t self, partition; /* hashes of the instance and of the queue's name */
        uint64_t owner;           /* hash of its instance; 0: unknown */
        int64_t ahead;  /* subscription of the owner, if that is another replica that may consume; or 0 */
        int64_t behind; /* its value when this replica subscribed */
        bool other_is_active;
        bool is_active;      /* deliveries arrive here, as far as is known */
        bool is_told;        /* as a standby */
        bool steps;          /* the channel is closed so that this replica steps behind the owner */
        int64_t heard_ms;    /* time of the latest report of the other replicas */
        int64_t wanted_ms;   /* time since which this replica should step behind the owner; 0: it need not */
        int64_t stepped_ms;  /* time of its latest step; 0: none yet */
        int64_t returned_ms; /* the same, of a step that returned messages */
    } handover;
    struct consumer consumer;
    uint64_t generation; /* of its channel; 0: none */
    int n_others; /* other instances that may consume this queue, by their presence; 0: none, or unknown */
    struct queue_pause pauses[N_PAUSE_REASONS];
    struct queue_commands {
        bool awaited; /* no work begins before the operator commands are known */
        bool paused;
        char by[128];         /* the operator who paused or resumed it last */
        char give_up_by[128]; /* the operator of the last give-up, by ids or of held messages */
        char *ids;            /* to give up: concatenated NUL-terminated ids. Owned */
        size_t ids_len;
    } commands;
    enum drain_state drain;
    int64_t drain_until_ms;
    bool ready;            /* has consumed at least once */
    bool database_worked;  /* at the last check */
    int64_t loop_until_ms; /* end of the pause for a message that is renewed again and again */
    bool limits_awaited;   /* the question about the queue's arguments is in flight */
    bool left_to_others;   /* a pause has lasted for pause_hold, and another replica consumes: until it ends,
                              only one probe message at a time is taken */
    struct queue_flow {
        double service_us, claim_us; /* moving averages */
        double duplicates;           /* share of new messages that turn out to be completed */
        int64_t look_ms;             /* no lookup for messages that wait for a slot before then */
        int64_t claimed_ms;          /* time of the latest claim */
        bool acking;                 /* all wanted acks are being sent */
        bool looks_left;             /* some messages that wait for a slot may need a lookup */
        bool last_chances;           /* some wanted claims may be last chances */
        int64_t crowded_ms;          /* time of the latest requeue that made room */
        int64_t left_ms;             /* time of the latest requeue because of a pause */
    } flow;
    int64_t tick_ms; /* of the once-a-second work */
    struct queue_notes {
        struct note *items;
        size_t at, n, cap;
        int64_t second[N_EVENTS]; /* second of the latest lines of an event, */
        int n_lines[N_EVENTS];    /* and their number in it */
        int64_t early_answer_ms;
    } notes;
    struct queue_abandons {
        struct abandon *items;
        size_t n, cap;
        struct buf last_body; /* of the request that is being abandoned */
    } abandons;
    struct queue_consequences { /* consequences of a step for other deliveries; empty between two facts */
        struct consequence {
            struct delivery *d;
            enum operation op;
        } * items;
        size_t at, n, cap;
        bool breaker_set, breaker_reset;
    } consequences;
    struct queue_asks {
        bool depth;
        const char *reopen;     /* reason to reopen the channel; NULL: none */
        uint64_t lock_holder;   /* delivery whose row's lock owner is to be found; 0: none */
        int64_t lock_holder_ms; /* time of the latest question */
        bool large_letter;      /* a large letter is waiting */
    } asks;
    struct queue_counts counts;
};

/* Initializes q. application and database must outlive it. number: at least 1, unique to this queue. seed: for
 * jitter. */
void queue_init(struct queue *q, const struct queue_rules *rules, struct application *a, struct database *b,
                uint64_t number, uint64_t seed, int64_t now_ms);
void queue_deinit(struct queue *q);

/* Makes q a partition beside `first`: from now on they share their limits. Before any fact. */
void queue_join_share(struct queue *q, struct queue *first);

/* --- facts --- */

/* A delivery. The queue takes it over. why: text about an id or a key that is missing; NULL: none. Not kept. */
void queue_delivered(struct queue *q, int64_t now_ms, struct arrival *a, const char *why);

/* Memory that the next delivery may take. redelivered: is it a redelivery? A first delivery has no near_count. */
struct queue_room {
    size_t body, whole;
    int64_t near_count; /* a delivery with at least this count may take max_message_bytes in any case, one at
                           a time; INT64_MAX: none */
    bool each;          /* the bounds are for each message alone; those received before it do not count */
};
void queue_room(const struct queue *q, bool redelivered, struct queue_room *ret);

/* Answer of the database about the operation that was sent for ref. */
void queue_row(struct queue *q, int64_t now_ms, uint64_t ref, const struct row *r);

/* Duration of a batch of claims, from which claims ahead of free slots are computed. */
void queue_claim_took(struct queue *q, int64_t took_us);

/* Answer of the application to a request: a fact about each of its members. */
void queue_answered(struct queue *q, int64_t now_ms, uint64_t request, const struct answer *a);

/* The channel is open, and its tags have this generation. Or the channel is lost, possibly with its connection. code:
 * the broker's, 0: none. */
void queue_channel_open(struct queue *q, int64_t now_ms, uint64_t generation, int server_major,
                        int server_minor, enum queue_kind kind);
void queue_channel_lost(struct queue *q, int64_t now_ms, int code, const char *reason);
void queue_kind_known(struct queue *q, enum queue_kind kind);

/* Question to ask while the kind of the queue is unknown. A stream accepts a consumer as other queues do, but never
 * delivers earlier messages, so the kind matters when a first delivery is missing. */
enum queue_doubt { DOUBT_NONE, DOUBT_DEPTH, DOUBT_KIND };
enum queue_doubt queue_doubt(const struct queue *q, int64_t now_ms);

/* The question about the queue's arguments was sent: nothing is consumed until queue_limits_known. limits:
 * with `read` false if they could not be read. */
void queue_limits_await(struct queue *q);
void queue_limits_known(struct queue *q, const struct queue_limits *limits);

/* Result of ACTION_PUBLISH. why: the reason; static text for a refusal. */
enum publication {
    PUBLICATION_CONFIRMED, /* a queue has it */
    PUBLICATION_FAILED,    /* refused for now, returned, or unknown outcome: tried again later */
    PUBLICATION_REFUSED,   /* this message cannot be renewed */
    PUBLICATION_FORBIDDEN, /* no message of this queue can be renewed */
};
void queue_published(struct queue *q, int64_t now_ms, uint64_t ref, enum publication what, const char *why);
void queue_consuming(struct queue *q, int64_t now_ms, uint32_t number);
void queue_stopped(struct queue *q, int64_t now_ms, uint32_t number);

/* The shell has asked for the queue's depth; queue_depth follows. */
void queue_depth_asked(struct queue *q, int64_t now_ms);
void queue_depth(struct queue *q, int64_t now_ms, int64_t depth, bool no_queue); /* -1: unknown */

/* The connection to the database is lost (queue_row has answered everything in flight with ROW_UNKNOWN), or a
 * new one exists. */
void queue_database_lost(struct queue *q, int64_t now_ms);
void queue_database_linked(struct queue *q, int64_t now_ms);

/* A probe has found that the application is not available or not ready, with the reason for the log. */
void queue_application_down(struct queue *q, int64_t now_ms, const char *why);

/* The queue cannot be consumed as configured. reason: text for the log; NULL ends the pause. */
void queue_refused(struct queue *q, int64_t now_ms, enum pause_reason why, const char *reason);

/* Consumer name of the rows, if it is not that of the rules. Before the first claim. The slice outlives the queue. */
void queue_consumer_is(struct queue *q, struct slice consumer);

/* A cautious start begins, or one of its reasons has ended. */
void queue_caution_begin(struct queue *q, enum caution why);
void queue_caution_end(struct queue *q, enum caution why);

/* Operator commands. No work begins between queue_commands_await and the first queue_command_pause. Each change is
 * logged. by: the operator, may be empty. */
void queue_commands_await(struct queue *q);
void queue_command_pause(struct queue *q, int64_t now_ms, bool paused, const char *by, const char *why);

/* Retries waiting messages now. */
void queue_command_retry(struct queue *q, int64_t now_ms, const char *by);

/* Dead-letters these messages as soon as they are here. ids: the complete list each time, as in struct
 * queue_commands. */
void queue_command_give_up(struct queue *q, int64_t now_ms, const char *by, const char *ids, size_t ids_len);

/* Dead-letters the messages that the circuit breaker holds, if they arrived before then. */
void queue_command_give_up_held(struct queue *q, int64_t now_ms, const char *by, int64_t before_ms);

/* Number of other instances that may consume this queue (their queue_may_consume), by their presence; 0: none, or
 * unknown. */
void queue_presence(struct queue *q, int64_t now_ms, int n_others);

/* Number of deliveries at which this replica has stopped an ordered queue, if the inbox does not have that stop yet,
 * with the reason; 0: none. A queue near its delivery limit is stopped in all replicas until an operator continues. */
int64_t queue_stop_wanted(const struct queue *q, const char **ret_why);

/* Number of the retry whose acceptance the inbox is to forget, since its messages are done; 0: none. */
int64_t queue_stop_outdated(const struct queue *q);

/* State of the inbox, passed with every report, before the first subscription: the stop, of this count (0: none), or
 * the count up to which an operator has let the queue continue (accepted; 0: none), with the number of that command. */
void queue_stop_known(struct queue *q, int64_t now_ms, int64_t count, int64_t accepted, int64_t retry,
                      const char *why);

/* Figures of another replica that is subscribed to this ordered queue: the number of its subscription, above 0, and
 * of the deliveries that it has received. who: a hash of its instance. For each report, about every 5 s. */
void queue_peer(struct queue *q, int64_t now_ms, uint64_t who, int64_t subscription, int64_t received);

/* A partition has been left: its keys now come from other partitions. */
void queue_forget_keys(struct queue *q);

/* Drains: consuming ends, and requests in flight may finish until until_ms; then their claims are released, and
 * everything is requeued. DRAIN_DONE when nothing is held. A second call can only shorten the time. */
void queue_drain(struct queue *q, int64_t now_ms, int64_t until_ms);
/* Ends the grace period now. */
void queue_hurry(struct queue *q, int64_t now_ms);

/* The clock: timers, bounds, and the once-a-second work. For each turn, before queue_next. */
void queue_time(struct queue *q, int64_t now_ms);

/* --- actions --- */

enum action_kind {
    ACTION_NONE,
    ACTION_DATABASE, /* send d->op; with `new_token` create the token first */
    ACTION_FORWARD,  /* POST `request` with its members, or answer it as unreachable */
    ACTION_PUBLISH,  /* publish a copy to its own queue, mandatory, on a connection that does not consume.
                       queue_published answers */
    ACTION_ABANDON,  /* end the request `ref` without an answer, if it is still in flight. Before any of its
                       members is freed */
    ACTION_ACK,      /* ack the tag, or with `multiple` all up to it */
    ACTION_REJECT,   /* requeue=false */
    ACTION_REQUEUE,  /* nack, requeue=true */
    ACTION_CONSUME,  /* subscribe under `number`, with `n` as its prefetch */
    ACTION_CANCEL,   /* cancel consumer `number` */
    ACTION_REOPEN,   /* reopen the channel; `text` is the reason */
    ACTION_ASK_DEPTH,
    ACTION_ASK_LOCK_HOLDER, /* find the session that locks the row of `ref` */
    ACTION_TELL,            /* write a log line */
};

/* A log line. The shell knows which fields an event has. */
struct note {
    enum event event;
    const struct delivery *d; /* NULL: about the queue */
    const char *reason;       /* a term's name, in static memory; or NULL */
    char code[8];             /* an SQLSTATE; or empty */
    char *text;               /* free text, or NULL. Owned by the queue, valid until the next queue_next */
    struct texts errors;      /* most frequent errors, in order. Owned likewise */
    int64_t ms, n;            /* -1: none */
    bool flag;
};

struct action {
    enum action_kind kind;
    struct delivery *d;
    struct request *request;
    uint64_t ref; /* of the delivery; for FORWARD and ABANDON of the request */
    bool multiple;
    bool new_token; /* create a token: a new claim, or a new dead letter */
    struct broker_tag tag;
    uint32_t number;
    int64_t n;
    const char *text;
    struct note note;
};

/* Next action; false: none now. can: one bit (1u << OP_x) for each operation that can be carried out now: a batch of
 * that kind can be sent, the request can be begun, the broker's buffer has room (OP_ACK, OP_REJECT, OP_REQUEUE).
 * Other operations stay wanted, which is how batches grow. A returned action counts as done, so it must be carried
 * out. */
bool queue_next(struct queue *q, int64_t now_ms, unsigned can, struct action *ret);

/* A dead letter that takes long to write is sent on a connection of its own, if `can` includes
 * CAN_DEAD_LETTER_LARGE. */
enum { LETTER_LARGE_BYTES = 1 << 20, CAN_DEAD_LETTER_LARGE = 1 << N_OPERATIONS };

static inline bool queue_letter_is_large(const struct delivery *d)
{
    return d->arrival->copy.body_len > LETTER_LARGE_BYTES;
}

/* Has a large dead letter waited since the last call? Then its connection is needed. */
bool queue_take_large_letter(struct queue *q);

/* Is the row held until an operator decides, without a dead letter? */
bool queue_letter_holds(const struct queue *q, const struct delivery *d);

/* Without a row, each delivery has a dead letter of its own, identified by claim->token. The shell creates the token
 * when the letter `is_new`, and looks for a letter that may have been written before by that token. Only the token
 * identifies a message's letter: another message may have the same content, and each is rejected. */
bool queue_letter_is_new(const struct delivery *d);
bool queue_letter_is_looked_for(const struct delivery *d);

/* Frees ended deliveries, unless a log line or action still refers to them. For once per turn, when no action refers
 * to them any more. */
void queue_reap(struct queue *q);

/* Time at which queue_time and queue_next may have work without a new fact; INT64_MAX: never. */
int64_t queue_deadline(const struct queue *q, int64_t now_ms);

/* For application_time: does a message wait for a slot? Is the oldest request older than half its window? */
bool queue_wants_slot(const struct queue *q);
bool queue_may_hang(const struct queue *q, int64_t now_ms);

/* --- for the stats line --- */

enum queue_state queue_state(const struct queue *q);
/* Could the queue take a message now, if the broker delivered one? Also as a standby of a single active consumer.
 * Other replicas leave messages only to such a queue. */
bool queue_may_consume(const struct queue *q);
uint64_t queue_number_of(uint64_t owner);              /* queue of an application's place.owner */
int queue_limit(const struct queue *q);                /* number of requests that may be in flight now */
const char *queue_limit_reason(const struct queue *q); /* answers that lowered it; NULL: none did */
size_t queue_batch_size(const struct queue *q);        /* most messages in a request now; 0: no batches */
size_t queue_n_parked(const struct queue *q);
static inline size_t queue_n_in_flight(const struct queue *q) /* requests */
{
    return q->held.in_flight.len + q->held.overdue.len;
}
size_t queue_n_held(const struct queue *q);
int64_t queue_oldest_ms(const struct queue *q, int64_t now_ms);
const struct delivery *queue_find(const struct queue *q, uint64_t ref);
