/* The tables of stats.def: names and meanings of the fields of the stats and outbox lines. Constant. */

#include "onceward/core/stats.h"

#include <stdio.h>
#include <string.h>

static const struct stats_field_info fields[N_FIGURES] = {
#define STAT(id, name, kind, sentence, advice) {name, STATS_KIND_##kind, sentence, advice},
#include "onceward/core/stats.def"
#define OUTBOX(id, name, kind, sentence, advice) {name, STATS_KIND_##kind, sentence, advice},
#include "onceward/core/stats.def"
};

const struct term queue_states[N_QUEUE_STATES] = {
#define STATE(id, name, sentence, advice) {name, sentence, advice},
#include "onceward/core/stats.def"
};

const struct stats_field_info *stats_field_info(enum stats_field f)
{
    return &fields[f];
}

const char *stats_kind_sentence(enum stats_kind kind)
{
    static const char *const sentences[N_STATS_KINDS] = {
        [STATS_KIND_COUNT] = "Without an ending: since the last line; _total: since the queue was started.",
        [STATS_KIND_LATENCY] = "_p50, _p99, _max: median, 99th percentile and maximum since the last line.",
        [STATS_KIND_BATCH] = "_p50, _max: median and maximum since the last line.",
        [STATS_KIND_QUANTILES] = "_p50, _p99: median and 99th percentile since the last line.",
    };

    return sentences[kind];
}

bool stats_key(enum stats_field f, size_t i, char *ret)
{
    static const char *const endings[N_STATS_KINDS][3] = {
        [STATS_KIND_VALUE] = {""},
        [STATS_KIND_COUNT] = {"", "_total"},
        [STATS_KIND_LATENCY] = {"_p50", "_p99", "_max"},
        [STATS_KIND_BATCH] = {"_p50", "_max"},
        [STATS_KIND_QUANTILES] = {"_p50", "_p99"},
    };
    const char *ending = i < 3 ? endings[fields[f].kind][i] : NULL;

    if (!ending)
        return false;
    snprintf(ret, STATS_KEY_MAX, "%s%s", fields[f].name, ending);
    return true;
}

int stats_field_find(const char *name, int from)
{
    char key[STATS_KEY_MAX];

    for (int f = from; f < N_FIGURES; f++) {
        if (strcmp(fields[f].name, name) == 0)
            return f;
        for (size_t i = 0; stats_key(f, i, key); i++)
            if (strcmp(key, name) == 0)
                return f;
    }
    return -1;
}
