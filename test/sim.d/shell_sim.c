/* Turns of a simulated sidecar's loop: see shell_sim.h. */
#include "shell_sim.h"

#include "oracle.h"
#include "random.h"

#include "onceward/base/mem.h"
#include "onceward/core/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACTIONS_MAX = 100000, GROUP_MOST = 8 };

/* --- batches --- */

static int batch_kind_of(const struct queue *q, enum operation op)
{
    switch (op) {
    case OP_CLAIM:
        return q->rules.transaction ? BATCH_CLAIM_ASYNC : BATCH_CLAIM;
    case OP_LOOK:
    case OP_CHECK:
        return BATCH_LOOK;
    case OP_RENEW:
        return BATCH_RENEW;
    case OP_COMPLETE:
        return BATCH_SETTLE;
    case OP_FAIL:
    case OP_REVOKE:
        return BATCH_FAIL;
    case OP_RELEASE:
        return BATCH_RELEASE;
    case OP_DEAD_LETTER:
        return BATCH_BURY;
    default:
        return -1;
    }
}

static unsigned can(const struct sidecar *s, const struct sidecar_queue *q)
{
    unsigned bits = 1u << OP_FORWARD;

    if (q->channel)
        bits |= 1u << OP_ACK | 1u << OP_REJECT | 1u << OP_REQUEUE;
    if (s->link)
        bits |= 1u << OP_PUBLISH;
    if (s->base)
        for (int op = 0; op < N_OPERATIONS; op++) {
            int kind = batch_kind_of(&q->core, (enum operation)op);

            if (kind >= 0 && !s->out[kind] && (!s->filling[kind] || s->filling[kind]->n < BATCH_MAX))
                bits |= 1u << op | (op == OP_DEAD_LETTER ? (unsigned)CAN_DEAD_LETTER_LARGE : 0);
        }
    return bits;
}

static struct copy *copy_of(const struct sidecar *s, int queue, struct broker_tag tag)
{
    const struct sidecar_queue *q = &s->queues[queue];
    size_t n = sizeof(q->channels) / sizeof(*q->channels);

    for (size_t i = 0; i < n && i < q->n_channels; i++)
        if (q->channels[i]->generation == tag.generation)
            return channel_copy(q->channels[i], tag.number);
    return NULL;
}

static void make_token(struct sidecar *s, struct delivery *d)
{
    uint64_t a = random_next(&s->random), b = random_next(&s->random);

    memcpy(d->claim->token, &a, 8);
    memcpy(d->claim->token + 8, &b, 8);
}

static void fill_outcome(const struct queue *q, const struct delivery *d, struct inbox_ask *ask)
{
    if (d->op == OP_FAIL || d->op == OP_REVOKE || d->op == OP_RELEASE) {
        ask->delay_us = delivery_delay_ms(d) * 1000;
        ask->crashes = delivery_changes(d)->crashes;
        ask->unproven_step = delivery_changes(d)->unproven_step;
        ask->batch_cap = d->claim->next_cap;
        ask->give_back = d->op == OP_RELEASE || !delivery_failure(d)->charged;
        ask->only_expired = delivery_fails_expired(d);
    } else if (d->op == OP_DEAD_LETTER) {
        const struct outcome_dead_letter *dead = delivery_dead_letter(d);

        ask->exhausted = dead->row == LETTER_UNCLAIMED;
        ask->near_limit = dead->reason != DEAD_ATTEMPTS;
        ask->holds = queue_letter_holds(q, d);
        ask->looked_for = queue_letter_is_looked_for(d);
    }
}

static void fill_ask(const struct queue *q, const struct delivery *d, struct batch_item *item)
{
    struct inbox_ask *ask = &item->ask;

    *ask = (struct inbox_ask){.body = (uint8_t)(d->arrival->fingerprint[0] - 7),
                              .alone = d->claim->alone,
                              .crashes = -1,
                              .unproven_step = -1,
                              .deaths = d->arrival->message ? message_deaths(d->arrival->message) : 0};
    memcpy(ask->token, d->claim->token, 16);
    fill_outcome(q, d, ask);
}

static bool is_in(const struct batch *b, const struct batch_item *item)
{
    if (item->rowless)
        return false;
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].truth == item->truth && !b->items[i].rowless)
            return true;
    return false;
}

static void trace_ask(struct world *w, const struct sidecar *s, const struct batch_item *item)
{
    const struct inbox_ask *ask = &item->ask;

    TRACE(w, "sidecar %d: %s %s%s%s%s%s%s%s delay %lld crashes %d step %d cap %d reason %d", s->index,
          operation_infos[item->op].name, item->truth->id, item->rowless ? " rowless" : "",
          ask->alone ? " alone" : "", ask->only_expired ? " expired" : "", ask->give_back ? " uncharged" : "",
          ask->holds ? " held" : "", ask->looked_for ? " again" : "", (long long)ask->delay_us, ask->crashes,
          ask->unproven_step, ask->batch_cap, (int)item->reason);
}

static void add_item(struct world *w, struct sidecar *s, int queue, struct delivery *d, bool new_token)
{
    int kind = batch_kind_of(&s->queues[queue].core, d->op);
    struct copy *m = copy_of(s, queue, d->arrival->copy.tag);
    struct batch *b;

    if (!m || kind < 0 || s->out[kind]) {
        oracle_broken(w, "action", "a statement for nothing, or while one is out: %s",
                      operation_infos[d->op].name);
        return;
    }
    if (new_token)
        make_token(s, d);
    if (!s->filling[kind])
        s->filling[kind] = batch_new(w, (enum batch_kind)kind);
    b = s->filling[kind];
    struct batch_item item = {.ref = d->ref,
                              .queue = queue,
                              .op = d->op,
                              .truth = m->truth,
                              .copy = m,
                              .rowless = delivery_is_rowless(d),
                              .has_body = d->arrival->message != NULL,
                              .reason =
                                  d->op == OP_DEAD_LETTER ? delivery_dead_letter(d)->reason : DEAD_NONE};

    fill_ask(&s->queues[queue].core, d, &item);
    trace_ask(w, s, &item);
    if (d->op == OP_DEAD_LETTER && !d->arrival->message)
        oracle_broken(w, "letter", "%s is buried without its body", m->truth->id);
    if (is_in(b, &item))
        oracle_broken(w, "action", "%s is twice in one batch", m->truth->id);
    if (m->truth->id_len)
        oracle_asked(w, m->truth);
    promises_decided(w, s, d, &item);
    b->items[b->n++] = item;
}

static void who_asks(const struct world *w, const struct sidecar *s, struct batch *b)
{
    unsigned gone = 0;

    for (int i = 0; i < w->plan->n_sidecars; i++)
        gone |= (unsigned)s->others[i].gone << i;
    for (int i = 0; i < w->plan->n_queues; i++) {
        const struct queue_rules *r = &w->plan->queues[i].rules;

        b->who[i] = (struct inbox_asker){.instance = s->index,
                                         .number = s->number,
                                         .own = s->own,
                                         .gone = gone,
                                         .transaction = r->transaction,
                                         .ordered = r->ordered,
                                         .window_us = r->token_window_ms * 1000,
                                         .max_window_us = r->max_window_ms * 1000,
                                         .max_attempts = r->max_attempts,
                                         .revive = r->revive};
    }
}

static void send_batches(struct world *w, struct sidecar *s)
{
    for (int kind = 0; kind < N_BATCHES; kind++) {
        struct batch *b = s->filling[kind];

        if (!b)
            continue;
        s->filling[kind] = NULL;
        s->out[kind] = b;
        who_asks(w, s, b);
        database_send(w, s->base, b);
    }
}

void shell_row(struct world *w, struct sidecar *s, const struct batch_item *item, int64_t now_ms)
{
    char mismatch[120] =
        "{\"first_fingerprint\" : \"07070707070707070707070707070707\", \"first_status\" : \"";
    const struct inbox_reply *reply = &item->reply;
    struct row r = {.op = item->op,
                    .answer = reply->answer,
                    .attempt = reply->attempt,
                    .crashes = reply->crashes,
                    .takeovers = reply->takeovers,
                    .unproven_step = reply->unproven_step,
                    .batch_cap = reply->batch_cap,
                    .unproven_ms = reply->unproven_us < 0 ? -1 : reply->unproven_us / 1000,
                    .wait_ms = (reply->wait_us + 999) / 1000,
                    .age_ms = reply->age_us / 1000,
                    .taken_over = reply->taken_over,
                    .letter = 1};

    snprintf(r.sqlstate, sizeof(r.sqlstate), "%s", item->sqlstate ? item->sqlstate : "");
    if (r.answer == ROW_MISMATCH) {
        for (char *at = strchr(mismatch, '7'); at && *at == '7'; at += 2)
            *at = (char)('7' + reply->body);
        strcat(mismatch, item->truth->row.status == INBOX_COMPLETED ? "completed\"}" : "failed\"}");
        r.detail = slice_of(mismatch);
    } else if (item->sqlstate)
        r.detail = SLICE("the simulated database refuses it");
    TRACE(w, "sidecar %d: %s %s: %s%s attempt %d takeovers %d crashes %d wait %lld", s->index,
          operation_infos[item->op].name, item->truth->id, row_answer_name(r.answer),
          r.taken_over ? " taken over" : "", r.attempt, r.takeovers, r.crashes, (long long)r.wait_ms);
    promises_heard(w, s, item);
    queue_row(&s->queues[item->queue].core, now_ms, item->ref, &r);
}

void shell_forget_batches(struct world *w, struct sidecar *s)
{
    for (int kind = 0; kind < N_BATCHES; kind++) {
        struct batch *b = s->out[kind];

        s->out[kind] = NULL;
        for (size_t i = 0; b && i < b->n; i++) {
            struct row r = {.op = b->items[i].op, .answer = ROW_UNKNOWN, .unproven_ms = -1};

            TRACE(w, "sidecar %d: %s %s: unknown", s->index, operation_infos[b->items[i].op].name,
                  b->items[i].truth->id);
            queue_row(&s->queues[b->items[i].queue].core, world_ms(w), b->items[i].ref, &r);
        }
        if (b)
            batch_release(w, b);
    }
}

void shell_drop_batches(struct world *w, struct sidecar *s)
{
    for (int kind = 0; kind < N_BATCHES; kind++) {
        if (s->out[kind])
            batch_release(w, s->out[kind]);
        if (s->filling[kind])
            batch_release(w, s->filling[kind]);
        s->out[kind] = s->filling[kind] = NULL;
    }
}

void shell_ask_presence(struct world *w, struct sidecar *s)
{
    struct presence_queue queues[QUEUES_MAX] = {0};

    if (!s->base)
        return;
    /* gcc 16 does not see that a plan has at most QUEUES_MAX queues. */
    for (int i = 0; i < w->plan->n_queues && i < QUEUES_MAX; i++) {
        const struct queue *q = &s->queues[i].core;
        const char *why;

        queues[i] = (struct presence_queue){
            .may_consume = queue_may_consume(q),
            .is_subscribed = q->rules.ordered && q->consumer.state == CONSUMER_ACTIVE && !q->drain,
            .is_active = q->handover.is_active,
            .subscription = ((int64_t)s->life * SIDECARS_MAX + s->index) << 32 | q->consumer.number};
        s->asked_stops[i] = queue_stop_wanted(q, &why);
        s->asked_outdated[i] = queue_stop_outdated(q);
    }
    s->presence_us = w->now_us;
    database_ask_presence(w, s->base, s->index, queues);
}

/* --- requests --- */

/* Makes the part of one message; NULL: the delivery is unknown. */
static struct post *post_new(struct world *w, struct sidecar *s, int queue, const struct request *r,
                             const struct delivery *d)
{
    struct copy *m = copy_of(s, queue, d->arrival->copy.tag);
    struct post *p;

    if (!m)
        return NULL;
    p = world_alloc(w, sizeof(*p));
    *p = (struct post){.next = m->truth->posts,
                       .truth = m->truth,
                       .sidecar = s,
                       .life = s->life,
                       .queue = queue,
                       .ref = r->ref,
                       .attempt = d->claim->attempt + d->claim->takeovers,
                       .sent_us = w->now_us,
                       .window_us = (d->claim->window_ends_ms - world_ms(w)) * 1000,
                       .n_losses = s->n_losses,
                       .n_crashes = s->application.n_crashes,
                       .retry_after_ms = -1,
                       .named_s = -1,
                       .enveloped = r->body.len > 0,
                       .open = true};
    memcpy(p->token, d->claim->token, 16);
    m->truth->posts = p;
    m->truth->n_posts++;
    TRACE(w, "sidecar %d: POST %s attempt %d%s, %zu in the request, for %lld us, envelope %llx", s->index,
          m->truth->id, p->attempt, d->claim->alone ? " alone" : "", r->n_sent, (long long)p->window_us,
          (unsigned long long)(r->body.len ? trace_hash(0, r->body.data, r->body.len) : 0));
    if (m->truth->character == CHARACTER_SIDECAR_BOMB && m->truth->n_bombs < m->truth->param) {
        m->truth->n_bombs++;
        s->kill_at = s->n_actions + 1;
        s->kill_for_us = 1000000;
        s->kill_forgets = false;
    }
    return p;
}

static int by_message(const void *a, const void *b)
{
    const struct post *const *p = a, *const *q = b;

    return ((*p)->truth->number > (*q)->truth->number) - ((*p)->truth->number < (*q)->truth->number);
}

static void forward(struct world *w, struct sidecar *s, int queue, const struct request *r)
{
    struct post **members = world_alloc(w, r->members.len * sizeof(*members));
    size_t n = 0;

    list_each(&r->members, k)
    {
        const struct delivery *d = container_of(k, struct delivery, in_request);

        members[n] = post_new(w, s, queue, r, d);
        if (!members[n] || (d->claim->is_behind && !n)) {
            oracle_broken(w, "action", "a request for nothing");
            return;
        }
        members[n]->before = d->claim->is_behind ? members[n - 1]->truth : NULL;
        n++;
    }
    if (!s->queues[queue].core.rules.ordered) /* there the application keeps to the order of the request */
        qsort(members, n, sizeof(*members), by_message);
    for (size_t i = 0; i < n; i++)
        members[i]->carrier = members[0];
    members[0]->members = members;
    members[0]->n_members = n;
    w->counts.n_posts++;
    if (n > GROUP_MOST && request_first(r)->claim->alone)
        oracle_broken(w, "quarantine", "%zu quarantined messages are in one request", n);
    oracle_forward(w, members[0]);
    if (s->n_open == s->open_cap) {
        s->open_cap = s->open_cap ? s->open_cap * 2 : 64;
        s->open = mem_realloc(s->open, s->open_cap * sizeof(struct post *));
    }
    s->open[s->n_open++] = members[0];
    app_sim_post(w, &s->app, members[0]);
}

static void abandon(struct world *w, struct sidecar *s, int queue, uint64_t ref)
{
    for (size_t i = 0; i < s->n_open; i++) {
        struct post *p = s->open[i];

        if (p->queue == queue && p->ref == ref) {
            TRACE(w, "sidecar %d: abandons %s", s->index, p->truth->id);
            promises_abandoned(w, s, p);
            sidecar_close_post(s, p);
            return;
        }
    }
}

/* --- copies --- */

/* Returns the answer on the publishing connection. */
static void publish_answered(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    struct renewal_sim *p = object;
    struct sidecar *s = p->sidecar;

    (void)unused;
    (void)unused2;
    if (!s->alive || s->life != p->life)
        return;
    if (w->now_us < s->frozen_until_us) {
        world_postpone(w, s->frozen_until_us);
        return;
    }
    TRACE(w, "sidecar %d: the copy of %s: %s", s->index, p->copy->truth->id, p->why ? p->why : "confirmed");
    queue_published(&s->queues[p->queue].core, world_ms(w), p->ref,
                    p->why ? PUBLICATION_FAILED : PUBLICATION_CONFIRMED, p->why);
    s->n_facts++;
    shell_plan_turn(w, s, w->now_us + 20);
}

/* Publishes a copy, with nacks, returned messages and lost confirms. */
static void publish_arrives(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    struct renewal_sim *p = object;
    struct copy *m = p->copy;
    bool calm = !w->plan->jitter || w->now_us - WORLD_START_US >= w->plan->quiet_us;

    (void)unused;
    (void)unused2;
    if (!w->broker->up) {
        p->why = "the broker is away";
    } else if (w->plan->nacks_copies || (!calm && random_chance(&w->random, 300))) {
        p->why = "nack";
    } else {
        m->renewed = true;
        m->truth->n_renewals++;
        broker_publish(w, m->truth, m->body, m->bytes)->number_of_old = m->number;
        if (!calm && random_chance(&w->random, 300))
            p->why = "the confirm is lost";
    }
    world_at(w, w->now_us + wire_us(w), publish_answered, p, 0, 0);
}

static void publish(struct world *w, struct sidecar *s, int queue, struct delivery *d)
{
    struct copy *m = copy_of(s, queue, d->arrival->copy.tag);
    struct renewal_sim *p;

    if (!m) {
        oracle_broken(w, "action", "a copy of nothing is published");
        return;
    }
    TRACE(w, "sidecar %d: publishes %s again", s->index, m->truth->id);
    oracle_renewed(w, s, m);
    p = world_alloc(w, sizeof(*p));
    *p = (struct renewal_sim){.sidecar = s, .life = s->life, .queue = queue, .ref = d->ref, .copy = m};
    world_at(w, w->now_us + wire_us(w), publish_arrives, p, 0, 0);
}

/* --- the broker --- */

static void ack(struct world *w, struct sidecar *s, int queue, const struct action *a)
{
    struct channel *c = s->queues[queue].channel;
    uint64_t from = a->tag.number;

    if (!c || c->generation != a->tag.generation || !a->tag.number) {
        oracle_broken(w, "ack", "an ack of tag %llu of generation %llu, which is not the channel's",
                      (unsigned long long)a->tag.number, (unsigned long long)a->tag.generation);
        return;
    }
    if (a->multiple)
        from = c->first + 1;
    for (uint64_t t = from; t <= a->tag.number; t++) {
        struct copy *m = channel_copy(c, t);

        if (m && (m->said || m->state != COPY_UNACKED || m->channel != c || m->tag != t))
            continue;
        oracle_ack(w, m);
        if (m)
            m->said = true;
    }
    TRACE(w, "sidecar %d: ack %llu%s", s->index, (unsigned long long)a->tag.number,
          a->multiple ? " and all before" : "");
    broker_send(w, c, a->multiple ? WIRE_ACK_MULTIPLE : WIRE_ACK, a->tag.number, 0);
}

static void give_away(struct world *w, struct sidecar *s, int queue, const struct action *a)
{
    struct sidecar_queue *q = &s->queues[queue];
    struct copy *m = copy_of(s, queue, a->tag);

    if (!q->channel || q->channel->generation != a->tag.generation || !m) {
        oracle_broken(w, "ack", "a %s of a tag that is not the channel's",
                      a->kind == ACTION_REJECT ? "reject" : "requeue");
        return;
    }
    TRACE(w, "sidecar %d: %s %s", s->index, a->kind == ACTION_REJECT ? "reject" : "requeue", m->truth->id);
    /* The broker may have delivered the message to another sidecar already, without this one's knowledge. */
    bool there = m->state == COPY_UNACKED && m->channel == q->channel && m->tag == a->tag.number;

    if (a->kind == ACTION_REQUEUE && q->core.rules.ordered)
        oracle_broken(w, "order", "%s of an ordered queue is requeued", m->truth->id);
    if (there && a->kind == ACTION_REJECT)
        oracle_reject(
            w, m, (size_t)m->bytes > q->core.rules.max_message_bytes && q->core.rules.too_large_is_reject);
    else if (there)
        oracle_requeue(w, s, m, s->draining);
    m->said |= there;
    broker_send(w, q->channel, a->kind == ACTION_REJECT ? WIRE_REJECT : WIRE_REQUEUE, a->tag.number, 0);
}

static void tell(struct world *w, struct sidecar *s, int queue, const struct note *n)
{
    if (w->trace.mode)
        world_tell(w, "sidecar %d: [%s] %s %s %s %s ms %lld n %lld%s", s->index, event_info(n->event)->name,
                   n->d ? n->d->arrival->id : "", n->reason ? n->reason : "", n->code, n->text ? n->text : "",
                   (long long)n->ms, (long long)n->n, n->flag ? " flag" : "");
    oracle_told(w, s, queue, n);
    promises_told(w, s, queue, n);
}

static void carry_out(struct world *w, struct sidecar *s, int queue, const struct action *a)
{
    struct sidecar_queue *q = &s->queues[queue];

    switch (a->kind) {
    case ACTION_NONE:
        break;
    case ACTION_DATABASE:
        add_item(w, s, queue, a->d, a->new_token);
        break;
    case ACTION_FORWARD:
        q->unclean = false;
        forward(w, s, queue, a->request);
        break;
    case ACTION_PUBLISH:
        publish(w, s, queue, a->d);
        break;
    case ACTION_ABANDON:
        abandon(w, s, queue, a->ref);
        break;
    case ACTION_ACK:
        q->unclean = false;
        ack(w, s, queue, a);
        break;
    case ACTION_REJECT:
    case ACTION_REQUEUE:
        q->unclean = false;
        give_away(w, s, queue, a);
        break;
    case ACTION_CONSUME:
    case ACTION_CANCEL:
        if (a->kind == ACTION_CANCEL && q->core.rules.ordered && q->core.held.unacked.len)
            oracle_broken(w, "order", "an ordered queue is cancelled while %zu deliveries are not acked",
                          q->core.held.unacked.len);
        TRACE(w, "sidecar %d: %s %u, %lld", s->index, a->kind == ACTION_CONSUME ? "consume" : "cancel",
              a->number, (long long)a->n);
        if (a->kind == ACTION_CONSUME)
            oracle_subscribes(w, s, queue);
        if (a->kind == ACTION_CONSUME)
            oracle_consumes(w, s, queue, a->n);
        if (q->channel)
            broker_send(w, q->channel, a->kind == ACTION_CONSUME ? WIRE_CONSUME : WIRE_CANCEL, a->number,
                        (uint32_t)a->n);
        else
            oracle_broken(w, "action", "consume or cancel without a channel");
        break;
    case ACTION_REOPEN:
        TRACE(w, "sidecar %d: reopens the channel: %s", s->index, a->text);
        oracle_reopens(w, s, queue, a->text);
        oracle_closes(w, s, queue);
        sidecar_reopen(w, s, queue);
        break;
    case ACTION_ASK_DEPTH:
        if (q->channel)
            broker_send(w, q->channel, WIRE_DEPTH, 0, 0);
        break;
    case ACTION_ASK_LOCK_HOLDER:
        tell(w, s, queue, &(struct note){.event = EVENT_ROW_LOCKED, .d = queue_find(&q->core, a->ref)});
        break;
    case ACTION_TELL:
        tell(w, s, queue, &a->note);
        break;
    }
}

/* --- the loop --- */

/* Takes a limited number of actions from each queue in turn. Returns their number; -1: the sidecar was
 * killed. */
static int64_t take_actions(struct world *w, struct sidecar *s)
{
    enum { BUDGET = 64 };
    struct action a;
    int64_t n = 0;
    bool more = true;

    while (more && !w->ended) {
        more = false;
        for (int i = 0; i < w->plan->n_queues; i++)
            for (int k = 0;
                 k < BUDGET && queue_next(&s->queues[i].core, world_ms(w), can(s, &s->queues[i]), &a); k++) {
                carry_out(w, s, i, &a);
                more = true;
                n++;
                s->n_actions++;
                if (s->kill_at && s->n_actions >= s->kill_at) {
                    sidecar_kill(w, s, s->kill_for_us, s->kill_forgets);
                    return -1;
                }
            }
        if (n > ACTIONS_MAX) {
            oracle_broken(w, "busy", "more than %d actions in one turn", ACTIONS_MAX);
            return -1;
        }
    }
    return n;
}

static void probe_arrives(struct world *w, void *object, uint64_t life, uint64_t unused)
{
    struct sidecar *s = object;
    bool refused, ready = app_sim_probe(w, &s->app, &refused);

    (void)unused;
    if (!s->alive || s->life != life)
        return;
    if (w->now_us < s->frozen_until_us) {
        world_postpone(w, s->frozen_until_us);
        return;
    }
    if (!ready || s->application.gone || s->application.probe.failing)
        TRACE(w, "sidecar %d: the probe says %s", s->index,
              ready     ? "there"
              : refused ? "refused"
                        : "not ready");
    application_probed(&s->application, world_ms(w), ready, refused, random_next(&s->random));
    s->n_facts++;
    shell_plan_turn(w, s, w->now_us + 20);
}

/* Reports a queue that has stopped soon. */
static void ask_with_news(struct world *w, struct sidecar *s)
{
    enum { NEWS_US = 100000 };
    const char *why;

    for (int i = 0; i < w->plan->n_queues; i++)
        if (queue_stop_wanted(&s->queues[i].core, &why) && w->now_us - s->presence_us > NEWS_US)
            shell_ask_presence(w, s);
}

static void ask(struct world *w, struct sidecar *s)
{
    ask_with_news(w, s);
    if (application_wants_probe(&s->application, world_ms(w))) {
        application_probe_sent(&s->application);
        world_at(w, w->now_us + wire_us(w) * 2, probe_arrives, s, s->life, 0);
    }
    if (s->base && database_wants_try(&s->database, world_ms(w))) {
        database_try_sent(&s->database);
        database_ask_try(w, s->base);
    }
}

static int64_t next_deadline_us(const struct world *w, const struct sidecar *s)
{
    int64_t at = application_deadline(&s->application, world_ms(w)), other = database_deadline(&s->database);

    if (other < at)
        at = other;
    for (int i = 0; i < w->plan->n_queues; i++) {
        other = queue_deadline(&s->queues[i].core, world_ms(w));
        if (other < at)
            at = other;
    }
    if (at == INT64_MAX)
        return at;
    return at * 1000 > w->now_us ? at * 1000 : (world_ms(w) + 1) * 1000;
}

static void turn(struct world *w, void *object, uint64_t number, uint64_t unused)
{
    struct sidecar *s = object;
    int64_t n;

    (void)unused;
    if (!s->alive || number != s->turn)
        return;
    s->turn_us = INT64_MAX;
    if (w->now_us < s->frozen_until_us) {
        shell_plan_turn(w, s, s->frozen_until_us + 20); /* the input that has arrived meanwhile comes first */
        return;
    }
    w->counts.n_turns++;
    bool more = false, hangs = false;

    for (int i = 0; i < w->plan->n_queues; i++) {
        struct queue *q = &s->queues[i].core;

        queue_time(q, world_ms(w));
        more |= queue_wants_slot(q);
        hangs |= queue_may_hang(q, world_ms(w));
    }
    application_time(&s->application, world_ms(w), more, hangs);
    n = take_actions(w, s);
    if (n < 0 || w->ended)
        return;
    send_batches(w, s);
    bool drained = s->draining;

    for (int i = 0; i < w->plan->n_queues; i++) {
        queue_reap(&s->queues[i].core);
        drained &= s->queues[i].core.drain == DRAIN_DONE;
    }
    ask(w, s);
    w->counts.n_actions += (uint64_t)n;
    oracle_turn(w, s, (size_t)n, s->n_facts);
    promises_turn(w, s);
    s->n_facts = 0;
    if (drained && !s->drained) {
        s->drained = true;
        sidecar_exit(w, s);
    }
    shell_plan_turn(w, s, next_deadline_us(w, s));
}

void shell_plan_turn(struct world *w, struct sidecar *s, int64_t at_us)
{
    if (!s->alive || at_us >= s->turn_us)
        return;
    s->turn_us = at_us;
    world_at(w, at_us, turn, s, ++s->turn, 0);
}
