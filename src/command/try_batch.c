/* The cases of `onceward try` about requests with several messages (forward.batch).
 *
 * The fences are those of single messages: complete_all() and complete_valid() wait at a locked row like
 * complete() does. Row and effect of every message are compared, since a part of a request can go wrong. */

#include "command/try.h"

#include "onceward/base/clock.h"
#include "onceward/config/config.h"

enum {
    SHORT_MS = 1, /* a window that has ended when the next statement runs */
    OVER_MS = 5,
    LATE_MS = 50,
    EFFECT_MS = 1500,
    REQUEST_MS = 10000,
    CUT_MS = 600, /* the work before complete must fit into this time */
    N_WATCHED = 3,
};

/* The messages of a request, and the state of each after it. */
struct several {
    struct shot *shots[TRY_BATCH_MAX];
    int n;
    bool completed[TRY_BATCH_MAX];
    int64_t effects[TRY_BATCH_MAX]; /* -1: unknown */
};

static const struct shot_kind ordinary = {0};
static const struct shot_kind wrong = {.wrong_body = true};
static const struct shot_kind expiring = {.window_ms = SHORT_MS};

static int several_most(const struct try_run *t)
{
    int most = t->q->forward.batch.max_messages;

    return most < TRY_BATCH_MAX ? most : TRY_BATCH_MAX;
}

static bool has_tokens(struct try_run *t, enum try_case which)
{
    if (!t->q->transaction)
        try_skip(t, which, "with `completion: response` the application completes nothing itself");
    return t->q->transaction;
}

/* ---- a request ---- */

static bool is_in(unsigned mask, int i)
{
    return mask >> i & 1;
}

/* mask: the messages that have the other kind. */
static int several_new(struct try_run *t, struct several *b, unsigned mask, const struct shot_kind *other)
{
    b->n = several_most(t);
    for (int i = 0; i < b->n; i++)
        if (shot_new(t, is_in(mask, i) ? other : &ordinary, &b->shots[i]))
            return -1;
    return 0;
}

static int read_effect(struct try_run *t, struct several *b, int i, int64_t until_ms)
{
    int64_t wanted = b->completed[i] ? t->effect_of_one : 0;

    b->effects[i] = -1;
    if (!t->effects || !effects_by_id(t->effects))
        return 0; /* effects of single messages cannot be told apart */
    return shot_effect_by(t, b->shots[i], wanted, until_ms, &b->effects[i]);
}

/* Completes what the sidecar would complete, and reads rows and effects. */
static int several_finish(struct try_run *t, struct several *b)
{
    int64_t until_ms = 0;

    for (int i = 0; i < b->n; i++) {
        int64_t commit_ms = shot_commit_ms(t, b->shots[i]);

        until_ms = commit_ms > until_ms ? commit_ms : until_ms;
    }
    for (int i = 0; i < b->n; i++)
        if (shot_finish_by(t, b->shots[i], shot_says_done(b->shots[i]) ? until_ms : 0, &b->completed[i]))
            return -1;
    if (try_pause(t, LATE_MS))
        return -1;
    until_ms = clock_ms() + EFFECT_MS;
    for (int i = 0; i < b->n; i++)
        if (read_effect(t, b, i, until_ms))
            return -1;
    return 0;
}

static int several_run(struct try_run *t, struct several *b)
{
    shots_send(t, b->shots, b->n, REQUEST_MS);
    return shot_wait(t, b->shots[0], REQUEST_MS) || several_finish(t, b) ? -1 : 0;
}

/* Sends the same tokens again, as the sidecar may: a failed request leaves them valid. */
static int several_resend(struct try_run *t, const struct several *b, unsigned without, struct several *ret)
{
    ret->n = 0;
    for (int i = 0; i < b->n; i++) {
        if (b->completed[i] || is_in(without, i))
            continue;
        if (shot_again(t, b->shots[i], &ret->shots[ret->n++]))
            return -1;
    }
    return ret->n ? several_run(t, ret) : 0;
}

static int several_hold(struct try_run *t, const struct several *b)
{
    const struct trial_claim *claims[TRY_BATCH_MAX];

    for (int i = 0; i < b->n; i++)
        claims[i] = &b->shots[i]->claim;
    return trial_hold(t->inbox, claims, b->n, &t->fault);
}

/* ---- judgement ---- */

static bool lacks_effect(const struct try_run *t, const struct several *b, int i)
{
    return b->completed[i] && b->effects[i] >= 0 && b->effects[i] < t->effect_of_one;
}

static bool has_stray_effect(const struct try_run *t, const struct several *b, int i)
{
    return b->effects[i] > (b->completed[i] ? t->effect_of_one : 0);
}

static int count_undone(const struct several *b, unsigned without, char *words, size_t size)
{
    int n = 0;

    for (int i = 0; i < b->n; i++) {
        if (b->completed[i] || is_in(without, i))
            continue;
        if (!n++)
            shot_words(b->shots[i], words, size);
    }
    return n;
}

/* Compares rows and effects of all messages that are not left out. */
static bool differ(struct try_run *t, const struct several *b, unsigned without, enum try_finding finding)
{
    for (int i = 0; i < b->n; i++) {
        if (is_in(without, i) || (!lacks_effect(t, b, i) && !has_stray_effect(t, b, i)))
            continue;
        try_found(t, finding, "Message %d of %d is %s; --effect counts %d.", i + 1, b->n,
                  b->completed[i] ? "completed" : "not completed", (int)b->effects[i]);
        return true;
    }
    return false;
}

static void found_undone(struct try_run *t, const struct several *b, enum try_finding finding)
{
    char words[320] = "";
    int n = count_undone(b, 0, words, sizeof words);

    if (n)
        try_found(t, finding, "%d of %d were not completed. One of these: it %s.", n, b->n, words);
}

/* ---- several ---- */

int try_several(struct try_run *t)
{
    struct several b;
    char words[320];

    if (several_new(t, &b, 0, NULL) || several_run(t, &b))
        return -1;
    if (b.shots[0]->unclear)
        try_found(t, TRY_FOUND_SEVERAL_UNCLEAR, "It %s.", shot_words(b.shots[0], words, sizeof words));
    found_undone(t, &b, TRY_FOUND_SEVERAL_NOT_DONE);
    differ(t, &b, 0, TRY_FOUND_SEVERAL_DIFFER);
    return 0;
}

/* ---- poison ---- */

/* Does the answer say anything about single messages? */
static bool is_whole_error(const struct several *b)
{
    for (int i = 0; i < b->n; i++)
        if (shot_says_done(b->shots[i]) || b->shots[i]->named)
            return false;
    return true;
}

static void judge_culprit(struct try_run *t, const struct several *b, int i)
{
    const struct shot *s = b->shots[i];
    char words[320];

    shot_words(s, words, sizeof words);
    if (b->completed[i] && b->effects[i] != 0)
        try_note(t, TRY_POISON, "it accepted a body that was cut in the middle");
    else if (b->completed[i])
        try_found(t, TRY_FOUND_POISON_DONE, "It %s.", words);
    else if (s->named && !try_is_permanent(t, s->status))
        try_found(t, TRY_FOUND_POISON_AGAIN, "It %s.", words);
    else if (!s->named)
        try_found(t, TRY_FOUND_POISON_UNNAMED, "It %s.", words);
}

static void judge_strays(struct try_run *t, const struct several *b)
{
    for (int i = 0; i < b->n; i++)
        if (has_stray_effect(t, b, i)) {
            try_found(t, t->q->transaction ? TRY_FOUND_POISON_KEPT : TRY_FOUND_POISON_REPEATS,
                      "Message %d of %d is %s; --effect counts %d.", i + 1, b->n,
                      b->completed[i] ? "completed" : "not completed", (int)b->effects[i]);
            return;
        }
}

int try_poison(struct try_run *t)
{
    struct several b;
    char words[320] = "";
    int culprit = several_most(t) / 2, n;

    if (several_new(t, &b, 1U << culprit, &wrong) || several_run(t, &b))
        return -1;
    judge_strays(t, &b);
    n = count_undone(&b, 1U << culprit, words, sizeof words);
    if (b.shots[0]->kind != ANSWER_STATUS) {
        try_found(t, TRY_FOUND_POISON_DIED, "What came: %s.", words);
    } else if (is_whole_error(&b)) {
        try_note(t, TRY_POISON,
                 "one invalid message fails the whole request: allowed; naming it saves requests");
    } else {
        judge_culprit(t, &b, culprit);
        if (n)
            try_found(t, TRY_FOUND_POISON_SPREADS,
                      "%d of %d valid ones were not completed. One of these: it %s.", n, b.n - 1, words);
    }
    return 0;
}

/* ---- partial ---- */

int try_partial(struct try_run *t)
{
    struct several b, again;
    unsigned mask;
    char words[320] = "";
    int n;

    if (several_most(t) < 3) {
        try_skip(t, TRY_PARTIAL, "forward.batch.max_messages is %d", several_most(t));
        return 0;
    }
    mask = 1U | 1U << (several_most(t) - 1);
    if (several_new(t, &b, mask, &wrong) || several_run(t, &b))
        return -1;
    for (int i = 0; i < b.n; i++)
        if (lacks_effect(t, &b, i) || (is_in(mask, i) && b.completed[i] && b.effects[i] < 0))
            try_found(t, TRY_FOUND_PARTIAL_LOST, "Message %d of %d, which was %s: it %s.", i + 1, b.n,
                      is_in(mask, i) ? "wrong" : "good", shot_words(b.shots[i], words, sizeof words));
    if (several_resend(t, &b, mask, &again))
        return -1;
    n = count_undone(&again, 0, words, sizeof words);
    if (n)
        try_found(t, TRY_FOUND_PARTIAL_NOT_AGAIN, "%d of %d were not completed. One of these: it %s.", n,
                  again.n, words);
    return 0;
}

/* ---- stale_one ---- */

static void judge_stale_one(struct try_run *t, const struct several *b, int stale)
{
    char words[320];

    shot_words(b->shots[stale], words, sizeof words);
    if (b->effects[stale] > 0)
        try_found(t, TRY_FOUND_STALE_ONE_WROTE, "It %s; --effect counts %d.", words, (int)b->effects[stale]);
    differ(t, b, 1U << stale, TRY_FOUND_STALE_ONE_DIFFERS);
    if (try_is_permanent(t, b->shots[stale]->status))
        try_found(t, TRY_FOUND_STALE_ONE_FOR_EVER, "It %s.", words);
    if (count_undone(b, 1U << stale, words, sizeof words))
        try_note(t, TRY_STALE_ONE,
                 "one refused token fails the whole request: allowed; complete_valid saves requests");
}

int try_stale_one(struct try_run *t)
{
    struct several b, next;
    int stale;

    if (!has_tokens(t, TRY_STALE_ONE))
        return 0;
    stale = several_most(t) / 2;
    if (several_new(t, &b, 1U << stale, &expiring) || try_pause(t, OVER_MS) ||
        shot_take_over(t, TRIAL_ASKER, b.shots[stale], &next.shots[0]) || several_run(t, &b))
        return -1;
    judge_stale_one(t, &b, stale);
    if (b.effects[stale] > 0)
        return 0;
    next.n = 1;
    for (int i = 0; i < b.n; i++)
        if (i != stale && !b.completed[i] && shot_again(t, b.shots[i], &next.shots[next.n++]))
            return -1;
    if (several_run(t, &next))
        return -1;
    found_undone(t, &next, TRY_FOUND_STALE_ONE_NOT_AGAIN);
    return 0;
}

/* ---- commit ---- */

/* Reads row, then effect. A committed effect behind a row that was not completed proves two transactions, if the row
 * is still not completed behind the effect. */
static int judge_apart(struct try_run *t, struct several *b, bool *ret_unfinished)
{
    *ret_unfinished = false;
    for (int i = 0; i < b->n; i++) {
        struct trial_row row, later;
        int64_t effect = -1;

        if (trial_look(t->inbox, &b->shots[i]->claim, false, &row, &t->fault))
            return -1;
        *ret_unfinished |= !row.completed;
        if (row.completed || !t->effects || !effects_by_id(t->effects))
            continue;
        if (shot_effect(t, b->shots[i], &effect) ||
            trial_look(t->inbox, &b->shots[i]->claim, false, &later, &t->fault))
            return -1;
        if (effect > 0 && !later.completed)
            try_found(t, TRY_FOUND_COMMIT_APART, "Message %d of %d is not completed; --effect counts %d.",
                      i + 1, b->n, (int)effect);
    }
    return 0;
}

/* While all rows are locked, no completion can have succeeded. */
static int watch_locked(struct try_run *t)
{
    struct several b;
    bool unfinished;
    int waiting;

    if (several_new(t, &b, 0, NULL) || several_hold(t, &b))
        return -1;
    shots_send(t, b.shots, b.n, REQUEST_MS);
    if (try_meet(t, b.shots, 1, 1, &waiting) || judge_apart(t, &b, &unfinished))
        return -1;
    if (!waiting && shot_says_done(b.shots[0]) && b.shots[0]->status != 202)
        try_found(t, TRY_FOUND_COMMIT_LATE, "It answered %d while no row could be completed.",
                  b.shots[0]->status);
    return trial_let_go(t->inbox, &t->fault) || shot_wait(t, b.shots[0], REQUEST_MS) || several_finish(t, &b)
               ? -1
               : 0;
}

static int watch_answer(struct try_run *t)
{
    struct several b;
    bool unfinished;
    char words[320];

    if (several_new(t, &b, 0, NULL))
        return -1;
    shots_send(t, b.shots, b.n, REQUEST_MS);
    if (shot_wait(t, b.shots[0], REQUEST_MS) || judge_apart(t, &b, &unfinished) || several_finish(t, &b))
        return -1;
    if (unfinished && shot_says_done(b.shots[0]) && b.shots[0]->status != 202 &&
        !count_undone(&b, 0, words, sizeof words))
        try_found(t, TRY_FOUND_COMMIT_LATE, "It answered %d, and the rows were completed later.",
                  b.shots[0]->status);
    return 0;
}

static int watch_effects(struct try_run *t)
{
    struct several b;
    int64_t effect = 0;

    if (several_new(t, &b, 0, NULL))
        return -1;
    shots_send(t, b.shots, b.n, REQUEST_MS);
    if (shot_wait(t, b.shots[0], REQUEST_MS))
        return -1;
    for (int i = 0; i < b.n; i++) {
        if (shot_effect(t, b.shots[i], &effect))
            return -1;
        if (shot_says_done(b.shots[i]) && effect < t->effect_of_one)
            try_found(t, TRY_FOUND_COMMIT_ACKED,
                      "It answered %d; --effect counted %d for message %d of %d then.", b.shots[i]->status,
                      (int)effect, i + 1, b.n);
    }
    return several_finish(t, &b);
}

int try_commit(struct try_run *t)
{
    bool can_see = t->effects && effects_by_id(t->effects);

    if (!can_see && !t->q->transaction) {
        try_skip(t, TRY_COMMIT, "without an --effect by message id the time of the commit is unknown");
        return 0;
    }
    if (t->q->transaction && watch_locked(t))
        return -1;
    for (int i = 0; i < N_WATCHED && !t->found[TRY_FOUND_COMMIT_LATE] && !t->found[TRY_FOUND_COMMIT_ACKED];
         i++)
        if (t->q->transaction ? watch_answer(t) : watch_effects(t))
            return -1;
    return 0;
}

/* ---- cut ---- */

/* Acts like a sidecar that dies: the connection closes, and another replica takes all messages over. */
int try_cut(struct try_run *t)
{
    struct several b = {0}, next = {0};
    int64_t cut_ms = CUT_MS + t->ordinary_us / 500;
    int waiting;

    if (!has_tokens(t, TRY_CUT))
        return 0;
    if (several_new(t, &b, ~0U, &expiring) || several_hold(t, &b))
        return -1;
    shots_send(t, b.shots, b.n, REQUEST_MS);
    if (try_meet(t, b.shots, 1, 1, &waiting))
        return -1;
    if (!waiting) {
        try_skip(t, TRY_CUT, "it did not call complete_all or complete_valid in time");
        return trial_let_go(t->inbox, &t->fault) || shot_wait(t, b.shots[0], cut_ms) ? -1 : 0;
    }
    shot_abandon(t, b.shots[0]);
    for (next.n = 0; next.n < b.n; next.n++)
        if (shot_take_over(t, TRIAL_HOLDER, b.shots[next.n], &next.shots[next.n]))
            return -1;
    if (trial_let_go(t->inbox, &t->fault) || try_pause(t, cut_ms))
        return -1;
    for (int i = 0; i < b.n; i++) {
        if (read_effect(t, &b, i, 0))
            return -1;
        if (b.effects[i] > 0)
            try_found(t, TRY_FOUND_CUT_WROTE, "--effect counts %d for message %d of %d.", (int)b.effects[i],
                      i + 1, b.n);
    }
    if (t->found[TRY_FOUND_CUT_WROTE])
        return 0;
    if (several_run(t, &next))
        return -1;
    found_undone(t, &next, TRY_FOUND_CUT_NOT_AGAIN);
    return 0;
}
