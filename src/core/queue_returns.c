/* Deliveries that are requeued, checked once a second: those held for max_hold, those that another replica could
 * take, and those that keep others from arriving. */
#include "core/steps.h"

#include "core/life.h"
#include "core/notes.h"
#include "core/order.h"
#include "core/pauses.h"

#include <assert.h>
#include <stdlib.h>

static void tell_returned(struct queue *q, int64_t n, const char *why)
{
    struct note *note;

    if (!n)
        return;
    note = notes_tell(q, EVENT_RETURNED, NULL);
    note->n = n;
    note_text(note, "%s", why);
}

static bool return_delivery(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct step s = life_leave(q, now_ms, d);

    life_go(q, now_ms, d, FACT_LEAVE, s);
    return s.kind != STEP_STAY;
}

/* Does the delivery only wait here, with no request in flight? For its dead letter too, or for a row that an
 * application keeps locked. */
static bool may_leave(const struct queue *q, const struct delivery *d)
{
    if (delivery_is_in_flight(d) || d->phase != PHASE_WANTED || operation_infos[d->op].link == LINK_BROKER)
        return d->wait == WAIT_ROOM;
    return held_is_idle(d) || d->wait == WAIT_LOCKED || d->wait == WAIT_BRAKE ||
           (d->op == OP_DEAD_LETTER && delivery_is_rowless(d) && !database_is_up(q->database));
}

/* Returns a delivery whose row stays locked beyond max_hold. The row is left unchanged. Near the delivery limit the
 * message is stored whole, and does not count as returned. */
static bool return_old_delivery(struct queue *q, int64_t now_ms, struct delivery *d)
{
    bool near = life_must_stay(q, d) && returns_are_counted(&q->returns), locked = d->wait == WAIT_LOCKED;
    struct step s;

    if (near && pause_rests(q))
        s = step_stay();
    else if (near && held_can_renew(q, d))
        s = locked ? life_renew(d) : life_leave(q, now_ms, d);
    else if (locked && near && d->arrival->message && database_is_up(q->database))
        s = life_dead_letter_held(q, now_ms, d);
    else if (locked && !near && !held_is_idle(d))
        s = life_requeue(q, d);
    else if (!locked || !near)
        s = life_leave(q, now_ms, d);
    else
        s = step_stay();
    life_go(q, now_ms, d, FACT_LEAVE, s);
    return !near && s.kind != STEP_STAY;
}

/* Returns the whole tail once the oldest waiting delivery has been held for max_hold. */
static void return_ordered(struct queue *q, int64_t now_ms)
{
    for (struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *d = container_of(k, struct delivery, in_tags);

        if (now_ms - d->arrival->received_ms < q->rules.max_hold_ms)
            return; /* in the order of arrival */
        if (may_leave(q, d)) {
            order_stop(q, now_ms, "held for max_hold");
            return;
        }
    }
}

static void return_old(struct queue *q, int64_t now_ms)
{
    int64_t n = 0;

    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (now_ms - d->arrival->received_ms < q->rules.max_hold_ms)
            break; /* in the order of arrival */
        if (may_leave(q, d))
            n += return_old_delivery(q, now_ms, d);
    }
    tell_returned(q, n, "held for max_hold");
}

/* Start of the oldest pause in which nothing can progress here, and which other replicas may not have. INT64_MAX:
 * none. */
static int64_t paused_since_ms(const struct queue *q)
{
    static const enum pause_reason pauses[] = {PAUSE_APPLICATION, PAUSE_OVERLOADED, PAUSE_OPERATOR,
                                               PAUSE_EVERYTHING_FAILS};
    /* An ordered queue returns all its messages, which the broker counts: only the first of these pauses justifies
     * that. */
    size_t n_pauses = q->rules.ordered ? 1 : sizeof(pauses) / sizeof(pauses[0]);
    int64_t since = INT64_MAX;

    for (size_t i = 0; i < n_pauses; i++)
        if (pause_is_on(q, pauses[i]) && q->pauses[pauses[i]].since_ms < since)
            since = q->pauses[pauses[i]].since_ms;
    return since;
}

/* May the delivery be left to another replica? */
static bool is_left(const struct queue *q, const struct delivery *d)
{
    return (held_is_idle(d) || d->wait == WAIT_BRAKE) && !life_must_stay(q, d);
}

/* Probe message that stays, if only a message can show that the application has recovered: one that may be tried
 * soon. The other replicas do not get it, so after a while another one takes its place. */
static const struct delivery *stays_to_try(const struct queue *q, int64_t now_ms)
{
    const struct delivery *first = NULL;

    if (!pause_needs_message(q))
        return NULL;
    for (struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *d = container_of(k, struct delivery, in_tags);

        if (!d->arrival->message || d->wait == WAIT_FOLLOWING || !is_left(q, d) ||
            (now_ms - d->arrival->received_ms >= q->rules.pause_hold_ms + TO_TRY_WITH_MS))
            continue;
        if (!q->share->brake.on || !delivery_is_redelivered(d))
            return d;
        if (!first)
            first = d;
    }
    return first;
}

/* Would the broker redeliver a returned message to this consumer at once? A consumer that must stay has one delivery
 * at most, which stays. */
static bool is_redelivered_at_once(const struct queue *q)
{
    const struct consumer *c = &q->consumer;

    if (c->state == CONSUMER_NONE)
        return false;
    if (!returns_may_need_consumer(&q->returns))
        return c->state == CONSUMER_ACTIVE;
    return c->state != CONSUMER_ACTIVE || !c->yielded || c->former;
}

/* Does this delivery keep the one credit of a consumer that must stay? After a while another one takes its place. */
static bool keeps_credit(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return q->consumer.state == CONSUMER_ACTIVE && d->arrival->copy.consumer == q->consumer.number &&
           now_ms - d->arrival->received_ms < q->rules.pause_hold_ms + TO_TRY_WITH_MS;
}

static void leave_to_others(struct queue *q, int64_t now_ms)
{
    static const char why[] = "a pause has lasted for pause_hold, and another replica consumes";
    const struct delivery *stays;
    int64_t since = paused_since_ms(q), n = 0;

    /* Returns are useless if all replicas return at the same time: an operator's pause holds for all of them. */
    q->left_to_others = since != INT64_MAX && now_ms - since >= q->rules.pause_hold_ms && q->n_others > 0 &&
                        database_is_up(q->database) && !q->commands.paused && !q->drain;
    if (q->left_to_others && q->rules.ordered && q->held.unacked.len)
        order_stop(q, now_ms, why);
    if (!q->left_to_others || q->rules.ordered || is_redelivered_at_once(q))
        return;
    stays = stays_to_try(q, now_ms);
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (d != stays && is_left(q, d) && !keeps_credit(q, now_ms, d))
            n += return_delivery(q, now_ms, d);
    }
    if (n)
        q->flow.left_ms = now_ms;
    tell_returned(q, n, why);
}

static int by_due(const void *a, const void *b)
{
    const struct delivery *x = *(struct delivery *const *)a, *y = *(struct delivery *const *)b;

    return x->timer.at_ms < y->timer.at_ms ? 1 : x->timer.at_ms > y->timer.at_ms ? -1 : 0;
}

/* Returns the messages that are due last, once those that wait for longer than pause_hold fill half of max_parked, so
 * that others pass. Another replica may take them, or they are redelivered behind the others. Not alone on a queue
 * that requeues to its front, where max_parked is the bound and is logged, nor under a single active consumer, where
 * they would fall behind their successors. */
static void return_crowded(struct queue *q, int64_t now_ms)
{
    struct list *l = &q->held.waiting[WAIT_DUE];
    size_t n = 0, most = (size_t)q->rules.max_parked / 2;
    struct delivery **late;

    if (l->len <= most || q->drain || !database_is_up(q->database) ||
        now_ms - q->flow.crowded_ms < q->rules.pause_hold_ms)
        return;
    if (q->returns.limits.single_active || (!q->n_others && !returns_go_behind(&q->returns)))
        return;
    late = calloc(l->len, sizeof(*late));
    if (!late)
        return;
    list_each(l, k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (d->timer.slot && d->timer.at_ms - now_ms > q->rules.pause_hold_ms && held_is_idle(d) &&
            !life_must_stay(q, d))
            late[n++] = d;
    }
    if (n > most) {
        assert(n <= l->len);
        qsort(late, n, sizeof(*late), by_due);
        for (size_t i = 0; i < n - most; i++)
            return_delivery(q, now_ms, late[i]);
        q->flow.crowded_ms = now_ms;
        tell_returned(q, (int64_t)(n - most),
                      "not due for a long time, and they would keep others from "
                      "arriving");
    }
    free(late);
}

void return_step(struct queue *q, int64_t now_ms)
{
    if (q->rules.ordered) {
        return_ordered(q, now_ms);
        leave_to_others(q, now_ms);
        return;
    }
    return_old(q, now_ms);
    leave_to_others(q, now_ms);
    return_crowded(q, now_ms);
}
