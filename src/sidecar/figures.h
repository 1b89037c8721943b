#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/log.h"
#include "onceward/core/queue.h"
#include "onceward/inbox/inbox.h"
#include "sidecar/sidecar_queue.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lines of the log, the stats lines, and the page of metrics. */

struct sidecar;

/* --- report.c --- */

void report_note(struct sidecar_queue *sq, const struct note *n);
void report_lock_holder(struct sidecar_queue *sq, uint64_t ref, const struct inbox_lock_holder *h);
void report_reason(const struct sidecar_queue *sq, enum event e, const char *reason);

/* --- figures.c --- */

/* Fields of the stats line of a queue, or of the outbox line, at this moment. The texts live as long as the queue and
 * this struct, until the next turn. */
struct figures {
    struct figure fields[N_FIGURES];
    char detail[256];
};

void figures_read(const struct sidecar_queue *sq, struct figures *ret);
void figures_log(struct log_line *sq, const struct figures *g, enum stats_field first, size_t n);
void figures_keep(struct interval *i, const struct figure *f, int64_t now_ms);
void figures_say(struct sidecar_queue *sq);
void figures_step(struct sidecar *s);

/* --- metrics.c --- */

void metrics_begin(struct sidecar *s);
void metrics_step(struct sidecar *s);
void metrics_free(struct sidecar *s);
void metrics_page(const struct sidecar *s, struct buf *ret); /* appends the page: metrics_page.c */
