/* States of the queues in the presence row, for `onceward status` and `top`, and for other replicas: one object per
 * queue, of which the database reads "consumer", "order_key", "state", "may_consume" and "stop". Unknown values and 0
 * are left out, since the row is written every few seconds and read by every replica. */
#include "sidecar/sidecar.h"

#include <stdlib.h>

enum { DETAIL_BYTES = 320 };

static void add_text(struct buf *b, const char *key, const char *value)
{
    buf_printf(b, ", \"%s\": ", key);
    buf_add_json(b, slice_of(value));
}

static void add_int(struct buf *b, const char *key, int64_t value)
{
    if (value > 0)
        buf_printf(b, ", \"%s\": %lld", key, (long long)value);
}

/* Adds a count's growth per second. */
static void add_rate(struct buf *b, const char *key, uint64_t grown, int64_t in_ms)
{
    if (grown && in_ms > 0)
        buf_printf(b, ", \"%s\": %.1f", key, (double)grown * 1000 / (double)in_ms);
}

/* Latency of the current interval, or of the previous one while the current has no value. */
static void add_latency(struct buf *b, const char *key, const struct histogram *h,
                        const struct interval *last, int64_t previous_ms)
{
    const struct figure *v = &last->value;
    bool is_new = h->n > 0;

    if (!is_new && (!last->at_ms || last->at_ms != previous_ms))
        return;
    buf_printf(b, ", \"%s_p50\": %.1f, \"%s_p99\": %.1f", key,
               (double)(is_new ? histogram_quantile(h, 500) : v->n[0]) / 1000, key,
               (double)(is_new ? histogram_quantile(h, 990) : v->n[1]) / 1000);
}

/* Adds the first reason of the pause, as in the stats line. */
static void add_pause(struct buf *b, const struct sidecar_queue *sq)
{
    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        const struct queue_pause *p = &sq->core.pauses[r];

        if (!p->since_ms)
            continue;
        add_text(b, "reason", pause_reasons[r].name);
        buf_add_text(b, ", \"detail\": ");
        buf_add_json(b, slice_cut(slice_of(p->text), DETAIL_BYTES));
        add_int(b, "paused_for_ms", sq->sidecar->now_ms - p->since_ms);
        return;
    }
}

/* Adds the stop to be recorded (see queue_stop_wanted), or to be forgotten (see queue_stop_outdated). */
static void add_stop(struct buf *b, const struct sidecar_queue *sq)
{
    const char *why;
    int64_t count = queue_stop_wanted(&sq->core, &why), outdated = queue_stop_outdated(&sq->core);

    if (!count && !outdated)
        return;
    buf_printf(b, ", \"stop\": {\"outdated\": %lld", (long long)outdated);
    if (count) {
        add_int(b, "count", count);
        add_text(b, "why", why);
    }
    buf_add_char(b, '}');
}

static void add_rates(struct buf *b, struct sidecar_queue *sq)
{
    const struct queue_counts *c = &sq->core.counts;
    struct queue_shown *s = &sq->shown;
    uint64_t failed = c->retried.total + c->given_back.total + c->dead.total;
    int64_t in_ms = s->at_ms ? sq->sidecar->now_ms - s->at_ms : 0;

    add_rate(b, "received_per_s", c->received.total - s->received, in_ms);
    add_rate(b, "completed_per_s", c->completed.total - s->completed, in_ms);
    add_rate(b, "failed_per_s", failed - s->failed, in_ms);
    s->at_ms = sq->sidecar->now_ms;
    s->received = c->received.total;
    s->completed = c->completed.total;
    s->failed = failed;
}

/* Adds the subscription to an ordered queue, for other replicas. Its number begins with the time of the start, since
 * every start counts its subscriptions from 1 on. */
static void add_subscription(struct buf *b, const struct queue *q, int64_t started_ms)
{
    if (!q->rules.ordered || q->consumer.state != CONSUMER_ACTIVE || q->drain)
        return;
    buf_printf(b, ", \"subscription\": %lld%05u, \"received\": %llu", (long long)started_ms,
               q->consumer.number % 100000, (unsigned long long)q->counts.received.total);
    if (q->handover.is_active)
        buf_add_text(b, ", \"active\": true");
}

static void add_order_key(struct buf *b, const struct config_sources *key)
{
    char *text = identity_sources_text(key->items, key->n);

    if (*text)
        add_text(b, "order_key", text);
    free(text);
}

static void add_queue(struct buf *b, struct sidecar_queue *sq)
{
    bool may_consume = queue_may_consume(&sq->core);
    enum queue_state state = queue_state(&sq->core);

    if (state == QUEUE_CONSUMING && !may_consume)
        state = QUEUE_WAITING;
    buf_add_text(b, "{\"queue\": ");
    buf_add_json(b, slice_of(sq->config->queue));
    add_text(b, "consumer", sq->config->consumer);
    add_order_key(b, &sq->config->order.key);
    if (sq->first == sq && sq->config->pattern)
        add_text(b, "pattern", partitions_range(sq));
    add_text(b, "state", queue_states[state].name);
    if (config_public_digest(sq->sidecar->config))
        add_text(b, "config", config_public_digest(sq->sidecar->config));
    if (may_consume)
        buf_add_text(b, ", \"may_consume\": true");
    add_pause(b, sq);
    buf_printf(b, ", \"in_flight\": %zu, \"limit\": %d, \"held\": %zu", queue_n_in_flight(&sq->core),
               queue_limit(&sq->core), queue_n_held(&sq->core));
    if (queue_limit_reason(&sq->core))
        add_text(b, "limit_reason", queue_limit_reason(&sq->core));
    if (queue_batch_size(&sq->core))
        add_int(b, "batch_size", (int64_t)queue_batch_size(&sq->core));
    add_int(b, "accepted", (int64_t)sq->core.held.n_accepted);
    add_int(b, "parked", (int64_t)queue_n_parked(&sq->core));
    add_int(b, "dead", (int64_t)sq->core.counts.dead.total);
    if (sq->link->broker && sq->core.consumer.watch.depth >= 0)
        buf_printf(b, ", \"depth\": %lld", (long long)sq->core.consumer.watch.depth);
    add_subscription(b, &sq->core, sq->sidecar->started_ms);
    add_stop(b, sq);
    add_rates(b, sq);
    add_latency(b, "forward_ms", &sq->forward_us, &sq->forward, sq->stats_said_ms);
    add_latency(b, "end_to_end_ms", &sq->end_to_end_us, &sq->end_to_end, sq->stats_said_ms);
    buf_add_char(b, '}');
}

void queue_states_write(struct sidecar *s, struct buf *ret)
{
    buf_reset(ret);
    buf_add_char(ret, '[');
    for (size_t i = 0; i < s->n_queues; i++) {
        buf_add_text(ret, i ? ", " : "");
        add_queue(ret, &s->queues[i]);
    }
    buf_add_char(ret, ']');
}
