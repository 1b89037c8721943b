#pragma once

#include "onceward/sidecar/state.h"

struct fault;

/* The running sidecar, as the commands meet it that ask something of it. */

struct running {
    char *path; /* of its state file */
    int fd; /* its process, held: a number that is given to another process meanwhile is never signalled. -1:
               it has ended */
    int64_t pid;
    struct state state; /* as it was read last */
};

/* --state FILE, --config FILE and --help of such a command, and its flags, up to four. */
struct running_options {
    const char *help;
    const char *flags[4]; /* NULL: no more */
    bool given[4];
    const char *state, *config;
};

/* Parses. -1: go on; else the exit status. */
int running_parse(int argc, char **argv, struct running_options *o);

/* The path of the state file: --state, else what the configuration says (--config, else ONCEWARD_CONFIG),
 * else the default. The caller owns *ret. -1: f; *ret is the default all the same. */
int running_path(const struct running_options *o, char **ret, struct fault *f);

enum { RUNNING_ENDED = 1 };

/* Finds who has locked the file, and waits for what that process writes there. 0; RUNNING_ENDED: it has ended
 * before, with what status its state says; -1: none runs, or it was killed, or it does not write: f. Call
 * running_close in any case. */
int running_open(struct running *r, const char *path, struct fault *f);

/* "draining instance payments-1, process 12, queues a, b" on standard output. */
void running_name(const struct running *r, const char *doing);

/* -1: f. A process that ended meanwhile is none. */
int running_signal(const struct running *r, int number, struct fault *f);

/* Waits for a moment, or for its end, and reads its state again. 0; RUNNING_ENDED: the process has ended, its
 * state says how; -1: it was killed, or it hangs: f. */
int running_wait(struct running *r, struct fault *f);

void running_close(struct running *r);
