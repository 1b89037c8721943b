#pragma once

#include "onceward/base/slice.h"
#include "onceward/config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct fault;
struct buf;

/* Database access of the commands. Blocking, bounded by connect_timeout and statement_timeout. */

struct admin;

/* Is this a connection string that libpq accepts? Does not connect. -1: f says why not, without any part of the
 * password. 1: valid, but it leads to another machine and does not set sslmode. Fits config_database_check. */
int admin_check_url(const char *url, struct fault *f);

/* ADMIN_READS accepts a standby and transactions that are read-only by default; of several hosts it prefers a
 * writable one. */
enum admin_use { ADMIN_WRITES, ADMIN_READS };

/* Connects. Each transaction sets READ COMMITTED and its own timeouts, since a pooler may stand in between. */
int admin_open(const struct config_database *c, enum admin_use use, struct admin **ret, struct fault *f);
void admin_close(struct admin *a);

/* "host:port/database", for messages. */
const char *admin_where(const struct admin *a);

/* This program's version of the schema: the number of its newest migration. */
int admin_schema_newest(void);

/* Does the schema suit this program? -1: f gives the remedy. */
int admin_check_schema(struct admin *a, struct fault *f);

/* Brings the schema up to date: each numbered file of sql/ once, in one transaction under an advisory
 * transaction lock, then the functions (each replaced), the roles, the grants. *ret_from and *ret_to are
 * versions (0: no schema). If the role lacks a right (CREATE ROLE), the statements for an administrator are
 * printed to `advice`. Safe to run twice, concurrently, and while a sidecar runs. */
int admin_migrate(struct admin *a, FILE *advice, int *ret_from, int *ret_to, struct fault *f);

/* A line of `check`. A warning is not a failure: the setting works, but an operator should know about it. */
enum finding { FINDING_OK, FINDING_WARNING, FINDING_FAILED, FINDING_HINT };

/* For `check --connect`: isolation, schema version, privileges, consumer registration (without registering). vhosts:
 * one per queue, then that of the outbox; NULL if unknown. tell(ctx, kind, text) gets each finding. -1: the connection
 * broke. */
int admin_check(struct admin *a, const struct config *c, const char *const *vhosts,
                void (*tell)(void *ctx, enum finding kind, const char *text), void *ctx, struct fault *f);

/* Writes the output of `status`, as a table for people or as one JSON object. */
int admin_status(struct admin *a, const struct config *c, bool json, FILE *out, struct fault *f);

/* Writes everything that the database keeps for the message id, of all consumers: row, history entry, dead letters. */
int admin_status_id(struct admin *a, const char *id, bool json, FILE *out, struct fault *f);

/* State of a replica's queue, as the replica reported it some seconds ago. Texts are never NULL; unknown numbers are
 * -1. */
struct fleet_queue {
    const char *instance, *version;
    const char *config;      /* digest of its configuration; empty: the file holds passwords */
    const char *host;        /* name of its machine or pod; empty: unknown */
    bool is_foreign;         /* the consumer is not in the configuration of this command */
    int64_t number, seen_ms; /* number of this start of the instance; age of the report */
    const char *queue, *consumer;
    const char *state, *reason, *detail; /* why the queue is paused; may be empty */
    const char *limit_reason;            /* why `limit` is low; empty: it is not */
    int64_t paused_for_ms, in_flight, accepted, limit, batch_size, held, parked, depth, dead;
    double received_per_s, completed_per_s, failed_per_s;
    double forward_ms_p50, forward_ms_p99, end_to_end_ms_p50, end_to_end_ms_p99;
};

/* A lasting operator command for a consumer. */
struct fleet_command {
    const char *consumer;
    bool paused;
    const char *reason, *by; /* of the pause */
    int64_t since_ms;        /* age */
    int64_t n_give_up;       /* messages that operators give up */
    const char *give_up_by;
    const char *stopped; /* ordered queues that wait near their delivery limit, with reasons */
};

/* The outbox. Texts are never NULL. */
struct fleet_outbox {
    bool is_used; /* a relay has run, or messages wait for one */
    int64_t waiting, lag_ms, letters;
    int64_t turn_waits_ms; /* time for which tables whose turn has ended could not be emptied; 0: none */
    bool exact;            /* false: `waiting` is an upper bound */
    const char *holder;    /* owner of the lease; empty: no relay has it */
    const char *host;      /* the owner's machine or pod; empty: unknown */
    const char *vhost;     /* empty: never relayed */
};

struct fleet {
    struct fleet_queue *
        queues; /* sorted by queue, then instance; a replica without a queue has one entry with empty fields */
    size_t n_queues, n_replicas;
    struct fleet_command *commands;
    size_t n_commands;
    struct fleet_outbox outbox;
    void *results; /* memory of the texts */
};

/* Reads the replicas that reported within fifteen seconds, and the operator commands. fleet_deinit frees them. */
int admin_fleet(struct admin *a, const struct config *c, struct fleet *ret, struct fault *f);
void fleet_deinit(struct fleet *f);

/* Adds "payments was paused 4 min ago by ann: deploy; 3 messages to be given up". */
void fleet_add_command(struct buf *out, const struct fleet_command *l);

/* Adds "outbox to /: 12 waiting, the oldest for 3 s; relayed by pod-1/7; 2 dead letters". */
void fleet_add_outbox(struct buf *out, const struct fleet_outbox *x);

/* Operator commands, see sql/functions/lever_*.sql: each replica reads them within five seconds. by: the
 * operator; consumer, by and ids must be valid text for the database. */

/* 1: the database has a record, a row or a dead letter of the consumer. 0: it has none of these. */
int admin_knows_consumer(struct admin *a, const char *consumer, struct fault *f);

/* 1: the consumer is recorded, for this queue (NULL: for any). 0: no sidecar has used it yet. *ret_n_replicas: number
 * of replicas that run with it now. */
int admin_find_consumer(struct admin *a, const char *consumer, const char *queue, int *ret_n_replicas,
                        struct fault *f);

/* reason may be NULL. *ret_changed: the state has changed. */
int admin_pause(struct admin *a, const char *consumer, bool paused, const char *reason, const char *by,
                bool *ret_changed, struct fault *f);

/* n 0: all. *ret_n: number of rows that became due. */
int admin_retry(struct admin *a, const char *consumer, const char *const *ids, size_t n, const char *by,
                int64_t *ret_n, struct fault *f);

/* tell gets each id, sorted, and the function's answer for it. */
int admin_give_up(struct admin *a, const char *consumer, const char *const *ids, size_t n, const char *by,
                  void (*tell)(void *ctx, const char *id, const char *answer), void *ctx, struct fault *f);
int admin_give_up_held(struct admin *a, const char *consumer, const char *by, struct fault *f);

/* Removes a slice of a consumer's data, to be called again after FORGET_MORE. IN_USE: the replica `next` runs with
 * the consumer. HELD: n_held rows could not be removed yet. Starts zeroed. */
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
    int64_t after; /* only dead letters with a larger id */
    const int64_t *ids;
    size_t n_ids;
    const struct config *of; /* only dead letters of its consumers; NULL: any */
};

/* Consumer of the outbox's dead letters, whose queue is empty. */
#define DEAD_OUTBOX "onceward-outbox"

struct dead_letter {
    int64_t id;
    char *consumer, *queue, *vhost, *message_id; /* message_id NULL: absent, or not text */
    char *raw_id_hex;
    char *trace_id; /* from the header traceparent; NULL: absent or malformed */
    char *reason, *last_error, *content_type, *properties, *headers, *exchange, *routing_key, *died_at,
        *fingerprint_hex;
    int attempts;
    int http_status; /* 0: none */
    int64_t age_ms;  /* since its death, by the database's clock */
    bool rowless;
    char *body;
    size_t body_len;
    char *
        content_header; /* in AMQP's encoding, beside the body; NULL: absent, or written by an older program */
    size_t content_header_len;
};

/* Walks dead letters in id order, oldest first, up to the newest at the start. each returns 0 to continue; any other
 * value ends the walk and becomes its result. with_body false: body is NULL, body_len is set. A letter is valid only
 * during the call. No transaction is open during the call, so each may use `a` itself. Letters deleted in the
 * meantime are skipped. */
int admin_dead_each(struct admin *a, const struct dead_filter *filter, bool with_body,
                    int (*each)(void *ctx, const struct dead_letter *letter), void *ctx, struct fault *f);

/* Counts the dead letters that match the filter, ignoring its limit. */
int admin_dead_count(struct admin *a, const struct dead_filter *filter, int64_t *ret, struct fault *f);

enum redrive_answer {
    REDRIVE_RESET,
    REDRIVE_COMPLETED,
    REDRIVE_OTHER,    /* the row is claimed, or was reset before: publish the message nevertheless */
    REDRIVE_MISMATCH, /* the row of that id has another body */
    REDRIVE_HELD,     /* an attempt under the dead letter's own id is not over */
    REDRIVE_GONE,
    REDRIVE_LOCKED
};

/* First half of a redrive: resets the dead row of `message_id`, under which the message will be published, and
 * commits. If that row is completed, or the row that the letter died under is, the letter is deleted and the answer
 * is REDRIVE_COMPLETED. */
int admin_redrive_begin(struct admin *a, const struct dead_letter *l, const char *message_id,
                        enum redrive_answer *ret, struct fault *f);

/* Finds the answer that admin_redrive_begin would give now, without a change. Does not detect a locked row. */
int admin_redrive_look(struct admin *a, const struct dead_letter *l, const char *message_id,
                       enum redrive_answer *ret, struct fault *f);

/* Deletes this one dead letter: second half of a redrive, after the confirm, or a discard. 0; 1: the letter was
 * gone. */
int admin_dead_delete(struct admin *a, int64_t id, struct fault *f);

/* --- rows --- */

/* Texts from the database; NULL: any. */
struct row_filter {
    const char *consumer, *since, *until;  /* first seen since then, before then */
    const char *after_consumer, *after_id; /* starts after this key; empty: from the first row */
};

/* Walks the inbox in the order of id and consumer. each gets a row as a JSON object without its token, and returns 0
 * to continue; any other value ends the walk and becomes its result. No transaction is open during the call. */
int admin_rows_each(struct admin *a, const struct row_filter *filter,
                    int (*each)(void *ctx, const char *consumer, const char *message_id, const char *json),
                    void *ctx, struct fault *f);

/* --- stored messages --- */

/* Size of a time in the database's text form, with microseconds. */
enum { MESSAGE_TIME_SIZE = 48 };

/* Position of a message in the order of the first claims. */
struct message_place {
    char received_at[MESSAGE_TIME_SIZE], seq[24];
};

/* The position before all messages. */
void message_place_first(struct message_place *p);

struct message_filter {
    const char *consumer;
    const char *type;                                        /* AMQP's property; NULL: any */
    const char *const *ids;                                  /* message ids */
    size_t n_ids;                                            /* 0: any */
    char since[MESSAGE_TIME_SIZE], until[MESSAGE_TIME_SIZE]; /* arrived since then, before then; empty: any */
    char horizon[MESSAGE_TIME_SIZE];                         /* from admin_messages_horizon */
};

struct stored_message {
    const char *consumer, *message_id, *message_type, *exchange, *routing_key; /* message_type may be NULL */
    struct message_place place;
    struct slice content_header, body;
};

struct message_count {
    int64_t n;
    char first[MESSAGE_TIME_SIZE], last[MESSAGE_TIME_SIZE]; /* arrival times; empty: no message arrived */
};

/* Converts RFC 3339, or a duration before `from` (a time of the database; NULL: now), to a time of the database: RFC
 * 3339 with microseconds in UTC, so that such times sort as text. */
int admin_time(struct admin *a, const char *text, const char *from, char ret[MESSAGE_TIME_SIZE],
               struct fault *f);

/* Time before which completed rows may have been replaced by history entries: the latest one of all consumers, or
 * that of one; empty: none were. */
int admin_compacted_to(struct admin *a, const char *consumer, char ret[MESSAGE_TIME_SIZE], struct fault *f);

/* Returns the present time once every message that arrived before it is committed; waits for that for a minute at
 * most. */
int admin_messages_horizon(struct admin *a, char ret[MESSAGE_TIME_SIZE], struct fault *f);

/* The same for rows, dead letters and messages. On a standby, the result is some minutes old. */
int admin_horizon(struct admin *a, char ret[MESSAGE_TIME_SIZE], struct fault *f);

/* Walks the messages behind a position, in the order of their first claims. each returns 0 to continue; any other
 * value ends the walk and becomes its result. A message is valid only during the call. No transaction is open during
 * the call, so each may use `a` itself. Holds about 1 MiB in memory, or one message. */
int admin_messages_each(struct admin *a, const struct message_filter *filter,
                        const struct message_place *from,
                        int (*each)(void *ctx, const struct stored_message *message), void *ctx,
                        struct fault *f);
int admin_messages_count(struct admin *a, const struct message_filter *filter,
                         const struct message_place *from, struct message_count *ret, struct fault *f);

/* Lists all consumers, sorted by name, with the queue of each. each returns 0 to continue. */
int admin_consumers(struct admin *a, int (*each)(void *ctx, const char *consumer, const char *queue),
                    void *ctx, struct fault *f);

/* The progress of a replay. */
struct replay_position {
    struct message_place place;
    int64_t n; /* messages published so far */
    char began_at[MESSAGE_TIME_SIZE];
};

/* Reads the position of that name, and creates it if needed. -1 also when the name belongs to another replay. */
int admin_replay_begin(struct admin *a, const char *name, const char *what, struct replay_position *ret,
                       struct fault *f);

/* The same without creating or checking a position. */
int admin_replay_look(struct admin *a, const char *name, struct replay_position *ret, struct fault *f);

/* Advances the position by n messages. -1 also when another process has moved it. */
int admin_replay_move(struct admin *a, const char *name, struct replay_position *position,
                      const struct message_place *to, int64_t n, struct fault *f);

/* Deletes the position. */
int admin_replay_end(struct admin *a, const char *name, struct fault *f);
