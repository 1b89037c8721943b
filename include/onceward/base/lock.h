#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A file that one process locks for its whole life, so that other processes can find it.
 *
 * The lock is a POSIX record lock. The kernel reports its owner, as a process id in the caller's namespace, and ends
 * the lock when the process ends for any reason. The lock survives execve. */

struct fault;

struct lock {
    int fd; /* the process's only descriptor of the file: closing any other would end the lock */
};

enum { LOCK_TAKEN = 1 };

/* Creates the file at path if needed (mode 0600) and locks it. The environment variable named keeper passes
 * the locked descriptor to the program that replaces this one by execve; pass NULL once there are threads.
 * This process must not have locked the file already. LOCK_TAKEN: another process has the lock, *ret_pid (0:
 * not visible from this namespace). -1: f. */
int lock_take(struct lock *l, const char *path, const char *keeper, int64_t *ret_pid, struct fault *f);

/* Is the locked file still the one at path? Another process may have removed or replaced that one. */
bool lock_is_at(const struct lock *l, const char *path);

/* Ends the lock. The file stays: another process that is about to lock it must not end up with a different file. */
void lock_release(struct lock *l);

/* Finds the process that has locked the file at path: *ret_pid (0: not visible from this namespace). Not for
 * the process that has the lock. 0: the file is not locked, or does not exist. LOCK_TAKEN. -1: f. */
int lock_holder(const char *path, int64_t *ret_pid, struct fault *f);
