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

/* A queue: its core, and the shell's own state. */
struct sidecar_queue {
    struct sidecar *sidecar;
    const struct config_queue *config;
    size_t index;                /* in sidecar.queues and in forward; its number at the broker */
    struct sidecar_queue *first; /* first partition of the consumer, which has the figures of all; or this
                                    queue */
    size_t application;          /* in sidecar.applications */
    struct broker_link *link;
    struct queue core;
    bool touched;   /* a fact has arrived since its last actions */
    int64_t due_ms; /* when it needs attention without a fact */
    struct histogram forward_us, end_to_end_us, claim_batch;
    int64_t stats_at_ms, stats_said_ms; /* next check, latest line */
    uint64_t dropped_told, reconnects_told;
    struct figures_told { /* content of the latest line */
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
    int64_t busy_tell_ms; /* time of the next line about a registration that is not answered; 0: it is */
    bool arguments_wanted, arguments_asked, arguments_known; /* of the declare of the queue */
    int64_t arguments_again_ms; /* time of the next reading, while they do not allow order; 0: they do */
    struct waiting waiting;     /* before its first start */
    struct queue_shown {        /* values in the presence row, at that time */
        int64_t at_ms;
        uint64_t received, completed, failed;
    } shown;
    struct interval forward, end_to_end, batch;
    struct controls_applied {
        bool read;           /* read at least once: earlier commands are not for this process */
        int64_t retry, held; /* numbers of the latest commands that were carried out */
    } controls;
    struct queue_left { /* a partition that leaves the range: see partitions.c */
        int64_t at_ms, asked_ms;
        int n_looks;
        uint64_t received;
        bool ended; /* of the first partition: by the latest registration, all that leave have ended */
    } left;
    char *range;         /* of the first partition: range to be widened to; NULL: none. Owned */
    int64_t range_at_ms; /* time of the next question for the recorded range */
    int64_t kind_asked_ms;
    struct housekeeping house;
};

/* Is it true of all partitions of the consumer with this first one? */
bool sidecar_queue_all(const struct sidecar_queue *first, bool (*is)(const struct sidecar_queue *));

/* --- identify.c --- */

/* Finds the message id, or why there is none (f). *id holds its bytes. */
enum dead_reason identify_message(const struct sidecar_queue *sq, const struct message *m, struct buf *id,
                                  struct fault *f);

/* Reports why the message has no key: the names that it has, and those that were looked for. */
void identify_no_key(const struct sidecar_queue *sq, const struct message *m, struct fault *f);

/* --- partitions.c --- */

/* True: the sidecar is to drain, and to restart with the ranges of the queues. */
bool partitions_step(struct sidecar *s);
void partitions_hold(struct sidecar *s); /* for each turn, before anything is consumed */
/* Range that the consumer of this first partition reads: wider than its own while a partition is to be left. */
const char *partitions_range(const struct sidecar_queue *first);
void partitions_widen(struct sidecar *s); /* at the end of a sidecar, for the one that replaces it */
