#pragma once

#include "onceward/base/fault.h"
#include "onceward/config/config.h"
#include "onceward/core/queue.h"
#include "onceward/core/stats.h"
#include "onceward/core/waiting.h"
#include "sidecar/housekeeping.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A queue of the sidecar, its identifiers, and the partitions of a consumer. */

struct broker_link;
struct sidecar;

/* Quantiles of the latest interval with values, and the time of its line. */
struct interval {
    struct figure value;
    int64_t at_ms; /* 0: no interval had values */
};

/* A queue: its core, and the shell's own state of it. */
struct sidecar_queue {
    struct sidecar *sidecar;
    const struct config_queue *config;
    size_t index;                /* in sidecar.queues and in forward; its number at the broker */
    struct sidecar_queue *first; /* the consumer's first partition, which has the figures of all; itself */
    size_t application;          /* in sidecar.applications */
    struct broker_link *link;
    struct queue core;
    bool touched;   /* a fact has arrived since its last actions */
    int64_t due_ms; /* when it needs attention without a fact */
    struct histogram forward_us, end_to_end_us, claim_batch;
    int64_t stats_at_ms, stats_said_ms; /* the next check, the latest line */
    uint64_t dropped_told, reconnects_told;
    struct figures_told { /* content of that line */
        bool busy;        /* messages waited, were held, or it was paused */
        uint64_t sum;
        int64_t n_dead_letters;
        int state;
    } told;
    struct { /* lines about completed messages in that second */
        int64_t second;
        int n;
    } sampled;
    char depth_reason[128];
    int64_t n_dead_letters; /* -1: unknown */
    bool refused_told, told_drained, was_ready, was_consuming;
    bool arguments_wanted, arguments_asked, arguments_known; /* of the declare of the queue */
    int64_t arguments_again_ms; /* when they are read again, because they do not allow order; 0: they do */
    struct waiting waiting;     /* before its first start */
    struct queue_shown {        /* in the presence row, at that time */
        int64_t at_ms;
        uint64_t received, completed, failed;
    } shown;
    struct interval forward, end_to_end, batch;
    struct controls_applied {
        bool read;           /* read at least once: earlier commands are not for this process */
        int64_t retry, held; /* numbers of the latest commands carried out */
    } controls;
    struct queue_left { /* a partition that leaves the range: see partitions.c */
        int64_t at_ms, asked_ms;
        int n_looks;
        uint64_t received;
        bool
            ended; /* of the first partition: the registration that was asked for last said so of all that leave */
    } left;
    char *range;         /* of the first partition: what it is to be widened to; NULL. Owned */
    int64_t range_at_ms; /* when to ask for the recorded range again */
    int64_t kind_asked_ms;
    struct housekeeping house;
};

/* Is it so for all partitions of the consumer whose first one this is? */
bool sidecar_queue_all(const struct sidecar_queue *first, bool (*is)(const struct sidecar_queue *));

/* --- identify.c --- */

/* The message id, or why there is none (f); *id holds its bytes. */
enum dead_reason identify_message(const struct sidecar_queue *sq, const struct message *m, struct buf *id,
                                  struct fault *f);

/* Why the message has no key: the names that it has, and those that were looked for. */
void identify_no_key(const struct sidecar_queue *sq, const struct message *m, struct fault *f);

/* --- partitions.c --- */

/* true: the sidecar is to drain, and to begin again with the ranges of the queues. */
bool partitions_step(struct sidecar *s);
void partitions_hold(struct sidecar *s); /* before anything is consumed in a turn */
/* The range that the consumer of this first partition reads: wider than its own while a partition is to be left. */
const char *partitions_range(const struct sidecar_queue *first);
void partitions_widen(struct sidecar *s); /* at its end, for the one that goes on in its place */
