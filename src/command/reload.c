/* onceward reload: asks the running sidecar to restart with its file (SIGHUP, or SIGUSR2 for --now), waits
 * until its state file has the result, and prints it. */

#include "command/common.h"
#include "command/running.h"
#include "onceward/base/buf.h"
#include "onceward/base/table.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: onceward reload [--now] [--state FILE | --config FILE]\n"
    "Asks the running sidecar to stop consuming, to finish the requests in flight within their window and to restart with its\n"
    "current configuration as the same process, and waits for it. An invalid configuration changes nothing: its errors are\n"
    "listed.\n"
    "  --now     give the requests in flight no more than shutdown_grace\n"
    "  --state   the sidecar's state_file; default: the place where a sidecar of this user keeps it\n"
    "  --config  the sidecar's configuration, which names the state file; default: ONCEWARD_CONFIG. The sidecar always reads\n"
    "            its own file\n"
    "Exit status 0: reloaded. 1: the configuration was refused, or there is no sidecar.\n";

enum { NOW };

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

int command_reload(int argc, char **argv)
{
    struct running_options o = {.help = help, .flags = {[NOW] = "now"}};
    struct fault f = {0};
    char *path = NULL;
    int status = running_parse(argc, argv, &o);

    if (status >= 0)
        return status;
    status =
        running_path(&o, &path, &f) ? command_fail(&f) : reload_at(path, o.given[NOW] ? SIGUSR2 : SIGHUP);
    free(path);
    return status;
}
