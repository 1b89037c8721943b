#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/row.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fault;
struct config_database;
struct job;

/* The inbox: one database connection for all queues of the process, in pipeline mode. One thread; nothing
 * blocks after the connection was handed over.
 *
 * A queue is known by its index: its place in the array that inbox_connect was given. A batch is one call of
 * one function of the schema, with items of any queues, in one transaction; at most one batch of a kind is
 * out at a time (inbox_is_free), batches of different kinds follow each other in the pipeline. Every item of
 * a batch is answered exactly once by inbox_next, also when the connection breaks (ROW_UNKNOWN) or the
 * statement fails (ROW_RETRY for what passes; a batch that the data of one item spoils is split until that
 * item is alone, ROW_INVALID, and the others are answered as if it had never been there). */

struct inbox;

/* The kinds of batches. Claims of queues whose completion is the application's own transaction commit
 * asynchronously as long as they only insert, those of the other queues never: so the two never share a
 * batch. */
enum inbox_op {
    INBOX_CLAIM,       /* of queues that are not `transaction` */
    INBOX_CLAIM_ASYNC, /* of those that are */
    INBOX_CLAIM_STORE, /* the same two of queues that store their messages, with the messages */
    INBOX_CLAIM_STORE_ASYNC,
    INBOX_LOOK,
    INBOX_RENEW,
    INBOX_SETTLE,
    INBOX_FAIL,
    INBOX_RELEASE,
    INBOX_BURY,
    N_INBOX_OPS
};

/* What the inbox must know of a queue. Borrowed until inbox_connect returns. */
struct inbox_queue {
    const char *consumer, *vhost, *queue;
    const char *broker; /* the name of its cluster; NULL: not known yet, and the queue is not registered */
    const char *takes_over; /* the queue that this one has replaced under its consumer name, or the former
                               consumer of this queue; NULL: none */
    bool transaction;       /* the application completes the row; else the sidecar settles it */
    int64_t token_window_ms, max_window_ms;
    int max_attempts;
    int revive;       /* how often a dead message may be brought back by moving it to the queue again */
    int64_t store_ms; /* its messages are stored for so long; 0: not at all */
};

/* Who claims. */
struct inbox_self {
    const char *instance;
    int64_t number; /* of this life of the instance: larger than that of every life before it. At least 1 */
    bool own; /* what earlier lives of the instance have claimed may be taken over at once (`transaction`
                 queues) */
};

/* Connects on a helper thread: libpq non-blocking against the deadline, several hosts allowed,
 * target_session_attrs=read-write unless the URL says otherwise, READ COMMITTED pinned; then reads the
 * schema's version and registers the consumers of all queues. The job's result goes to inbox_attempt_take.
 * n_queues: at least 1. Everything is copied. NULL: f. */
struct job *inbox_connect(const struct config_database *c, const struct inbox_queue *queues, size_t n_queues,
                          const struct inbox_self *self, struct fault *f);

enum inbox_attempt_result {
    INBOX_CONNECTED = 0,
    INBOX_SCHEMA = 1, /* the schema does not fit, and a migration does not help: f. For all queues */
};

/* 0 and *ret_inbox, though some queues may not be registered; 1 with f: connected, but not usable (try again
 * later, slowly); -1: not connected, or the schema is not migrated yet, f. */
int inbox_attempt_take(void *result, struct inbox **ret_inbox, struct fault *f);

void inbox_free(struct inbox *i);

enum inbox_registration {
    INBOX_REGISTERED = 0,
    INBOX_REFUSED = 1, /* the consumer name belongs to another queue, or the queue to another consumer: f */
    INBOX_BUSY = 2,    /* the record is being changed, or the broker is not known yet: f; ask again soon */
};

/* May this queue's items be submitted? f is set where they may not (f may be NULL). */
enum inbox_registration inbox_registration(const struct inbox *i, size_t queue, struct fault *f);

/* The consumer name that the queue is registered under: its own, or the former one that takes_over names, under
 * which its rows are. Valid until the inbox is freed, once it is registered. */
const char *inbox_consumer(const struct inbox *i, size_t queue);

/* The queue is one of this broker, which may be another one than before: it is then registered again. */
void inbox_set_broker(struct inbox *i, size_t queue, const char *broker);

/* Registers again those queues that are not registered, unless that was asked already; inbox_registration
 * changes when the answer is read. Nothing when all are. */
void inbox_ask_registration(struct inbox *i);

int inbox_fd(const struct inbox *i);

/* Does libpq have bytes that the socket would not take? Then poll for writing too. */
bool inbox_wants_write(const struct inbox *i);

/* Instances that are known to be gone: what they have claimed for `transaction` queues may be taken over at
 * once. For all claims and looks that are submitted after it; copied. A new connection knows of none. */
void inbox_set_gone(struct inbox *i, const char *const *instances, size_t n);

/* A dead letter, beside its item. Borrowed until inbox_submit returns. */
struct inbox_letter {
    const char *reason; /* the name of an enum dead_reason */
    bool rowless;       /* no row of its own: the letter is known by the item's token */
    bool looked_for;    /* rowless: a repeat, which inserts it only where there is none with that token */
    bool exhausted;     /* without a token: the row says so itself, see ROW_EXHAUSTED */
    int attempts;
    struct slice raw_id; /* the message id as bytes, when it is not text */
    struct slice body, content_type, properties_json, headers_json, exchange, routing_key;
    struct slice content_header; /* AMQP's content header as it came: class, weight, size, flags, properties.
                                    data NULL: not kept */
    int64_t deaths;
};

/* A message that is stored with its first claim. Borrowed until inbox_submit returns. */
struct inbox_message {
    struct slice body, exchange, routing_key;
    struct slice content_header; /* as in inbox_letter */
};

/* A field that a kind of batch does not name below is not looked at by it. */
struct inbox_item {
    uint64_t ref;            /* comes back in the row. Claims that store: in the order of arrival */
    size_t queue;            /* index */
    struct slice message_id; /* empty: none (bury of a rowless letter only) */
    uint8_t token[16];
    uint8_t fingerprint[16];
    struct slice message_type; /* claim, renew; data NULL: none */
    int64_t deaths;            /* claim: message_deaths() */
    bool alone; /* claim: nothing else of this process is claimed or forwarded, nor will be before this is
                   settled */
    int http_status;     /* settle, fail; 0: none */
    struct slice result; /* settle; data NULL: none. What is not text is not stored */
    struct slice error;  /* fail, release, bury; cut at 1 KiB, made text */
    int64_t delay_ms;    /* fail, release: until the next attempt */
    int crashes;         /* fail, release: what the row shall say of them from now on; -1: what it says */
    int unproven_step;   /* fail, release: 0 and more: written, with the present time as unproven_at; -1:
                            nothing is written */
    int batch_cap;     /* fail, release: messages in the next request with it, at most; 0: as the row says */
    bool only_expired; /* fail: revoke at the end of the window, unless extended */
    bool give_back;    /* fail: the token ends, and the attempt is not charged; answered as released */
    const struct inbox_letter *letter;  /* bury */
    const struct inbox_message *stored; /* claims that store; NULL: nothing of it */
};

struct inbox_row {
    uint64_t ref;
    size_t queue;
    enum inbox_op op; /* INBOX_CLAIM for all kinds of claims */
    enum row_answer answer;

    /* What the row says, after a claim or look that found one (the answers vanished, unknown, retry and
     * invalid have none of it). The number that the application sees is attempt + takeovers: for a claimed
     * row that of this attempt, else that of the last one. */
    int attempt;
    int takeovers; /* of rows whose holder ended without a word. A takeover leaves `attempt` as it was */
    int crashes;   /* of the application, with this message */
    int64_t unproven_ms; /* since unproven_at; -1: none */
    int unproven_step;
    int batch_cap; /* messages in the next request with it, at most; 0: as many as configured */

    int64_t wait_ms;     /* held, not_due, extended, claimed (look: what is left of the window), too_often */
    int64_t age_ms;      /* claimed: since the row was first seen, or brought back from the dead */
    bool taken_over;     /* claimed: from a holder that is gone, or whose token had expired */
    bool namesake;       /* held: by somebody else who runs under this instance's name */
    struct slice detail; /* held: the holder; not_due, dead, exhausted: the last error; mismatch: fingerprints
                            and times; invalid, retry: the error. Valid until the next call */
    struct slice id;     /* bury: the letter's id, as text */
    char sqlstate[6];
};

/* Answers, where row.h does not say enough:
 *
 *   claim   due        taken over once already, and the next claim would take it over again: only a claim that is `alone` may
 *                      do that. The row is untouched.
 *           exhausted  failed with max_attempts made, or its owner ended without an answer and takeovers is max_attempts + 2
 *                      already. (An owner's end adds one to takeovers up to 2, and from then on only where the claim was alone.)
 *   look    due        a claim would answer `claimed`, `exhausted` or `due`
 *           held       with the exact time from which on a claim would take the row over
 */

/* May a batch of this kind be submitted now? */
bool inbox_is_free(const struct inbox *i, enum inbox_op op);

/* Hands a batch over. Items need not be sorted; the pairs of queue and message id must be different (rowless
 * letters apart). Everything is copied or encoded before it returns. n: 1 to 1,024; the adapter splits a BURY
 * batch by bytes on its own. -1: the connection is lost (f); the items are answered by inbox_next as
 * ROW_UNKNOWN all the same. */
int inbox_submit(struct inbox *i, enum inbox_op op, const struct inbox_item *items, size_t n,
                 struct fault *f);

/* Reads what has come and answers one row. 1: *row; 0: none now. -1: the connection is lost and every row was
 * answered; f says why. Only inbox_free may follow. */
int inbox_next(struct inbox *i, struct inbox_row *row, struct fault *f);

/* Questions: each asked in the pipeline unless it is out already, and answered once. */

/* Figures for the stats lines. */
struct inbox_figures {
    int64_t oldest_snapshot_ms;  /* -1: not known, since this role may not see other roles' sessions */
    int64_t dead_letter_bytes;   /* of all consumers of the database */
    const int64_t *dead_letters; /* a queue; valid until they are asked for again */
};
void inbox_ask_figures(struct inbox *i);
bool inbox_figures(struct inbox *i, struct inbox_figures *ret);

/* Who holds the lock of a row: for the log. The texts are cut. pid 0: no session: state says what; where it
 * is empty, nobody holds it any more. A session whose state is empty may not be seen by this role. */
struct inbox_holder {
    int64_t pid, age_ms; /* of its transaction */
    char application[64], state[64];
    char gid[201]; /* of a prepared transaction; else empty */
};
void inbox_ask_holder(struct inbox *i, size_t queue, struct slice message_id);
bool inbox_holder(struct inbox *i, struct inbox_holder *ret);

/* Asks whether rows and letters can be written: sidecar_try does, and takes it back. */
void inbox_ask_try(struct inbox *i);

/* 1: they can; 0: no answer yet, or nothing was asked; -1: not: f, its code is the SQLSTATE, or empty. */
int inbox_tried(struct inbox *i, struct fault *f);

/* Housekeeping: one bounded call of sidecar_keep_house. What it does and how it shares the work with other
 * sidecars stands there. */
struct inbox_housekeep {
    size_t queue;
    int64_t retention_ms, late_ms;
    int64_t from_page;  /* next_page of the call before; -1: none */
    int64_t budget_us;  /* it ends as soon as so much time has gone */
    int64_t compact_ms; /* completed rows are replaced by history entries after so long; 0: never */
};
struct inbox_housekept {
    int64_t n_purged, n_swept, n_orphans;
    int64_t n_moved;      /* completed rows that were replaced by entries of the history */
    int64_t n_expired;    /* entries of the history, of all consumers */
    int64_t n_unfinished; /* failed and waiting rows, orphans included */
    int64_t ahead_ms;     /* not 0: the database's clock is so far ahead of this machine's (below 0: behind)
                             that nothing was done */
    int64_t next_page;    /* 0: the end of the walk was reached */
    int64_t n_pages;      /* of the whole walk */
    int64_t took_us;
    int64_t away_ms; /* not 0: another sidecar keeps house; ask again after that. next_page is -1 */
};
void inbox_ask_housekeep(struct inbox *i, const struct inbox_housekeep *h);

/* 1: *ret, once; 0: no answer yet, or nothing was asked; -1: the statement failed: f. */
int inbox_housekept(struct inbox *i, struct inbox_housekept *ret, struct fault *f);

/* The stored messages' partitions, with the retentions of all queues: one call of sidecar_make_messages,
 * which makes the days to come. */
struct inbox_made_messages {
    bool
        due; /* something is past its retention, or takes long to be made: inbox_ask_keep_messages has work */
    char hindered[512]; /* what keeps a day from being made or dropped, and what to do; empty: nothing */
};
void inbox_ask_make_messages(struct inbox *i);

/* 1: *ret, once; 0: no answer yet, or nothing was asked; -1: the statement failed: f. */
int inbox_made_messages(struct inbox *i, struct inbox_made_messages *ret, struct fault *f);

/* One call of sidecar_keep_messages, which drops what is past its retention. It may take a minute, for which
 * everything else on this connection waits. */
struct inbox_kept_messages {
    char dropped[32]; /* the partition that went; empty: none */
    bool more;        /* another one could go: ask again soon */
    char stuck[32];   /* what could not be dropped, since somebody holds its lock; empty: nothing */
};
void inbox_ask_keep_messages(struct inbox *i);

/* 1: *ret, once; 0: no answer yet, or nothing was asked; -1: the statement failed: f. */
int inbox_kept_messages(struct inbox *i, struct inbox_kept_messages *ret, struct fault *f);

/* Presence and levers: one call writes what this instance is doing, and reads how many others may consume its
 * queues, whether the holders of claims are still there, and what operators want. */
struct inbox_shown {
    const char *version, *host;
    struct slice
        queues_json; /* an array with an object for each queue of the process, with at least "consumer";
                                 "may_consume": true marks an instance that could take its messages */
    const char *const *holders; /* instances whose claims are waited for */
    size_t n_holders;
    bool count; /* the others: reads the rows of all instances */
};
void inbox_ask_presence(struct inbox *i, const struct inbox_shown *shown);

/* One of those holders that has a row. The counter of an instance that has ended stays the same. */
struct inbox_holder_seen {
    const char *instance;
    int64_t counter;
};

/* What each replica is to do once: it remembers the number that it has done. 0: never wanted. */
struct inbox_once {
    int64_t number;
    const char *by;
    int64_t ago_ms; /* how long ago it was said, where that matters */
};

/* What operators want of a queue. Queues that nobody ever wanted anything of have none. Texts may be empty,
 * never NULL. */
struct inbox_control {
    size_t queue;
    bool paused;
    const char *reason, *by;
    int64_t since_ms;            /* Unix time */
    const struct slice *give_up; /* message ids */
    size_t n_give_up;
    const char *give_up_by;
    struct inbox_once retry, held; /* what waits is looked at; what is held is given up */
};

struct inbox_presence {
    const int *n_others; /* a queue: other instances that may consume it; NULL: not asked for */
    int64_t n_counted;   /* the rows that were read for that, about */
    const struct inbox_holder_seen *holders;
    size_t n_holders;
    const struct inbox_control *controls;
    size_t n_controls;
    bool namesake; /* somebody else writes presence under this instance's name */
};

/* 1: *ret, once, valid until presence is asked for again or the inbox is freed; 0: no answer yet, or nothing
 * was asked; -1: the statement failed: f. */
int inbox_presence(struct inbox *i, struct inbox_presence *ret, struct fault *f);

/* How long the oldest call that is out has been waited for; 0: none is out. */
int64_t inbox_waiting_ms(const struct inbox *i);

/* Its connection is gone, as inbox_next is about to say: also found by sending, when nothing comes from its
 * socket any more. */
bool inbox_is_lost(const struct inbox *i);

/* The unprepared fall-back of database.prepared: auto was taken (a pooler lost our statements). For the log,
 * once. */
bool inbox_gave_up_prepared(const struct inbox *i);

/* The code of a question's fault, in place of an SQLSTATE, whose prepared statement a pooler has lost: it was
 * not run, and is to be asked again. */
#define INBOX_CODE_UNPREPARED "DRIFT"

/* Did a large letter make libpq's buffers grow? They never shrink: connect anew in a quiet moment to give the
 * memory back. */
bool inbox_is_swollen(const struct inbox *i);
