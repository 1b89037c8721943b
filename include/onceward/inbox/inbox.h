#pragma once

#include "onceward/base/job.h"
#include "onceward/base/slice.h"
#include "onceward/config/config.h"
#include "onceward/core/row.h"

#include <stdbool.h>
#include <stdint.h>

struct fault;

/* The inbox: one database connection of a worker, in pipeline mode. One thread; nothing blocks after the connection was handed over.
 *
 * A batch is one call of one function of the schema, one Sync, one transaction; at most one batch of a kind is out at a time
 * (inbox_is_free), batches of different kinds follow each other in the pipeline. Every item of a batch is answered exactly once by
 * inbox_next, also when the connection breaks (ROW_UNKNOWN) or the statement fails (ROW_RETRY for what passes; a batch that
 * the data of one item spoils is split until that item is alone, ROW_INVALID, and the others are answered as if it had never been there). */

struct inbox;

/* The number of the newest migration that this program knows; see sql/0001_inbox.sql. */
enum { INBOX_SCHEMA_VERSION = 1 };

enum inbox_op { INBOX_CLAIM, INBOX_LOOK, INBOX_SETTLE, INBOX_FAIL, INBOX_RELEASE, INBOX_BURY, N_INBOX_OPS };

/* Connects on a helper thread: libpq non-blocking against the deadline, several hosts allowed, target_session_attrs=read-write unless
 * the URL says otherwise, READ COMMITTED pinned; then reads the schema's version and registers the consumer. The job's result
 * goes to inbox_attempt_take. own: what a holder of this instance's name has claimed may be taken over at once. NULL: f. */
struct job *inbox_connect(const struct config_database *c, const struct config_queue *q, const char *vhost, const char *instance,
                          bool own, struct fault *f);

enum inbox_attempt_result {
    INBOX_CONNECTED = 0,
    INBOX_SCHEMA = 1,  /* too old, missing, or too new for this program: f says what to do */
    INBOX_REFUSED = 2, /* the consumer name belongs to another queue: f names it */
};

/* 0 and *ret_inbox; 1 or 2 with f: connected, but not usable as configured (try again later, slowly); -1: not connected, f. */
int inbox_attempt_take(void *result, struct inbox **ret_inbox, struct fault *f);

void inbox_free(struct inbox *i);

int inbox_fd(const struct inbox *i);

/* Does libpq have bytes that the socket would not take? Then poll for writing too. */
bool inbox_wants_write(const struct inbox *i);

/* A dead letter, beside its item. Borrowed until inbox_submit returns. */
struct inbox_letter {
    const char *reason; /* the name of an enum dead_reason */
    bool rowless;       /* no row of its own: inserted once however often it is redelivered */
    bool redelivered;
    bool exhausted; /* without a token: attempts used up; the row is failed, or processing and expired */
    int attempts;
    struct slice raw_id; /* the message id as bytes, when it is not text */
    struct slice body, content_type, properties_json, headers_json, exchange, routing_key;
    int64_t deaths;
};

struct inbox_item {
    uint64_t ref;            /* comes back in the row */
    struct slice message_id; /* empty: none (bury of a rowless letter only) */
    uint8_t token[16];
    uint8_t fingerprint[16];
    struct slice message_type; /* claim; data NULL: none */
    int64_t deaths;            /* claim: message_deaths() */
    int http_status;           /* settle, fail; 0: none */
    struct slice result;       /* settle; data NULL: none. What is not text is not stored */
    struct slice error;        /* fail, release, bury; cut at 1 KiB, made text */
    int64_t delay_ms;          /* fail, release: until the next attempt */
    bool only_expired;         /* fail: revoke at the end of the window, unless extended */
    bool give_back;            /* fail: the token ends, and the attempt is not charged; answered as released */
    const struct inbox_letter *letter;
};

struct inbox_row {
    uint64_t ref;
    enum inbox_op op;
    enum row_answer answer;
    int attempt;         /* claimed: this attempt's number; exhausted, dead: attempts made */
    int64_t wait_ms;     /* held, not_due, extended, claimed (look: what is left of the window) */
    int64_t age_ms;      /* claimed: since the row was first seen */
    bool taken_over;     /* claimed: from a holder whose token had expired, or an earlier life of this instance */
    struct slice detail; /* held: the holder; not_due, exhausted: the last error; mismatch: fingerprints and times; invalid, retry: the
                            error. Valid until the next call */
    struct slice id;     /* bury: the letter's id, as text */
    char sqlstate[6];
};

/* May a batch of this kind be submitted now? */
bool inbox_is_free(const struct inbox *i, enum inbox_op op);

/* Sends a batch. Items need not be sorted; their message ids must be different (rowless letters apart). Everything is copied or encoded
 * before it returns. n: 1 to 1,024; the adapter splits a BURY batch by bytes on its own. -1: the connection is lost (f); the items are
 * answered by inbox_next as ROW_UNKNOWN all the same. */
int inbox_submit(struct inbox *i, enum inbox_op op, const struct inbox_item *items, size_t n, struct fault *f);

/* Reads what has come and answers one row. 1: *row; 0: none now. -1: the connection is lost and every row was answered; f says why.
 * Only inbox_free may follow. */
int inbox_next(struct inbox *i, struct inbox_row *row, struct fault *f);

/* Figures for the stats line; asked in the pipeline, answered once. */
struct inbox_figures {
    int64_t dead_letters, oldest_snapshot_ms;
};
void inbox_ask_figures(struct inbox *i);
bool inbox_figures(struct inbox *i, struct inbox_figures *ret);

/* Who holds the lock of a row: for the log. pid 0: nobody, any more. The texts are cut. */
struct inbox_holder {
    int64_t pid, age_ms; /* of its transaction */
    char application[64], state[64];
};
void inbox_ask_holder(struct inbox *i, struct slice message_id);
bool inbox_holder(struct inbox *i, struct inbox_holder *ret);

/* Asks, unless it is asked already, whether rows and letters can be written: sidecar_try does, and takes it back. */
void inbox_ask_try(struct inbox *i);

/* 1: they can; 0: no answer yet, or nothing was asked; -1: not: f, its code is the SQLSTATE, or empty. */
int inbox_tried(struct inbox *i, struct fault *f);

/* Housekeeping: one bounded call of sidecar_housekeep, asked in the pipeline. What it does and how it shares the work with other
 * sidecars stands there. */
struct inbox_housekeep {
    int64_t retention_ms, late_ms;
    int64_t from_page; /* next_page of the call before; -1: none */
    int64_t budget_us; /* it ends as soon as so much time has gone */
};
struct inbox_housekept {
    int64_t n_purged, n_swept, n_orphans;
    int64_t next_page; /* 0: the end of the table was reached */
    int64_t took_us;
    int64_t away_ms; /* not 0: another sidecar keeps house; ask again after that. next_page is -1 */
};

/* Asks, unless it is asked already. */
void inbox_ask_housekeep(struct inbox *i, const struct inbox_housekeep *h);

/* 1: *ret, once; 0: no answer yet, or nothing was asked; -1: the statement failed: f. */
int inbox_housekept(struct inbox *i, struct inbox_housekept *ret, struct fault *f);

/* How long the oldest call that is out has been waited for; 0: none is out. */
int64_t inbox_waiting_ms(const struct inbox *i);

/* The unprepared fall-back of database.prepared: auto was taken (a pooler lost our statements). For the log, once. */
bool inbox_gave_up_prepared(const struct inbox *i);

/* Did a large letter make libpq's buffers grow? They never shrink: connect anew in a quiet moment to give the memory back. */
bool inbox_is_swollen(const struct inbox *i);
