#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fault;

/* The state file of a running sidecar, as the supervisor writes it every second, and a last time at its end.
 */

#define STATE_FILE_DEFAULT "/run/onceward/state"

enum { STATE_STALE_MS = 30000 };

struct state_queue {
    char *name;
    int64_t turned_ms_ago; /* its loop, when the file was written */
    bool ready, fits;      /* past its first start; configuration and schema are good */
    bool failed;           /* it could not be started, and is tried again */
};

struct state {
    int64_t pid, age_ms;     /* since it was written */
    int64_t process_started; /* of that pid, in clock ticks; 0 or less: not said */
    bool draining;
    bool ended;     /* it says itself that it has: */
    int64_t status; /* its exit status then */
    struct state_queue *queues;
    size_t n_queues;
};

/* -1: there is no file, or it is not the state of a sidecar. */
int state_read(const char *path, struct state *ret, struct fault *f);
/* Does the process that wrote it still run? False also when its number belongs to another one now. */
bool state_is_running(const struct state *s);

void state_deinit(struct state *s);
