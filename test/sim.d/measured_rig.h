#pragma once

#include "plan.h"
#include "run.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the measured scenarios share: a plan is run, figures are taken of its messages, a verdict is said.
 * Each scenario is a function that says one or more verdicts. */

enum { SECOND = 1000000, HOUR_S = 3600 };

struct figures {
    struct outcome out;
    size_t n[N_CHARACTERS], n_done[N_CHARACTERS], n_dead[N_CHARACTERS];
    size_t n_of_queue[QUEUES_MAX];
    int n_charged, most_charged; /* good ones, and the charges of one of them */
    int n_blamed;                /* charges of good ones for crashes */
    int64_t last_good_us;        /* when the last good one was done */
    int64_t last_sent_us;        /* when the last good one was first sent */
    int64_t first_after_us;      /* the first that was done after `after_us` */
    int64_t after_us;            /* given */
    size_t n_before;             /* good ones that were done before it */
    size_t n_done_by[SIDECARS_MAX];
    size_t n_lost, n_stored; /* of the good ones; stored: has a letter, and was not done */
    int n_kills, most_kills; /* of all killers, and of one of them */
    int64_t slowest_dead_us; /* the longest that a killer lived since it was published */
};

struct report {
    int n, n_bad;
    bool quiet;
    struct outcome *first; /* of the first that failed; NULL: nobody asks */
};

/* Runs the plan, which is gone then. f->after_us is kept, all else is set anew. */
void measure(struct plan *p, struct figures *f);

/* Good, where no promise was broken besides. */
void verdict(struct report *r, const struct figures *f, bool good, const char *name, const char *text);

typedef void scenario_fn(struct report *r);

/* measured_killers.c */
scenario_fn killers, steady_killers;
/* measured_start.c */
scenario_fn long_jobs;
/* measured_corners.c */
scenario_fn no_ids, left_to_others, drain_locked, drain_refused, other_body, late_completion, resets, in_vain;
