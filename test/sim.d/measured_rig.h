#pragma once

#include "plan.h"
#include "run.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Shared by the measured scenarios: a plan is run, its messages are measured, and a verdict is printed. Each
 * scenario is a function with one or more verdicts. */

enum { SECOND = 1000000, HOUR_S = 3600 };

struct figures {
    struct outcome out;
    size_t n[N_CHARACTERS], n_done[N_CHARACTERS], n_dead[N_CHARACTERS];
    size_t n_of_queue[QUEUES_MAX];
    int n_charged, most_charged; /* good messages that were charged, and the most charges of one of them */
    int n_blamed;                /* good messages that were charged for crashes */
    int64_t last_good_us;        /* completion of the last good one */
    int64_t last_sent_us;        /* first forward of the last good one */
    int64_t first_after_us;      /* first completion after `after_us` */
    int64_t after_us;            /* set by the scenario */
    size_t n_before;             /* good messages completed before after_us */
    size_t n_done_by[SIDECARS_MAX];
    size_t n_lost, n_stored; /* good messages; stored: has a letter, and was not completed */
    int n_kills, most_kills; /* of all killers, and of one of them */
    int64_t slowest_dead_us; /* longest time from the publish to the death of a killer */
};

struct report {
    int n, n_bad;
    bool quiet;
    struct outcome *first; /* of the first failure; NULL: not wanted */
};

/* Runs the plan and frees it. f->after_us is kept, everything else is set. */
void measure(struct plan *p, struct figures *f);

/* Prints a verdict: good if no promise was broken either. */
void verdict(struct report *r, const struct figures *f, bool good, const char *name, const char *text);

typedef void scenario_fn(struct report *r);

/* measured_killers.c */
scenario_fn killers, steady_killers;
/* measured_batches.c */
scenario_fn batches;
/* measured_start.c */
scenario_fn long_jobs;
/* measured_corners.c */
scenario_fn no_ids, left_to_others, drain_locked, long_pause, drain_refused, held_at_the_limit, limit_of_0,
    renewal_loop, given_up_near_the_limit, other_body, late_completion, resets, in_vain, brake_of_1,
    brake_without_room;
