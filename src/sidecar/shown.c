/* What presence shows of the queues, for `onceward status` and `top`, and for other replicas: an object a
 * queue, of which the database reads "consumer" and "state". What is 0, or is not known, is left out: the row
 * is written every few seconds. */
#include "sidecar/sidecar.h"

static void add_text(struct buf *b, const char *key, const char *value)
{
    buf_printf(b, ", \"%s\": ", key);
    buf_add_json(b, slice_of(value));
}

static void states(struct lane *l, struct buf *b)
{
    bool consuming = l->core.consumer.state == CONSUMER_ACTIVE && !l->core.left_to_others;
    enum queue_state state = queue_state(&l->core);

    if (state == QUEUE_CONSUMING && !consuming)
        state = QUEUE_WAITING;
    buf_add_text(b, "{\"queue\": ");
    buf_add_json(b, slice_of(l->config->queue));
    add_text(b, "consumer", l->config->consumer);
    buf_printf(b, ", \"state\": \"%s\", \"in_flight\": %zu, \"held\": %zu, \"limit\": %d}",
               queue_states[state].name, l->core.held.n_out, queue_n_held(&l->core),
               (int)l->core.limiter.limit);
}

void shown_write(struct sidecar *s, struct buf *ret)
{
    buf_reset(ret);
    buf_add_char(ret, '[');
    for (size_t i = 0; i < s->n_lanes; i++) {
        buf_add_text(ret, i ? ", " : "");
        states(&s->lanes[i], ret);
    }
    buf_add_char(ret, ']');
}
