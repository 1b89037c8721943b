#pragma once

#include "onceward/core/term.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The figures of the stats and outbox lines: their fields and states, see stats.def, and numbers for them in
 * fixed memory. One thread; the tables are constant. */

/* The keys that a field has in the line: the field's name with endings. */
enum stats_kind {
    STATS_KIND_VALUE, /* a single key, the name itself: a number, a text, or null */
    STATS_KIND_COUNT, /* the name itself: growth since the last line; "_total": since the queue was started */
    STATS_KIND_LATENCY,   /* "_p50", "_p99", "_max": milliseconds, of requests or operations that ended since
                             the last line; or null */
    STATS_KIND_BATCH,     /* "_p50", "_max": sizes, since the last line */
    STATS_KIND_QUANTILES, /* "_p50", "_p99": milliseconds, of requests or operations that ended since the last
                             line; or no key */
    N_STATS_KINDS
};

enum stats_field {
#define STAT(id, name, kind, sentence, advice) STATS_##id,
#include "onceward/core/stats.def"
    N_STATS_FIELDS,
    LAST_OF_STATS = N_STATS_FIELDS - 1, /* fields of the outbox line follow */
#define OUTBOX(id, name, kind, sentence, advice) OUTBOX_FIELD_##id,
#include "onceward/core/stats.def"
    N_FIGURES
};

struct stats_field_info {
    const char *name; /* without an ending */
    enum stats_kind kind;
    const char *sentence; /* the counted thing, and its unit */
    const char *advice;   /* when to act, and the command to type */
};

/* The meaning of a kind's endings, as a sentence; NULL: it has no endings. */
const char *stats_kind_sentence(enum stats_kind kind);

/* Row of a field in the table. */
const struct stats_field_info *stats_field_info(enum stats_field f);

enum { STATS_KEY_MAX = 48 };

/* The i-th key of a field in the line's order, from 0, into ret (STATS_KEY_MAX bytes). False: the field has
 * no more keys, and ret is untouched. */
bool stats_key(enum stats_field f, size_t i, char *ret);

/* First field from `from` on with that name or key; -1: none. A field of stats and one of the outbox line may share a
 * name. */
int stats_field_find(const char *name, int from);

/* The values of the field "state". */
enum queue_state {
#define STATE(id, name, sentence, advice) QUEUE_##id,
#include "onceward/core/stats.def"
    N_QUEUE_STATES
};

extern const struct term queue_states[N_QUEUE_STATES];

/* Value of a field at one moment. n: for a COUNT the growth since the last line and the total; for a LATENCY or
 * QUANTILES the quantiles in microseconds, for a BATCH its quantiles, in the order of their keys. */
struct figure {
    enum { FIGURE_ABSENT, FIGURE_NULL, FIGURE_NUMBER, FIGURE_TEXT } is;
    int64_t n[3];
    const char *text;
};

/* A log-linear histogram (the idea of http://hdrhistogram.org): 64 buckets of width 1, then 32 for each
 * doubling. So a quantile is exact below 64 and off by at most 1/64 (1.6 %) above. The unit is the caller's:
 * microseconds reach to 2^36, or 19 hours; larger values go into the last bucket and are reported as the
 * maximum. {0} is an empty one, 4 KiB. */
enum { HISTOGRAM_BUCKETS = 1024 };

struct histogram {
    uint64_t n;
    int64_t max;
    uint32_t counts[HISTOGRAM_BUCKETS];
};

/* A negative value counts as 0. */
void histogram_add(struct histogram *h, int64_t value);

/* Smallest value that permille/1000 of all values do not exceed (500: the median, 990: p99); 0 without values. Never
 * above max. */
int64_t histogram_quantile(const struct histogram *h, int permille);

void histogram_reset(struct histogram *h);

/* A count, and the part of it that was reported. {0}: a new one. */
struct counter {
    uint64_t total, reported;
};

/* Returns the growth since the last call. */
static inline uint64_t counter_take(struct counter *c)
{
    uint64_t grown = c->total - c->reported;

    c->reported = c->total;
    return grown;
}
