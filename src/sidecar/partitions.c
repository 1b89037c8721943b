/* Ranges of queue names that change: see config/pattern.h.
 *
 * The inbox records which partitions of a consumer are read. A range that is recorded wider than the configured one
 * was that of replicas before, or is that of others now: what lies in the partitions outside the own range must not be
 * forgotten. So the sidecar starts again in its own place with these partitions beside its own, reads them until they
 * are empty, and then asks the inbox to take them out of the record. They are left when it has: where another replica
 * still has them in its range, or holds a message of them, they stay in the record. Until then the other partitions
 * of an ordered consumer are not consumed. */
#include "sidecar/sidecar.h"

#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/config/pattern.h"

#include <stdlib.h>
#include <string.h>

enum {
    ASK_MS = 30000, /* another replica may have changed the record */
    LOOK_MS = 1000,
    N_LOOKS = 3, /* at an empty queue in a row: a quorum queue may answer 0 for a moment */
};

bool lane_all(const struct lane *first, bool (*is)(const struct lane *))
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (!is(&first[i]))
            return false;
    return true;
}

static void tell_changed(struct sidecar *s, const struct lane *first, const char *now)
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

static bool has_lanes_for(const struct lane *first, const char *range)
{
    struct pattern all, wanted;
    const char *wrong;

    return first->config->range && pattern_read(first->config->range, &all, &wrong) &&
           pattern_read(range, &wanted, &wrong) && all.first <= wanted.first && wanted.last <= all.last;
}

/* The partitions outside the range are no longer anybody's: nothing of them is held. */
static void leave(struct lane *first)
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (first[i].config->leaving && !first[i].core.drain) {
            queue_drain(&first[i].core, first->sidecar->now_ms, first->sidecar->now_ms);
            queue_forget_keys(&first[i].core);
            first[i].touched = true;
        }
}

/* Empty at N_LOOKS looks in a row, with nothing held and nothing received in between. */
static void look(struct lane *l)
{
    const struct consumer_watch *w = &l->core.consumer.watch;
    struct sidecar *s = l->sidecar;
    struct fault f = {0};
    bool is_empty = (w->depth == 0 && w->depth_of_ms >= l->left.asked_ms) || w->no_queue;

    if (s->now_ms < l->left.at_ms)
        return;
    l->left.at_ms = s->now_ms + LOOK_MS;
    if (!is_empty || queue_n_held(&l->core) || l->core.counts.received.total != l->left.received)
        l->left.n_looks = 0;
    else
        l->left.n_looks++;
    l->left.received = l->core.counts.received.total;
    if (!l->link->broker || !l->core.generation || !broker_can_write(l->link->broker, (uint32_t)l->index, 1))
        return;
    l->left.asked_ms = s->now_ms;
    queue_depth_asked(&l->core, s->now_ms);
    broker_ask_depth(l->link->broker, (uint32_t)l->index, &f); /* a loss shows again in broker_next */
}

/* 1: all partitions that leave the range are empty; 0: not yet; -1: there are none, or they were left. */
static int are_empty(struct lane *first)
{
    int answer = -1;

    for (size_t i = 0; i < first->config->n_partitions; i++) {
        struct lane *l = &first[i];

        if (!l->config->leaving || l->core.drain)
            continue;
        look(l);
        if (answer)
            answer = 1;
        if (l->left.n_looks < N_LOOKS)
            answer = 0;
    }
    return answer;
}

/* true: its range is to be widened. */
static bool step(struct sidecar *s, struct lane *first)
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
    else if (range && !has_lanes_for(first, range)) {
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

static bool is_to_be_left(const struct lane *l)
{
    return l->config->leaving && !l->core.drain && l->left.n_looks < N_LOOKS;
}

/* Other replicas keep the partition in the record while this one may hold a message of it: for them the queue looks
 * empty. */
const char *partitions_range(const struct lane *first)
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (is_to_be_left(&first[i]))
            return first->config->range;
    return first->config->pattern;
}

static bool has_leaving(const struct lane *first)
{
    for (size_t i = 0; i < first->config->n_partitions; i++)
        if (first[i].config->leaving)
            return true;
    return false;
}

/* Keys of a partition that leaves continue in another one: their later messages wait until it has been left. */
static void hold(struct sidecar *s, struct lane *first)
{
    static const char text[] =
        "a partition outside the range is not empty, or is in the range of another replica";
    bool waits = has_leaving(first);

    if (inbox_registration(s->database.inbox, first->config->entry, NULL) == INBOX_REGISTERED)
        waits = inbox_range(s->database.inbox, first->config->entry) != NULL;
    for (size_t i = 0; i < first->config->n_partitions; i++) {
        struct lane *l = &first[i];

        if (l->config->leaving || waits == (l->core.pauses[PAUSE_LEAVING].since_ms != 0))
            continue;
        queue_refused(&l->core, s->now_ms, PAUSE_LEAVING, waits ? text : NULL);
        l->touched = true;
    }
}

void partitions_hold(struct sidecar *s)
{
    if (!s->database.inbox)
        return;
    for (size_t i = 0; i < s->n_lanes; i += s->lanes[i].config->n_partitions)
        if (s->lanes[i].config->pattern && s->lanes[i].config->order.key.n)
            hold(s, &s->lanes[i]);
}

bool partitions_step(struct sidecar *s)
{
    if (!s->database.inbox || s->ending != ENDING_NO)
        return false;
    for (size_t i = 0; i < s->n_lanes; i += s->lanes[i].config->n_partitions)
        if (s->lanes[i].config->pattern && step(s, &s->lanes[i]))
            return true;
    return false;
}

void partitions_widen(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_lanes; i += s->lanes[i].config->n_partitions)
        if (s->lanes[i].range)
            config_widen(s->config, s->lanes[i].config->entry, s->lanes[i].range);
}
