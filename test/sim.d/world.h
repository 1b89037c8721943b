#pragma once

#include "plan.h"
#include "trace.h"
#include "truth.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The world of one run: its time, scheduled events, and participants. Time is virtual, in microseconds.
 * Events at the same microsecond happen in the order of scheduling, so a plan gives the same run every time. */

struct world;
typedef void event_fn(struct world *w, void *object, uint64_t a, uint64_t b);

struct happening {
    int64_t at_us;
    uint64_t order;
    event_fn *fn;
    void *object;
    uint64_t a, b;
};

struct block {
    struct block *next;
    size_t used;
    _Alignas(16) char data[];
};

struct broker_sim;
struct database_sim;
struct sidecar;

struct world_counts {
    uint64_t n_events, n_deliveries, n_posts, n_actions, n_batches, n_items, n_refused, n_crashes, n_turns,
        n_too_many, n_breakers;
};

#define WORLD_START_US INT64_C(1000000000) /* the core's clock at the start of a run; in it 0 means "never" */

struct world {
    const struct plan *plan;
    int64_t now_us;
    bool quiet;   /* no more faults */
    bool closing; /* ended sidecars are not restarted */
    bool ended;
    uint64_t random;
    struct happening *heap; /* 1-based */
    size_t n_heap, heap_cap;
    struct happening present;
    uint64_t order;
    struct block *blocks;
    struct truth *truths; /* per message of the plan; twins share their original's */
    size_t n_truths;
    struct broker_sim *broker;
    struct database_sim *database;
    struct sidecar *sidecars[SIDECARS_MAX];
    struct oracle *oracle;
    struct world_counts counts;
    struct trace trace;
};

/* Schedules fn for that time (not before now). */
void world_at(struct world *w, int64_t at_us, event_fn *fn, void *object, uint64_t a, uint64_t b);

/* Postpones the present event to that time, before anything scheduled for it later. */
void world_postpone(struct world *w, int64_t until_us);

/* Runs the next event. False: none left. */
bool world_step(struct world *w);

/* Allocates zeroed memory that lives as long as the world. */
void *world_alloc(struct world *w, size_t size);

void world_init(struct world *w, const struct plan *p);
void world_deinit(struct world *w);

static inline int64_t world_ms(const struct world *w)
{
    return w->now_us / 1000;
}

/* Adds a line to the trace. */
void world_tell(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define TRACE(w, ...) ((w)->trace.mode ? world_tell(w, __VA_ARGS__) : (void)0)
