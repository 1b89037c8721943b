#pragma once

#include "onceward/base/buf.h"
#include "onceward/broker/broker.h"
#include "sidecar/dial.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Connections to brokers, one for each virtual host, and their other tasks besides deliveries: the arguments of queues,
 * and renewals. */

struct delivery;
struct sidecar_queue;
struct sidecar;

/* Copies in flight to their own queues: see renewals.c. */
enum { N_RENEWALS_OUT = 64 };

struct link_renewals {
    struct sender *sender; /* NULL: not connected */
    struct dial dial;
    struct watch watch;
    bool readable, blocked, wrote;
    int64_t tick_ms, used_ms;
    struct renewal_out {
        uint64_t tag; /* 0: not sent, and `refused` has the reason */
        const char *refused;
        uint64_t ref;
        size_t queue;
        int64_t sent_ms;
        bool is_returned;
    } out[N_RENEWALS_OUT]; /* in the order of their tags */
    size_t n_out;
    struct buf header;
};

/* A connection to a virtual host. */
struct broker_link {
    char *vhost;
    char *cluster;         /* broker connected last; NULL: none yet */
    struct broker *broker; /* NULL: none */
    struct dial dial;
    struct watch watch;
    bool readable;                               /* readable, or with more input than one turn takes */
    bool wrote_ack, wrote_reject, wrote_requeue; /* in this turn */
    bool closing, closed;
    int64_t tick_ms;
    struct link_renewals renewals;
    struct { /* the arguments of queues */
        struct job *job;
        struct watch watch;
        int64_t deadline_ms;
    } arguments;
};

/* --- brokers.c --- */

int brokers_init(struct sidecar *s, struct fault *f);
void brokers_step(struct sidecar *s);
void brokers_close(struct sidecar *s); /* starts closing */
bool brokers_are_closed(struct sidecar *s);
void brokers_deinit(struct sidecar *s);

/* --- arguments.c --- */

void arguments_want(struct sidecar_queue *sq);   /* the queue's channel was opened */
void arguments_forget(struct sidecar_queue *sq); /* the queue was or may have been deleted */
void arguments_step(struct sidecar *s);
void arguments_close(struct sidecar *s);

/* --- renewals.c --- */

void renewals_step(struct sidecar *s);
int64_t renewals_due_ms(const struct sidecar *s);
bool renewals_can(const struct sidecar_queue *sq); /* may a copy be sent? */
void renewals_send(struct sidecar *s, struct sidecar_queue *sq, const struct delivery *d);
void renewals_flush(struct sidecar *s); /* once per turn, after the actions */
void renewals_close(struct sidecar *s);
