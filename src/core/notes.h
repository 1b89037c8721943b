#pragma once

#include "onceward/core/queue.h"

/* What a queue has to say: lines for the log, which the shell writes (ACTION_TELL), and the words that a
 * delivery's row and letter get. Private to the core. */

void notes_deinit(struct queue *q);

/* A line for the log. notes_tell_limited: at most ten of an event in a second, the others are counted. NULL:
 * not said. d: whose it is, or NULL. */
struct note *notes_tell(struct queue *q, enum event e, const struct delivery *d);
struct note *notes_tell_limited(struct queue *q, int64_t now_ms, enum event e, const struct delivery *d);
void note_clear(struct note *n); /* what it owns */
void note_text(struct note *n, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What went wrong with it last: `error` without a word of the application, `said` with what it wrote (NULL:
 * the same). Both are copied. NULL clears. */
void words_say(struct delivery *d, const char *error, const char *said);

/* "why; last: …", with the last error as it was told, or as the row has it: `error` without the words of the
 * application in it. why may be empty. */
void words_say_last(struct delivery *d, const char *why, struct slice last);

/* What most of those that wait for their next attempt were told, three at most; the first have the most.
 * Appends to ret. */
void words_commonest(struct queue *q, struct texts *ret);
