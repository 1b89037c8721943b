/* What the worker says: lines about deliveries, limited so that a storm does not bury the rest, and the
 * figures of an interval. */
#include "worker.h"

#include "onceward/base/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

enum { LINES_A_SECOND = 10 };

/* May an ordinary line of this kind be written now? What may not is counted. */
bool worker_may_say(struct worker *w, enum event e)
{
    struct rate_limit *r = &w->limits[e];
    int64_t second = w->now_ms / 1000;

    if (r->second != second) {
        r->second = second;
        r->n = 0;
    }
    if (r->n++ < LINES_A_SECOND)
        return true;
    counter_add(&w->counts.suppressed, 1);
    return false;
}

void report_delivery_begin(struct log_line *l, enum event e, const struct worker *w, const struct delivery *d)
{
    log_begin(l, e, w->q->name);
    if (d->id_len)
        log_slice(l, "message_id", delivery_id(d));
    else
        log_null(l, "message_id");
    if (d->attempt)
        log_int(l, "attempt", d->attempt);
    if (d->http_status)
        log_int(l, "http_status", d->http_status);
    if (d->error && *d->error && e != EVENT_COMPLETED && e != EVENT_DUPLICATE && e != EVENT_TAKEN_OVER)
        log_text(l, "error", d->error);
}

void report_delivery(struct worker *w, enum event e, const struct delivery *d)
{
    struct log_line l;

    if (e == EVENT_COMPLETED) {
        if (w->config->log.messages == MESSAGES_SAMPLED && !worker_may_say(w, e))
            return;
    } else if ((e == EVENT_DUPLICATE || e == EVENT_DEAD_AGAIN || e == EVENT_PARKED) &&
               !worker_may_say(w, e)) {
        return;
    }
    report_delivery_begin(&l, e, w, d);
    if (e == EVENT_COMPLETED || e == EVENT_DUPLICATE)
        log_double(&l, "held_ms", (double)(clock_us() - d->received_us) / 1000);
    log_end(&l);
}

void report_dead_again(struct worker *w, const struct delivery *d)
{
    struct log_line l;

    if (!worker_may_say(w, EVENT_DEAD_AGAIN))
        return;
    report_delivery_begin(&l, EVENT_DEAD_AGAIN, w, d);
    log_text(&l, "consumer", w->q->consumer);
    if (d->has_circled)
        log_int(&l, "wait_ms", d->delay_ms);
    log_text(&l, "advice", event_info(EVENT_DEAD_AGAIN)->advice);
    log_end(&l);
}

/* Once a round, before the wait. What has no row is told by `dead` afterwards; its error stays as it is,
 * since that goes into the letter. */
void report_circling(struct worker *w, struct delivery *d)
{
    static const char why[] = "the queue's dead-letter exchange leads back to it";
    struct log_line l;
    char text[128];

    if (d->was_dead && d->message) {
        snprintf(text, sizeof(text), "rejected here %" PRId64 " times: %s", d->n_rejected, why);
        delivery_set_error(d, text);
        report_dead_again(w, d);
    } else if (worker_may_say(w, EVENT_PARKED)) {
        report_delivery_begin(&l, EVENT_PARKED, w, d);
        log_text(&l, "why", why);
        log_int(&l, "wait_ms", d->delay_ms);
        log_end(&l);
    }
}

void report_text(struct worker *w, enum event e, const char *reason)
{
    struct log_line l;

    log_begin(&l, e, w->q->name);
    log_text(&l, "reason", reason);
    log_end(&l);
}

/* What is missing before a queue's first start is no fault of anything. */
bool report_waiting(struct worker *w, enum waiting_for what, const char *text)
{
    struct log_line l;

    if (atomic_load(&w->is_ready))
        return false;
    enum waiting_line due = waiting_for(&w->waiting, what, text, w->now_ms, FAILPOINT_MS(WAITING));
    if (due == WAITING_NO_LINE)
        return true;
    log_begin_at(&l, EVENT_WAITING, due == WAITING_WARNING ? LOG_WARNING : LOG_INFO, w->q->name);
    log_text(&l, "reason", waiting_reason(what));
    log_text(&l, "detail", text);
    log_end(&l);
    return true;
}

/* Has another queue's suspect the application for itself, while we have something for it? */
static bool waits_for_another(const struct worker *w)
{
    return !target_is_free(w) &&
           (worker_n(w, DELIVERY_TO_CLAIM) || worker_n(w, DELIVERY_CLAIMED) || worker_n(w, DELIVERY_SUSPECT));
}

static enum queue_state worker_state(struct worker *w)
{
    unsigned full = w->pauses & ~(w->is_on_trial ? 1u << PAUSE_APPLICATION : 0); /* nothing goes at all */

    if (w->drain)
        return w->drain == DRAIN_ENDED ? QUEUE_DRAINED : QUEUE_DRAINING;
    if (w->no_queue && w->broker) /* its channel comes and goes */
        return QUEUE_NO_QUEUE;
    if ((!w->broker || !w->generation) && !(w->pauses & 1u << PAUSE_STREAM))
        return QUEUE_DISCONNECTED;
    if (!atomic_load(&w->is_ready) && !w->pauses)
        return QUEUE_STARTING;
    if (!full && waits_for_another(w))
        return QUEUE_WAITING_FOR_SUSPECT;
    if (!full && (worker_n(w, DELIVERY_SUSPECT) || worker_suspect_is_on_its_way(w)))
        return QUEUE_SUSPECTS;
    if (!w->pauses && w->inbox && w->n_stuck &&
        w->depth) /* since the last delivery; depth is not known to be 0 */
        return w->standby ? QUEUE_STANDBY : QUEUE_STUCK;
    if (w->pauses || !w->inbox)
        return QUEUE_PAUSED;
    return w->consumer == CONSUMER_NONE ? QUEUE_WAITING : QUEUE_CONSUMING;
}

/* --- a field of the stats line, by its row --- */

/* The i-th key of a field that is of this kind. */
static const char *key_of(char *room, enum stats_field f, enum stats_kind kind, size_t i)
{
    bool has = stats_field_info(f)->kind == kind && stats_key(f, i, room);

    assert(has);
    return room;
}

static void stat_int(struct log_line *l, enum stats_field f, int64_t value)
{
    char key[STATS_KEY_MAX];

    log_int(l, key_of(key, f, STATS_KIND_VALUE, 0), value);
}

static void stat_text(struct log_line *l, enum stats_field f, const char *value) /* NULL: null */
{
    char key[STATS_KEY_MAX];

    log_text(l, key_of(key, f, STATS_KIND_VALUE, 0), value);
}

static void stat_count(struct log_line *l, enum stats_field f, uint64_t grown, uint64_t total)
{
    char key[STATS_KEY_MAX];

    log_int(l, key_of(key, f, STATS_KIND_COUNT, 0), (int64_t)grown);
    log_int(l, key_of(key, f, STATS_KIND_COUNT, 1), (int64_t)total);
}

static void stat_counter(struct log_line *l, enum stats_field f, struct counter *c)
{
    uint64_t grown = counter_take(c);

    stat_count(l, f, grown, c->total);
}

/* A histogram of microseconds, which begins anew. */
static void stat_latency(struct log_line *l, enum stats_field f, struct histogram *h)
{
    int64_t points[] = {histogram_quantile(h, 500), histogram_quantile(h, 990), h->max};
    char key[STATS_KEY_MAX];

    for (size_t i = 0; i < 3; i++) {
        key_of(key, f, STATS_KIND_LATENCY, i);
        if (h->n)
            log_double(l, key, (double)points[i] / 1000);
        else
            log_null(l, key);
    }
    histogram_reset(h);
}

static void stat_batch(struct log_line *l, enum stats_field f, struct histogram *h)
{
    char key[STATS_KEY_MAX];

    log_int(l, key_of(key, f, STATS_KIND_BATCH, 0), histogram_quantile(h, 500));
    log_int(l, key_of(key, f, STATS_KIND_BATCH, 1), h->max);
    histogram_reset(h);
}

/* How long the oldest delivery that is not settled has been held here. */
static int64_t oldest_unfinished_ms(const struct worker *w)
{
    int64_t oldest = 0;
    const struct link *k = w->unacked.head.next;

    if (k != &w->unacked.head)
        oldest = (clock_us() - container_of((struct link *)k, struct delivery, in_tags)->received_us) / 1000;
    return oldest;
}

static int64_t paused_for_ms(const struct worker *w)
{
    int64_t longest = 0;

    for (int r = 0; r < N_PAUSE_REASONS; r++)
        if (w->pauses & 1u << r && w->now_ms - w->paused_since_ms[r] > longest)
            longest = w->now_ms - w->paused_since_ms[r];
    return longest;
}

static void log_pauses(struct log_line *l, const struct worker *w)
{
    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        if (!(w->pauses & 1u << r))
            continue;
        stat_text(l, STATS_PAUSED_REASON, pause_reasons[r].name);
        stat_text(l, STATS_PAUSED_DETAIL, w->pause_text[r]);
        break;
    }
    stat_int(l, STATS_PAUSED_FOR_MS, paused_for_ms(w));
}

/* Why other messages wait for one. */
static void log_suspects(struct log_line *l, struct worker *w)
{
    char name[128], text[256];

    if (waits_for_another(w)) {
        target_who_is_alone(w, name, sizeof(name));
        if (!*name)
            return;
        snprintf(text, sizeof(text), "the application is left to a suspect of queue %s", name);
        stat_text(l, STATS_STATE_DETAIL, text);
    } else if (worker_suspect_is_on_its_way(w)) {
        stat_text(l, STATS_STATE_DETAIL, "a suspect is with the application, and others wait for its end");
    } else if (worker_n(w, DELIVERY_SUSPECT)) {
        stat_text(l, STATS_STATE_DETAIL,
                  target_is_quiet(w) ? "suspects wait for the application"
                                     : "suspects wait for the end of what the application has at work");
    }
}

/* What the database was asked for this line. */
static void log_figures(struct log_line *l, const struct worker *w)
{
    bool known = w->has_figures && w->inbox, may_see = known && w->figures.oldest_snapshot_ms >= 0;

    if (known) {
        stat_int(l, STATS_DEAD_LETTERS, *w->figures.dead_letters);
        stat_int(l, STATS_DEAD_LETTER_BYTES, w->figures.dead_letter_bytes);
    } else {
        stat_text(l, STATS_DEAD_LETTERS, NULL);
        stat_text(l, STATS_DEAD_LETTER_BYTES, NULL);
    }
    if (may_see) {
        stat_int(l, STATS_OLDEST_SNAPSHOT_MS, w->figures.oldest_snapshot_ms);
    } else {
        stat_text(l, STATS_OLDEST_SNAPSHOT_MS, NULL);
        stat_text(l, STATS_OLDEST_SNAPSHOT_REASON,
                  known ? "other sessions are shown to members of pg_read_all_stats only"
                        : "not asked yet, or not connected");
    }
}

void report_stats(struct worker *w)
{
    struct log_line l;
    uint64_t dropped = log_dropped();

    log_begin(&l, EVENT_STATS, w->q->name);
    stat_text(&l, STATS_STATE, queue_states[worker_state(w)].name);
    log_suspects(&l, w);
    log_pauses(&l, w);
    stat_counter(&l, STATS_RECEIVED, &w->counts.received);
    stat_counter(&l, STATS_COMPLETED, &w->counts.completed);
    stat_counter(&l, STATS_DUPLICATES, &w->counts.duplicates);
    stat_counter(&l, STATS_RETRIED, &w->counts.retried);
    stat_counter(&l, STATS_GIVEN_BACK, &w->counts.given_back);
    stat_counter(&l, STATS_DEAD, &w->counts.dead);
    stat_int(&l, STATS_IN_FLIGHT, (int64_t)worker_n_out(w));
    stat_int(&l, STATS_PARKED,
             (int64_t)(worker_n(w, DELIVERY_PARKED) + worker_n(w, DELIVERY_FOLLOWING) +
                       worker_n(w, DELIVERY_SUSPECT)));
    stat_int(&l, STATS_HELD, (int64_t)w->unacked.len);
    stat_int(&l, STATS_HELD_BYTES, (int64_t)w->n_held_bytes);
    stat_latency(&l, STATS_FORWARD_MS, &w->forward_us);
    stat_latency(&l, STATS_END_TO_END_MS, &w->end_to_end_us);
    stat_batch(&l, STATS_CLAIM_BATCH, &w->claim_batch);
    if (w->depth >= 0 && w->broker) {
        stat_int(&l, STATS_DEPTH, w->depth);
    } else {
        stat_text(&l, STATS_DEPTH, NULL);
        stat_text(&l, STATS_DEPTH_REASON,
                  !w->broker           ? "not connected"
                  : w->depth_reason[0] ? w->depth_reason
                                       : "not asked yet");
    }
    log_figures(&l, w);
    stat_int(&l, STATS_OLDEST_UNFINISHED_MS, oldest_unfinished_ms(w));
    stat_counter(&l, STATS_RECONNECTS, &w->counts.reconnects);
    stat_counter(&l, STATS_SUPPRESSED, &w->counts.suppressed);
    stat_count(&l, STATS_DROPPED_LINES, dropped - w->dropped_told, dropped);
    w->dropped_told = dropped;
    log_end(&l);
}
