/* The oracle: see oracle.h. */
#include "oracle.h"

#include "broker_sim.h"
#include "sidecar_sim.h"

#include "onceward/base/mem.h"
#include "onceward/core/returns.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void oracle_init(struct world *w)
{
    w->oracle = world_alloc(w, sizeof(*w->oracle));
}

void oracle_broken(struct world *w, const char *check, const char *format, ...)
{
    struct oracle *o = w->oracle;
    va_list args;

    if (o->check[0])
        return;
    snprintf(o->check, sizeof(o->check), "%s", check);
    va_start(args, format);
    vsnprintf(o->text, sizeof(o->text), format, args);
    va_end(args);
    o->at_us = w->now_us;
    w->ended = true;
    TRACE(w, "BROKEN %s: %s", check, o->text);
}

static const struct queue_rules *rules_of(const struct world *w, int queue)
{
    return &w->plan->queues[queue].rules;
}

static struct post *post_of_token(const struct truth *t, const uint8_t token[16])
{
    for (struct post *p = t->posts; p; p = p->next)
        if (memcmp(p->token, token, 16) == 0)
            return p;
    return NULL;
}

/* --- requests --- */

static bool is_over(const struct post *p)
{
    const struct inbox_row_sim *r = &p->truth->row;

    return r->status != INBOX_PROCESSING || memcmp(r->token, p->token, 16) != 0;
}

/* Is no other request in flight at the application, and no accepted message open there? */
static bool goes_alone(const struct world *w, struct sidecar *s, struct post *p)
{
    enum { LEEWAY_US = 50000 }; /* the window began before the claim was sent */
    bool alone = s->n_open == 0;

    for (size_t i = 0; i < s->n_open; i++)
        s->open[i]->alone = false;
    for (size_t i = 0; i < s->n_accepted;) {
        if (is_over(s->accepted[i])) {
            s->accepted[i] = s->accepted[--s->n_accepted];
            continue;
        }
        const struct post *other = s->accepted[i];
        int64_t window_us = rules_of(w, other->queue)->token_window_ms * 1000;
        bool ends = w->now_us - other->sent_us > window_us - LEEWAY_US; /* its window is over */

        alone = alone && (ends || (other->truth == p->truth && p->n_members == 1));
        s->accepted[i++]->carrier->alone = false;
    }
    return alone;
}

static bool has_clock_fault(const struct world *w)
{
    for (size_t i = 0; i < w->plan->n_faults; i++)
        if (w->plan->faults[i].kind == FAULT_CLOCK)
            return true;
    return false;
}

/* Number of the queue's messages that were answered 202, are neither completed nor released, and whose window has not
 * ended. */
static int n_accepted(const struct world *w, const struct sidecar *s, const struct post *p)
{
    enum { LEEWAY_US = 50000 }; /* the window began before the claim was sent */
    int n = 0;

    for (size_t i = 0; i < s->n_accepted; i++) {
        const struct post *other = s->accepted[i];

        n += other->queue == p->queue && other->truth != p->truth && !is_over(other) &&
             !other->truth->jumped && other->truth->row.expires_us - database_now(w) > LEEWAY_US;
    }
    return n;
}

static void check_message(struct world *w, const struct post *p)
{
    const struct truth *t = p->truth;
    const struct inbox_row_sim *r = &t->row;
    const struct queue_rules *rules = rules_of(w, p->queue);
    bool ours = memcmp(r->token, p->token, 16) == 0;

    if (t->jumped)
        return;
    if (w->now_us < t->at_work_until_us - 2000 && !has_clock_fault(w))
        oracle_broken(w, "at work", "%s is POSTed %lld ms before a window has passed without an answer",
                      t->id, (long long)(t->at_work_until_us - w->now_us) / 1000);
    if (!rules->transaction && r->status == INBOX_COMPLETED)
        oracle_broken(w, "repeat", "%s is POSTed though its row is completed", t->id);
    if (r->status == INBOX_PROCESSING && !ours && r->expires_us > database_now(w) && !rules->transaction)
        oracle_broken(w, "repeat", "%s is POSTed while another holder's token lives", t->id);
    if (r->status == INBOX_PROCESSING && ours && r->expires_us <= database_now(w))
        oracle_broken(w, "window", "%s is POSTed after the end of its window", t->id);
}

/* Finds a message of the key that was published before t, and is neither completed nor dead. */
static const struct truth *find_predecessor(const struct world *w, const struct truth *t)
{
    for (size_t i = 0; i < w->n_truths; i++) {
        const struct truth *u = &w->truths[i];

        if (u != t && u->queue == t->queue && u->key == t->key && u->published_as &&
            u->published_as < t->published_as && !u->done_us && u->n_open_copies > 0 &&
            u->character != CHARACTER_NO_ID)
            return u;
    }
    return NULL;
}

/* Checks that the messages of a key in one request follow each other: the token of each names the one before it. A
 * later copy of a message may have another key. */
static void check_key_is_a_run(struct world *w, const struct post *carrier, size_t i)
{
    const struct post *p = carrier->members[i];
    const struct truth *before = NULL;

    if (!rules_of(w, carrier->queue)->ordered || p->truth->key < 0 || p->truth->n_copies > 1)
        return;
    for (size_t j = 0; j < i; j++)
        if (carrier->members[j]->truth->key == p->truth->key && carrier->members[j]->truth->n_copies == 1)
            before = carrier->members[j]->truth;
    if (before != p->before && (!p->before || p->before->n_copies == 1))
        oracle_broken(w, "order", "the token of %s names %s, and the one before it in the request is %s",
                      p->truth->id, p->before ? p->before->id : "none", before ? before->id : "none");
    const struct truth *open = p->before ? NULL : find_predecessor(w, p->truth);

    if (open && w->now_us >= p->truth->placed_us)
        oracle_broken(w, "order", "%s is POSTed before %s of the same key has ended", p->truth->id, open->id);
}

static void check_batch(struct world *w, const struct post *carrier)
{
    const struct queue_batch_rules *rules = &rules_of(w, carrier->queue)->batch;
    size_t most = rules->max_messages ? (size_t)rules->max_messages : 1;

    if (carrier->n_members > most || carrier->enveloped != (rules->max_messages > 0))
        oracle_broken(w, "batch", "a request has %zu messages, %zu are allowed", carrier->n_members, most);
    for (size_t i = 0; i < carrier->n_members; i++) {
        const struct truth *t = carrier->members[i]->truth;

        for (size_t j = 0; j < i; j++)
            if (t == carrier->members[j]->truth)
                oracle_broken(w, "batch", "%s is twice in one request", t->id);
        check_key_is_a_run(w, carrier, i);
        if (t->row.batch_cap && carrier->n_members > (size_t)t->row.batch_cap)
            oracle_broken(w, "batch", "%s is in a request of %zu, and it failed in one of twice %d", t->id,
                          carrier->n_members, t->row.batch_cap);
        if (t->row.batch_cap != carrier->truth->row.batch_cap)
            oracle_broken(w, "batch", "%s has a cap of %d, and %s one of %d, in one request", t->id,
                          t->row.batch_cap, carrier->truth->id, carrier->truth->row.batch_cap);
    }
}

void oracle_forward(struct world *w, struct post *p)
{
    const struct queue_rules *rules = rules_of(w, p->queue);
    struct sidecar *s = p->sidecar;
    int n = 1, n_messages = 0;

    w->oracle->n_checks++;
    p->alone = goes_alone(w, s, p);
    for (size_t i = 0; i < s->n_open; i++)
        n += s->open[i]->queue == p->queue;
    n_messages = n_accepted(w, s, p);
    /* A message of a batch takes its share of a slot. */
    n += rules->batch.max_messages ? n_messages / rules->batch.max_messages : n_messages;
    if (n > rules->concurrency)
        oracle_broken(w, "concurrency", "%d requests and accepted messages are at work, %d are allowed", n,
                      rules->concurrency);
    if (!s->base || s->draining)
        oracle_broken(w, "forward", "%s is POSTed %s", p->truth->id,
                      s->draining ? "in a drain" : "without a database");
    if (s->database.refuses)
        oracle_broken(w, "forward", "%s is POSTed while the database refuses", p->truth->id);
    if (s->promises[p->queue].paused)
        oracle_broken(w, "forward", "%s is POSTed while the operator's pause is on", p->truth->id);
    check_batch(w, p);
    oracle_forwards_in_order(w, s, p->queue);
    for (size_t i = 0; i < p->n_members; i++) {
        check_message(w, p->members[i]);
        promises_sent(w, p->members[i]);
    }
}

static void remember_accepted(struct sidecar *s, struct post *p)
{
    if (s->n_accepted == s->accepted_cap) {
        s->accepted_cap = s->accepted_cap ? s->accepted_cap * 2 : 16;
        s->accepted = mem_realloc(s->accepted, s->accepted_cap * sizeof(struct post *));
    }
    s->accepted[s->n_accepted++] = p;
}

void oracle_answered(struct world *w, struct post *carrier)
{
    struct sidecar *s = carrier->sidecar;

    w->oracle->silence[s->index][carrier->queue].progress_us = w->now_us;
    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];

        if (p->kind == ANSWER_STATUS && p->status == 202 && !p->whole && rules_of(w, p->queue)->transaction)
            remember_accepted(s, p);
    }
}

/* Part of the previous message of the key; NULL: the request has none. */
static const struct post *before_in_request(const struct post *p)
{
    for (size_t i = 0; i < p->carrier->n_members && p->before; i++)
        if (p->carrier->members[i]->truth == p->before)
            return p->carrier->members[i];
    return NULL;
}

bool oracle_is_behind_failed(const struct world *w, const struct post *p)
{
    for (p = before_in_request(p); p; p = before_in_request(p))
        if (p->named && rules_of(w, p->queue)->transaction)
            return true;
    return false;
}

void oracle_effect(struct world *w, const struct post *p)
{
    struct truth *t = p->truth;
    const struct truth *before =
        rules_of(w, t->queue)->ordered && t->key >= 0 && !t->n_effects ? find_predecessor(w, t) : NULL;

    /* Sent when it had an earlier place, with a copy that the broker has dropped since. In `response` an application
     * may do a message's work although the one before it in the request has failed. */
    bool is_own_choice = false;

    for (size_t i = 0; i < p->carrier->n_members && !rules_of(w, t->queue)->transaction; i++)
        is_own_choice |= p->carrier->members[i]->truth == before;
    if (before && p->sent_us >= t->placed_us && !is_own_choice)
        oracle_broken(w, "order", "%s has its effect before %s of the same key", t->id, before->id);
    t->n_effects++;
    if (!t->done_us)
        t->done_us = w->now_us;
    if (rules_of(w, t->queue)->transaction && t->n_effects > 1)
        oracle_broken(w, "effect", "%s has had its effect %d times", t->id, t->n_effects);
}

/* --- statements --- */

static bool is_not_now(int status)
{
    return status == 408 || status == 409 || status == 423 || status == 425 || status == 429 || status == 503;
}

static bool is_crash(const struct post *p)
{
    return p->kind == ANSWER_DIED || (p->kind == ANSWER_STATUS && (p->status == 502 || p->status == 504));
}

/* Did the answer name this message of a batch as failed, or do the rows of the others show that? */
static bool was_named(const struct world *w, const struct post *p)
{
    const struct post *carrier = p->carrier;

    if (!p->answered || p->whole)
        return false;
    for (size_t i = 0; i < carrier->n_members && !p->named; i++) {
        const struct post *m = carrier->members[i];

        if (rules_of(w, p->queue)->transaction && m->truth->row.status == INBOX_COMPLETED &&
            memcmp(m->truth->row.token, m->token, 16) == 0)
            return true;
    }
    return p->named;
}

/* Reason why the attempt of this request may not be charged; NULL: it may. */
static const char *why_not_charged(const struct world *w, const struct post *p, const struct batch_item *item)
{
    if (!p)
        return "it was never sent";
    if (p->carrier->lost_database)
        return "the database's connection broke meanwhile";
    if (p->carrier->n_members > 1 && !was_named(w, p))
        return "it failed in company";
    if (oracle_is_behind_failed(w, p))
        return "a message before it in its key had failed";
    if (p->answered && p->whole)
        return "the answer says nothing about it";
    if (item->op == OP_REVOKE && p->answered &&
        p->told_us - p->sent_us >= rules_of(w, p->queue)->token_window_ms * 900)
        return NULL; /* the window had ended before */
    if (!p->answered)
        return item->op == OP_REVOKE || item->ask.only_expired
                   ? NULL
                   : "it was not answered, and its window is not over";
    if (is_crash(p))
        return p->carrier->alone ? NULL : "it was not alone when the application crashed";
    if (p->kind != ANSWER_STATUS)
        return "nobody was there";
    if (p->status == 202 && rules_of(w, p->queue)->transaction)
        return item->ask.only_expired ? NULL : "it was accepted, and its window is not over";
    if (p->status / 100 == 2)
        return rules_of(w, p->queue)->transaction ? NULL : "it succeeded";
    if (p->named == 424)
        return "the application did not attempt it";
    return is_not_now(p->status) ? "the application said not now" : NULL;
}

/* Was the token given out by a clock that was ahead? Its owner waits by another clock. */
static bool was_given_out_ahead(const struct world *w, const struct inbox_row_sim *was)
{
    return was->expires_us - INBOX_MOST_US > database_now(w) + INBOX_GRACE_US;
}

static void charged(struct world *w, const struct batch_item *item, const struct inbox_row_sim *was)
{
    const struct post *p = post_of_token(item->truth, item->ask.token);
    const char *why_not = why_not_charged(w, p, item);

    item->truth->n_charges++;
    item->truth->n_blamed += p && p->answered && is_crash(p);
    if (item->op == OP_REVOKE && was->expires_us > database_now(w) && !was_given_out_ahead(w, was))
        oracle_broken(w, "charge", "%s is revoked before the end of its window", item->truth->id);
    if (why_not)
        oracle_broken(w, "charge", "an attempt of %s is charged: %s", item->truth->id, why_not);
}

/* The rules of the delivery limit, implemented a second time. */

/* Can the message be renewed? Not without an id, which could be neither counted nor recognised; and a copy must not
 * push another message out. */
static bool is_renewable(const struct plan_queue *p, const struct copy *m)
{
    return (!p->max_length || !p->readable) && m->truth->character != CHARACTER_NO_ID;
}

/* Limit to protect. An unknown one counts as the smallest that can be protected. */
static int limit_to_keep(const struct plan_queue *p)
{
    int known = plan_known_limit(p);

    return known == LIMIT_UNKNOWN ? LIMIT_LEAST : known;
}

/* Count from which on a message is renewed on arrival, or never requeued. INT_MAX: never. */
static int near_count(const struct plan_queue *p, bool renewable)
{
    int known = limit_to_keep(p), least = renewable || known < 2 ? 1 : 2;

    if (!p->quorum || known == LIMIT_NONE)
        return INT_MAX;
    return known - 2 > least ? known - 2 : least;
}

static bool is_near(const struct plan_queue *p, const struct copy *m, int count)
{
    return count >= near_count(p, is_renewable(p, m));
}

/* Is the limit known to be 0? Then no delivery may be returned, but each arrives like any other. */
static bool drops_first_return(const struct plan_queue *p)
{
    return p->quorum && plan_known_limit(p) == 0;
}

bool oracle_is_near(const struct world *w, const struct copy *m)
{
    const struct plan_queue *p = &w->plan->queues[m->truth->queue];

    return is_near(p, m, m->delivery_count) || drops_first_return(p);
}

const struct truth *oracle_truth(const struct world *w, int queue, const struct delivery *d)
{
    for (size_t i = 0; d && i < w->n_truths; i++)
        if (w->truths[i].queue == queue && w->truths[i].id_len == d->arrival->id_len &&
            !memcmp(w->truths[i].id, d->arrival->id, d->arrival->id_len))
            return &w->truths[i];
    return NULL;
}

/* Is the row that of another body? Then the renewal could not be counted, and the message is stored whole. */
static bool is_of_other_body(const struct world *w, const struct copy *m)
{
    return m->truth->row.status != INBOX_NONE && m->truth->row.body != m->body &&
           !rules_of(w, m->truth->queue)->mismatch_is_duplicate;
}

/* Does the broker drop the message after one or two more deliveries? */
static bool is_last(const struct plan_queue *p, const struct copy *m, int count)
{
    return is_near(p, m, count) && count >= limit_to_keep(p) - 1;
}

/* Reason why the message may not be given up because of its limit: its copy can be published. Allowed from max_hold
 * on, and at the end of a drain. */
static const char *why_not_limit(const struct world *w, const struct copy *m)
{
    const struct plan_queue *p = &w->plan->queues[m->truth->queue];

    if (!is_near(p, m, m->delivery_count) && !drops_first_return(p))
        return "it is not near the delivery limit";
    /* A message that an operator has given up is not renewed, also while another claim holds its row. */
    if (!is_renewable(p, m) || w->sidecars[m->holder]->draining || m->truth->given_up)
        return NULL;
    return w->now_us - m->delivered_us >= p->rules.max_hold_ms * 900 ? NULL : "it could have been renewed";
}

static bool is_permanent(const struct queue_rules *rules, int status)
{
    for (size_t i = 0; i < rules->n_permanent_status; i++)
        if (rules->permanent_status[i] == status)
            return true;
    return false;
}

static bool is_older(const struct world *w, const struct inbox_row_sim *r, int64_t max_age_ms)
{
    return max_age_ms && database_now(w) - (r->alive_us ? r->alive_us : r->received_us) > max_age_ms * 1000;
}

static const char *why_not_dead(const struct world *w, const struct batch_item *item,
                                const struct inbox_row_sim *was)
{
    const struct plan_queue *p = &w->plan->queues[item->queue];
    const struct post *post = post_of_token(item->truth, item->ask.token);

    switch (item->reason) {
    case DEAD_ATTEMPTS:
        if (was->status == INBOX_PROCESSING && item->ask.exhausted)
            return was->takeovers >= p->rules.max_attempts + 2 ? NULL : "its holders did not end so often";
        if (was->attempt < p->rules.max_attempts)
            return "its attempts are not used up";
        return item->ask.exhausted ? NULL : why_not_charged(w, post, item);
    case DEAD_PERMANENT:
        return post && post->answered && post->kind == ANSWER_STATUS && !post->whole &&
                       is_permanent(rules_of(w, item->queue), post->status)
                   ? NULL
                   : "it was not answered so";
    case DEAD_BODY_MISMATCH:
        if (was->status == INBOX_NONE && item->truth->row_lost)
            return NULL; /* compared with the one in flight, whose claim the database has lost */
        return item->copy->body != was->body && was->status != INBOX_NONE ? NULL : "its body is the row's";
    case DEAD_NO_MESSAGE_ID:
        return item->truth->character == CHARACTER_NO_ID ? NULL : "it has an id";
    case DEAD_INVALID_DATA:
        return item->truth->character == CHARACTER_INVALID ? NULL : "the database never refused it";
    case DEAD_DELIVERY_LIMIT:
        return why_not_limit(w, item->copy);
    case DEAD_TOO_OLD:
        /* The clock may have jumped back since its claim was answered. */
        return is_older(w, was, p->rules.max_age_ms) || has_clock_fault(w) ? NULL
                                                                           : "it is younger than max_age";
    case DEAD_OPERATOR:
        return item->truth->given_up ? NULL : "no operator has given it up";
    default:
        return "there is no such reason";
    }
}

/* --- letters without a row --- */

/* Counts of a message's letters. Messages without an id may all have the same content, so their letters cannot be
 * assigned. */
static struct letter_counts *letters_of(const struct world *w, struct truth *t)
{
    return t->character == CHARACTER_NO_ID ? &w->oracle->no_id[t->queue] : &t->letters;
}

/* Counts a letter. One too many is better than one too few, but there must be a delivery for it. */
static void letter_written(struct world *w, const struct batch_item *item)
{
    struct copy *m = item->copy;

    letters_of(w, m->truth)->n_written++;
    if (++m->n_letters > m->n_arrived)
        oracle_broken(w, "letter", "%d letters of copy %llu of %s, which was delivered %d times",
                      m->n_letters, (unsigned long long)m->number, m->truth->id, m->n_arrived);
}

void oracle_rejected(struct world *w, const struct copy *m)
{
    struct letter_counts *l = letters_of(w, m->truth);

    if (m->is_rowless && ++l->n_rejected > l->n_written)
        oracle_broken(w, "lost", "%d of %s and its like are rejected, and %d letters are there",
                      l->n_rejected, m->truth->id, l->n_written);
}

/* --- dead letters --- */

static void buried(struct world *w, const struct batch_item *item, const struct inbox_row_sim *was)
{
    const char *why_not = why_not_dead(w, item, was);
    const struct queue_rules *rules = rules_of(w, item->queue);

    if (!item->has_body)
        oracle_broken(w, "letter", "the letter of %s has no body", item->truth->id);
    if (why_not)
        oracle_broken(w, "death", "%s died (%s): %s", item->truth->id, dead_reasons[item->reason].name,
                      why_not);
    if (rules->holds_dead && item->truth->key >= 0 && !item->rowless && !item->truth->given_up &&
        item->truth->row.status == INBOX_DEAD)
        oracle_broken(w, "hold", "%s of an ordered queue died, and nobody has given it up", item->truth->id);
    if (item->truth->row.status == INBOX_HELD && !rules->holds_dead)
        oracle_broken(w, "hold", "%s is held, and on_dead is continue", item->truth->id);
    item->truth->at_work_until_us = 0; /* an operator may redrive or retry it at once */
    if (item->rowless)                 /* also beside a held row: a copy with another body */
        letter_written(w, item);
    if (item->truth->row.status != INBOX_HELD)
        item->truth->done_us = w->now_us;
}

static void completed(struct world *w, const struct batch_item *item)
{
    const struct post *p = post_of_token(item->truth, item->ask.token);

    if (!p || !p->answered || p->kind != ANSWER_STATUS || p->status / 100 != 2 || p->whole || p->named)
        oracle_broken(w, "complete", "%s is completed, and was not answered 2xx", item->truth->id);
}

/* Counts questions about a message. With doubling waits and second lookups, only a few at a time from each sidecar. */
void oracle_asked(struct world *w, struct truth *t)
{
    enum { MOST = 60 };
    int64_t second = w->now_us / 1000000;

    if (t->second != second)
        t->n_items = 0;
    t->second = second;
    if (++t->n_items > MOST * w->plan->n_sidecars * t->n_copies)
        oracle_broken(w, "busy", "%d statements about %s in one second", t->n_items, t->id);
}

/* After a window without an answer, or a 504, the next attempt waits for at least a window. A statement that repeats
 * one whose answer was lost changes nothing. */
static void put_off(struct world *w, const struct batch_item *item, const struct inbox_row_sim *was)
{
    const struct post *p = post_of_token(item->truth, item->ask.token);
    bool unanswered = item->op == OP_REVOKE || (item->op == OP_FAIL && item->ask.only_expired) ||
                      (p && p->answered && p->kind == ANSWER_STATUS && p->status == 504);

    if (p && unanswered && was->status == INBOX_PROCESSING)
        item->truth->at_work_until_us = w->now_us + rules_of(w, item->queue)->token_window_ms * 1000;
}

void oracle_written(struct world *w, const struct batch *b, const struct batch_item *item,
                    const struct inbox_row_sim *was)
{
    const struct inbox_reply *reply = &item->reply;

    w->oracle->n_checks++;
    if (reply->answer == ROW_DEAD || reply->answer == ROW_DEAD_LETTERED)
        item->copy->is_dead = true;
    if (reply->answer == ROW_FAILED || reply->answer == ROW_RELEASED)
        put_off(w, item, was);
    promises_written(w, item);
    switch (b->kind) {
    case BATCH_RENEW:
        item->copy->too_often = reply->answer == ROW_TOO_OFTEN;
        item->copy->counted |=
            reply->answer == ROW_RENEWED || (reply->answer == ROW_TOO_OFTEN && reply->wait_us > 0);
        break;
    case BATCH_FAIL:
        if (reply->inserted && reply->answer == ROW_FAILED)
            charged(w, item, was);
        break;
    case BATCH_SETTLE:
        if (was->status != INBOX_COMPLETED && item->truth->row.status == INBOX_COMPLETED)
            completed(w, item);
        break;
    case BATCH_BURY:
        if (reply->inserted)
            buried(w, item, was);
        break;
    default:
        break;
    }
}

/* --- ack, reject, requeue --- */

/* Does the sidecar know that an operator has given the message up? */
static bool knows_given_up(const struct sidecar *s, const struct truth *t)
{
    const struct queue *q = &s->queues[t->queue].core;

    for (size_t at = 0; at < q->commands.ids_len; at += strlen(q->commands.ids + at) + 1)
        if (t->given_up && !strcmp(q->commands.ids + at, t->id))
            return true;
    return false;
}

void oracle_renewed(struct world *w, const struct sidecar *s, struct copy *m)
{
    const struct plan_queue *p = &w->plan->queues[m->truth->queue];
    bool last =
        is_last(p, m, m->delivery_count); /* the row was claimed elsewhere, and may have ended since */
    bool must_leave = last || s->draining || w->now_us - m->delivered_us >= p->rules.max_hold_ms * 900;

    w->oracle->n_checks++;
    w->oracle->silence[s->index][m->truth->queue].progress_us = w->now_us;
    if (m->skipped || m->truth->character == CHARACTER_NO_ID)
        oracle_broken(w, "renewal", "%s is published again, without its body or its id", m->truth->id);
    if (!is_near(p, m, m->delivery_count) && !drops_first_return(p))
        oracle_broken(w, "renewal", "%s is published again with count %d, and its limit is far", m->truth->id,
                      m->delivery_count);
    if (knows_given_up(s, m->truth) && !s->draining)
        oracle_broken(w, "renewal", "%s is published again, and an operator has given it up", m->truth->id);
    if (!is_renewable(p, m))
        oracle_broken(w, "renewal", "%s is published to a queue that drops its head", m->truth->id);
    if (m->counted && m->too_often && !s->queues[m->truth->queue].core.pauses[PAUSE_RENEWAL_LOOP].since_ms)
        oracle_broken(w, "renewal", "%s is renewed again and again, and its queue does not pause",
                      m->truth->id);
    m->too_often =
        false; /* a refused copy may be published again after the pause: that is no further renewal */
    if (!m->counted && !must_leave)
        oracle_broken(w, "renewal", "%s is published again, and its row did not count that", m->truth->id);
}

void oracle_ack(struct world *w, const struct copy *m)
{
    w->oracle->n_checks++;
    if (!m) {
        oracle_broken(w, "ack", "what was never delivered is acked");
        return;
    }
    const struct inbox_row_sim *r = &m->truth->row;

    w->oracle->silence[m->holder][m->truth->queue].progress_us = w->now_us;
    if (m->renewed)
        return;
    if (r->status != INBOX_COMPLETED || m->truth->character == CHARACTER_NO_ID)
        oracle_broken(w, "early ack", "%s is acked, and its row is not committed as completed", m->truth->id);
    else if (r->body != m->body && !rules_of(w, m->truth->queue)->mismatch_is_duplicate)
        oracle_broken(w, "early ack", "%s is acked, and its row is that of another body", m->truth->id);
}

void oracle_reject(struct world *w, const struct copy *m, bool too_large)
{
    w->oracle->n_checks++;
    w->oracle->silence[m->holder][m->truth->queue].progress_us = w->now_us;
    if (!m->letter_us && !m->is_dead && !too_large)
        oracle_broken(w, "early reject", "%s is rejected, and no letter of it is committed", m->truth->id);
    promises_rejected(w, m);
}

void oracle_requeue(struct world *w, struct sidecar *s, struct copy *m, bool draining)
{
    const struct queue *q = &s->queues[m->truth->queue].core;
    const struct plan_queue *p = &w->plan->queues[m->truth->queue];
    int64_t held_us = w->now_us - m->delivered_us;
    /* A message that an operator has given up is not renewed, but stored whole one return later. */
    bool renewable = is_renewable(p, m) && !is_of_other_body(w, m) && !m->truth->given_up;
    int near = drops_first_return(p) ? 0 : near_count(p, renewable);

    w->oracle->n_checks++;
    w->oracle->silence[m->holder][m->truth->queue].progress_us = w->now_us;
    if (draining)
        return;
    /* A skipped body must be redelivered to be stored. */
    if (m->delivery_count >= near && !m->skipped && p->version < 430)
        oracle_broken(w, "return", "%s is returned with count %d, and the limit is near", m->truth->id,
                      m->delivery_count);
    /* The claim is released first, which may take a while. */
    bool others = q->n_others || w->now_us - s->queues[m->truth->queue].others_us < 90000000;

    /* Messages with a long wait make room, for half of max_parked, if the broker puts requeued ones behind
     * the others. */
    int known = plan_known_limit(p);

    others |= p->quorum && p->version < 400 && (known == LIMIT_UNKNOWN || known == LIMIT_NONE);
    if (!others && !m->skipped && held_us < p->rules.max_hold_ms * 900)
        oracle_broken(w, "return", "%s is returned after %lld ms, and nobody else could take it",
                      m->truth->id, (long long)(held_us / 1000));
}

/* Could a sidecar that knew of the message have stored it? */
static bool could_be_stored(const struct world *w, const struct copy *m)
{
    const struct sidecar *s = w->sidecars[m->holder];
    const struct plan_queue *p = &w->plan->queues[m->truth->queue];
    const struct inbox_row_sim *row = &m->truth->row;
    int64_t long_ago = w->now_us - 30000000;
    /* The broker may notice later than the sidecar that their connection is cut. After the cut nothing helps. */
    int64_t had_us = (m->cut_us ? m->cut_us : w->now_us) - m->delivered_us;

    return is_near(p, m, m->delivery_count - 1) && had_us > 30000000 && s->alive && s->base &&
           s->base_since_us < long_ago && !w->database->full && !w->database->retries && w->database->up &&
           w->database->mended_us < long_ago && /* a refusing database is asked every ten seconds */
           (row->status != INBOX_PROCESSING || (is_last(p, m, m->delivery_count - 1) &&
                                                (row->instance != s->index || row->number != s->number))) &&
           !row->locked_by && !m->skipped && s->frozen_until_us < long_ago &&
           /* by the database's clock, which may have gone back: until then no replica may end a waiting row */
           (row->status != INBOX_WAITING || row->expires_us <= database_now(w) - INBOX_GRACE_US);
}

void oracle_dropped(struct world *w, struct copy *m)
{
    const struct inbox_row_sim *r = &m->truth->row;
    const struct plan_queue *p = &w->plan->queues[m->truth->queue];
    enum { LEAST_US = 500000 };
    /* The page asks for the key where a limit is below the smallest. */
    bool hidden = plan_known_limit(p) == LIMIT_UNKNOWN && p->limit < LIMIT_LEAST;
    bool safe = m->renewed || m->letter_us || m->is_dead ||
                (r->status == INBOX_COMPLETED && r->body == m->body) || r->status == INBOX_DEAD;

    m->truth->n_open_copies--;
    TRACE(w, "the broker drops %s: delivered too often", m->truth->id);
    if (p->rules.ordered) {
        if (!safe)
            oracle_dropped_in_order(w, m);
        return;
    }
    /* At the end of a drain the message is requeued in any case: no replica could store it. Detecting the database's
     * recovery, claiming and storing take a moment, too. */
    const struct sidecar *s = w->sidecars[m->holder];
    bool no_room = s->draining && (w->database->full || w->database->retries ||
                                   w->now_us - w->database->mended_us < LEAST_US);
    /* Frozen beyond the grace period of its drain: it wakes up in the last half second, and returns all. */
    bool overslept = s->draining && s->frozen_until_us && w->now_us - s->frozen_until_us < LEAST_US &&
                     s->frozen_until_us - s->drain_since_us > DRAIN_GRACE_MS * 1000;

    if (!safe && !hidden && m->returned && !m->skipped && w->database->up && !no_room && !overslept)
        oracle_broken(w, "lost", "%s was returned once too often: the broker dropped it", m->truth->id);
    /* A copy that waits for another one of its id is not stored: the message remains with that one. */
    if (!safe && !m->returned && !m->truth->n_open_copies && could_be_stored(w, m))
        oracle_broken(w, "lost", "%s was held too long near the delivery limit: the broker dropped it",
                      m->truth->id);
}

void oracle_overflowed(struct world *w, struct copy *m)
{
    m->truth->n_open_copies--;
    TRACE(w, "the queue is too long: %s is dropped", m->truth->id);
}

/* The last consumer of a queue was cancelled, which only a drain may do. A quorum queue has x-expires instead: a
 * pause outlasts its minute only if the arguments are known. */
void oracle_unsubscribed(struct world *w, const struct sidecar *s, int queue)
{
    const struct plan_queue *p = &w->plan->queues[queue];
    bool short_pause = p->quorum && !p->readable && s->queues[queue].core.pauses[PAUSE_RENEWAL_LOOP].since_ms;

    if (p->auto_delete && !s->draining && !short_pause)
        oracle_broken(w, "lost", "the last consumer of an auto-delete queue was cancelled");
}

/* --- the log --- */

void oracle_told(struct world *w, struct sidecar *s, int queue, const struct note *n)
{
    struct oracle_silence *o = &w->oracle->silence[s->index][queue];

    switch (n->event) {
    case EVENT_BUG:
        oracle_broken(w, "bug", "%s", n->text ? n->text : "");
        break;
    case EVENT_PAUSED:
        o->n_standing++;
        o->told_us = w->now_us;
        break;
    case EVENT_STUCK:
    case EVENT_ORDER_BLOCKED:
    case EVENT_STANDBY:
        o->told_us = w->now_us;
        break;
    case EVENT_RESUMED:
        o->n_standing--;
        o->told_us = w->now_us;
        break;
    default:
        break;
    }
}

/* --- which replica is active --- */

enum {
    RETURN_AGAIN_US = 60000000,
    REPORTS_US = 10000000 /* others are known for as long after their last report */
};

/* A replica that closes an ordered queue's channel for the sake of another one has a reason, and does not do so in a
 * loop. */
void oracle_reopens(struct world *w, struct sidecar *s, int queue, const char *why)
{
    struct handover_counts *h = &s->queues[queue].handover;
    const struct queue_rules *r = rules_of(w, queue);
    /* The requests in flight end first, and a freeze may lie in between. */
    int64_t since = w->now_us - REPORTS_US - 1000000 - r->token_window_ms * 1000;

    if (strcmp(why, "another replica takes the queue over") != 0)
        return;
    if (++h->n_steps > h->n_heard + h->n_changes + h->n_lost)
        oracle_broken(
            w, "handover",
            "an ordered queue was given up %d times, after %d subscriptions of others and %d changes",
            h->n_steps, h->n_heard, h->n_changes);
    if (!h->ready_us || (h->ready_us < since && s->frozen_until_us < since))
        oracle_broken(w, "handover", "an ordered queue was given up to a replica that cannot consume");
    if (!s->queues[queue].core.held.unacked.len)
        return;
    if (h->returned_us && w->now_us - h->returned_us < RETURN_AGAIN_US - r->token_window_ms * 1000)
        oracle_broken(w, "handover", "messages were returned for another replica twice within %lld s",
                      (long long)(w->now_us - h->returned_us) / 1000000);
    h->returned_us = w->now_us;
}

/* Would the broker drop one of its messages at the next return? */
static bool holds_last(const struct world *w, const struct queue *q, int queue)
{
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next)
        if (w->plan->queues[queue].quorum && w->plan->queues[queue].limit != LIMIT_NONE &&
            container_of((struct link *)k, struct delivery, in_tags)->arrival->copy.delivery_count >=
                w->plan->queues[queue].limit)
            return true;
    return false;
}

static const struct sidecar *owner_of(const struct world *w, const struct queue *q)
{
    for (int i = 0; i < w->plan->n_sidecars; i++)
        if (sidecar_hash(w, i) == q->handover.owner)
            return w->sidecars[i];
    return NULL;
}

static bool is_reachable(const struct world *w, const struct sidecar *s)
{
    return s->alive && !s->draining && s->base && s->link && !s->base->cut && !s->link->cut &&
           w->now_us >= s->frozen_until_us && w->now_us >= s->base->slow_until_us &&
           w->now_us >= s->link->slow_until_us;
}

/* Should the active replica give the queue up to its owner? */
static bool step_is_due(const struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;
    const struct sidecar *owner = owner_of(w, q);

    for (int i = 0; i < w->plan->n_sidecars; i++)
        if (!is_reachable(w, w->sidecars[i]))
            return false;
    return owner && owner != s && broker_active_sidecar(w, queue) == s &&
           owner->queues[queue].core.consumer.state == CONSUMER_ACTIVE &&
           queue_may_consume(&owner->queues[queue].core) &&
           (q->held.unacked.len || queue_state(q) != QUEUE_PAUSED) &&
           !q->pauses[PAUSE_DELIVERY_LIMIT].since_ms && !holds_last(w, q, queue);
}

/* The owner must become active once both have reported, the others have stepped behind it, and the requests in flight
 * have ended. */
static void check_handover(struct world *w, struct sidecar *s, int queue)
{
    struct handover_counts *h = &s->queues[queue].handover;
    int64_t patience_us = 2 * REPORTS_US + 10000000 + rules_of(w, queue)->token_window_ms * 1000;

    if (h->n_steps)
        patience_us += RETURN_AGAIN_US;
    if (!h->even_us || h->even_us < s->frozen_until_us || !step_is_due(w, s, queue))
        h->even_us = w->now_us;
    else if (w->now_us - h->even_us > patience_us)
        oracle_broken(w, "handover",
                      "a replica that does not own an ordered queue has been active for %lld s",
                      (long long)(w->now_us - h->even_us) / 1000000);
}

/* --- bounds --- */

static void check_bounds(struct world *w, const struct sidecar *s)
{
    for (int i = 0; i < w->plan->n_queues; i++) {
        const struct queue *q = &s->queues[i].core;
        const struct queue_rules *r = &q->rules;
        size_t most = (size_t)(r->max_parked > r->prefetch ? r->max_parked : r->prefetch) +
                      3 * (size_t)r->prefetch + (size_t)r->concurrency;

        /* Deliveries of a lost channel may still have a claim to release. */
        if (q->held.unacked.len > most || queue_n_held(q) > 4 * most)
            oracle_broken(w, "bound", "%zu deliveries are held, prefetch %d, max_parked %d", queue_n_held(q),
                          r->prefetch, r->max_parked);
        if (q->held.n_bytes > r->max_bytes + r->max_message_bytes)
            oracle_broken(w, "bound", "%zu bytes are held, max_bytes is %zu", q->held.n_bytes, r->max_bytes);
        if (queue_n_in_flight(q) > (size_t)r->concurrency)
            oracle_broken(w, "bound", "%zu requests are out", queue_n_in_flight(q));
    }
    if (s->application.n_out < 0 || s->application.n_reserved < 0 || s->application.n_accepted < 0)
        oracle_broken(w, "bound", "the application's counts: out %d, reserved %d, accepted %d",
                      s->application.n_out, s->application.n_reserved, s->application.n_accepted);
}

static size_t n_held(const struct world *w, const struct sidecar *s)
{
    size_t n = 0;

    for (int i = 0; i < w->plan->n_queues; i++)
        n += queue_n_held(&s->queues[i].core);
    return n;
}

void oracle_turn(struct world *w, struct sidecar *s, size_t n_actions, size_t n_facts)
{
    struct oracle_load *load = &w->oracle->load[s->index];
    int64_t second = w->now_us / 1000000;

    if (load->second != second)
        *load = (struct oracle_load){.second = second};
    load->n_actions += n_actions;
    load->n_facts += n_facts;
    load->n_turns += !n_actions && !n_facts;
    if (load->n_held < n_held(w, s))
        load->n_held = n_held(w, s);
    check_bounds(w, s);
    /* Each attempt has three facts or more, and may plan one time, at which there is no action. */
    if (load->n_turns > 100 && load->n_turns > 100 + 2 * load->n_held + load->n_facts / 3)
        oracle_broken(
            w, "busy",
            "%llu turns without anything to do in one second; deadlines: application %lld, queue %lld ms",
            (unsigned long long)load->n_turns,
            (long long)(application_deadline(&s->application, world_ms(w)) - world_ms(w)),
            (long long)(queue_deadline(&s->queues[0].core, world_ms(w)) - world_ms(w)));
    if (load->n_actions > 500 && load->n_actions > 500 + 60 * load->n_facts + 20 * load->n_held)
        oracle_broken(w, "busy", "%llu actions in one second, of %llu facts",
                      (unsigned long long)load->n_actions, (unsigned long long)load->n_facts);
}

/* Checks a queue that has messages, and whose sidecar reports that it consumes: something must happen. */
static void check_silence(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;
    struct oracle_silence *o = &w->oracle->silence[s->index][queue];
    int64_t patience_us =
        (q->rules.stuck_ms + q->rules.token_window_ms * 2 + w->plan->stats_interval_ms) * 1000;
    int64_t since = o->progress_us > s->base_since_us ? o->progress_us : s->base_since_us;

    if (since < s->frozen_until_us)
        since = s->frozen_until_us;
    if (since < o->told_us)
        since = o->told_us;
    bool is_standby = w->plan->queues[queue].single_active && broker_active_sidecar(w, queue) != s;
    if (!w->broker->queues[queue].n_ready || is_standby)
        o->empty_us = w->now_us;
    if (since < o->empty_us)
        since = o->empty_us;
    if (!w->broker->queues[queue].n_ready || queue_state(q) != QUEUE_CONSUMING || !s->base || !s->link ||
        o->n_standing > 0)
        return;
    if (s->link->cut || s->base->cut || w->now_us < s->link->slow_until_us ||
        w->now_us < s->base->slow_until_us)
        return;
    since = since > s->link->slow_until_us ? since : s->link->slow_until_us;
    since = since > s->base->slow_until_us ? since : s->base->slow_until_us;
    if (w->database->skew_us < 0) /* a token ends by the database's clock, which went back */
        patience_us -= w->database->skew_us;
    if (w->now_us - since > patience_us)
        oracle_broken(w, "silence", "nothing moves for %lld s, and its state is consuming",
                      (long long)((w->now_us - since) / 1000000));
}

/* Checks that a lasting pause is logged within a stats interval. */
static void check_pause(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;

    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        const struct queue_pause *p = &q->pauses[r];

        /* A queue waiting for its first start is logged in another way. */
        if (q->ready && p->since_ms && !p->told && world_ms(w) - p->since_ms > w->plan->stats_interval_ms &&
            w->now_us > s->frozen_until_us + 2000000)
            oracle_broken(w, "silence", "a pause (%s) of %lld s was told to nobody", pause_reasons[r].name,
                          (long long)(world_ms(w) - p->since_ms) / 1000);
    }
}

/* Checks that no delivery is held longer than max_hold, except with the application, or if a requeue could lose it. */
static void check_hold(struct world *w, const struct sidecar *s, int queue)
{
    struct queue *q = (struct queue *)&s->queues[queue].core;
    struct link *k = list_first(&q->held.unacked);
    const struct delivery *d = k ? container_of(k, struct delivery, in_tags) : NULL;
    int64_t most_ms = q->rules.max_hold_ms + q->rules.max_window_ms + 60000;

    /* A body without room stays until nothing else is held, if the broker drops each returned message. */
    if (d && d->wait == WAIT_ROOM && drops_first_return(&w->plan->queues[queue]))
        return;
    if (!d || delivery_is_in_flight(d) || delivery_is_accepted(d) || q->order.limit.count ||
        d->arrival->copy.delivery_count >= near_count(&w->plan->queues[queue], true) ||
        s->database.down_since_ms || w->database->retries)
        return;
    if (world_ms(w) - d->arrival->received_ms > most_ms)
        oracle_broken(w, "hold", "%.*s is held for %lld s", (int)d->arrival->id_len, d->arrival->id,
                      (long long)(world_ms(w) - d->arrival->received_ms) / 1000);
}

/* Checks deliveries of a lost channel, which are redelivered: here they end with their request, timer or statement.
 * The bounds of unacked deliveries do not cover them. */
static void check_left_behind(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;

    for (int r = WAIT_NONE + 1; r < N_WAITS; r++)
        list_each(&q->held.waiting[r], k)
        {
            const struct delivery *d = container_of(k, struct delivery, in_list);

            if (d->arrival->copy.tag.generation != q->generation && !d->timer.slot &&
                !delivery_is_in_flight(d))
                oracle_broken(w, "hold", "ref %llu (%.*s) waits for ever: its channel is lost",
                              (unsigned long long)d->ref, (int)d->arrival->id_len, d->arrival->id);
        }
}

/* Checks lines: the first message of a key does not wait for its key, and no other is claimed by itself. */
static void check_lines(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;

    if (!q->rules.ordered || q->order.stop)
        return;
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *d = container_of((struct link *)k, struct delivery, in_tags);

        bool is_wanted =
            d->op == OP_CLAIM && d->phase == PHASE_WANTED && (d->wait == WAIT_NONE || d->wait == WAIT_BRAKE);

        if (d->place.line && key_place_is_first(&d->place) && d->wait == WAIT_ORDER)
            oracle_broken(w, "order", "%.*s is the first of its key and waits for it",
                          (int)d->arrival->id_len, d->arrival->id);
        if (d->place.line && !key_place_is_first(&d->place) && is_wanted)
            oracle_broken(w, "order", "%.*s is not the first of its key and does not wait",
                          (int)d->arrival->id_len, d->arrival->id);
        if (d->leader && d->leader->ref > d->ref)
            oracle_broken(w, "order", "%.*s follows a later delivery of its id", (int)d->arrival->id_len,
                          d->arrival->id);
    }
}

/* The message that killed the start before may be the next one. Alone it costs no other a delivery. A single active
 * consumer has its whole prefetch from the start. */
void oracle_consumes(struct world *w, const struct sidecar *s, int queue, int64_t prefetch)
{
    const struct plan_queue *p = &w->plan->queues[queue];

    w->oracle->n_checks++;
    if (s->queues[queue].unclean && prefetch > 1 && !p->rules.ordered && !p->single_active)
        oracle_broken(
            w, "unclean",
            "sidecar %d was killed, and subscribes with prefetch %lld before any delivery has passed",
            s->index, (long long)prefetch);
}

void oracle_started(struct world *w, const struct sidecar *s)
{
    w->oracle->load[s->index] = (struct oracle_load){0};
    for (int i = 0; i < QUEUES_MAX; i++)
        w->oracle->silence[s->index][i] = (struct oracle_silence){.progress_us = w->now_us};
}

/* The figures of a stats line. */
static void trace_figures(struct world *w, const struct sidecar *s, int queue)
{
    const struct queue *q = &s->queues[queue].core;
    const struct queue_counts *c = &q->counts;

    TRACE(
        w,
        "sidecar %d: queue %d is %s: received %llu completed %llu duplicates %llu retried %llu given back %llu "
        "dead %llu unkeyed %llu renewed %llu suppressed %llu; limit %d (%s), batch size %zu, in flight %zu, "
        "parked %zu, held %zu of %zu bytes, oldest %lld ms",
        s->index, queue, queue_states[queue_state(q)].name, (unsigned long long)c->received.total,
        (unsigned long long)c->completed.total, (unsigned long long)c->duplicates.total,
        (unsigned long long)c->retried.total, (unsigned long long)c->given_back.total,
        (unsigned long long)c->dead.total, (unsigned long long)c->unkeyed.total,
        (unsigned long long)c->renewed.total, (unsigned long long)c->suppressed.total, queue_limit(q),
        queue_limit_reason(q) ? queue_limit_reason(q) : "", queue_batch_size(q), queue_n_in_flight(q),
        queue_n_parked(q), queue_n_held(q), q->held.n_bytes, (long long)queue_oldest_ms(q, world_ms(w)));
}

void oracle_second(struct world *w)
{
    bool figures = (w->now_us - WORLD_START_US) / 1000000 % 10 == 0;

    for (int i = 0; i < w->plan->n_sidecars; i++)
        if (w->sidecars[i]->alive && w->now_us >= w->sidecars[i]->frozen_until_us &&
            !w->sidecars[i]->draining)
            for (int q = 0; q < w->plan->n_queues; q++) {
                check_silence(w, w->sidecars[i], q);
                check_pause(w, w->sidecars[i], q);
                check_hold(w, w->sidecars[i], q);
                check_left_behind(w, w->sidecars[i], q);
                check_lines(w, w->sidecars[i], q);
                if (rules_of(w, q)->ordered)
                    check_handover(w, w->sidecars[i], q);
                oracle_second_of_limit(w, w->sidecars[i], q);
            }
    for (int i = 0; i < w->plan->n_sidecars; i++)
        for (int q = 0; q < w->plan->n_queues; q++)
            if (w->sidecars[i]->alive && w->now_us >= w->sidecars[i]->frozen_until_us)
                promises_second(w, w->sidecars[i], q);
    for (int i = 0; figures && i < w->plan->n_sidecars; i++)
        for (int q = 0; w->sidecars[i]->alive && q < w->plan->n_queues; q++)
            trace_figures(w, w->sidecars[i], q);
}

/* --- the end --- */

/* Is the message bad by its character, by a copy with another body, by its age, or because no attempt is left? */
static bool is_bad(const struct world *w, const struct truth *t)
{
    if (t->row.status != INBOX_NONE && t->row.status != INBOX_COMPLETED &&
        is_older(w, &t->row, rules_of(w, t->queue)->max_age_ms))
        return true;
    return (t->character != CHARACTER_GOOD && t->character != CHARACTER_FLAKY) || t->other_body ||
           (t->row.status != INBOX_COMPLETED && t->row.attempt >= rules_of(w, t->queue)->max_attempts);
}

/* Has no other message shown that the application knows batches? The log reports that. */
static bool awaits_batches(const struct world *w, const struct truth *t)
{
    for (int i = 0; i < w->plan->n_sidecars; i++)
        if (w->sidecars[i]->alive && w->sidecars[i]->queues[t->queue].core.pauses[PAUSE_NO_BATCHES].since_ms)
            return true;
    return false;
}

/* Are there enough bad messages to keep the circuit breaker on? */
static bool awaits_operator(const struct world *w, const struct truth *t)
{
    const struct queue_rules *rules = rules_of(w, t->queue);
    int threshold = brake_threshold(rules->brake, rules->prefetch);
    size_t n_bad = 0;

    if (w->plan->nobody_waits)
        return false;
    /* Requests count, and no more of them are in flight at once. */
    if (rules->batch.max_messages && rules->concurrency < threshold)
        threshold = rules->concurrency > BRAKE_LEAST ? rules->concurrency : BRAKE_LEAST;
    for (size_t i = 0; i < w->n_truths; i++)
        n_bad += w->truths[i].queue == t->queue && is_bad(w, &w->truths[i]);
    if (w->plan->queues[t->queue].moved_back) /* each message arrives several times */
        n_bad *= 6;
    return n_bad >= (size_t)threshold;
}

/* May the message stay unfinished? Those that are always answered "not now" never end by themselves; and in a run of
 * many bad ones these wait for an operator. */
static bool may_stay(const struct world *w, const struct truth *t)
{
    if (t->character == CHARACTER_503 || t->character == CHARACTER_429)
        return true;
    /* A run of messages above max_age keeps the circuit breaker on: none of them shows that the application works. */
    if (rules_of(w, t->queue)->max_age_ms && awaits_operator(w, t))
        return true;
    /* In an ordered queue the message keeps its key and its place in the prefetch, so others may not arrive to show
     * it. */
    if (awaits_batches(w, t))
        return is_bad(w, t) || rules_of(w, t->queue)->ordered;
    return is_bad(w, t) && awaits_operator(w, t);
}

static bool is_unsettled(const struct world *w, const struct truth *t)
{
    return t->n_open_copies && !may_stay(w, t);
}

static const struct truth *unsettled(const struct world *w)
{
    struct oracle *o = w->oracle;

    if (o->unsettled && is_unsettled(w, o->unsettled))
        return o->unsettled;
    o->unsettled = NULL;
    for (size_t i = 0; i < w->n_truths && !o->unsettled; i++)
        if (is_unsettled(w, &w->truths[i]))
            o->unsettled = &w->truths[i];
    return o->unsettled;
}

bool oracle_is_settled(const struct world *w)
{
    return !unsettled(w);
}

void oracle_end(struct world *w)
{
    const struct truth *t = unsettled(w);

    if (t)
        oracle_broken(w, "unsettled",
                      "%lld s after the last fault %s is not settled: row status %d attempt %d",
                      (long long)((w->now_us - WORLD_START_US - w->plan->quiet_us) / 1000000), t->id,
                      t->row.status, t->row.attempt);
    for (size_t i = 0; i < w->n_truths; i++) {
        t = &w->truths[i];
        if (t->row.status == INBOX_COMPLETED && rules_of(w, t->queue)->transaction && t->n_effects != 1)
            oracle_broken(w, "effect", "%s is completed and had its effect %d times", t->id, t->n_effects);
    }
}
