#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fault;
struct inbox;

/* The outbox's questions, on the inbox's connection (inbox.h): each is sent in the pipeline unless it is in flight
 * already, and answered once. sql/README.md documents the functions. Results: 1: *ret, valid until the next call of
 * the same function or inbox_free; 0: no answer yet, or not asked; -1: the statement failed: f. */

/* Answers of the functions. */
enum outbox_word {
    OUTBOX_WORD_OK,
    OUTBOX_WORD_REFUSED,
    OUTBOX_WORD_BUSY,
    OUTBOX_WORD_HELD,
    OUTBOX_WORD_OTHER,
    OUTBOX_WORD_FREE,
    OUTBOX_WORD_NONE,
    OUTBOX_WORD_WRITTEN,
    OUTBOX_WORD_STALE,
    OUTBOX_WORD_LOST,
    OUTBOX_WORD_TURNED,
    OUTBOX_WORD_EMPTIED,
    OUTBOX_WORD_WAITS,
    OUTBOX_WORD_RESTS,
    OUTBOX_WORD_DONE,
    OUTBOX_WORD_MORE,
    OUTBOX_WORD_LOADING,
    OUTBOX_WORD_DEAD_LETTERED,
    OUTBOX_WORD_GONE,
    N_OUTBOX_WORDS /* unknown, from a newer schema */
};

/* Broker and vhost that the outbox belongs to. */
struct inbox_outbox_owner {
    enum outbox_word word; /* ok, refused, busy */
    char broker[256], vhost[256];
};
void inbox_ask_outbox_register(struct inbox *i, const char *broker, const char *vhost);
int inbox_outbox_registered(struct inbox *i, struct inbox_outbox_owner *ret, struct fault *f);

/* lease 0: none is held. want false: the lease is to be given up. */
struct inbox_outbox_lease {
    enum outbox_word word; /* held, other, free, busy, none */
    int64_t lease, left_ms;
    bool restored, is_paused;
    char holder[300], paused[256]; /* paused: the operator and the reason */
};
void inbox_ask_outbox_lease(struct inbox *i, int64_t lease, int64_t for_ms, bool want);
int inbox_outbox_leased(struct inbox *i, struct inbox_outbox_lease *ret, struct fault *f);

/* Has a transaction ended since the batch was read? *ret false: no, so there is nothing to read. This costs the
 * database a fiftieth of an empty poll. */
void inbox_ask_outbox_look(struct inbox *i, const char *batch);
int inbox_outbox_looked(struct inbox *i, bool *ret, struct fault *f);

/* batch NULL: from the position; after -1: the next batch. */
void inbox_ask_outbox_read(struct inbox *i, const char *batch, int64_t after, int n, size_t n_bytes,
                           size_t max_message);

/* Rows that were read: taken, read one by one, then closed. */
struct inbox_outbox_rows;
struct inbox_outbox_row {
    int64_t seq, age_ms, body_len;
    struct slice exchange, routing_key, message_id, type, headers, properties, body; /* data NULL: none */
};
int inbox_outbox_read(struct inbox *i, struct inbox_outbox_rows **ret, struct fault *f);

/* Parked rows of an exchange, requested and answered in the same way; `seq` is their number among these. */
void inbox_ask_outbox_parked_read(struct inbox *i, struct slice exchange, int64_t after, int n,
                                  size_t n_bytes, size_t max_message);
int inbox_outbox_parked_read(struct inbox *i, struct inbox_outbox_rows **ret, struct fault *f);

/* Exchanges that have parked rows; inbox_outbox_close follows. */
void inbox_ask_outbox_parked(struct inbox *i);
int inbox_outbox_parked(struct inbox *i, struct inbox_outbox_rows **ret, size_t *ret_n, struct fault *f);
struct slice inbox_outbox_parked_exchange(const struct inbox_outbox_rows *r, size_t at);

/* Removes confirmed parked rows, by their numbers. */
enum { INBOX_OUTBOX_UNPARK_MAX = 256 };
void inbox_ask_outbox_unpark(struct inbox *i, int64_t lease, const int64_t *numbers, size_t n);
int inbox_outbox_unparked(struct inbox *i, enum outbox_word *ret, struct fault *f);

/* False: there is no position. */
bool inbox_outbox_batch(const struct inbox_outbox_rows *r, struct slice *ret_batch, bool *ret_over);
size_t inbox_outbox_n(const struct inbox_outbox_rows *r);
void inbox_outbox_row(const struct inbox_outbox_rows *r, size_t at, struct inbox_outbox_row *ret);
void inbox_outbox_close(struct inbox_outbox_rows *r);

/* seq -1: the whole batch. */
void inbox_ask_outbox_write(struct inbox *i, int64_t lease, const char *batch, int64_t seq);
int inbox_outbox_written(struct inbox *i, enum outbox_word *ret, struct fault *f);

void inbox_ask_outbox_turn(struct inbox *i, int64_t lease);
int inbox_outbox_turned(struct inbox *i, enum outbox_word *ret, struct fault *f);

void inbox_ask_outbox_restore(struct inbox *i, int64_t lease);
int inbox_outbox_restored(struct inbox *i, enum outbox_word *ret, struct fault *f);

struct inbox_outbox_letter {
    int64_t seq; /* for a parked row its number, negative */
    struct slice message_id;
    const char *reason, *error;
};
struct inbox_outbox_dead_letter {
    enum outbox_word word; /* dead-lettered, gone, busy, lost */
    int64_t letter;
};
enum { INBOX_OUTBOX_LETTERS = 64 };
/* bytes: total size of the bodies, which the database copies. */
void inbox_ask_outbox_dead_letters(struct inbox *i, int64_t lease, const char *vhost,
                                   const struct inbox_outbox_letter *letters, size_t n, size_t bytes);

/* ret has room for INBOX_OUTBOX_LETTERS entries, in the order of the request. */
int inbox_outbox_dead_lettered(struct inbox *i, struct inbox_outbox_dead_letter *ret, size_t *ret_n,
                               struct fault *f);

struct inbox_outbox_gauge {
    int64_t waiting, lag_ms, letters, bytes;
    bool exact;
    int64_t turn_waits_ms; /* -1: no turn is overdue */
    char holder[300];      /* empty: no relay has the lease */
};
void inbox_ask_outbox_gauge(struct inbox *i);
int inbox_outbox_gauge(struct inbox *i, struct inbox_outbox_gauge *ret, struct fault *f);
