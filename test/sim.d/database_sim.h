#pragma once

#include "inbox_sim.h"
#include "truth.h"
#include "world.h"

#include "onceward/core/operation.h"

#include <stdbool.h>
#include <stdint.h>

/* The simulated database: the rows of inbox_sim.h behind connections that break. A batch is one statement: it is
 * executed on arrival, and its answers travel back; either may be lost. The database's own clock may jump. Claims
 * that only insert are flushed later, as with synchronous_commit off: a crash may lose the latest of them. */

/* The kinds of batches, as in the inbox adapter: at most one of each is in flight. */
enum batch_kind {
    BATCH_CLAIM,
    BATCH_CLAIM_ASYNC,
    BATCH_LOOK,
    BATCH_RENEW,
    BATCH_SETTLE,
    BATCH_FAIL,
    BATCH_RELEASE,
    BATCH_BURY,
    N_BATCHES
};

enum { BATCH_MAX = 128 };

struct batch_item {
    uint64_t ref;
    int queue;
    enum operation op;
    struct truth *truth;
    struct copy *copy;
    struct inbox_ask ask;
    bool rowless, has_body;
    enum dead_reason reason;
    struct inbox_reply reply;
    const char *sqlstate;
};

struct base_link {
    struct sidecar *sidecar;
    uint32_t life;
    bool cut, here;
    int64_t slow_until_us, to_base_us, to_sidecar_us;
};

struct batch {
    struct batch *next_free;
    struct base_link *link;
    enum batch_kind kind;
    int n_owners; /* the waiting sidecar, and the batch in transit */
    struct inbox_asker who[QUEUES_MAX];
    size_t n;
    int64_t sent_us;
    struct batch_item items[BATCH_MAX];
};

struct presence_queue {
    bool may_consume, is_subscribed, is_active;
    int64_t subscription;
};

struct presence_row {
    bool exists;
    uint64_t counter;
    int64_t seen_us;
    struct presence_queue queues[QUEUES_MAX];
};

/* The stop of an ordered queue near its delivery limit. */
struct stop_sim {
    int64_t count;    /* 0: none */
    int64_t accepted; /* deliveries up to which the operator lets it continue; 0: none */
    int64_t at_us;    /* of the latest change */
    int n_continued;
};

struct database_sim {
    bool up, full, retries;
    int64_t mended_us; /* latest time at which it accepted writes again */
    int64_t skew_us;
    uint64_t next_tx;
    struct inbox_letters_sim letters; /* without a row */
    struct truth **unflushed;         /* Owned */
    size_t n_unflushed, unflushed_cap;
    struct presence_row presence[SIDECARS_MAX];
    struct batch *free_batches;
    uint64_t retry_number[QUEUES_MAX]; /* of the operator's commands */
    struct stop_sim stops[QUEUES_MAX];
};

void database_sim_init(struct world *w);
void database_sim_deinit(struct world *w);
static inline int64_t database_now(const struct world *w)
{
    return w->now_us + w->database->skew_us;
}

struct base_link *database_connect(struct world *w, struct sidecar *s, uint32_t life);
struct batch *batch_new(struct world *w, enum batch_kind kind);
void batch_release(struct world *w, struct batch *b);
/* Sends a batch, which is executed and answered: sidecar_rows follows, unless the answer is lost. */
void database_send(struct world *w, struct base_link *l, struct batch *b);
/* sidecar_presence follows. */
void database_ask_presence(struct world *w, struct base_link *l, int sidecar,
                           const struct presence_queue queues[QUEUES_MAX]);
/* sidecar_tried follows. */
void database_ask_try(struct world *w, struct base_link *l);
void database_crashes(struct world *w, int64_t for_us);
/* Commits synchronously, which flushes everything before it. */
void database_flush(struct world *w);
