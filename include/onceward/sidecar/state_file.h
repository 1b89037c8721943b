#pragma once

#include "onceward/base/lock.h"
#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

/* The state file on the sidecar's side: its lock while the sidecar runs (PATH.lock beside it), the sidecar's name
 * through restarts, and its replacement. One thread. state.h has its contents. */

struct fault;

struct state_file {
    char *path, *lock_path, *next_path;
    struct lock lock;
    bool is_locked;
    bool is_synced;       /* the increased start number is on the disk */
    char *instance;       /* the sidecar's name */
    int64_t start;        /* number of starts of a sidecar with this name on this file, including this one */
    bool ended_uncleanly; /* previous process, according to its state */
    bool instance_was_there; /* the unlocked file named it: the former owner of the name on this file has
                                ended */
};

enum { STATE_FILE_TAKEN = 1 };

/* Locks the file at path, creates its folder if only that is missing, and reads the state of the previous process.
 * instance: as configured; NULL: that of the file, or a new one. Instance and start are set in every case. To be
 * called before there are threads that read the environment: see lock_take. A program that replaces this one by
 * execve finds the lock that it has. STATE_FILE_TAKEN: another sidecar has the lock, f names its process. -1: no
 * lock, f says why; state_file_replace tries again. */
int state_file_open(struct state_file *s, const char *path, const char *instance, struct fault *f);

/* Replaces the whole content. Locks the file first if needed. Returns like state_file_open. */
int state_file_replace(struct state_file *s, struct slice text, struct fault *f);

/* Ends the lock and frees s; the file stays. */
void state_file_close(struct state_file *s);

/* Could a sidecar run with the file at path? Leaves no file behind. Not for the sidecar itself.
 * STATE_FILE_TAKEN: another one runs; *ret_pid is its process (0: not visible from here). -1: f. */
int state_file_try(const char *path, int64_t *ret_pid, struct fault *f);

/* Finds the owner of the file at path, like lock_holder. Not for the sidecar itself. */
int state_file_owner(const char *path, int64_t *ret_pid, struct fault *f);
