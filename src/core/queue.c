/* A queue's start and end, its connections, and its values for the stats line. */
#include "core/batches.h"
#include "core/handover.h"
#include "core/life.h"
#include "core/pauses.h"

#include "onceward/core/message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void queue_init(struct queue *q, const struct queue_rules *rules, struct application *a, struct database *b,
                uint64_t number, uint64_t seed, int64_t now_ms)
{
    assert(a && b && number > 0 && rules->concurrency >= 1 && rules->prefetch >= 1);
    memset(q, 0, sizeof(*q));
    q->rules = *rules;
    q->application = a;
    q->database = b;
    q->number = number;
    q->random = seed;
    q->returns.configured = rules->delivery_limit;
    q->returns.ordered = rules->ordered;
    q->returns.limits.delivery_limit = LIMIT_UNKNOWN;
    q->consumer.watch.depth = -1;
    handover_unknown(q);
    q->tick_ms = now_ms;
    q->share = &q->own;
    q->own.n_queues = 1;
    limiter_init(&q->own.limiter, rules->concurrency);
    brake_init(&q->own.brake, brake_threshold(rules->brake, rules->prefetch));
    held_init(q);
}

void queue_join_share(struct queue *q, struct queue *first)
{
    assert(q != first && q->share == &q->own && !q->held.next_ref);
    q->share = first->share;
    q->share->n_queues++;
}

void queue_deinit(struct queue *q)
{
    free(q->own.keys_seen);
    held_deinit(q);
}

/* --- the database --- */

/* A crashed server has lost the claims that it had not flushed. Claims that were not forwarded are repeated with the
 * same tokens. */
void queue_database_lost(struct queue *q, int64_t now_ms)
{
    struct link *k;

    while ((k = list_first(&q->held.wanted[OP_FORWARD])))
        life_go(q, now_ms, container_of(k, struct delivery, in_list), FACT_LOST, step_want(OP_CLAIM));
    assert(!q->held.wanted[OP_FORWARD].len);
    q->asks.lock_holder = 0;
}

void queue_database_linked(struct queue *q, int64_t now_ms)
{
    pause_end(q, now_ms, PAUSE_REFUSED);
    life_try_again(q, now_ms);
}

void queue_refused(struct queue *q, int64_t now_ms, enum pause_reason why, const char *reason)
{
    if (reason)
        pause_begin(q, now_ms, why, reason);
    else
        pause_end(q, now_ms, why);
}

void queue_consumer_is(struct queue *q, struct slice consumer)
{
    q->rules.batch.consumer = consumer;
}

void queue_application_down(struct queue *q, int64_t now_ms, const char *why)
{
    pause_begin(q, now_ms, PAUSE_APPLICATION, why);
}

void queue_caution_begin(struct queue *q, enum caution why)
{
    q->consumer.cautions |= (unsigned)why;
}

void queue_caution_end(struct queue *q, enum caution why)
{
    q->consumer.cautions &= ~(unsigned)why;
}

/* --- presence --- */

void queue_presence(struct queue *q, int64_t now_ms, int n_others)
{
    (void)now_ms;
    handover_unknown(q);
    q->n_others = n_others;
}

/* --- for the stats line --- */

int queue_limit(const struct queue *q)
{
    double own = q->share->limiter.limit, shared = q->application->limiter.limit;

    return (int)(own < shared ? own : shared);
}

const char *queue_limit_reason(const struct queue *q)
{
    const struct limiter *own = &q->share->limiter, *shared = &q->application->limiter;

    return limiter_reason(own->limit <= shared->limit ? own : shared);
}

size_t queue_batch_size(const struct queue *q)
{
    return batches_are_on(q) ? batches_messages(q) : 0;
}

size_t queue_n_held(const struct queue *q)
{
    size_t n = 0;

    for (int w = WAIT_NONE + 1; w < N_WAITS; w++)
        n += q->held.waiting[w].len;
    for (int op = 0; op < N_OPERATIONS; op++)
        n += q->held.wanted[op].len + q->held.sent[op].len;
    return n;
}

int64_t queue_oldest_ms(const struct queue *q, int64_t now_ms)
{
    const struct link *k = q->held.unacked.head.next;

    return k == &q->held.unacked.head
               ? 0
               : now_ms - container_of((struct link *)k, struct delivery, in_tags)->arrival->received_ms;
}

static bool is_paused(const struct queue *q)
{
    return pause_is_any_on(q) || !q->database->linked;
}

bool queue_may_consume(const struct queue *q)
{
    return !q->drain && q->generation && q->ready && !is_paused(q) && !q->left_to_others &&
           !q->consumer.watch.no_queue && q->consumer.state == CONSUMER_ACTIVE;
}

enum queue_state queue_state(const struct queue *q)
{
    const struct consumer_watch *w = &q->consumer.watch;

    if (q->drain)
        return q->drain == DRAIN_DONE ? QUEUE_DRAINED : QUEUE_DRAINING;
    if (w->no_queue)
        return QUEUE_NO_QUEUE;
    if (!q->generation && !pause_is_on(q, PAUSE_STREAM))
        return QUEUE_DISCONNECTED;
    if (!q->ready && !is_paused(q))
        return QUEUE_STARTING;
    if (is_paused(q))
        return QUEUE_PAUSED;
    if (handover_is_standby(q))
        return QUEUE_STANDBY;
    if (w->n_remedies && w->depth)
        return w->standby ? QUEUE_STANDBY : QUEUE_STUCK;
    if (q->application->place.owner)
        return queue_number_of(q->application->place.owner) == q->number ? QUEUE_SUSPECTS
                                                                         : QUEUE_WAITING_FOR_SUSPECT;
    return q->consumer.state == CONSUMER_NONE ? QUEUE_WAITING : QUEUE_CONSUMING;
}
