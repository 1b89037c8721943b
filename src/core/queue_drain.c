/* A drain: nothing new is taken, waiting deliveries are requeued, requests in flight may finish within the
 * grace period. */
#include "core/steps.h"

#include "core/life.h"
#include "core/notes.h"
#include "core/order.h"

enum {
    HELD_RETURN_MS = 3000,              /* after the grace period, to release claims and return deliveries */
    UNANSWERED_MS = HELD_RETURN_MS / 2, /* before its end: no statement waits for an answer any longer */
    UNPUBLISHED_MS = 500                /* before its end: no copy waits for its confirm any longer */
};

/* Requeues idle deliveries, once nothing new can arrive. Requests in flight may finish until the end of the grace
 * period. */
static void drain_idle(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (d->wait == WAIT_FOLLOWING && d->leader && !held_is_idle(d->leader) && q->drain == DRAIN_FINISHING)
            continue; /* may yet be acked with the one in flight */
        if (operation_infos[d->op].link == LINK_BROKER) {
            if (d->wait != WAIT_NONE)
                life_go(q, now_ms, d, FACT_LEAVE, step_want(d->op));
            continue;
        }
        if (q->rules.ordered && !(held_is_idle(d) && delivery_has_token(d)))
            continue; /* requeued with its channel */
        if (q->rules.ordered)
            life_go(q, now_ms, d, FACT_LEAVE, life_release_to_requeue(d, 0));
        else if (held_is_idle(d) || d->wait == WAIT_BRAKE)
            life_go(q, now_ms, d, FACT_LEAVE, life_leave(q, now_ms, d));
    }
}

/* The grace period is over: claims are released without a charge. With `transaction` the fence lets the next owner
 * start at once. With `response` it must wait for the end of the window, since the application may still work. */
static void drain_out(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (delivery_has_ended(d) || !(delivery_is_in_flight(d) || d->op == OP_CHECK) || d->op == OP_REVOKE)
            continue;
        error_text_set(d, "the sidecar stopped before it was answered", NULL);
        life_go(q, now_ms, d, FACT_LEAVE,
                life_release_to_requeue(d, q->rules.transaction ? 0 : -TAKEOVER_GRACE_MS));
    }
}

/* Near the end of a drain: does the delivery still need an answer of the database, whether its statement was sent or
 * not? A message that was renewed too often is not renewed again. */
static bool drain_is_unanswered(const struct delivery *d)
{
    return operation_infos[d->op].link == LINK_DATABASE && d->wait != WAIT_RENEWAL;
}

/* Is the message done, and about to be written as completed? A copy would repeat its effect. */
static bool drain_completes(const struct queue *q, const struct delivery *d)
{
    return d->op == OP_COMPLETE && d->phase == PHASE_WANTED && d->wait == WAIT_NONE &&
           database_is_up(q->database);
}

/* Publishes a copy of a message that the broker would drop when requeued, or stores it whole. The row is left
 * unchanged. With a delivery limit of 0 the broker would drop every message. */
static void drain_near(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (!d->arrival->message || !life_must_stay(q, d) || drain_completes(q, d))
            continue;
        if (drain_is_unanswered(d) && held_can_renew(q, d) && returns_are_counted(&q->returns))
            life_go(q, now_ms, d, FACT_LEAVE, life_renew(d));
        else if (d->phase == PHASE_WANTED && database_is_up(q->database) &&
                 (operation_infos[d->op].link == LINK_DATABASE ||
                  (d->op == OP_PUBLISH && q->drain_until_ms - now_ms <= UNPUBLISHED_MS)))
            life_go(q, now_ms, d, FACT_LEAVE, life_dead_letter_held(q, now_ms, d));
    }
}

/* Asks a database that refuses statements often, since the broker would drop requeued messages: what it accepts again
 * is stored before the end. */
static void drain_asks(struct queue *q, int64_t now_ms)
{
    enum { ASK_MS = 250 };

    if (!q->database->refuses)
        return;
    list_each(&q->held.unacked, k)
    {
        const struct delivery *d = container_of(k, struct delivery, in_tags);

        if (!d->arrival->message || !life_must_stay(q, d))
            continue;
        database_hurry(q->database, now_ms, ASK_MS);
        return;
    }
}

/* Requeues everything as the last resort, when the database does not answer. Closing the channel would count a
 * delivery for all unacked messages on some brokers; a requeue does so on fewer. */
static void drain_all(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (!delivery_has_ended(d) && operation_infos[d->op].link != LINK_BROKER && !q->rules.ordered)
            life_go(q, now_ms, d, FACT_LEAVE, life_requeue(q, d));
    }
}

void drain_step(struct queue *q, int64_t now_ms)
{
    enum { LEAVE_MS = 500 };
    /* An ordered queue stays subscribed, since a cancel would hand it on before its deliveries have returned with the
     * connection. */
    bool stopped = q->consumer.state == CONSUMER_NONE || !q->generation || q->rules.ordered;

    if (q->drain == DRAIN_NO || q->drain == DRAIN_DONE)
        return;
    if (q->drain == DRAIN_FINISHING && now_ms >= q->drain_until_ms) {
        q->drain = DRAIN_RELEASING;
        q->drain_until_ms = now_ms + HELD_RETURN_MS;
    } else if (q->drain == DRAIN_RELEASING && now_ms >= q->drain_until_ms) {
        q->drain = DRAIN_LEAVING;
        q->drain_until_ms = now_ms + LEAVE_MS;
    }
    if (q->drain == DRAIN_RELEASING) {
        drain_out(q, now_ms);
        drain_asks(q, now_ms);
    }
    if (q->drain == DRAIN_RELEASING && q->drain_until_ms - now_ms <= UNANSWERED_MS)
        drain_near(q, now_ms);
    if (stopped && q->drain <= DRAIN_RELEASING)
        drain_idle(q, now_ms);
    if (q->drain == DRAIN_LEAVING)
        drain_all(q, now_ms);
    if ((stopped && (q->rules.ordered ? order_is_settled(q) : !queue_n_held(q))) ||
        (q->drain == DRAIN_LEAVING && now_ms >= q->drain_until_ms))
        q->drain = DRAIN_DONE;
}

int64_t drain_deadline(const struct queue *q, int64_t now_ms)
{
    const int64_t ends_ms = q->drain_until_ms;

    if (q->drain == DRAIN_NO || q->drain == DRAIN_DONE || now_ms >= ends_ms)
        return INT64_MAX;
    if (q->drain == DRAIN_RELEASING && now_ms < ends_ms - UNANSWERED_MS)
        return ends_ms - UNANSWERED_MS;
    if (q->drain == DRAIN_RELEASING && now_ms < ends_ms - UNPUBLISHED_MS)
        return ends_ms - UNPUBLISHED_MS;
    return ends_ms;
}

void queue_drain(struct queue *q, int64_t now_ms, int64_t until_ms)
{
    struct note *n;

    if (q->drain == DRAIN_FINISHING && until_ms < q->drain_until_ms)
        q->drain_until_ms = until_ms;
    if (q->drain)
        return;
    q->drain = DRAIN_FINISHING;
    q->drain_until_ms = until_ms;
    n = notes_tell(q, EVENT_DRAINING, NULL);
    n->n = (int64_t)queue_n_held(q);
    n->ms = until_ms - now_ms;
}

void queue_hurry(struct queue *q, int64_t now_ms)
{
    if (q->drain == DRAIN_FINISHING)
        q->drain_until_ms = now_ms;
}
