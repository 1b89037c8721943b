#pragma once

#include "app_sim.h"
#include "broker_sim.h"
#include "database_sim.h"
#include "promises.h"
#include "truth.h"
#include "world.h"

#include "onceward/core/queue.h"

#include <stdbool.h>
#include <stdint.h>

/* A sidecar: the real core in a small simulated shell, which turns the simulated servers' events into facts
 * and carries out the core's actions. It can be killed between any two actions, frozen, drained and
 * restarted. */

enum hears { HEARS_CONSUMING, HEARS_STOPPED, HEARS_DEPTH };

enum { DRAIN_GRACE_MS = 25000 };

enum link_state { SIM_LINK_DOWN, SIM_LINK_DIALLING, SIM_LINK_UP };

struct sidecar_queue {
    struct queue core;
    struct channel *channel;      /* the present one; NULL: none */
    struct channel *channels[64]; /* the latest of this start, as a ring */
    size_t n_channels;
    int64_t others_us;          /* latest time at which another sidecar consumed it */
    struct handover_counts {    /* of an ordered queue, in this start */
        unsigned members;       /* a bit for each sidecar that was subscribed to it at the latest report */
        int n_changes, n_heard; /* changes of the members; new subscriptions of others */
        int n_lost, n_steps;    /* channels lost unplanned; steps behind the owner */
        int64_t heard[SIDECARS_MAX];
        /* Latest times: a step returned messages, another sidecar was able to consume, no step was due. */
        int64_t returned_us, ready_us, even_us;
    } handover;
    bool unclean;     /* the previous start was killed, and no delivery of this start has shown that it kills
                    nothing */
    bool retry_known; /* the number of the operator's latest retry: */
    uint64_t retry_number;
};

/* A copy in transit to its own queue. */
struct renewal_sim {
    struct sidecar *sidecar;
    uint32_t life;
    int queue;
    uint64_t ref;
    struct copy *copy; /* the former copy */
    const char *why;   /* the failure; NULL: confirmed */
};

struct other {
    uint64_t counter;
    int n_same;
    int64_t same_since_us, seen_us;
    bool known, gone;
};

struct sidecar {
    struct world *world;
    int index;
    bool alive, draining, drained;
    uint32_t life;
    int64_t number; /* of this start of the instance */
    bool own;       /* its state file had the instance's name */
    bool killed;    /* its state file shows that the previous start was killed */
    int64_t frozen_until_us;
    int64_t starts_us;           /* time of the next start, while it is dead */
    int64_t drain_for_us;        /* a drain ends in a restart after this time */
    uint64_t n_actions, kill_at; /* kill_at 0: never */
    int64_t kill_for_us;
    bool kill_forgets;
    int64_t drain_since_us;
    struct promises promises[QUEUES_MAX];
    struct application application;
    struct database database;
    struct app_sim app;
    struct sidecar_queue queues[QUEUES_MAX];
    enum link_state broker_state, base_state;
    struct link_sim *link;
    struct base_link *base;
    int n_dials, n_base_dials;
    bool hurries;                 /* asks for presence within a second */
    uint32_t n_losses;            /* losses of the database connection, as the core counts them */
    struct batch *out[N_BATCHES]; /* in flight */
    struct batch *filling[N_BATCHES];
    struct other others[SIDECARS_MAX];
    int64_t turn_us; /* of the next turn; INT64_MAX: none is planned */
    uint64_t turn;
    size_t n_facts;
    struct post **open; /* requests in flight. Owned */
    size_t n_open, open_cap;
    struct post **accepted; /* answered 202, and possibly still open. Owned */
    size_t n_accepted, accepted_cap;
    int64_t base_since_us; /* time of its connection to the database */
    uint64_t random;
    int64_t dead_since_us;
    int64_t presence_us;                                         /* of the latest presence call, */
    int64_t asked_stops[QUEUES_MAX], asked_outdated[QUEUES_MAX]; /* and the stops in it */
};

/* Hash of its instance, which has another name in each run. */
uint64_t sidecar_hash(const struct world *w, int index);

void sidecar_create(struct world *w, int index);
void sidecar_destroy(struct world *w, struct sidecar *s);
void sidecar_start(struct world *w, struct sidecar *s);
/* kill -9. Restarted after for_us (0: never). forgets: its state file is lost. */
void sidecar_kill(struct world *w, struct sidecar *s, int64_t for_us, bool forgets);
void sidecar_freeze(struct world *w, struct sidecar *s, int64_t for_us);
void sidecar_drain(struct world *w, struct sidecar *s, int64_t restart_us);

int sidecar_index(const struct sidecar *s);
int64_t sidecar_frozen_until(const struct sidecar *s);

/* Breaks the broker's connection: the sidecar notices after here_us, the broker after there_us. */
void sidecar_cut_broker(struct world *w, struct sidecar *s, int64_t here_us, int64_t there_us);
void sidecar_cut_base(struct world *w, struct sidecar *s, int64_t here_us);
void sidecar_channel_closed(struct world *w, struct sidecar *s, int queue);
void sidecar_pause(struct world *w, struct sidecar *s, int queue, bool paused);

/* Input. */
void sidecar_delivered(struct world *w, struct sidecar *s, struct channel *c, struct copy *m);
void sidecar_hears(struct world *w, struct channel *c, int64_t at_us, enum hears what, uint64_t n);
void sidecar_rows(struct world *w, struct sidecar *s, struct batch *b);
void sidecar_answered(struct world *w, struct post *p, enum answer_kind kind, int status,
                      int64_t retry_after_ms);
void sidecar_presence(struct world *w, struct sidecar *s, const struct presence_row *rows);
void sidecar_tried(struct world *w, struct sidecar *s, bool works);
