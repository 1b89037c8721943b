/* onceward health, for exec probes: reads the running sidecar's state file, without any connection. */

#include "command/common.h"
#include "command/running.h"

#include "onceward/base/runtime_folder.h"

#include <stdlib.h>

enum { STARTED, LIVE, READY, CONSUMING, N_QUESTIONS };

static const char *const words[N_QUESTIONS] = {"started", "live", "ready", "consuming"};

static int not_yet(const char *queue, const char *reason)
{
    printf("%s: %s\n", queue, reason);
    return STATUS_FAILED;
}

static int judge_process(const struct state *s)
{
    if (s->life == LIFE_ENDED)
        printf("the sidecar, process %lld, has ended with status %lld\n", (long long)s->pid,
               (long long)s->status);
    else if (s->age_ms > STATE_STALE_MS)
        printf("the state file was written %lld s ago: the sidecar hangs, or was killed\n",
               (long long)s->age_ms / 1000);
    else if (!state_is_running(s))
        printf("the sidecar, process %lld, is not running any more: it was killed\n", (long long)s->pid);
    else
        return STATUS_DONE;
    return STATUS_FAILED;
}

static int judge_ready(const struct state_queue *q, int question)
{
    if (question == CONSUMING ? q->consumed : q->ready)
        return STATUS_DONE;
    if (q->failed)
        return not_yet(q->name, "could not be started: see `config_error` in the log");
    if (!q->fits)
        return not_yet(q->name, "cannot be consumed as configured: see `refused` in the log");
    return not_yet(q->name,
                   question == CONSUMING
                       ? "has not consumed yet: see `waiting`, `disconnected` and `paused` in the log"
                       : "has not started yet: see `waiting`, `disconnected` and `paused` in the log");
}

static int judge(const struct state *s, int question)
{
    if (judge_process(s))
        return STATUS_FAILED;
    for (size_t i = 0; i < s->n_queues; i++) {
        const struct state_queue *q = &s->queues[i];
        int64_t age_ms = q->turned_ms_ago + (s->age_ms > 0 ? s->age_ms : 0);

        if (question < READY && age_ms >= STATE_STALE_MS)
            return not_yet(q->name, "its main loop has not run for 30 s");
        if (question >= READY && s->life != LIFE_DRAINED && judge_ready(q, question))
            return STATUS_FAILED;
    }
    puts(words[question]);
    return STATUS_DONE;
}

static int health_at(const char *path, int question)
{
    struct fault f = {0};
    struct state s;
    int status;

    if (!runtime_folder_is_safe(path, &f) || state_read(path, &s, &f))
        return command_fail(&f);
    status = judge(&s, question);
    state_deinit(&s);
    return status;
}

struct health_options {
    bool asks[N_QUESTIONS];
    struct running_place place;
};

static int health_run(void *options)
{
    const struct health_options *o = options;
    struct fault f = {0};
    char *path = NULL;
    int status, question = 0;

    while (!o->asks[question])
        question++;
    /* An error in the file must not end a running sidecar, which continues with its earlier configuration. */
    if (running_path(&o->place, &path, &f))
        fprintf(stderr, "onceward: %s; reading %s instead\n", f.text, path);
    status = health_at(path, question);
    free(path);
    return status;
}

#define OPTIONS struct health_options

static const struct command_option health_options[] = {
    {"started", NULL,
     "the configuration is valid and the main loop runs: for the startupProbe. It does not wait for the "
     "broker, the database or the application, "
     "so the application may start later",
     OPTION(FLAG, asks[STARTED]), OPTION_REQUIRED},
    {"live", NULL, "the main loop ran within the last 30 s: for the livenessProbe", OPTION(FLAG, asks[LIVE]),
     OPTION_OR},
    {"ready", NULL,
     "each queue has started once, whatever broker, database and application do now: for people and "
     "scripts. As a readinessProbe it would "
     "keep requests from the application until the queues have started",
     OPTION(FLAG, asks[READY]), OPTION_OR},
    {"consuming", NULL,
     "each queue has consumed since the start, so broker, database, queue and application were reached. "
     "Only an operator's pause, or partitions that leave the range, may still prevent consuming. Stays "
     "true afterwards, except for a queue that a reload adds. As the readinessProbe of a pod without a "
     "Service it makes a rollout wait",
     OPTION(FLAG, asks[CONSUMING]), OPTION_OR},
    RUNNING_OPTIONS(""),
    {0},
};

const struct command health_command = {
    .name = "health",
    .does = "for exec probes: report the sidecar's state",
    .about = "For exec probes. Exit status 0: yes; 1: no, with the reason. The answer for a sidecar that has "
             "ended is always no.",
    .options = health_options,
    .size = sizeof(struct health_options),
    .run = health_run,
};
