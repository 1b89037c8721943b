#pragma once

#include "onceward/base/texts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The text of the state file: one JSON object, which the sidecar replaces every second, at each change, and
 * at its end. The commands `health`, `drain` and `reload` read it. */

struct buf;
struct fault;

enum { STATE_STALE_MS = 30000 };

struct state_queue {
    char *name;
    int64_t turned_ms_ago; /* age of the loop's latest turn when the file was written */
    bool ready;            /* the first start is over */
    bool consumed;         /* has consumed since the start; or left to other replicas, or paused by an
                              operator */
    bool fits;             /* no fault of configuration or schema is known */
    bool failed;           /* the start failed and will be repeated */
};

/* State of a sidecar in one word: `state` of the file. */
enum state_life { LIFE_RUNNING, LIFE_DRAINING, LIFE_DRAINED, LIFE_ENDED };

struct state_reload {
    int64_t begun, ended; /* number since the process started */
    bool refused;         /* of the latest one that ended */
    struct texts outcome; /* the result, one line each */
};

struct state {
    char *instance;          /* NULL: not in the file */
    int64_t start;           /* number of starts of a sidecar with this name */
    int64_t pid;             /* in the process's own namespace */
    int64_t process_started; /* start time of that pid, in clock ticks; 0 or less: not in the file */
    int64_t started_ms;      /* wall clock */
    int64_t age_ms;          /* age of the file; not written itself */
    enum state_life life;
    int64_t drains_until_ms; /* wall clock: the end of the grace period; only during a drain */
    int64_t status;          /* LIFE_ENDED: exit status */
    struct state_reload reload;
    struct state_queue *queues;
    size_t n_queues;
};

/* Appends the state in the form of the file. */
void state_write(const struct state *s, struct buf *out);

/* -1: the file does not exist, or is not the state of a sidecar. The caller owns *ret (state_deinit). */
int state_read(const char *path, struct state *ret, struct fault *f);

/* Does the process that wrote the file still run? False if its number belongs to another process now. */
bool state_is_running(const struct state *s);

void state_add_queue(struct state *s, const struct state_queue *q); /* the name is copied */
void state_deinit(struct state *s);
