/* Carries out the actions of the queues' cores. Turns are fair: each queue does a limited number of actions
 * per turn, and each turn starts with another queue. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"

enum { N_ACTIONS_A_TURN = 1024 };

static unsigned can_at_database(const struct sidecar *s, const struct sidecar_queue *sq)
{
    static const enum operation operations[] = {OP_CLAIM, OP_LOOK,   OP_RENEW,   OP_CHECK,      OP_COMPLETE,
                                                OP_FAIL,  OP_REVOKE, OP_RELEASE, OP_DEAD_LETTER};
    unsigned can = 0;

    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
        if (batches_can(s, sq, operations[i]))
            can |= 1u << operations[i];
    return letters_can(s, sq) ? can | CAN_DEAD_LETTER_LARGE : can;
}

static unsigned can_at_broker(const struct sidecar_queue *sq)
{
    const struct broker *b = sq->link->broker;

    if (b && broker_channel_is_open(b, (uint32_t)sq->index) && broker_can_write(b, (uint32_t)sq->index, 2))
        return 1u << OP_ACK | 1u << OP_REJECT | 1u << OP_REQUEUE;
    return 0;
}

/* Operations that the shell can carry out now, for queue_next. Each of the three parts changes only with an action at
 * its own peer. */
struct abilities {
    unsigned database, broker, publish;
};

static unsigned abilities_all(const struct abilities *can)
{
    return 1u << OP_FORWARD | can->database | can->broker | can->publish;
}

static void abilities_read(const struct sidecar *s, const struct sidecar_queue *sq, struct abilities *ret)
{
    *ret = (struct abilities){can_at_database(s, sq), can_at_broker(sq),
                              renewals_can(sq) ? 1u << OP_PUBLISH : 0};
}

/* Updates the abilities after an action of that kind. */
static void abilities_change(const struct sidecar *s, const struct sidecar_queue *sq, const struct action *a,
                             struct abilities *can)
{
    switch (a->kind) {
    case ACTION_DATABASE:
        if (a->d->op == OP_DEAD_LETTER ||
            !batches_can(s, sq, a->d->op)) /* a batch is full; large dead letters go one by one */
            can->database = can_at_database(s, sq);
        break;
    case ACTION_PUBLISH:
        can->publish = renewals_can(sq) ? 1u << OP_PUBLISH : 0;
        break;
    case ACTION_ACK:
    case ACTION_REJECT:
    case ACTION_REQUEUE:
    case ACTION_CONSUME:
    case ACTION_CANCEL:
    case ACTION_REOPEN:
    case ACTION_ASK_DEPTH:
        can->broker = can_at_broker(sq);
        break;
    default:
        break;
    }
}

static void to_broker(struct sidecar_queue *sq, const struct action *a, enum failpoint before,
                      int (*write)(struct broker *, struct broker_tag, struct fault *))
{
    struct fault f = {0};

    FAILPOINT_AT(before);
    write(sq->link->broker, a->tag, &f); /* broker_next reports a loss */
    FAILPOINT_AT(before + FAILPOINT_STEP_SENT);
}

static void ack(struct sidecar_queue *sq, const struct action *a)
{
    struct fault f = {0};

    FAILPOINT(ACK_BEFORE);
    broker_ack(sq->link->broker, a->tag, a->multiple, &f);
    FAILPOINT(ACK_WRITTEN);
}

static void consume(struct sidecar_queue *sq, const struct action *a)
{
    struct fault f = {0};

    FAILPOINT(CONSUME_BEFORE);
    broker_consume(sq->link->broker, (uint32_t)sq->index, a->number, (int)a->n, &f);
    FAILPOINT(CONSUME_SENT);
}

static void cancel(struct sidecar_queue *sq, const struct action *a)
{
    struct fault f = {0};

    FAILPOINT(CANCEL_BEFORE);
    broker_cancel(sq->link->broker, (uint32_t)sq->index, a->number, &f);
    FAILPOINT(CANCEL_SENT);
}

static void ask_lock_holder(struct sidecar *s, struct sidecar_queue *sq, uint64_t ref)
{
    const struct delivery *d = queue_find(&sq->core, ref);

    if (!d || s->database.asked_lock || !s->database.inbox)
        return;
    s->database.asked_lock = (uint64_t)sq->index << 52 | ref;
    inbox_ask_lock_holder(s->database.inbox, sq->config->entry, delivery_slice(d));
}

static void carry_out(struct sidecar *s, struct sidecar_queue *sq, const struct action *a)
{
    struct fault f = {0};

    switch (a->kind) {
    case ACTION_NONE:
        break;
    case ACTION_DATABASE:
        batches_add(s, sq, a->d, a->new_token);
        break;
    case ACTION_FORWARD:
        requests_send(s, sq, a->request);
        break;
    case ACTION_PUBLISH:
        renewals_send(s, sq, a->d);
        break;
    case ACTION_ABANDON:
        forward_abandon(s->forward, sq->index, a->ref);
        break;
    case ACTION_ACK:
        ack(sq, a);
        sq->link->wrote_ack = true;
        break;
    case ACTION_REJECT:
        to_broker(sq, a, FAILPOINT_REJECT_BEFORE, broker_reject);
        sq->link->wrote_reject = true;
        break;
    case ACTION_REQUEUE:
        to_broker(sq, a, FAILPOINT_RETURN_BEFORE, broker_requeue);
        sq->link->wrote_requeue = true;
        break;
    case ACTION_CONSUME:
        consume(sq, a);
        break;
    case ACTION_CANCEL:
        cancel(sq, a);
        break;
    case ACTION_REOPEN:
        broker_reopen(sq->link->broker, (uint32_t)sq->index, a->text);
        break;
    case ACTION_ASK_DEPTH:
        broker_ask_depth(sq->link->broker, (uint32_t)sq->index, &f);
        break;
    case ACTION_ASK_LOCK_HOLDER:
        ask_lock_holder(s, sq, a->ref);
        break;
    case ACTION_TELL:
        report_note(sq, &a->note);
        break;
    }
}

/* Runs the actions of one queue. False: there may be more of them. */
static bool run(struct sidecar *s, struct sidecar_queue *sq)
{
    struct abilities can;
    struct action a;

    queue_time(&sq->core, s->now_ms);
    abilities_read(s, sq, &can);
    for (int n = 0; n < N_ACTIONS_A_TURN; n++) {
        if (!queue_next(&sq->core, s->now_ms, abilities_all(&can), &a))
            return true;
        carry_out(s, sq, &a);
        abilities_change(s, sq, &a, &can);
    }
    return false;
}

static void flush(struct sidecar *s)
{
    struct fault f = {0};

    for (size_t i = 0; i < s->n_links; i++) {
        struct broker_link *k = &s->links[i];

        if (!k->broker || k->closed)
            continue;
        broker_flush(k->broker, &f); /* broker_next reports a loss */
        FAILPOINT_IF(k->wrote_ack, ACK_FLUSHED);
        FAILPOINT_IF(k->wrote_reject, REJECT_FLUSHED);
        FAILPOINT_IF(k->wrote_requeue, RETURN_FLUSHED);
        k->wrote_ack = k->wrote_reject = k->wrote_requeue = false;
        wait_change(s->wait, &k->watch, EPOLLIN | (broker_wants_write(k->broker) ? EPOLLOUT : 0));
    }
}

/* Other queues of the application may continue too, after a change of the limiter or the database. */
static bool has_work(const struct sidecar *s, const struct sidecar_queue *sq)
{
    const struct queue_held *h = &sq->core.held;

    return sq->touched || s->now_ms >= sq->due_ms || h->wanted[OP_CLAIM].len || h->wanted[OP_FORWARD].len ||
           h->wanted[OP_COMPLETE].len || h->wanted[OP_FAIL].len || h->wanted[OP_RELEASE].len ||
           h->wanted[OP_DEAD_LETTER].len || h->wanted[OP_CHECK].len || h->wanted[OP_LOOK].len ||
           h->wanted[OP_RENEW].len || h->wanted[OP_PUBLISH].len || h->wanted[OP_REVOKE].len;
}

static void applications_time(struct sidecar *s)
{
    for (size_t a = 0; a < s->n_applications; a++) {
        bool more = false, hangs = false;

        for (size_t i = 0; i < s->n_queues; i++) {
            if (s->queues[i].application != a)
                continue;
            more |= queue_wants_slot(&s->queues[i].core);
            hangs |= queue_may_hang(&s->queues[i].core, s->now_ms);
        }
        application_time(&s->applications[a], s->now_ms, more, hangs);
    }
}

void actions_run(struct sidecar *s)
{
    applications_time(s);
    for (size_t n = 0; n < s->n_queues; n++) {
        struct sidecar_queue *sq = &s->queues[(s->first + n) % s->n_queues];

        if (has_work(s, sq))
            sq->touched = !run(s, sq);
        s->letters.wanted |= queue_take_large_letter(&sq->core);
    }
    s->first = s->n_queues ? (s->first + 1) % s->n_queues : 0;
    batches_send(s);
    letters_send(s);
    flush(s);
    renewals_flush(s);
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        queue_reap(&sq->core);
        sq->due_ms = queue_deadline(&sq->core, s->now_ms);
    }
}

int64_t actions_due_ms(const struct sidecar *s)
{
    int64_t due = INT64_MAX;

    for (size_t i = 0; i < s->n_queues; i++) {
        if (s->queues[i].touched)
            return s->now_ms;
        if (s->queues[i].due_ms < due)
            due = s->queues[i].due_ms;
    }
    for (size_t i = 0; i < s->n_applications; i++) {
        int64_t at = application_deadline(&s->applications[i], s->now_ms);

        if (at < due)
            due = at;
    }
    int64_t at = database_deadline(&s->database.core);
    return at < due ? at : due;
}
