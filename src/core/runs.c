/* Runs of one key in their line: see runs.h. */
#include "core/runs.h"

#include "core/order.h"

#include <assert.h>

struct delivery *runs_next_in_line(const struct delivery *d)
{
    struct link *k = d->place.in_line.next;

    return d->place.line && k != &d->place.line->places.head
               ? container_of(container_of(k, struct key_place, in_line), struct delivery, place)
               : NULL;
}

static const struct delivery *line_previous(const struct delivery *d)
{
    struct link *k = d->place.in_line.prev;

    return d->place.line && k != &d->place.line->places.head
               ? container_of(container_of(k, struct key_place, in_line), struct delivery, place)
               : NULL;
}

static bool is_ready(const struct delivery *d)
{
    return d->op == OP_FORWARD && d->phase == PHASE_WANTED;
}

static bool is_being_claimed(const struct delivery *d)
{
    return d->op == OP_CLAIM && d->phase == PHASE_SENT;
}

struct delivery *runs_behind(const struct delivery *d)
{
    struct delivery *next = runs_next_in_line(d);

    return next && is_ready(next) ? next : NULL;
}

size_t runs_len(const struct delivery *d)
{
    size_t n = 0;

    for (; d; d = runs_behind(d))
        n++;
    return n;
}

enum run_place runs_place(const struct delivery *d)
{
    const struct delivery *before = line_previous(d), *next;

    assert(is_ready(d));
    /* The channel is lost, and with it the order of the key. */
    if (d->claim->is_behind && !d->place.line)
        return RUN_BROKEN;
    if (before)
        return is_ready(before) || is_being_claimed(before) ? RUN_WAITS : RUN_BROKEN;
    for (next = runs_next_in_line(d); next && is_ready(next);)
        next = runs_next_in_line(next);
    return next && is_being_claimed(next) ? RUN_WAITS : RUN_FIRST;
}

bool runs_was_not_attempted(const struct delivery *d)
{
    return d->claim->is_behind && !key_place_is_first(&d->place);
}

void runs_forget_try(struct delivery *d)
{
    assert(d->claim->is_behind);
    d->claim->tried_ms = 0;
}
