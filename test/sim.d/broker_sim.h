#pragma once

#include "truth.h"
#include "world.h"

#include <stdbool.h>
#include <stdint.h>

/* The simulated broker: queues (classic or quorum; the counting rules of 3.x, 4.0 and 4.3), connections with
 * one channel per queue, prefetch per consumer, redelivery in the broker's order, the delivery limit,
 * drop-head. Frames in transit are lost when a connection breaks. */

enum { CONSUMERS_MAX = 4 };

struct consumer_sim {
    uint32_t number;
    uint64_t since; /* rank among all consumers of the queue */
    int prefetch, n_unacked;
};

struct link_sim;

/* A channel on the broker's side. */
struct channel {
    struct link_sim *link;
    struct channel *next; /* next channel of its queue */
    int queue;
    uint64_t generation;
    bool open;
    struct consumer_sim consumers[CONSUMERS_MAX];
    size_t n_consumers;
    struct copy **by_tag;      /* tag 1 is at 0. Owned */
    size_t n_tags, cap, first; /* first: all earlier tags are acked, rejected or requeued */
};

/* A connection of one start of a sidecar. */
struct link_sim {
    struct sidecar *sidecar;
    uint32_t life;
    bool cut;         /* transmits nothing any more */
    int64_t cut_us;   /* since then; 0: it is not cut */
    bool here, there; /* the sidecar, or the broker, considers it open */
    int64_t slow_until_us;
    int64_t to_sidecar_us, to_broker_us; /* arrival of the latest frame: later ones must not overtake it */
    struct channel *channels[QUEUES_MAX];
};

struct broker_queue {
    const struct plan_queue *plan;
    struct copy ready, returns;    /* rings; returns: for 4.3 and single active consumers; served first */
    uint64_t n_subscribed, active; /* number of consumers so far; the active one's `since`, 0: none */
    size_t n_ready;
    uint64_t next_position;
    struct channel *channels;
    bool exists;
};

struct broker_sim {
    bool up;
    uint64_t next_generation;
    struct broker_queue queues[QUEUES_MAX];
    struct copy **copies; /* all copies so far. Owned */
    size_t n_copies, copies_cap;
};

enum wire_kind {
    WIRE_ACK,
    WIRE_ACK_MULTIPLE,
    WIRE_REJECT,
    WIRE_REQUEUE,
    WIRE_CONSUME,
    WIRE_CANCEL,
    WIRE_CLOSE,
    WIRE_DEPTH
};

void broker_sim_init(struct world *w);
void broker_sim_deinit(struct world *w);

/* Publishes another copy of a message. */
struct copy *broker_publish(struct world *w, struct truth *t, uint8_t body, int64_t bytes);

/* Opens a connection of a sidecar, with its channels; NULL: the broker is down. */
struct link_sim *broker_connect(struct world *w, struct sidecar *s, uint32_t life);
struct channel *broker_open(struct world *w, struct link_sim *l, int queue);

/* Sends a method from the sidecar to the broker. a: tag or consumer, b: prefetch. */
void broker_send(struct world *w, struct channel *c, enum wire_kind kind, uint64_t a, uint32_t b);

/* The broker closes the connection and redelivers its deliveries. */
void broker_link_ends(struct world *w, struct link_sim *l);
void broker_channel_ends(struct world *w, struct channel *c);

struct copy *channel_copy(const struct channel *c, uint64_t tag);

/* Time of a short transmission. */
int64_t wire_us(struct world *w);

/* The sidecar with the active consumer of a queue with a single active consumer; NULL: none. */
const struct sidecar *broker_active_sidecar(const struct world *w, int queue);
