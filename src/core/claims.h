#pragma once

#include "core/life.h"

/* Selects the next delivery to claim, look up or forward, and manages the slots of the queue and its application.
 * Each function returns false if none is possible now; otherwise the delivery is taken, and *ret must be carried out.
 * Private to the core. */
bool next_look(struct queue *q, int64_t now_ms, struct action *ret);
bool next_claim(struct queue *q, int64_t now_ms, struct action *ret);
bool next_forward(struct queue *q, int64_t now_ms, struct action *ret);

/* Slots of the queue that are taken: requests in flight, claims on their way, messages answered 202. */
int claims_n_slots(const struct queue *q);

/* Time at which one of them may answer differently without a new fact; INT64_MAX: never. */
int64_t claims_deadline(const struct queue *q, int64_t now_ms);

/* Marks the delivery's operation as sent by this action. Returns true. */
bool action_take(struct queue *q, int64_t now_ms, struct delivery *d, enum action_kind kind,
                 struct action *ret);

/* Takes the first delivery that wants the operation. False: none does. */
static inline bool action_take_first(struct queue *q, int64_t now_ms, enum operation op, struct action *ret)
{
    struct link *k = list_first(&q->held.wanted[op]);

    return k && action_take(q, now_ms, delivery_at(k), ACTION_DATABASE, ret);
}
