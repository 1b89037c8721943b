#pragma once

#include "onceward/base/buf.h"
#include "onceward/inbox/inbox.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>

struct fault;

/* The queues of an inbox: their settings, the order in which their rows are locked, and whether their consumer names
 * are registered. */
struct queues {
    struct inbox_queue *list; /* owns its texts */
    size_t *ranks;            /* ranks in the order of the consumer names, by bytes */
    enum inbox_registration *registrations;
    char **refusals;       /* texts; NULL: none */
    bool *of_other_broker; /* refused only because the record names another broker */
    char **ranges;         /* the recorded range, if it is wider; or NULL */
    char **formers;        /* the range that the last registration replaced; or NULL */
    bool *ended;           /* all partitions outside the own range are empty */
    bool has_changed;      /* a broker has changed since the question was sent */
    int64_t order_changes; /* onceward.horizon.order_changes at their registration */
    size_t n;
};

void queues_init(struct queues *q, const struct inbox_queue *list, size_t n);
void queues_deinit(struct queues *q);

/* Adds the consumer names, as a literal of text[]. */
void queues_consumers(const struct queues *q, struct buf *literal);

/* Adds the queues that store messages: their consumer names and retentions in ms, as array literals. */
void queues_stores(const struct queues *q, struct buf *consumers, struct buf *retentions);

/* Registration of all queues in one call (QUESTION_REGISTER): its parameters as literals of arrays, and its answer. A
 * queue without a row in the result is registered. */
enum { REGISTER_PARAMS = 7, REGISTER_COLUMNS = 7 };
void queues_register_params(struct queues *q, struct buf params[REGISTER_PARAMS]);

/* Takes a binary result. -1: malformed; nothing has changed. */
int queues_registered(struct queues *q, const PGresult *result, struct fault *f);

/* Notes why the call failed, for the queues that are not registered. */
void queues_not_registered(struct queues *q, const struct fault *f);

/* Sets the queue's broker. If that is another one, or was unknown, the queue must be registered again. */
void queues_set_broker(struct queues *q, size_t queue, const char *broker);

/* Are all queues registered? */
bool queues_are_registered(const struct queues *q);

/* Is one of the queues ordered? */
bool queues_are_ordered(const struct queues *q);

/* Does one of the queues have a range, which others may extend? */
bool queues_have_range(const struct queues *q);
