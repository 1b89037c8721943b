#pragma once

#include "core/decide.h"
#include "core/notes.h"

/* What queue_row does with an answer of the database. Private to the core.
 *
 * row_ends.c: what is the same for all operations. */

/* The same again: at once after a lost connection (there is none to send it on), else with a growing wait. */
void row_repeat(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);

/* The statement was refused: a line for the log. */
void row_refused(struct queue *q, int64_t now_ms, const struct delivery *d, const struct row *r);

/* The token is not the row's any more, or the row is gone: a new claim decides. */
void row_again(struct queue *q, int64_t now_ms, struct delivery *d);

/* Somebody has it locked: asked again, ever more rarely. */
void row_locked(struct queue *q, int64_t now_ms, struct delivery *d);

/* It is completed, by whomever: acked, and said what it means here. */
void row_completed(struct queue *q, int64_t now_ms, struct delivery *d);

/* Answered 2xx before its commit (completed), or without one: said at most once a minute, since it is a
 * matter of how the application is built. */
void row_answered_early(struct queue *q, int64_t now_ms, const struct delivery *d, bool completed);

/* claim_rows.c: answers to a claim and to a look. */
void row_of_claim(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
void row_of_look(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
