/* A sidecar's start and end, its connections, and its input: see sidecar_sim.h. shell_sim.c carries out the
 * core's actions. */
#include "sidecar_sim.h"

#include "operator_sim.h"
#include "oracle.h"
#include "random.h"
#include "shell_sim.h"

#include "onceward/base/mem.h"
#include "onceward/core/backoff.h"
#include "onceward/core/handover.h"
#include "onceward/core/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIAL_FIRST_MS = 100,
    DIAL_LAST_MS = 5000,
    PRESENCE_US = 5000000,
    HURRY_US = 1000000,
    GONE_US = 10000000,
    CONNECT_US = 3000
};

int sidecar_index(const struct sidecar *s)
{
    return s->index;
}

int64_t sidecar_frozen_until(const struct sidecar *s)
{
    return s->frozen_until_us;
}

/* After a fact, a turn follows soon. */
static void told(struct world *w, struct sidecar *s)
{
    s->n_facts++;
    shell_plan_turn(w, s, w->now_us + 20);
}

/* --- links --- */

static void dial_broker(struct world *w, void *object, uint64_t life, uint64_t unused);
static void dial_base(struct world *w, void *object, uint64_t life, uint64_t unused);

static int64_t dial_wait_us(struct sidecar *s, int n)
{
    return n ? backoff_ms(DIAL_FIRST_MS, DIAL_LAST_MS, n, random_next(&s->random)) * 1000 : CONNECT_US;
}

static void open_channel(struct world *w, struct sidecar *s, int i)
{
    struct sidecar_queue *q = &s->queues[i];
    const struct plan_queue *p = &w->plan->queues[i];

    q->channel = broker_open(w, s->link, i);
    q->channels[q->n_channels++ % (sizeof(q->channels) / sizeof(*q->channels))] = q->channel;
    queue_channel_open(&q->core, world_ms(w), q->channel->generation, p->version / 100, p->version % 100,
                       p->quorum ? KIND_QUORUM : KIND_CLASSIC);
    queue_limits_known(&q->core, &(struct queue_limits){.read = p->readable,
                                                        .delivery_limit = plan_read_limit(p),
                                                        .drops_head = p->max_length > 0,
                                                        .needs_consumer = p->auto_delete,
                                                        .single_active = p->single_active});
    told(w, s);
}

static void dial_broker(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct sidecar *s = object;

    (void)unused;
    if (!s->alive || s->life != life || s->broker_state == SIM_LINK_UP)
        return;
    if (w->now_us < s->frozen_until_us) {
        world_postpone(w, s->frozen_until_us);
        return;
    }
    s->link = broker_connect(w, s, s->life);
    if (!s->link) {
        world_at(w, w->now_us + dial_wait_us(s, ++s->n_dials), dial_broker, s, life, 0);
        return;
    }
    TRACE(w, "sidecar %d: connected to the broker", s->index);
    s->broker_state = SIM_LINK_UP;
    s->n_dials = 0;
    for (int i = 0; i < w->plan->n_queues; i++)
        open_channel(w, s, i);
}

static void dial_base(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct sidecar *s = object;

    (void)unused;
    if (!s->alive || s->life != life || s->base_state == SIM_LINK_UP)
        return;
    if (w->now_us < s->frozen_until_us) {
        world_postpone(w, s->frozen_until_us);
        return;
    }
    s->base = database_connect(w, s, s->life);
    if (!s->base) {
        world_at(w, w->now_us + dial_wait_us(s, ++s->n_base_dials), dial_base, s, life, 0);
        return;
    }
    TRACE(w, "sidecar %d: connected to the database", s->index);
    s->base_state = SIM_LINK_UP;
    s->n_base_dials = 0;
    s->base_since_us = w->now_us;
    database_linked(&s->database);
    for (int i = 0; i < w->plan->n_queues; i++)
        queue_database_linked(&s->queues[i].core, world_ms(w));
    shell_ask_presence(w, s);
    told(w, s);
}

static void broker_is_lost(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct link_sim *l = object;
    struct sidecar *s = l->sidecar;

    (void)unused;
    if (!s->alive || s->life != life || s->link != l)
        return;
    if (w->now_us < s->frozen_until_us) {
        world_postpone(w, s->frozen_until_us);
        return;
    }
    TRACE(w, "sidecar %d: the broker's connection is lost", s->index);
    l->here = false;
    s->link = NULL;
    s->broker_state = SIM_LINK_DOWN;
    for (int i = 0; i < w->plan->n_queues; i++) {
        s->queues[i].channel = NULL;
        s->queues[i].handover.n_lost++;
        queue_channel_lost(&s->queues[i].core, world_ms(w), 0, "connection lost");
    }
    world_at(w, w->now_us + dial_wait_us(s, 1), dial_broker, s, s->life, 0);
    told(w, s);
}

static void broker_gives_up(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    (void)unused;
    (void)unused2;
    broker_link_ends(w, object);
}

void sidecar_cut_broker(struct world *w, struct sidecar *s, int64_t here_us, int64_t there_us)
{
    if (!s->alive || !s->link)
        return;
    s->link->cut = true;
    s->link->cut_us = w->now_us;
    world_at(w, w->now_us + here_us, broker_is_lost, s->link, s->life, 0);
    world_at(w, w->now_us + there_us, broker_gives_up, s->link, 0, 0);
}

static void base_is_lost(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct base_link *l = object;
    struct sidecar *s = l->sidecar;
    int64_t now_ms = world_ms(w);

    (void)unused;
    if (!s->alive || s->life != life || s->base != l)
        return;
    if (w->now_us < s->frozen_until_us) {
        world_postpone(w, s->frozen_until_us);
        return;
    }
    TRACE(w, "sidecar %d: the database's connection is lost", s->index);
    l->here = false;
    s->base = NULL;
    s->base_state = SIM_LINK_DOWN;
    s->n_losses++;
    for (size_t i = 0; i < s->n_open; i++)
        s->open[i]->lost_database = true;
    database_lost(&s->database, now_ms, "connection lost");
    shell_forget_batches(w, s);
    for (int i = 0; i < w->plan->n_queues; i++) {
        queue_database_lost(&s->queues[i].core, now_ms);
        queue_presence(&s->queues[i].core, now_ms, 0);
    }
    world_at(w, w->now_us + dial_wait_us(s, 1), dial_base, s, s->life, 0);
    told(w, s);
}

void sidecar_cut_base(struct world *w, struct sidecar *s, int64_t here_us)
{
    if (!s->alive || !s->base)
        return;
    s->base->cut = true;
    world_at(w, w->now_us + here_us, base_is_lost, s->base, s->life, 0);
}

static void channel_reopens(struct world *w, void *object, uint64_t life, uint64_t queue)
{
    struct sidecar *s = object;

    if (s->alive && s->life == life && s->link && !s->queues[queue].channel)
        open_channel(w, s, (int)queue);
}

/* Closes a channel: by the broker (code), or by the core's action (0). */
void sidecar_channel_closed(struct world *w, struct sidecar *s, int queue)
{
    struct sidecar_queue *q = &s->queues[queue];

    if (!s->alive || !q->channel || w->now_us < s->frozen_until_us)
        return;
    TRACE(w, "sidecar %d: the channel of queue %d is closed", s->index, queue);
    broker_channel_ends(w, q->channel);
    q->channel = NULL;
    q->handover.n_lost++;
    queue_channel_lost(&q->core, world_ms(w), 406, "the broker closed the channel");
    world_at(w, w->now_us + CONNECT_US, channel_reopens, s, s->life, (uint64_t)queue);
    told(w, s);
}

void sidecar_reopen(struct world *w, struct sidecar *s, int queue)
{
    struct sidecar_queue *q = &s->queues[queue];

    if (!q->channel)
        return;
    broker_send(w, q->channel, WIRE_CLOSE, 0, 0);
    q->channel = NULL;
    queue_channel_lost(&q->core, world_ms(w), 0, "reopened");
    world_at(w, w->now_us + CONNECT_US, channel_reopens, s, s->life, (uint64_t)queue);
    told(w, s);
}

/* --- start and end --- */

static void presence_tick(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct sidecar *s = object;

    (void)unused;
    if (!s->alive || s->life != life)
        return;
    if (w->now_us >= s->frozen_until_us)
        shell_ask_presence(w, s);
    world_at(w, w->now_us + PRESENCE_US, presence_tick, s, life, 0);
}

static void presence_hurries(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct sidecar *s = object;

    (void)unused;
    if (!s->alive || s->life != life)
        return;
    s->hurries = false;
    if (w->now_us >= s->frozen_until_us)
        shell_ask_presence(w, s);
}

static void hurry(struct world *w, struct sidecar *s)
{
    if (!s->hurries)
        world_at(w, w->now_us + HURRY_US, presence_hurries, s, s->life, 0);
    s->hurries = true;
}

uint64_t sidecar_hash(const struct world *w, int index)
{
    uint64_t name = w->plan->seed * SIDECARS_MAX + (uint64_t)index;

    return handover_hash(&name, sizeof(name));
}

void sidecar_create(struct world *w, int index)
{
    struct sidecar *s = w->sidecars[index] = world_alloc(w, sizeof(*s));

    s->world = w;
    s->index = index;
    s->random = random_mix(w->plan->seed * 31 + (uint64_t)index);
    app_sim_init(w, &s->app, index);
}

static void rules_of_application(const struct world *w, struct application_rules *ret)
{
    *ret = (struct application_rules){.has_ready_url = w->plan->application.ready_url,
                                      .ready_interval_ms = 1000};
    for (int i = 0; i < w->plan->n_queues; i++) {
        const struct queue_rules *r = &w->plan->queues[i].rules;

        ret->concurrency += r->concurrency;
        if (r->token_window_ms > ret->window_ms)
            ret->window_ms = r->token_window_ms;
        if ((size_t)r->batch.max_messages > ret->batch_messages)
            ret->batch_messages = (size_t)r->batch.max_messages;
        if (r->batch.max_bytes > ret->batch_bytes)
            ret->batch_bytes = r->batch.max_bytes;
    }
}

void sidecar_start(struct world *w, struct sidecar *s)
{
    struct application_rules rules;
    int64_t now_ms = world_ms(w);

    TRACE(w, "sidecar %d starts", s->index);
    oracle_started(w, s);
    promises_started(w, s);
    rules_of_application(w, &rules);
    s->alive = true;
    s->draining = s->drained = s->hurries = false;
    s->number++;
    s->turn_us = INT64_MAX;
    s->n_dials = s->n_base_dials = 0;
    s->kill_at = 0;
    application_init(&s->application, &rules, now_ms);
    database_init(&s->database, now_ms);
    memset(s->others, 0, sizeof(s->others));
    for (int i = 0; i < w->plan->n_queues; i++) {
        struct sidecar_queue *q = &s->queues[i];

        *q = (struct sidecar_queue){.others_us = -1000000000, .unclean = s->killed};
        queue_init(&q->core, &w->plan->queues[i].rules, &s->application, &s->database, (uint64_t)i + 1,
                   random_next(&s->random), now_ms);
        q->core.returns.configured = w->plan->queues[i].rules.delivery_limit;
        handover_init(&q->core, sidecar_hash(w, s->index), (uint64_t)i);
        queue_commands_await(&q->core);
        if (s->killed)
            queue_caution_begin(&q->core, CAUTION_UNCLEAN);
    }
    dial_base(w, s, s->life, 0);
    dial_broker(w, s, s->life, 0);
    world_at(w, w->now_us + PRESENCE_US, presence_tick, s, s->life, 0);
    shell_plan_turn(w, s, w->now_us);
}

static void start_again(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct sidecar *s = object;

    (void)unused;
    if (!s->alive && s->life == life && !w->closing)
        sidecar_start(w, s);
}

/* Ends a sidecar. Its state is lost, and its servers will notice. */
static void ends(struct world *w, struct sidecar *s)
{
    s->alive = false;
    s->life++;
    s->dead_since_us = w->now_us;
    s->frozen_until_us = 0;
    shell_drop_batches(w, s);
    for (size_t i = 0; i < s->n_open; i++)
        s->open[i]->open = false;
    s->n_open = s->n_accepted = 0;
    if (s->link) {
        s->link->here = false;
        world_at(w, w->now_us + 1000, broker_gives_up, s->link, 0, 0);
    }
    if (s->base)
        s->base->here = false;
    s->link = NULL;
    s->base = NULL;
    s->broker_state = s->base_state = SIM_LINK_DOWN;
    for (int i = 0; i < w->plan->n_queues; i++) {
        s->queues[i].channel = NULL;
        queue_deinit(&s->queues[i].core);
    }
}

void sidecar_kill(struct world *w, struct sidecar *s, int64_t for_us, bool forgets)
{
    if (!s->alive)
        return;
    TRACE(w, "sidecar %d is killed", s->index);
    ends(w, s);
    s->own = w->plan->own_rows && !forgets;
    s->killed = !forgets;
    if (for_us)
        world_at(w, w->now_us + for_us, start_again, s, s->life, 0);
}

static void exits(struct world *w, void *object, uint64_t life, uint64_t for_us)
{
    struct sidecar *s = object;

    if (!s->alive || s->life != life)
        return;
    TRACE(w, "sidecar %d has drained and exits", s->index);
    ends(w, s);
    s->own = w->plan->own_rows;
    s->killed = false;
    if (for_us)
        world_at(w, w->now_us + (int64_t)for_us, start_again, s, s->life, 0);
}

void sidecar_exit(struct world *w, struct sidecar *s)
{
    world_at(w, w->now_us + 50000, exits, s, s->life, (uint64_t)s->drain_for_us);
}

void sidecar_drain(struct world *w, struct sidecar *s, int64_t restart_us)
{
    if (!s->alive || s->draining || w->now_us < s->frozen_until_us)
        return;
    TRACE(w, "sidecar %d drains", s->index);
    s->draining = true;
    s->drain_since_us = w->now_us;
    s->drain_for_us = restart_us;
    for (int i = 0; i < w->plan->n_queues; i++)
        queue_drain(&s->queues[i].core, world_ms(w), world_ms(w) + DRAIN_GRACE_MS);
    told(w, s);
}

void sidecar_freeze(struct world *w, struct sidecar *s, int64_t for_us)
{
    if (!s->alive || s->frozen_until_us > w->now_us + for_us)
        return;
    TRACE(w, "sidecar %d is frozen", s->index);
    s->frozen_until_us = w->now_us + for_us;
    shell_plan_turn(w, s, s->frozen_until_us + 20);
}

void sidecar_destroy(struct world *w, struct sidecar *s)
{
    if (s->alive)
        ends(w, s);
    app_sim_deinit(&s->app);
    free(s->open);
    free(s->accepted);
    for (int i = 0; i < QUEUES_MAX; i++)
        free(s->promises[i].failed);
}

/* --- input --- */

void sidecar_pause(struct world *w, struct sidecar *s, int queue, bool paused)
{
    if (!s->alive || w->now_us < s->frozen_until_us)
        return;
    s->promises[queue].paused = paused;
    queue_command_pause(&s->queues[queue].core, world_ms(w), paused, "the simulation's operator", "");
    told(w, s);
}

static void hears_arrives(struct world *w, void *object, uint64_t what, uint64_t n)
{
    struct channel *c = object;
    struct sidecar *s = c->link->sidecar;

    if (c->link->cut || !c->link->here || s->queues[c->queue].channel != c)
        return;
    int64_t until = s->frozen_until_us > c->link->slow_until_us ? s->frozen_until_us : c->link->slow_until_us;

    if (w->now_us < until) {
        world_postpone(w, until);
        return;
    }
    struct queue *q = &s->queues[c->queue].core;

    if (what == HEARS_CONSUMING) {
        queue_consuming(q, world_ms(w), (uint32_t)n);
        if (q->rules.ordered)
            hurry(w, s);
    } else if (what == HEARS_STOPPED)
        queue_stopped(q, world_ms(w), (uint32_t)n);
    else
        queue_depth(q, world_ms(w), (int64_t)n, false);
    told(w, s);
}

void sidecar_hears(struct world *w, struct channel *c, int64_t at_us, enum hears what, uint64_t n)
{
    world_at(w, at_us, hears_arrives, c, what, n);
}

static bool fits(const struct queue *q, const struct copy *m)
{
    struct queue_room room;

    queue_room(q, m->redelivered, &room);
    if (m->redelivered && m->delivery_count >= room.near_count &&
        m->bytes <= (int64_t)q->rules.max_message_bytes)
        return true;
    return (size_t)m->bytes <= room.body && (size_t)m->bytes <= room.whole;
}

/* Makes a message whose x-death header has one entry. */
static struct message *make_message(const struct copy *m)
{
    struct message *ret = message_new();

    ret->redelivered = m->redelivered;
    if (!m->deaths)
        return ret;
    struct field *f = message_alloc(ret, 3 * sizeof(*f));

    f[0] = (struct field){.name = SLICE("x-death"), .kind = FIELD_ARRAY, .children = {&f[1], 1}};
    f[1] = (struct field){.kind = FIELD_TABLE, .children = {&f[2], 1}};
    f[2] = (struct field){.name = SLICE("count"), .kind = FIELD_I64, .i = m->deaths};
    ret->headers = f;
    ret->n_headers = 1;
    return ret;
}

void sidecar_delivered(struct world *w, struct sidecar *s, struct channel *c, struct copy *m)
{
    struct sidecar_queue *q = &s->queues[c->queue];
    struct truth *t = m->truth;
    bool quorum = w->plan->queues[c->queue].quorum;

    if (q->channel != c)
        return;
    struct arrival *a =
        arrival_new(t->character == CHARACTER_NO_ID ? (struct slice){0} : (struct slice){t->id, t->id_len});

    a->copy = (struct delivery_copy){.tag = {.generation = c->generation, .number = m->tag},
                                     .consumer = m->consumer,
                                     .body_len = (uint64_t)m->bytes,
                                     .n_bytes = (size_t)m->bytes,
                                     .n_rejected = m->n_rejected};
    /* Publishers may set a header that is meaningful on quorum queues only. */
    a->copy.delivery_count = quorum ? m->delivery_count : t->number % 16 == 5 ? 1000 : 0;
    memset(a->fingerprint, 7 + m->body, sizeof(a->fingerprint));
    a->has_key = m->key >= 0;
    a->key[0] = (uint8_t)m->key;
    if (t->character == CHARACTER_NO_ID)
        a->no_id = DEAD_NO_MESSAGE_ID;
    if (fits(&q->core, m))
        a->message = make_message(m);
    q->unclean &= a->no_id == DEAD_NONE;
    m->arrived = true;
    t->due_us = 0;
    m->was_dead = t->row.status == INBOX_DEAD || t->character == CHARACTER_NO_ID;
    m->n_arrived++;
    m->skipped = !a->message;
    w->counts.n_deliveries++;
    s->promises[c->queue].n_received += a->message != NULL;
    TRACE(w, "sidecar %d: delivered %s copy %llu tag %llu%s count %d%s", s->index, t->id,
          (unsigned long long)m->number, (unsigned long long)m->tag, m->redelivered ? " redelivered" : "",
          m->delivery_count, a->message ? "" : " skipped");
    queue_delivered(&q->core, world_ms(w), a, a->no_id == DEAD_NONE ? NULL : "no id");
    told(w, s);
}

void sidecar_rows(struct world *w, struct sidecar *s, struct batch *b)
{
    int64_t now_ms = world_ms(w);

    s->out[b->kind] = NULL;
    for (size_t i = 0; i < b->n; i++) {
        s->queues[b->items[i].queue].unclean = false;
        shell_row(w, s, &b->items[i], now_ms);
    }
    if (b->kind <= BATCH_CLAIM_ASYNC)
        for (int i = 0; i < w->plan->n_queues; i++)
            queue_claim_took(&s->queues[i].core, w->now_us - b->sent_us);
    batch_release(w, b);
    told(w, s);
}

void sidecar_tried(struct world *w, struct sidecar *s, bool works)
{
    TRACE(w, "sidecar %d: the database %s", s->index, works ? "works" : "still refuses");
    database_tried(&s->database, world_ms(w), works, "disk full", random_next(&s->random));
    told(w, s);
}

static void close_post(struct sidecar *s, struct post *p)
{
    p->open = false;
    for (size_t i = 0; i < s->n_open; i++)
        if (s->open[i] == p) {
            s->open[i] = s->open[--s->n_open];
            return;
        }
}

void sidecar_close_post(struct sidecar *s, struct post *p)
{
    close_post(s, p);
}

/* Does the answer to a batch say nothing about its messages? */
static bool says_nothing(const struct world *w, const struct post *p)
{
    return p->deed == DEED_NO_ECHO ||
           (p->deed == DEED_UNKNOWN_NAME && !w->plan->queues[p->queue].rules.transaction);
}

/* Records the meaning of the answer for each message, for the oracle. */
static void tell_members(struct world *w, struct post *carrier, enum answer_kind kind, int status,
                         int64_t retry_after_ms)
{
    bool good =
        kind == ANSWER_STATUS && status / 100 == 2 && !(carrier->enveloped && says_nothing(w, carrier));

    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];

        p->open = false;
        p->answered = true;
        p->kind = kind;
        p->status = !good || !p->named ? status : p->named == 502 ? 500 : p->named;
        p->named = good ? p->named : 0;
        p->told_us = w->now_us;
        p->retry_after_ms = !good ? retry_after_ms : p->named && p->named_s >= 0 ? p->named_s * 1000 : -1;
        p->whole = !good && (carrier->n_members > 1 || (carrier->enveloped && status / 100 == 2));
    }
}

static void write_failures(const struct post *carrier, struct buf *ret)
{
    const char *between = "";

    buf_add_text(ret, "{\"failures\":[");
    for (size_t i = 0; i < carrier->n_members; i++) {
        const struct post *p = carrier->members[i];

        if (!p->named)
            continue;
        buf_printf(ret, "%s{\"id\":", between);
        buf_add_json(ret, (struct slice){p->truth->id, p->truth->id_len});
        buf_printf(ret, ",\"status\":%d", p->named);
        if (p->named_s >= 0)
            buf_printf(ret, ",\"retry_after\":%lld", (long long)p->named_s);
        buf_add_text(ret, "}");
        between = ",";
    }
    if (carrier->deed == DEED_UNKNOWN_NAME)
        buf_printf(ret, "%s{\"id\":\"another\"}", between);
    buf_add_text(ret, "]}");
}

void sidecar_answered(struct world *w, struct post *p, enum answer_kind kind, int status,
                      int64_t retry_after_ms)
{
    struct sidecar *s = p->sidecar;
    char brief[40];

    if (!p->open || !s->alive || s->life != p->life)
        return;
    close_post(s, p);
    tell_members(w, p, kind, status, retry_after_ms);
    if (kind == ANSWER_STATUS)
        snprintf(brief, sizeof(brief), "answered %d", status);
    else
        snprintf(brief, sizeof(brief), "%s",
                 kind == ANSWER_DIED      ? "reset"
                 : p->deed == DEED_UNSENT ? "broken before it was sent"
                                          : "refused");
    TRACE(w, "sidecar %d: %s %s", s->index, p->truth->id, brief);
    struct buf body = {0};

    if (p->enveloped && kind == ANSWER_STATUS && status / 100 == 2)
        write_failures(p, &body);
    struct answer a = {
        .kind = kind,
        .status = status,
        .batch = p->enveloped && p->deed != DEED_NO_ECHO && status / 100 == 2 ? (int64_t)p->n_members : -1,
        .body = buf_slice(&body),
        .retry_after_ms = retry_after_ms,
        .refused = kind == ANSWER_UNREACHABLE && p->deed != DEED_UNSENT,
        .brief = brief,
        .error = brief,
        .took_us = w->now_us - p->sent_us};

    oracle_answered(w, p);
    queue_answered(&s->queues[p->queue].core, world_ms(w), p->ref, &a);
    buf_deinit(&body);
    told(w, s);
}

static void hear_subscription(const struct world *w, struct handover_counts *h, int from,
                              const struct presence_queue *p)
{
    if (p->may_consume)
        h->ready_us = w->now_us;
    h->n_heard += p->subscription != h->heard[from];
    h->heard[from] = p->subscription;
}

/* Passes the subscriptions of the others to the ordered queues, which are partitions of one consumer. */
static void tell_subscriptions(struct world *w, struct sidecar *s, const struct presence_row *rows)
{
    struct queue *partitions[QUEUES_MAX];
    struct handover_peer peers[SIDECARS_MAX * QUEUES_MAX];
    size_t n = 0, n_peers = 0;
    unsigned members = 0;

    for (int k = 0; k < w->plan->n_queues; k++) {
        struct queue *q = &s->queues[k].core;

        if (!q->rules.ordered)
            continue;
        members |= q->consumer.state == CONSUMER_ACTIVE && !q->drain ? 1u << s->index : 0;
        for (int i = 0; i < w->plan->n_sidecars; i++) {
            const struct presence_queue *p = &rows[i].queues[k];

            if (i == s->index || !rows[i].exists || w->now_us - rows[i].seen_us >= GONE_US ||
                !p->is_subscribed)
                continue;
            members |= 1u << i;
            hear_subscription(w, &s->queues[k].handover, i, p);
            peers[n_peers++] = (struct handover_peer){.who = sidecar_hash(w, i),
                                                      .partition = n,
                                                      .subscription = p->subscription,
                                                      .may_consume = p->may_consume,
                                                      .is_active = p->is_active};
        }
        partitions[n++] = q;
    }
    for (int k = 0; k < w->plan->n_queues; k++) {
        struct handover_counts *known = &s->queues[k].handover;

        known->n_changes += !known->n_changes || members != known->members;
        known->members = members;
    }
    if (n && handover_presence(partitions, n, world_ms(w), peers, n_peers))
        hurry(w, s);
}

void sidecar_presence(struct world *w, struct sidecar *s, const struct presence_row *rows)
{
    for (int i = 0; i < w->plan->n_sidecars; i++) {
        struct other *o = &s->others[i];

        if (i == s->index || !rows[i].exists)
            continue;
        if (!o->known || o->counter != rows[i].counter) {
            *o = (struct other){
                .counter = rows[i].counter, .same_since_us = w->now_us, .seen_us = w->now_us, .known = true};
            continue;
        }
        o->gone = ++o->n_same >= 3 && w->now_us - o->same_since_us >= GONE_US;
    }
    for (int q = 0; q < w->plan->n_queues; q++) {
        int n = 0;

        for (int i = 0; i < w->plan->n_sidecars; i++)
            n += i != s->index && s->others[i].known && w->now_us - s->others[i].seen_us < GONE_US &&
                 rows[i].queues[q].may_consume;
        if (n)
            s->queues[q].others_us = w->now_us;
        if (!s->queues[q].core.rules.ordered)
            queue_presence(&s->queues[q].core, world_ms(w), n);
    }
    tell_subscriptions(w, s, rows);
    operator_tells(w, s);
    told(w, s);
}
