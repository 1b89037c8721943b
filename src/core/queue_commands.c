/* Operator commands for a queue: pause, retry, give up.
 *
 * A pause and the ids to give up are states, passed in as read, again and again; the other commands are
 * passed in once each. */
#include "core/life.h"
#include "core/notes.h"
#include "core/pauses.h"

#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void keep_name(char *room, size_t size, const char *by)
{
    snprintf(room, size, "%s", by);
}

/* Logs the command, its operator, and the number of affected deliveries here. */
static void tell_command(struct queue *q, const char *command, const char *by, int64_t n)
{
    struct note *note = notes_tell(q, EVENT_COMMAND, NULL);

    note->reason = command;
    note->n = n;
    note_text(note, "%s", by);
}

/* --- pause, resume --- */

void queue_commands_await(struct queue *q)
{
    q->commands.awaited = true;
}

/* "ann: deploy" */
static void pause_words(char *ret, size_t size, const char *by, const char *why)
{
    snprintf(ret, size, "%s%s%s", by, *by && *why ? ": " : "", why);
}

void queue_command_pause(struct queue *q, int64_t now_ms, bool paused, const char *by, const char *why)
{
    struct queue_pause *p = &q->pauses[PAUSE_OPERATOR];
    char words[sizeof(p->text)];

    q->commands.awaited = false;
    pause_words(words, sizeof(words), by, why);
    if (q->commands.paused == paused && (!paused || !strcmp(words, p->text)))
        return;
    q->commands.paused = paused;
    keep_name(q->commands.by, sizeof(q->commands.by), by);
    if (paused) {
        pause_tell_again(q, PAUSE_OPERATOR); /* another reason is logged too */
        pause_begin(q, now_ms, PAUSE_OPERATOR, words);
    } else {
        pause_end(q, now_ms, PAUSE_OPERATOR);
    }
}

/* --- retry --- */

static void retry_list(struct queue *q, int64_t now_ms, struct list *l)
{
    for (size_t n = l->len; n; n--) {
        struct delivery *d = container_of(list_first(l), struct delivery, in_list);

        d->row_end = ROW_END_NONE;
        life_go(q, now_ms, d, FACT_COMMAND, life_next_attempt(q, now_ms, d));
    }
}

void queue_command_retry(struct queue *q, int64_t now_ms, const char *by)
{
    struct list *due = &q->held.waiting[WAIT_DUE], *on_hold = &q->held.waiting[WAIT_ON_HOLD];

    tell_command(q, "retry", by, (int64_t)(due->len + on_hold->len));
    retry_list(q, now_ms, due);
    retry_list(q, now_ms, on_hold);
    life_try_again(q, now_ms);
}

/* --- give up --- */

/* The renewal ends, unless its statement or its copy is in flight: then the answer ends it. At the end of a drain
 * nothing is claimed. */
static void end_renewal(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (d->phase == PHASE_WANTED && q->drain < DRAIN_LEAVING)
        life_go(q, now_ms, d, FACT_COMMAND, life_end_renewal(q, now_ms, d));
}

/* The message becomes a dead letter when its claim is answered, or when its present attempt has failed. A copy that
 * was published already becomes one when it is delivered. */
static void give_up_delivery(struct queue *q, int64_t now_ms, struct delivery *d)
{
    d->given_up = q->flow.last_chances = true;
    if (d->op == OP_DEAD_LETTER &&
        d->wait == WAIT_BRAKE) /* no claim is needed: only the dead letter is missing */
        life_go(q, now_ms, d, FACT_COMMAND, life_give_up(q, now_ms, d, delivery_dead_letter(d)->row));
    else if (d->op == OP_RENEW || d->op == OP_PUBLISH)
        end_renewal(q, now_ms, d);
    else if (d->op == OP_ACK && d->wait == WAIT_RENEWAL)
        life_go(q, now_ms, d, FACT_COMMAND, step_want(OP_ACK));
    else if (held_is_idle(d) && d->wait != WAIT_NONE && d->wait != WAIT_FOLLOWING && d->wait != WAIT_ORDER &&
             d->wait != WAIT_SURPLUS)
        life_go(q, now_ms, d, FACT_COMMAND, step_want(d->op == OP_LOOK ? OP_CLAIM : d->op));
}

static bool may_be_given_up(const struct delivery *d)
{
    return !delivery_has_ended(d) && !d->given_up && d->arrival->message;
}

static bool brings_news(const struct queue *q, const char *ids, size_t ids_len)
{
    for (size_t at = 0; at < ids_len; at += strlen(ids + at) + 1) {
        bool known = false;

        for (size_t k = 0; !known && k < q->commands.ids_len; k += strlen(q->commands.ids + k) + 1)
            known = strcmp(q->commands.ids + k, ids + at) == 0;
        if (!known)
            return true;
    }
    return false;
}

void queue_command_give_up(struct queue *q, int64_t now_ms, const char *by, const char *ids, size_t ids_len)
{
    bool news;
    int64_t n = 0;

    if (ids_len == q->commands.ids_len && (!ids_len || !memcmp(ids, q->commands.ids, ids_len)))
        return;
    news = brings_news(q, ids, ids_len);
    free(q->commands.ids);
    q->commands.ids = ids_len ? mem_copy(ids, ids_len) : NULL;
    q->commands.ids_len = ids_len;
    keep_name(q->commands.give_up_by, sizeof(q->commands.give_up_by), by);
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (!may_be_given_up(d) || !life_is_given_up(q, d))
            continue;
        give_up_delivery(q, now_ms, d);
        n++;
    }
    if (news)
        tell_command(q, "give_up", by, n);
}

/* Does a failed message, or one to be given up, wait because of the circuit breaker: for its turn, its time, or the
 * end of a statement? */
static bool is_held_by_brake(const struct delivery *d)
{
    if (d->wait == WAIT_BRAKE)
        return true;
    if (d->row_end == ROW_END_ON_HOLD) /* by order.on_dead, whatever the circuit breaker does */
        return false;
    if (!delivery_was_tried(d) || delivery_is_in_flight(d) || delivery_is_accepted(d))
        return false;
    if (d->wait != WAIT_NONE)
        return d->wait == WAIT_DUE;
    return d->op == OP_CLAIM || d->op == OP_FAIL || d->op == OP_RELEASE || d->op == OP_REVOKE;
}

void queue_command_give_up_held(struct queue *q, int64_t now_ms, const char *by, int64_t before_ms)
{
    int64_t n = 0;

    keep_name(q->commands.give_up_by, sizeof(q->commands.give_up_by), by);
    for (struct link *k = q->held.unacked.head.next, *next; k != &q->held.unacked.head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        next = k->next;
        if (!q->share->brake.on || !may_be_given_up(d) || d->arrival->received_ms > before_ms ||
            !is_held_by_brake(d))
            continue;
        give_up_delivery(q, now_ms, d);
        n++;
    }
    tell_command(q, "give_up_held", by, n);
}
