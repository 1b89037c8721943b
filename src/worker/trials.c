/* Trials: one message at a time shows whether a pause is over, taken from the broker where none is here. What
 * was sent before the pause began takes no part in that, however long it lasts. The brake tries in the same
 * way, but for what is said of messages that were tried before. */
#include "worker.h"

enum {
    TRIAL_IDLE_MS = 10000, /* nobody came to be tried: there is nothing to wait for */
    TRIAL_SLOW_MS = 10000, /* it was taken, and not refused: the application is at work */
    TRIAL_SOON_MS = 30000, /* what waits for longer is not waited for */
    TRIAL_LEAD_MS = 500,   /* so long do those that were tried in vain let others go first */
    TRIAL_OTHERS = 4,      /* so many messages are held that were tried in vain; few more in long pauses */
    TRIAL_LONG = 8,        /* after so many failed trials they are held for a round of them */
};

bool trial_began_after(const struct worker *w, const struct delivery *d)
{
    return w->is_on_trial && delivery_was_sent_before(w, d, PAUSE_APPLICATION);
}

bool worker_is_trying(const struct worker *w)
{
    return worker_is_braked(w) || w->is_on_trial;
}

/* All requests that are out. While something is being tried: those that try it; what was accepted is not
 * over. */
size_t worker_n_busy(const struct worker *w)
{
    static const enum delivery_state states[] = {DELIVERY_FORWARDING, DELIVERY_TO_REVOKE, DELIVERY_REVOKING,
                                                 DELIVERY_TO_CHECK,   DELIVERY_CHECKING,  DELIVERY_WATCHING};
    size_t n = 0;

    if (!worker_is_trying(w))
        return worker_n_out(w);
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        list_each(&w->states[states[i]], k)
        {
            const struct delivery *d = container_of(k, struct delivery, in_state);

            n += !delivery_was_sent_before(w, d, PAUSE_EVERYTHING_FAILS) &&
                 !delivery_was_sent_before(w, d, PAUSE_APPLICATION);
        }
    }
    return n;
}

/* It has had its turn in this pause, and it may be the message: another one tells more. */
static bool was_tried(const struct worker *w, const struct delivery *d)
{
    return worker_is_paused(w, PAUSE_APPLICATION) && !delivery_was_sent_before(w, d, PAUSE_APPLICATION);
}

bool delivery_stands_aside(const struct worker *w, const struct delivery *d)
{
    if (!was_tried(w, d))
        return false;
    if (w->now_ms < w->trial_since_ms + TRIAL_LEAD_MS)
        return true;
    if (d->state != DELIVERY_SUSPECT)
        return false;
    list_each(&w->states[DELIVERY_TO_CLAIM], k) /* each in its turn, in the order of their latest tries */
    {
        const struct delivery *other = container_of(k, struct delivery, in_state);

        if (was_tried(w, other) && other->not_before_ms <= w->now_ms)
            return other->n_th_forward < d->n_th_forward;
    }
    return false;
}

int64_t trial_next_turn_ms(const struct worker *w)
{
    int64_t at_ms = w->trial_since_ms + TRIAL_LEAD_MS;

    return w->is_on_trial && at_ms > w->now_ms ? at_ms : INT64_MAX;
}

/* Would it go within a moment, if it were allowed to? What is one of several copies and not the first, what
 * is held or locked elsewhere, what has no attempts left, and what is dead, is no help. */
static bool could_be_tried(const struct worker *w, const struct delivery *d)
{
    int64_t soon = w->now_ms + TRIAL_SOON_MS;

    switch (d->state) {
    case DELIVERY_SUSPECT:
        return d->not_before_ms <= soon && !suspect_stands_back(w, d);
    case DELIVERY_PARKED:
        return d->message && d->leader == d && d->wait == WAIT_DUE && !d->used_up && !d->rowless &&
               d->due_ms <= soon;
    case DELIVERY_TO_LOOK:
    case DELIVERY_LOOKING:
        return !d->locked_since_ms && d->wait != WAIT_HELD;
    default:
        return !d->locked_since_ms;
    }
}

/* How many are here that could be tried with, now or soon, and how many of them were tried before; it stops
 * at the first that was not. What is accepted and watched is no help. */
static size_t n_to_try(const struct worker *w, size_t *n_tried)
{
    static const enum delivery_state states[] = {DELIVERY_TO_CLAIM, DELIVERY_CLAIMING,   DELIVERY_CLAIMED,
                                                 DELIVERY_TO_LOOK,  DELIVERY_LOOKING,    DELIVERY_TO_FAIL,
                                                 DELIVERY_FAILING,  DELIVERY_TO_RELEASE, DELIVERY_RELEASING,
                                                 DELIVERY_SUSPECT,  DELIVERY_PARKED};
    size_t n = 0;

    *n_tried = 0;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        list_each(&w->states[states[i]], k)
        {
            const struct delivery *d = container_of(k, struct delivery, in_state);
            bool helps = could_be_tried(w, d);

            n += helps;
            *n_tried += helps && was_tried(w, d);
            if (n > *n_tried)
                return n;
        }
    }
    return n;
}

static size_t n_bits(int n)
{
    size_t bits = 0;

    for (; n > 0; n /= 2)
        bits++;
    return bits;
}

/* So many that were tried in vain are held, hardly more the longer it lasts: where it is the application, all
 * of them go back, and a return may be dear. */
static size_t most_tried(const struct worker *w)
{
    return TRIAL_OTHERS + n_bits(w->n_pauses_in_a_row);
}

/* What was tried in vain may be at fault itself, and could be tried for ever: another message is taken from
 * the queue. */
bool trial_needs_another(const struct worker *w)
{
    size_t n_tried, n = n_to_try(w, &n_tried);

    return !worker_n_busy(w) && n == n_tried && n_tried < most_tried(w);
}

/* It has answered a request as one that works does. */
void worker_saw_answer(struct worker *w, const struct delivery *d)
{
    if (w->is_on_trial && !delivery_was_sent_before(w, d, PAUSE_APPLICATION))
        pause_clear(w, PAUSE_APPLICATION);
}

/* What was tried goes back to its place in the queue, before all others. When that has not helped, it is held
 * for as long as it takes to try so many, or those behind it would never be. */
int64_t trial_hold_ms(const struct worker *w, const struct delivery *d)
{
    int64_t round_ms = (int64_t)most_tried(w) * (probe_wait_max_ms(w) + TRIAL_LEAD_MS + w->refused_after_ms);

    return was_tried(w, d) && w->n_pauses_in_a_row > TRIAL_LONG && round_ms > w->q->pause_hold_ms
               ? round_ms
               : w->q->pause_hold_ms;
}

/* There is nobody to be tried, or the one who is has been with the application for long. */
bool trial_is_vain(const struct worker *w)
{
    int64_t since_ms = w->sent_ms > w->trial_since_ms ? w->sent_ms : w->trial_since_ms;
    size_t n_tried;

    if (worker_n_busy(w)) /* perhaps with one that an earlier trial has sent */
        return w->now_ms - since_ms >= TRIAL_SLOW_MS + w->refused_after_ms;
    return w->now_ms - w->trial_since_ms >= TRIAL_IDLE_MS && w->consumer == CONSUMER_ACTIVE &&
           !n_to_try(w, &n_tried);
}
