#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A file that one process has locked for as long as it lives, and by which others learn which one that is.
 *
 * It is a POSIX record lock: the kernel itself says who holds it, as a process id of the asker's own
 * namespace, and ends it with the process, however that ends. It stays when the process starts another
 * program in its place (execve). */

struct fault;

struct lock {
    int fd; /* the process's only descriptor of the file: closing any other would end the lock */
};

enum { LOCK_TAKEN = 1 };

/* Makes the file at path, where there is none (mode 0600), and locks it. The environment variable named
 * keeper tells the program that is started in this one's place which descriptor has the lock; NULL when there
 * are threads already. Not for a file that this process has locked. LOCK_TAKEN: another process has it,
 * *ret_pid (0: one that cannot be seen from here). -1: f. */
int lock_take(struct lock *l, const char *path, const char *keeper, int64_t *ret_pid, struct fault *f);

/* Is the file that is locked still the one at path? It may have been removed, or replaced. */
bool lock_is_at(const struct lock *l, const char *path);

/* Ends it. The file stays: one that was about to be locked must not be another one. */
void lock_release(struct lock *l);

/* Who has locked the file at path: *ret_pid (0: a process that cannot be seen from here). Not for the process
 * that has it. 0: nobody, or there is no such file. LOCK_TAKEN. -1: f. */
int lock_holder(const char *path, int64_t *ret_pid, struct fault *f);
