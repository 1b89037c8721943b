/* The sidecar's own state file. The lock is a separate file, since the state file itself is replaced. Only the lock's
 * owner writes, so one name for the next text is enough.
 *
 * The folder may be shared with other users: no file is opened through a link, and no existing file is written to. */

#include "onceward/sidecar/state_file.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "onceward/base/runtime_folder.h"
#include "onceward/sidecar/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define KEEPER "ONCEWARD_STATE_LOCK"

enum { INSTANCE_MAX = 255, NAME_BYTES = 6 };

static char *path_with(const char *path, const char *ending)
{
    struct buf b = {0};

    buf_printf(&b, "%s%s", path, ending);
    buf_text(&b);
    return b.data;
}

/* --- the name --- */

static char *new_instance(void)
{
    uint8_t bytes[NAME_BYTES];
    char host[256] = "";
    struct buf b = {0};

    if (gethostname(host, sizeof(host) - 1) != 0 || !slice_is_text(slice_of(host)) || !*host)
        snprintf(host, sizeof(host), "localhost");
    random_bytes(bytes, sizeof(bytes));
    buf_printf(&b, "%.200s-", host);
    buf_add_hex(&b, bytes, sizeof(bytes));
    buf_text(&b);
    return b.data;
}

static bool is_instance(const char *name)
{
    return name && *name && strlen(name) <= INSTANCE_MAX && slice_is_text(slice_of(name));
}

/* Reads the previous state, and ignores implausible values. */
static void learn_instance(struct state_file *s, const char *configured)
{
    struct state before = {0};
    struct fault none;
    bool is_there = s->is_locked && state_read(s->path, &before, &none) == 0 && is_instance(before.instance);

    if (configured)
        s->instance = mem_copy(configured, strlen(configured));
    else
        s->instance = is_there ? mem_copy(before.instance, strlen(before.instance)) : new_instance();
    s->instance_was_there = is_there && !strcmp(before.instance, s->instance);
    s->ended_uncleanly = is_there && before.life != LIFE_ENDED;
    s->start = s->instance_was_there && before.start > 0 && before.start < INT64_MAX ? before.start + 1 : 1;
    state_deinit(&before);
}

/* --- the lock --- */

/* Names the other process. A supervisor may have started this one during the other's grace period. */
static void name_other(const char *path, long long pid, struct fault *f)
{
    struct state other = {0};
    struct fault none;
    bool drains = state_read(path, &other, &none) == 0 && other.life == LIFE_DRAINING && other.pid == pid;
    time_t until = (time_t)(other.drains_until_ms / 1000);
    char text[32] = "";
    struct tm tm;

    if (drains && gmtime_r(&until, &tm))
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (*text)
        fault_set(f, "another sidecar, process %lld, runs with it: it drains until %s at the latest", pid,
                  text);
    else
        fault_set(f, "another sidecar, process %lld, runs with it", pid);
    state_deinit(&other);
}

static int take(struct state_file *s, const char *keeper, struct fault *f)
{
    int64_t pid = 0;
    int answer = runtime_folder_is_safe(s->path, f) ? lock_take(&s->lock, s->lock_path, keeper, &pid, f) : -1;

    s->is_locked = answer == 0;
    if (answer != LOCK_TAKEN)
        return answer;
    if (pid)
        name_other(s->path, (long long)pid, f);
    else
        fault_set(f, "another sidecar, in another container, runs with it");
    return STATE_FILE_TAKEN;
}

int state_file_open(struct state_file *s, const char *path, const char *instance, struct fault *f)
{
    *s = (struct state_file){.path = mem_copy(path, strlen(path)),
                             .lock_path = path_with(path, ".lock"),
                             .next_path = path_with(path, ".next"),
                             .lock = {.fd = -1}};
    bool is_reload = getenv(KEEPER) != NULL; /* this program replaced the one that wrote the file */

    runtime_folder_make(path);
    int answer = take(s, KEEPER, f);

    learn_instance(s, instance);
    s->ended_uncleanly = s->ended_uncleanly && !is_reload;
    return answer;
}

void state_file_close(struct state_file *s)
{
    lock_release(&s->lock);
    s->is_locked = false;
    mem_clear(&s->path);
    mem_clear(&s->lock_path);
    mem_clear(&s->next_path);
    mem_clear(&s->instance);
}

/* --- writing --- */

/* Creates a new file: not through a link, and none that another process has open. 0, or the errno. */
static int write_new(const char *path, struct slice text, bool sync)
{
    int fd, failed = 0;

    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return errno;
    errno = 0;
    if (write(fd, text.data, text.len) != (ssize_t)text.len)
        failed = errno ? errno : ENOSPC;
    else if (sync && fsync(fd))
        failed = errno;
    close(fd);
    return failed;
}

int state_file_replace(struct state_file *s, struct slice text, struct fault *f)
{
    int answer, failed;

    if (s->is_locked && !lock_is_at(&s->lock, s->lock_path)) {
        lock_release(&s->lock); /* the lock file was removed, and another sidecar may have locked a new one */
        s->is_locked = false;
    }
    if (!s->is_locked && (answer = take(s, NULL, f)))
        return answer;
    failed = write_new(s->next_path, text, !s->is_synced);
    if (!failed && rename(s->next_path, s->path))
        failed = errno;
    if (failed) {
        unlink(s->next_path);
        return fault_set(f, "%s cannot be written: %s", s->path, strerror(failed));
    }
    s->is_synced = true;
    return 0;
}

/* --- for other processes --- */

int state_file_owner(const char *path, int64_t *ret_pid, struct fault *f)
{
    char *lock_path = path_with(path, ".lock");
    int answer = lock_holder(lock_path, ret_pid, f);

    free(lock_path);
    return answer;
}

static int try_folder(const char *path, struct fault *f)
{
    char *trial = path_with(path, ".check");
    struct stat st;
    int failed =
        stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? EISDIR : write_new(trial, SLICE("{}\n"), false);

    unlink(trial);
    free(trial);
    return failed ? fault_set(f, "%s cannot be written: %s", path, strerror(failed)) : 0;
}

int state_file_try(const char *path, int64_t *ret_pid, struct fault *f)
{
    bool made = runtime_folder_make(path);
    int answer = runtime_folder_is_safe(path, f) ? state_file_owner(path, ret_pid, f) : -1;

    if (!answer)
        answer = try_folder(path, f);
    if (made) {
        char *folder = folder_of_path(path);

        rmdir(folder);
        free(folder);
    }
    return answer;
}
