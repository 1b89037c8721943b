#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/base/wait.h"
#include "onceward/broker/broker.h"
#include "onceward/config/config.h"
#include "onceward/core/headers.h"
#include "onceward/core/pace.h"
#include "onceward/core/queue.h"
#include "onceward/core/waiting.h"
#include "onceward/forward/forward.h"
#include "onceward/inbox/inbox.h"
#include "onceward/sidecar/sidecar.h"
#include "onceward/sidecar/state.h"
#include "onceward/sidecar/state_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

/* The shell around the core: one thread, one place where it waits. It turns what broker, database,
 * applications and clock say into facts, and carries out the actions that the queues' cores answer. It
 * decides nothing about a message.
 *
 *   sidecar.c          beginning and end, signals, the turn
 *   dial.c             a connection that is made again indefinitely
 *   brokers.c          a connection a virtual host, and what it brings
 *   arguments.c        what the queues were declared with
 *   renewals.c         copies of messages near their delivery limit, on connections that publish
 *   database.c         the connection, its answers, whether it works
 *   batches.c          operations of all queues, as batches
 *   side_connection.c  a connection to the database for what takes long
 *   letters.c          large letters, on a connection of their own
 *   requests.c         requests to the applications, their answers, probes
 *   actions.c          what a queue's core wants done, carried out
 *   report.c           lines of the log
 *   figures.c          the stats line
 *   metrics.c          the same as a page for Prometheus; metrics_page.c, prometheus.c: its text
 *   replicas.c         who else is there
 *   handovers.c        which of them is active on an ordered queue
 *   levers.c           what operators want
 *   queue_states.c     what presence shows of the queues
 *   housekeeping.c     the purge and the sweep
 *   store.c            the partitions of stored messages
 *   days.c             those that are past their retention, dropped on a connection of their own
 *   partitions.c   ranges of queue names that change
 *   outbox.c           the relay of the outbox; outbox_answers.c, outbox_figures.c: its answers and its figures
 *   first_start.c      what is missing before a queue's first start
 *   state_writer.c     the state file
 *   reload.c           the program, restarted in its own place
 *
 * Calls go down this list's order of layers only: sidecar → brokers, database, actions, … → batches, requests
 * → report. */

enum { BATCH_MAX = 256, LETTERS_MAX = 64, LETTERS_BYTES = 4 << 20, STORED_BYTES = 512 << 10 };

struct sidecar;

/* A connection that is made again indefinitely, with full jitter. */
struct dial {
    const char *peer;  /* "broker", "database": for the log */
    const char *vhost; /* of a broker; NULL */
    struct job *job;
    struct watch watch;  /* the job's */
    int64_t at_ms;       /* time of the next attempt */
    int64_t deadline_ms; /* the job's */
    int n_failures;
    int64_t since_ms; /* start of the time without a connection */
    int64_t up_ms;    /* start of the connection */
    bool was_up;
    uint64_t n_reconnects;
    char reason[256]; /* the latest failure */
    bool is_refused;  /* the peer refused the login or its permissions: time alone changes nothing */
};

/* Copies in flight to their own queues: see renewals.c. */
enum { N_RENEWALS_OUT = 64 };

struct link_renewals {
    struct sender *sender; /* NULL: not connected */
    struct dial dial;
    struct watch watch;
    bool readable, blocked, wrote;
    int64_t tick_ms, used_ms;
    struct renewal_out {
        uint64_t tag; /* 0: not sent, and `refused` has the reason */
        const char *refused;
        uint64_t ref;
        size_t lane;
        int64_t sent_ms;
        bool is_returned;
    } out[N_RENEWALS_OUT]; /* in the order of their tags */
    size_t n_out;
    struct buf header;
};

/* A connection to a virtual host. */
struct broker_link {
    char *vhost;
    char *cluster;         /* the broker connected last; NULL: none so far */
    struct broker *broker; /* NULL: none */
    struct dial dial;
    struct watch watch;
    bool readable;                               /* readable, or with more input than one turn takes */
    bool wrote_ack, wrote_reject, wrote_requeue; /* in this turn */
    bool closing, closed;
    int64_t tick_ms;
    struct link_renewals renewals;
    struct { /* the arguments of queues */
        struct job *job;
        struct watch watch;
        int64_t deadline_ms;
    } arguments;
};

struct tally {
    int64_t n; /* not logged yet */
    int64_t not_before_ms;
};

/* The walk through the history that deletes expired entries. */
struct expiry {
    bool is_due;
    struct pace pace;
    int64_t at_ms; /* time of the next call */
    int64_t page;  /* next page; -1: where it was noted last */
    struct pace_walk walk;
};

struct housekeeping {
    struct pace pace;
    int64_t at_ms; /* time of the next call */
    int64_t page;  /* next page */
    struct expiry expiry;
    uint32_t life; /* connection of the database that this state belongs to */
    int n_failures;
    int64_t put_off_since_ms;
    struct pace_walk walk;
    int64_t n_orphans, n_unfinished; /* in the present walk */
    int64_t told_unfinished, clocks_told_ms, lag_told_ms;
    struct tally purged, swept, orphans, compacted, expired;
};

/* Quantiles of the latest interval with values, and the time of its line. */
struct interval {
    struct figure value;
    int64_t at_ms; /* 0: no interval had values */
};

/* A connection to the database for slow work; see side_connection.c. */
struct side_connection {
    struct inbox *inbox; /* NULL: not connected */
    struct dial dial;
    struct watch watch;
    bool readable;
    int64_t used_ms; /* when it was made, or returned its latest row */
};

/* A queue: its core, and the shell's own state of it. */
struct lane {
    struct sidecar *sidecar;
    const struct config_queue *config;
    size_t index;       /* in sidecar.lanes and in forward; its number at the broker */
    struct lane *first; /* lane of the consumer's first partition, which has the figures of all; itself */
    size_t application; /* in sidecar.applications */
    struct broker_link *link;
    struct queue core;
    bool touched;   /* a fact has arrived since its last actions */
    int64_t due_ms; /* when it needs attention without a fact */
    struct histogram forward_us, end_to_end_us, claim_batch;
    int64_t stats_at_ms, stats_said_ms; /* the next check, the latest line */
    uint64_t dropped_told, reconnects_told;
    struct figures_told { /* content of that line */
        bool busy;        /* messages waited, were held, or it was paused */
        uint64_t sum;
        int64_t n_dead_letters;
        int state;
    } told;
    struct { /* lines about completed messages in that second */
        int64_t second;
        int n;
    } sampled;
    char depth_reason[128];
    int64_t n_dead_letters; /* -1: unknown */
    bool refused_told, told_drained, was_ready, was_consuming;
    bool arguments_wanted, arguments_asked, arguments_known; /* of the declare of the queue */
    int64_t arguments_again_ms; /* when they are read again, because they do not allow order; 0: they do */
    struct waiting waiting;     /* before its first start */
    struct lane_shown {         /* in the presence row, at that time */
        int64_t at_ms;
        uint64_t received, completed, failed;
    } shown;
    struct interval forward, end_to_end, batch;
    struct lane_levers {
        bool read;           /* read at least once: earlier commands are not for this process */
        int64_t retry, held; /* numbers of the latest commands carried out */
    } levers;
    struct lane_left { /* a partition that leaves the range: see partitions.c */
        int64_t at_ms, asked_ms;
        int n_looks;
        uint64_t received;
        bool
            ended; /* of the first partition: the registration that was asked for last said so of all that leave */
    } left;
    char *range;         /* of the first partition: what it is to be widened to; NULL. Owned */
    int64_t range_at_ms; /* when to ask for the recorded range again */
    int64_t kind_asked_ms;
    struct housekeeping house;
};

/* A batch of one kind, collected in this turn. */
struct batch {
    struct inbox_item items[BATCH_MAX];
    enum failpoint failpoint;
    size_t n;
};

struct letters {
    struct inbox_letter items[LETTERS_MAX];
    size_t properties_at[LETTERS_MAX], headers_at[LETTERS_MAX];
    struct buf properties, headers;
    size_t bytes;
};

/* Messages to be stored with the claims of a batch. */
struct stored {
    struct inbox_message items[BATCH_MAX];
    size_t bytes;
};

/* More replicas seldom share a queue. Each claim carries the names of those that have ended. */
enum { HOLDERS_MAX = 128 };

/* Another instance whose claims are in the way, and its presence. */
struct holder {
    char *instance;
    int64_t counter;    /* -1: not seen yet */
    int64_t changed_ms; /* when the counter last changed, by this side's clock */
    int64_t met_ms;     /* when a claim of it was last in the way */
    int n_same;         /* consecutive reads with an unchanged counter */
    bool asked, gone;
};

/* ENDING_RANGES: to begin again in its own place, with more partitions. */
enum ending { ENDING_NO, ENDING_DRAIN, ENDING_STOP, ENDING_RELOAD, ENDING_RANGES };

struct sidecar {
    struct config *config;
    sidecar_load *load;
    const char *path;
    struct wait *wait;
    struct forward *forward;
    struct sidecar_database {
        struct inbox *inbox; /* NULL: not connected */
        struct dial dial;
        struct watch watch;
        struct database core;
        bool closed;     /* permanently */
        bool registered; /* all queues are registered */
        bool readable, said_unprepared, asked_figures, asked_try, has_figures;
        struct inbox_figures figures;
        int64_t told_bytes;     /* size of the dead letters in the latest report */
        int64_t relay_asked_ms; /* latest question whether a sidecar relays the outbox */
        int64_t unrelayed_told_ms;
        int64_t claim_sent_us[2];
        struct batch batches[N_INBOX_OPS];
        struct letters letters;
        struct stored stored[2]; /* indexed by whether the claims are asynchronous */
        size_t housekeeps;       /* the lane with a call in flight; SIZE_MAX: none */
        bool expires_history;    /* set: the call belongs to the walk through the history */
        int64_t house_pause_ms;  /* no call of housekeeping before then */
        uint64_t asked_holder;   /* lane and ref, as in an item; 0: none */
    } database;
    struct sidecar_letters { /* letters.c: letters above LETTER_LARGE_BYTES */
        struct side_connection side;
        bool wanted;        /* a letter waits for it */
        struct batch batch; /* a single letter */
        struct letters large;
    } letters;
    struct sidecar_store { /* store.c, days.c */
        bool asked;
        int64_t at_ms;
        struct side_connection side;
        bool due, drops; /* a partition must be dropped; the call for that is in flight */
        int64_t drop_at_ms;
        int n_stuck;        /* consecutive tries to drop a locked partition */
        char hindered[512]; /* the latest report of why days cannot be made or dropped; empty: none */
    } store;
    struct broker_link *links;
    size_t n_links;
    struct application *applications;
    size_t n_applications;
    struct lane *lanes;
    size_t n_lanes, first; /* first: the lane that is served first */
    struct sidecar_presence {
        int64_t at_ms;
        bool asked, told_namesake;
        int64_t told_failed_ms;
        uint32_t life;                 /* connection of the database that the question was sent on */
        int64_t asked_ms, count_at_ms; /* the latest call; the next one that counts the other instances */
        struct holder holders[HOLDERS_MAX];
        size_t n_holders;
        struct buf json;
    } presence;
    struct sidecar_outbox *outbox; /* NULL: none is configured */
    struct metrics *metrics;       /* NULL: no address is configured */
    struct state_file file;
    bool state_failed;
    int64_t state_at_ms;
    int64_t started_ms; /* wall clock */
    int signals;
    struct watch signals_watch;
    enum ending ending;
    int n_asked;           /* requests to end */
    int64_t grace_ends_ms; /* during a drain */
    bool begins_again;     /* in the place of one that was drained */
    bool is_idle;          /* drained, and stays: only its presence is written */
    struct state_reload reload;
    int64_t reload_began_ms;
    int64_t now_ms;
    struct header_block headers;
    struct buf token, id;
};

/* Is it so for all partitions of the consumer whose first one this is? */
bool lane_all(const struct lane *first, bool (*is)(const struct lane *));

/* --- dial.c --- */

/* Must a connection be started? */
bool dial_is_due(const struct sidecar *s, const struct dial *d);
void dial_began(struct sidecar *s, struct dial *d, struct job *job, int64_t most_ms);
/* Has the job ended? Then *result is its result. A job far beyond its deadline is abandoned, and counts as
 * failed. */
bool dial_result(struct sidecar *s, struct dial *d, void **result);
void dial_failed(struct sidecar *s, struct dial *d, const char *reason); /* logged, and tried again later */
void dial_fault(struct sidecar *s, struct dial *d,
                const struct fault *f);                              /* the same, for an attempt to connect */
void dial_later(struct sidecar *s, struct dial *d, int64_t wait_ms); /* the same, not logged */
void dial_succeeded(struct sidecar *s, struct dial *d, const char *version);
void dial_time(struct sidecar *s,
               struct dial *d); /* call it now and then: a lasting connection resets the count of failures */
void dial_deinit(struct sidecar *s, struct dial *d);

/* --- brokers.c --- */

int brokers_init(struct sidecar *s, struct fault *f);
void brokers_step(struct sidecar *s);
void brokers_close(struct sidecar *s); /* starts closing */
bool brokers_are_closed(struct sidecar *s);
void brokers_deinit(struct sidecar *s);

/* --- identify.c --- */

/* The message id, or why there is none (f); *id holds its bytes. */
enum dead_reason identify_message(const struct lane *l, const struct message *m, struct buf *id,
                                  struct fault *f);

/* Why the message has no key: the names that it has, and those that were looked for. */
void identify_no_key(const struct lane *l, const struct message *m, struct fault *f);

/* --- arguments.c --- */

void arguments_want(struct lane *l);   /* its channel was opened */
void arguments_forget(struct lane *l); /* its queue was deleted, or may be */
void arguments_step(struct sidecar *s);
void arguments_close(struct sidecar *s);

/* --- renewals.c --- */

void renewals_step(struct sidecar *s);
int64_t renewals_due_ms(const struct sidecar *s);
bool renewals_can(const struct lane *l); /* may a copy be sent? */
void renewals_send(struct sidecar *s, struct lane *l, const struct delivery *d);
void renewals_flush(struct sidecar *s); /* once a turn, behind the actions */
void renewals_close(struct sidecar *s);

/* --- partitions.c --- */

/* true: the sidecar is to drain, and to begin again with the ranges of the lanes. */
bool partitions_step(struct sidecar *s);
void partitions_hold(struct sidecar *s); /* before anything is consumed in a turn */
/* The range that the consumer of this first partition reads: wider than its own while a partition is to be left. */
const char *partitions_range(const struct lane *first);
void partitions_widen(struct sidecar *s); /* at its end, for the one that goes on in its place */

/* --- database.c --- */

void database_step(struct sidecar *s);
void database_answered(struct sidecar *s, const struct inbox_row *r);
void database_dial(struct sidecar *s, struct dial *d);                   /* begins a connection */
void database_ask(struct sidecar *s);                                    /* asks the questions that are due */
void database_broker_is(struct sidecar *s, const struct broker_link *k); /* its cluster is known */
void database_close(struct sidecar *s);
void database_deinit(struct sidecar *s);

/* --- batches.c --- */

bool batches_can(const struct sidecar *s, const struct lane *l, enum operation op);
void batches_add(struct sidecar *s, struct lane *l, struct delivery *d, bool new_token);
void batches_send(struct sidecar *s);
enum operation batches_operation(uint64_t ref); /* of an item's ref */
struct lane *batches_lane(struct sidecar *s, uint64_t ref);
uint64_t batches_ref(uint64_t ref);

/* --- side_connection.c --- */

void side_step(struct sidecar *s, struct side_connection *a, bool wanted); /* connects, where it is wanted */
/* Reads, while it is connected. 1: a row; 0: none; -1: it was lost, which was told. */
int side_next(struct sidecar *s, struct side_connection *a, struct inbox_row *row);
void side_sent(struct sidecar *s, struct side_connection *a); /* something was handed to its inbox */
int64_t side_due_ms(const struct sidecar *s, const struct side_connection *a, bool wanted);
void side_close(struct sidecar *s, struct side_connection *a);

/* --- letters.c --- */

void letters_step(struct sidecar *s);
bool letters_can(const struct sidecar *s, const struct lane *l); /* may one be added? */
void letters_send(struct sidecar *s);
int64_t letters_due_ms(const struct sidecar *s);
void letters_close(struct sidecar *s);

/* --- requests.c --- */

int requests_init(struct sidecar *s, struct fault *f);
void requests_send(struct sidecar *s, struct lane *l, const struct request *sent);
void requests_step(struct sidecar *s);
void requests_probe(struct sidecar *s);

/* --- actions.c --- */

void actions_run(struct sidecar *s);
int64_t actions_due_ms(const struct sidecar *s);

/* --- report.c --- */

void report_note(struct lane *l, const struct note *n);
void report_holder(struct lane *l, uint64_t ref, const struct inbox_holder *h);
void report_reason(const struct lane *l, enum event e, const char *reason);

/* --- figures.c --- */

/* Fields of the stats line (of a queue), or of the outbox line, as they are now. The texts live as long as the
 * lane and this struct, until the next turn. */
struct figures {
    struct figure fields[N_FIGURES];
    char detail[256];
};

void figures_read(const struct lane *l, struct figures *ret);
void figures_log(struct log_line *l, const struct figures *g, enum stats_field first, size_t n);
void figures_keep(struct interval *i, const struct figure *f, int64_t now_ms);
void figures_say(struct lane *l);
void figures_step(struct sidecar *s);

/* --- metrics.c --- */

void metrics_begin(struct sidecar *s);
void metrics_step(struct sidecar *s);
void metrics_free(struct sidecar *s);
void metrics_page(const struct sidecar *s, struct buf *ret); /* metrics_page.c: all of it, appended */

/* --- replicas.c --- */

void replicas_step(struct sidecar *s);
void replicas_hurry(struct sidecar *s); /* asks again within a second */
void replicas_met(struct sidecar *s,
                  struct slice claimed_by); /* "instance/number", whose claim is in the way */
int64_t replicas_due_ms(const struct sidecar *s);
void replicas_say_now(struct sidecar *s); /* writes at once that it has drained and stays, for `status` */
bool replicas_have_said(const struct sidecar *s);
void replicas_deinit(struct sidecar *s);

/* --- handovers.c --- */

void handovers_init(struct lane *l);
/* true: the replicas of an ordered consumer have just changed. */
bool handovers_tell(struct sidecar *s, const struct inbox_presence *p);

/* --- levers.c --- */

void levers_pull(struct sidecar *s, const struct inbox_presence *p);

/* --- queue_states.c --- */

void queue_states_write(struct sidecar *s, struct buf *ret); /* of all queues, as JSON */

/* --- housekeeping.c --- */

void housekeeping_step(struct sidecar *s);
void housekeeping_weigh(struct sidecar *s); /* the figures have come */
int64_t housekeeping_due_ms(const struct sidecar *s);

/* --- store.c --- */

void store_linked(struct sidecar *s); /* the database is connected: asks before anything is claimed */
void store_ask(struct sidecar *s);    /* if it is due and the database is connected */
void store_step(struct sidecar *s);
int64_t store_due_ms(const struct sidecar *s);
void store_failed(struct sidecar *s, const struct fault *f); /* told */

/* --- days.c --- */

void days_step(struct sidecar *s);
int64_t days_due_ms(const struct sidecar *s);
void days_close(struct sidecar *s);

/* --- first_start.c --- */

void first_start_step(struct sidecar *s);

/* --- outbox.c --- */

int outbox_begin(struct sidecar *s, struct fault *f);
void outbox_step(struct sidecar *s);
int64_t outbox_next_ms(const struct sidecar *s); /* when to step again */
void outbox_database_is(struct sidecar *s, bool there, const char *why);
void outbox_answered(struct sidecar *s);       /* an application has */
void outbox_ends(struct sidecar *s, bool now); /* begins a drain; now: without waiting */
bool outbox_has_ended(const struct sidecar *s);
bool outbox_is_ready(const struct sidecar *s); /* has reached broker and database */
bool outbox_is_quiet(const struct sidecar *s); /* holds nothing */
void outbox_close(struct sidecar *s);
void outbox_free(struct sidecar *s);

/* --- state_writer.c --- */

int state_open(struct sidecar *s);
void state_step(struct sidecar *s);
void state_end(struct sidecar *s, int status);

/* --- reload.c --- */

/* A reload was asked for. True: none is under way, and the program can start with the file as it is. Otherwise
 * it is refused and logged. */
bool reload_begins(struct sidecar *s);
void reload_give_up(
    struct sidecar *s); /* the program ends or drains instead: the command that waits learns it */
/* Restarts the program in place of this one; argv is its whole command. Returns only if that fails, which was
 * logged. Nothing of s may be connected any more. */
void reload_carry_out(struct sidecar *s, char **argv);
/* Logs the reload, if the program was started by one. Before the first turn. */
void reload_take_over(struct sidecar *s);
