#pragma once

#include "onceward/base/lock.h"
#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

/* The state file on the sidecar's side: locked while it runs (PATH.lock beside it), the sidecar's name
 * through its restarts, and its replacement. One thread. See state.h for what it says. */

struct fault;

struct state_file {
    char *path, *lock_path, *next_path;
    struct lock lock;
    bool is_locked;
    bool is_synced;       /* the raised number is on the disk */
    char *instance;       /* the sidecar's name */
    int64_t start;        /* how often a sidecar of this name has started on this file, this time included */
    bool ended_uncleanly; /* the process before this one, as its state says */
    bool instance_was_there; /* the file, found unlocked, named it: who had the name on this file before is
                                gone */
};

enum { STATE_FILE_TAKEN = 1 };

/* Locks the file at path (its folder is made where only that is missing) and reads what the life before has
 * left there. instance: as configured, NULL: the file's, or a new one. Instance and start are set whatever
 * the answer. Call it before there are threads that read the environment: see lock_take. A program that was
 * started in this one's place finds the lock that it has. STATE_FILE_TAKEN: another sidecar runs with it, f
 * names its process. -1: it cannot be locked, f says why; state_file_replace tries that again. */
int state_file_open(struct state_file *s, const char *path, const char *instance, struct fault *f);

/* Replaces what it says, whole. Locks it first where it is not, or not any more. Answers as state_file_open.
 */
int state_file_replace(struct state_file *s, struct slice text, struct fault *f);

/* Ends the lock and frees; the file stays. */
void state_file_close(struct state_file *s);

/* Could a sidecar run with the file at path? Nothing is left behind. Not for the sidecar itself.
 * STATE_FILE_TAKEN: one does; *ret_pid is its process (0: not to be seen from here). -1: f. */
int state_file_try(const char *path, int64_t *ret_pid, struct fault *f);

/* Who runs with the file at path, as lock_holder says. Not for the sidecar itself. */
int state_file_owner(const char *path, int64_t *ret_pid, struct fault *f);
