#pragma once

#include "onceward/base/buf.h"
#include "onceward/inbox/inbox.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>

struct fault;

/* The queues of an inbox: what it was told of them, in which order their rows are locked, and whether their
 * consumer names are their own. */
struct queues {
    struct inbox_queue *list; /* texts owned */
    size_t *ranks;            /* the place of each in the order of the consumer names, by bytes */
    enum inbox_registration *registrations;
    char **refusals;  /* in words; NULL: none */
    bool has_changed; /* a broker, since they were asked for */
    size_t n;
};

void queues_init(struct queues *q, const struct inbox_queue *list, size_t n);
void queues_deinit(struct queues *q);

/* Their consumer names, as the literal of a text array. */
void queues_consumers(const struct queues *q, struct buf *literal);

/* Those that store their messages: their consumer names, and for how long in ms, as literals of arrays. */
void queues_stores(const struct queues *q, struct buf *consumers, struct buf *retentions);

/* Registering all of them in one call (QUESTION_REGISTER): its parameters as literals of text arrays, and
 * what its answer says. A result without a row for a queue says that it is registered. */
enum { REGISTER_PARAMS = 5, REGISTER_COLUMNS = 6 };
void queues_register_params(struct queues *q, struct buf params[REGISTER_PARAMS]);

/* Takes what a result says, in binary. -1: it is not what was agreed upon; nothing has changed. */
int queues_registered(struct queues *q, const PGresult *result, struct fault *f);

/* The queue is one of this broker. Where it was another one, or not known, the queue is to be registered again. */
void queues_set_broker(struct queues *q, size_t queue, const char *broker);

/* Is each of them registered? */
bool queues_are_registered(const struct queues *q);
