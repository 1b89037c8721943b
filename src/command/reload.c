/* onceward reload: asks the running sidecar to restart with its file (SIGHUP, or SIGUSR2 for --now), waits
 * until its state file has the result, and prints it. */

#include "command/common.h"
#include "command/running.h"
#include "onceward/base/buf.h"
#include "onceward/base/table.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Waits for the end of a reload that includes this request. */
static int reload(struct running *r, int number, struct fault *f)
{
    int64_t begun = r->state.reload.begun;
    int answer = 0;

    if (running_signal(r, number, f))
        return -1;
    while (r->state.reload.ended <= begun && !(answer = running_wait(r, f)))
        ;
    if (answer == RUNNING_ENDED)
        return fault_set(f, "the sidecar, process %lld, has ended", (long long)r->pid);
    return answer;
}

static int tell(const struct state_reload *r)
{
    struct buf text = {0};

    buf_add_text(&text, r->refused ? "config_error\n" : "reloaded\n");
    for (size_t i = 0; i < r->outcome.n; i++) {
        buf_add_text(&text, "  ");
        text_add_safe(&text, slice_of(r->outcome.items[i]));
        buf_add_char(&text, '\n');
    }
    fputs(buf_text(&text), stdout);
    buf_deinit(&text);
    return r->refused ? STATUS_FAILED : STATUS_DONE;
}

static int reload_at(const char *path, int number)
{
    struct fault f = {0};
    struct running r;
    int answer = running_open(&r, path, &f), status;

    if (answer == RUNNING_ENDED)
        answer = fault_set(&f, "no sidecar is running here: that of %s has ended", path);
    if (!answer) {
        running_name(&r, "reloading");
        answer = reload(&r, number, &f);
    }
    status = answer ? command_fail(&f) : tell(&r.state.reload);
    running_close(&r);
    return status;
}

struct reload_options {
    bool now;
    struct running_place place;
};

static int reload_run(void *options)
{
    const struct reload_options *o = options;
    struct fault f = {0};
    char *path = NULL;
    int status =
        running_path(&o->place, &path, &f) ? command_fail(&f) : reload_at(path, o->now ? SIGUSR2 : SIGHUP);

    free(path);
    return status;
}

#define OPTIONS struct reload_options

static const struct command_option reload_options[] = {
    {"now", NULL, "give the requests in flight no more than shutdown_grace", OPTION(FLAG, now)},
    RUNNING_OPTIONS(". The sidecar always reads its own file"),
    {0},
};

const struct command reload_command = {
    .name = "reload",
    .does = "reload the configuration of the running sidecar",
    .about =
        "Asks the running sidecar to stop consuming, to finish the requests in flight within their window "
        "and to restart with its current file in the same process. Waits until that is done. An invalid "
        "configuration changes nothing: its errors are listed.",
    .after = "Exit status 0: reloaded. 1: the configuration was refused, or there is no sidecar.",
    .options = reload_options,
    .size = sizeof(struct reload_options),
    .run = reload_run,
};
