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

static const char help[] =
    "usage: onceward drain [--state FILE]\n"
    "For a preStop hook: asks the running sidecar to stop consuming and to finish "
    "what is in flight, within its\n"
    "shutdown_grace, and waits until it has ended.\n"
    "  --state   the sidecar's state_file; default " STATE_FILE_DEFAULT "\n"
    "Exit status 0: it has ended cleanly, now or before. 1: there is no state file, or "
    "the sidecar was killed,\n"
    "hangs, or ended with another status than 0.\n";

enum outcome { OUTCOME_DRAINED, OUTCOME_ENDED_BEFORE, OUTCOME_FAILED = -1 };

/* The process is gone: what does its file say? One that is gone, too, or is another's by now, was given up
 * by its writer. */
static int end_check(const char *path, int64_t pid, struct fault *f)
{
    struct fault gone;
    struct state s;
    int answer = 0;

    if (state_read(path, &s, &gone))
        return 0;
    if (s.pid == pid && s.ended && s.status != 0)
        answer = fault_set(f, "the sidecar, process %lld, has ended with status %lld: see its log",
                           (long long)pid, (long long)s.status);
    else if (s.pid == pid && !s.ended)
        answer = fault_set(f, "the sidecar, process %lld, was killed; %s is left over from it",
                           (long long)pid, path);
    state_deinit(&s);
    return answer;
}

/* Asks the process behind the descriptor, if the file is still its own. 0: it is to be waited for; -1. */
static int ask(const char *path, int64_t pid, int fd, struct fault *f)
{
    struct fault gone;
    struct state s;
    int answer = 0;

    if (state_read(path, &s, &gone))
        return 0; /* its file was removed: it is at its end */
    bool same = s.pid == pid && (s.ended || s.age_ms <= STATE_STALE_MS);
    int64_t started = process_started(s.pid);

    if (s.process_started > 0 && started > 0 && started != s.process_started)
        same = false; /* its number belongs to another process now */
    /* A second signal would end the grace at once. */
    if (!same)
        answer = fault_set(f, "%s is left over from a sidecar that was killed, or that hangs", path);
    else if (!s.ended && !s.draining && pidfd_send_signal(fd, SIGTERM, NULL, 0) && errno != ESRCH)
        answer = fault_set(f, "cannot signal process %lld: %s", (long long)pid, strerror(errno));
    state_deinit(&s);
    return answer;
}

static enum outcome drain(const char *path, struct fault *f)
{
    enum outcome outcome = OUTCOME_DRAINED;
    struct state first;
    int fd;

    if (state_read(path, &first, f))
        return OUTCOME_FAILED;
    int64_t pid = first.pid;
    bool ended = first.ended;
    state_deinit(&first);
    fd = ended ? -1 : pidfd_open((pid_t)pid, 0);
    if (fd >= 0) {
        struct pollfd waited = {fd, POLLIN, 0};

        if (ask(path, pid, fd, f))
            outcome = OUTCOME_FAILED;
        while (outcome == OUTCOME_DRAINED && poll(&waited, 1, -1) < 0 && errno == EINTR)
            ;
        close(fd);
    } else if (ended || errno == ESRCH) {
        outcome = OUTCOME_ENDED_BEFORE;
    } else {
        fault_set(f, "cannot reach process %lld: %s", (long long)pid, strerror(errno));
        outcome = OUTCOME_FAILED;
    }
    if (outcome != OUTCOME_FAILED && end_check(path, pid, f))
        outcome = OUTCOME_FAILED;
    return outcome;
}

int command_drain(int argc, char **argv)
{
    static const struct option options[] = {
        {"state", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *path = STATE_FILE_DEFAULT;
    struct fault f = {0};
    enum outcome outcome;
    int option;

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
    outcome = drain(path, &f);
    if (outcome == OUTCOME_FAILED)
        return command_fail(&f);
    puts(outcome == OUTCOME_ENDED_BEFORE ? "the sidecar has ended already" : "drained");
    return STATUS_DONE;
}
