/* The life of a delivery: see life.h.
 *
 *                              ┌───────────────── released, failed: due ──────────────────┐
 *                              ▼                                                          │
 *   delivered ─▶ (follows) ─▶ CLAIM ─▶ FORWARD ─▶ answer ─▶ COMPLETE, CHECK ─▶ ACK ─▶ end │
 *                  │  ▲        │ ▲        │          ├────▶ FAIL, RELEASE ────────────────┤
 *       near the   │  └ LOOK ◀─┤ │        │          └─▶ DEAD_LETTER ─▶ REJECT ─▶ end     │
 *       delivery   ▼           │ └ again  └ window over ──▶ REVOKE ──────────────────────┘
 *       limit:   RENEW ─▶ PUBLISH ─▶ ACK                       │ ▲
 *                                                     extended └▶ FORWARD, as before
 *
 * Every operation but ACK, REJECT and REQUEUE is wanted, sent and answered. A wanted operation may wait for its time,
 * a lock or a leader.
 *
 * When a request times out, the operation becomes REVOKE while the request stays in flight. While the row is locked,
 * REVOKE waits (LOCKED) and is sent again. An answer before REVOKE is sent counts at once; one that arrives while
 * REVOKE is sent is kept until the row has answered. Then the attempt is failed and waits for its time, or is
 * completed, or the token was extended and the request is in flight as before.
 *
 * The table of steps: a fact about a delivery whose operation is wanted or sent may be followed by these operations.
 * When its channel is gone, `end` and `release` may follow every fact. A test compares this table with that of the
 * code.
 *
 *   none        wanted delivered ─▶ claim dead_letter reject requeue
 *   claim       wanted turn      ─▶ claim look renew
 *   claim       wanted due       ─▶ claim dead_letter
 *   claim       wanted leave     ─▶ release publish dead_letter reject requeue
 *   claim       wanted command   ─▶ claim dead_letter
 *   claim       wanted breaker   ─▶ claim
 *   claim       wanted lost      ─▶ claim
 *   claim       wanted key       ─▶ claim dead_letter
 *   claim       wanted leader    ─▶ claim ack
 *   claim       sent   row       ─▶ claim look renew publish forward release dead_letter ack reject
 *   claim       sent   leave     ─▶ release publish requeue
 *   look        wanted turn      ─▶ look
 *   look        wanted due       ─▶ look
 *   look        wanted leave     ─▶ publish dead_letter requeue
 *   look        wanted command   ─▶ claim
 *   look        wanted lost      ─▶ look
 *   look        sent   row       ─▶ claim look publish dead_letter ack
 *   look        sent   leave     ─▶ publish requeue
 *   renew       wanted turn      ─▶ renew
 *   renew       wanted due       ─▶ renew
 *   renew       wanted leave     ─▶ publish dead_letter requeue
 *   renew       wanted command   ─▶ claim
 *   renew       wanted lost      ─▶ renew
 *   renew       sent   row       ─▶ claim renew publish dead_letter ack reject
 *   renew       sent   leave     ─▶ publish requeue
 *   publish     wanted turn      ─▶ publish
 *   publish     wanted due       ─▶ publish
 *   publish     wanted leave     ─▶ publish dead_letter requeue
 *   publish     wanted command   ─▶ claim publish
 *   publish     wanted lost      ─▶ publish
 *   publish     sent   published ─▶ claim publish dead_letter ack
 *   publish     sent   leave     ─▶ requeue
 *   forward     wanted turn      ─▶ claim forward release
 *   forward     wanted leave     ─▶ requeue
 *   forward     wanted lost      ─▶ claim
 *   forward     sent   answer    ─▶ check complete fail release dead_letter
 *   forward     sent   window    ─▶ revoke
 *   forward     sent   leave     ─▶ release requeue
 *   check       wanted turn      ─▶ check
 *   check       wanted due       ─▶ check
 *   check       wanted leave     ─▶ release publish dead_letter requeue
 *   check       sent   row       ─▶ claim check fail release dead_letter ack
 *   check       sent   leave     ─▶ release publish requeue
 *   complete    wanted turn      ─▶ complete
 *   complete    wanted due       ─▶ complete
 *   complete    wanted leave     ─▶ publish dead_letter requeue
 *   complete    sent   row       ─▶ claim complete ack
 *   complete    sent   leave     ─▶ publish requeue
 *   fail        wanted turn      ─▶ fail
 *   fail        wanted due       ─▶ fail
 *   fail        wanted leave     ─▶ publish dead_letter requeue
 *   fail        sent   row       ─▶ claim check fail ack
 *   fail        sent   leave     ─▶ publish requeue
 *   revoke      wanted turn      ─▶ revoke
 *   revoke      wanted due       ─▶ revoke
 *   revoke      wanted answer    ─▶ check complete fail release dead_letter
 *   revoke      wanted leave     ─▶ publish dead_letter requeue
 *   revoke      sent   row       ─▶ claim forward revoke ack
 *   revoke      sent   leave     ─▶ publish requeue
 *   release     wanted turn      ─▶ release
 *   release     wanted due       ─▶ release
 *   release     wanted leave     ─▶ publish dead_letter requeue
 *   release     wanted lost      ─▶ release
 *   release     sent   row       ─▶ claim publish release dead_letter ack requeue
 *   release     sent   leave     ─▶ publish requeue
 *   dead_letter wanted turn      ─▶ release dead_letter
 *   dead_letter wanted due       ─▶ dead_letter
 *   dead_letter wanted leave     ─▶ release publish dead_letter reject requeue
 *   dead_letter wanted command   ─▶ dead_letter
 *   dead_letter wanted breaker   ─▶ release dead_letter
 *   dead_letter wanted lost      ─▶ dead_letter
 *   dead_letter sent   row       ─▶ claim dead_letter ack reject
 *   dead_letter sent   leave     ─▶ requeue
 *   ack         wanted turn      ─▶ end
 *   ack         wanted due       ─▶ ack
 *   ack         wanted leave     ─▶ ack
 *   ack         wanted command   ─▶ ack
 *   reject      wanted turn      ─▶ end
 *   reject      wanted due       ─▶ reject
 *   reject      wanted leave     ─▶ reject
 *   requeue     wanted turn      ─▶ end
 *   requeue     wanted due       ─▶ requeue publish
 *   requeue     wanted leave     ─▶ publish requeue
 */
#include "core/life.h"

#include "core/batches.h"
#include "core/notes.h"
#include "core/order.h"
#include "core/pauses.h"
#include "core/rows.h"
#include "core/runs.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/core/backoff.h"
#include "onceward/core/message.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_LAST_MS = 300000
}; /* between two tries of an item that the database refuses while it accepts others */

/* --- the table --- */

#define TO(op) (1u << OP_##op)

/* clang-format off */
static const unsigned allowed[N_OPERATIONS][PHASE_SENT + 1][N_FACTS] = {
    [OP_NONE][PHASE_WANTED][FACT_DELIVERED] = TO(CLAIM) | TO(DEAD_LETTER) | TO(REJECT) | TO(REQUEUE),
    [OP_CLAIM][PHASE_WANTED][FACT_TURN] = TO(CLAIM) | TO(LOOK) | TO(RENEW),
    [OP_CLAIM][PHASE_WANTED][FACT_DUE] = TO(CLAIM) | TO(DEAD_LETTER),
    [OP_CLAIM][PHASE_WANTED][FACT_LEAVE] = TO(RELEASE) | TO(PUBLISH) | TO(DEAD_LETTER) | TO(REJECT) | TO(REQUEUE),
    [OP_CLAIM][PHASE_WANTED][FACT_COMMAND] = TO(CLAIM) | TO(DEAD_LETTER),
    [OP_CLAIM][PHASE_WANTED][FACT_BREAKER] = TO(CLAIM),
    [OP_CLAIM][PHASE_WANTED][FACT_LOST] = TO(CLAIM),
    [OP_CLAIM][PHASE_WANTED][FACT_KEY] = TO(CLAIM) | TO(DEAD_LETTER),
    [OP_CLAIM][PHASE_WANTED][FACT_LEADER] = TO(CLAIM) | TO(ACK),
    [OP_CLAIM][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(LOOK) | TO(RENEW) | TO(PUBLISH) | TO(FORWARD) | TO(RELEASE) | TO(DEAD_LETTER) | TO(ACK) | TO(REJECT),
    [OP_CLAIM][PHASE_SENT][FACT_LEAVE] = TO(RELEASE) | TO(PUBLISH) | TO(REQUEUE),
    [OP_LOOK][PHASE_WANTED][FACT_TURN] = TO(LOOK),
    [OP_LOOK][PHASE_WANTED][FACT_DUE] = TO(LOOK),
    [OP_LOOK][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_LOOK][PHASE_WANTED][FACT_COMMAND] = TO(CLAIM),
    [OP_LOOK][PHASE_WANTED][FACT_LOST] = TO(LOOK),
    [OP_LOOK][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(LOOK) | TO(PUBLISH) | TO(DEAD_LETTER) | TO(ACK),
    [OP_LOOK][PHASE_SENT][FACT_LEAVE] = TO(PUBLISH) | TO(REQUEUE),
    [OP_RENEW][PHASE_WANTED][FACT_TURN] = TO(RENEW),
    [OP_RENEW][PHASE_WANTED][FACT_DUE] = TO(RENEW),
    [OP_RENEW][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_RENEW][PHASE_WANTED][FACT_COMMAND] = TO(CLAIM),
    [OP_RENEW][PHASE_WANTED][FACT_LOST] = TO(RENEW),
    [OP_RENEW][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(RENEW) | TO(PUBLISH) | TO(DEAD_LETTER) | TO(ACK) | TO(REJECT),
    [OP_RENEW][PHASE_SENT][FACT_LEAVE] = TO(PUBLISH) | TO(REQUEUE),
    [OP_PUBLISH][PHASE_WANTED][FACT_TURN] = TO(PUBLISH),
    [OP_PUBLISH][PHASE_WANTED][FACT_DUE] = TO(PUBLISH),
    [OP_PUBLISH][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_PUBLISH][PHASE_WANTED][FACT_COMMAND] = TO(CLAIM) | TO(PUBLISH),
    [OP_PUBLISH][PHASE_WANTED][FACT_LOST] = TO(PUBLISH),
    [OP_PUBLISH][PHASE_SENT][FACT_PUBLISHED] = TO(CLAIM) | TO(PUBLISH) | TO(DEAD_LETTER) | TO(ACK),
    [OP_PUBLISH][PHASE_SENT][FACT_LEAVE] = TO(REQUEUE),
    [OP_FORWARD][PHASE_WANTED][FACT_TURN] = TO(CLAIM) | TO(FORWARD) | TO(RELEASE),
    [OP_FORWARD][PHASE_WANTED][FACT_LEAVE] = TO(REQUEUE),
    [OP_FORWARD][PHASE_WANTED][FACT_LOST] = TO(CLAIM),
    [OP_FORWARD][PHASE_SENT][FACT_ANSWER] = TO(CHECK) | TO(COMPLETE) | TO(FAIL) | TO(RELEASE) | TO(DEAD_LETTER),
    [OP_FORWARD][PHASE_SENT][FACT_WINDOW] = TO(REVOKE),
    [OP_FORWARD][PHASE_SENT][FACT_LEAVE] = TO(RELEASE) | TO(REQUEUE),
    [OP_CHECK][PHASE_WANTED][FACT_TURN] = TO(CHECK),
    [OP_CHECK][PHASE_WANTED][FACT_DUE] = TO(CHECK),
    [OP_CHECK][PHASE_WANTED][FACT_LEAVE] = TO(RELEASE) | TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_CHECK][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(CHECK) | TO(FAIL) | TO(RELEASE) | TO(DEAD_LETTER) | TO(ACK),
    [OP_CHECK][PHASE_SENT][FACT_LEAVE] = TO(RELEASE) | TO(PUBLISH) | TO(REQUEUE),
    [OP_COMPLETE][PHASE_WANTED][FACT_TURN] = TO(COMPLETE),
    [OP_COMPLETE][PHASE_WANTED][FACT_DUE] = TO(COMPLETE),
    [OP_COMPLETE][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_COMPLETE][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(COMPLETE) | TO(ACK),
    [OP_COMPLETE][PHASE_SENT][FACT_LEAVE] = TO(PUBLISH) | TO(REQUEUE),
    [OP_FAIL][PHASE_WANTED][FACT_TURN] = TO(FAIL),
    [OP_FAIL][PHASE_WANTED][FACT_DUE] = TO(FAIL),
    [OP_FAIL][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_FAIL][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(CHECK) | TO(FAIL) | TO(ACK),
    [OP_FAIL][PHASE_SENT][FACT_LEAVE] = TO(PUBLISH) | TO(REQUEUE),
    [OP_REVOKE][PHASE_WANTED][FACT_TURN] = TO(REVOKE),
    [OP_REVOKE][PHASE_WANTED][FACT_DUE] = TO(REVOKE),
    [OP_REVOKE][PHASE_WANTED][FACT_ANSWER] = TO(CHECK) | TO(COMPLETE) | TO(FAIL) | TO(RELEASE) | TO(DEAD_LETTER),
    [OP_REVOKE][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_REVOKE][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(FORWARD) | TO(REVOKE) | TO(ACK),
    [OP_REVOKE][PHASE_SENT][FACT_LEAVE] = TO(PUBLISH) | TO(REQUEUE),
    [OP_RELEASE][PHASE_WANTED][FACT_TURN] = TO(RELEASE),
    [OP_RELEASE][PHASE_WANTED][FACT_DUE] = TO(RELEASE),
    [OP_RELEASE][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(DEAD_LETTER) | TO(REQUEUE),
    [OP_RELEASE][PHASE_WANTED][FACT_LOST] = TO(RELEASE),
    [OP_RELEASE][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(PUBLISH) | TO(RELEASE) | TO(DEAD_LETTER) | TO(ACK) | TO(REQUEUE),
    [OP_RELEASE][PHASE_SENT][FACT_LEAVE] = TO(PUBLISH) | TO(REQUEUE),
    [OP_DEAD_LETTER][PHASE_WANTED][FACT_TURN] = TO(RELEASE) | TO(DEAD_LETTER),
    [OP_DEAD_LETTER][PHASE_WANTED][FACT_DUE] = TO(DEAD_LETTER),
    [OP_DEAD_LETTER][PHASE_WANTED][FACT_LEAVE] = TO(RELEASE) | TO(PUBLISH) | TO(DEAD_LETTER) | TO(REJECT) | TO(REQUEUE),
    [OP_DEAD_LETTER][PHASE_WANTED][FACT_COMMAND] = TO(DEAD_LETTER),
    [OP_DEAD_LETTER][PHASE_WANTED][FACT_BREAKER] = TO(RELEASE) | TO(DEAD_LETTER),
    [OP_DEAD_LETTER][PHASE_WANTED][FACT_LOST] = TO(DEAD_LETTER),
    [OP_DEAD_LETTER][PHASE_SENT][FACT_ROW] = TO(CLAIM) | TO(DEAD_LETTER) | TO(ACK) | TO(REJECT),
    [OP_DEAD_LETTER][PHASE_SENT][FACT_LEAVE] = TO(REQUEUE),
    [OP_ACK][PHASE_WANTED][FACT_TURN] = LIFE_END,
    [OP_ACK][PHASE_WANTED][FACT_DUE] = TO(ACK),
    [OP_ACK][PHASE_WANTED][FACT_LEAVE] = TO(ACK),
    [OP_ACK][PHASE_WANTED][FACT_COMMAND] = TO(ACK),
    [OP_REJECT][PHASE_WANTED][FACT_TURN] = LIFE_END,
    [OP_REJECT][PHASE_WANTED][FACT_DUE] = TO(REJECT),
    [OP_REJECT][PHASE_WANTED][FACT_LEAVE] = TO(REJECT),
    [OP_REQUEUE][PHASE_WANTED][FACT_TURN] = LIFE_END,
    [OP_REQUEUE][PHASE_WANTED][FACT_DUE] = TO(REQUEUE) | TO(PUBLISH),
    [OP_REQUEUE][PHASE_WANTED][FACT_LEAVE] = TO(PUBLISH) | TO(REQUEUE),
};
/* clang-format on */

unsigned life_allows(enum operation op, enum phase phase, enum fact fact)
{
    assert(op < N_OPERATIONS && phase <= PHASE_SENT && fact < N_FACTS);
    return allowed[op][phase][fact];
}

const char *life_fact_name(enum fact fact)
{
    static const char *const names[N_FACTS] = {
        [FACT_DELIVERED] = "delivered",
        [FACT_TURN] = "turn",
        [FACT_ROW] = "row",
        [FACT_ANSWER] = "answer",
        [FACT_WINDOW] = "window",
        [FACT_PUBLISHED] = "published",
        [FACT_DUE] = "due",
        [FACT_LEAVE] = "leave",
        [FACT_COMMAND] = "command",
        [FACT_BREAKER] = "breaker",
        [FACT_LOST] = "lost",
        [FACT_KEY] = "key",
        [FACT_LEADER] = "leader",
    };

    return names[fact];
}

/* --- carrying a step out --- */

/* Queues a consequence for another delivery, for the next round. */
static void life_follows(struct queue *q, struct delivery *d, enum operation op)
{
    struct queue_consequences *c = &q->consequences;

    assert(op == OP_ACK || op == OP_CLAIM);
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 16;
        c->items = mem_realloc(c->items, c->cap * sizeof(*c->items));
    }
    c->items[c->n++] = (struct consequence){.d = d, .op = op};
}

/* Is a dead letter left to the redelivered copy when the channel is gone? Yes while it waits for the circuit
 * breaker, or without a row, since the copy would get a second one. Not near the delivery limit, where this
 * may be the last copy, nor with a row, which keeps the letter single. */
static bool letter_is_left_to_copy(const struct queue *q, const struct delivery *d, enum operation op,
                                   enum wait_reason wait)
{
    if (wait == WAIT_BRAKE)
        return true;
    return op == OP_DEAD_LETTER && delivery_is_rowless(d) &&
           !returns_is_near(&q->returns, d->arrival->copy.delivery_count);
}

/* A delivery whose channel is gone ends, since the broker delivers it again. A claim of ours is released
 * first: the next owner then neither waits for its end nor is charged for it. */
static struct step life_without_channel(const struct queue *q, struct delivery *d, struct step s)
{
    bool leaves = s.effects & EFFECT_LEAVE_REQUEST;
    bool accepted = s.effects & EFFECT_ACCEPT ? s.accepted_until_ms : delivery_is_accepted(d) && !leaves;
    bool has_token = delivery_has_token(d) && !(s.effects & EFFECT_DROP_TOKEN);

    if ((s.kind != STEP_WANT && s.kind != STEP_WAIT) || !held_tag_is_lost(q, d))
        return s;
    if ((delivery_is_in_flight(d) && !leaves) || accepted)
        return s;
    bool idle = operation_infos[s.op].idle;
    if (operation_infos[s.op].link == LINK_BROKER ||
        ((idle || letter_is_left_to_copy(q, d, s.op, s.kind == STEP_WAIT ? s.wait : WAIT_NONE)) &&
         !has_token))
        return step_with(step_end(), s.effects);
    if (!idle)
        return s;
    error_text_set(d, "released before it was sent", NULL);
    return step_with(life_release_to_requeue(d, 0), s.effects);
}

static bool life_is_allowed(const struct queue *q, const struct delivery *d, enum fact fact,
                            const struct step *s)
{
    unsigned to = s->kind == STEP_END ? (unsigned)LIFE_END : 1u << s->op;
    unsigned more = held_tag_is_lost(q, d) ? LIFE_END | TO(RELEASE) : 0;

    /* No delivery of an ordered queue is returned alone: see order.c. */
    if (q->rules.ordered && to & (TO(REQUEUE) | TO(PUBLISH)))
        return false;
    return (allowed[d->op][d->phase][fact] | more) & to;
}

/* Step in place of one that the table does not allow: the delivery is requeued, or ends without its channel.
 * On an ordered queue all deliveries return with their channel. */
static struct step life_bug(struct queue *q, int64_t now_ms, struct delivery *d, enum fact fact,
                            struct step s)
{
#ifdef ONCEWARD_FAILPOINTS /* builds for tests; in the simulator the event breaks a promise */
    assert(!"the table of life.c does not allow this step");
#endif
    struct note *n = notes_tell(q, EVENT_BUG, d);

    note_text(n, "%s %s, %s: %s", operation_infos[d->op].name, d->phase == PHASE_SENT ? "sent" : "wanted",
              life_fact_name(fact), s.kind == STEP_END ? "end" : operation_infos[s.op].name);
    if (q->rules.ordered) {
        held_begin_claim(d); /* the end of its predecessor will claim it */
        order_stop(q, now_ms, "a step that the table of steps does not allow");
    }
    return step_with(q->rules.ordered ? step_wait(OP_CLAIM, WAIT_ORDER, INT64_MAX) : step_want(OP_REQUEUE),
                     EFFECT_LEAVE_REQUEST | EFFECT_DROP_TOKEN | EFFECT_RELEASE_FOLLOWERS);
}

static void life_effects(struct queue *q, int64_t now_ms, struct delivery *d, const struct step *s)
{
    struct delivery *f;

    if (s->effects & EFFECT_LEAVE_REQUEST) {
        held_leave_request(q, now_ms, d);
        held_accept(q, now_ms, d, 0);
    }
    if (s->effects & EFFECT_ACCEPT)
        held_accept(q, now_ms, d, s->accepted_until_ms);
    if (s->effects & EFFECT_DROP_TOKEN)
        delivery_drop_token(d);
    while (s->effects & EFFECT_ACK_FOLLOWERS && d->leader == d && (f = held_first_follower(d)))
        life_follows(q, f, OP_ACK);
    if (s->effects & EFFECT_RELEASE_FOLLOWERS && (f = held_step_down(q, d)))
        life_follows(q, f, OP_CLAIM);
}

/* Is the row completed or dead, with only the ack or reject left? */
static bool ends_its_turn(const struct step *s)
{
    if (s->kind != STEP_WANT && s->kind != STEP_WAIT)
        return false;
    return operation_infos[s->op].link == LINK_BROKER;
}

/* Must the delivery have a claim by now? The operation of a copy that waits for others of its id, or of an ordered
 * delivery without its body, has not begun. */
static bool needs_claim(const struct delivery *d)
{
    enum operation_link link = operation_infos[d->op].link;
    bool begins = d->wait != WAIT_FOLLOWING && d->wait != WAIT_SURPLUS && d->wait != WAIT_ORDER;

    return d->leader == d || (begins && (link == LINK_DATABASE || link == LINK_APPLICATION));
}

/* Partitions that share a circuit breaker use the same refs; the queue's number tells them apart. */
static uint64_t delivery_hash(const struct queue *q, const struct delivery *d)
{
    return hash_number(q->number << 40 | (d->ref & 0xffffffffff));
}

/* Carries one step out. Only here do operation, phase and wait of a delivery change, and only here does it
 * end. */
static void life_apply(struct queue *q, int64_t now_ms, struct delivery *d, enum fact fact, struct step s)
{
    struct delivery *next;

    assert(!delivery_has_ended(d) && s.op < N_OPERATIONS && fact < N_FACTS);
    if (s.kind == STEP_STAY)
        return;
    assert(s.kind == STEP_END || outcome_kind_of(s.op) == OUTCOME_NONE ||
           outcome_kind_of(s.op) == d->outcome.kind);
    if (!life_is_allowed(q, d, fact, &s))
        s = life_without_channel(q, d, life_bug(q, now_ms, d, fact, s));
    /* A trial is claimed from its wait for the circuit breaker. */
    assert(s.kind != STEP_SENT || s.effects & EFFECT_EXTEND ||
           (d->phase == PHASE_WANTED && (d->wait == WAIT_NONE || d->wait == WAIT_BRAKE)));
    assert(!(s.effects & EFFECT_ACCEPT) || s.accepted_until_ms > 0);
    life_effects(q, now_ms, d, &s);
    if (d->place.line && ends_its_turn(&s) && (next = order_ended(q, d)))
        life_follows(q, next, OP_CLAIM);
    switch (s.kind) {
    case STEP_STAY:
        break;
    case STEP_WANT:
        d->ready_ms = now_ms;
        held_move(q, now_ms, d, s.op, PHASE_WANTED, WAIT_NONE);
        break;
    case STEP_WAIT:
        held_move(q, now_ms, d, s.op, PHASE_WANTED, s.wait);
        timers_set(&q->held.timers, &d->timer, s.until_ms);
        break;
    case STEP_SENT:
        held_move(q, now_ms, d, s.op, PHASE_SENT, WAIT_NONE);
        if (s.effects & EFFECT_EXTEND)
            request_is_extended(q, d);
        break;
    case STEP_END: {
        struct delivery *heir;

        if (!d->arrival->id_len)
            brake_ended(&q->share->brake, delivery_hash(q, d));
        held_end(q, now_ms, d);
        if ((heir = held_step_down(q, d)))
            life_follows(q, heir, OP_CLAIM);
        break;
    }
    }
    assert(s.kind == STEP_END || d->claim || !needs_claim(d));
}

/* Ordered queue: the leader of an id is claimed after the earlier messages of its key, or together with them: see
 * runs.h. */
static struct step life_in_order(const struct delivery *d, enum fact fact, struct step s)
{
    bool claims = s.op == OP_CLAIM && (s.kind == STEP_WANT || (s.kind == STEP_WAIT && s.wait == WAIT_BRAKE));

    if (!claims || fact == FACT_KEY || d->leader != d || !order_waits(d))
        return s;
    return step_with(step_wait(OP_CLAIM, WAIT_ORDER, INT64_MAX), s.effects);
}

static void life_take(struct queue *q, int64_t now_ms, struct delivery *d, enum fact fact, struct step s)
{
    if (q->rules.ordered)
        s = life_in_order(d, fact, s);
    life_apply(q, now_ms, d, fact, life_without_channel(q, d, s));
}

/* --- the circuit breaker, and operators --- */

/* Finds the message in the list of ids that are given up. NULL: not there. */
static char *find_given_up(const struct queue *q, const struct delivery *d)
{
    for (size_t at = 0; at < q->commands.ids_len; at += strlen(q->commands.ids + at) + 1)
        if (d->arrival->id_len && slice_equal(delivery_slice(d), slice_of(q->commands.ids + at)))
            return q->commands.ids + at;
    return NULL;
}

bool life_is_given_up(const struct queue *q, const struct delivery *d)
{
    return find_given_up(q, d) != NULL;
}

void life_given_up_is_dead(struct queue *q, const struct delivery *d)
{
    char *id = find_given_up(q, d);

    if (!id)
        return;
    size_t len = strlen(id) + 1, behind = q->commands.ids_len - (size_t)(id - q->commands.ids) - len;

    memmove(id, id + len, behind);
    q->commands.ids_len -= len;
}

/* Identity of a message for the circuit breaker. Without an id, a message that a dead-letter exchange
 * redelivers is recognised by its body. */
static uint64_t brake_id(const struct queue *q, const struct delivery *d)
{
    const struct arrival *a = d->arrival;

    if (a->id_len)
        return hash_bytes(a->id, a->id_len);
    return a->copy.n_rejected ? hash_bytes(a->fingerprint, sizeof(a->fingerprint)) : delivery_hash(q, d);
}

static void pause_for_brake(struct queue *q, int64_t now_ms)
{
    enum pause_reason why = q->share->brake.no_ids ? PAUSE_NO_MESSAGE_IDS : PAUSE_EVERYTHING_FAILS;
    char text[sizeof(q->pauses[why].text)];

    brake_tell(&q->share->brake, text, sizeof(text));
    pause_begin(q, now_ms, why, text);
    if (!q->share->brake.no_ids && pause_is_on(q, PAUSE_NO_MESSAGE_IDS))
        pause_end(q, now_ms, PAUSE_NO_MESSAGE_IDS);
}

static bool count_failure(struct queue *q, int64_t now_ms, const struct brake_failure *f)
{
    bool set = brake_failed(&q->share->brake, now_ms, f);

    if (q->share->brake.on)
        pause_for_brake(q, now_ms);
    q->consequences.breaker_set |= set;
    return q->share->brake.on;
}

/* A failure beside members that succeeded says nothing about the application. A request that failed as a
 * whole was counted once already. */
static bool says_nothing_about_others(const struct delivery *d)
{
    const struct request *r = d->request;

    return batches_in_company(d) && (r->some_succeeded || r->some_completed || r->failed);
}

/* Counts a failure of a message. Returns whether the circuit breaker is on. */
static bool count_message_failure(struct queue *q, int64_t now_ms, const struct delivery *d, bool no_id)
{
    struct brake_failure f = {
        .id = brake_id(q, d), .no_id = no_id, .text = d->outcome.error ? d->outcome.error : ""};

    if (says_nothing_about_others(d))
        return q->share->brake.on;
    if (!d->arrival->id_len && !d->arrival->copy.n_rejected) {
        f.content = hash_bytes(d->arrival->fingerprint, sizeof(d->arrival->fingerprint));
        f.again = delivery_is_redelivered(d);
    }
    return count_failure(q, now_ms, &f);
}

void life_request_failed(struct queue *q, int64_t now_ms, const struct delivery *member, const char *text)
{
    struct brake_failure f = {.text = text, .id = brake_id(q, member), .weight = batches_failure_weight(q)};

    assert(member->request && f.weight >= 0);
    if (member->request->failed)
        return;
    member->request->failed = true;
    if (batches_failure_is_new(q, member->request))
        count_failure(q, now_ms, &f);
}

void life_everything_fails(struct queue *q, int64_t now_ms, enum pause_reason why, const char *text)
{
    q->consequences.breaker_set |= brake_force(&q->share->brake, now_ms, text);
    pause_begin(q, now_ms, why, text);
}

/* --- steps that several facts lead to --- */

bool life_must_stay(const struct queue *q, const struct delivery *d)
{
    return returns_leave_none(&q->returns) || held_is_near(q, d);
}

struct step life_claim(const struct queue *q, const struct delivery *d)
{
    if (q->share->brake.on && delivery_was_tried(d) && !held_is_near(q, d) && !d->given_up)
        return step_wait(OP_CLAIM, WAIT_BRAKE, INT64_MAX);
    return step_want(OP_CLAIM);
}

struct step life_release(struct delivery *d, int64_t delay_ms, struct row_changes changes)
{
    assert(changes.crashes >= -1);
    assert(delay_ms >= -TAKEOVER_GRACE_MS); /* negative: that long after the end of the window */
    if (changes.crashes >= 0)
        d->claim->crashes = changes.crashes;
    held_outcome(d, OUTCOME_RELEASE);
    d->outcome.release = (struct outcome_release){.delay_ms = delay_ms, .changes = changes};
    return step_with(step_want(OP_RELEASE), EFFECT_LEAVE_REQUEST);
}

struct step life_release_to_requeue(struct delivery *d, int64_t delay_ms)
{
    struct step s = life_release(d, delay_ms, row_as_it_is());

    d->outcome.release.then_requeue = true;
    return s;
}

static void fail_set(struct delivery *d, struct outcome_fail f)
{
    held_outcome(d, OUTCOME_FAIL);
    d->outcome.fail = f;
}

void life_fail_charged(struct delivery *d, bool charged)
{
    assert(d->outcome.kind == OUTCOME_FAIL);
    d->outcome.fail.charged = charged;
}

struct step life_renew(struct delivery *d)
{
    assert(d->arrival->message && d->arrival->id_len);
    d->n_waits = 0;
    return step_with(step_want(OP_PUBLISH), EFFECT_LEAVE_REQUEST |
                                                EFFECT_DROP_TOKEN | /* the claim's window ends by itself */
                                                (d->leader != d ? (unsigned)EFFECT_RELEASE_FOLLOWERS : 0));
}

/* Must a copy replace the return, since the broker would count it and the limit is near? */
static bool is_renewed_instead(const struct queue *q, const struct delivery *d)
{
    return life_must_stay(q, d) && held_can_renew(q, d) && returns_are_counted(&q->returns) &&
           q->drain < DRAIN_LEAVING;
}

struct step life_requeue(const struct queue *q, struct delivery *d)
{
    if (is_renewed_instead(q, d))
        return life_renew(d);
    return step_with(step_want(OP_REQUEUE), EFFECT_LEAVE_REQUEST | EFFECT_RELEASE_FOLLOWERS);
}

struct step life_ack(void)
{
    return step_with(step_want(OP_ACK),
                     EFFECT_LEAVE_REQUEST | EFFECT_ACK_FOLLOWERS | EFFECT_RELEASE_FOLLOWERS);
}

struct step life_reject(void)
{
    return step_with(step_want(OP_REJECT), EFFECT_LEAVE_REQUEST | EFFECT_RELEASE_FOLLOWERS);
}

/* Grows with each round, as counted by the broker. Without a wait the message would circle thousands of times
 * a minute. */
static int64_t circle_wait_ms(struct queue *q, const struct delivery *d)
{
    enum { FIRST_MS = 2000, LAST_MS = 300000, CROWDED_MS = 1000 };
    int64_t most = q->rules.max_hold_ms < LAST_MS ? q->rules.max_hold_ms : LAST_MS;
    int64_t n_rejected = d->arrival->copy.n_rejected;
    int64_t round = n_rejected > q->rules.revive ? n_rejected - q->rules.revive : 1;

    if (queue_n_parked(q) >= (size_t)q->rules.max_parked / 2 && most > CROWDED_MS)
        most = CROWDED_MS;
    return backoff_ms(FIRST_MS, most, round < 32 ? (int)round : 32, held_random(q));
}

/* A dead message that the queue's own dead-letter exchange redelivers waits once before it is rejected again.
 * Other copies of its id do not wait for it. If it has no dead letter yet, it waits only while it is not near the
 * delivery limit. STEP_STAY: not such a message. */
static struct step life_circle(struct queue *q, int64_t now_ms, struct delivery *d, enum operation then)
{
    static const char why[] = "the queue's dead-letter exchange leads back to it";

    assert(then == OP_REJECT || then == OP_DEAD_LETTER);
    if (!d->arrival->copy.n_rejected || d->has_circled || q->drain ||
        (d->row_end != ROW_END_DEAD && held_is_near(q, d)))
        return step_stay();
    int64_t wait = circle_wait_ms(q, d);
    bool again = d->row_end == ROW_END_DEAD && d->arrival->message;
    struct note *n = notes_tell_limited(q, now_ms, again ? EVENT_DEAD_AGAIN : EVENT_PARKED, d);

    if (n) {
        n->ms = wait;
        n->reason = why;
    }
    if (again)
        note_text(n, "rejected here %lld times: %s", (long long)d->arrival->copy.n_rejected, why);
    if (then == OP_REJECT)
        held_drop_body(q, d);
    d->has_circled = true;
    return step_with(step_wait(then, WAIT_CIRCLING, now_ms + wait),
                     EFFECT_DROP_TOKEN |
                         EFFECT_RELEASE_FOLLOWERS); /* the row, if there is one, belongs to another message */
}

struct step life_reject_again(struct queue *q, int64_t now_ms, struct delivery *d)
{
    d->row_end = ROW_END_DEAD;
    struct step s = life_circle(q, now_ms, d, OP_REJECT);

    if (s.kind != STEP_STAY)
        return s;
    notes_tell_limited(q, now_ms, EVENT_DEAD_AGAIN, d);
    return life_reject();
}

/* A delivery without a row drops its token. `unsure` survives from an earlier try, which may have written a
 * letter. */
static void letter_set(struct delivery *d, enum dead_reason why, enum letter_row row)
{
    held_begin_claim(d);
    if (d->outcome.kind != OUTCOME_DEAD_LETTER)
        held_outcome(d, OUTCOME_DEAD_LETTER);
    d->outcome.dead_letter.reason = why;
    d->outcome.dead_letter.row = row;
    if (row == LETTER_ROWLESS)
        delivery_drop_token(d);
}

struct step life_dead_letter(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why,
                             enum letter_row row)
{
    bool rowless = row == LETTER_ROWLESS;
    struct step s;

    assert(why != DEAD_NONE && d->arrival->message);
    letter_set(d, why, row);
    if (rowless && (s = life_circle(q, now_ms, d, OP_DEAD_LETTER)).kind != STEP_STAY)
        return step_with(s, EFFECT_LEAVE_REQUEST);
    return step_with(step_want(OP_DEAD_LETTER), EFFECT_LEAVE_REQUEST);
}

bool queue_letter_holds(const struct queue *q, const struct delivery *d)
{
    return q->rules.holds_dead && d->arrival->has_key && !delivery_is_rowless(d) && !d->given_up;
}

bool queue_letter_is_new(const struct delivery *d)
{
    return d->op == OP_DEAD_LETTER && delivery_is_rowless(d) && !d->outcome.dead_letter.unsure;
}

bool queue_letter_is_looked_for(const struct delivery *d)
{
    return delivery_dead_letter(d)->unsure;
}

struct step life_give_up(struct queue *q, int64_t now_ms, struct delivery *d, enum letter_row row)
{
    const char *by = q->commands.give_up_by;
    char text[sizeof(q->commands.give_up_by) + 32];

    assert(d->given_up);
    snprintf(text, sizeof(text), "given up by %s", *by ? by : "an operator");
    if (!d->outcome.error)
        error_text_set(d, text, NULL);
    return life_dead_letter(q, now_ms, d, DEAD_OPERATOR, row);
}

/* A failure that is the message's own, as far as can be known: charged; or released if everything fails, or
 * the database's connection broke meanwhile. death: the reason if the message dies of it, or DEAD_NONE.
 * only_expired: only if the token was not extended. */
static struct step life_charge(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason death,
                               struct row_changes changes, bool only_expired)
{
    bool spared = request_is_tainted(q, d) || count_message_failure(q, now_ms, d, false);

    assert(d->op == OP_FORWARD || d->op == OP_REVOKE || d->op == OP_CHECK);
    if (changes.crashes >= 0)
        d->claim->crashes = changes.crashes;
    int64_t delay_ms = held_delay_ms(q, d, spared ? ++d->claim->n_given_back : d->claim->attempt);

    if (!spared && death != DEAD_NONE) {
        struct step s = life_dead_letter(q, now_ms, d, death, LETTER_CLAIMED);

        d->outcome.dead_letter.charged = true;
        return s;
    }
    if (!spared || only_expired) { /* the token may have been extended since */
        fail_set(d, (struct outcome_fail){.delay_ms = delay_ms,
                                          .changes = changes,
                                          .charged = !spared,
                                          .only_expired = only_expired});
        return step_with(step_want(OP_FAIL), EFFECT_LEAVE_REQUEST);
    }
    changes.unproven_step = -1; /* not charged */
    return life_release(d, delay_ms, changes);
}

/* In `response` the application may still work on a message without an answer, and nothing fences it. So the
 * next message of its key waits for one more window. */
static bool life_key_waits(const struct queue *q, const struct delivery *d)
{
    return q->rules.ordered && !q->rules.transaction && d->arrival->has_key &&
           d->outcome.request == REQUEST_UNANSWERED;
}

/* Ends a failed attempt: charged, and dead-lettered if it was the last. */
static struct step life_fail(struct queue *q, int64_t now_ms, struct delivery *d, struct row_changes changes,
                             bool only_expired)
{
    /* The database's clock decides whether a token that may be extended is over. The next claim then finds
     * the attempts used up. */
    bool last = d->claim->attempt >= q->rules.max_attempts && !only_expired;

    return life_charge(q, now_ms, d, last && !life_key_waits(q, d) ? DEAD_ATTEMPTS : DEAD_NONE, changes,
                       only_expired);
}

struct step life_die(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why,
                     enum letter_row row, const char *text)
{
    bool no_id = why == DEAD_NO_MESSAGE_ID || why == DEAD_INVALID_MESSAGE_ID;

    assert(d->arrival->message && why != DEAD_NONE);
    if (text)
        error_text_set(d, text, NULL);
    letter_set(d, why, row);
    if ((held_is_near(q, d) && !held_can_renew(q, d)) || d->given_up)
        return life_dead_letter(q, now_ms, d, why, row);
    if (!count_message_failure(q, now_ms, d, no_id)) {
        d->outcome.dead_letter.charged = true;
        return life_dead_letter(q, now_ms, d, why, row);
    }
    if (delivery_has_token(d))
        return life_release(d, held_delay_ms(q, d, ++d->claim->n_given_back), row_as_it_is());
    return step_wait(OP_DEAD_LETTER, WAIT_BRAKE, INT64_MAX);
}

/* Counts a success for the circuit breaker. */
static void life_success(struct queue *q, const struct delivery *d)
{
    const struct request *r = d->request;

    if (!q->share->brake.n && !q->share->brake.on) /* no failure that it could end */
        return;
    /* A request that was sent before everything failed says nothing about the present. */
    if ((r && r->is_bad) ||
        (q->share->brake.on && (!r || !r->probation || r->sent_ms < q->share->brake.since_ms)))
        return;
    q->consequences.breaker_reset |= brake_succeeded(&q->share->brake);
}

/* --- the text of a dead letter --- */

void life_limit_words(const struct queue *q, const struct delivery *d, struct buf *ret)
{
    const char *why = d->not_renewed ? d->not_renewed : q->returns.no_renewal;

    buf_printf(ret, "delivered %lld time%s before; ", (long long)d->arrival->copy.delivery_count,
               d->arrival->copy.delivery_count == 1 ? "" : "s");
    returns_limit_words(&q->returns, ret);
    if (why)
        buf_printf(ret, "; not published to its queue again: %s", why);
    else if (d->op == OP_PUBLISH && d->outcome.error)
        buf_printf(ret, "; not published to its queue again: %.200s", d->outcome.error);
}

/* --- leaving --- */

struct step life_dead_letter_held(struct queue *q, int64_t now_ms, struct delivery *d)
{
    /* The application does not have the message, so its dead letter keeps its own reason. */
    if (d->op == OP_DEAD_LETTER && (d->wait == WAIT_BRAKE || delivery_is_rowless(d)))
        return life_dead_letter(q, now_ms, d, delivery_dead_letter(d)->reason, delivery_dead_letter(d)->row);
    bool elsewhere = d->op != OP_PUBLISH && d->op != OP_RENEW;
    struct buf text = {0};

    life_limit_words(q, d, &text);
    if (elsewhere)
        buf_add_text(&text,
                     "; its row is claimed elsewhere: check whether it was completed before you redrive it");
    error_text_set(d, buf_text(&text), NULL);
    buf_deinit(&text);
    delivery_drop_token(d); /* the claim's window ends by itself */
    return step_with(life_dead_letter(q, now_ms, d, DEAD_DELIVERY_LIMIT, LETTER_ROWLESS),
                     d->leader != d ? (unsigned)EFFECT_RELEASE_FOLLOWERS : 0);
}

/* Stores a message whole whose copy could not be published. A drain keeps trying to publish it. */
static struct step life_leave_renewed(struct queue *q, int64_t now_ms, struct delivery *d)
{
    enum { PUBLISH_MS = 30000 };
    bool failed = d->op == OP_PUBLISH && (d->wait != WAIT_NONE || now_ms - d->ready_ms >= PUBLISH_MS);

    if (d->op != OP_PUBLISH && d->wait != WAIT_RENEWAL)
        return life_renew(d);
    if (q->drain || !database_is_up(q->database) || (d->op == OP_PUBLISH && !failed))
        return step_stay();
    return life_dead_letter_held(q, now_ms, d);
}

struct step life_leave(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (d->row_end == ROW_END_DEAD) /* its dead letter is committed, and no delivery is counted */
        return life_reject();
    if (is_renewed_instead(q, d) && !delivery_has_token(d))
        return life_leave_renewed(q, now_ms, d);
    if (life_must_stay(q, d) && !held_can_renew(q, d) && returns_are_counted(&q->returns) &&
        q->drain < DRAIN_LEAVING) {
        if (!d->arrival->message || !database_is_up(q->database) || delivery_has_token(d))
            return step_stay(); /* cannot be stored now, or is claimed: then the claim decides */
        if (d->wait == WAIT_NONE && d->op == OP_CLAIM)
            return step_stay(); /* the next claim decides */
        return life_dead_letter_held(q, now_ms, d);
    }
    if (!delivery_has_token(d))
        return life_requeue(q, d);
    error_text_set(d, "released before it was sent", NULL);
    return life_release_to_requeue(d, 0);
}

/* --- rows: no result, or completed --- */

/* At most AGAIN_LAST_MS, and well below max_hold, so that an item refused for the last time before max_hold
 * is not held longer. */
static int64_t again_last_ms(const struct queue *q)
{
    return q->rules.max_hold_ms / 4 < AGAIN_LAST_MS ? q->rules.max_hold_ms / 4 : AGAIN_LAST_MS;
}

void row_refused(struct queue *q, int64_t now_ms, const struct delivery *d, const struct row *r)
{
    struct note *n = notes_tell_limited(q, now_ms, EVENT_DATABASE_ERROR, d);

    if (n) {
        n->reason = operation_infos[d->op].name;
        snprintf(n->code, sizeof(n->code), "%s", r->sqlstate);
    }
    note_text(n, "%.*s", (int)(r->detail.len < 400 ? r->detail.len : 400),
              r->detail.len ? r->detail.data : "");
}

struct step row_repeat(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    int64_t wait = 0;

    assert(r->answer == ROW_RETRY || r->answer == ROW_UNKNOWN);
    if (r->answer == ROW_RETRY) {
        char text[200];
        struct slice why = r->detail.len ? r->detail : SLICE("a statement was refused");

        row_refused(q, now_ms, d, r);
        snprintf(text, sizeof(text), "%.*s (%s)", (int)(why.len < 180 ? why.len : 180), why.data,
                 r->sqlstate);
        database_refused(q->database, now_ms, r->sqlstate, text, d->op == OP_DEAD_LETTER);
        wait = held_lock_wait_ms(d);
        /* An item that is refused while others are accepted is tried at growing intervals, up to
         * AGAIN_LAST_MS. */
        for (int i = 8; i < d->n_waits && wait < again_last_ms(q); i++)
            wait *= 2;
        if (wait > again_last_ms(q))
            wait = again_last_ms(q);
        /* Jitter: items that were refused in one statement do not come due together, so the item at fault is
         * soon alone. */
        wait -= (int64_t)(held_random(q) % (uint64_t)(wait / 2 + 1));
    }
    if (d->op == OP_DEAD_LETTER)
        d->outcome.dead_letter.unsure = true;
    return wait ? step_wait(d->op, WAIT_AGAIN, now_ms + wait) : step_want(d->op);
}

struct step row_again(int64_t now_ms, struct delivery *d)
{
    d->claim->of_row = CLAIM_NONE;
    return step_with(step_wait(OP_CLAIM, WAIT_AGAIN, now_ms + held_lock_wait_ms(d)), EFFECT_LEAVE_REQUEST);
}

struct step row_locked(int64_t now_ms, struct delivery *d)
{
    if (!d->claim->locked_since_ms)
        d->claim->locked_since_ms = now_ms;
    return step_wait(d->op, WAIT_LOCKED, now_ms + held_lock_wait_ms(d));
}

/* --- the row is completed --- */

static void row_answered_early(struct queue *q, int64_t now_ms, const struct delivery *d, bool completed)
{
    enum { EARLY_ANSWER_MS = 60000 };

    if (q->notes.early_answer_ms && now_ms - q->notes.early_answer_ms < EARLY_ANSWER_MS)
        return;
    q->notes.early_answer_ms = now_ms ? now_ms : 1;
    notes_tell(q, EVENT_ANSWERED_BEFORE_COMMIT, d)->flag = completed;
}

struct step row_completed(struct queue *q, int64_t now_ms, struct delivery *d)
{
    bool failed = d->op == OP_FAIL || d->op == OP_RELEASE || d->op == OP_DEAD_LETTER || d->op == OP_REVOKE;

    assert(d->phase == PHASE_SENT && operation_infos[d->op].link == LINK_DATABASE);
    if (d->op == OP_CLAIM || d->op == OP_LOOK || d->op == OP_RENEW) {
        q->counts.duplicates.total++;
        notes_tell_limited(q, now_ms, EVENT_DUPLICATE, d);
        return life_ack();
    }
    /* A row that was never claimed here may belong to another body, as for the letter of a message that was
     * given up. */
    if (!delivery_owns_row(d))
        return row_again(now_ms, d);
    if (failed && d->outcome.http_status / 100 == 2)
        row_answered_early(q, now_ms, d, true);
    else if (failed && !delivery_fails_expired(d) &&
             (d->outcome.http_status || d->outcome.request == REQUEST_CRASHED)) {
        struct note *n = notes_tell_limited(q, now_ms, EVENT_ANSWER_CONTRADICTS_ROW, d);

        note_text(n, "%s", d->outcome.error ? d->outcome.error : "");
    }
    /* After the window another owner may have completed it, which says nothing about its neighbours here. */
    if (d->request && now_ms <= d->claim->window_ends_ms)
        d->request->some_completed = true;
    q->counts.completed.total++;
    notes_tell(q, EVENT_COMPLETED, d)->ms = now_ms - d->arrival->received_ms;
    life_success(q, d);
    return life_ack();
}
/* --- answered, and the row is read --- */

/* Ends the attempt of a member that is not charged. A token accepted with 202 may have been extended since,
 * so the database decides whether it is over. */
static struct step member_not_charged(struct queue *q, struct delivery *d, bool only_expired)
{
    assert(batches_in_company(d));
    if (!only_expired)
        return life_release(d, 0, row_as_it_is());
    fail_set(d, (struct outcome_fail){.delay_ms = held_delay_ms(q, d, d->claim->attempt),
                                      .changes = row_as_it_is(),
                                      .only_expired = true});
    return step_with(step_want(OP_FAIL), EFFECT_LEAVE_REQUEST);
}

/* No member is completed: the request has failed as a whole. */
static struct step whole_request_failed(struct queue *q, int64_t now_ms, struct delivery *d,
                                        bool only_expired)
{
    life_request_failed(q, now_ms, d, d->outcome.error ? d->outcome.error : "");
    batches_split(q, d);
    return member_not_charged(q, d, only_expired);
}

static struct step not_completed_yet(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    assert(d->op == OP_CHECK && d->request);
    bool accepted = delivery_is_accepted(d);
    int64_t until = accepted                           ? d->claim->accepted_until_ms
                    : d->outcome.kind == OUTCOME_CHECK ? d->outcome.commit_until_ms
                                                       : 0;
    bool crashed = q->application->n_crashes != d->request->application.n_crashes;
    char text[96];

    if (accepted && now_ms + r->wait_ms > until) /* extended */
        until = now_ms + r->wait_ms;
    if (now_ms < until) {
        int64_t wait = held_lock_wait_ms(d);
        struct step s = step_wait(OP_CHECK, WAIT_WATCHING, now_ms + wait < until ? now_ms + wait : until);

        s.accepted_until_ms = until;
        return accepted ? step_with(s, EFFECT_ACCEPT) : s;
    }
    d->outcome.request = accepted ? REQUEST_UNANSWERED : REQUEST_ANSWERED;
    if (accepted) {
        error_text_set(d, "accepted with 202, and not completed within the window", NULL);
    } else {
        snprintf(text, sizeof(text), "answered %d without completing the token", d->outcome.http_status);
        error_text_set(d, text, NULL);
        row_answered_early(q, now_ms, d, false);
    }
    if (crashed && !d->claim->alone) { /* by this message or a neighbour: quarantine will show */
        int64_t delay_ms = held_delay_ms(q, d, d->claim->attempt);

        if (!accepted)
            return life_release(d, delay_ms, row_with_crashes(d->claim->crashes + 1));
        fail_set(d, (struct outcome_fail){.delay_ms = delay_ms,
                                          .changes = row_with_crashes(d->claim->crashes + 1),
                                          .only_expired = true});
        return step_want(OP_FAIL);
    }
    if (batches_in_company(d) && !d->request->some_completed)
        return whole_request_failed(q, now_ms, d, accepted);
    if (runs_was_not_attempted(d)) {
        runs_forget_try(d);
        return member_not_charged(q, d, accepted);
    }
    return life_fail(q, now_ms, d, row_as_it_is(), accepted);
}

struct step row_of_check(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    switch (r->answer) {
    case ROW_COMPLETED:
        if (d->n_waits && !delivery_is_accepted(d))
            row_answered_early(q, now_ms, d, true);
        return row_completed(q, now_ms, d);
    case ROW_CLAIMED:
        return not_completed_yet(q, now_ms, d, r);
    case ROW_LOCKED:
        return row_locked(now_ms, d);
    default:
        return row_again(now_ms, d);
    }
}

/* --- rows: a write is answered --- */

struct step row_of_complete(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    assert(d->op == OP_COMPLETE && delivery_has_token(d));
    switch (r->answer) {
    case ROW_COMPLETED:
        return row_completed(q, now_ms, d);
    case ROW_LOCKED:
        return row_locked(now_ms, d);
    case ROW_INVALID: /* only the stored answer can be at fault: drop it, and complete the row */
        row_refused(q, now_ms, d, r);
        held_outcome(d, OUTCOME_COMPLETE);
        return step_wait(OP_COMPLETE, WAIT_AGAIN, now_ms + held_lock_wait_ms(d));
    default:
        return row_again(now_ms, d);
    }
}

static void tell_given_back(struct queue *q, int64_t now_ms, const struct delivery *d, int64_t delay_ms)
{
    struct note *n = notes_tell_limited(q, now_ms, EVENT_GIVEN_BACK, d);

    q->counts.given_back.total++;
    if (n)
        n->ms = delay_ms > 0 ? delay_ms : 0;
}

/* Logs the failure. Returns the wait before the next attempt. */
static int64_t tell_failed(struct queue *q, int64_t now_ms, const struct delivery *d, bool released)
{
    const struct outcome_fail *f = delivery_failure(d);
    struct note *n;

    if (f->only_expired)
        notes_tell_limited(q, now_ms, EVENT_TOKEN_EXPIRED, d);
    if (released) {
        tell_given_back(q, now_ms, d, f->delay_ms);
    } else if (d->claim->attempt >= q->rules.max_attempts) {
        if (!life_key_waits(q, d))
            return 0; /* no next attempt: the claim will find all of them used up */
    } else {
        q->counts.retried.total++;
        n = notes_tell_limited(q, now_ms, EVENT_RETRY, d);
        if (n)
            n->ms = f->delay_ms;
    }
    return f->delay_ms;
}

/* The row was failed or released: the next attempt waits until it is due. */
static struct step row_waits(int64_t now_ms, struct delivery *d, int64_t delay_ms)
{
    delivery_drop_token(d);
    d->claim->alone = false;
    mem_clear(&d->claim->kept);
    d->n_waits = 0;
    return step_with(step_wait(OP_CLAIM, WAIT_DUE, now_ms + (delay_ms > 0 ? delay_ms : 0)),
                     EFFECT_LEAVE_REQUEST);
}

/* The window of a member ended without an answer, and its row failed: one bad mark for the limiter per
 * request. */
static void request_unanswered(struct queue *q, int64_t now_ms, struct request *r)
{
    assert(r);
    if (r->unanswered)
        return;
    r->unanswered = true;
    batches_learn_hung(q, r);
    limiter_blame(&q->share->limiter, "no answer within token_window");
    limiter_bad(&q->share->limiter, now_ms, r->mark, LIMITER_WAIT_LAST_MS, -1, held_random(q));
}

/* Counts an unanswered request for the circuit breaker: its message if that was charged, else the whole
 * request. */
static void unanswered_counts(struct queue *q, int64_t now_ms, const struct delivery *d, bool charged)
{
    if (charged)
        count_message_failure(q, now_ms, d, false);
    else if (batches_in_company(d) && !request_is_tainted(q, d))
        life_request_failed(q, now_ms, d, d->outcome.error ? d->outcome.error : "");
}

/* After a 202 the row is read repeatedly, until until_ms. */
static struct step life_watch(int64_t now_ms, int64_t until_ms)
{
    assert(until_ms > 0);
    struct step s = step_wait(OP_CHECK, WAIT_WATCHING, now_ms + LOCK_LOOK_MS);

    s.accepted_until_ms = until_ms;
    return step_with(s, EFFECT_ACCEPT);
}

struct step row_of_fail(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    assert(d->op == OP_FAIL || d->op == OP_REVOKE);
    bool revoked = d->op == OP_REVOKE;
    int64_t delay_ms;

    switch (r->answer) {
    case ROW_FAILED:
    case ROW_RELEASED:
        delay_ms = tell_failed(q, now_ms, d, r->answer == ROW_RELEASED);
        if (revoked) { /* no answer within the window */
            request_unanswered(q, now_ms, d->request);
            unanswered_counts(q, now_ms, d, r->answer == ROW_FAILED);
        }
        return row_waits(now_ms, d, delay_ms);
    case ROW_COMPLETED:
        return row_completed(q, now_ms, d);
    case ROW_EXTENDED:
        d->claim->window_ends_ms = now_ms + r->wait_ms + LOCK_LOOK_MS;
        d->n_waits = d->claim->next_cap = 0; /* the request is in its window again */
        if (revoked && delivery_is_in_flight(d))
            return (struct step){.kind = STEP_SENT, .op = OP_FORWARD, .effects = EFFECT_EXTEND};
        if (revoked) /* answered meanwhile */
            return step_want(OP_REVOKE);
        return life_watch(now_ms, d->claim->window_ends_ms);
    case ROW_LOCKED:
        return row_locked(now_ms, d);
    case ROW_INVALID: /* the error text is invalid, not the failure */
        row_refused(q, now_ms, d, r);
        error_text_set(d, "failed, with an error text that the database refuses", NULL);
        return step_wait(d->op, WAIT_AGAIN, now_ms + HELD_LOOK_MS);
    default:
        return row_again(now_ms, d);
    }
}

static bool returns_alone(const struct queue *q)
{
    return !q->rules.ordered;
}

/* Returns a delivery whose claim has ended, unless the broker would drop it. */
static struct step row_leaves(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct step s;

    delivery_drop_token(d);
    s = life_leave(q, now_ms, d);
    return s.kind != STEP_STAY ? s : life_requeue(q, d);
}

struct step row_of_release(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    assert(d->op == OP_RELEASE && !d->in_request.next);
    switch (r->answer) {
    case ROW_RELEASED:
        tell_given_back(q, now_ms, d, delivery_release(d)->delay_ms);
        if ((delivery_release(d)->then_requeue || q->drain >= DRAIN_RELEASING) && returns_alone(q))
            return row_leaves(q, now_ms, d);
        return row_waits(now_ms, d, delivery_release(d)->delay_ms);
    case ROW_COMPLETED:
        return row_completed(q, now_ms, d);
    case ROW_LOCKED:
        return row_locked(now_ms, d);
    case ROW_INVALID:
        row_refused(q, now_ms, d, r);
        error_text_set(d, "released, with an error text that the database refuses", NULL);
        return step_wait(OP_RELEASE, WAIT_AGAIN, now_ms + HELD_LOOK_MS);
    default: /* the row belongs to another claim, so there is nothing to release */
        if (delivery_release(d)->then_requeue && returns_alone(q))
            return row_leaves(q, now_ms, d);
        return row_again(now_ms, d);
    }
}

struct step row_on_hold(struct queue *q, int64_t now_ms, struct delivery *d)
{
    assert(d->op == OP_CLAIM || d->op == OP_DEAD_LETTER);
    delivery_drop_token(d);
    d->n_waits = 0;
    d->claim->n_given_back = 0; /* an operator's retry begins again, with short waits */
    if (d->given_up)
        return life_give_up(q, now_ms, d, LETTER_UNCLAIMED);
    if (d->row_end != ROW_END_ON_HOLD)
        notes_tell(q, EVENT_ORDER_HELD, d);
    d->row_end = ROW_END_ON_HOLD;
    return step_with(step_wait(OP_CLAIM, WAIT_ON_HOLD, now_ms + ON_HOLD_LOOK_MS), EFFECT_LEAVE_REQUEST);
}

struct step row_of_dead_letter(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r)
{
    struct note *n;

    assert(d->op == OP_DEAD_LETTER && d->arrival->message && delivery_dead_letter(d)->reason != DEAD_NONE);
    switch (r->answer) {
    case ROW_DEAD_LETTERED:
        q->counts.dead.total++;
        n = notes_tell(q, EVENT_DEAD, d);
        n->reason = dead_reasons[delivery_dead_letter(d)->reason].name;
        n->n = r->letter;
        life_given_up_is_dead(q, d);
        return life_reject();
    case ROW_ON_HOLD:
        return row_on_hold(q, now_ms, d);
    case ROW_DEAD:
        return life_reject_again(q, now_ms, d);
    case ROW_COMPLETED:
        return row_completed(q, now_ms, d);
    case ROW_LOCKED:
        return row_locked(now_ms, d);
    case ROW_INVALID: /* not even the dead letter can be written: the delivery stays unacked */
        row_refused(q, now_ms, d, r);
        return step_wait(OP_DEAD_LETTER, WAIT_AGAIN, now_ms + q->rules.max_backoff_ms);
    default:
        held_outcome(d, OUTCOME_NONE);
        return row_again(now_ms, d);
    }
}

/* --- the application's answer --- */

/* Reports a crash to the application's bookkeeping once per request, and returns whose crash it is. */
static enum crash crash_of(struct queue *q, int64_t now_ms, struct request *r, int64_t retry_after_ms)
{
    if (!r->crashed) {
        r->whose =
            application_crashed(q->application, now_ms, &r->application, retry_after_ms, held_random(q));
        /* A single message at a time is tried, and this try failed. An immediate next one would meet an application
         * that still starts. */
        if (q->share->limiter.slow_since_ms)
            limiter_bad(&q->share->limiter, now_ms, r->mark, LIMITER_WAIT_LAST_MS, retry_after_ms,
                        held_random(q));
    }
    r->crashed = true;
    return r->whose;
}

static struct step life_crashed(struct queue *q, int64_t now_ms, struct delivery *d, int64_t retry_after_ms)
{
    assert(d->request && !delivery_is_in_flight(d));
    enum crash whose = crash_of(q, now_ms, d->request, retry_after_ms);
    int crashes = d->claim->crashes + 1, step = d->claim->unproven_step;
    int64_t since = d->claim->unproven_at_ms < 0 ? -1 : now_ms - d->claim->unproven_at_ms;

    if (d->outcome.request != REQUEST_UNANSWERED)
        d->outcome.request = REQUEST_CRASHED;
    if (q->application->limiter.slow_since_ms)
        pause_begin(q, now_ms, PAUSE_APPLICATION, d->outcome.error ? d->outcome.error : "");
    if (batches_in_company(d) && whose != CRASH_NOT_ITS_OWN)
        whose = CRASH_QUARANTINED;
    switch (whose) {
    case CRASH_CHARGED:
        return life_fail(q, now_ms, d, row_with_crashes(crashes), false);
    case CRASH_UNPROVEN:
        if (unproven_may_charge(since, step, q->rules.max_backoff_ms) &&
            application_charges_unproven(q->application, now_ms, q->rules.max_backoff_ms))
            return life_fail(q, now_ms, d,
                             (struct row_changes){.crashes = crashes, .unproven_step = step + 1}, false);
        else
            return life_release(d, held_delay_ms(q, d, ++d->claim->n_given_back), row_with_crashes(crashes));
    case CRASH_QUARANTINED:
        if (!d->claim->crashes)
            notes_tell_limited(q, now_ms, EVENT_ALONE, d);
        return life_release(d, held_delay_ms(q, d, d->claim->attempt), row_with_crashes(crashes));
    case CRASH_NOT_ITS_OWN:
        break;
    }
    return life_release(d, held_delay_ms(q, d, ++d->claim->n_given_back), row_as_it_is());
}

/* A Retry-After of 0 must not lead to a busy loop: the wait is at least the shortest backoff, or a second if that is
 * less. Every wait of a second or more is therefore obeyed as it is. */
static int64_t asked_wait_ms(const struct queue *q, const struct delivery *d, int64_t retry_after_ms)
{
    enum { SECOND_MS = 1000 };
    int64_t least = backoff_ms(q->rules.backoff_ms, q->rules.max_backoff_ms, d->claim->n_given_back, 0);

    if (least > SECOND_MS)
        least = SECOND_MS;
    return retry_after_ms > least ? retry_after_ms : least;
}

static struct step life_not_now(struct queue *q, struct delivery *d, int64_t retry_after_ms)
{
    int64_t backoff = held_backoff_ms(q, ++d->claim->n_given_back);

    d->outcome.request = REQUEST_PUT_OFF;
    return life_release(d, retry_after_ms >= 0 ? asked_wait_ms(q, d, retry_after_ms) : backoff,
                        row_as_it_is());
}

/* The application answered, so this message did not crash it, and need not be alone any more. */
static struct row_changes row_after_answer(const struct delivery *d)
{
    return d->claim->crashes > 0 && d->claim->alone ? row_with_crashes(0) : row_as_it_is();
}

static struct step life_complete(struct delivery *d, struct slice result)
{
    held_outcome(d, OUTCOME_COMPLETE);
    if (result.len)
        d->outcome.complete = (struct outcome_complete){mem_copy(result.data, result.len), result.len};
    return step_want(OP_COMPLETE);
}

/* The application's answer to the request of a member. */
static struct step life_answered(struct queue *q, int64_t now_ms, struct delivery *d,
                                 const struct member_answer *a)
{
    assert(!delivery_is_in_flight(d) && (d->op == OP_FORWARD || d->op == OP_REVOKE));
    held_outcome(d, OUTCOME_NONE);
    switch (a->verdict) {
    case VERDICT_COMPLETE:
        return life_complete(d, a->body);
    case VERDICT_CHECK:
        held_outcome(d, OUTCOME_CHECK);
        d->outcome.commit_until_ms = now_ms + q->rules.commit_grace_ms;
        d->n_waits = 0;
        return step_want(OP_CHECK);
    case VERDICT_ACCEPTED:
        d->n_waits = 0;
        return life_watch(now_ms, d->claim->window_ends_ms > now_ms ? d->claim->window_ends_ms : now_ms + 1);
    case VERDICT_NOT_NOW:
    case VERDICT_UNAVAILABLE:
        if (d->outcome.http_status)
            return life_not_now(q, d, a->retry_after_ms);
        return life_release(d, 0, row_as_it_is()); /* not sent: the limiter decides when to continue */
    case VERDICT_PERMANENT:
        return life_charge(q, now_ms, d, DEAD_PERMANENT, row_after_answer(d), false);
    case VERDICT_DIED:
        return life_crashed(q, now_ms, d, a->retry_after_ms);
    case VERDICT_SPLIT:
        return life_release(
            d, d->outcome.request == REQUEST_UNANSWERED ? held_delay_ms(q, d, d->claim->attempt) : 0,
            row_after_answer(d));
    case VERDICT_BAD_ANSWER:
        return life_release(d, held_delay_ms(q, d, ++d->claim->n_given_back), row_after_answer(d));
    case VERDICT_FAILED:
    case VERDICT_REVOKE:
    case N_VERDICTS:
        break;
    }
    return life_fail(q, now_ms, d, row_after_answer(d), false);
}

struct step life_answer_kept(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct member_answer *kept = d->claim->kept;

    if (!kept || d->phase != PHASE_WANTED)
        return step_stay();
    d->claim->kept = NULL;
    /* A kept answer counts if the token is valid, or the row's state is unknown. */
    struct step s =
        d->op == OP_FORWARD || d->op == OP_REVOKE ? life_answered(q, now_ms, d, kept) : step_stay();

    free(kept);
    return s;
}

/* Keeps an answer until the row shows whether the window is over: the answer counts if the token is still valid. */
static void life_keep_answer(struct delivery *d, const struct member_answer *a)
{
    struct member_answer *kept = mem_zalloc(1, sizeof(*kept) + a->body.len);
    char *body = (char *)(kept + 1);

    *kept = *a;
    if (a->body.len)
        memcpy(body, a->body.data, a->body.len);
    kept->body.data = body;
    free(d->claim->kept);
    d->claim->kept = kept;
}

void life_member_answered(struct queue *q, int64_t now_ms, struct delivery *d, enum verdict v,
                          const struct answer *a)
{
    assert(!d->in_request.next && v < N_VERDICTS);
    bool is_stored = v == VERDICT_COMPLETE && a->body.len <= q->rules.store_response_bytes;
    const struct member_answer own = {
        .verdict = v, .retry_after_ms = a->retry_after_ms, .body = is_stored ? a->body : (struct slice){0}};

    error_text_set(d, a->brief, a->error && strcmp(a->error, a->brief) != 0 ? a->error : NULL);
    d->outcome.http_status = a->status;
    /* A proxy answers 504 when it stops waiting: the application works on. */
    d->outcome.request = a->kind == ANSWER_TIMEOUT || (a->kind == ANSWER_STATUS && a->status == 504)
                             ? REQUEST_UNANSWERED
                             : REQUEST_ANSWERED;
    if (d->op != OP_FORWARD && d->phase != PHASE_WANTED) {
        life_keep_answer(d, &own);
        return;
    }
    mem_clear(&d->claim->kept);
    life_go(q, now_ms, d, FACT_ANSWER, life_answered(q, now_ms, d, &own));
}

/* --- time --- */

struct step life_window_over(struct queue *q, struct delivery *d)
{
    assert(d->op == OP_FORWARD && d->phase == PHASE_SENT && delivery_is_in_flight(d));
    char text[80];

    snprintf(text, sizeof(text), "no answer within the window of %lld ms",
             (long long)q->rules.token_window_ms);
    error_text_set(d, text, NULL);
    d->outcome.http_status = 0;
    d->outcome.request = REQUEST_UNANSWERED;
    fail_set(d, (struct outcome_fail){.delay_ms = held_delay_ms(q, d, d->claim->attempt),
                                      .changes = row_as_it_is(),
                                      .charged = true,
                                      .only_expired = true});
    return step_want(OP_REVOKE);
}

/* Requeues a body that did not fit, once there is room for it, to be delivered again. */
static struct step life_room_due(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct queue_room room;

    queue_room(q, false, &room);
    if (!q->share->n_bytes || (!life_must_stay(q, d) && d->arrival->copy.n_bytes <= room.whole &&
                               pause_is_on(q, PAUSE_BYTES_FULL) == false))
        return life_requeue(q, d);
    return step_wait(OP_REQUEUE, WAIT_ROOM, now_ms + ROOM_LOOK_MS);
}

/* --- beside others of its id --- */

static struct step life_mismatches_leader(struct queue *q, int64_t now_ms, struct delivery *d,
                                          const struct delivery *leader)
{
    struct buf text = {0};
    struct note *n = notes_tell_limited(q, now_ms, EVENT_BODY_MISMATCH, d);

    if (n)
        n->reason = "in flight here";
    buf_add_text(&text, "{\"fingerprint\" : \"");
    buf_add_hex(&text, d->arrival->fingerprint, sizeof(d->arrival->fingerprint));
    buf_add_text(&text, "\", \"first_fingerprint\" : \"");
    buf_add_hex(&text, leader->arrival->fingerprint, sizeof(leader->arrival->fingerprint));
    buf_printf(&text, "\", \"first_status\" : \"processing\", \"first_came_ms_ago\" : %" PRId64 "}",
               now_ms - leader->arrival->received_ms);
    struct step s = life_die(q, now_ms, d, DEAD_BODY_MISMATCH, LETTER_ROWLESS, buf_text(&text));
    buf_deinit(&text);
    return s;
}

/* The leader of an id waits for the earlier messages of its key. */
static struct step life_lead(const struct queue *q, const struct delivery *d)
{
    assert(d->leader == d);
    return q->rules.ordered && order_waits(d) ? step_wait(OP_CLAIM, WAIT_ORDER, INT64_MAX) : life_claim(q, d);
}

struct step life_join(struct queue *q, int64_t now_ms, struct delivery *d)
{
    const struct delivery *leader;

    assert(d->arrival->message && d->arrival->id_len);
    switch (held_join(q, d, &leader)) {
    case JOIN_LEADS:
        return life_lead(q, d);
    case JOIN_FOLLOWS:
        return step_wait(OP_CLAIM, WAIT_FOLLOWING, INT64_MAX);
    case JOIN_MISMATCH:
        if (!order_waits(d)) /* otherwise it is dead-lettered in its turn */
            return life_mismatches_leader(q, now_ms, d, leader);
        break;
    case JOIN_SURPLUS:
        break;
    }
    return step_wait(OP_CLAIM, WAIT_SURPLUS,
                     now_ms + SURPLUS_LOOK_MS + (int64_t)q->held.waiting[WAIT_SURPLUS].len);
}

struct step life_end_renewal(struct queue *q, int64_t now_ms, struct delivery *d)
{
    assert(d->op == OP_RENEW || d->op == OP_PUBLISH);
    d->n_waits = 0;
    return d->leader ? step_want(OP_CLAIM) : life_join(q, now_ms, d);
}

struct step life_next_attempt(struct queue *q, int64_t now_ms, struct delivery *d)
{
    assert(d->phase == PHASE_WANTED);
    if (d->op != OP_CLAIM)
        return step_want(d->op);
    if (!d->leader)
        return life_join(q, now_ms, d);
    return life_claim(q, d);
}

/* The circuit breaker may have been set since the dead letter was decided. */
static struct step life_circled(const struct queue *q, struct delivery *d)
{
    if (d->op == OP_REJECT)
        return life_reject();
    if (!q->share->brake.on || !delivery_dead_letter(d)->charged)
        return step_want(d->op);
    d->outcome.dead_letter.charged = false;
    return step_wait(d->op, WAIT_BRAKE, INT64_MAX);
}

struct step life_due(struct queue *q, int64_t now_ms, struct delivery *d)
{
    assert(d->phase == PHASE_WANTED && !d->timer.slot);
    switch (d->wait) {
    case WAIT_NONE:
        return step_stay();
    case WAIT_ROOM:
        return life_room_due(q, now_ms, d);
    case WAIT_HELD: /* a message without its body is too large, and was held for max_hold */
        return d->arrival->message ? step_want(d->op) : life_leave(q, now_ms, d);
    case WAIT_CIRCLING:
        return life_circled(q, d);
    case WAIT_DUE:
    case WAIT_SURPLUS:
        return life_next_attempt(q, now_ms, d);
    case WAIT_ON_HOLD: /* a look at its row would take the place of another message's trial */
        return q->share->brake.on && !d->given_up
                   ? step_wait(OP_CLAIM, WAIT_ON_HOLD, now_ms + ON_HOLD_LOOK_MS)
                   : step_want(OP_CLAIM);
    default:
        return step_want(d->op);
    }
}

/* --- from a step to the next round --- */

/* The circuit breaker is set, so the messages are not at fault: dead letters that are not sent yet are
 * withdrawn. */
static void life_spare_deaths(struct queue *q, int64_t now_ms)
{
    list_each(&q->held.wanted[OP_DEAD_LETTER], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (!delivery_dead_letter(d)->charged)
            continue;
        d->outcome.dead_letter.charged = false;
        life_take(q, now_ms, d, FACT_BREAKER,
                  delivery_has_token(d) ? life_release(d, held_delay_ms(q, d, ++d->claim->n_given_back),
                                                       row_with_crashes(d->claim->crashes))
                                        : step_wait(OP_DEAD_LETTER, WAIT_BRAKE, INT64_MAX));
    }
}

/* The circuit breaker is reset, and the messages behind it go on. Each dead letter counts as a failure again:
 * after enough of them the breaker is set, and the rest waits for the next success. */
static void life_breaker_reset(struct queue *q, int64_t now_ms)
{
    struct link *k;

    pause_end(q, now_ms, PAUSE_EVERYTHING_FAILS);
    pause_end(q, now_ms, PAUSE_NO_MESSAGE_IDS);
    pause_end(q, now_ms, PAUSE_NO_BATCHES);
    pause_end(q, now_ms, PAUSE_BAD_ANSWER);
    for (size_t n = q->held.waiting[WAIT_BRAKE].len; n && (k = list_first(&q->held.waiting[WAIT_BRAKE]));
         n--) {
        struct delivery *d = container_of(k, struct delivery, in_list);

        life_take(q, now_ms, d, FACT_BREAKER,
                  d->op == OP_DEAD_LETTER ? life_die(q, now_ms, d, delivery_dead_letter(d)->reason,
                                                     delivery_dead_letter(d)->row, NULL)
                                          : step_want(d->op));
    }
}

/* A follower leads the others or is completed with its leader. Or the first message of a key has ended, and
 * the next one leads its id. */
static void life_of_follower(struct queue *q, int64_t now_ms, struct consequence c)
{
    assert(!delivery_has_ended(c.d) && c.d->phase == PHASE_WANTED);
    if (c.op == OP_ACK) {
        q->counts.duplicates.total++;
        notes_tell_limited(q, now_ms, EVENT_DUPLICATE, c.d);
    }
    if (c.op == OP_CLAIM && c.d->leader == c.d)
        life_take(q, now_ms, c.d, c.d->wait == WAIT_ORDER ? FACT_KEY : FACT_LEADER, life_lead(q, c.d));
    else
        life_take(q, now_ms, c.d, FACT_LEADER, step_want(c.op));
}

static bool has_consequences(const struct queue_consequences *c)
{
    return c->at < c->n || c->breaker_set || c->breaker_reset;
}

/* Takes the consequences of a step, and their own, until none is left. */
static void life_rounds(struct queue *q, int64_t now_ms)
{
    struct queue_consequences *c = &q->consequences;

    while (has_consequences(c)) {
        if (c->at < c->n) {
            life_of_follower(q, now_ms, c->items[c->at++]);
        } else if (c->breaker_set) {
            c->breaker_set = false;
            life_spare_deaths(q, now_ms);
        } else {
            c->breaker_reset = false;
            life_breaker_reset(q, now_ms);
        }
    }
    assert(!has_consequences(c));
    c->at = c->n = 0;
}

/* Another partition has switched the shared circuit breaker on or off. */
void life_follow_breaker(struct queue *q, int64_t now_ms)
{
    bool follows = pause_is_on(q, PAUSE_EVERYTHING_FAILS) || pause_is_on(q, PAUSE_NO_MESSAGE_IDS);

    if (follows == q->share->brake.on)
        return;
    if (q->share->brake.on) {
        pause_for_brake(q, now_ms);
        q->consequences.breaker_set = true;
    } else {
        q->consequences.breaker_reset = true;
    }
    life_rounds(q, now_ms);
}

void life_go(struct queue *q, int64_t now_ms, struct delivery *d, enum fact fact, struct step s)
{
    assert(!q->consequences.n); /* steps do not nest */
    life_take(q, now_ms, d, fact, s);
    if (has_consequences(&q->consequences)) /* most steps have none */
        life_rounds(q, now_ms);
}

void life_send(struct queue *q, int64_t now_ms, struct request *r)
{
    list_each(&r->members, k)
    {
        struct delivery *d = container_of(k, struct delivery, in_request);

        assert(d->op == OP_FORWARD && delivery_has_token(d));
        life_go(q, now_ms, d, FACT_TURN, step_sent(d));
        assert(d->phase == PHASE_SENT);
        d->claim->tried_ms = now_ms;
        mem_clear(&d->claim->kept);
        d->outcome.request = REQUEST_ANSWERED;
    }
    request_send(q, now_ms, r);
}

void life_try_again(struct queue *q, int64_t now_ms)
{
    struct link *k;

    while ((k = list_first(&q->held.waiting[WAIT_AGAIN]))) {
        struct delivery *d = container_of(k, struct delivery, in_list);

        d->n_waits = 0;
        life_go(q, now_ms, d, FACT_DUE, step_want(d->op));
    }
}
