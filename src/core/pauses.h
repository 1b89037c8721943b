#pragma once

#include "onceward/core/queue.h"

/* A pause of a queue, with a reason in words, begins, goes on, or ends. The log has it when it has lasted:
 * queue_time. Private to the core. */
void pause_begin(struct queue *q, int64_t now_ms, enum pause_reason r, const char *text);
void pause_end(struct queue *q, int64_t now_ms, enum pause_reason r);
bool pause_is_on(const struct queue *q, enum pause_reason r);

/* In a pause: can only a message tell that the application is well again? */
bool pause_needs_message(const struct queue *q);
