/* Finds the process that runs with a state file, which the kernel reports as the lock's owner. A number in a file is
 * not trusted; the state file counts only if it names that process. */

#include "command/running.h"

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/process.h"
#include "onceward/base/runtime_folder.h"
#include "onceward/base/table.h"
#include "onceward/config/config.h"
#include "onceward/sidecar/state_file.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

enum { LOOK_MS = 50, FIRST_WORD_MS = 10000 };

/* --- file --- */

int running_path(const struct running_place *o, char **ret, struct fault *f)
{
    const char *config = command_config_default(o->config), *path = o->state;
    int answer = 0;

    *ret = NULL;
    if (!path && config)
        answer = config_state_file(config, ret, f);
    if (!*ret)
        *ret = path ? mem_copy(path, strlen(path)) : runtime_path_in_use();
    return answer;
}

/* --- process --- */

/* Does the state come from this process? The process's own number may belong to another namespace; its start time is
 * the same in all. */
static bool is_of(const struct state *s, int64_t pid)
{
    int64_t started = process_started(pid);

    return started > 0 && s->process_started > 0 ? started == s->process_started : s->pid == pid;
}

static int read_state(struct running *r, struct fault *f)
{
    struct state s;

    if (state_read(r->path, &s, f))
        return -1;
    state_deinit(&r->state);
    r->state = s;
    return 0;
}

/* Evaluates the last state, when the lock has no owner. */
static int judge_last(struct running *r, struct fault *f)
{
    if (read_state(r, f))
        return -1;
    if (r->state.life == LIFE_ENDED)
        return RUNNING_ENDED;
    return fault_set(f, "the sidecar, process %lld, was killed; %s is left over from it",
                     (long long)r->state.pid, r->path);
}

/* Keeps a descriptor of the lock's owner. The lock is checked before and after, so that the number still means that
 * process. */
static int hold_owner(struct running *r, struct fault *f)
{
    int64_t again = 0;
    int answer;

    do {
        if ((answer = state_file_owner(r->path, &r->pid, f)) <= 0)
            return answer ? answer : judge_last(r, f);
        if (!r->pid)
            return fault_set(f, "the sidecar of %s runs in another container: run this command there",
                             r->path);
        if (r->fd >= 0)
            close(r->fd);
        r->fd = pidfd_open((pid_t)r->pid, 0);
        if (r->fd < 0 && errno != ESRCH)
            return fault_set(f, "cannot reach process %lld: %s", (long long)r->pid, strerror(errno));
    } while (r->fd < 0 || state_file_owner(r->path, &again, f) != LOCK_TAKEN || again != r->pid);
    return 0;
}

int running_open(struct running *r, const char *path, struct fault *f)
{
    int64_t until = clock_ms() + FIRST_WORD_MS;

    *r = (struct running){.path = mem_copy(path, strlen(path)), .fd = -1};
    if (!runtime_folder_is_safe(path, f))
        return -1;
    int answer = hold_owner(r, f);
    while (!answer && (read_state(r, f) || !is_of(&r->state, r->pid))) {
        struct pollfd ends = {r->fd, POLLIN, 0};

        if (clock_ms() >= until)
            return fault_set(f, "the sidecar, process %lld, has not written %s", (long long)r->pid, path);
        if (poll(&ends, 1, LOOK_MS) > 0)
            answer = judge_last(r, f);
    }
    if (!answer && r->state.age_ms > STATE_STALE_MS)
        return fault_set(f, "the sidecar, process %lld, has not written %s for %lld s: it hangs",
                         (long long)r->pid, path, (long long)r->state.age_ms / 1000);
    return answer;
}

void running_name(const struct running *r, const char *doing)
{
    const struct state *s = &r->state;

    struct buf line = {0};

    buf_printf(&line, "%s instance ", doing);
    text_add_safe(&line, slice_of(s->instance ? s->instance : "(not named)"));
    buf_printf(&line, ", process %lld", (long long)s->pid);
    for (size_t i = 0; i < s->n_queues; i++) {
        buf_add_text(&line, i ? ", " : s->n_queues == 1 ? ", queue " : ", queues ");
        text_add_safe(&line, slice_of(s->queues[i].name));
    }
    puts(buf_text(&line));
    fflush(stdout); /* the following steps may take a while */
    buf_deinit(&line);
}

int running_signal(const struct running *r, int number, struct fault *f)
{
    if (pidfd_send_signal(r->fd, number, NULL, 0) && errno != ESRCH)
        return fault_set(f, "cannot signal process %lld: %s", (long long)r->pid, strerror(errno));
    return 0;
}

/* Handles the end of the process. Its last state is in the file. If there is none, or another sidecar's, its writer
 * has abandoned the file. */
static int judge_end(struct running *r, struct fault *f)
{
    int64_t pid = r->state.pid, started = r->state.process_started;
    struct fault gone;

    if (read_state(r, &gone) || r->state.pid != pid || r->state.process_started != started) {
        r->state.life = LIFE_ENDED;
        r->state.status = 0;
        return RUNNING_ENDED;
    }
    if (r->state.life == LIFE_ENDED)
        return RUNNING_ENDED;
    return fault_set(f, "the sidecar, process %lld, was killed; %s is left over from it", (long long)pid,
                     r->path);
}

int running_wait(struct running *r, struct fault *f)
{
    struct pollfd ends = {r->fd, POLLIN, 0};

    if (poll(&ends, 1, LOOK_MS) > 0)
        return judge_end(r, f);
    if (read_state(r, f))
        return -1;
    if (r->state.age_ms > STATE_STALE_MS)
        return fault_set(f, "the sidecar, process %lld, has not written %s for %lld s: it hangs",
                         (long long)r->pid, r->path, (long long)r->state.age_ms / 1000);
    return 0;
}

void running_close(struct running *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    state_deinit(&r->state);
    mem_clear(&r->path);
}
