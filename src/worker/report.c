/* What the worker says: lines about deliveries, limited so that a storm does not bury the rest, and the
 * figures of an interval. */
#include "worker.h"

#include "onceward/base/clock.h"

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
    log_text(&l, "advice", event_info(EVENT_DEAD_AGAIN)->advice);
    log_end(&l);
}

void report_text(struct worker *w, enum event e, const char *reason)
{
    struct log_line l;

    log_begin(&l, e, w->q->name);
    log_text(&l, "reason", reason);
    log_end(&l);
}

/* Has another queue's suspect the application for itself, while we have something for it? */
static bool waits_for_another(const struct worker *w)
{
    return !target_is_free(w) &&
           (worker_n(w, DELIVERY_TO_CLAIM) || worker_n(w, DELIVERY_CLAIMED) || worker_n(w, DELIVERY_SUSPECT));
}

const char *worker_state_name(struct worker *w)
{
    if (w->drain)
        return "draining";
    if (!w->broker || !w->generation)
        return "disconnected";
    if (!atomic_load(&w->is_ready) && !w->pauses)
        return "starting";
    if (!w->pauses && waits_for_another(w))
        return "waiting_for_suspect";
    if (!w->pauses && (worker_n(w, DELIVERY_SUSPECT) || worker_suspect_is_on_its_way(w)))
        return "suspects";
    if (!w->pauses && w->inbox && w->n_stuck && w->depth)
        return w->standby ? "standby" : "stuck"; /* since the last delivery, and depth is not known to be 0 */
    return w->pauses || !w->inbox ? "paused" : w->consumer == CONSUMER_NONE ? "waiting" : "consuming";
}

static void log_count(struct log_line *l, const char *name, struct counter *c)
{
    char total[48];

    log_int(l, name, (int64_t)counter_take(c));
    snprintf(total, sizeof(total), "%s_total", name);
    log_int(l, total, (int64_t)c->total);
}

static void log_latency(struct log_line *l, const char *prefix, struct histogram *h)
{
    static const struct {
        const char *name;
        int permille;
    } points[] = {{"p50", 500}, {"p99", 990}};
    char key[64];

    for (size_t i = 0; i < 2; i++) {
        snprintf(key, sizeof(key), "%s_%s", prefix, points[i].name);
        if (h->n)
            log_double(l, key, (double)histogram_quantile(h, points[i].permille) / 1000);
        else
            log_null(l, key);
    }
    snprintf(key, sizeof(key), "%s_max", prefix);
    if (h->n)
        log_double(l, key, (double)h->max / 1000);
    else
        log_null(l, key);
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
        log_text(l, "paused_reason", pause_name((enum pause_reason)r));
        log_text(l, "paused_detail", w->pause_text[r]);
        break;
    }
    log_int(l, "paused_for_ms", paused_for_ms(w));
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
        log_text(l, "state_detail", text);
    } else if (worker_suspect_is_on_its_way(w)) {
        log_text(l, "state_detail", "a suspect is with the application, and others wait for its end");
    } else if (worker_n(w, DELIVERY_SUSPECT)) {
        log_text(l, "state_detail",
                 target_is_quiet(w) ? "suspects wait for the application"
                                    : "suspects wait for the end of what the application has at work");
    }
}

void report_stats(struct worker *w)
{
    struct log_line l;
    uint64_t dropped = log_dropped();

    log_begin(&l, EVENT_STATS, w->q->name);
    log_text(&l, "state", worker_state_name(w));
    log_suspects(&l, w);
    log_pauses(&l, w);
    log_count(&l, "received", &w->counts.received);
    log_count(&l, "completed", &w->counts.completed);
    log_count(&l, "duplicates", &w->counts.duplicates);
    log_count(&l, "retried", &w->counts.retried);
    log_count(&l, "given_back", &w->counts.given_back);
    log_count(&l, "dead", &w->counts.dead);
    log_int(&l, "in_flight", (int64_t)worker_n_out(w));
    log_int(&l, "parked",
            (int64_t)(worker_n(w, DELIVERY_PARKED) + worker_n(w, DELIVERY_FOLLOWING) +
                      worker_n(w, DELIVERY_SUSPECT)));
    log_int(&l, "held", (int64_t)w->unacked.len);
    log_int(&l, "held_bytes", (int64_t)w->n_held_bytes);
    log_latency(&l, "forward_ms", &w->forward_us);
    log_latency(&l, "end_to_end_ms", &w->end_to_end_us);
    log_int(&l, "claim_batch_p50", histogram_quantile(&w->claim_batch, 500));
    log_int(&l, "claim_batch_max", w->claim_batch.max);
    histogram_reset(&w->claim_batch);
    if (w->depth >= 0 && w->broker) {
        log_int(&l, "depth", w->depth);
    } else {
        log_null(&l, "depth");
        log_text(&l, "depth_reason",
                 !w->broker           ? "not connected"
                 : w->depth_reason[0] ? w->depth_reason
                                      : "not asked yet");
    }
    if (w->has_figures && w->inbox) {
        log_int(&l, "dead_letters", w->figures.dead_letters);
        log_int(&l, "oldest_snapshot_ms", w->figures.oldest_snapshot_ms);
    } else {
        log_null(&l, "dead_letters");
        log_null(&l, "oldest_snapshot_ms");
    }
    log_int(&l, "oldest_unfinished_ms", oldest_unfinished_ms(w));
    log_count(&l, "reconnects", &w->counts.reconnects);
    log_count(&l, "suppressed", &w->counts.suppressed);
    log_int(&l, "dropped_lines", (int64_t)(dropped - w->dropped_told));
    log_int(&l, "dropped_lines_total", (int64_t)dropped);
    w->dropped_told = dropped;
    log_end(&l);
}
