/* Reasons to forward nothing, and how it goes on: probes with backoff, a trickle before full speed; trials,
 * where only a message can show that it is over, stand in trials.c.
 *
 * A pause charges nobody. While it lasts the consumer is cancelled; what is held goes back to the broker
 * after pause_hold, so that other replicas get it. */
#include "worker.h"

#include "onceward/base/clock.h"
#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

#include <stdio.h>
#include <string.h>

enum {
    PROBE_MAX_MS = 10000,
    N_SILENT_MAX = 3, /* probes without an answer: it may only be busy */
    DATABASE_TRY_MS = 1000,
    DATABASE_TRY_MAX_MS = 15000,
    TELL_LATE_MS = 2000,
    DEAD_MS = 50,
};

bool worker_is_paused(const struct worker *w, enum pause_reason r)
{
    return w->pauses & 1u << r;
}

/* Statements failed, and the wait after the last of them is over: only another can tell whether they work
 * again. */
static bool is_trying_database(const struct worker *w)
{
    return worker_is_paused(w, PAUSE_DATABASE) && w->inbox && !(w->failing_ops & OPS_OF_HELD) &&
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

static void application_wait(struct worker *w)
{
    w->is_on_trial = false;
    w->n_pauses_in_a_row++;
    w->probe_at_ms = w->now_ms + backoff_ms(w->q->ready_interval_ms, probe_wait_max_ms(w),
                                            w->n_pauses_in_a_row, random_below(UINT64_MAX));
}

/* Told as what it waits for: the line of a pause is for what worked before. */
static bool waits_for_first_start(struct worker *w, enum pause_reason r)
{
    if (r != PAUSE_APPLICATION && r != PAUSE_DATABASE)
        return false;
    return report_waiting(w, r == PAUSE_APPLICATION ? WAITING_APPLICATION : WAITING_DATABASE,
                          w->pause_text[r]);
}

void pause_set(struct worker *w, enum pause_reason r, const char *text)
{
    bool is_failed_trial = r == PAUSE_APPLICATION && w->is_on_trial;
    struct log_line l;

    if (r == PAUSE_DATABASE && (!worker_is_paused(w, r) || is_trying_database(w)))
        w->database_try_ms = w->now_ms + backoff_ms(DATABASE_TRY_MS, DATABASE_TRY_MAX_MS,
                                                    ++w->n_database_tries, random_below(UINT64_MAX));
    if (worker_is_paused(w, r) && w->pause_told[r] && !is_failed_trial) {
        if (text) /* the stats lines go on to tell it */
            snprintf(w->pause_text[r], sizeof(w->pause_text[r]), "%s", text);
        return;
    }
    if (!worker_is_paused(w, r)) {
        w->pauses |= 1u << r;
        w->paused_since_ms[r] = w->now_ms;
        w->paused_after[r] = target_forwards(w);
        if (r == PAUSE_APPLICATION)
            application_wait(w);
    } else if (is_failed_trial) {
        application_wait(w);
    }
    if (text != w->pause_text[r])
        snprintf(w->pause_text[r], sizeof(w->pause_text[r]), "%s", text ? text : "");
    if (!w->pause_told[r] && !waits_for_first_start(w, r)) {
        w->pause_told[r] = true;
        log_begin(&l, EVENT_PAUSED, w->q->name);
        log_text(&l, "reason", pause_reasons[r].name);
        log_text(&l, "detail", w->pause_text[r]);
        log_end(&l);
    }
    if (!stops_only_consuming(r))
        release_claimed(w, "the queue came to pause before it was sent");
}

/* The application died, or one of its processes. It is looked at at once, to see whether anybody listens, and
 * used again soon when it died for the first time since it last worked: often one process of several died. */
void pause_for_death(struct worker *w, const struct delivery *d)
{
    bool first = !w->n_pauses_in_a_row;

    if (trial_began_after(w, d))
        return;
    w->is_doubted = w->waits_for_life = true;
    if (worker_is_paused(w, PAUSE_APPLICATION) && !w->is_on_trial) {
        if (w->resume_at_ms < w->now_ms + DEAD_MS)
            w->resume_at_ms = w->now_ms + DEAD_MS;
    } else {
        pause_set(w, PAUSE_APPLICATION, d->error);
        w->resume_at_ms = first ? w->now_ms + DEAD_MS : w->probe_at_ms;
    }
    w->probe_at_ms = w->now_ms;
}

/* It said that it cannot now, or nobody listened. */
void pause_for_refusal(struct worker *w, const struct delivery *d)
{
    int64_t most = probe_wait_max_ms(w), asked = d->retry_after_ms < most ? d->retry_after_ms : most;

    if (trial_began_after(w, d))
        return;
    pause_set(w, PAUSE_APPLICATION, d->error);
    w->is_doubted = d->http_status != 0 || w->q->ready_url;
    if (asked > 0 && w->probe_at_ms < w->now_ms + asked)
        w->probe_at_ms = w->now_ms + asked;
    if (w->is_doubted) { /* a probe that is on its way knows nothing of this */
        w->resume_at_ms = w->probe_at_ms;
        w->waits_for_life = false;
    }
}

void pause_quietly(struct worker *w, enum pause_reason r, const char *text)
{
    if (worker_is_paused(w, r))
        return;
    w->pauses |= 1u << r;
    w->paused_since_ms[r] = w->now_ms;
    snprintf(w->pause_text[r], sizeof(w->pause_text[r]), "%s", text);
}

/* Once a second: what was not worth a line when it began may have lasted. */
static void tell_late_pauses(struct worker *w)
{
    if (worker_is_paused(w, PAUSE_BYTES_FULL) && !w->pause_told[PAUSE_BYTES_FULL] &&
        w->now_ms - w->paused_since_ms[PAUSE_BYTES_FULL] >= TELL_LATE_MS)
        pause_set(w, PAUSE_BYTES_FULL, w->pause_text[PAUSE_BYTES_FULL]);
}

void pause_clear(struct worker *w, enum pause_reason r)
{
    struct log_line l;

    if (!worker_is_paused(w, r))
        return;
    w->pauses &= ~(1u << r);
    if (r == PAUSE_APPLICATION)
        w->is_on_trial = w->is_doubted = false;
    if (r == PAUSE_APPLICATION && w->waiting.one[WAITING_APPLICATION].on) {
        waiting_over(&w->waiting, WAITING_APPLICATION);
        w->allowed = 1; /* it has just started, too */
    }
    if (w->pause_told[r]) {
        w->allowed =
            stops_only_consuming(r) ? w->allowed : 1; /* the trickle; a first start is not a resumption */
        log_begin(&l, EVENT_RESUMED, w->q->name);
        log_text(&l, "reason", pause_reasons[r].name);
        log_int(&l, "paused_for_ms", w->now_ms - w->paused_since_ms[r]);
        log_end(&l);
    }
    w->pause_told[r] = false;
}

bool worker_may_forward(const struct worker *w)
{
    unsigned stop = 1u << PAUSE_APPLICATION | 1u << PAUSE_DATABASE | 1u << PAUSE_REFUSED;

    if (w->is_on_trial)
        stop &= ~(1u << PAUSE_APPLICATION);
    if (w->pauses & stop || w->drain || !w->inbox)
        return false;
    /* One message at a time, each after a wait, until one succeeds. */
    if (worker_is_paused(w, PAUSE_EVERYTHING_FAILS))
        return w->now_ms >= w->brake_at_ms;
    return true;
}

bool delivery_was_sent_before(const struct worker *w, const struct delivery *d, enum pause_reason r)
{
    return worker_is_paused(w, r) && d->n_th_forward <= w->paused_after[r];
}

bool worker_is_braked(const struct worker *w)
{
    return worker_is_paused(w, PAUSE_EVERYTHING_FAILS);
}

bool worker_may_consume(const struct worker *w)
{
    unsigned pauses = w->pauses & ~(1u << PAUSE_STREAM); /* only consuming shows whether it still is one */

    if (worker_is_trying(w) && trial_needs_another(w)) {
        pauses &= ~(1u << PAUSE_EVERYTHING_FAILS);
        if (w->is_on_trial)
            pauses &= ~(1u << PAUSE_APPLICATION);
    }
    return !pauses && !w->drain && w->inbox;
}

/* --- the database --- */

void worker_try_database(struct worker *w)
{
    struct fault f = {0};
    char text[256];

    if (!w->inbox)
        return;
    switch (inbox_tried(w->inbox, &f)) {
    case 1:
        w->database_try_ms = w->now_ms; /* it was asked after the wait, whatever has failed since */
        worker_op_works(w, INBOX_CLAIM);
        break;
    case -1:
        if (!worker_is_paused(w, PAUSE_DATABASE))
            break; /* it was asked before the pause ended */
        snprintf(text, sizeof(text), "%s %.200s", f.code, f.text);
        report_database_error(w, f.code, slice_of(f.text));
        pause_set(w, PAUSE_DATABASE, text);
        break;
    default:
        break;
    }
    if (is_trying_database(w))
        inbox_ask_try(w->inbox);
}

/* --- the application's readiness --- */

static void probe_succeeded(struct worker *w)
{
    w->n_silent_probes = 0;
    w->probe_at_ms = w->now_ms + w->q->ready_interval_ms;
    if (!worker_is_paused(w, PAUSE_APPLICATION))
        return;
    worker_saw_ready(w, w->probe_after);
    if (w->resume_at_ms < w->probe_at_ms)
        w->probe_at_ms = w->resume_at_ms;
    if (w->now_ms < w->resume_at_ms)
        return;
    w->resume_at_ms = 0;
    w->probe_at_ms = w->now_ms + w->q->ready_interval_ms;
    if (w->is_on_trial)
        return;
    if (!w->is_doubted || !w->pause_told[PAUSE_APPLICATION]) {
        pause_clear(w, PAUSE_APPLICATION);
        return;
    }
    /* Whoever listens may not be the application, and what is ready to be asked for its health may not be for
     * messages: only an answer ends this pause. */
    w->is_on_trial = true;
    w->trial_since_ms = w->now_ms;
    w->allowed = 1;
}

/* Jittered, so that many sidecars do not ask in step. */
static void probe_failed(struct worker *w, const struct forward_probed *p)
{
    bool is_silent = p->result == PROBE_SILENT;

    if (w->is_on_trial && is_silent) {
        /* It may be busy with the very message that tries it. */
    } else if (worker_is_paused(w, PAUSE_APPLICATION) || !is_silent || ++w->n_silent_probes >= N_SILENT_MAX) {
        worker_saw_nobody(w, w->probe_after);
        pause_set(w, PAUSE_APPLICATION, p->error);
        if (!is_silent)
            w->is_doubted = false;
    }
    w->probe_at_ms =
        w->now_ms + w->q->ready_interval_ms / 2 + (int64_t)random_below((uint64_t)w->q->ready_interval_ms);
}

void worker_probed(struct worker *w, const struct forward_probed *p)
{
    w->probing = false;
    if (p->result == PROBE_READY)
        probe_succeeded(w);
    else
        probe_failed(w, p);
}

/* While the application is paused, and with a readiness URL always. */
void worker_probe(struct worker *w)
{
    /* It died, and has answered since, perhaps to another queue: no need to wait longer. */
    if (w->waits_for_life && w->resume_at_ms > w->now_ms && target_proven(w) >= target_deaths(w))
        w->resume_at_ms = w->probe_at_ms = w->now_ms;
    if (worker_next_probe_ms(w) <= w->now_ms) {
        w->probing = true;
        w->probe_after = target_deaths(w);
        forward_probe(w->forward, 0);
    }
}

int64_t worker_next_probe_ms(const struct worker *w)
{
    bool wanted =
        worker_is_paused(w, PAUSE_APPLICATION) ? !w->is_on_trial || w->q->ready_url : w->q->ready_url != NULL;

    return wanted && !w->probing && !w->drain ? w->probe_at_ms : INT64_MAX;
}

void worker_trickle(struct worker *w, int more)
{
    int most = worker_is_trying(w) ? 1 : w->q->forward.concurrency;

    w->allowed = w->allowed + more < most ? w->allowed + more : most;
}

/* --- once a second --- */

/* What only waits, and has been held through so much of the pause. */
static void return_all(struct worker *w, enum delivery_state s, size_t *n)
{
    for (struct link *k = w->states[s].head.next, *next; k != &w->states[s].head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        next = k->next;
        if (clock_us() / 1000 - d->received_us / 1000 < trial_hold_ms(w, d) || !delivery_only_waits(w, d) ||
            !delivery_may_return(w, d) || (!d->message && d->rowless))
            continue;
        *n += delivery_return(w, d);
    }
}

static void return_held(struct worker *w, enum pause_reason r)
{
    static const enum delivery_state waiting[] = {DELIVERY_FOLLOWING, DELIVERY_TO_CLAIM, DELIVERY_TO_LOOK,
                                                  DELIVERY_PARKED,    DELIVERY_SUSPECT,  DELIVERY_TO_BURY};
    struct log_line l;
    size_t n = 0;

    for (size_t i = 0; i < sizeof(waiting) / sizeof(waiting[0]); i++)
        return_all(w, waiting[i], &n);
    if (!n)
        return;
    log_begin(&l, EVENT_RETURNED, w->q->name);
    log_text(&l, "reason", pause_reasons[r].name);
    log_int(&l, "n", (int64_t)n);
    log_end(&l);
}

void worker_pause_tick(struct worker *w)
{
    static const enum pause_reason whole[] = {PAUSE_APPLICATION, PAUSE_DATABASE, PAUSE_REFUSED,
                                              PAUSE_EVERYTHING_FAILS};

    tell_late_pauses(w);
    worker_trickle(w, w->allowed); /* nobody waits for answers that are slow: twice as many each second */
    if (w->is_on_trial && trial_is_vain(w))
        pause_clear(w, PAUSE_APPLICATION);
    if (w->drain || !w->generation)
        return;
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        if (!worker_is_paused(w, whole[i]) || w->now_ms - w->paused_since_ms[whole[i]] < w->q->pause_hold_ms)
            continue;
        return_held(w, whole[i]);
        return;
    }
}
