/* Subscriptions of other replicas to ordered queues, which decide which replica is active: see core/handover.c. */
#include "sidecar/sidecar.h"

#include "onceward/base/mem.h"
#include "onceward/core/handover.h"

#include <stdlib.h>
#include <string.h>

void handovers_init(struct sidecar_queue *sq)
{
    struct slice instance = slice_of(sq->sidecar->config->instance), queue = slice_of(sq->config->queue);

    if (sq->core.rules.ordered)
        handover_init(&sq->core, handover_hash(instance.data, instance.len),
                      handover_hash(queue.data, queue.len));
}

/* Partition of a peer among the queues here; SIZE_MAX: none. Peers have their queues in the same order, so the one
 * behind the last is tried first. */
static size_t partition_of(const struct sidecar_queue *first, const struct inbox_peer *p, size_t last)
{
    size_t n = first->config->n_partitions;

    for (size_t i = 1; i <= n; i++) {
        size_t at = (last + i) % n;

        if (!strcmp(first[at].config->queue, p->queue))
            return at;
    }
    return SIZE_MAX;
}

/* Passes the peers of a consumer to its partitions. True: the members of the consumer have just changed. */
static bool tell(struct sidecar_queue *first, const struct inbox_presence *p)
{
    size_t n = first->config->n_partitions, n_peers = 0, last = 0;
    struct queue **partitions = mem_zalloc(n, sizeof(struct queue *));
    struct handover_peer *peers = mem_zalloc(p->n_peers + 1, sizeof(*peers));
    bool changed;

    for (size_t i = 0; i < n; i++) {
        partitions[i] = &first[i].core;
        first[i].touched = true;
    }
    for (size_t i = 0; i < p->n_peers; i++) {
        const struct inbox_peer *k = &p->peers[i];
        size_t at = k->entry == first->config->entry ? partition_of(first, k, last) : SIZE_MAX;

        if (at == SIZE_MAX)
            continue;
        last = at;
        peers[n_peers++] = (struct handover_peer){.who = handover_hash(k->instance, strlen(k->instance)),
                                                  .partition = at,
                                                  .subscription = k->subscription,
                                                  .may_consume = k->may_consume,
                                                  .is_active = k->is_active};
    }
    changed = handover_presence(partitions, n, first->sidecar->now_ms, peers, n_peers);
    free(partitions);
    free(peers);
    return changed;
}

bool handovers_tell(struct sidecar *s, const struct inbox_presence *p)
{
    bool changed = false;

    for (size_t i = 0; i < s->n_queues; i += s->queues[i].config->n_partitions)
        if (s->queues[i].core.rules.ordered)
            changed |= tell(&s->queues[i], p);
    return changed;
}
