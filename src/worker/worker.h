#pragma once

/* Private to the worker: its parts share one struct, one thread and no locks.
 *
 *   worker.c (one folder up)   the loop
 *   connections.c              to the broker and to the database: made, read, lost
 *   drain.c                    the end of a queue's work
 *   arrivals.c                 what a delivery is taken for when it comes
 *   deliveries.c               the machine's transitions and entry actions, followers
 *   timers.c                   which of them is due
 *   batches.c                  what goes to the database
 *   rows.c                     what comes back from it
 *   operations.c               which of its statements work
 *   answers.c                  requests to the application, and what its answers mean
 *   consume.c                  the consumer: its credit, and whether anything comes
 *   acks.c                     acks, rejects, returns
 *   returns.c                  what goes back to the broker, and its delivery limit
 *   loops.c                    dead messages that a dead-letter exchange brings back
 *   target.c                   the application as all workers of the process see it: who is alone with it
 *   suspects.c                 which of its deaths a message is charged for
 *   pause.c                    reasons to forward nothing; probes, trials, the trickle after a pause
 *   brake.c                    one of them: everything fails
 *   housekeeping.c             the purge and the sweep
 *   report.c                   log lines and figures
 */

#include "onceward/base/buf.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/fault.h"
#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/base/log.h"
#include "onceward/broker/broker.h"
#include "onceward/config/config.h"
#include "onceward/core/headers.h"
#include "onceward/core/outcome.h"
#include "onceward/core/pace.h"
#include "onceward/core/reasons.h"
#include "onceward/core/stats.h"
#include "onceward/core/waiting.h"
#include "onceward/base/wait.h"
#include "onceward/forward/forward.h"
#include "onceward/inbox/inbox.h"
#include "onceward/worker.h"
#include "worker/states.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    THE_QUEUE = 0,            /* its number on the connection to the broker */
    TAKEOVER_GRACE_MS = 2000, /* live holders may settle first */
    FAILED_IDS = 64,          /* with a brake above that, later messages may count twice */
    FAILED_TEXTS = 8,         /* different answers of these that are counted */
    N_FOLLOWERS_MAX = 16,     /* copies beyond wait for the row */
    BATCH_MAX = 256,
    N_RECLAIMS_MAX = 2, /* new windows for one attempt before it goes with a short one */
    HELD_LOOK_MS = 1000,
    SURPLUS_LOOK_MS = 50, /* a copy beyond N_FOLLOWERS_MAX looks here, not at the database */
    ROOM_LOOK_MS = 250,   /* a body that did not fit */
    LOCK_FIRST_MS = 20,
    LOCK_LAST_MS = 1000,
    /* How long an ack waits for its predecessors before it goes alone, where credit is short and elsewhere:
     * one for many costs the broker a fraction of many. */
    ACK_STARVED_MS = 10,
    ACK_SINGLE_MS = 500,
    N_DELIVERIES_A_TURN = 512,
    BACKLOG_LOOK_MS = 100, /* what waits so long for a slot is worth a look whether it was completed before */
};

/* Their deliveries cannot leave before such a statement has worked, so it is tried again in any case. */
enum { OPS_OF_HELD = 1u << INBOX_SETTLE | 1u << INBOX_RELEASE };

enum wait_kind { WAIT_DUE, WAIT_HELD, WAIT_LOCKED }; /* why a delivery is parked */
enum watch_kind { WATCH_COMMIT, WATCH_ACCEPTED };    /* what its row is watched for */
enum release_to {
    RELEASE_PARK,
    RELEASE_ALONE,
    RELEASE_RETURN
}; /* where it goes once its attempt is given back */

struct delivery {
    struct link in_state;  /* worker.states[state] */
    struct link in_tags;   /* worker.unacked, while its channel lives and it was not acked */
    struct link in_leader; /* leader->followers */
    struct hash_link by_ref, by_id;
    struct list followers;
    struct delivery *leader; /* itself: it stands for its id; another: it follows that; NULL: neither */
    uint64_t ref;
    enum delivery_state state;
    struct broker_tag tag;
    uint32_t consumer;       /* whose credit it holds */
    uint64_t n_wanted;       /* bytes that it takes when it is held */
    int64_t n_delivered;     /* before, as the broker counts it */
    int64_t n_rejected;      /* from this queue, before it came back to it */
    struct message *message; /* NULL: its body was not taken */
    size_t n_bytes;          /* that it takes now */
    char *id;
    size_t id_len;
    uint8_t fingerprint[16];
    uint8_t token[16];
    bool has_token;   /* the token may be in the row */
    bool row_is_ours; /* the row has said that it holds this body */
    bool used_up;     /* its row has no attempts left, and is not buried while the brake is on */
    bool last_chance; /* near the broker's delivery limit: buried before the broker drops it */
    bool suspect;     /* the application died with it: it goes alone from now on */
    bool was_in_vain; /* as a suspect it died again, and was not alone: the next time it is, to the end */
    int64_t sent_ms;  /* when its latest request went */
    int64_t deaths;
    int attempt;
    int n_reclaims, n_locks, n_given_back;
    int n_spared;           /* deaths of the application after it was answered */
    int64_t received_us;    /* for latencies and max_hold */
    int64_t window_ends_ms; /* this side's clock, from before the claim was sent */
    int64_t watch_until_ms, not_before_ms, ready_ms, locked_since_ms;
    size_t timer_slot; /* in worker.timers, 0: none */
    int64_t timer_ms;
    enum wait_kind wait;
    enum watch_kind watch;
    enum release_to release_to;
    uint32_t inbox_life; /* worker.inbox_life when the request went out */
    int verdict;         /* of an answer that came while the window was being asked about; -1: none */
    int http_status;
    int64_t retry_after_ms;
    char *answered; /* beside verdict: in words */
    int answered_status;
    int64_t delay_ms; /* until the next attempt */
    int64_t due_ms;   /* of what is parked: when that will be; it may be looked at before */
    bool only_expired;
    bool alone;                   /* no other request was out when it went */
    uint64_t n_th_forward;        /* of the target's, when it went */
    uint64_t n_deaths_before;     /* the target's, when it went */
    int64_t stands_back_until_ms; /* a suspect, for others */
    bool looked;                  /* a read-only look was made while it waited for a slot */
    bool charged;                 /* what is being written counts against the brake */
    enum dead_reason dead_reason; /* when it is given up */
    bool rowless, exhausted;
    bool was_dead;    /* its row says so: it waits to be rejected again */
    bool has_circled; /* it has waited for that */
    bool give_back;   /* the window ended, and it is not the message's fault */
    char *error;      /* what went wrong last, in words: for the log */
    char *said;       /* the same with what the application wrote, for the row and the letter; NULL: error */
    char *result;
    size_t result_len;
};

enum consumer_state { CONSUMER_NONE, CONSUMER_STARTING, CONSUMER_ACTIVE, CONSUMER_STOPPING };

enum drain_state { DRAIN_NO, DRAIN_FINISHING, DRAIN_RETURNING, DRAIN_CLOSING, DRAIN_ENDED };

/* A connection that is made again for ever. */
struct redial {
    struct job *job;
    int64_t at_ms;       /* when to try next */
    int64_t deadline_ms; /* of the job */
    int n_failures;
    int64_t since_ms; /* without a connection */
    int64_t up_ms;    /* with one */
    bool was_up;
    char reason[256]; /* of the last failure */
};

struct counters {
    struct counter received, completed, duplicates, retried, given_back, dead, reconnects, suppressed;
};

struct rate_limit {
    int64_t second;
    int n;
};

struct tally {
    int64_t n; /* not yet said */
    int64_t not_before_ms;
};

struct housekeeping {
    struct pace pace;
    int64_t at_ms; /* of the next call */
    int64_t page;  /* where it goes on */
    bool asked;
    uint32_t inbox_life; /* worker.inbox_life that all this belongs to */
    int n_failures;
    int64_t put_off_since_ms;
    int64_t n_orphans, n_unfinished; /* in this walk so far */
    int64_t clocks_told_ms;
    int64_t told_unfinished, told_bytes; /* what the `limits` lines said last; 0: nothing */
    struct tally purged, swept, orphans;
};

struct timers {
    struct delivery **heap; /* 1-based */
    size_t n, cap;
};

struct worker {
    const struct config *config;
    const struct config_queue *q;
    pthread_t thread;
    atomic_int asked; /* 0, 1 drain, 2 hurry */
    _Atomic int64_t turned_ms;
    atomic_bool is_ready, is_fatal, is_drained, has_ended;
    atomic_bool stays; /* when it has drained, until it is asked to end */

    char *vhost;
    struct wait *wait;
    struct forward *forward;
    struct broker *broker;
    struct inbox *inbox;
    struct redial to_broker, to_inbox;
    uint32_t inbox_life;
    bool said_unprepared;
    unsigned failing_ops;    /* bits of enum inbox_op: their last statement failed */
    int64_t errors_since_ms; /* while there are any */
    unsigned tried_ops;      /* those whose failures made the present n_database_tries */
    int64_t failed_at_ms;    /* the last failure of any */

    struct list states[N_DELIVERY_STATES];
    struct list unacked; /* by tag, ascending */
    struct hash by_ref, by_id;
    struct timers timers;
    uint64_t next_ref;
    size_t n_held_bytes;
    uint64_t generation; /* of the channel, 0: none */

    enum consumer_state consumer;
    uint32_t consumer_number;
    int consumer_prefetch, n_consume_failures;
    bool consumer_is_trial; /* for one message at a time */
    int64_t consume_at_ms;
    size_t credit_used, credit_parked; /* of the present consumer */
    size_t largest_seen, largest_before;
    int64_t largest_since_ms;
    int64_t renewed_ms;     /* when the consumer was last started again for a larger prefetch */
    int delivery_limit;     /* of quorum queues on this broker, 0: none */
    bool too_large_stays;   /* a message that is too large is near the limit: it is left to the broker */
    const char *stuck_for;  /* why something should come that does not; NULL: nothing should */
    int64_t stuck_since_ms; /* without a break */
    int64_t stuck_at_ms;    /* not before this is the channel opened again */
    int n_stuck;            /* remedies in a row, without a delivery between */
    bool standby;           /* they were of no use: another consumer is active */
    bool blocked;
    bool more; /* the broker has more than a turn takes */

    unsigned pauses; /* bits of enum pause_reason */
    int64_t paused_since_ms[N_PAUSE_REASONS];
    uint64_t paused_after[N_PAUSE_REASONS]; /* the last of the target's requests before */
    bool pause_told[N_PAUSE_REASONS];
    char pause_text[N_PAUSE_REASONS][256];
    int64_t probe_at_ms, resume_at_ms; /* a probe that succeeds earlier than this ends no pause */
    bool waits_for_life;               /* until resume_at_ms, for a death: an answer cuts it short */
    int64_t refused_after_ms;          /* so long did the latest refusal take: a trial may, too */
    uint64_t probe_after;              /* deaths of the target before the probe that is under way */
    int64_t database_try_ms;           /* paused for the database's errors: then it is tried */
    int n_database_tries;
    bool probing;
    int n_silent_probes; /* of the readiness URL, without an answer, in a row */
    bool
        is_doubted; /* the application said no, or died, and was not seen gone since: a probe proves little */
    bool is_on_trial;              /* paused for it, and one request at a time shows how it is */
    int64_t trial_since_ms;        /* when it began */
    int64_t sent_ms;               /* when the latest request went */
    int n_pauses_in_a_row;         /* of the application, without a success between */
    int allowed;                   /* requests at once: the trickle */
    bool is_gone;                  /* nobody listened when it was last tried, */
    uint64_t gone_after;           /* after so many deaths */
    int n_unproven;                /* deaths charged that may be nobody's fault */
    int64_t unproven_at_ms;        /* the last of them */
    uint64_t unproven_id;          /* whose such death was the last: its hash */
    uint64_t unproven_proofs;      /* target_proven then */
    struct suspicions *suspicions; /* suspects that went back to the broker */
    struct target *target;         /* the application, shared with the workers of other queues */
    uint64_t n_in_target;          /* of its requests that are out, ours */
    int64_t place_since_ms;        /* it is ours, for a suspect */
    uint64_t suspect_ref;          /* the suspect that went last, 0: none yet */
    int n_failed_in_a_row;
    uint64_t failed_ids[FAILED_IDS]; /* the first of those that failed in a row */
    struct failed_text {
        char text[96];
        int n;
    } failed_texts[FAILED_TEXTS]; /* what the application said to them */
    int n_brakes;
    int64_t brake_at_ms;

    enum drain_state drain;
    int64_t drain_until_ms;

    int64_t now_ms; /* of this turn */
    int64_t started_ms; /* Unix time: larger in each life of an instance */
    int64_t tick_at_ms, stats_at_ms;
    double service_ema_us, claim_ema_us;
    double copies_ema; /* the share of what is new here that turns out to be completed */
    int64_t claim_sent_us;

    struct counters counts;
    struct waiting waiting; /* before it was ready */
    uint64_t dropped_told;
    struct histogram forward_us, end_to_end_us, claim_batch;
    struct rate_limit limits[N_EVENTS];
    int64_t early_answer_told_ms;
    uint64_t locked_ref; /* whose row's holder is asked for, 0: none */
    int64_t locked_told_ms;
    int64_t depth;          /* -1: not known */
    int64_t depth_asked_ms; /* and not answered yet; 0: answered */
    int64_t depth_of_ms;    /* when the present depth was asked for */
    char depth_reason[128];
    bool no_queue; /* says the broker, in the words of depth_reason */
    struct inbox_figures figures;
    bool has_figures;
    struct housekeeping housekeeping;

    struct header_block headers;
    struct buf token_text, json[2];
    struct inbox_item items[BATCH_MAX];
    struct inbox_letter letters[BATCH_MAX];
};

/* arrivals.c */
void worker_delivery_arrives(struct worker *w, struct broker_event *ev);
void worker_delivery_skipped(struct worker *w, const struct broker_event *ev);

/* deliveries.c */

/* Where a copy stands beside others of its id: the event to follow; `alone` when there are none. */
enum delivery_event delivery_join(struct worker *w, struct delivery *d, enum delivery_event alone);
void delivery_event(struct worker *w, struct delivery *d, enum delivery_event e);
void delivery_drop_id(struct worker *w, struct delivery *d);   /* it leads and follows nobody any more, */
void delivery_step_down(struct worker *w, struct delivery *d); /* and its first follower leads the others */
struct delivery *worker_find(struct worker *w, uint64_t ref);
void worker_run_timers(struct worker *w);
void worker_channel_lost(struct worker *w);
void worker_reap(struct worker *w);
void delivery_destroy(struct worker *w, struct delivery *d);
void delivery_set_error(struct delivery *d, const char *text);
size_t worker_n(const struct worker *w, enum delivery_state s);
size_t worker_n_out(const struct worker *w);
int64_t delivery_backoff_ms(const struct worker *w, int n); /* after failure number n */
int64_t delivery_lock_wait_ms(struct delivery *d);          /* 20 ms, doubling to 1 s */

/* The failpoint of a step of the call that a delivery in this state is about to make, or has made. */
static inline enum failpoint failpoint_of(enum delivery_state s, enum failpoint_step step)
{
    switch (s) {
    case DELIVERY_TO_CHECK:
    case DELIVERY_CHECKING:
        return (enum failpoint)(FAILPOINT_CHECK_BEFORE + step);
    case DELIVERY_TO_LOOK:
    case DELIVERY_LOOKING:
        return (enum failpoint)(FAILPOINT_LOOK_BEFORE + step);
    case DELIVERY_TO_SETTLE:
    case DELIVERY_SETTLING:
        return (enum failpoint)(FAILPOINT_SETTLE_BEFORE + step);
    case DELIVERY_TO_FAIL:
    case DELIVERY_FAILING:
        return (enum failpoint)(FAILPOINT_FAIL_BEFORE + step);
    case DELIVERY_TO_REVOKE:
    case DELIVERY_REVOKING:
        return (enum failpoint)(FAILPOINT_REVOKE_BEFORE + step);
    case DELIVERY_TO_RELEASE:
    case DELIVERY_RELEASING:
        return (enum failpoint)(FAILPOINT_RELEASE_BEFORE + step);
    case DELIVERY_TO_BURY:
    case DELIVERY_BURYING:
        return (enum failpoint)(FAILPOINT_BURY_BEFORE + step);
    case DELIVERY_TO_REJECT: /* its steps are before, written and flushed; so are those of the next two */
        return (enum failpoint)(FAILPOINT_REJECT_BEFORE + step);
    case DELIVERY_TO_RETURN:
        return (enum failpoint)(FAILPOINT_RETURN_BEFORE + step);
    case DELIVERY_TO_ACK:
        return (enum failpoint)(FAILPOINT_ACK_BEFORE + step);
    default:
        return (enum failpoint)(FAILPOINT_CLAIM_BEFORE + step);
    }
}

/* batches.c */
void worker_submit_batches(struct worker *w);
bool worker_suspect_is_on_its_way(struct worker *w);
struct slice delivery_id(const struct delivery *d);

/* rows.c */
void worker_row(struct worker *w, const struct inbox_row *row);
void worker_holder(struct worker *w, const struct inbox_holder *h);

/* operations.c */
bool sqlstate_is_lasting(const char *sqlstate);
void worker_op_works(struct worker *w, enum inbox_op op);
void worker_op_fails(struct worker *w, const struct inbox_row *row);
void report_database_error(struct worker *w, const char *sqlstate, struct slice reason);

/* answers.c */
void worker_forward_claimed(struct worker *w);
void worker_answer(struct worker *w, const struct forward_answer *a);
void delivery_apply_verdict(struct worker *w, struct delivery *d);
void delivery_fail(struct worker *w, struct delivery *d);
bool delivery_is_tainted(const struct worker *w,
                         const struct delivery *d); /* the database link broke during its forward */

/* consume.c */
void worker_update_consumer(struct worker *w);
void worker_broker_event(struct worker *w, struct broker_event *ev);

/* The queue is one: the connection is given up, and made again later. */
void worker_stream_found(struct worker *w, const struct fault *f);
struct broker_room worker_room(const struct worker *w);
void worker_watch_consumer(struct worker *w);
void worker_ask_depth(struct worker *w);

/* acks.c */
void worker_write_acks(struct worker *w);

/* timers.c */
void delivery_set_timer(struct worker *w, struct delivery *d, int64_t at_ms);
void delivery_clear_timer(struct worker *w, struct delivery *d);
int64_t worker_next_timer_ms(const struct worker *w); /* INT64_MAX: there is none */
struct delivery *worker_take_due(struct worker *w);   /* with its timer cleared; NULL: none is due */

/* returns.c */
bool delivery_may_return(const struct worker *w, const struct delivery *d);

/* Near: not forwarded any more. At its last: after one more return the next lost connection would be its end.
 */
int64_t
delivery_near_limit(const struct worker *w); /* the count from which it is near, where there is a limit */
bool delivery_is_near_its_last(const struct worker *w, const struct delivery *d);
bool delivery_is_at_its_last(const struct worker *w, const struct delivery *d);
void worker_learn_limit(struct worker *w);

/* What only waits: back to the broker, or stored whole where that might be its end. false: neither is safe
 * now, it stays. */
bool delivery_return(struct worker *w, struct delivery *d);

/* Its row may hold a claim of ours though it only waits: that is given back first, and the delivery returned
 * then. false: there is none. */
bool delivery_release_idle_claim(struct worker *w, struct delivery *d);
/* Nothing of it is at work: it may go back. */
bool delivery_only_waits(const struct worker *w, const struct delivery *d);
void worker_return_old(struct worker *w); /* what was held for max_hold */

/* loops.c */

/* Is it dead, and does it come back from the queue's own dead-letter exchange? Then it waits once before it
 * is rejected again: DELIVERY_EV_NOT_NOW is next. */
bool delivery_circles(struct worker *w, struct delivery *d);

/* target.c */
void worker_join_target(struct worker *w);
void worker_leave_target(struct worker *w);
bool target_is_free(const struct worker *w);             /* nobody else is alone with it */
bool target_enter(struct worker *w, struct delivery *d); /* a request begins; false: not now */
void target_leave(struct worker *w);                     /* a request has ended */
bool target_was_alone(const struct worker *w, const struct delivery *d); /* from its begin until now */
bool target_take_place(struct worker *w); /* for a suspect; true: it is ours, or was */
void target_give_place(struct worker *w);
bool target_is_quiet(const struct worker *w);                              /* nothing is out */
uint64_t target_forwards(const struct worker *w);                          /* requests so far */
void target_who_is_alone(const struct worker *w, char *name, size_t size); /* its queue; empty: nobody else */
void target_died(struct worker *w);
uint64_t target_deaths(const struct worker *w);
void target_prove(struct worker *w, uint64_t after_deaths); /* it lived after so many deaths */
uint64_t target_proven(const struct worker *w);

/* suspects.c */
enum lone_death {
    DEATH_AMONG_OTHERS, /* not suspected before, or not alone */
    DEATH_UNPROVEN,     /* alone, but the application may have been down all the time */
    DEATH_CHARGED
};

enum lone_death suspect_judge(struct worker *w, const struct delivery *d);
void suspect_stand_back(struct worker *w, struct delivery *d);
bool suspect_stands_back(const struct worker *w, const struct delivery *d);
void suspect_remember(struct worker *w, struct delivery *d); /* it leaves, to be delivered again */
bool suspect_recall(struct worker *w, struct delivery *d);   /* it has arrived */
void worker_forget_suspects(struct worker *w);
void worker_saw_nobody(struct worker *w, uint64_t after_deaths);
void worker_saw_ready(struct worker *w, uint64_t after_deaths);

/* pause.c */
bool worker_is_paused(const struct worker *w, enum pause_reason r);
void pause_set(struct worker *w, enum pause_reason r, const char *text);
void pause_quietly(struct worker *w, enum pause_reason r, const char *text); /* said only when it lasts */
void pause_clear(struct worker *w, enum pause_reason r);
int64_t probe_wait_max_ms(const struct worker *w);
void pause_for_death(struct worker *w, const struct delivery *d);
void pause_for_refusal(struct worker *w, const struct delivery *d);
bool worker_may_forward(const struct worker *w);
bool worker_may_consume(const struct worker *w);
void worker_probe(struct worker *w);
void worker_probed(struct worker *w, const struct forward_probed *p);
bool worker_is_braked(const struct worker *w);
bool delivery_was_sent_before(const struct worker *w, const struct delivery *d, enum pause_reason r);
int64_t worker_next_probe_ms(const struct worker *w); /* INT64_MAX: none is wanted */
void worker_try_database(struct worker *w);
void worker_trickle(struct worker *w, int more); /* after a pause: so many more requests at once */
void worker_pause_tick(struct worker *w);

/* trials.c */
bool worker_is_trying(const struct worker *w); /* paused, and one message at a time shows how it is */
size_t worker_n_busy(const struct worker *w);  /* requests that take a slot */
bool trial_began_after(const struct worker *w,
                       const struct delivery *d); /* its request says nothing of now */
void worker_saw_answer(struct worker *w, const struct delivery *d);
bool delivery_stands_aside(const struct worker *w, const struct delivery *d); /* others are tried before it */
int64_t trial_next_turn_ms(const struct worker *w); /* those that stand aside may go */
bool trial_needs_another(const struct worker *w);   /* a message from the queue */
bool trial_is_vain(const struct worker *w);
int64_t trial_hold_ms(const struct worker *w, const struct delivery *d); /* until it goes back, in a pause */

/* brake.c */
void worker_success(struct worker *w, const struct delivery *d);
void worker_failure(struct worker *w, const struct delivery *d);
bool worker_brake_holds(const struct worker *w, const struct delivery *d);
void delivery_spare(struct worker *w, struct delivery *d); /* its death is not written, but given back */

/* connections.c */
void worker_step_broker(struct worker *w);
void worker_step_inbox(struct worker *w);
bool worker_tick_connections(struct worker *w); /* once a second; true: the broker's was lost */

/* drain.c */
void worker_step_drain(struct worker *w);

/* housekeeping.c */
void worker_keep_house(struct worker *w);
int64_t worker_next_housekeeping_ms(const struct worker *w);
void worker_letters_are_weighed(
    struct worker *w); /* the figures have come: a `limits` line when letters have grown */

/* report.c */
bool worker_may_say(struct worker *w, enum event e);
void report_delivery(struct worker *w, enum event e, const struct delivery *d);
void report_delivery_begin(struct log_line *l, enum event e, const struct worker *w,
                           const struct delivery *d);
void report_dead_again(struct worker *w, const struct delivery *d);
void report_circling(struct worker *w, struct delivery *d);
void report_stats(struct worker *w);
void report_text(struct worker *w, enum event e, const char *reason);
bool report_waiting(struct worker *w, enum waiting_for what, const char *text); /* false: the queue was ready */
