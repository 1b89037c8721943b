#pragma once

#include "onceward/core/queue.h"

/* Begins, continues or ends a pause of a queue, with a reason in words. queue_time logs it after it has
 * lasted a while. Private to the core. */
void pause_begin(struct queue *q, int64_t now_ms, enum pause_reason r, const char *text);
void pause_end(struct queue *q, int64_t now_ms, enum pause_reason r);
/* Counts a partition whose pause is to be told. Is it the one that logs it? */
bool pause_is_first(struct queue *q, enum pause_reason r);
void pause_tell_again(struct queue *q, enum pause_reason r);
bool pause_is_on(const struct queue *q, enum pause_reason r);
bool pause_is_any_on(const struct queue *q);

/* An operator's pause in which no message could be renewed near its delivery limit: the queue has no consumer, so its
 * messages rest there, and what is near the limit stays held. */
bool pause_rests(const struct queue *q);

/* During a pause: can only a message show that the application has recovered? */
bool pause_needs_message(const struct queue *q);
