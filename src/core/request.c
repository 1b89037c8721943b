/* Requests and their members: see request.h. */
#include "core/request.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_LEAST_MS = 20 }; /* timer of a window that is over already */

struct request *request_find(const struct queue *q, uint64_t ref)
{
    for (struct hash_link *k = hash_first(&q->held.requests, hash_number(ref)); k; k = hash_next(k)) {
        struct request *r = container_of(k, struct request, by_ref);

        if (r->ref == ref)
            return r;
    }
    return NULL;
}

/* --- references from deliveries --- */

struct request *request_new(struct queue *q)
{
    struct request *r = mem_zalloc(1, sizeof(*r));

    r->ref = ++q->held.next_request;
    r->timer.owner = TIMER_OF_REQUEST;
    r->window_ends_ms = INT64_MAX;
    list_init(&r->members);
    return r;
}

void request_keep(struct request *r)
{
    r->n_deliveries++;
}

void request_unkeep(struct request *r)
{
    assert(r->n_deliveries > 0);
    if (--r->n_deliveries)
        return;
    assert(!r->in_flight && !r->members.len && !r->timer.slot);
    buf_deinit(&r->body);
    for (size_t i = 0; i < r->n_left; i++)
        free(r->left[i].id);
    free(r->left);
    free(r);
}

void request_add(struct request *r, struct delivery *d)
{
    assert(!r->in_flight && !d->in_request.next);
    request_forget(d);
    request_keep(r);
    d->request = r;
    list_push(&r->members, &d->in_request);
    if (d->claim->window_ends_ms < r->window_ends_ms)
        r->window_ends_ms = d->claim->window_ends_ms;
}

void request_forget(struct delivery *d)
{
    struct request *r = d->request;

    assert(!delivery_is_in_flight(d));
    if (!r)
        return;
    if (d->in_request.next)
        list_remove(&r->members, &d->in_request);
    d->request = NULL;
    request_unkeep(r);
}

/* --- from its start to its answer --- */

static void request_set_window(struct queue *q, int64_t now_ms, struct request *r)
{
    timers_set(&q->held.timers, &r->timer,
               r->window_ends_ms > now_ms ? r->window_ends_ms : now_ms + WINDOW_LEAST_MS);
}

void request_send(struct queue *q, int64_t now_ms, struct request *r)
{
    bool alone = true;

    assert(r->members.len > 0 && !r->in_flight);
    list_each(&r->members, k) alone = alone && request_member(k)->claim->alone;
    application_sent(q->application, alone, &r->application);
    q->share->n_in_flight++;
    assert(r->window_ends_ms != INT64_MAX);
    r->in_flight = true;
    r->n_sent = r->members.len;
    r->mark = limiter_mark(&q->share->limiter);
    r->database_epoch = q->database->epoch;
    r->probation = q->share->brake.on;
    r->sent_ms = now_ms;
    hash_insert(&q->held.requests, &r->by_ref, hash_number(r->ref));
    list_push(&q->held.in_flight, &r->in_list);
    request_set_window(q, now_ms, r);
}

static struct list *request_list(struct queue *q, const struct request *r)
{
    return r->overdue ? &q->held.overdue : &q->held.in_flight;
}

void request_end(struct queue *q, struct request *r)
{
    assert(r->in_flight);
    hash_remove(&q->held.requests, &r->by_ref);
    list_remove(request_list(q, r), &r->in_list);
    timers_clear(&q->held.timers, &r->timer);
    r->in_flight = r->overdue = false;
    application_returned(q->application);
    assert(q->share->n_in_flight > 0);
    q->share->n_in_flight--;
}

void request_is_overdue(struct queue *q, struct request *r)
{
    assert(r->in_flight && !r->overdue);
    list_remove(request_list(q, r), &r->in_list);
    r->overdue = true;
    list_push(request_list(q, r), &r->in_list);
}

/* The request is in its window again when no remaining member is being revoked. */
static void request_resume(struct queue *q, struct request *r)
{
    int64_t window_ends_ms = INT64_MAX;

    assert(r->in_flight);
    list_each(&r->members, k)
    {
        if (request_member(k)->op != OP_FORWARD)
            return;
        if (request_member(k)->claim->window_ends_ms < window_ends_ms)
            window_ends_ms = request_member(k)->claim->window_ends_ms;
    }
    list_remove(request_list(q, r), &r->in_list);
    r->overdue = false;
    list_push(request_list(q, r), &r->in_list);
    r->window_ends_ms = window_ends_ms;
    timers_set(&q->held.timers, &r->timer, window_ends_ms);
}

void request_is_extended(struct queue *q, struct delivery *d)
{
    assert(delivery_is_in_flight(d));
    request_resume(q, d->request);
}

static void request_abandon(struct queue *q, struct request *r)
{
    struct queue_abandons *a = &q->abandons;

    assert(!r->members.len);
    request_end(q, r);
    if (a->n == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 16;
        a->items = mem_realloc(a->items, a->cap * sizeof(*a->items));
    }
    a->items[a->n++] = (struct abandon){.ref = r->ref, .body = r->body};
    r->body = (struct buf){0}; /* deliveries that wait for long keep the request */
    q->application->n_abandoned++;
}

/* In `transaction` an answer may name unknown messages, since the rows decide. */
static void left_add(const struct queue *q, struct request *r, const struct delivery *d)
{
    if (q->rules.transaction)
        return;
    r->left = mem_realloc(r->left, (r->n_left + 1) * sizeof(*r->left));
    struct request_left *l = &r->left[r->n_left++];

    *l = (struct request_left){.id = mem_copy(d->arrival->id, d->arrival->id_len),
                               .id_len = d->arrival->id_len};
    memcpy(l->token, d->claim->token, sizeof(l->token));
}

void request_leave(struct queue *q, struct delivery *d)
{
    struct request *r = d->request;

    if (!d->in_request.next)
        return;
    list_remove(&r->members, &d->in_request);
    if (!r->in_flight)
        return;
    if (!r->members.len) {
        request_abandon(q, r);
        return;
    }
    left_add(q, r, d);
    if (r->overdue)
        request_resume(q, r);
}

bool request_is_tainted(const struct queue *q, const struct delivery *d)
{
    return !q->database->linked || !d->request || d->request->database_epoch != q->database->epoch;
}
