/* The outbox's line in the log: see stats.def. */
#include "sidecar/outbox.h"

#include "onceward/base/log.h"
#include "onceward/core/stats.h"

#include <assert.h>

/* What it does, in a word. */
static const char *state_of(const struct sidecar *s)
{
    const struct sidecar_outbox *x = s->outbox;

    if (x->core.draining)
        return outbox_is_drained(&x->core) ? "drained" : "draining";
    if (!x->sender || !s->database.inbox)
        return "disconnected";
    return outbox_holds(&x->core, s->now_ms) ? "relaying" : "standby";
}

/* Why nothing is confirmed, in the broker's words; NULL: nothing is known to hinder. */
static const char *error_of(const struct sidecar_outbox *x)
{
    if (!x->sender)
        return *x->dial.reason ? x->dial.reason : NULL;
    if (x->core.link.blocked)
        return x->blocked;
    return x->core.error || !x->core.parked.n_stopped ? x->core.error : x->core.parked.text;
}

/* Keys are those of stats.def. */
static const char *key_of(char *room, enum stats_field f, size_t i)
{
    bool has = stats_key(f, i, room);

    assert(has);
    return room;
}

static void say_text(struct log_line *l, enum stats_field f, const char *value) /* NULL: null */
{
    char key[STATS_KEY_MAX];

    log_text(l, key_of(key, f, 0), value);
}

static void say_count(struct log_line *l, enum stats_field f, struct counter *c)
{
    char key[STATS_KEY_MAX];

    log_int(l, key_of(key, f, 0), (int64_t)counter_take(c));
    log_int(l, key_of(key, f, 1), (int64_t)c->total);
}

static void say_figure(struct log_line *l, enum stats_field f, bool known, int64_t value)
{
    char key[STATS_KEY_MAX];

    if (known)
        log_int(l, key_of(key, f, 0), value);
    else
        log_null(l, key_of(key, f, 0));
}

static void say_relay(struct log_line *l, struct histogram *h)
{
    char key[STATS_KEY_MAX];

    if (h->n) {
        log_double(l, key_of(key, OUTBOX_FIELD_RELAY_MS, 0), (double)histogram_quantile(h, 500) / 1000);
        log_double(l, key_of(key, OUTBOX_FIELD_RELAY_MS, 1), (double)histogram_quantile(h, 990) / 1000);
    }
    histogram_reset(h);
}

static void say(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct outbox_counts *c = &x->core.counts;
    const struct inbox_outbox_gauge *g = &x->figures.latest;
    bool known = x->figures.known;
    struct log_line l;

    log_begin(&l, EVENT_OUTBOX, NULL);
    say_text(&l, OUTBOX_FIELD_STATE, state_of(s));
    say_text(&l, OUTBOX_FIELD_HOLDER, known && *g->holder ? g->holder : NULL);
    say_text(&l, OUTBOX_FIELD_ERROR, error_of(x));
    say_count(&l, OUTBOX_FIELD_PUBLISHED, &c->published);
    say_count(&l, OUTBOX_FIELD_RESENT, &c->resent);
    say_count(&l, OUTBOX_FIELD_NACKED, &c->nacked);
    say_count(&l, OUTBOX_FIELD_LETTERS, &c->letters);
    say_figure(&l, OUTBOX_FIELD_WAITING, known, g->waiting);
    say_figure(&l, OUTBOX_FIELD_LAG_MS, known, g->lag_ms);
    say_figure(&l, OUTBOX_FIELD_DEAD_LETTERS, known, g->letters);
    say_figure(&l, OUTBOX_FIELD_BYTES, known, g->bytes);
    say_figure(&l, OUTBOX_FIELD_TURN_WAITS_MS, known, g->turn_waits_ms > 0 ? g->turn_waits_ms : 0);
    say_relay(&l, &x->core.lag_us);
    log_end(&l);
    x->figures.said_ms = s->now_ms;
}

/* An idle one says so once a minute. */
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
