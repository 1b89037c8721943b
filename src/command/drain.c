/* onceward drain: for a preStop hook. Asks the running sidecar to drain, and waits until its process has
 * ended.
 *
 * The process is held by a descriptor that is opened before the state is read again, so that a number which
 * was given to another process meanwhile is never signalled. */

#include "command/common.h"
#include "command/state.h"
#include "onceward/base/process.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

static const char help[] = "usage: onceward drain [--state FILE]\n"
                           "For a preStop hook: asks the running sidecar to stop consuming and to finish "
                           "what is in flight, within its\n"
                           "shutdown_grace, and waits until it has ended.\n"
                           "  --state   the sidecar's state_file; default " STATE_FILE_DEFAULT "\n";

/* 0: ended; 1: nothing runs any more; -1. */
static int drain(const char *path, struct fault *f)
{
    struct state first, again;
    int fd;

    if (state_read(path, &first, f))
        return -1;
    fd = pidfd_open((pid_t)first.pid, 0);
    if (fd < 0) {
        state_deinit(&first);
        if (errno == ESRCH)
            return 1;
        return fault_set(f, "cannot reach process %lld: %s", (long long)first.pid, strerror(errno));
    }
    int answer = state_read(path, &again, f) ? 1 : 0; /* it has removed its file: it is at its end */
    if (answer == 0) {
        bool same = again.pid == first.pid && again.age_ms <= STATE_STALE_MS;
        int64_t started = process_started(again.pid);

        if (again.process_started > 0 && started > 0 && started != again.process_started)
            same = false; /* its number belongs to another process now */

        /* A second signal would end the grace at once. */
        if (!same)
            answer = fault_set(f, "%s is left over from a sidecar that was killed, or that hangs", path);
        else if (!again.draining && pidfd_send_signal(fd, SIGTERM, NULL, 0) && errno != ESRCH)
            answer = fault_set(f, "cannot signal process %lld: %s", (long long)again.pid, strerror(errno));
        state_deinit(&again);
    }
    if (answer >= 0) {
        struct pollfd ended = {fd, POLLIN, 0};

        while (poll(&ended, 1, -1) < 0 && errno == EINTR)
            ;
    }
    close(fd);
    state_deinit(&first);
    return answer < 0 ? -1 : 0;
}

int command_drain(int argc, char **argv)
{
    static const struct option options[] = {
        {"state", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *path = STATE_FILE_DEFAULT;
    struct fault f = {0};
    int option, answer;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 's') {
            path = optarg;
        } else {
            fputs(help, option == 'h' ? stdout : stderr);
            return option == 'h' ? STATUS_DONE : STATUS_USAGE;
        }
    }
    if (optind < argc) {
        fputs(help, stderr);
        return STATUS_USAGE;
    }
    answer = drain(path, &f);
    if (answer < 0)
        return command_fail(&f);
    puts(answer ? "no sidecar is running any more" : "drained");
    return STATUS_DONE;
}
