/* The stats line of a queue; each field has a row in stats.def. */
#include "sidecar/sidecar.h"

#include "onceward/base/log.h"
#include "onceward/core/handover.h"

#include <stdio.h>

/* --- values --- */

static void set_int(struct figures *g, enum stats_field f, int64_t value)
{
    g->fields[f] = (struct figure){.is = FIGURE_NUMBER, .n = {value}};
}

static void set_text(struct figures *g, enum stats_field f, const char *value)
{
    g->fields[f] = (struct figure){.is = FIGURE_TEXT, .text = value};
}

static void set_null(struct figures *g, enum stats_field f)
{
    g->fields[f] = (struct figure){.is = FIGURE_NULL};
}

static void set_count(struct figures *g, enum stats_field f, uint64_t total, uint64_t reported)
{
    g->fields[f] = (struct figure){.is = FIGURE_NUMBER, .n = {(int64_t)(total - reported), (int64_t)total}};
}

static void set_counter(struct figures *g, enum stats_field f, const struct counter *c)
{
    set_count(g, f, c->total, c->reported);
}

static void set_latency(struct figures *g, enum stats_field f, const struct histogram *h)
{
    if (h->n)
        g->fields[f] = (struct figure){.is = FIGURE_NUMBER,
                                       .n = {histogram_quantile(h, 500), histogram_quantile(h, 990), h->max}};
    else
        set_null(g, f);
}

static void set_batch(struct figures *g, enum stats_field f, const struct histogram *h)
{
    g->fields[f] = (struct figure){.is = FIGURE_NUMBER, .n = {histogram_quantile(h, 500), h->max}};
}

static const struct sidecar_queue *sidecar_queue_numbered(const struct sidecar *s, uint64_t number)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].core.number == number)
            return &s->queues[i];
    return NULL;
}

/* Sets the state, with the reason why messages wait while one is quarantined. */
static void read_state(struct figures *g, const struct sidecar_queue *sq)
{
    const struct application *a = sq->core.application;
    const struct sidecar_queue *other = sidecar_queue_numbered(sq->sidecar, queue_number_of(a->place.owner));
    enum queue_state state = queue_state(&sq->core);

    set_text(g, STATS_STATE, queue_states[state].name);
    if (state == QUEUE_SUSPECTS && a->place.taken)
        snprintf(g->detail, sizeof(g->detail), "a quarantined message is tried alone, the others wait");
    else if (state == QUEUE_SUSPECTS)
        snprintf(g->detail, sizeof(g->detail),
                 "a quarantined message is to be tried alone, after %d in flight", a->n_out + a->n_accepted);
    else if (state == QUEUE_WAITING_FOR_SUSPECT)
        snprintf(g->detail, sizeof(g->detail), "%s tries a quarantined message alone",
                 other ? other->config->name : "another queue");
    else
        return;
    set_text(g, STATS_STATE_DETAIL, g->detail);
}

static void read_pauses(struct figures *g, const struct sidecar_queue *sq)
{
    const struct queue_pause *first = NULL;
    int64_t longest = 0, now_ms = sq->sidecar->now_ms;

    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        const struct queue_pause *p = &sq->core.pauses[r];

        if (!p->since_ms)
            continue;
        if (now_ms - p->since_ms > longest)
            longest = now_ms - p->since_ms;
        if (first)
            continue;
        first = p;
        set_text(g, STATS_PAUSED_REASON, pause_reasons[r].name);
        set_text(g, STATS_PAUSED_DETAIL, p->text);
    }
    set_int(g, STATS_PAUSED_FOR_MS, longest);
}

static void read_depth(struct figures *g, const struct sidecar_queue *sq)
{
    int64_t depth = -1;

    for (size_t i = 0; i < sq->config->n_partitions; i++)
        if (sq[i].core.consumer.watch.depth >= 0)
            depth = (depth < 0 ? 0 : depth) + sq[i].core.consumer.watch.depth;
    if (depth >= 0 && sq->link->broker) {
        set_int(g, STATS_DEPTH, depth);
        return;
    }
    set_null(g, STATS_DEPTH);
    set_text(g, STATS_DEPTH_REASON,
             !sq->link->broker     ? "not connected"
             : sq->depth_reason[0] ? sq->depth_reason
                                   : "not asked yet");
}

static void read_database(struct figures *g, const struct sidecar_queue *sq)
{
    const struct sidecar_database *d = &sq->sidecar->database;
    bool known = d->has_figures && d->inbox, may_see = known && d->figures.oldest_snapshot_ms >= 0;

    if (known) {
        set_int(g, STATS_DEAD_LETTERS, sq->n_dead_letters);
        set_int(g, STATS_DEAD_LETTER_BYTES, d->figures.dead_letter_bytes);
    } else {
        set_null(g, STATS_DEAD_LETTERS);
        set_null(g, STATS_DEAD_LETTER_BYTES);
    }
    if (may_see) {
        set_int(g, STATS_OLDEST_SNAPSHOT_MS, d->figures.oldest_snapshot_ms);
        return;
    }
    set_null(g, STATS_OLDEST_SNAPSHOT_MS);
    set_text(g, STATS_OLDEST_SNAPSHOT_REASON,
             known ? "other sessions are shown to members of pg_read_all_stats only"
                   : "not asked yet, or not connected");
}

/* Does the partition take messages, as far as this replica knows? */
static bool is_active(const struct sidecar_queue *sq)
{
    const struct consumer *c = &sq->core.consumer;

    return sq->core.generation && c->state == CONSUMER_ACTIVE && !c->watch.standby && !c->watch.no_queue &&
           !handover_is_standby(&sq->core);
}

/* Partition whose state stands for all: one that stands still, else one that consumes. */
static const struct sidecar_queue *representative(const struct sidecar_queue *first)
{
    const struct sidecar_queue *best = first;

    for (size_t i = 0; i < first->config->n_partitions; i++) {
        enum queue_state state = queue_state(&first[i].core);

        if (first[i].config->leaving)
            continue;
        if (state != QUEUE_CONSUMING && state != QUEUE_WAITING && state != QUEUE_STANDBY &&
            state != QUEUE_NO_QUEUE)
            return &first[i];
        if (state > queue_state(&best->core))
            best = &first[i];
    }
    return best;
}

static void add_counter(struct counter *sum, const struct counter *c)
{
    sum->total += c->total;
    sum->reported += c->reported;
}

/* Sums over the partitions of a consumer. Most consumers have one. */
struct sums {
    struct queue_counts counts;
    size_t n_in_flight, n_accepted, n_parked, n_held, n_bytes, n_partitions, n_active;
    int64_t oldest_ms;
};

static void sums_read(const struct sidecar_queue *first, struct sums *ret)
{
    *ret = (struct sums){0};
    for (size_t i = 0; i < first->config->n_partitions; i++) {
        const struct sidecar_queue *sq = &first[i];
        const struct queue_counts *c = &sq->core.counts;
        int64_t oldest_ms = queue_oldest_ms(&sq->core, sq->sidecar->now_ms);

        add_counter(&ret->counts.received, &c->received);
        add_counter(&ret->counts.completed, &c->completed);
        add_counter(&ret->counts.duplicates, &c->duplicates);
        add_counter(&ret->counts.retried, &c->retried);
        add_counter(&ret->counts.given_back, &c->given_back);
        add_counter(&ret->counts.dead, &c->dead);
        add_counter(&ret->counts.unkeyed, &c->unkeyed);
        add_counter(&ret->counts.suppressed, &c->suppressed);
        ret->n_in_flight += queue_n_in_flight(&sq->core);
        ret->n_accepted += sq->core.held.n_accepted;
        ret->n_parked += queue_n_parked(&sq->core);
        ret->n_held += queue_n_held(&sq->core);
        ret->n_bytes += sq->core.held.n_bytes;
        ret->n_partitions += !sq->core.drain || !sq->config->leaving;
        ret->n_active += is_active(sq);
        if (oldest_ms > ret->oldest_ms)
            ret->oldest_ms = oldest_ms;
    }
}

void figures_read(const struct sidecar_queue *sq, struct figures *ret)
{
    const struct sidecar *s = sq->sidecar;
    const struct sidecar_queue *telling = representative(sq);
    struct sums sums;
    const struct queue_counts *counts = &sums.counts;

    sums_read(sq, &sums);
    *ret = (struct figures){0};
    read_state(ret, telling);
    read_pauses(ret, telling);
    if (sq->config->pattern) {
        set_int(ret, STATS_PARTITIONS, (int64_t)sums.n_partitions);
        set_int(ret, STATS_PARTITIONS_ACTIVE, (int64_t)sums.n_active);
    }
    set_counter(ret, STATS_RECEIVED, &counts->received);
    set_counter(ret, STATS_COMPLETED, &counts->completed);
    set_counter(ret, STATS_DUPLICATES, &counts->duplicates);
    set_counter(ret, STATS_RETRIED, &counts->retried);
    set_counter(ret, STATS_GIVEN_BACK, &counts->given_back);
    set_counter(ret, STATS_DEAD, &counts->dead);
    if (sq->core.rules.ordered)
        set_counter(ret, STATS_UNKEYED, &counts->unkeyed);
    set_int(ret, STATS_IN_FLIGHT, (int64_t)sums.n_in_flight);
    set_int(ret, STATS_ACCEPTED, (int64_t)sums.n_accepted);
    set_int(ret, STATS_LIMIT, queue_limit(&sq->core));
    if (queue_limit_reason(&sq->core))
        set_text(ret, STATS_LIMIT_REASON, queue_limit_reason(&sq->core));
    if (queue_batch_size(&sq->core))
        set_int(ret, STATS_BATCH_SIZE, (int64_t)queue_batch_size(&sq->core));
    set_int(ret, STATS_PARKED, (int64_t)sums.n_parked);
    set_int(ret, STATS_HELD, (int64_t)sums.n_held);
    set_int(ret, STATS_HELD_BYTES, (int64_t)sums.n_bytes);
    set_latency(ret, STATS_FORWARD_MS, &sq->forward_us);
    set_latency(ret, STATS_END_TO_END_MS, &sq->end_to_end_us);
    set_batch(ret, STATS_CLAIM_BATCH, &sq->claim_batch);
    read_depth(ret, sq);
    read_database(ret, sq);
    set_int(ret, STATS_OLDEST_UNFINISHED_MS, sums.oldest_ms);
    set_count(ret, STATS_RECONNECTS, sq->link->dial.n_reconnects + s->database.dial.n_reconnects,
              sq->reconnects_told);
    set_counter(ret, STATS_SUPPRESSED, &counts->suppressed);
    set_count(ret, STATS_DROPPED_LINES, log_dropped(), sq->dropped_told);
}

/* --- the line --- */

static void log_figure(struct log_line *l, enum stats_field f, const struct figure *v)
{
    enum stats_kind kind = stats_field_info(f)->kind;
    char key[STATS_KEY_MAX];

    for (size_t i = 0; v->is != FIGURE_ABSENT && stats_key(f, i, key); i++) {
        if (v->is == FIGURE_NULL)
            log_null(l, key);
        else if (v->is == FIGURE_TEXT)
            log_text(l, key, v->text);
        else if (kind == STATS_KIND_LATENCY || kind == STATS_KIND_QUANTILES)
            log_double(l, key, (double)v->n[i] / 1000);
        else
            log_int(l, key, v->n[i]);
    }
}

void figures_log(struct log_line *l, const struct figures *g, enum stats_field first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        log_figure(l, (enum stats_field)i, &g->fields[i]);
}

void figures_keep(struct interval *i, const struct figure *f, int64_t now_ms)
{
    if (f->is == FIGURE_NUMBER)
        *i = (struct interval){*f, now_ms};
}

static void counts_take(struct queue_counts *c)
{
    struct counter *counters[] = {&c->received,   &c->completed, &c->duplicates, &c->retried,
                                  &c->given_back, &c->dead,      &c->unkeyed,    &c->suppressed};

    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        counter_take(counters[i]);
}

/* Starts the counts of the next line. */
static void begin_interval(struct sidecar_queue *sq, const struct figures *g)
{
    int64_t now_ms = sq->sidecar->now_ms;

    for (size_t i = 0; i < sq->config->n_partitions; i++)
        counts_take(&sq[i].core.counts);
    figures_keep(&sq->forward, &g->fields[STATS_FORWARD_MS], now_ms);
    figures_keep(&sq->end_to_end, &g->fields[STATS_END_TO_END_MS], now_ms);
    figures_keep(&sq->batch, &g->fields[STATS_CLAIM_BATCH], now_ms);
    histogram_reset(&sq->forward_us);
    histogram_reset(&sq->end_to_end_us);
    histogram_reset(&sq->claim_batch);
    sq->reconnects_told = (uint64_t)g->fields[STATS_RECONNECTS].n[1];
    sq->dropped_told = (uint64_t)g->fields[STATS_DROPPED_LINES].n[1];
}

/* --- time of the line --- */

/* An idle queue logs at every sixth interval, but at least once a minute, which is every sixth by default. */
enum { IDLE_INTERVALS = 6, IDLE_MS = 60000 };

/* Facts that require a line at this interval: increased counts, a state, and anything that does not progress. */
static struct figures_told told_now(const struct sidecar_queue *sq)
{
    struct figures_told told = {.n_dead_letters = sq->n_dead_letters,
                                .state = (int)queue_state(&representative(sq)->core)};

    told.sum = log_dropped() + (uint64_t)sq->link->dial.n_reconnects +
               (uint64_t)sq->sidecar->database.dial.n_reconnects;
    told.busy = !sq->link->broker || !sq->sidecar->database.inbox;
    for (size_t i = 0; i < sq->config->n_partitions; i++) {
        const struct queue *q = &sq[i].core;
        const struct queue_counts *c = &q->counts;

        for (int r = 0; r < N_PAUSE_REASONS; r++)
            told.busy |= q->pauses[r].since_ms != 0;
        told.busy |= queue_n_in_flight(q) || queue_n_held(q) || q->consumer.watch.depth > 0;
        told.sum += c->received.total + c->completed.total + c->duplicates.total + c->retried.total +
                    c->given_back.total + c->dead.total + c->suppressed.total;
    }
    return told;
}

static bool is_due(const struct sidecar_queue *sq)
{
    const struct sidecar *s = sq->sidecar;
    struct figures_told now = told_now(sq);
    int64_t idle_ms = s->config->log.stats_interval_ms * IDLE_INTERVALS;

    if (now.busy || sq->told.busy || now.sum != sq->told.sum || now.state != sq->told.state ||
        now.n_dead_letters != sq->told.n_dead_letters)
        return true;
    return s->now_ms - sq->stats_said_ms >= (idle_ms < IDLE_MS ? idle_ms : IDLE_MS);
}

void figures_say(struct sidecar_queue *sq)
{
    struct figures g;
    struct log_line line;

    figures_read(sq, &g);
    log_begin(&line, EVENT_STATS, sq->config->name);
    figures_log(&line, &g, 0, N_STATS_FIELDS);
    log_end(&line);
    begin_interval(sq, &g);
    sq->told = told_now(sq);
    sq->stats_said_ms = sq->sidecar->now_ms;
}

void figures_step(struct sidecar *s)
{
    bool any = false;

    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];
        struct fault f = {0};

        if (s->now_ms < sq->stats_at_ms)
            continue;
        if (sq->stats_at_ms && sq->first == sq && is_due(sq))
            figures_say(sq);
        sq->stats_at_ms = s->now_ms + s->config->log.stats_interval_ms;
        any = true;
        if (sq->link->broker && sq->core.generation && broker_can_write(sq->link->broker, (uint32_t)i, 1)) {
            queue_depth_asked(&sq->core, s->now_ms);
            broker_ask_depth(sq->link->broker, (uint32_t)i, &f);
        }
    }
    if (any && s->database.inbox && !s->database.asked_figures) {
        s->database.asked_figures = true;
        inbox_ask_figures(s->database.inbox);
    }
}
