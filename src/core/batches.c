/* Requests with several messages: see batches.h. */
#include "core/batches.h"

#include "core/notes.h"
#include "core/order.h"
#include "core/quarantine.h"
#include "core/request.h"
#include "core/runs.h"

#include "onceward/base/buf.h"
#include "onceward/core/batch_envelope.h"
#include "onceward/core/token.h"

#include <assert.h>

enum { HANG_CAP = 8 }; /* after a window without an answer: 8 messages in a request, then 1 */

bool batches_are_on(const struct queue *q)
{
    return q->rules.batch.max_messages > 0;
}

size_t slots_of(size_t units)
{
    return (units + SLOT_UNITS - 1) / SLOT_UNITS;
}

/* The circuit breaker is set by as many failed requests as can be in flight at once, and at least BRAKE_LEAST. */
int batches_failure_weight(const struct queue *q)
{
    int least = q->rules.concurrency > BRAKE_LEAST ? q->rules.concurrency : BRAKE_LEAST;

    return (q->share->brake.threshold + least - 1) / least;
}

size_t batches_most_open(const struct queue *q)
{
    return q->share->n_in_flight * (batches_are_on(q) ? (size_t)q->rules.batch.max_messages : 1);
}

/* --- the size of a request --- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t batches_messages(const struct queue *q)
{
    assert(batches_are_on(q));
    return least(batch_size_messages(&q->application->batch_size), (size_t)q->rules.batch.max_messages);
}

size_t batches_bytes(const struct queue *q)
{
    return least(batch_size_bytes(&q->application->batch_size), q->rules.batch.max_bytes);
}

static void note_size(struct queue *q, const char *why)
{
    struct note *n = notes_tell(q, EVENT_BATCH_SIZE, NULL);

    n->n = (int64_t)batch_size_messages(&q->application->batch_size);
    note_text(n, "%s", why);
}

void batches_learn_more(struct queue *q, const struct request *r)
{
    if (batch_size_good(&q->application->batch_size, r->is_full, r->size_mark))
        note_size(q, "as configured, since such requests succeed");
}

void batches_learn_hung(struct queue *q, const struct request *r)
{
    if (batches_are_on(q) && batch_size_window_over(&q->application->batch_size, r->n_sent, r->size_mark))
        note_size(q, "a request was not answered within its window");
}

void batches_learn_too_large(struct queue *q, const struct request *r)
{
    if (batch_size_too_large(&q->application->batch_size, r->n_sent, r->size_mark))
        note_size(q, "a request was answered 413");
}

/* --- the members of a request --- */

void batches_claimed_before(const struct queue *q, struct delivery *d)
{
    if (d->claim->n_refused)
        return;
    d->claim->n_refused = REFUSALS_TOGETHER;
    d->claim->n_succeeded = q->application->n_succeeded;
}

/* Must the message be sent alone, since everything is refused again and again? That shows whether one member is at
 * fault. Halves would not: an overloaded application refuses them too. A redelivered message may have been refused
 * often before. */
static bool is_probe(const struct queue *q, const struct delivery *d)
{
    return q->share->limiter.slow_since_ms &&
           (d->claim->n_refused >= REFUSALS_TOGETHER || delivery_is_redelivered(d));
}

bool batches_may_share(const struct queue *q, const struct delivery *d)
{
    return batches_are_on(q) && !q->share->brake.on && !is_probe(q, d);
}

static size_t most_by_size(const struct queue *q, const struct delivery *d)
{
    size_t most = batches_may_share(q, d) ? batches_messages(q) : 1;

    if (d->claim->batch_cap > 0 && (size_t)d->claim->batch_cap < most)
        most = (size_t)d->claim->batch_cap;
    return most;
}

size_t batches_most_of_group(const struct queue *q, const struct delivery *d)
{
    size_t most = most_by_size(q, d);

    return most < GROUP_MOST ? most : GROUP_MOST;
}

static size_t most_members(const struct queue *q, const struct delivery *d)
{
    if (quarantine_has(q, d))
        return batches_most_of_group(q, d);
    return d->claim->alone || d->claim->crashes ? 1 : most_by_size(q, d);
}

uint32_t batches_share(const struct queue *q, const struct delivery *d)
{
    if (!batches_are_on(q))
        return SLOT_UNITS;
    size_t n = most_members(q, d);

    assert(n >= 1 && n <= SLOT_UNITS);
    return (uint32_t)(SLOT_UNITS / n);
}

/* Messages that failed together share requests only with each other: a new neighbour would be suspected for nothing. */
static bool is_of_one_kind(const struct queue *q, const struct delivery *a, const struct delivery *b)
{
    if (quarantine_has(q, a) != quarantine_has(q, b))
        return false;
    if (!quarantine_has(q, a) && (b->claim->alone || b->claim->crashes))
        return false;
    /* Rows keep the cap, but not the request. After a restart only the caps are compared, so no request is larger
     * than the cap of a member. */
    return a->claim->batch_cap == b->claim->batch_cap &&
           (!a->claim->batch_cap || a->claim->failed_with == b->claim->failed_with);
}

/* before: the member before d in its key; NULL: none. */
static struct envelope_member member_of(const struct queue *q, const struct delivery *d,
                                        const struct delivery *before, struct buf *token)
{
    const struct queue_batch_rules *rules = &q->rules.batch;

    buf_reset(token);
    if (before)
        token_write_behind(token, rules->consumer, delivery_slice(d), delivery_slice(before),
                           d->claim->token);
    else
        token_write(token, rules->consumer, delivery_slice(d), d->claim->token);
    return (struct envelope_member){
        .token = buf_slice(token),
        .id = delivery_slice(d),
        .queue = rules->queue,
        .content_type = rules->content_type,
        .attempt = d->claim->attempt + d->claim->takeovers,
        .redelivered = delivery_is_redelivered(d),
        .message = d->arrival->message,
    };
}

static void body_add(struct queue *q, struct request *r, const struct delivery *d,
                     const struct delivery *before, struct buf *token)
{
    struct envelope_member e = member_of(q, d, before, token);

    e.body_is_json = envelope_takes_body(d->arrival->message, e.content_type);
    envelope_add(&r->body, &e);
}

size_t batches_member_bytes(const struct queue *q, const struct delivery *d, const struct delivery *before)
{
    struct buf token = {0};
    struct envelope_member e = member_of(q, d, before, &token);

    e.body_is_json = envelope_takes_type(d->arrival->message, e.content_type);
    size_t n = envelope_size(&e);

    buf_deinit(&token);
    return n;
}

/* Adds a member. False: it does not fit, and nothing is changed. */
static bool member_add(struct queue *q, struct request *r, struct delivery *d, const struct delivery *before,
                       struct buf *token)
{
    size_t len = r->body.len;

    /* Encoding a large body only to drop it would cost its memory twice. */
    if (len + d->arrival->copy.body_len + 2 > batches_bytes(q)) {
        r->is_full = len + d->arrival->copy.body_len + 2 > batch_size_bytes(&q->application->batch_size);
        return false;
    }
    body_add(q, r, d, before, token);
    if (r->body.len + 2 > batches_bytes(q)) {
        r->is_full = r->body.len + 2 > batch_size_bytes(&q->application->batch_size);
        r->body.len = len;
        return false;
    }
    request_add(r, d);
    d->claim->is_behind = before != NULL;
    return true;
}

/* Adds a member of an ordered queue, with the messages behind it in its key. */
static void run_add(struct queue *q, int64_t now_ms, struct request *r, struct delivery *d, size_t most,
                    may_accompany_fn *may, struct buf *token)
{
    const struct delivery *first = request_first(r);

    for (struct delivery *next; r->members.len < most && (next = runs_behind(d)); d = next)
        if (!is_of_one_kind(q, first, next) || !may(q, now_ms, next) || !member_add(q, r, next, d, token))
            return;
}

/* Number of ready messages. A run counts once, since it cannot be divided among the slots. */
static size_t n_ready(const struct queue *q)
{
    size_t n = 0;

    if (!q->rules.ordered)
        return q->held.wanted[OP_FORWARD].len;
    for (const struct link *k = q->held.wanted[OP_FORWARD].head.next; k != &q->held.wanted[OP_FORWARD].head;
         k = k->next)
        n += !order_waits(container_of((struct link *)k, struct delivery, in_list));
    return n;
}

void batches_fill(struct queue *q, int64_t now_ms, struct request *r, int n_free, may_accompany_fn *may)
{
    struct delivery *first = request_first(r);
    size_t most = most_members(q, first), n = 1;
    size_t n_slots = n_free > 0 ? (size_t)n_free : 1;
    size_t each = (n_ready(q) + n_slots - 1) / n_slots;
    struct buf token = {0};

    assert(batches_are_on(q) && first && r->members.len == 1);
    /* A smaller request, after a failure, says nothing about the size: one message may be at fault. */
    r->size_mark = first->claim->batch_cap ? UINT64_MAX : q->application->batch_size.n_cuts;
    r->parent = first->claim->batch_cap ? first->claim->failed_with : 0;
    if (first->claim->batch_cap || quarantine_has(q, first))
        each = most;
    envelope_begin(&r->body);
    body_add(q, r, first, NULL, &token);
    first->claim->is_behind = false;
    run_add(q, now_ms, r, first, most, may, &token);
    list_each(&q->held.wanted[OP_FORWARD], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (n >= each || r->members.len >= most)
            break;
        if (d == first || d->in_request.next || !is_of_one_kind(q, first, d) || !may(q, now_ms, d))
            continue;
        if (q->rules.ordered && (runs_place(d) != RUN_FIRST || runs_len(d) > most - r->members.len))
            continue;
        if (!member_add(q, r, d, NULL, &token))
            break;
        run_add(q, now_ms, r, d, most, may, &token);
        n++;
    }
    envelope_end(&r->body);
    buf_deinit(&token);
    r->is_full |= r->members.len >= batch_size_messages(&q->application->batch_size);
}

/* --- after a failure --- */

static void batches_cap(struct delivery *d, int cap)
{
    assert(cap >= 1 && d->request);
    d->claim->next_cap = cap;
    d->claim->failed_with = d->request->ref;
}

static int half_of(const struct request *r)
{
    assert(r->n_sent > 1);
    return (int)((r->n_sent + 1) / 2);
}

void batches_split(const struct queue *q, struct delivery *d)
{
    /* In `response` halves would repeat the effects of the others at each level. */
    batches_cap(d, q->rules.transaction ? half_of(d->request) : 1);
}

void batches_split_by_half(struct delivery *d)
{
    batches_cap(d, half_of(d->request));
}

void batches_unanswered(struct request *r)
{
    int cap = r->n_sent > HANG_CAP ? HANG_CAP : 1;

    if (r->n_sent < 2)
        return;
    list_each(&r->members, k)
    {
        batches_cap(container_of(k, struct delivery, in_request), cap);
    }
}

bool batches_failure_is_new(struct queue *q, const struct request *r)
{
    struct batches *b = &q->batches;

    if (!r->parent)
        return true;
    for (size_t i = 0; i < sizeof(b->half_failed) / sizeof(*b->half_failed); i++)
        if (b->half_failed[i] == r->parent)
            return true;
    b->half_failed[b->n_half_failed++ % (sizeof(b->half_failed) / sizeof(*b->half_failed))] = r->parent;
    return false;
}
