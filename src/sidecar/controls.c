/* Passes operator commands, as presence has read them, to the queues' cores.
 *
 * A pause, the stop of an ordered queue and ids to give up are states, passed on each time. Each replica carries out a
 * retry, or a give-up of held messages, once: it remembers the number of the last one. Commands from before the start
 * of the process do not apply to it. */
#include "sidecar/sidecar.h"

#include <string.h>

static const struct inbox_control nothing = {
    .reason = "", .by = "", .give_up_by = "", .retry.by = "", .held.by = ""};

static const struct inbox_control *control_of(const struct inbox_presence *p, size_t queue)
{
    for (size_t k = 0; k < p->n_controls; k++)
        if (p->controls[k].queue == queue)
            return &p->controls[k];
    return &nothing;
}

/* Does the number belong to a new command? */
static bool is_new(const struct sidecar_queue *sq, int64_t *done, int64_t number)
{
    bool is_new = sq->controls.read && number && number != *done;

    *done = number;
    return is_new;
}

static void give_up(struct sidecar_queue *sq, const struct inbox_control *c)
{
    struct buf *ids = &sq->sidecar->presence.json;

    buf_reset(ids);
    for (size_t k = 0; k < c->n_give_up; k++) {
        buf_add_slice(ids, c->give_up[k]);
        buf_add_char(ids, '\0');
    }
    queue_command_give_up(&sq->core, sq->sidecar->now_ms, c->give_up_by, ids->data, ids->len);
}

static void stop(struct sidecar_queue *sq, const struct inbox_presence *p)
{
    static const struct inbox_stop none = {.why = ""};
    const struct inbox_stop *found = &none;

    for (size_t k = 0; k < p->n_stops && found == &none; k++)
        if (p->stops[k].entry == sq->config->entry && !strcmp(p->stops[k].queue, sq->config->queue))
            found = &p->stops[k];
    queue_stop_known(&sq->core, sq->sidecar->now_ms, found->count, found->accepted, found->retry, found->why);
}

void controls_apply(struct sidecar *s, const struct inbox_presence *p)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        const struct inbox_control *c = control_of(p, s->queues[i].config->entry);
        struct sidecar_queue *sq = &s->queues[i];

        /* An unregistered consumer may belong to another queue, so its commands are ignored for now. */
        if (inbox_registration(s->database.inbox, sq->config->entry, NULL) != INBOX_REGISTERED)
            continue;
        queue_command_pause(&sq->core, s->now_ms, c->paused, c->by, c->reason);
        if (sq->core.rules.ordered)
            stop(sq, p);
        give_up(sq, c);
        if (is_new(sq, &sq->controls.retry, c->retry.number))
            queue_command_retry(&sq->core, s->now_ms, c->retry.by);
        if (is_new(sq, &sq->controls.held, c->held.number))
            queue_command_give_up_held(&sq->core, s->now_ms, c->held.by, s->now_ms - c->held.ago_ms);
        sq->controls.read = true;
        sq->touched = true;
    }
}
