#pragma once

#include "core/life.h"
#include "core/notes.h"

/* Rules for an answer of the database, by the operation that was sent. Private to the core. */

/* life.c: the same for all operations. The same again: at once after a lost connection (there is none to send it
 * on), else with a growing wait. */
struct step row_repeat(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);

/* The token is not the row's any more, or the row is gone: a new claim decides. */
struct step row_again(int64_t now_ms, struct delivery *d);

/* The row is locked: asked again, at growing intervals. */
struct step row_locked(int64_t now_ms, struct delivery *d);

/* Completed: acked, and counted as its operation demands. */
struct step row_completed(struct queue *q, int64_t now_ms, struct delivery *d);

/* The statement was refused: a line for the log. */
void row_refused(struct queue *q, int64_t now_ms, const struct delivery *d, const struct row *r);

struct step row_of_check(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_complete(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_fail(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_release(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_dead_letter(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);

/* claim_rows.c */
struct step row_of_claim(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
struct step row_of_look(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
