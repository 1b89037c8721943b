#pragma once

#include "core/life.h"
#include "core/notes.h"

/* Rules for an answer of the database, by the operation that was sent. Private to the core. */

/* Repeats the operation: at once after a lost connection (the shell waits for the next one anyway), else with a
 * growing wait. */
struct step row_repeat(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);

/* The token or the row is gone: a new claim decides. */
struct step row_again(int64_t now_ms, struct delivery *d);

/* The row is locked: the question is repeated at growing intervals. */
struct step row_locked(int64_t now_ms, struct delivery *d);

/* Acks a delivery whose row is completed, and counts as the operation requires. */
struct step row_completed(struct queue *q, int64_t now_ms, struct delivery *d);

/* A held row waits for an operator, or dies if an operator has given it up. */
struct step row_on_hold(struct queue *q, int64_t now_ms, struct delivery *d);

/* Logs a statement that the database refused. */
void row_refused(struct queue *q, int64_t now_ms, const struct delivery *d, const struct row *r);

struct step row_of_check(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_complete(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_fail(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_release(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_dead_letter(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);

/* claim_rows.c */
struct step row_of_claim(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_look(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
