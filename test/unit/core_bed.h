/* A queue's core whose servers are the test itself: the test takes one action at a time, and gives each answer. */
#pragma once

#include "bed.h"

#include "core/life.h"

enum { BED_TOLD_MAX = 64 };

struct bed_line {
    enum event event;
    char id[32], reason[128], code[8], text[512];
    int64_t ms, n;
    bool flag;
};

struct bed {
    struct queue q;
    struct application application;
    struct database database;
    int64_t now;
    unsigned can;
    int n_taken[ACTION_TELL + 1]; /* actions by kind */
    struct action last;
    struct bed_line told[BED_TOLD_MAX]; /* latest lines of the log */
    size_t n_told;
};

static inline void bed_note(struct bed *b, const struct note *n)
{
    struct bed_line *l = &b->told[b->n_told++ % BED_TOLD_MAX];

    *l = (struct bed_line){.event = n->event, .ms = n->ms, .n = n->n, .flag = n->flag};
    snprintf(l->id, sizeof(l->id), "%s", n->d ? n->d->arrival->id : "");
    snprintf(l->reason, sizeof(l->reason), "%s", n->reason ? n->reason : "");
    snprintf(l->code, sizeof(l->code), "%s", n->code);
    snprintf(l->text, sizeof(l->text), "%s", n->text ? n->text : "");
}

/* Finds the latest line of an event; NULL: none. */
static inline const struct bed_line *bed_told(const struct bed *b, enum event e)
{
    for (size_t i = b->n_told; i > 0 && i + BED_TOLD_MAX > b->n_told; i--)
        if (b->told[(i - 1) % BED_TOLD_MAX].event == e)
            return &b->told[(i - 1) % BED_TOLD_MAX];
    return NULL;
}

static inline size_t bed_n_told(const struct bed *b, enum event e)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n_told && i < BED_TOLD_MAX; i++)
        n += b->told[i].event == e;
    return n;
}

/* Tells the core that the queue at the broker is empty. */
static inline void bed_depth(struct bed *b)
{
    queue_depth_asked(&b->q, b->now);
    queue_depth(&b->q, b->now, 0, false);
}

/* Takes the next action. Log lines, questions and actions of the consumer are carried out on the way. False: none. */
static inline bool bed_next(struct bed *b)
{
    struct action *a = &b->last;

    queue_time(&b->q, b->now);
    while (queue_next(&b->q, b->now, b->can, a)) {
        b->n_taken[a->kind]++;
        if (a->kind == ACTION_TELL)
            bed_note(b, &a->note);
        else if (a->kind == ACTION_CONSUME)
            queue_consuming(&b->q, b->now, a->number);
        else if (a->kind == ACTION_CANCEL)
            queue_stopped(&b->q, b->now, a->number);
        else if (a->kind == ACTION_ASK_DEPTH)
            bed_depth(b);
        else
            return true;
    }
    *a = (struct action){0};
    queue_reap(&b->q);
    return false;
}

/* Asserts that no action but log lines is left. */
static inline void bed_rest(struct bed *b)
{
    if (bed_next(b))
        fail_msg("there is an action of kind %d, operation %s", (int)b->last.kind,
                 b->last.d ? operation_infos[b->last.d->op].name : "none");
}

static inline void bed_pass(struct bed *b, int64_t ms)
{
    b->now += ms;
}

/* Asserts that the next action is this operation at the database. */
static inline struct delivery *bed_asks(struct bed *b, enum operation op)
{
    assert_true(bed_next(b));
    assert_int_equal(b->last.kind, ACTION_DATABASE);
    assert_string_equal(operation_infos[b->last.d->op].name, operation_infos[op].name);
    return b->last.d;
}

/* Asserts that the next action is of this kind. */
static inline struct action *bed_does(struct bed *b, enum action_kind kind)
{
    assert_true(bed_next(b));
    assert_int_equal(b->last.kind, kind);
    return &b->last;
}

static inline struct bed *bed_new(const struct queue_rules *rules, enum queue_kind kind)
{
    struct bed *b = calloc(1, sizeof(*b));

    b->now = 1000000;
    b->can = ~0u;
    bed_start(&b->application, &b->database, &b->q, 1, rules, b->now);
    b->q.returns.configured = rules->delivery_limit;
    queue_channel_open(&b->q, b->now, 1, 4, 0, kind);
    bed_rest(b);
    assert_int_equal(b->q.consumer.state, CONSUMER_ACTIVE);
    return b;
}

static inline void bed_end(struct bed *b)
{
    queue_deinit(&b->q);
    bed_is_empty(&b->application);
    free(b);
}

static inline struct delivery *bed_newest(struct bed *b)
{
    return (struct delivery *)queue_find(&b->q, b->q.held.next_ref);
}

static inline struct delivery *bed_deliver(struct bed *b, const char *id)
{
    struct arrival *a = bed_arrival(&b->q, id);

    queue_delivered(&b->q, b->now, a, NULL);
    return bed_newest(b);
}

static inline void bed_row_of(struct bed *b, struct delivery *d, struct row r)
{
    r.op = d->op;
    queue_row(&b->q, b->now, d->ref, &r);
}

static inline void bed_row(struct bed *b, struct delivery *d, enum row_answer answer)
{
    bed_row_of(b, d, (struct row){.answer = answer, .attempt = 1, .unproven_ms = -1});
}

/* Delivers and claims a message. */
static inline struct delivery *bed_claimed(struct bed *b, const char *id, int attempt)
{
    struct delivery *d;

    bed_deliver(b, id);
    d = bed_asks(b, OP_CLAIM);
    bed_row_of(b, d, (struct row){.answer = ROW_CLAIMED, .attempt = attempt, .unproven_ms = -1});
    return d;
}

/* Delivers, claims and sends a message. */
static inline struct delivery *bed_sent(struct bed *b, const char *id, int attempt)
{
    struct delivery *d = bed_claimed(b, id, attempt);

    bed_does(b, ACTION_FORWARD);
    assert_ptr_equal(request_first(b->last.request), d);
    return d;
}

static inline void bed_answer_of(struct bed *b, struct delivery *d, struct answer a)
{
    char brief[40];

    if (a.kind == ANSWER_STATUS)
        snprintf(brief, sizeof(brief), "answered %d", a.status);
    else
        snprintf(brief, sizeof(brief), "reset");
    a.brief = a.error = brief;
    a.batch = -1;
    a.took_us = 1000;
    queue_answered(&b->q, b->now, d->request->ref, &a);
}

static inline void bed_answer(struct bed *b, struct delivery *d, int status)
{
    bed_answer_of(b, d, (struct answer){.kind = ANSWER_STATUS, .status = status, .retry_after_ms = -1});
}

/* Asserts that the delivery waits for that, and for so long. in_ms -1: no timer. */
static inline void bed_waits(const struct bed *b, const struct delivery *d, enum operation op,
                             enum wait_reason wait, int64_t in_ms)
{
    assert_string_equal(operation_infos[d->op].name, operation_infos[op].name);
    assert_int_equal(d->phase, PHASE_WANTED);
    assert_int_equal(d->wait, wait);
    if (in_ms < 0)
        assert_int_equal(d->timer.slot, 0);
    else
        assert_int_equal(d->timer.at_ms - b->now, in_ms);
}

/* The same, within bounds. */
static inline void bed_waits_between(const struct bed *b, const struct delivery *d, enum operation op,
                                     enum wait_reason wait, int64_t least_ms, int64_t most_ms)
{
    assert_string_equal(operation_infos[d->op].name, operation_infos[op].name);
    assert_int_equal(d->wait, wait);
    assert_int_in_range(d->timer.at_ms - b->now, least_ms, most_ms);
}

static inline void bed_wants(const struct delivery *d, enum operation op)
{
    assert_string_equal(operation_infos[d->op].name, operation_infos[op].name);
    assert_int_equal(d->phase, PHASE_WANTED);
    assert_int_equal(d->wait, WAIT_NONE);
}
