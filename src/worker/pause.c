/* Reasons to forward nothing, and how it goes on: probes with backoff, a trickle before full speed, and the
 * brake.
 *
 * A pause charges nobody. While it lasts the consumer is cancelled; what is held goes back to the broker
 * after pause_hold, so that other replicas get it. Where only a message can show that it is over, one at a
 * time is tried; what was sent before the pause began takes no part in that, however long it lasts. */
#include "worker.h"

#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

#include <stdio.h>
#include <string.h>

enum {
    PROBE_MAX_MS = 10000,
    BRAKE_MAX_MS = 30000,
    DATABASE_TRY_MS = 1000,
    DATABASE_TRY_MAX_MS = 15000,
    TELL_LATE_MS = 2000,
    DEAD_MS = 50,
};

static bool is_paused(const struct worker *w, enum pause_reason r)
{
    return w->pauses & 1u << r;
}

/* Statements failed, and the wait after the last of them is over: only another can tell whether they work
 * again, and there is none but a claim. */
static bool is_trying_database(const struct worker *w)
{
    return is_paused(w, PAUSE_DATABASE) && w->inbox && !(w->failing_ops & OPS_OF_HELD) &&
           w->now_ms >= w->database_try_ms;
}

/* Nothing new is taken from the broker, what is here goes on. */
static bool stops_only_consuming(enum pause_reason r)
{
    return r == PAUSE_PARKED_FULL || r == PAUSE_BYTES_FULL || r == PAUSE_TOO_LARGE || r == PAUSE_STREAM;
}

/* Claims made for nothing go back; their attempts too. */
static void release_claimed(struct worker *w, const char *text)
{
    struct link *k;

    while ((k = list_first(&w->states[DELIVERY_CLAIMED]))) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        delivery_set_error(d, text);
        d->delay_ms = 0;
        d->release_to = d->suspect ? RELEASE_ALONE : RELEASE_PARK;
        delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
    }
}

/* A pause that follows others begins with a wait that grows to ten intervals, and to 10 s at most. */
int64_t probe_wait_max_ms(const struct worker *w)
{
    int64_t interval = w->q->ready_interval_ms, wait = interval * 10;

    if (wait > PROBE_MAX_MS)
        wait = PROBE_MAX_MS;
    return wait > interval ? wait : interval;
}

void pause_set(struct worker *w, enum pause_reason r, const char *text)
{
    struct log_line l;

    if (r == PAUSE_DATABASE && (!is_paused(w, r) || is_trying_database(w)))
        w->database_try_ms = w->now_ms + backoff_ms(DATABASE_TRY_MS, DATABASE_TRY_MAX_MS,
                                                    ++w->n_database_tries, random_below(UINT64_MAX));
    if (is_paused(w, r) && w->pause_told[r]) {
        if (text) /* the stats lines go on to tell it */
            snprintf(w->pause_text[r], sizeof(w->pause_text[r]), "%s", text);
        return;
    }
    if (!is_paused(w, r)) {
        w->pauses |= 1u << r;
        w->paused_since_ms[r] = w->now_ms;
        w->paused_after[r] = target_forwards(w);
        if (r == PAUSE_APPLICATION) {
            w->n_pauses_in_a_row++;
            w->probe_at_ms = w->now_ms + backoff_ms(w->q->ready_interval_ms, probe_wait_max_ms(w),
                                                    w->n_pauses_in_a_row, random_below(UINT64_MAX));
        }
    }
    snprintf(w->pause_text[r], sizeof(w->pause_text[r]), "%s", text ? text : "");
    w->pause_told[r] = true;
    log_begin(&l, EVENT_PAUSED, w->q->name);
    log_text(&l, "reason", pause_reason_info(r)->name);
    log_text(&l, "detail", w->pause_text[r]);
    log_end(&l);
    if (!stops_only_consuming(r))
        release_claimed(w, "the queue came to pause before it was sent");
}

/* The application died, or one of its processes. It is looked at at once, to see whether anybody listens, and
 * used again soon when it died for the first time since it last worked: often one process of several died. */
void pause_for_death(struct worker *w, const char *text)
{
    bool first = !w->n_pauses_in_a_row;

    if (is_paused(w, PAUSE_APPLICATION)) {
        if (w->resume_at_ms < w->now_ms + DEAD_MS)
            w->resume_at_ms = w->now_ms + DEAD_MS;
    } else {
        pause_set(w, PAUSE_APPLICATION, text);
        w->resume_at_ms = first ? w->now_ms + DEAD_MS : w->probe_at_ms;
    }
    w->probe_at_ms = w->now_ms;
}

void pause_quietly(struct worker *w, enum pause_reason r, const char *text)
{
    if (is_paused(w, r))
        return;
    w->pauses |= 1u << r;
    w->paused_since_ms[r] = w->now_ms;
    snprintf(w->pause_text[r], sizeof(w->pause_text[r]), "%s", text);
}

/* Once a second: what was not worth a line when it began may have lasted. */
static void tell_late_pauses(struct worker *w)
{
    if (is_paused(w, PAUSE_BYTES_FULL) && !w->pause_told[PAUSE_BYTES_FULL] &&
        w->now_ms - w->paused_since_ms[PAUSE_BYTES_FULL] >= TELL_LATE_MS)
        pause_set(w, PAUSE_BYTES_FULL, w->pause_text[PAUSE_BYTES_FULL]);
}

void pause_clear(struct worker *w, enum pause_reason r)
{
    struct log_line l;

    if (!is_paused(w, r))
        return;
    w->pauses &= ~(1u << r);
    if (w->pause_told[r]) {
        w->allowed =
            stops_only_consuming(r) ? w->allowed : 1; /* the trickle; a first start is not a resumption */
        log_begin(&l, EVENT_RESUMED, w->q->name);
        log_text(&l, "reason", pause_reason_info(r)->name);
        log_int(&l, "paused_for_ms", w->now_ms - w->paused_since_ms[r]);
        log_end(&l);
    }
    w->pause_told[r] = false;
}

bool worker_may_forward(const struct worker *w)
{
    unsigned stop = 1u << PAUSE_APPLICATION | 1u << PAUSE_REFUSED;

    if (w->pauses & stop || w->drain || !w->inbox)
        return false;
    if (is_paused(w, PAUSE_DATABASE) && !is_trying_database(w))
        return false;
    /* One message at a time, each after a wait, until one succeeds. */
    if (is_paused(w, PAUSE_EVERYTHING_FAILS))
        return w->now_ms >= w->brake_at_ms;
    return true;
}

static bool was_sent_before(const struct worker *w, const struct delivery *d, enum pause_reason r)
{
    return is_paused(w, r) && d->n_th_forward <= w->paused_after[r];
}

bool worker_is_trying(const struct worker *w)
{
    return w->pauses & (1u << PAUSE_EVERYTHING_FAILS | 1u << PAUSE_DATABASE);
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

            n += !was_sent_before(w, d, PAUSE_EVERYTHING_FAILS) && !was_sent_before(w, d, PAUSE_DATABASE);
        }
    }
    return n;
}

/* Is anything here that could be tried with, now or soon, or that is being tried? What was sent before, or is
 * accepted and watched, or follows another, is no help. */
static bool has_one_to_try(const struct worker *w)
{
    static const enum delivery_state states[] = {DELIVERY_TO_CLAIM,   DELIVERY_CLAIMING, DELIVERY_CLAIMED,
                                                 DELIVERY_TO_LOOK,    DELIVERY_LOOKING,  DELIVERY_PARKED,
                                                 DELIVERY_SUSPECT,    DELIVERY_TO_FAIL,  DELIVERY_FAILING,
                                                 DELIVERY_TO_RELEASE, DELIVERY_RELEASING};

    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
        if (worker_n(w, states[i]) > (states[i] == DELIVERY_PARKED ? worker_n_circling(w) : 0))
            return true;
    return worker_n_busy(w);
}

bool worker_may_consume(const struct worker *w)
{
    unsigned pauses = w->pauses & ~(1u << PAUSE_STREAM); /* only consuming shows whether it still is one */

    if (worker_is_trying(w) && !has_one_to_try(w)) { /* a message is needed */
        pauses &= ~(1u << PAUSE_EVERYTHING_FAILS);
        if (is_trying_database(w))
            pauses &= ~(1u << PAUSE_DATABASE);
    }
    return !pauses && !w->drain && w->inbox;
}

/* --- the application's readiness --- */

void worker_probe(struct worker *w)
{
    struct fault f = {0};

    /* It died, and has answered since, perhaps to another queue: no need to wait longer. */
    if (w->resume_at_ms > w->now_ms && target_proven(w) >= target_deaths(w))
        w->resume_at_ms = w->probe_at_ms = w->now_ms;
    switch (forward_probe_result(w->forward, &f)) {
    case PROBE_READY:
        w->probing = false;
        if (!is_paused(w, PAUSE_APPLICATION))
            break;
        worker_saw_ready(w, w->probe_after);
        w->probe_at_ms = w->now_ms + w->q->ready_interval_ms;
        if (w->resume_at_ms < w->probe_at_ms)
            w->probe_at_ms = w->resume_at_ms;
        if (w->now_ms < w->resume_at_ms)
            break;
        w->resume_at_ms = 0;
        pause_clear(w, PAUSE_APPLICATION);
        break;
    case PROBE_NOT_READY:
        w->probing = false;
        if (!is_paused(w, PAUSE_APPLICATION))
            break;
        worker_saw_nobody(w, w->probe_after);
        if (!w->pause_told[PAUSE_APPLICATION])
            pause_set(w, PAUSE_APPLICATION, f.text);
        /* Jittered, so that many sidecars do not ask in step. */
        w->probe_at_ms = w->now_ms + w->q->ready_interval_ms / 2 +
                         (int64_t)random_below((uint64_t)w->q->ready_interval_ms);
        break;
    case PROBE_NONE:
        break;
    }
    if (is_paused(w, PAUSE_APPLICATION) && !w->probing && w->now_ms >= w->probe_at_ms) {
        w->probing = true;
        w->probe_after = target_deaths(w);
        forward_probe(w->forward);
    }
}

/* --- the trickle and the brake --- */

void worker_success(struct worker *w, const struct delivery *d)
{
    w->n_pauses_in_a_row = 0;
    worker_trickle(w, 1);
    if (was_sent_before(w, d, PAUSE_EVERYTHING_FAILS))
        return;
    w->n_failed_in_a_row = 0;
    w->n_brakes = 0;
    pause_clear(w, PAUSE_EVERYTHING_FAILS);
}

void worker_trickle(struct worker *w, int more)
{
    int most = worker_is_trying(w) ? 1 : w->q->forward.concurrency;

    w->allowed = w->allowed + more < most ? w->allowed + more : most;
}

/* While there are other messages whose answers will tell whether the message or the application is at fault,
 * a death waits for them: as many as could still set the brake, and for half a window at most, since the
 * token must still be the row's. */
bool worker_brake_holds(const struct worker *w, const struct delivery *d)
{
    if (!w->q->brake || !w->n_failed_in_a_row || w->now_ms - d->ready_ms > w->q->token_window_ms / 2)
        return false;
    size_t others = worker_n_out(w) + worker_n(w, DELIVERY_CLAIMING) + worker_n(w, DELIVERY_CLAIMED) +
                    worker_n(w, DELIVERY_TO_CLAIM) + worker_n(w, DELIVERY_TO_LOOK) +
                    worker_n(w, DELIVERY_LOOKING);

    return others && others + (size_t)w->n_failed_in_a_row >= (size_t)w->q->brake;
}

/* A death that is not written yet, and is not the message's own after all. */
void delivery_spare(struct worker *w, struct delivery *d)
{
    d->charged = false;
    d->delay_ms = delivery_backoff_ms(w, ++d->n_given_back);
    d->release_to = d->suspect ? RELEASE_ALONE : RELEASE_PARK;
    delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
}

/* Deaths that were waiting: it is the application, not they. */
static void brake_give_back(struct worker *w)
{
    for (struct link *k = w->states[DELIVERY_TO_BURY].head.next, *next;
         k != &w->states[DELIVERY_TO_BURY].head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        next = k->next;
        if (d->charged)
            delivery_spare(w, d);
    }
}

void worker_failure(struct worker *w, const struct delivery *d)
{
    uint64_t id = hash_bytes(d->id, d->id_len);
    char text[256];
    int n = w->n_failed_in_a_row < FAILED_IDS ? w->n_failed_in_a_row : FAILED_IDS;

    if (is_paused(w, PAUSE_EVERYTHING_FAILS)) {
        if (was_sent_before(w, d, PAUSE_EVERYTHING_FAILS) || w->now_ms < w->brake_at_ms)
            return;
        w->brake_at_ms =
            w->now_ms + backoff_ms(w->q->backoff_ms, BRAKE_MAX_MS, ++w->n_brakes, random_below(UINT64_MAX));
        return;
    }
    for (int i = 0; i < n; i++)
        if (w->failed_ids[i] == id)
            return;
    if (n < FAILED_IDS)
        w->failed_ids[n] = id;
    w->n_failed_in_a_row++;
    if (w->q->brake && w->n_failed_in_a_row >= w->q->brake) {
        snprintf(text, sizeof(text), "%d different messages in a row failed, the last: %s",
                 w->n_failed_in_a_row, d->error ? d->error : "");
        w->brake_at_ms =
            w->now_ms + backoff_ms(w->q->backoff_ms, BRAKE_MAX_MS, ++w->n_brakes, random_below(UINT64_MAX));
        w->allowed = 1;
        pause_set(w, PAUSE_EVERYTHING_FAILS, text);
        brake_give_back(w);
    }
}

/* --- once a second --- */

static void return_all(struct worker *w, enum delivery_state s, size_t *n)
{
    for (struct link *k = w->states[s].head.next, *next; k != &w->states[s].head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        next = k->next;
        if (!delivery_may_return(w, d) || (!d->message && d->rowless))
            continue;
        *n += delivery_return(w, d);
    }
}

void worker_pause_tick(struct worker *w)
{
    static const enum delivery_state idle[] = {DELIVERY_FOLLOWING, DELIVERY_TO_CLAIM, DELIVERY_TO_LOOK,
                                               DELIVERY_PARKED, DELIVERY_SUSPECT};
    struct log_line l;
    size_t n = 0;
    unsigned whole = w->pauses & (1u << PAUSE_APPLICATION | 1u << PAUSE_DATABASE | 1u << PAUSE_REFUSED);

    tell_late_pauses(w);
    worker_trickle(w, w->allowed); /* nobody waits for answers that are slow: twice as many each second */
    if (!whole || w->drain || !w->generation)
        return;
    enum pause_reason r = whole & 1u << PAUSE_APPLICATION ? PAUSE_APPLICATION
                          : whole & 1u << PAUSE_DATABASE  ? PAUSE_DATABASE
                                                          : PAUSE_REFUSED;
    if (w->now_ms - w->paused_since_ms[r] < w->q->pause_hold_ms)
        return;
    for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++)
        return_all(w, idle[i], &n);
    if (!n)
        return;
    log_begin(&l, EVENT_RETURNED, w->q->name);
    log_text(&l, "reason", pause_reason_info(r)->name);
    log_int(&l, "n", (int64_t)n);
    log_end(&l);
}
