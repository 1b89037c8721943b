/* The promises about answers, times and bounds: see promises.h. */
#include "promises.h"

#include "oracle.h"
#include "sidecar_sim.h"

#include "onceward/base/mem.h"

#include <string.h>

enum { LEEWAY_US = 50000 };

static const struct queue_rules *rules_of(const struct world *w, int queue)
{
    return &w->plan->queues[queue].rules;
}

static struct promises *promises_of(const struct sidecar *s, int queue)
{
    return &((struct sidecar *)s)->promises[queue];
}

void promises_started(struct world *w, struct sidecar *s)
{
    for (int i = 0; i < QUEUES_MAX; i++) {
        struct promises *p = &s->promises[i];

        *p = (struct promises){.failed = p->failed, .failed_cap = p->failed_cap, .good_us = w->now_us};
    }
}

/* --- the table of answers --- */

/* Meaning of an answer to one message, by the table in deploy/guides/application.md. */
enum meaning {
    MEANS_NOTHING, /* the answer was to several messages, or says nothing about this one */
    MEANS_DONE,
    MEANS_ACCEPTED,
    MEANS_NOT_NOW,
    MEANS_UNREACHABLE,
    MEANS_PERMANENT,
    MEANS_FAILED,
    MEANS_CRASHED,
};

static bool is_in(int status, const int *statuses, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (statuses[i] == status)
            return true;
    return false;
}

static enum meaning meaning_of(const struct world *w, const struct post *p)
{
    /* Statuses that may concern the envelope. */
    static const int unknown_batch[] = {400, 404, 405, 413, 415, 422};
    static const int not_now[] = {408, 409, 423, 425, 429, 503};
    const struct queue_rules *rules = rules_of(w, p->queue);

    if (!p->answered || p->whole || (p->carrier->n_members > 1 && !p->named) || oracle_is_behind_failed(w, p))
        return MEANS_NOTHING;
    if (p->kind == ANSWER_UNREACHABLE)
        return MEANS_UNREACHABLE;
    if (p->kind != ANSWER_STATUS)
        return MEANS_CRASHED;
    if (p->carrier->enveloped && !p->named &&
        is_in(p->status, unknown_batch, sizeof(unknown_batch) / sizeof(*unknown_batch)))
        return MEANS_NOTHING;
    if (is_in(p->status, rules->permanent_status, rules->n_permanent_status))
        return MEANS_PERMANENT;
    if (p->status / 100 == 2)
        return p->status == 202 && rules->transaction ? MEANS_ACCEPTED : MEANS_DONE;
    if (p->status == 502 || p->status == 504)
        return MEANS_CRASHED;
    if (is_in(p->status, not_now, sizeof(not_now) / sizeof(*not_now)) || p->named == 424)
        return MEANS_NOT_NOW;
    return MEANS_FAILED;
}

/* Reason why a failure of the message may not be charged to it; NULL: it must be. */
static const char *why_spared(const struct world *w, const struct sidecar *s, const struct post *p,
                              const struct copy *m)
{
    const struct sidecar_queue *q = &s->queues[p->queue];
    const struct promises *o = promises_of(s, p->queue);

    (void)w;
    if (p->carrier->lost_database || s->n_losses != p->n_losses)
        return "the database's connection broke";
    /* The breaker may also have been on until an answer in this turn. */
    if (o->was_on_us >= p->told_us || o->on_us || q->core.share->brake.on)
        return "everything fails";
    if (s->draining)
        return "a drain";
    if (!q->channel || m->channel != q->channel)
        return "the channel is lost";
    return NULL;
}

/* --- backoff --- */

static int64_t bound_of_backoff(const struct queue_rules *r, int n)
{
    int64_t bound = r->backoff_ms;

    for (int i = 1; i < n && bound < r->max_backoff_ms; i++)
        bound *= 2;
    return bound < r->max_backoff_ms ? bound : r->max_backoff_ms;
}

/* Checks a backoff with full jitter, of at least a tenth; and a whole window if the application may still work. */
static void check_backoff(struct world *w, const struct batch_item *item, int n_least, int n_most,
                          bool unanswered)
{
    const struct queue_rules *r = rules_of(w, item->queue);
    int64_t most = bound_of_backoff(r, n_most), least = bound_of_backoff(r, n_least) / 10,
            delay = item->ask.delay_us / 1000;

    if (unanswered && least < r->token_window_ms)
        least = r->token_window_ms;
    if (most < least)
        most = least;
    if (delay < least || delay > most)
        oracle_broken(w, "backoff", "%s waits for %lld ms after its failure %d; %lld to %lld are promised",
                      item->truth->id, (long long)delay, n_most, (long long)least, (long long)most);
}

/* Retry-After is obeyed, but the wait is at least the shortest backoff, or a second if that is less. */
static void check_retry_after(struct world *w, const struct batch_item *item, const struct free_ends *f,
                              int64_t asked_ms)
{
    enum { SECOND_MS = 1000 };
    const struct queue_rules *r = rules_of(w, item->queue);
    int64_t delay = item->ask.delay_us / 1000, least = bound_of_backoff(r, f->n_not_now) / 10,
            most = bound_of_backoff(r, f->n_free) / 10;

    least = least < SECOND_MS ? least : SECOND_MS;
    most = most < SECOND_MS ? most : SECOND_MS;
    least = asked_ms > least ? asked_ms : least;
    most = asked_ms > most ? asked_ms : most;
    if (delay < least || delay > most)
        oracle_broken(
            w, "retry-after", "%s waits for %lld ms, and Retry-After says %lld: %lld to %lld are promised",
            item->truth->id, (long long)delay, (long long)asked_ms, (long long)least, (long long)most);
}

/* Checks the wait after an attempt that is not charged: it grows with the number of such ends in this delivery. */
static void check_wait(struct world *w, const struct batch_item *item, const struct post *p,
                       const struct delivery *d)
{
    const struct queue_rules *r = rules_of(w, item->queue);
    int64_t delay = item->ask.delay_us / 1000;

    switch (meaning_of(w, p)) {
    case MEANS_NOT_NOW:
        if (p->retry_after_ms >= 0) {
            if (!delivery_release(d)->then_requeue)
                check_retry_after(w, item, &item->truth->free[p->sidecar->index], p->retry_after_ms);
        } else if (!delivery_release(d)->then_requeue) {
            check_backoff(w, item, item->truth->free[p->sidecar->index].n_not_now,
                          item->truth->free[p->sidecar->index].n_free, false);
        }
        break;
    case MEANS_UNREACHABLE: /* the probes decide */
        if (delay)
            oracle_broken(w, "backoff", "%s waits for %lld ms, and was not sent", item->truth->id,
                          (long long)delay);
        break;
    default:
        if (delay > p->retry_after_ms &&
            delay > (r->max_backoff_ms > r->token_window_ms ? r->max_backoff_ms : r->token_window_ms))
            oracle_broken(w, "backoff", "%s waits for %lld ms", item->truth->id, (long long)delay);
    }
}

/* --- decisions --- */

static struct post *post_of(const struct sidecar *s, const struct truth *t, const uint8_t token[16])
{
    for (struct post *p = t->posts; p; p = p->next)
        if (memcmp(p->token, token, 16) == 0)
            return p->sidecar == s && p->life == s->life ? p : NULL;
    return NULL;
}

/* Checks that an attempt fails after commit_grace, if the application answered that it was done and the row is not
 * completed. */
static void check_grace(struct world *w, const struct sidecar *s, const struct batch_item *item,
                        const struct post *p)
{
    int64_t grace_ms = rules_of(w, item->queue)->commit_grace_ms;

    if (w->now_us - p->told_us < grace_ms * 1000 - LEEWAY_US && !s->draining)
        oracle_broken(w, "commit_grace", "%s failed %lld ms after its answer, and the commit may take %lld",
                      item->truth->id, (long long)(w->now_us - p->told_us) / 1000, (long long)grace_ms);
}

/* Counts charges: fewer different messages than the circuit breaker's threshold between two successes. */
static void count_charge(struct world *w, struct sidecar *s, const struct batch_item *item,
                         const struct post *p)
{
    struct promises *o = promises_of(s, item->queue);
    const struct queue_rules *r = rules_of(w, item->queue);

    if (p->told_us <= o->good_us || p->carrier->n_members > 1 || r->batch.max_messages)
        return;
    for (size_t i = 0; i < o->n_failed; i++)
        if (o->failed[i] == item->truth)
            return;
    if (o->n_failed == o->failed_cap) {
        o->failed_cap = o->failed_cap ? o->failed_cap * 2 : 16;
        o->failed = mem_realloc(o->failed, o->failed_cap * sizeof(*o->failed));
    }
    o->failed[o->n_failed++] = item->truth;
    if (r->brake && o->n_failed >= (size_t)brake_threshold(r->brake, r->prefetch))
        oracle_broken(w, "breaker", "%s is charged as the %zuth message in a row", item->truth->id,
                      o->n_failed);
}

static void decided_charge(struct world *w, struct sidecar *s, const struct batch_item *item,
                           const struct post *p)
{
    const struct queue_rules *r = rules_of(w, item->queue);
    int attempt = item->truth->row.attempt, most = r->max_attempts;
    bool dies = item->op == OP_DEAD_LETTER;
    /* In `response` the next message of a key waits for one more window after a last attempt without an answer. */
    bool key_waits = r->ordered && !r->transaction && item->truth->key >= 0 &&
                     (p->kind != ANSWER_STATUS || p->status == 504);

    /* If the token was taken over meanwhile, the row counts other attempts. */
    if (memcmp(item->truth->row.token, item->ask.token, sizeof(item->ask.token)))
        return;
    switch (meaning_of(w, p)) {
    case MEANS_DONE:
        check_grace(w, s, item, p);
        /* fall through */
    case MEANS_FAILED:
    case MEANS_CRASHED:
        if (dies != (attempt >= most) && !item->ask.only_expired && !(key_waits && !dies))
            oracle_broken(w, "charge", "%s %s after attempt %d of %d", item->truth->id,
                          dies ? "dies" : "is to be tried again", attempt, most);
        if (!item->ask.give_back)
            count_charge(w, s, item, p);
        if (!dies && !item->ask.give_back)
            check_backoff(w, item, attempt, attempt,
                          p->kind == ANSWER_STATUS && p->status == 504 && p->carrier->n_members == 1);
        break;
    case MEANS_ACCEPTED:
        if (dies || !item->ask.only_expired)
            oracle_broken(w, "charge", "%s was accepted, and fails without its window", item->truth->id);
        break;
    case MEANS_NOT_NOW:
    case MEANS_UNREACHABLE:
    case MEANS_PERMANENT:
        oracle_broken(w, "charge", "an answer of %d to %s counts as a failed attempt", p->status,
                      item->truth->id);
        break;
    case MEANS_NOTHING:
        break;
    }
}

/* Key that differs for each delivery of all sidecars. */
static uint64_t delivery_key(const struct sidecar *s, uint64_t ref)
{
    return ref | (uint64_t)s->life << 32 | (uint64_t)s->index << 56;
}

/* Counts ends without a charge, of a delivery, for the waits that grow with them. */
static void count_free(const struct world *w, const struct sidecar *s, const struct batch_item *item,
                       const struct post *p)
{
    struct free_ends *f = &item->truth->free[s->index];

    if (f->ref != delivery_key(s, item->ref))
        *f = (struct free_ends){.ref = delivery_key(s, item->ref)};
    if (!p || !p->answered || memcmp(f->latest, p->token, sizeof(f->latest)) == 0)
        return;
    memcpy(f->latest, p->token, sizeof(f->latest));
    f->n_free++;
    f->n_not_now += meaning_of(w, p) == MEANS_NOT_NOW;
}

/* Checks an attempt that is released without a charge. */
static void decided_release(struct world *w, struct sidecar *s, const struct delivery *d,
                            const struct batch_item *item, const struct post *p)
{
    const char *why = p && p->answered ? why_spared(w, s, p, item->copy) : NULL;

    if (!p || !p->answered) {
        if (p && !s->draining && s->queues[item->queue].channel == item->copy->channel)
            oracle_broken(w, "charge", "%s is released, and was not answered", item->truth->id);
        return;
    }
    if (item->ask.delay_us >= 0)
        check_wait(w, item, p, d);
    switch (meaning_of(w, p)) {
    case MEANS_DONE:
        if (!rules_of(w, item->queue)->transaction)
            oracle_broken(w, "charge", "%s was answered %d, and is released", item->truth->id, p->status);
        else
            check_grace(w, s, item, p);
        if (!why && s->application.n_crashes == p->n_crashes)
            oracle_broken(w, "charge", "%s was answered %d without a completion, and is not charged",
                          item->truth->id, p->status);
        break;
    case MEANS_PERMANENT:
    case MEANS_FAILED:
        if (!why)
            oracle_broken(w, "charge", "%s was answered %d, and is not charged", item->truth->id, p->status);
        break;
    case MEANS_ACCEPTED:
        if (!why)
            oracle_broken(w, "charge", "%s was accepted, and is released", item->truth->id);
        break;
    default:
        break;
    }
}

/* Do others wait for the key, the room or the credit of a message without attempts? */
static bool others_wait_for(const struct queue *q, const struct delivery *d)
{
    return (d->place.line && d->place.line->places.len > 1) || q->pauses[PAUSE_BYTES_FULL].since_ms ||
           q->pauses[PAUSE_PARKED_FULL].since_ms || q->held.unacked.len >= (size_t)q->consumer.prefetch;
}

/* Could another message of the queue be tried instead? */
static bool another_can_be_tried(const struct queue *q, const struct delivery *d)
{
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *other = container_of((struct link *)k, struct delivery, in_tags);

        if (other != d && other->wait == WAIT_BRAKE && other->op == OP_CLAIM &&
            other->claim->attempt < q->rules.max_attempts &&
            other->claim->takeovers < q->rules.max_attempts + 2)
            return true;
    }
    return false;
}

/* Checks that no message dies while everything fails, except by an operator's decision, because the broker would drop
 * it, or because its attempts are used up and the others wait for it. */
static void check_death(struct world *w, const struct sidecar *s, const struct delivery *d,
                        const struct batch_item *item)
{
    const struct queue *q = &s->queues[item->queue].core;
    bool decided_before = d->ready_ms <= q->share->brake.since_ms;

    if (!q->share->brake.on || decided_before || delivery_dead_letter(d)->unsure || item->truth->given_up ||
        item->reason == DEAD_OPERATOR || item->reason == DEAD_DELIVERY_LIMIT)
        return;
    if (oracle_is_near(w, item->copy) || (item->reason == DEAD_ATTEMPTS && item->ask.exhausted &&
                                          others_wait_for(q, d) && !another_can_be_tried(q, d)))
        return;
    oracle_broken(w, "breaker", "%s dies (%s) while everything fails", item->truth->id,
                  dead_reasons[item->reason].name);
}

static void decided_death(struct world *w, struct sidecar *s, const struct delivery *d,
                          const struct batch_item *item, const struct post *p)
{
    check_death(w, s, d, item);
    if (!p || !p->answered)
        return;
    if (item->reason == DEAD_ATTEMPTS && !item->ask.exhausted)
        decided_charge(w, s, item, p);
    if (item->reason == DEAD_PERMANENT && meaning_of(w, p) == MEANS_PERMANENT)
        count_charge(w, s, item, p);
}

/* Checks that a claim is not sent before its time, unless an operator or a clock has shortened that. */
static void check_due(struct world *w, const struct sidecar *s, const struct batch_item *item)
{
    const struct truth *t = item->truth;

    if (t->due_us && t->due_ref == delivery_key(s, item->ref) && w->now_us < t->due_us - LEEWAY_US &&
        !t->given_up)
        oracle_broken(w, "backoff", "%s is claimed %lld ms before it is due", t->id,
                      (long long)(t->due_us - w->now_us) / 1000);
    /* A message near its delivery limit that cannot be renewed is claimed for its dead letter. */
    if (promises_of(s, item->queue)->paused && !t->given_up && !oracle_is_near(w, item->copy))
        oracle_broken(w, "pause", "%s is claimed while the operator's pause is on", t->id);
}

void promises_decided(struct world *w, struct sidecar *s, const struct delivery *d,
                      const struct batch_item *item)
{
    const struct post *p = post_of(s, item->truth, item->ask.token);

    if (item->ask.give_back)
        count_free(w, s, item, p);
    switch (item->op) {
    case OP_CLAIM:
        check_due(w, s, item);
        break;
    case OP_COMPLETE:
        if (!p || !p->answered || p->kind != ANSWER_STATUS || p->status / 100 != 2)
            oracle_broken(w, "complete", "%s is to be completed, and was not answered 2xx", item->truth->id);
        break;
    case OP_REVOKE:
        if (!p)
            oracle_broken(w, "window", "%s is revoked, and was never sent", item->truth->id);
        break;
    case OP_FAIL:
        if (!p || !p->answered)
            oracle_broken(w, "charge", "%s fails, and was not answered", item->truth->id);
        else
            decided_charge(w, s, item, p);
        break;
    case OP_RELEASE:
        decided_release(w, s, d, item, p);
        break;
    case OP_DEAD_LETTER:
        decided_death(w, s, d, item, p);
        break;
    default:
        break;
    }
}

/* --- requests --- */

void promises_sent(struct world *w, const struct post *p)
{
    const struct truth *t = p->truth;

    if (t->is_too_old && memcmp(t->too_old, p->token, sizeof(t->too_old)) == 0)
        oracle_broken(w, "max_age", "%s is POSTed, and is older than max_age", t->id);
}

void promises_abandoned(struct world *w, const struct sidecar *s, const struct post *p)
{
    bool grace = s->draining && w->now_us - s->drain_since_us < DRAIN_GRACE_MS * 1000 - LEEWAY_US;

    if (grace && w->now_us - p->sent_us < p->window_us / 10 * 9)
        oracle_broken(w, "drain", "%s is abandoned within the grace period of a drain", p->truth->id);
}

/* --- the database --- */

void promises_written(struct world *w, const struct batch_item *item)
{
    const struct queue_rules *r = rules_of(w, item->queue);
    struct truth *t = item->truth;

    switch (item->reply.answer) {
    case ROW_CLAIMED:
        if (item->op != OP_CLAIM)
            break;
        item->copy->was_dead = false;
        t->due_us = 0;
        t->is_too_old = r->max_age_ms && item->reply.age_us / 1000 > r->max_age_ms;
        memcpy(t->too_old, item->ask.token, sizeof(t->too_old));
        break;
    case ROW_FAILED:
    case ROW_RELEASED:
        t->due_us = 0;
        break;
    default:
        break;
    }
}

/* In the last half second of a drain a delivery is returned although a statement about it is under way. */
static bool has_left(struct sidecar *s, const struct batch_item *item)
{
    const struct delivery *d = queue_find(&s->queues[item->queue].core, item->ref);

    return s->draining && (!d || d->op == OP_REQUEUE);
}

void promises_heard(struct world *w, struct sidecar *s, const struct batch_item *item)
{
    struct promises *o = promises_of(s, item->queue);
    struct truth *t = item->truth;

    switch (item->reply.answer) {
    case ROW_FAILED:
    case ROW_RELEASED:
        o->n_failures += item->reply.answer == ROW_FAILED;
        o->n_released += item->reply.answer == ROW_RELEASED && !has_left(s, item);
        if (item->ask.delay_us >= 0 && t->row.status != INBOX_NONE) {
            bool last =
                item->reply.answer == ROW_FAILED && t->row.attempt >= rules_of(w, item->queue)->max_attempts;

            t->due_us = last ? 0 : w->now_us + item->ask.delay_us;
            t->due_ref = delivery_key(s, item->ref);
        }
        break;
    case ROW_DEAD_LETTERED:
        o->n_dead++;
        break;
    default:
        break;
    }
}

void promises_retried(struct world *w, int queue)
{
    for (size_t i = 0; i < w->n_truths; i++)
        if (w->truths[i].queue == queue)
            w->truths[i].due_us = 0;
}

/* --- the broker --- */

/* Checks that a dead message that its own dead-letter exchange leads back waits, each time for longer. */
void promises_rejected(struct world *w, const struct copy *m)
{
    enum { LEAST_MS = 100 }; /* a tenth of the shortest bound */
    const struct sidecar *s = w->sidecars[m->holder];

    if (m->n_rejected && m->was_dead && !s->draining && !oracle_is_near(w, m) &&
        w->now_us - m->delivered_us < LEAST_MS * 1000)
        oracle_broken(w, "circle", "%s is rejected again after %lld ms", m->truth->id,
                      (long long)(w->now_us - m->delivered_us) / 1000);
}

/* --- the log --- */

void promises_told(struct world *w, struct sidecar *s, int queue, const struct note *n)
{
    struct promises *o = promises_of(s, queue);
    const struct queue *q = &s->queues[queue].core;

    if (n->event != EVENT_COMPLETED)
        return;
    o->n_completed++;
    if (o->on_us && !q->share->brake.on && !rules_of(w, queue)->batch.max_messages) {
        const struct truth *t = oracle_truth(w, queue, n->d);
        const struct post *p = t ? t->posts : NULL;

        while (p && p->sidecar != s)
            p = p->next;
        if (p && p->sent_us < o->on_us - LEEWAY_US)
            o->early = t;
        else
            o->may_end = true;
    }
    if (!q->share->brake.on) {
        o->good_us = w->now_us;
        o->n_failed = 0;
    }
}

/* --- time --- */

static bool has_work(const struct world *w, const struct sidecar *s, const struct queue *q)
{
    bool any = s->n_open > 0 || !s->link || !s->base || s->database.refuses || q->held.n_accepted ||
               q->held.waiting[WAIT_LOCKED].len || q->held.waiting[WAIT_WATCHING].len ||
               q->held.waiting[WAIT_AGAIN].len || q->held.waiting[WAIT_RENEWAL].len;

    for (int op = 0; op < N_OPERATIONS; op++)
        any |= q->held.sent[op].len > 0;
    return any || s->link->cut || s->base->cut || w->now_us < s->link->slow_until_us ||
           w->now_us < s->base->slow_until_us;
}

/* Checks the figures of the stats line, once all lines of a turn are logged. */
static void check_counts(struct world *w, struct sidecar *s, int queue)
{
    struct promises *o = promises_of(s, queue);
    const struct queue_counts *c = &s->queues[queue].core.counts;

    o->counts_due = false;
    if (c->received.total != o->n_received || c->dead.total != o->n_dead ||
        c->completed.total != o->n_completed || c->given_back.total != o->n_released)
        oracle_broken(
            w, "counts",
            "received %llu of %llu, dead %llu of %llu, completed %llu of %llu, given back %llu of %llu",
            (unsigned long long)c->received.total, (unsigned long long)o->n_received,
            (unsigned long long)c->dead.total, (unsigned long long)o->n_dead,
            (unsigned long long)c->completed.total, (unsigned long long)o->n_completed,
            (unsigned long long)c->given_back.total, (unsigned long long)o->n_released);
}

/* Checks the end of the circuit breaker. A turn may have the answers of several messages before the first of their
 * log lines: one of them has ended it. */
static void check_end_of_breaker(struct world *w, struct promises *o)
{
    if (o->early && !o->may_end)
        oracle_broken(w, "breaker", "%s ends it, and was sent before everything failed", o->early->id);
    o->early = NULL;
    o->may_end = false;
}

void promises_turn(struct world *w, struct sidecar *s)
{
    for (int i = 0; i < w->plan->n_queues; i++) {
        struct promises *o = promises_of(s, i);
        const struct queue *q = &s->queues[i].core;

        check_end_of_breaker(w, o);
        if (q->share->brake.on) {
            o->was_on_us = w->now_us;
            if (!o->on_us) {
                o->on_us = w->now_us;
                w->counts.n_breakers++;
            }
        } else if (o->on_us) {
            o->was_on_us = w->now_us;
            o->on_us = 0;
        }
        if (has_work(w, s, q))
            o->busy_us = w->now_us;
        if (o->counts_due)
            check_counts(w, s, i);
    }
}

/* Checks that a drain with nothing in flight does not last. A queue with a delivery limit of 0 keeps its messages to
 * the end of the grace period, since the broker drops each returned one. */
static void check_drain(struct world *w, const struct sidecar *s, int queue)
{
    enum { MOST_US = 5000000 };
    const struct promises *o = promises_of(s, queue);
    const struct plan_queue *p = &w->plan->queues[queue];
    int64_t since = s->drain_since_us > o->busy_us ? s->drain_since_us : o->busy_us;

    if (p->quorum && p->limit == 0)
        return;
    if (since < s->frozen_until_us)
        since = s->frozen_until_us;
    if (s->draining && s->queues[queue].core.drain != DRAIN_DONE && w->now_us - since > MOST_US)
        oracle_broken(w, "drain", "a drain with nothing in flight lasts for %lld s",
                      (long long)(w->now_us - since) / 1000000);
}

static void check_timers(struct world *w, const struct sidecar *s, int queue)
{
    int64_t next_ms = timers_next_ms(&s->queues[queue].core.held.timers);

    if (next_ms < world_ms(w) - 1000 && s->turn_us > w->now_us)
        oracle_broken(w, "late", "a wait ended %lld ms ago", (long long)(world_ms(w) - next_ms));
}

void promises_second(struct world *w, struct sidecar *s, int queue)
{
    check_drain(w, s, queue);
    check_timers(w, s, queue);
    promises_of(s, queue)->counts_due = true;
}
