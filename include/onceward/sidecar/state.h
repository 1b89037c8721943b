#pragma once

#include "onceward/base/texts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The text of the state file: one JSON object, which the sidecar replaces every second, at each change, and a
 * last time at its end. The commands `health`, `drain` and `reload` read it. */

struct buf;
struct fault;

enum { STATE_STALE_MS = 30000 };

struct state_queue {
    char *name;
    int64_t turned_ms_ago; /* its loop, when the file was written */
    bool ready;            /* past its first start */
    bool consumed;         /* since the start, or left that to other replicas */
    bool fits;             /* configuration and schema are good, as far as is known */
    bool failed;           /* its start failed and is tried again */
};

/* The life of a sidecar, in one word: `state` of the file. */
enum state_life { LIFE_RUNNING, LIFE_DRAINING, LIFE_DRAINED, LIFE_ENDED };

struct state_reload {
    int64_t begun, ended; /* how many, since the process started */
    bool refused;         /* the last that ended */
    struct texts outcome; /* of it, a line each */
};

struct state {
    char *instance;          /* the sidecar's name; NULL: not said */
    int64_t start;           /* how often a sidecar of this name has started */
    int64_t pid;             /* in its own namespace */
    int64_t process_started; /* of that pid, in clock ticks; 0 or less: not said */
    int64_t started_ms;      /* wall clock */
    int64_t age_ms;          /* since it was written; not written itself */
    enum state_life life;
    int64_t drains_until_ms; /* wall clock: the end of its grace; only while it drains */
    int64_t status;          /* LIFE_ENDED: its exit status */
    struct state_reload reload;
    struct state_queue *queues;
    size_t n_queues;
};

/* Appends it as it stands in the file. */
void state_write(const struct state *s, struct buf *out);

/* -1: there is no such file, or it is not the state of a sidecar. The caller owns *ret (state_deinit). */
int state_read(const char *path, struct state *ret, struct fault *f);

/* Does the process that wrote it still run? False also when its number belongs to another one now. */
bool state_is_running(const struct state *s);

void state_add_queue(struct state *s, const struct state_queue *q); /* its name is copied */
void state_deinit(struct state *s);
