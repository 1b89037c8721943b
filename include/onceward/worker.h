#pragma once

#include "onceward/config/config.h"

#include <stdbool.h>
#include <stdint.h>

struct fault;

/* One queue: a thread that wires broker, inbox, forward and core together. */
struct worker;

/* Starts the thread. c and q must outlive it. -1: f says why. */
int worker_start(const struct config *c, const struct config_queue *q, struct worker **ret, struct fault *f);

/* Could such a worker be started? -1: f says why not. */
int worker_check(const struct config *c, const struct config_queue *q, struct fault *f);

/* Asks it to drain: to stop consuming, finish what is in flight within shutdown_grace, give the rest back,
 * close. Any thread; returns at once. */
void worker_drain(struct worker *w);

/* The same, but that its thread stays until worker_drain or worker_hurry: idle, without connections to broker and database, and with
 * its `stats` lines. */
void worker_drain_and_stay(struct worker *w);

/* Ends what is left of the grace at once. */
void worker_hurry(struct worker *w);

/* Has the thread ended? Then worker_join returns at once. */
bool worker_has_ended(const struct worker *w);

/* Waits for the thread and frees. */
void worker_join(struct worker *w);

/* For the state file. Any thread. */
struct worker_pulse {
    const char *queue;
    int64_t turned_ms; /* clock_ms() of the loop's last turn */
    bool ready; /* past its first start: it has consumed once, or was told to wait for something outside this
                   pod */
    bool drained;
    bool fatal; /* its schema or consumer name does not fit the configuration */
};
void worker_pulse(const struct worker *w, struct worker_pulse *ret);
