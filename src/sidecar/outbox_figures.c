/* The outbox's line in the log: see stats.def. */
#include "sidecar/outbox.h"

#include "onceward/base/log.h"
#include "onceward/core/stats.h"

/* State of the relay in one word. */
static const char *state_of(const struct sidecar *s)
{
    const struct sidecar_outbox *x = s->outbox;

    if (x->core.draining)
        return outbox_is_drained(&x->core) ? "drained" : "draining";
    if (!x->sender || !s->database.inbox)
        return "disconnected";
    return outbox_holds(&x->core, s->now_ms) ? "relaying" : "standby";
}

/* Reason why the broker confirms nothing, in its words; NULL: none is known. */
static const char *error_of(const struct sidecar_outbox *x)
{
    if (!x->sender)
        return *x->dial.reason ? x->dial.reason : NULL;
    if (x->core.link.blocked)
        return x->blocked;
    return x->core.error || !x->core.parked.n_stopped ? x->core.error : x->core.parked.text;
}

static void set_text(struct figures *g, enum stats_field f, const char *value) /* NULL: null */
{
    g->fields[f] = (struct figure){.is = value ? FIGURE_TEXT : FIGURE_NULL, .text = value};
}

static void set_count(struct figures *g, enum stats_field f, const struct counter *c)
{
    g->fields[f] =
        (struct figure){.is = FIGURE_NUMBER, .n = {(int64_t)(c->total - c->reported), (int64_t)c->total}};
}

static void set_figure(struct figures *g, enum stats_field f, bool known, int64_t value)
{
    g->fields[f] = (struct figure){.is = known ? FIGURE_NUMBER : FIGURE_NULL, .n = {value}};
}

void outbox_figures_read(const struct sidecar *s, struct figures *ret)
{
    const struct sidecar_outbox *x = s->outbox;
    const struct outbox_counts *c = &x->core.counts;
    const struct inbox_outbox_gauge *g = &x->figures.latest;
    const struct histogram *lag = &x->core.lag_us;
    bool known = x->figures.known;

    *ret = (struct figures){0};
    set_text(ret, OUTBOX_FIELD_STATE, state_of(s));
    set_text(ret, OUTBOX_FIELD_HOLDER, known && *g->holder ? g->holder : NULL);
    set_text(ret, OUTBOX_FIELD_ERROR, error_of(x));
    set_count(ret, OUTBOX_FIELD_PUBLISHED, &c->published);
    set_count(ret, OUTBOX_FIELD_RESENT, &c->resent);
    set_count(ret, OUTBOX_FIELD_NACKED, &c->nacked);
    set_count(ret, OUTBOX_FIELD_LETTERS, &c->letters);
    set_figure(ret, OUTBOX_FIELD_WAITING, known, g->waiting);
    set_figure(ret, OUTBOX_FIELD_LAG_MS, known, g->lag_ms);
    set_figure(ret, OUTBOX_FIELD_DEAD_LETTERS, known, g->letters);
    set_figure(ret, OUTBOX_FIELD_BYTES, known, g->bytes);
    set_figure(ret, OUTBOX_FIELD_TURN_WAITS_MS, known, g->turn_waits_ms > 0 ? g->turn_waits_ms : 0);
    if (lag->n)
        ret->fields[OUTBOX_FIELD_RELAY_MS] = (struct figure){
            .is = FIGURE_NUMBER, .n = {histogram_quantile(lag, 500), histogram_quantile(lag, 990)}};
}

static void say(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct outbox_counts *c = &x->core.counts;
    struct counter *counters[] = {&c->published, &c->resent, &c->nacked, &c->letters};
    struct figures g;
    struct log_line l;

    outbox_figures_read(s, &g);
    log_begin(&l, EVENT_OUTBOX, NULL);
    figures_log(&l, &g, OUTBOX_FIELD_STATE, N_FIGURES - N_STATS_FIELDS);
    log_end(&l);
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        counter_take(counters[i]);
    figures_keep(&x->figures.relay, &g.fields[OUTBOX_FIELD_RELAY_MS], s->now_ms);
    histogram_reset(&x->core.lag_us);
    x->figures.said_ms = s->now_ms;
}

/* An idle relay logs once a minute. */
void outbox_figures_step(struct sidecar *s)
{
    enum { IDLE_MS = 60000 };
    struct sidecar_outbox *x = s->outbox;
    const struct outbox_counts *c = &x->core.counts;
    uint64_t sum = c->published.total + c->resent.total + c->nacked.total + c->letters.total;

    if (s->now_ms < x->figures.stats_at_ms)
        return;
    if (x->figures.stats_at_ms && (sum != x->figures.sum || x->core.rows.len || x->figures.latest.waiting ||
                                   s->now_ms - x->figures.said_ms >= IDLE_MS))
        say(s);
    x->figures.sum = sum;
    x->figures.stats_at_ms = s->now_ms + s->config->log.stats_interval_ms;
    if (s->database.inbox && !x->figures.asked) {
        x->figures.asked = true;
        inbox_ask_outbox_gauge(s->database.inbox);
    }
}
