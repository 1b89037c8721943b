/* onceward drain, for a preStop hook: asks the running sidecar to drain (SIGUSR1), and waits until its state file
 * reports the end. The sidecar stays until SIGTERM: if a container's first process ended during its hook, the hook
 * would be killed, and the container might be restarted. */

#include "command/common.h"
#include "command/running.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static int judge_status(const struct running *r, struct fault *f)
{
    if (!r->state.status)
        return RUNNING_ENDED;
    return fault_set(f, "the sidecar, process %lld, has ended with status %lld: see its log",
                     (long long)r->state.pid, (long long)r->state.status);
}

/* 0: drained; RUNNING_ENDED: drained and ended; -1. If a drain is in progress already, the command only waits. */
static int drain(struct running *r, struct fault *f)
{
    int answer = 0;

    if (r->state.life == LIFE_RUNNING && running_signal(r, SIGUSR1, f))
        return -1;
    while (r->state.life != LIFE_DRAINED && !(answer = running_wait(r, f)))
        ;
    return answer == RUNNING_ENDED ? judge_status(r, f) : answer;
}

/* Ends a drained sidecar. A signal before its drain is complete would cut the grace period short. */
static int end(struct running *r, struct fault *f)
{
    int answer = 0;

    if (running_signal(r, SIGTERM, f))
        return -1;
    while (!(answer = running_wait(r, f)))
        ;
    return answer == RUNNING_ENDED ? judge_status(r, f) : answer;
}

static int drain_at(const char *path, bool exit, struct fault *f)
{
    struct running r;
    int answer = running_open(&r, path, f);

    if (answer == RUNNING_ENDED) {
        answer = judge_status(&r, f);
        if (answer >= 0)
            puts("the sidecar has ended already");
    } else if (!answer) {
        running_name(&r, "draining");
        answer = drain(&r, f);
        if (!answer && exit)
            answer = end(&r, f);
        if (answer >= 0)
            puts("drained");
    }
    running_close(&r);
    return answer < 0 ? -1 : 0;
}

struct drain_options {
    bool exit;
    struct running_place place;
};

static int drain_run(void *options)
{
    const struct drain_options *o = options;
    struct fault f = {0};
    char *path = NULL;
    int status =
        running_path(&o->place, &path, &f) || drain_at(path, o->exit, &f) ? command_fail(&f) : STATUS_DONE;

    free(path);
    return status;
}

#define OPTIONS struct drain_options

static const struct command_option drain_options[] = {
    {"exit", NULL, "end the sidecar as well and wait for its end", OPTION(FLAG, exit)},
    RUNNING_OPTIONS(""),
    {0},
};

const struct command drain_command = {
    .name = "drain",
    .does = "for a preStop hook: drain the running sidecar and wait",
    .about =
        "For a preStop hook: asks the running sidecar to stop consuming, to finish the requests in flight "
        "within its shutdown_grace and to return the other messages. Waits until that is done. The "
        "sidecar stays, idle and healthy, until SIGTERM.",
    .after = "Exit status 0: it has drained, now or before, or has ended cleanly. 1: there is no sidecar, or "
             "it was killed, hangs, or ended with "
             "a status other than 0.",
    .options = drain_options,
    .size = sizeof(struct drain_options),
    .run = drain_run,
};
