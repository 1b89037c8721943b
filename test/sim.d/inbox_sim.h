#pragma once

#include "onceward/core/row.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The inbox in the form of the functions of sql/functions: one row, one statement, one answer. Pure: time is the
 * database's clock, in microseconds. Every function skips a row that an application's open transaction has locked.
 * test/sim.d/differential.c compares this inbox with a real PostgreSQL. */

enum inbox_status {
    INBOX_NONE,
    INBOX_PROCESSING,
    INBOX_COMPLETED,
    INBOX_FAILED,
    INBOX_WAITING,
    INBOX_DEAD,
    INBOX_HELD
};

enum { INBOX_GRACE_US = 2000000 };
#define INBOX_MOST_US INT64_C(604800000000) /* the longest max_window that a configuration may have */

struct inbox_row_sim {
    enum inbox_status status;
    uint8_t token[16];
    int64_t expires_us, max_expires_us, next_us, received_us, alive_us, completed_us;
    int attempt, takeovers, crashes, unproven_step;
    int64_t unproven_us; /* -1: never */
    int batch_cap;       /* 0: none */
    int renewals;
    int64_t renewals_until_us; /* 0: none yet */
    bool unclaimed;            /* created by a renewal */
    bool alone;                /* the newest claim was made for quarantine */
    bool swept;
    int instance; /* of the newest claim */
    int64_t number;
    uint8_t body;       /* represents the fingerprint */
    uint64_t locked_by; /* an application's transaction; 0: none */
    bool only_locked;   /* the transaction has locked the row, and not completed it */
    bool flushed;       /* its insert would survive a crash of the database */
    int n_letters;
    int64_t letter_deaths;
    bool moved; /* completed, and replaced by an entry of the history */
};

/* The caller, and its queue's settings. */
struct inbox_asker {
    int instance;
    int64_t number;
    bool own;      /* earlier starts of this instance have ended */
    unsigned gone; /* a bit for each instance that is known to have ended */
    bool transaction, ordered;
    int64_t window_us, max_window_us;
    int max_attempts, revive;
};

struct inbox_ask {
    uint8_t token[16];
    uint8_t body;
    bool alone, only_expired, give_back, exhausted;
    bool near_limit; /* bury: for a reason other than `attempts` */
    bool holds;      /* bury: the row is held, without a dead letter */
    int64_t delay_us;
    int crashes, unproven_step; /* -1: unchanged */
    int batch_cap;              /* 0: unchanged */
    int64_t deaths;
    bool looked_for; /* bury without a row: may have been written before */
};

struct inbox_reply {
    enum row_answer answer;
    int64_t wait_us, age_us, unproven_us; /* unproven_us -1: none */
    bool taken_over, inserted;
    int attempt, takeovers, crashes, unproven_step, batch_cap;
    uint8_t body; /* the row's */
};

void inbox_sim_claim(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                     const struct inbox_ask *ask, struct inbox_reply *ret);
void inbox_sim_look(const struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                    const struct inbox_ask *ask, struct inbox_reply *ret);
void inbox_sim_renew(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                     const struct inbox_ask *ask, struct inbox_reply *ret);
void inbox_sim_settle(struct inbox_row_sim *r, int64_t now_us, const struct inbox_ask *ask,
                      struct inbox_reply *ret);
void inbox_sim_fail(struct inbox_row_sim *r, int64_t now_us, const struct inbox_ask *ask,
                    struct inbox_reply *ret);
void inbox_sim_release(struct inbox_row_sim *r, int64_t now_us, const struct inbox_ask *ask,
                       struct inbox_reply *ret);
/* Writes the dead letter of a message that has a row. */
void inbox_sim_bury(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                    const struct inbox_ask *ask, struct inbox_reply *ret);

/* A dead letter without a row, identified by its token, or by its content if that is all zeros. */
struct inbox_letter_sim {
    uint8_t token[16];
    uint64_t says; /* represents everything that identifies a copy by its content */
};

struct inbox_letters_sim {
    struct inbox_letter_sim *items; /* Owned */
    size_t n, cap;
};

/* Is it the letter of the call? */
bool inbox_sim_is_letter(const struct inbox_letter_sim *l, const struct inbox_ask *ask, uint64_t says);

/* Returns the letter's index; *ret_inserted: it is new. */
size_t inbox_sim_letter(struct inbox_letters_sim *all, const struct inbox_ask *ask, uint64_t says,
                        bool *ret_inserted);

/* The functions for applications. before: the row of the previous message that the token names; NULL: none. */
enum inbox_said { INBOX_OK, INBOX_OW001, INBOX_OW003, INBOX_WAITS };
enum inbox_said inbox_sim_complete(struct inbox_row_sim *r, const uint8_t token[16],
                                   const struct inbox_row_sim *before, uint64_t tx);
void inbox_sim_commit(struct inbox_row_sim *r, int64_t now_us, uint64_t tx);

/* The same for the tokens of a whole request, at most 64: rows[i] and befores[i] are those of tokens[i]. ret_valid: a
 * bit for each token that is completed, also by complete_valid, which skips the others. */
enum inbox_said inbox_sim_complete_all(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16],
                                       struct inbox_row_sim *const *befores, size_t n, uint64_t tx);
enum inbox_said inbox_sim_complete_valid(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16],
                                         struct inbox_row_sim *const *befores, size_t n, uint64_t tx,
                                         uint64_t *ret_valid);
enum inbox_said inbox_sim_extend_all(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16], size_t n,
                                     int64_t now_us, int64_t for_us);
void inbox_sim_rollback(struct inbox_row_sim *r, uint64_t tx);
enum inbox_said inbox_sim_extend(struct inbox_row_sim *r, int64_t now_us, const uint8_t token[16],
                                 int64_t for_us);

/* Housekeeping: ends a token that expired late_us ago without an answer. True: the row was swept. */
bool inbox_sim_sweep(struct inbox_row_sim *r, int64_t now_us, int64_t late_us);

/* Housekeeping: replaces a completed row by a history entry once it is old enough. True: it was replaced. */
bool inbox_sim_move(struct inbox_row_sim *r);

/* Redrives a row by an operator: it waits, without attempts. True: the row was dead. */
bool inbox_sim_redrive(struct inbox_row_sim *r, int64_t now_us);

/* Retries a held row by an operator: it waits, without attempts. True: the row was held. */
bool inbox_sim_retry(struct inbox_row_sim *r, int64_t now_us);
