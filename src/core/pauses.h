#pragma once

#include "onceward/core/queue.h"

/* Begins, continues or ends a pause of a queue, with its reason as text. queue_time logs a pause that has lasted a
 * while. Private to the core. */
void pause_begin(struct queue *q, int64_t now_ms, enum pause_reason r, const char *text);
void pause_end(struct queue *q, int64_t now_ms, enum pause_reason r);
/* Counts a partition whose pause is to be logged. Is it the one that logs it? */
bool pause_is_first(struct queue *q, enum pause_reason r);
void pause_tell_again(struct queue *q, enum pause_reason r);
bool pause_is_on(const struct queue *q, enum pause_reason r);
bool pause_is_any_on(const struct queue *q);

/* Is the queue paused by an operator without a consumer? No message could be renewed near its delivery limit, so
 * messages rest in the queue, and those near the limit stay held. */
bool pause_rests(const struct queue *q);

/* Is this a pause in which only a message can show that the application has recovered? */
bool pause_needs_message(const struct queue *q);
