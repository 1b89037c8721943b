/* The simulated broker: see broker_sim.h. */
#include "broker_sim.h"

#include "oracle.h"
#include "random.h"
#include "sidecar_sim.h"

#include "onceward/base/mem.h"

#include <stdlib.h>

int64_t wire_us(struct world *w)
{
    if (!w->plan->jitter)
        return 150;
    return random_chance(&w->random, 100) ? random_between(&w->random, 1000, 30000)
                                          : random_between(&w->random, 80, 400);
}

static int64_t broker_wire_us(struct world *w)
{
    return wire_us(w) + w->plan->broker_us;
}

/* --- rings of copies --- */

static void ring_init(struct copy *ring)
{
    ring->next = ring->prev = ring;
}

static void ring_insert(struct copy *before, struct copy *c)
{
    c->prev = before->prev;
    c->next = before;
    before->prev->next = c;
    before->prev = c;
}

static void ring_remove(struct copy *c)
{
    c->prev->next = c->next;
    c->next->prev = c->prev;
    c->next = c->prev = NULL;
}

void broker_sim_init(struct world *w)
{
    struct broker_sim *b = w->broker = world_alloc(w, sizeof(*b));

    b->up = true;
    b->next_generation = 1;
    for (int i = 0; i < w->plan->n_queues; i++) {
        b->queues[i].plan = &w->plan->queues[i];
        ring_init(&b->queues[i].ready);
        ring_init(&b->queues[i].returns);
        b->queues[i].exists = true;
    }
}

static void channels_free(struct channel *c)
{
    for (; c; c = c->next)
        free(c->by_tag);
}

void broker_sim_deinit(struct world *w)
{
    for (int i = 0; i < w->plan->n_queues; i++)
        channels_free(w->broker->queues[i].channels);
    free(w->broker->copies);
}

/* --- deliveries --- */

static void delivery_arrives(struct world *w, void *object, uint64_t tag, uint64_t unused)
{
    struct channel *c = object;
    struct link_sim *l = c->link;

    (void)unused;
    if (l->cut || !l->here)
        return;
    if (w->now_us < l->slow_until_us || w->now_us < sidecar_frozen_until(l->sidecar)) {
        int64_t until = sidecar_frozen_until(l->sidecar);

        world_postpone(w, l->slow_until_us > until ? l->slow_until_us : until);
        return;
    }
    sidecar_delivered(w, l->sidecar, c, channel_copy(c, tag));
}

static int64_t arrival(int64_t *latest_us, int64_t now_us, int64_t takes_us)
{
    int64_t at = now_us + takes_us;

    if (at < *latest_us)
        at = *latest_us;
    return *latest_us = at;
}

static void deliver(struct world *w, struct broker_queue *q, struct copy *m, struct channel *c,
                    struct consumer_sim *to)
{
    ring_remove(m);
    q->n_ready--;
    if (c->n_tags == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 64;
        c->by_tag = mem_realloc(c->by_tag, c->cap * sizeof(struct copy *));
    }
    c->by_tag[c->n_tags++] = m;
    to->n_unacked++;
    m->state = COPY_UNACKED;
    m->channel = c;
    m->tag = c->n_tags;
    m->consumer = to->number;
    m->delivered_us = w->now_us;
    m->holder = sidecar_index(c->link->sidecar);
    m->counted = m->too_often = false;
    m->arrived = m->skipped = m->said = m->is_dead = m->is_rowless = false;
    world_at(w, arrival(&c->link->to_sidecar_us, w->now_us, broker_wire_us(w)), delivery_arrives, c, m->tag,
             0);
}

static struct consumer_sim *consumer_with_credit(struct channel *c)
{
    for (size_t i = 0; i < c->n_consumers; i++)
        if (c->consumers[i].n_unacked < c->consumers[i].prefetch)
            return &c->consumers[i];
    return NULL;
}

static struct channel *channel_of(const struct broker_queue *q, uint64_t since, struct consumer_sim **ret)
{
    for (struct channel *c = q->channels; c; c = c->next)
        for (size_t i = 0; c->open && i < c->n_consumers; i++)
            if (c->consumers[i].since == since) {
                *ret = &c->consumers[i];
                return c;
            }
    return NULL;
}

const struct sidecar *broker_active_sidecar(const struct world *w, int queue)
{
    struct consumer_sim *unused;
    const struct broker_queue *q = &w->broker->queues[queue];
    const struct channel *c = q->active ? channel_of(q, q->active, &unused) : NULL;

    return c ? c->link->sidecar : NULL;
}

static const struct consumer_sim *first_consumer(const struct broker_queue *q)
{
    const struct consumer_sim *first = NULL;

    for (const struct channel *c = q->channels; c; c = c->next)
        for (size_t i = 0; c->open && i < c->n_consumers; i++)
            if (!first || c->consumers[i].since < first->since)
                first = &c->consumers[i];
    return first;
}

/* The active consumer keeps its role until it is cancelled or its channel ends; then the longest waiting one gets it.
 * On classic queues that one gets no delivery until all of the former one's are acked, rejected or requeued. */
static struct channel *active_channel(struct broker_queue *q, struct consumer_sim **to)
{
    struct channel *active = q->active ? channel_of(q, q->active, to) : NULL;

    if (!active) {
        const struct consumer_sim *first = first_consumer(q);

        q->active = first ? first->since : 0;
        active = first ? channel_of(q, first->since, to) : NULL;
    }
    return active && (*to)->n_unacked < (*to)->prefetch ? active : NULL;
}

/* Next channel to get a delivery, round robin: then it moves behind the others. */
static struct channel *next_channel(struct broker_queue *q, struct consumer_sim **to)
{
    if (q->plan->single_active)
        return active_channel(q, to);
    for (struct channel **at = &q->channels; *at; at = &(*at)->next) {
        struct channel *c = *at;

        if (!c->open || !(*to = consumer_with_credit(c)))
            continue;
        if (c->next) {
            *at = c->next;
            while (*at)
                at = &(*at)->next;
            *at = c;
            c->next = NULL;
        }
        return c;
    }
    return NULL;
}

static void pump(struct world *w, struct broker_queue *q)
{
    struct consumer_sim *to;

    while (q->n_ready) {
        struct copy *m = q->returns.next != &q->returns ? q->returns.next : q->ready.next;
        struct channel *c = next_channel(q, &to);

        if (!c)
            return;
        deliver(w, q, m, c, to);
    }
}

static void drop_head(struct world *w, struct broker_queue *q)
{
    while (q->plan->max_length && q->n_ready > (size_t)q->plan->max_length) {
        struct copy *m = q->ready.next != &q->ready ? q->ready.next : q->returns.next;

        ring_remove(m);
        q->n_ready--;
        m->state = COPY_DROPPED;
        oracle_overflowed(w, m);
    }
}

struct copy *broker_publish(struct world *w, struct truth *t, uint8_t body, int64_t bytes)
{
    struct broker_sim *b = w->broker;
    struct broker_queue *q = &b->queues[t->queue];
    struct copy *m = world_alloc(w, sizeof(*m));

    if (b->n_copies == b->copies_cap) {
        b->copies_cap = b->copies_cap ? b->copies_cap * 2 : 256;
        b->copies = mem_realloc(b->copies, b->copies_cap * sizeof(struct copy *));
    }
    b->copies[b->n_copies++] = m;
    *m = (struct copy){.truth = t,
                       .number = b->n_copies,
                       .position = ++q->next_position,
                       .body = body,
                       .key = t->key,
                       .bytes = bytes,
                       .holder = -1};
    t->n_copies++;
    t->n_open_copies++;
    if (!t->published_as)
        t->published_as = m->position;
    ring_insert(&q->ready, m);
    q->n_ready++;
    TRACE(w, "published %s copy %llu", t->id, (unsigned long long)m->number);
    drop_head(w, q);
    pump(w, q);
    return m;
}

/* --- returns --- */

struct copy *channel_copy(const struct channel *c, uint64_t tag)
{
    return tag && tag <= c->n_tags ? c->by_tag[tag - 1] : NULL;
}

static struct copy *take_unacked(struct channel *c, uint64_t tag)
{
    struct copy *m = channel_copy(c, tag);

    if (!m || m->state != COPY_UNACKED || m->channel != c || m->tag != tag)
        return NULL;
    for (size_t i = 0; i < c->n_consumers; i++)
        if (c->consumers[i].number == m->consumer) {
            c->consumers[i].n_unacked--;
            break;
        }
    m->channel = NULL;
    return m;
}

/* Ring of a copy that returns at the end of its channel, or one by one (m->returned). Quorum queues have a separate
 * list, so that a part that returns a second time goes behind the rest. */
static struct copy *place_behind(struct broker_queue *q, const struct copy *m)
{
    return m->returned && q->plan->limit == LIMIT_NONE ? &q->ready : &q->returns;
}

static void put_back(struct world *w, struct broker_queue *q, struct copy *m, bool counted)
{
    struct copy *before = &q->ready;

    if (q->plan->quorum && counted)
        m->delivery_count++;
    oracle_returned(w, m);
    m->redelivered = true;
    m->state = COPY_READY;
    if (q->plan->quorum && m->delivery_count > q->plan->limit) {
        m->state = COPY_DROPPED;
        oracle_dropped(w, m);
        return;
    }
    if (q->plan->quorum && q->plan->single_active)
        before = place_behind(q, m);
    else if (q->plan->quorum && q->plan->version >= 430)
        before = &q->returns;
    else if (!q->plan->quorum || q->plan->limit != LIMIT_NONE) { /* to its former place */
        before = q->ready.next;
        while (before != &q->ready && before->position < m->position)
            before = before->next;
    } else
        m->position = ++q->next_position;
    ring_insert(before, m);
    q->n_ready++;
    drop_head(w, q);
}

static void moved_back(struct world *w, void *object, uint64_t deaths, uint64_t n_rejected)
{
    struct copy *m = object, *again = broker_publish(w, m->truth, m->body, m->bytes);

    again->deaths = (int64_t)deaths;
    again->n_rejected = (int64_t)n_rejected;
}

static void settle(struct world *w, struct copy *m, enum copy_state state)
{
    const struct plan_queue *p = w->broker->queues[m->truth->queue].plan;

    m->state = state;
    m->truth->n_open_copies--;
    if (state == COPY_REJECTED && p->moved_back && m->deaths < 5)
        world_at(w, w->now_us + 50000, moved_back, m, (uint64_t)m->deaths + 1, (uint64_t)m->n_rejected + 1);
}

static void on_ack(struct world *w, struct channel *c, uint64_t tag, bool multiple)
{
    uint64_t from = multiple ? c->first + 1 : tag;

    for (uint64_t t = from; t <= tag; t++) {
        struct copy *m = take_unacked(c, t);

        if (m)
            settle(w, m, COPY_ACKED);
        else if (!multiple)
            oracle_broken(w, "ack", "tag %llu of generation %llu is not unacked", (unsigned long long)t,
                          (unsigned long long)c->generation);
    }
    if (multiple && tag > c->first)
        c->first = tag;
}

static void on_one(struct world *w, struct channel *c, uint64_t tag, enum wire_kind kind)
{
    struct broker_queue *q = &w->broker->queues[c->queue];
    struct copy *m = take_unacked(c, tag);

    if (!m)
        oracle_broken(w, "ack", "tag %llu of generation %llu is not unacked", (unsigned long long)tag,
                      (unsigned long long)c->generation);
    else if (kind == WIRE_REJECT) {
        oracle_rejected(w, m);
        settle(w, m, COPY_REJECTED);
    } else {
        m->returned = true;
        put_back(w, q, m, q->plan->version < 430);
        m->returned = false;
    }
}

static void on_consume(struct world *w, struct channel *c, uint32_t number, int prefetch)
{
    struct broker_queue *q = &w->broker->queues[c->queue];

    if (c->n_consumers == CONSUMERS_MAX) {
        oracle_broken(w, "consumers", "%d consumers on one channel", CONSUMERS_MAX);
        return;
    }
    c->consumers[c->n_consumers++] =
        (struct consumer_sim){.number = number, .prefetch = prefetch, .since = ++q->n_subscribed};
    sidecar_hears(w, c, arrival(&c->link->to_sidecar_us, w->now_us, broker_wire_us(w)), HEARS_CONSUMING,
                  number);
}

static size_t n_consumers(const struct broker_queue *q)
{
    size_t n = 0;

    for (const struct channel *c = q->channels; c; c = c->next)
        n += c->open ? c->n_consumers : 0;
    return n;
}

static void on_cancel(struct world *w, struct channel *c, uint32_t number)
{
    for (size_t i = 0; i < c->n_consumers; i++)
        if (c->consumers[i].number == number) {
            c->consumers[i] = c->consumers[--c->n_consumers]; /* its deliveries stay unacked */
            break;
        }
    if (!n_consumers(&w->broker->queues[c->queue]))
        oracle_unsubscribed(w, c->link->sidecar, c->queue);
    sidecar_hears(w, c, arrival(&c->link->to_sidecar_us, w->now_us, broker_wire_us(w)), HEARS_STOPPED,
                  number);
}

static void frame_arrives(struct world *w, void *object, uint64_t a, uint64_t b)
{
    struct channel *c = object;
    enum wire_kind kind = b & 255;

    if (c->link->cut || !c->open || !w->broker->up)
        return;
    if (w->now_us < c->link->slow_until_us) {
        world_postpone(w, c->link->slow_until_us);
        return;
    }
    switch (kind) {
    case WIRE_ACK:
    case WIRE_ACK_MULTIPLE:
        on_ack(w, c, a, kind == WIRE_ACK_MULTIPLE);
        break;
    case WIRE_REJECT:
    case WIRE_REQUEUE:
        on_one(w, c, a, kind);
        break;
    case WIRE_CONSUME:
        on_consume(w, c, (uint32_t)a, (int)(b >> 8));
        break;
    case WIRE_CANCEL:
        on_cancel(w, c, (uint32_t)a);
        break;
    case WIRE_CLOSE:
        broker_channel_ends(w, c);
        break;
    case WIRE_DEPTH:
        sidecar_hears(w, c, arrival(&c->link->to_sidecar_us, w->now_us, broker_wire_us(w)), HEARS_DEPTH,
                      w->broker->queues[c->queue].n_ready);
        break;
    }
    pump(w, &w->broker->queues[c->queue]);
}

void broker_send(struct world *w, struct channel *c, enum wire_kind kind, uint64_t a, uint32_t b)
{
    world_at(w, arrival(&c->link->to_broker_us, w->now_us, broker_wire_us(w)), frame_arrives, c, a,
             (uint64_t)kind | (uint64_t)b << 8);
}

/* --- connections --- */

struct link_sim *broker_connect(struct world *w, struct sidecar *s, uint32_t life)
{
    struct link_sim *l;

    if (!w->broker->up)
        return NULL;
    l = world_alloc(w, sizeof(*l));
    *l = (struct link_sim){.sidecar = s, .life = life, .here = true, .there = true};
    return l;
}

struct channel *broker_open(struct world *w, struct link_sim *l, int queue)
{
    struct channel *c = world_alloc(w, sizeof(*c));
    struct broker_queue *q = &w->broker->queues[queue];

    c->link = l;
    c->queue = queue;
    c->generation = w->broker->next_generation++;
    c->open = l->there;
    c->next = q->channels;
    q->channels = c;
    l->channels[queue] = c;
    return c;
}

/* Returns the deliveries as one tail, in the order of tags. */
static void tail_goes_back(struct world *w, struct channel *c)
{
    for (size_t i = 0; i < c->n_tags; i++) {
        struct copy *m = c->by_tag[i];

        if (m->state != COPY_UNACKED || m->channel != c || m->tag != i + 1)
            continue;
        m->channel = NULL;
        put_back(w, &w->broker->queues[c->queue], m, true);
    }
    c->n_consumers = 0;
    pump(w, &w->broker->queues[c->queue]);
}

/* Ends the channel. All its deliveries return, the oldest first. */
void broker_channel_ends(struct world *w, struct channel *c)
{
    struct broker_queue *q = &w->broker->queues[c->queue];
    struct copy *backwards = NULL;

    if (!c->open)
        return;
    c->open = false;
    if (q->plan->single_active) {
        tail_goes_back(w, c);
        return;
    }
    for (size_t i = 0; i < c->n_tags; i++) {
        struct copy *m = c->by_tag[i];

        if (m->state == COPY_UNACKED && m->channel == c && m->tag == i + 1) {
            m->channel = NULL;
            m->cut_us = c->link->cut_us;
            m->prev = backwards;
            backwards = m;
        }
    }
    for (struct copy *m = backwards, *prev; m; m = prev) {
        prev = m->prev;
        m->prev = NULL;
        put_back(w, q, m, true);
    }
    c->n_consumers = 0;
    pump(w, q);
}

static struct channel *open_channel_of(const struct broker_queue *q, const struct link_sim *l)
{
    struct channel *c = q->channels;

    while (c && (!c->open || c->link != l))
        c = c->next;
    return c;
}

/* Ends a connection. It may have several channels of a queue, if the close of an earlier one was lost. */
void broker_link_ends(struct world *w, struct link_sim *l)
{
    struct channel *c;

    if (!l->there)
        return;
    l->there = false;
    for (int i = 0; i < w->plan->n_queues; i++)
        while ((c = open_channel_of(&w->broker->queues[i], l)))
            broker_channel_ends(w, c);
}
