#pragma once

#include "onceward/base/buf.h"
#include "onceward/inbox/inbox.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Other replicas: presence, handovers of ordered queues, and operator commands. */

struct sidecar_queue;
struct sidecar;

/* More replicas seldom share a queue. Each claim carries the names of the instances that have ended. */
enum { OWNERS_MAX = 128 };

/* Another instance whose claims are in the way, and its presence. */
struct claim_owner {
    char *instance;
    int64_t counter;    /* -1: not seen yet */
    int64_t changed_ms; /* time of the counter's last change, by this side's clock */
    int64_t met_ms;     /* time at which its claim last delayed one here */
    int n_same;         /* consecutive reads with an unchanged counter */
    bool asked, gone;
};

/* The presence of this instance and of the others. */
struct sidecar_presence {
    int64_t at_ms;
    bool asked, told_namesake;
    int64_t told_failed_ms;
    uint32_t epoch;                /* connection of the database that the question was sent on */
    int64_t asked_ms, count_at_ms; /* latest call; next one that counts the other instances */
    struct claim_owner owners[OWNERS_MAX];
    size_t n_owners;
    struct buf json;
};

/* --- replicas.c --- */

void replicas_step(struct sidecar *s);
void replicas_hurry(struct sidecar *s);                        /* asks again within a second */
void replicas_met(struct sidecar *s, struct slice claimed_by); /* "instance/number" of the claim's owner */
int64_t replicas_due_ms(const struct sidecar *s);
void replicas_say_now(struct sidecar *s); /* writes at once, for `status`, that the sidecar has drained and
                                             stays */
bool replicas_have_said(const struct sidecar *s);
void replicas_deinit(struct sidecar *s);

/* --- handovers.c --- */

void handovers_init(struct sidecar_queue *sq);
/* True: the replicas of an ordered consumer have just changed. */
bool handovers_tell(struct sidecar *s, const struct inbox_presence *p);

/* --- controls.c --- */

void controls_apply(struct sidecar *s, const struct inbox_presence *p);

/* --- queue_states.c --- */

void queue_states_write(struct sidecar *s, struct buf *ret); /* all queues, as JSON */
