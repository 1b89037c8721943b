/* Locked files. Stateless. lock_take changes the environment, so it is called before there are threads. */

#include "onceward/base/lock.h"

#include "onceward/base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

static bool is_file_at(int fd, const char *path)
{
    struct stat open_one, there;

    return fstat(fd, &open_one) == 0 && stat(path, &there) == 0 && open_one.st_ino == there.st_ino &&
           open_one.st_dev == there.st_dev;
}

/* Descriptor that the previous program passed on, or -1. A number that now belongs to another file is not touched. */
static int inherited(const char *path, const char *keeper)
{
    const char *text = keeper ? getenv(keeper) : NULL;
    char *end;

    if (!text || !*text)
        return -1;
    long fd = strtol(text, &end, 10);
    return !*end && fd > 2 && fd <= INT32_MAX && is_file_at((int)fd, path) ? (int)fd : -1;
}

/* Opens a regular file only. Another user may have put a link or something else there. */
static int open_file(const char *path, int flags, struct fault *f)
{
    struct stat st;
    int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK, 0600);

    if (fd < 0)
        return fault_set(f, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return fault_set(f, "%s: not a file", path);
    }
    return fd;
}

static int asked_holder(int fd, const char *path, int64_t *ret_pid, struct fault *f)
{
    struct flock other = whole;

    if (fcntl(fd, F_GETLK, &other))
        return fault_set(f, "%s: its lock cannot be read: %s", path, strerror(errno));
    if (other.l_type == F_UNLCK)
        return 0;
    *ret_pid = other.l_pid > 0 ? other.l_pid : 0;
    return LOCK_TAKEN;
}

static void keep_for_the_next_program(int fd, const char *keeper)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", fd);
    setenv(keeper, text, 1);
}

int lock_take(struct lock *l, const char *path, const char *keeper, int64_t *ret_pid, struct fault *f)
{
    int fd = inherited(path, keeper), answer = 0;

    if (fd < 0)
        fd = open_file(path, O_RDWR | O_CREAT, f);
    if (fd < 0)
        return -1;
    while (fcntl(fd, F_SETLK, &whole)) {
        int failed = errno;

        if (failed == EINTR)
            continue;
        if (failed == EACCES || failed == EAGAIN)
            answer = asked_holder(fd, path, ret_pid, f);
        else
            answer = fault_set(f, "%s cannot be locked: %s", path, strerror(failed));
        if (answer) {
            close(fd);
            return answer;
        } /* the owner ended between the two calls */
    }
    if (!is_file_at(fd, path)) {
        close(fd);
        return fault_set(f, "%s was removed while it was locked", path);
    }
    if (keeper)
        keep_for_the_next_program(fd, keeper);
    *l = (struct lock){.fd = fd};
    return 0;
}

bool lock_is_at(const struct lock *l, const char *path)
{
    return is_file_at(l->fd, path);
}

void lock_release(struct lock *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

int lock_holder(const char *path, int64_t *ret_pid, struct fault *f)
{
    struct stat st;
    int fd, answer;

    if (lstat(path, &st) && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    fd = open_file(path, O_RDONLY | O_CLOEXEC, f);
    if (fd < 0)
        return -1;
    answer = asked_holder(fd, path, ret_pid, f);
    close(fd);
    return answer;
}
