#pragma once

#include "onceward/core/queue.h"

/* The output of a queue: log lines, which the shell writes (ACTION_TELL), and the error texts for a
 * delivery's row and letter. Private to the core. */

void notes_deinit(struct queue *q);

/* A log line. notes_tell_limited: at most ten of an event per second; the others are counted. NULL:
 * suppressed. d: the delivery, or NULL. */
struct note *notes_tell(struct queue *q, enum event e, const struct delivery *d);
struct note *notes_tell_limited(struct queue *q, int64_t now_ms, enum event e, const struct delivery *d);
void note_clear(struct note *n); /* frees its texts */
void note_text(struct note *n, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets the last error of a delivery: `error` without the application's own text, `said` with it (NULL: the same).
 * Both are copied. `error` NULL clears. */
void error_text_set(struct delivery *d, const char *error, const char *said);

/* Sets "why; last: …", with the last error as logged, or that of the row: `error` without the application's own text.
 * why may be empty. */
void error_text_set_last(struct delivery *d, const char *why, struct slice last);

/* Appends the three most frequent errors of the messages that wait for their next attempt, in that order. */
void error_text_commonest(struct queue *q, struct texts *ret);
