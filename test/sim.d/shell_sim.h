#pragma once

#include "sidecar_sim.h"

/* The shell of a simulated sidecar: turns of its loop, which carry out the core's actions. */

/* Plans a turn at that time, unless one is planned earlier. */
void shell_plan_turn(struct world *w, struct sidecar *s, int64_t at_us);

/* Passes the database's answer for one item. */
void shell_row(struct world *w, struct sidecar *s, const struct batch_item *item, int64_t now_ms);

/* Handles a lost connection: each item in flight is unknown. */
void shell_forget_batches(struct world *w, struct sidecar *s);
/* The process has ended. */
void shell_drop_batches(struct world *w, struct sidecar *s);

void shell_ask_presence(struct world *w, struct sidecar *s);

/* Defined in sidecar_sim.c. */
void sidecar_reopen(struct world *w, struct sidecar *s, int queue);
void sidecar_exit(struct world *w, struct sidecar *s);
void sidecar_close_post(struct sidecar *s, struct post *p);
