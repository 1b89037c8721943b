/* Ranges of queue names that change: see config/pattern.h.
 *
 * The inbox records which partitions of a consumer are read. A recorded range that is wider than the configured one
 * is that of earlier or of other replicas: messages in the partitions outside the own range must not be forgotten. So
 * the sidecar restarts in its own place with these partitions beside its own, reads them until they are empty, and
 * then asks the inbox to take them out of the record. They are left once the inbox has done so; it keeps those that
 * another replica has in its range, or holds a message of. Until then the other partitions of an ordered consumer are
 * not consumed. */
#include "sidecar/sidecar.h"

#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/config/pattern.h"

#include <stdlib.h>
#include <string.h>

enum {
    ASK_MS = 30000, /* another replica may have changed the record */
    LOOK_MS = 1000,
    N_LOOKS = 3, /* consecutive looks at an empty queue: a quorum queue may answer 0 for a moment */
};

bool sidecar_queue_all(const struct sidecar_queue *first, bool (*is)(const struct sidecar_queue *))
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (!is(&first[i]))
            return false;
    return true;
}

static void tell_changed(struct sidecar *s, const struct sidecar_queue *first, const char *now)
{
    char *former = inbox_take_former_range(s->database.inbox, first->config->entry);
    struct log_line line;

    if (!former)
        return;
    log_begin(&line, EVENT_PARTITIONS_CHANGED, first->config->name);
    log_text(&line, "from", former);
    log_text(&line, "to", now);
    log_end(&line);
    free(former);
}

static bool has_partitions_for(const struct sidecar_queue *first, const char *range)
{
    struct pattern all, wanted;
    const char *wrong;

    return first->config->range && pattern_read(first->config->range, &all, &wrong) &&
           pattern_read(range, &wanted, &wrong) && all.first <= wanted.first && wanted.last <= all.last;
}

/* Drains the partitions outside the range. No replica reads them any more, and none of their messages is held. */
static void leave(struct sidecar_queue *first)
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (first[i].config->leaving && !first[i].core.drain) {
            queue_drain(&first[i].core, first->sidecar->now_ms, first->sidecar->now_ms);
            queue_forget_keys(&first[i].core);
            first[i].touched = true;
        }
}

/* Looks at the depth of a partition that leaves. Empty: at N_LOOKS looks in a row, with nothing held and nothing
 * received in between. */
static void look(struct sidecar_queue *sq)
{
    const struct consumer_watch *w = &sq->core.consumer.watch;
    struct sidecar *s = sq->sidecar;
    struct fault f = {0};
    bool is_empty = (w->depth == 0 && w->depth_of_ms >= sq->left.asked_ms) || w->no_queue;

    if (s->now_ms < sq->left.at_ms)
        return;
    sq->left.at_ms = s->now_ms + LOOK_MS;
    if (!is_empty || queue_n_held(&sq->core) || sq->core.counts.received.total != sq->left.received)
        sq->left.n_looks = 0;
    else
        sq->left.n_looks++;
    sq->left.received = sq->core.counts.received.total;
    if (!sq->link->broker || !sq->core.generation ||
        !broker_can_write(sq->link->broker, (uint32_t)sq->index, 1))
        return;
    sq->left.asked_ms = s->now_ms;
    queue_depth_asked(&sq->core, s->now_ms);
    broker_ask_depth(sq->link->broker, (uint32_t)sq->index, &f); /* broker_next reports a loss */
}

/* 1: all partitions that leave the range are empty; 0: not yet; -1: none leaves, or all were left. */
static int are_empty(struct sidecar_queue *first)
{
    int answer = -1;

    for (size_t i = 0; i < first->config->n_partitions; i++) {
        struct sidecar_queue *sq = &first[i];

        if (!sq->config->leaving || sq->core.drain)
            continue;
        look(sq);
        if (answer)
            answer = 1;
        if (sq->left.n_looks < N_LOOKS)
            answer = 0;
    }
    return answer;
}

/* Returns whether the range is to be widened. */
static bool step(struct sidecar *s, struct sidecar_queue *first)
{
    size_t entry = first->config->entry;
    struct fault f = {0};
    const char *range;
    int empty;

    if (inbox_registration(s->database.inbox, entry, &f) != INBOX_REGISTERED)
        return false;
    range = inbox_range(s->database.inbox, entry);
    tell_changed(s, first, range ? range : first->config->pattern);
    empty = are_empty(first);
    if (!range && empty >= 0 && first->left.ended)
        leave(first);
    else if (range && !has_partitions_for(first, range)) {
        first->range = mem_copy(range, strlen(range));
        return true;
    }
    if (s->now_ms < first->range_at_ms && !(empty > 0 && !first->left.ended))
        return false;
    first->range_at_ms = s->now_ms + (empty > 0 ? LOOK_MS : ASK_MS);
    first->left.ended = empty > 0;
    inbox_end_range(s->database.inbox, entry, empty > 0);
    inbox_ask_registration(s->database.inbox, true);
    return false;
}

static bool is_to_be_left(const struct sidecar_queue *sq)
{
    return sq->config->leaving && !sq->core.drain && sq->left.n_looks < N_LOOKS;
}

/* Range for the record. Other replicas keep a partition there while this one may hold a message of it, since the
 * queue looks empty to them. */
const char *partitions_range(const struct sidecar_queue *first)
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (is_to_be_left(&first[i]))
            return first->config->range;
    return first->config->pattern;
}

static bool has_leaving(const struct sidecar_queue *first)
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (first[i].config->leaving)
            return true;
    return false;
}

/* Messages of a key that moves from a partition that leaves wait until that partition was left. */
static void hold(struct sidecar *s, struct sidecar_queue *first)
{
    static const char text[] =
        "a partition outside the range is not empty, or is in the range of another replica";
    bool waits = has_leaving(first);

    if (inbox_registration(s->database.inbox, first->config->entry, NULL) == INBOX_REGISTERED)
        waits = inbox_range(s->database.inbox, first->config->entry) != NULL;
    for (size_t i = 0; i < first->config->n_partitions; i++) {
        struct sidecar_queue *sq = &first[i];

        if (sq->config->leaving || waits == (sq->core.pauses[PAUSE_LEAVING].since_ms != 0))
            continue;
        queue_refused(&sq->core, s->now_ms, PAUSE_LEAVING, waits ? text : NULL);
        sq->touched = true;
    }
}

void partitions_hold(struct sidecar *s)
{
    if (!s->database.inbox)
        return;
    for (size_t i = 0; i < s->n_queues; i += s->queues[i].config->n_partitions)
        if (s->queues[i].config->pattern && s->queues[i].config->order.key.n)
            hold(s, &s->queues[i]);
}

bool partitions_step(struct sidecar *s)
{
    if (!s->database.inbox || s->ending != ENDING_NO)
        return false;
    for (size_t i = 0; i < s->n_queues; i += s->queues[i].config->n_partitions)
        if (s->queues[i].config->pattern && step(s, &s->queues[i]))
            return true;
    return false;
}

void partitions_widen(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i += s->queues[i].config->n_partitions)
        if (s->queues[i].range)
            config_widen(s->config, s->queues[i].config->entry, s->queues[i].range);
}
