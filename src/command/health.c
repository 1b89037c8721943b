/* onceward health: for exec probes. Reads the running sidecar's state file; nothing is connected to. */

#include "command/common.h"
#include "command/state.h"

#include <getopt.h>

static const char help[] =
    "usage: onceward health --live|--ready [--state FILE]\n"
    "For exec probes. Exit status 0: yes, 1: no, with the reason. A sidecar that was killed, or has ended, is neither.\n"
    "  --live    each queue's loop turned within the last 30 s\n"
    "  --ready   configuration and schema are good, and each queue is past its first start\n"
    "  --state   the sidecar's state_file; default " STATE_FILE_DEFAULT "\n";

static int not_yet(const char *queue, const char *reason)
{
    printf("%s: %s\n", queue, reason);
    return STATUS_FAILED;
}

static int judge(const struct state *s, bool ready)
{
    if (s->ended) {
        printf("the sidecar, process %lld, has ended with status %lld\n", (long long)s->pid,
               (long long)s->status);
        return STATUS_FAILED;
    }
    if (s->age_ms > STATE_STALE_MS) {
        printf("the state file was written %lld s ago: the sidecar hangs, or was killed\n",
               (long long)s->age_ms / 1000);
        return STATUS_FAILED;
    }
    if (!state_is_running(s)) {
        printf("the sidecar, process %lld, does not run any more: it was killed\n", (long long)s->pid);
        return STATUS_FAILED;
    }
    for (size_t i = 0; i < s->n_queues; i++) {
        const struct state_queue *q = &s->queues[i];
        int64_t age_ms = q->turned_ms_ago + (s->age_ms > 0 ? s->age_ms : 0);

        if (ready && !q->fits)
            return not_yet(q->name, "cannot be consumed as configured: see `refused` in the log");
        if (ready && !q->ready && q->failed)
            return not_yet(q->name, "could not be started: see `config_error` in the log");
        if (ready && !q->ready)
            return not_yet(q->name, "has not started yet: see `disconnected` and `paused` in the log");
        if (!ready && age_ms >= STATE_STALE_MS)
            return not_yet(q->name, "its loop has not turned for 30 s");
    }
    printf("%s\n", ready ? "ready" : "live");
    return STATUS_DONE;
}

int command_health(int argc, char **argv)
{
    static const struct option options[] = {{"live", no_argument, NULL, 'l'},
                                            {"ready", no_argument, NULL, 'r'},
                                            {"state", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *path = STATE_FILE_DEFAULT;
    struct fault f = {0};
    struct state s;
    int option, what = 0, status;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 's') {
            path = optarg;
        } else if ((option == 'l' || option == 'r') && !what) {
            what = option;
        } else {
            fputs(help, option == 'h' ? stdout : stderr);
            return option == 'h' ? STATUS_DONE : STATUS_USAGE;
        }
    }
    if (!what || optind < argc) {
        fputs(help, stderr);
        return STATUS_USAGE;
    }
    if (state_read(path, &s, &f))
        return command_fail(&f);
    status = judge(&s, what == 'r');
    state_deinit(&s);
    return status;
}
