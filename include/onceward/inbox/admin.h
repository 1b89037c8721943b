#pragma once

#include "onceward/base/slice.h"
#include "onceward/config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct fault;
struct buf;

/* What the commands ask of the database. Blocking, bounded by connect_timeout and statement_timeout. */

struct admin;

/* Is that a connection string that libpq reads? Connects to nothing. -1: f says what is wrong with it,
 * without a piece of the password. 1: it is fine, but goes to another machine and says nothing of sslmode.
 * Fits config_database_check. */
int admin_check_url(const char *url, struct fault *f);

/* What reads only is content with a standby, and with transactions that are read-only by default; of several
 * hosts it prefers one that can be written. */
enum admin_use { ADMIN_WRITES, ADMIN_READS };

/* Connects. Each transaction pins READ COMMITTED and its own timeouts, so that a pooler may stand in between.
 */
int admin_open(const struct config_database *c, enum admin_use use, struct admin **ret, struct fault *f);
void admin_close(struct admin *a);

/* "host:port/database", for messages. */
const char *admin_where(const struct admin *a);

/* This program's version of the schema: the number of its newest migration. */
int admin_schema_newest(void);

/* Does the schema suit this program? -1: f says what to do. */
int admin_check_schema(struct admin *a, struct fault *f);

/* Brings the schema up to date: each numbered file of sql/ once, in one transaction under an advisory
 * transaction lock, then the functions (each replaced), the roles, the grants. *ret_from and *ret_to are
 * versions (0: there was none). What the role may not do (CREATE ROLE) is printed to `advice` as the
 * statements an administrator must run. Safe to run twice, at once, and while a sidecar runs. */
int admin_migrate(struct admin *a, FILE *advice, int *ret_from, int *ret_to, struct fault *f);

/* A line of `check`. A warning is no failure: it works, and somebody should know. */
enum finding { FINDING_OK, FINDING_WARNING, FINDING_FAILED, FINDING_HINT };

/* For `check --connect`: isolation, schema version, privileges, consumer registration (without making one).
 * vhosts: that of each queue, NULL where it is not known. Each finding is given to tell(ctx, kind,
 * text). -1: the connection broke. */
int admin_check(struct admin *a, const struct config *c, const char *const *vhosts,
                void (*tell)(void *ctx, enum finding kind, const char *text), void *ctx, struct fault *f);

/* Writes the answer of `status`, as a table for people or as one JSON object. */
int admin_status(struct admin *a, const struct config *c, bool json, FILE *out, struct fault *f);

/* Writes everything that is kept of the message id, of all consumers: row, entry of the history, dead letters. */
int admin_status_id(struct admin *a, const char *id, bool json, FILE *out, struct fault *f);

/* What a queue of a replica does, as that has written it some seconds ago. Texts are never NULL; numbers that
 * are not known are -1. */
struct fleet_queue {
    const char *instance, *version;
    const char *config;      /* the digest of its configuration; empty: the file holds passwords */
    const char *host;        /* the name of its machine, or pod; empty: not known */
    bool is_foreign;         /* no consumer of the configuration that was asked with */
    int64_t number, seen_ms; /* of the instance's life; how long ago it was written */
    const char *queue, *consumer;
    const char *state, *reason, *detail; /* why it is paused; or empty */
    int64_t paused_for_ms, in_flight, accepted, limit, held, parked, depth, dead;
    double received_per_s, completed_per_s, failed_per_s;
    double forward_ms_p50, forward_ms_p99, end_to_end_ms_p50, end_to_end_ms_p99;
};

/* What operators want of a consumer that holds on. */
struct fleet_lever {
    const char *consumer;
    bool paused;
    const char *reason, *by; /* of the pause */
    int64_t since_ms;        /* ago */
    int64_t n_give_up;       /* messages that are to be given up */
    const char *give_up_by;
};

/* The outbox. Texts are never NULL. */
struct fleet_outbox {
    bool is_used; /* a relay has been there, or something waits for one */
    int64_t waiting, lag_ms, letters;
    int64_t turn_waits_ms; /* for how long tables whose turn is over could not be emptied; 0: they were */
    bool exact;            /* else waiting is at most that */
    const char *holder;    /* of the lease; empty: nobody */
    const char *vhost;     /* empty: it was never relayed */
};

struct fleet {
    struct fleet_queue
        *queues; /* by queue, then instance; a replica without a queue has one that is all empty */
    size_t n_queues, n_replicas;
    struct fleet_lever *levers;
    size_t n_levers;
    struct fleet_outbox outbox;
    void *results; /* what the texts point into */
};

/* Who has called within fifteen seconds, and the levers. Freed by fleet_deinit. */
int admin_fleet(struct admin *a, const struct config *c, struct fleet *ret, struct fault *f);
void fleet_deinit(struct fleet *f);

/* "payments was paused 4 min ago by ann: deploy; 3 messages to be given up" */
void fleet_add_lever(struct buf *out, const struct fleet_lever *l);

/* "outbox to /: 12 waiting, the oldest for 3 s; relayed by pod-1/7; 2 dead letters" */
void fleet_add_outbox(struct buf *out, const struct fleet_outbox *x);

/* Levers of operators, see sql/functions/lever_*.sql: each replica reads them within five seconds. by: who
 * says so; consumer, by and ids are text of the database. */

/* 1: the consumer is recorded, for this queue (NULL: for any). 0: no sidecar has used it yet. *ret_n_replicas: how many
 * run with it now. */
int admin_lever_find(struct admin *a, const char *consumer, const char *queue, int *ret_n_replicas,
                     struct fault *f);

/* reason: may be NULL. *ret_changed: it was not so before. */
int admin_lever_pause(struct admin *a, const char *consumer, bool paused, const char *reason, const char *by,
                      bool *ret_changed, struct fault *f);

/* n 0: all. *ret_n: rows that were not due, and are now. */
int admin_lever_retry(struct admin *a, const char *consumer, char *const *ids, size_t n, const char *by,
                      int64_t *ret_n, struct fault *f);

/* tell: each id, sorted, and the function's word for it. */
int admin_lever_give_up(struct admin *a, const char *consumer, char *const *ids, size_t n, const char *by,
                        void (*tell)(void *ctx, const char *id, const char *answer), void *ctx,
                        struct fault *f);
int admin_lever_give_up_held(struct admin *a, const char *consumer, const char *by, struct fault *f);

/* Removes what is kept of a consumer, a slice a call: to be called again while it answers FORGET_MORE. IN_USE: the
 * replica `next` runs with it. HELD: n_held rows could not be removed yet. Begins with zeroes. */
enum forget_answer { FORGET_MORE, FORGET_IN_USE, FORGET_HELD, FORGET_DONE };
struct forgotten {
    enum forget_answer answer;
    int64_t n_rows, n_letters, n_held;
    char *next;
};
int admin_forget(struct admin *a, const char *consumer, bool letters, struct forgotten *io, struct fault *f);
void forgotten_deinit(struct forgotten *f);

struct dead_filter {
    const char *consumer, *reason;
    const char *since,
        *older;    /* died since then, before then: RFC 3339 or a duration ("2h" ago). NULL: any */
    int64_t limit; /* 0: none */
    int64_t after; /* only those with a larger id */
    const int64_t *ids;
    size_t n_ids;
    const struct config *of; /* only letters of its consumers; NULL: any */
};

/* The consumer of the outbox's letters; their queue is empty. */
#define DEAD_OUTBOX "onceward-outbox"

struct dead_letter {
    int64_t id;
    char *consumer, *queue, *vhost, *message_id; /* message_id NULL: it is not text or there was none */
    char *raw_id_hex;
    char *trace_id; /* of its header traceparent; NULL: there is none that is well-formed */
    char *reason, *last_error, *content_type, *properties, *headers, *exchange, *routing_key, *died_at,
        *fingerprint_hex;
    int attempts;
    int http_status; /* 0: none */
    int64_t age_ms;  /* since it died, by the database's clock */
    bool rowless;
    char *body;
    size_t body_len;
    char *content_header; /* as AMQP had it, beside the body; NULL: none, or made by an older program */
    size_t content_header_len;
};

/* Walks letters in id order, oldest first, up to the newest that there is at the start. each answers 0 to go
 * on, else the walk ends with that. with_body: else body is NULL, body_len set. A letter is valid during the
 * call only. No transaction is open during the call, so each may use `a` itself; a letter that is gone when
 * its turn comes is left out. */
int admin_dead_each(struct admin *a, const struct dead_filter *filter, bool with_body,
                    int (*each)(void *ctx, const struct dead_letter *letter), void *ctx, struct fault *f);

/* How many letters the filter names (its limit is ignored). */
int admin_dead_count(struct admin *a, const struct dead_filter *filter, int64_t *ret, struct fault *f);

enum redrive_answer {
    REDRIVE_RESET,
    REDRIVE_COMPLETED,
    REDRIVE_OTHER,    /* its row is in work, or was reset before: publish it all the same */
    REDRIVE_MISMATCH, /* that id has a row of another body */
    REDRIVE_HELD,     /* an attempt under the id that it died under is not over */
    REDRIVE_GONE,
    REDRIVE_LOCKED
};

/* First half of a redrive of a letter whose message will be published under `message_id`: resets that id's
 * dead row (committed). Where that row is completed, or the one that it died under, the letter is deleted and
 * REDRIVE_COMPLETED answered. */
int admin_redrive_begin(struct admin *a, const struct dead_letter *l, const char *message_id,
                        enum redrive_answer *ret, struct fault *f);

/* What admin_redrive_begin would answer now; changes nothing. (A row that is locked is not seen as such.) */
int admin_redrive_look(struct admin *a, const struct dead_letter *l, const char *message_id,
                       enum redrive_answer *ret, struct fault *f);

/* Deletes that letter and no other. Second half of a redrive, after the confirm; and discard. 0; 1: it was
 * gone. */
int admin_dead_delete(struct admin *a, int64_t id, struct fault *f);

/* --- rows --- */

/* Texts of the database; NULL: any. */
struct row_filter {
    const char *consumer, *since, *until; /* first seen since then, before then */
    const char *after_consumer,
        *after_id; /* behind this one in the order of the key; empty: from the first on */
};

/* Walks the inbox in the order of consumer and id. each gets a row as a JSON object without its token, and
 * answers 0 to go on, else the walk ends with that. No transaction is open during the call. */
int admin_rows_each(struct admin *a, const struct row_filter *filter,
                    int (*each)(void *ctx, const char *consumer, const char *message_id, const char *json),
                    void *ctx, struct fault *f);

/* --- stored messages --- */

/* A time as the database writes it, with microseconds. */
enum { MESSAGE_TIME_SIZE = 48 };

/* A message's place in the order of the first claims. */
struct message_place {
    char received_at[MESSAGE_TIME_SIZE], seq[24];
};

/* Before all others. */
void message_place_first(struct message_place *p);

struct message_filter {
    const char *consumer;
    const char *type;                                        /* AMQP's property; NULL: any */
    const char *const *ids;                                  /* message ids */
    size_t n_ids;                                            /* 0: any */
    char since[MESSAGE_TIME_SIZE], until[MESSAGE_TIME_SIZE]; /* arrived since then, before then; empty: any */
    char horizon[MESSAGE_TIME_SIZE];                         /* of admin_messages_horizon */
};

struct stored_message {
    const char *consumer, *message_id, *message_type, *exchange, *routing_key; /* message_type may be NULL */
    struct message_place place;
    struct slice content_header, body;
};

struct message_count {
    int64_t n;
    char first[MESSAGE_TIME_SIZE], last[MESSAGE_TIME_SIZE]; /* when they arrived; empty: none did */
};

/* RFC 3339, or a duration, which is meant as so long before `from` (a time of the database; NULL: now): as a
 * time of the database, which is RFC 3339 with microseconds in UTC, so that such times sort as text. */
int admin_time(struct admin *a, const char *text, const char *from, char ret[MESSAGE_TIME_SIZE],
               struct fault *f);

/* Now, when everything that arrived before now is committed: waits for that, a minute at most. */
int admin_messages_horizon(struct admin *a, char ret[MESSAGE_TIME_SIZE], struct fault *f);

/* The same for rows, letters and messages. On a standby some minutes ago. */
int admin_horizon(struct admin *a, char ret[MESSAGE_TIME_SIZE], struct fault *f);

/* Walks the messages behind a place, in the order of their first claims. each answers 0 to go on, else the
 * walk ends with that. A message is valid during the call only. No transaction is open during the call, so
 * each may use `a` itself. About a MiB is in memory at a time, or one message. */
int admin_messages_each(struct admin *a, const struct message_filter *filter,
                        const struct message_place *from,
                        int (*each)(void *ctx, const struct stored_message *message), void *ctx,
                        struct fault *f);
int admin_messages_count(struct admin *a, const struct message_filter *filter,
                         const struct message_place *from, struct message_count *ret, struct fault *f);

/* The consumers that there are, by name, and the queue of each. each answers 0 to go on. */
int admin_consumers(struct admin *a, int (*each)(void *ctx, const char *consumer, const char *queue),
                    void *ctx, struct fault *f);

/* How far a replay has come. */
struct replay_position {
    struct message_place place;
    int64_t n; /* messages that it has published */
    char began_at[MESSAGE_TIME_SIZE];
};

/* The position of that name, which is made where there is none. -1 also where the name belongs to a replay of
 * something else. */
int admin_replay_begin(struct admin *a, const char *name, const char *what, struct replay_position *ret,
                       struct fault *f);

/* The same without making or judging anything. */
int admin_replay_look(struct admin *a, const char *name, struct replay_position *ret, struct fault *f);

/* Moves it, n messages further. -1 also where somebody else has moved it. */
int admin_replay_move(struct admin *a, const char *name, struct replay_position *position,
                      const struct message_place *to, int64_t n, struct fault *f);

/* Forgets it. */
int admin_replay_end(struct admin *a, const char *name, struct fault *f);
