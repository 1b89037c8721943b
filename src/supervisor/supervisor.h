#pragma once

/* Private to the supervisor: one thread, the process's first.
 *
 *   supervisor.c (one folder up)   signals, and the loop
 *   slots.c                        the workers, and the configurations that they run with
 *   reload.c                       SIGHUP
 *   state.c                        what the state file is told
 */

#include "onceward/config/config.h"
#include "onceward/sidecar/state.h"
#include "onceward/sidecar/state_file.h"
#include "onceward/supervisor.h"
#include "onceward/worker.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A configuration, which lives as long as a worker that was started with it, or is the present one. */
struct version {
    struct version *next;
    struct config *config;
    size_t n_users;
};

/* An entry of a configuration: its worker runs, or will. While a queue changes, it has two: the old one
 * leaves, the new one waits for its end. */
struct slot {
    struct version *version;
    const struct config_queue *queue; /* of version */
    struct worker *worker;            /* NULL: not yet, or not any more */
    bool leaving;                     /* asked to drain; gone when its worker has ended */
    bool was_ready;                   /* whatever its worker says: a reload does not make a pod unready */
    bool is_added;                    /* was_ready is that of others */
    bool failed;                      /* its worker could not be started */
    int64_t start_at_ms;              /* not before; 0: it was not tried yet */
    int64_t told_at_ms;               /* that it failed */
};

struct supervisor {
    supervisor_load *load;
    const char *path;
    struct version *versions, *current;
    struct slot *slots;
    size_t n_slots;
    int signals;
    int n_asked; /* to end */
    bool stays;  /* asked to drain, and not to end yet */
    int64_t started_ms, state_at_ms;
    struct state_file file;
    enum state_life told_life; /* as the file has it */
    bool state_failed;
    struct state_reload told; /* of reloads, to the file */
    bool reload_asked, reloads;
    int64_t reload_began_ms;
    struct config_diff diff; /* of the reload that is under way */
};

/* slots.c */
void version_add(struct supervisor *s, struct config *c); /* it is the present one now */
struct slot *slot_add(struct supervisor *s, const struct config_queue *q,
                      bool was_ready); /* q: of the present version; until the next is added */
int slot_start(struct slot *slot);     /* -1: logged */
void slot_leave(struct slot *slot);
void slot_drain(struct slot *slot); /* and stay */
bool slot_is_ready(const struct slot *slot);
void slots_step(struct supervisor *s);         /* frees what has ended, starts what can be started */
bool slots_settle(const struct supervisor *s); /* nothing leaves, nothing waits for its first try */
bool slots_are_drained(const struct supervisor *s);

void slots_deinit(struct supervisor *s); /* when none is left */

/* reload.c */
void reload_step(struct supervisor *s); /* also when nobody asked: what it began goes on */

/* state.c */
int state_open(
    struct supervisor *s); /* locks the file, names the instance; -1: another sidecar runs with it, logged */
void state_tell(struct supervisor *s);
void state_end(struct supervisor *s, int status);
