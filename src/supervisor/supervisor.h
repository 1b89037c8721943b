#pragma once

/* Private to the supervisor: one thread, the process's first.
 *
 *   supervisor.c (one folder up)   signals, and the loop
 *   slots.c                        the workers, and the configurations that they run with
 *   reload.c                       SIGHUP
 *   state.c                        the state file
 */

#include "onceward/config/config.h"
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
    int64_t started_ms, state_at_ms;
    bool state_failed;
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
bool slot_is_ready(const struct slot *slot);
void slots_step(struct supervisor *s);         /* frees what has ended, starts what can be started */
bool slots_settle(const struct supervisor *s); /* nothing leaves, nothing waits for its first try */

void slots_deinit(struct supervisor *s); /* when none is left */

/* reload.c */
void reload_step(struct supervisor *s); /* also when nobody asked: what it began goes on */

/* state.c */
void state_make_folder(const char *path);
void state_write(struct supervisor *s);
void state_end(const struct supervisor *s, int status);
