#pragma once

#include "onceward/core/queue.h"

/* Which messages are claimed for one run: see runs.h. Private to the core. */

/* d is about to be claimed. If it is the first of its line, those behind it may be claimed with it. */
void run_claims_begin(struct queue *q, const struct delivery *d);

/* Next message to be claimed for the current run. NULL: the run is whole, or not to be continued. */
struct delivery *run_claims_next(struct queue *q);
