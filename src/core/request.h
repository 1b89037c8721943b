#pragma once

#include "onceward/core/queue.h"

/* Requests to the application and their members: see onceward/core/request.h. Only these functions change which
 * delivery is in flight; life.c and held.c call them. Private to the core.
 *
 *     struct request *r = request_new(q);
 *     request_add(r, d);                     once per member, in the order of the body
 *     life_send(q, now_ms, r);               and ACTION_FORWARD carries r
 *
 * queue_answered ends it: request_end, then the answer for each member (queue_answers.c). */

struct request *request_new(struct queue *q);

/* d becomes the last member, and forgets its former request. */
void request_add(struct request *r, struct delivery *d);

/* All members were added: the request is in flight. */
void request_send(struct queue *q, int64_t now_ms, struct request *r);

/* The request in flight with that ref; NULL: it was abandoned, or never sent. */
struct request *request_find(const struct queue *q, uint64_t ref);

/* An answer came: the request is no longer in flight. Its members stay until request_leave. */
void request_end(struct queue *q, struct request *r);

/* The window is over: an answer may still come, but the members' tokens are being revoked. */
void request_is_overdue(struct queue *q, struct request *r);

/* The token of this member was extended. Once no member is being revoked, the request is in flight as before. */
void request_is_extended(struct queue *q, struct delivery *d);

/* d no longer awaits an answer. A request in flight without members is abandoned. */
void request_leave(struct queue *q, struct delivery *d);

/* d is freed, or joins another request. */
void request_forget(struct delivery *d);

/* Keeps a request while its members are worked on, and lets it go. */
void request_keep(struct request *r);
void request_unkeep(struct request *r);

/* Was the latest request of d sent in another epoch of the database, or never? Then the application's transaction may
 * have been aborted. */
bool request_is_tainted(const struct queue *q, const struct delivery *d);
