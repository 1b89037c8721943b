/* The stats line of a queue, a field by its row in stats.def. */
#include "sidecar/sidecar.h"

#include "onceward/base/log.h"

#include <assert.h>
#include <stdio.h>

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
static void stat_latency(struct log_line *l, enum stats_field f, struct histogram *h, struct latency *told)
{
    int64_t points[] = {histogram_quantile(h, 500), histogram_quantile(h, 990), h->max};
    char key[STATS_KEY_MAX];

    *told = (struct latency){.known = h->n > 0, .p50_us = points[0], .p99_us = points[1]};

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

static const struct lane *lane_numbered(const struct sidecar *s, uint64_t number)
{
    for (size_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i].core.number == number)
            return &s->lanes[i];
    return NULL;
}

/* Why messages wait while one is tried alone. */
static void log_state(struct log_line *line, const struct lane *l)
{
    const struct application *a = l->core.application;
    const struct lane *other = lane_numbered(l->sidecar, queue_number_of(a->place.holder));
    enum queue_state state = queue_state(&l->core);
    char text[256];

    stat_text(line, STATS_STATE, queue_states[state].name);
    if (state == QUEUE_SUSPECTS && a->place.taken)
        snprintf(text, sizeof(text), "one is tried alone, the others wait");
    else if (state == QUEUE_SUSPECTS)
        snprintf(text, sizeof(text), "one is to be tried alone, and %d are at work there",
                 a->n_out + a->n_accepted);
    else if (state == QUEUE_WAITING_FOR_SUSPECT)
        snprintf(text, sizeof(text), "%s tries one alone", other ? other->config->name : "another queue");
    else
        return;
    stat_text(line, STATS_STATE_DETAIL, text);
}

static void log_pauses(struct log_line *line, const struct lane *l)
{
    const struct queue_pause *first = NULL;
    int64_t longest = 0, now_ms = l->sidecar->now_ms;

    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        const struct queue_pause *p = &l->core.pauses[r];

        if (!p->since_ms)
            continue;
        if (now_ms - p->since_ms > longest)
            longest = now_ms - p->since_ms;
        if (first)
            continue;
        first = p;
        stat_text(line, STATS_PAUSED_REASON, pause_reasons[r].name);
        stat_text(line, STATS_PAUSED_DETAIL, p->text);
    }
    stat_int(line, STATS_PAUSED_FOR_MS, longest);
}

static void log_depth(struct log_line *line, const struct lane *l)
{
    int64_t depth = l->core.consumer.watch.depth;

    if (depth >= 0 && l->link->broker) {
        stat_int(line, STATS_DEPTH, depth);
        return;
    }
    stat_text(line, STATS_DEPTH, NULL);
    stat_text(line, STATS_DEPTH_REASON,
              !l->link->broker     ? "not connected"
              : l->depth_reason[0] ? l->depth_reason
                                   : "not asked yet");
}

static void log_database(struct log_line *line, const struct lane *l)
{
    const struct sidecar_database *d = &l->sidecar->database;
    bool known = d->has_figures && d->inbox, may_see = known && d->figures.oldest_snapshot_ms >= 0;

    if (known) {
        stat_int(line, STATS_DEAD_LETTERS, l->n_dead_letters);
        stat_int(line, STATS_DEAD_LETTER_BYTES, d->figures.dead_letter_bytes);
    } else {
        stat_text(line, STATS_DEAD_LETTERS, NULL);
        stat_text(line, STATS_DEAD_LETTER_BYTES, NULL);
    }
    if (may_see) {
        stat_int(line, STATS_OLDEST_SNAPSHOT_MS, d->figures.oldest_snapshot_ms);
        return;
    }
    stat_text(line, STATS_OLDEST_SNAPSHOT_MS, NULL);
    stat_text(line, STATS_OLDEST_SNAPSHOT_REASON,
              known ? "other sessions are shown to members of pg_read_all_stats only"
                    : "not asked yet, or not connected");
}

/* --- when it is written --- */

/* An idle queue says so at every sixth interval, once a minute by default: this many at most. */
enum { IDLE_INTERVALS = 6, IDLE_MS = 60000 };

/* What must be in a line in time: counts that have grown, a state, and whatever does not go on. */
static struct figures_told told_now(const struct lane *l)
{
    const struct queue *q = &l->core;
    const struct queue_counts *c = &q->counts;
    bool paused = false;

    for (int r = 0; r < N_PAUSE_REASONS; r++)
        paused |= q->pauses[r].since_ms != 0;
    return (struct figures_told){
        .busy = paused || q->held.n_out || queue_n_held(q) || q->consumer.watch.depth > 0 ||
                !l->link->broker || !l->sidecar->database.inbox,
        .sum = c->received.total + c->completed.total + c->duplicates.total + c->retried.total +
               c->given_back.total + c->dead.total + c->suppressed.total + log_dropped() +
               (uint64_t)l->link->dial.n_reconnects + (uint64_t)l->sidecar->database.dial.n_reconnects,
        .n_dead_letters = l->n_dead_letters,
        .state = (int)queue_state(q),
    };
}

static bool is_due(const struct lane *l)
{
    const struct sidecar *s = l->sidecar;
    struct figures_told now = told_now(l);
    int64_t idle_ms = s->config->log.stats_interval_ms * IDLE_INTERVALS;

    if (now.busy || l->told.busy || now.sum != l->told.sum || now.state != l->told.state ||
        now.n_dead_letters != l->told.n_dead_letters)
        return true;
    return s->now_ms - l->stats_said_ms >= (idle_ms < IDLE_MS ? idle_ms : IDLE_MS);
}

void figures_say(struct lane *l)
{
    struct sidecar *s = l->sidecar;
    struct queue_counts *counts = &l->core.counts;
    uint64_t dropped = log_dropped();
    struct counter reconnects = {.total = l->link->dial.n_reconnects + s->database.dial.n_reconnects};
    struct log_line line;

    log_begin(&line, EVENT_STATS, l->config->name);
    log_state(&line, l);
    log_pauses(&line, l);
    stat_counter(&line, STATS_RECEIVED, &counts->received);
    stat_counter(&line, STATS_COMPLETED, &counts->completed);
    stat_counter(&line, STATS_DUPLICATES, &counts->duplicates);
    stat_counter(&line, STATS_RETRIED, &counts->retried);
    stat_counter(&line, STATS_GIVEN_BACK, &counts->given_back);
    stat_counter(&line, STATS_DEAD, &counts->dead);
    stat_int(&line, STATS_IN_FLIGHT, (int64_t)l->core.held.n_out);
    stat_int(&line, STATS_ACCEPTED, (int64_t)l->core.held.n_accepted);
    stat_int(&line, STATS_LIMIT, queue_limit(&l->core));
    stat_int(&line, STATS_PARKED, (int64_t)queue_n_parked(&l->core));
    stat_int(&line, STATS_HELD, (int64_t)queue_n_held(&l->core));
    stat_int(&line, STATS_HELD_BYTES, (int64_t)l->core.held.n_bytes);
    stat_latency(&line, STATS_FORWARD_MS, &l->forward_us, &l->shown.forward);
    stat_latency(&line, STATS_END_TO_END_MS, &l->end_to_end_us, &l->shown.end_to_end);
    stat_batch(&line, STATS_CLAIM_BATCH, &l->claim_batch);
    log_depth(&line, l);
    log_database(&line, l);
    stat_int(&line, STATS_OLDEST_UNFINISHED_MS, queue_oldest_ms(&l->core, s->now_ms));
    stat_count(&line, STATS_RECONNECTS, reconnects.total - l->reconnects_told, reconnects.total);
    l->reconnects_told = reconnects.total;
    stat_counter(&line, STATS_SUPPRESSED, &counts->suppressed);
    stat_count(&line, STATS_DROPPED_LINES, dropped - l->dropped_told, dropped);
    l->dropped_told = dropped;
    log_end(&line);
    l->told = told_now(l);
    l->stats_said_ms = s->now_ms;
}

void figures_step(struct sidecar *s)
{
    bool any = false;

    for (size_t i = 0; i < s->n_lanes; i++) {
        struct lane *l = &s->lanes[i];
        struct fault f = {0};

        if (s->now_ms < l->stats_at_ms)
            continue;
        if (l->stats_at_ms && is_due(l))
            figures_say(l);
        l->stats_at_ms = s->now_ms + s->config->log.stats_interval_ms;
        any = true;
        if (l->link->broker && l->core.generation && broker_can_write(l->link->broker, (uint32_t)i, 1)) {
            if (!l->core.consumer.watch.asked_ms)
                l->core.consumer.watch.asked_ms = s->now_ms;
            broker_ask_depth(l->link->broker, (uint32_t)i, &f);
        }
    }
    if (any && s->database.inbox && !s->database.asked_figures) {
        s->database.asked_figures = true;
        inbox_ask_figures(s->database.inbox);
    }
}
