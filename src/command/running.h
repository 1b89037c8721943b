#pragma once

#include "command/options.h"
#include "onceward/sidecar/state.h"

struct fault;

/* The running sidecar, for commands that control it. */

struct running {
    char *path; /* of the state file */
    int fd;     /* descriptor of the process, so that a signal never reaches another process with a reused
                   number. -1: it has ended */
    int64_t pid;
    struct state state; /* as last read */
};

/* Options of such a command, which name the state file. */
struct running_place {
    const char *state, *config;
};

#define RUNNING_OPTIONS(config_help)                                                                         \
    {"state", "FILE", "the sidecar's state_file; default: the place where a sidecar of this user keeps it",  \
     OPTION(FILE, place.state)},                                                                             \
    {                                                                                                        \
        "config", "FILE",                                                                                    \
            "the sidecar's configuration, which names the state file; default: ONCEWARD_CONFIG" config_help, \
            OPTION(FILE, place.config), OPTION_OR, .letter = 'c'                                             \
    }

/* Path of the state file: --state, else the configuration's (--config, else ONCEWARD_CONFIG), else the default. The
 * caller owns *ret. -1: f; *ret is then the default. */
int running_path(const struct running_place *o, char **ret, struct fault *f);

enum { RUNNING_ENDED = 1 };

/* Finds the process that has locked the file, and waits for its state. 0; RUNNING_ENDED: it has ended, with
 * the status in its state; -1: no process runs, or it was killed, or it writes nothing: f. running_close is
 * always needed. */
int running_open(struct running *r, const char *path, struct fault *f);

/* Prints "draining instance payments-1, process 12, queues a, b". */
void running_name(const struct running *r, const char *doing);

/* Sends a signal. -1: f. A process that has ended in the meantime is no error. */
int running_signal(const struct running *r, int number, struct fault *f);

/* Waits a moment, or for the process's end, and reads its state again. 0; RUNNING_ENDED: it has ended, its
 * state has the result; -1: it was killed, or hangs: f. */
int running_wait(struct running *r, struct fault *f);

void running_close(struct running *r);
