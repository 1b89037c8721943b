#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/row.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fault;
struct config_database;
struct job;

/* The inbox: one database connection for all queues of the process, in pipeline mode. One thread; nothing blocks after
 * the connection is handed over.
 *
 * A queue's index is its place in the array that inbox_connect was given. A batch is one call of one function of the
 * schema, in one transaction, with items of any queues. At most one batch of a kind is in flight at a time
 * (inbox_is_free); batches of different kinds follow each other in the pipeline. inbox_next answers every item of a
 * batch exactly once, also when the connection breaks (ROW_UNKNOWN) or the statement fails (ROW_RETRY for a passing
 * error). When one item's data make a batch fail, the batch is split until that item is alone: it is answered with
 * ROW_INVALID, and the others as if it had not been in the batch. */

struct inbox;

/* The kinds of batches. Claims of queues whose completion is the application's own transaction commit
 * asynchronously while they only insert; claims of other queues never do. So the two never share a batch. */
enum inbox_op {
    INBOX_CLAIM,       /* for queues that are not `transaction` */
    INBOX_CLAIM_ASYNC, /* for `transaction` queues */
    INBOX_CLAIM_STORE, /* the same two for queues that store their messages, with the messages */
    INBOX_CLAIM_STORE_ASYNC,
    INBOX_LOOK,
    INBOX_RENEW,
    INBOX_SETTLE,
    INBOX_FAIL,
    INBOX_RELEASE,
    INBOX_DEAD_LETTER,
    N_INBOX_OPS
};

/* The inbox's settings of a queue. Borrowed until inbox_connect returns. */
struct inbox_queue {
    const char *consumer, *vhost, *queue;
    const char *broker;     /* name of the cluster; NULL: unknown, so the queue is not registered yet */
    const char *takes_over; /* the queue that this one has replaced under its consumer name, or the former
                               consumer of this queue; NULL: none */
    const char *order_key;  /* sources of the order key: the range may change only where takes_over names the
                               recorded one. "": not ordered; NULL: unknown */
    bool transaction;       /* the application completes the row; else the sidecar does */
    int64_t token_window_ms, max_window_ms; /* the second is at least the first */
    int max_attempts;
    int revive;       /* number of times that a dead message may be revived by moving it to the queue again */
    int64_t store_ms; /* how long messages are stored; 0: not at all */
    bool compacts;    /* completed rows become history entries: claims send the hashes of their ids */
};

/* The claim owner. */
struct inbox_self {
    const char *instance;
    int64_t number; /* of this start of the instance: larger than that of every earlier start. At least 1 */
    bool own; /* claims of earlier starts of this instance may be taken over at once (`transaction` queues) */
};

/* Connects on a helper thread: libpq non-blocking with a deadline, several hosts allowed,
 * target_session_attrs=read-write unless the URL sets it, READ COMMITTED set. Then reads the schema's version and
 * registers the consumers of all queues. The job's result is for inbox_attempt_take. n_queues: at least 1. Everything
 * is copied. NULL: f. */
struct job *inbox_connect(const struct config_database *c, const struct inbox_queue *queues, size_t n_queues,
                          const struct inbox_self *self, struct fault *f);

enum inbox_attempt_result {
    INBOX_CONNECTED = 0,
    INBOX_SCHEMA = 1, /* the schema does not fit, and a migration does not help: f. For all queues */
};

/* 0 and *ret_inbox, though some queues may not be registered. 1 with f: connected, but not usable (try again later,
 * slowly). -1: not connected, or the schema is not migrated yet, f. */
int inbox_attempt_take(void *result, struct inbox **ret_inbox, struct fault *f);

void inbox_free(struct inbox *i);

enum inbox_registration {
    INBOX_REGISTERED = 0,
    INBOX_REFUSED = 1, /* the consumer name belongs to another queue, or the queue to another consumer: f */
    INBOX_BUSY =
        2, /* another transaction changes the record, the broker is still unknown, or the name has just
                          become the former one: f; ask again soon */
};

/* May items of this queue be submitted? If not, f is set (f may be NULL). */
enum inbox_registration inbox_registration(const struct inbox *i, size_t queue, struct fault *f);

/* Is the queue refused only because its record names another broker? Each node of a new RabbitMQ cluster reports its
 * own name until the cluster has one. */
bool inbox_is_of_other_broker(const struct inbox *i, size_t queue);

/* Consumer name that the queue is registered under, which its rows have: its own, or the former one in takes_over.
 * Valid until the inbox is freed, once it is the former one or the queue is registered. */
const char *inbox_consumer(const struct inbox *i, size_t queue);

/* Sets the queue's broker. If that is another one, the queue is registered again. */
void inbox_set_broker(struct inbox *i, size_t queue, const char *broker);

/* Makes the queue unregistered, since its record was removed. */
void inbox_unregister(struct inbox *i, size_t queue);

/* Registers the unregistered queues again, unless that is in flight already. inbox_registration changes when the
 * answer is read. again: also if all queues are registered and one has a range. */
void inbox_ask_registration(struct inbox *i, bool again);

/* Range that is recorded for the consumer if it is wider than that of its queue, else NULL. Valid until the next
 * inbox_next. */
const char *inbox_range(const struct inbox *i, size_t queue);

/* Range that a registration has replaced, once; NULL: none. The caller frees it. */
char *inbox_take_former_range(struct inbox *i, size_t queue);

/* All partitions outside the queue's own range are empty: the next registration takes them out of the record, unless
 * another replica reads them. */
void inbox_end_range(struct inbox *i, size_t queue, bool ended);

int inbox_fd(const struct inbox *i);

/* Does libpq have bytes that the socket did not take? Then poll for writing too. */
bool inbox_wants_write(const struct inbox *i);

/* Sets the instances that are known to have ended: their claims on `transaction` queues may be taken over at
 * once. Applies to all claims and lookups submitted later; copied. A new connection starts without any. */
void inbox_set_gone(struct inbox *i, const char *const *instances, size_t n);

/* A dead letter of an item. Borrowed until inbox_submit returns. */
struct inbox_letter {
    const char *reason; /* a name from enum dead_reason */
    const char *queue;  /* partition that it came from; NULL: the queue's own name */
    bool rowless;       /* no row of its own: the item's token identifies the letter */
    bool looked_for;    /* rowless, and a repetition: inserts the letter only if none has that token */
    bool holds;         /* the row is held, without a dead letter */
    bool exhausted;     /* no token: the row itself records this, see ROW_EXHAUSTED */
    int attempts;
    struct slice raw_id; /* the message id as bytes, if it is not text */
    struct slice body, content_type, properties_json, headers_json, exchange, routing_key;
    struct slice content_header; /* AMQP's content header as received: class, weight, size, flags, properties.
                                    data NULL: not kept */
    int64_t deaths;
};

/* A message to be stored with its first claim. Borrowed until inbox_submit returns. */
struct inbox_message {
    struct slice body, exchange, routing_key;
    struct slice content_header; /* as in inbox_letter */
};

/* An item of a batch, which ignores the fields that are not marked for its kind. */
struct inbox_item {
    uint64_t ref;            /* returned with the row. Storing claims: ascending in the order of arrival */
    size_t queue;            /* index */
    struct slice message_id; /* empty: none (only for a rowless dead letter) */
    uint8_t token[16];
    uint8_t fingerprint[16];
    struct slice message_type; /* claim, renew; data NULL: none */
    int64_t deaths;            /* claim: message_deaths() */
    bool alone; /* claim: no other message of this process is claimed or forwarded, nor will be before this
                   row is completed */
    int http_status;     /* settle, fail; 0: none */
    struct slice result; /* settle; data NULL: none. A result that is not text is not stored */
    struct slice error;  /* fail, release, dead letter; cut at 1 KiB and made valid text */
    int64_t delay_ms;    /* fail, release: until the next attempt */
    int crashes;         /* fail, release: new count of crashes of the row; -1: unchanged */
    int unproven_step;   /* fail, release: 0 or more: written, with the present time as unproven_at; -1:
                            unchanged */
    int batch_cap;       /* fail, release: largest size of the next request with this message; 0: unchanged */
    bool only_expired;   /* fail: only at the end of a window that was not extended */
    bool give_back;      /* fail: end the token without charging the attempt; answered as released */
    const struct inbox_letter *letter;  /* dead letter */
    const struct inbox_message *stored; /* storing claims; NULL: store nothing */
};

struct inbox_row {
    uint64_t ref;
    size_t queue;
    enum inbox_op op; /* INBOX_CLAIM for all kinds of claims */
    bool namesake;    /* held by another process that runs under this instance's name */
    struct row row;   /* texts are valid until the next call */
};

/* Additions to the answers in row.h:
 *
 *   claim   due        taken over once already, and the next claim would do so again: only a claim that is `alone` may.
 *                      The row is untouched.
 *           exhausted  failed with max_attempts made, or its owner ended without an answer and takeovers is
 *                      max_attempts + 2 already. (An owner's end adds one to takeovers up to 2, and then only where
 *                      the claim was alone.)
 *   look    due        a claim would answer `claimed`, `exhausted` or `due`
 *           held       with the exact time from which on a claim would take the row over */

/* May a batch of this kind be submitted now? */
bool inbox_is_free(const struct inbox *i, enum inbox_op op);

/* Submits a batch. Items need not be sorted; the pairs of queue and message id must be unique (except rowless
 * letters). Everything is copied or encoded before the call returns. n: 1 to 1,024; the adapter itself splits a
 * DEAD_LETTER batch by bytes. -1: the connection is lost (f); even then inbox_next answers the items, with
 * ROW_UNKNOWN. */
int inbox_submit(struct inbox *i, enum inbox_op op, const struct inbox_item *items, size_t n,
                 struct fault *f);

/* Reads available answers and returns one row. 1: *row. 0: none now. -1: the connection is lost and every row was
 * answered; f says why, and only inbox_free may follow. */
int inbox_next(struct inbox *i, struct inbox_row *row, struct fault *f);

/* Questions: each is sent in the pipeline unless it is in flight already, and answered once. */

/* Figures for the stats lines. */
struct inbox_figures {
    int64_t oldest_snapshot_ms;  /* -1: unknown, since this role may not see other roles' sessions */
    int64_t dead_letter_bytes;   /* of all consumers of the database */
    const int64_t *dead_letters; /* a number per queue; valid until they are asked for again */
};
void inbox_ask_figures(struct inbox *i);
bool inbox_figures(struct inbox *i, struct inbox_figures *ret);

/* The session that holds the lock of a row, for the log. The texts are cut. pid 0: no session, and state names the
 * lock's owner; if that is empty too, the lock is gone. An empty state with a pid: this role may not see the
 * session's state. */
struct inbox_lock_holder {
    int64_t pid, age_ms; /* age of its transaction */
    char application[64], state[64];
    char gid[201]; /* of a prepared transaction; else empty */
};
void inbox_ask_lock_holder(struct inbox *i, size_t queue, struct slice message_id);
bool inbox_lock_holder(struct inbox *i, struct inbox_lock_holder *ret);

/* Asks whether rows and letters can be written: sidecar_try writes them and rolls back. */
void inbox_ask_try(struct inbox *i);

/* 1: they can; 0: no answer yet, or not asked; -1: they cannot: f, with the SQLSTATE as its code, or no code. */
int inbox_tried(struct inbox *i, struct fault *f);

/* Housekeeping: one bounded call of sidecar_keep_house, which documents its work and how sidecars share it. */
struct inbox_housekeep {
    size_t queue;
    int64_t retention_ms, late_ms;
    int64_t from_page;  /* next_page of the previous call; -1: none */
    int64_t budget_us;  /* the call ends as soon as this time has passed */
    int64_t compact_ms; /* time after which completed rows become history entries; 0: never */
};
struct inbox_housekept {
    int64_t n_purged, n_swept, n_orphans;
    int64_t n_moved;      /* completed rows that became history entries */
    int64_t n_unfinished; /* failed and waiting rows, orphans included */
    int64_t ahead_ms;     /* not 0: nothing was done, because the database's clock is that far ahead of this
                             machine's (below 0: behind) */
    int64_t next_page;    /* 0: the walk has ended */
    int64_t n_pages;      /* of the whole walk */
    int64_t took_us;
    bool history_is_due; /* call inbox_ask_expire_history */
    int64_t away_ms;   /* above 0: another sidecar keeps house; ask again after that time. next_page is -1 */
    bool is_forgotten; /* the record of the consumer was removed: call inbox_unregister */
};
void inbox_ask_housekeep(struct inbox *i, const struct inbox_housekeep *h);

/* 1: *ret, once; 0: no answer yet, or not asked; -1: the statement failed: f. */
int inbox_housekept(struct inbox *i, struct inbox_housekept *ret, struct fault *f);

/* The expiry of history entries of all consumers: one bounded call of sidecar_expire_history. */
struct inbox_expire_history {
    size_t queue;
    int64_t retention_ms;
    int64_t from_page; /* next_page of the previous call; -1: none */
    int64_t budget_us;
};
struct inbox_history_expired {
    int64_t n_expired;
    int64_t next_page; /* 0: the walk has ended; -1: another sidecar does it, or nothing is due */
    int64_t n_pages, took_us;
};
void inbox_ask_expire_history(struct inbox *i, const struct inbox_expire_history *e);

/* 1: *ret, once; 0: no answer yet, or not asked; -1: the statement failed: f. */
int inbox_history_expired(struct inbox *i, struct inbox_history_expired *ret, struct fault *f);

/* Partitions of stored messages, for the retentions of all queues: one call of sidecar_make_messages, which creates
 * the partitions of the coming days. */
struct inbox_made_messages {
    bool due; /* a partition is past its retention, or takes long to be made: call inbox_ask_keep_messages */
    char hindered[512]; /* why a partition cannot be made or dropped, and the remedy; empty: none */
};
void inbox_ask_make_messages(struct inbox *i);

/* 1: *ret, once; 0: no answer yet, or not asked; -1: the statement failed: f. */
int inbox_made_messages(struct inbox *i, struct inbox_made_messages *ret, struct fault *f);

/* A call of sidecar_keep_messages, which drops partitions past their retention. It may take a minute,
 * during which everything else on this connection waits. */
struct inbox_kept_messages {
    char dropped[32]; /* the dropped partition; empty: none */
    bool more;        /* another one may be dropped: ask again soon */
    char stuck[32];   /* partition that could not be dropped because another session holds its lock; empty:
                         none */
};
void inbox_ask_keep_messages(struct inbox *i);

/* 1: *ret, once; 0: no answer yet, or not asked; -1: the statement failed: f. */
int inbox_kept_messages(struct inbox *i, struct inbox_kept_messages *ret, struct fault *f);

/* Presence and operator commands. One call writes this instance's state and reads three things: the number of
 * other instances that may consume its queues, whether claim owners still exist, and the operator commands. */
struct inbox_shown {
    const char *version, *host;
    struct slice queues_json;  /* array with one object per queue of the process, with at least "consumer";
                                  "may_consume": true marks an instance that could take its messages */
    const char *const *owners; /* instances whose claims delay messages here */
    size_t n_owners;
    bool count; /* count the other instances: reads the rows of all instances */
};
void inbox_ask_presence(struct inbox *i, const struct inbox_shown *shown);

/* A claim owner that has a presence row. The counter of an ended instance does not change. */
struct inbox_owner_seen {
    const char *instance;
    int64_t counter;
};

/* A one-time operator command. Each replica remembers the number that it has carried out. 0: none was given. */
struct inbox_once {
    int64_t number;
    const char *by;
    int64_t ago_ms; /* age of the command, if that matters */
};

/* Operator commands for a queue. A queue that never had a command has no entry. Texts may be empty, never NULL. */
struct inbox_control {
    size_t queue;
    bool paused;
    const char *reason, *by;
    int64_t since_ms;            /* Unix time */
    const struct slice *give_up; /* message ids */
    size_t n_give_up;
    const char *give_up_by;
    struct inbox_once retry, held; /* retry: look at waiting messages again; held: give up held messages */
};

/* Another instance that is subscribed to an ordered queue. */
struct inbox_peer {
    size_t entry; /* of the consumer */
    const char *instance, *queue;
    int64_t subscription, received; /* numbers of its subscription, and of all its deliveries */
    bool may_consume, is_active;    /* able to process a message now; the one that the queue delivers to */
};

/* An ordered queue that is stopped near its delivery limit, or that an operator lets continue. */
struct inbox_stop {
    size_t entry; /* of the consumer */
    const char *queue, *why;
    int64_t count;    /* deliveries of the message that stopped it; 0: not stopped */
    int64_t accepted; /* deliveries up to which it continues; 0: it is stopped */
    int64_t retry;    /* number of the command that accepted them */
};

struct inbox_presence {
    const struct inbox_peer *peers;
    size_t n_peers;
    const struct inbox_stop *stops;
    size_t n_stops;
    const int *n_others; /* per queue: other instances that may consume it; NULL: not asked for */
    int64_t n_counted;   /* approximate number of rows read for n_others */
    const struct inbox_owner_seen *owners;
    size_t n_owners;
    const struct inbox_control *controls;
    size_t n_controls;
    bool namesake; /* another process writes presence under this instance's name */
};

/* 1: *ret, once, valid until presence is asked for again or the inbox is freed; 0: no answer yet, or not
 * asked; -1: the statement failed: f. */
int inbox_presence(struct inbox *i, struct inbox_presence *ret, struct fault *f);

/* Time for which the oldest call in flight has been waiting; 0: none is in flight. */
int64_t inbox_waiting_ms(const struct inbox *i);

/* Is the connection lost, so that inbox_next is about to report it? True also when a send has found the loss and the
 * socket stays silent. */
bool inbox_is_lost(const struct inbox *i);

/* Has `database.prepared: auto` fallen back to unprepared statements, because a pooler lost ours? Once, for the log. */
bool inbox_gave_up_prepared(const struct inbox *i);

/* Code of a question's fault, in place of an SQLSTATE, when a pooler has lost its prepared statement: the question
 * did not run, and must be asked again. */
#define INBOX_CODE_UNPREPARED "DRIFT"

/* Has a large dead letter made libpq's buffers grow? They never shrink: reconnect in a quiet moment to free the
 * memory. */
bool inbox_is_swollen(const struct inbox *i);
