/* The metrics page: the fields of stats.def under the names in deploy/logs/onceward.mtail, so that one set of
 * alerts fits both sources. Quantiles are those of the latest interval with values, for a minute, since
 * scrapes are rarer than log lines. All other fields are current. */
#include "sidecar/outbox.h"
#include "sidecar/prometheus.h"

#include "onceward/base/clock.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { INTERVAL_KEPT_MS = 60000, NAME_MAX_BYTES = STATS_KEY_MAX + 24 };

/* A queue, or the outbox. */
struct source {
    const char *queue; /* NULL: the outbox */
    struct figures figures;
};

static void add_sample(struct buf *b, const char *name, const char *queue, const char *more)
{
    buf_add_text(b, name);
    if (queue) {
        buf_add_text(b, "{queue=");
        prometheus_label(b, slice_of(queue));
        buf_add_text(b, more);
        buf_add_char(b, '}');
    }
    buf_add_char(b, ' ');
}

static void add_key(struct buf *b, enum stats_field f, size_t i, const char *name,
                    const struct source *sources, size_t n)
{
    const struct stats_field_info *info = stats_field_info(f);
    bool is_ms = info->kind == STATS_KIND_LATENCY || info->kind == STATS_KIND_QUANTILES, begun = false;

    for (size_t at = 0; at < n; at++) {
        const struct figure *v = &sources[at].figures.fields[f];

        if (v->is != FIGURE_NUMBER)
            continue;
        if (!begun)
            prometheus_family(b, name, info->kind == STATS_KIND_COUNT ? "counter" : "gauge", info->sentence);
        begun = true;
        add_sample(b, name, sources[at].queue, "");
        if (is_ms)
            buf_printf(b, "%.3f\n", (double)v->n[i] / 1000);
        else
            buf_printf(b, "%lld\n", (long long)v->n[i]);
    }
}

/* Adds a field. A COUNT is only shown as its total: Prometheus computes the rate. */
static void add_field(struct buf *b, enum stats_field f, const struct source *sources, size_t n)
{
    const char *prefix = (int)f >= (int)N_STATS_FIELDS ? "onceward_outbox_" : "onceward_";
    bool is_count = stats_field_info(f)->kind == STATS_KIND_COUNT;
    char key[STATS_KEY_MAX], name[NAME_MAX_BYTES];

    for (size_t i = is_count; stats_key(f, i, key); i++) {
        snprintf(name, sizeof(name), "%s%s", prefix, key);
        add_key(b, f, i, name, sources, n);
    }
}

static void add_lines(struct buf *b)
{
    prometheus_family(b, "onceward_lines_total", "counter", "Lines of the log, by event and level.");
    for (int e = 0; e < N_EVENTS; e++)
        for (int level = 0; level < N_LOG_LEVELS; level++) {
            uint64_t n = log_lines((enum event)e, (enum log_level)level);

            if (n)
                buf_printf(b, "onceward_lines_total{event=\"%s\",level=\"%s\"} %llu\n",
                           event_info((enum event)e)->name, log_level_name((enum log_level)level),
                           (unsigned long long)n);
        }
}

static bool has_text(const struct figures *g, enum stats_field f, const char *text)
{
    return g->fields[f].is == FIGURE_TEXT && !strcmp(g->fields[f].text, text);
}

static void add_states(struct buf *b, const struct source *sources, size_t n)
{
    char more[64];

    if (n)
        prometheus_family(b, "onceward_state", "gauge", stats_field_info(STATS_STATE)->sentence);
    for (size_t i = 0; i < n; i++)
        for (int state = 0; state < N_QUEUE_STATES; state++) {
            const char *name = queue_states[state].name;

            snprintf(more, sizeof(more), ",state=\"%s\"", name);
            add_sample(b, "onceward_state", sources[i].queue, more);
            buf_printf(b, "%d\n", has_text(&sources[i].figures, STATS_STATE, name));
        }
    if (n)
        prometheus_family(b, "onceward_database_down", "gauge",
                          "Whether the queue is paused for its database.");
    for (size_t i = 0; i < n; i++) {
        add_sample(b, "onceward_database_down", sources[i].queue, "");
        buf_printf(b, "%d\n", has_text(&sources[i].figures, STATS_PAUSED_REASON, "database_down"));
    }
}

static void add_time(struct buf *b, const struct source *sources, size_t n, bool has_outbox)
{
    double now = (double)clock_wall_ms() / 1000;

    prometheus_family(b, "onceward_stats_seconds", "gauge", "When these figures were read, in Unix time.");
    for (size_t i = 0; i < n; i++) {
        add_sample(b, "onceward_stats_seconds", sources[i].queue, "");
        buf_printf(b, "%.3f\n", now);
    }
    if (has_outbox)
        buf_printf(b, "onceward_stats_seconds{queue=\"\"} %.3f\n", now);
}

static void take_interval(struct figures *g, enum stats_field f, const struct interval *last, int64_t now_ms)
{
    bool is_recent = last->at_ms && now_ms - last->at_ms <= INTERVAL_KEPT_MS;

    g->fields[f] = is_recent ? last->value : (struct figure){0};
}

static void read_sidecar_queue(const struct sidecar_queue *sq, struct source *ret)
{
    int64_t now_ms = sq->sidecar->now_ms;

    figures_read(sq, &ret->figures);
    ret->queue = sq->config->name;
    take_interval(&ret->figures, STATS_FORWARD_MS, &sq->forward, now_ms);
    take_interval(&ret->figures, STATS_END_TO_END_MS, &sq->end_to_end, now_ms);
    take_interval(&ret->figures, STATS_CLAIM_BATCH, &sq->batch, now_ms);
}

static void add_outbox(struct buf *b, const struct sidecar *s)
{
    struct source *x = mem_zalloc(1, sizeof(*x));

    outbox_figures_read(s, &x->figures);
    take_interval(&x->figures, OUTBOX_FIELD_RELAY_MS, &s->outbox->figures.relay, s->now_ms);
    prometheus_family(b, "onceward_outbox_relaying", "gauge", "Whether this sidecar relays the outbox.");
    buf_printf(b, "onceward_outbox_relaying %d\n", has_text(&x->figures, OUTBOX_FIELD_STATE, "relaying"));
    for (int f = N_STATS_FIELDS; f < N_FIGURES; f++)
        add_field(b, (enum stats_field)f, x, 1);
    free(x);
}

void metrics_page(const struct sidecar *s, struct buf *ret)
{
    struct source *sources = mem_zalloc(s->n_queues + 1, sizeof(*sources));
    size_t n = 0;

    for (size_t i = 0; i < s->n_queues; i += s->queues[i].config->n_partitions)
        read_sidecar_queue(&s->queues[i], &sources[n++]);
    add_lines(ret);
    add_time(ret, sources, n, s->outbox != NULL);
    add_states(ret, sources, n);
    for (int f = 0; f < N_STATS_FIELDS; f++)
        add_field(ret, (enum stats_field)f, sources, n);
    if (s->outbox)
        add_outbox(ret, s);
    free(sources);
}
