/* The cases of `onceward try` about the token and the transaction.
 *
 * Each case locks the message's row: complete() waits while it is locked, so the application stops in the middle of
 * its work for as long as needed. Row and effect are read in sequence, which proves their order: a committed effect,
 * followed by a row that is not completed, existed at the same time; so did a completed row, followed by no effect. */

#include "command/try.h"

#include "onceward/base/clock.h"
#include "onceward/config/config.h"

enum {
    SHORT_MS = 1, /* a window that has ended when the next statement runs */
    OVER_MS = 5,
    LATE_MS = 50,
    COMMIT_MS = 2500,
    REQUEST_MS = 10000,
    WINDOW_MS = 600, /* of the case `window`; the work before complete must fit into it */
    LATER_MS = 100,
    N_WATCHED = 10,
    WATCH_MS = 4000,  /* for all messages together; at least one is watched */
    BUSY_LOOKS = 200, /* without a pause in between */
};

static const struct shot_kind ordinary = {0};
static const struct shot_kind expiring = {.window_ms = SHORT_MS};

/* Has the application tokens? Otherwise cases about them make no sense. */
static bool has_token(struct try_run *t, enum try_case which)
{
    if (!t->q->transaction)
        try_skip(t, which, "with `completion: response` the application completes nothing itself");
    return t->q->transaction;
}

/* ---- stale ---- */

static void judge_stale(struct try_run *t, const struct shot *s, int64_t effect)
{
    char words[320];

    shot_words(s, words, sizeof words);
    if (effect > 0)
        try_found(t, shot_says_done(s) ? TRY_FOUND_SWALLOWED : TRY_FOUND_KEPT_ITS_WORK,
                  "It %s; --effect counts %d.", words, (int)effect);
    else if (shot_says_done(s) && s->status != 202 &&
             !t->in_batches) /* complete_valid may find no valid token */
        try_found(t, effect < 0 ? TRY_FOUND_SAID_DONE_BLIND : TRY_FOUND_SAID_DONE, "It %s.", words);
    for (size_t i = 0; i < t->q->n_permanent_status && effect <= 0; i++)
        if (t->q->permanent_status[i] == s->status)
            try_found(t, TRY_FOUND_REFUSED_FOR_EVER, "It %s.", words);
}

/* Runs the request with the newer token. */
static int run_next(struct try_run *t, struct shot *next, enum try_finding finding)
{
    bool completed;
    char words[320];

    if (shot_run(t, next, &ordinary, &completed))
        return -1;
    if (!completed)
        try_found(t, finding, "It %s.", shot_words(next, words, sizeof words));
    return 0;
}

int try_stale(struct try_run *t)
{
    struct shot *s, *next;
    int64_t effect;

    if (!has_token(t, TRY_STALE))
        return 0;
    if (shot_new(t, &expiring, &s) || try_pause(t, OVER_MS) || shot_take_over(t, TRIAL_ASKER, s, &next))
        return -1;
    shot_send(t, s, &ordinary, REQUEST_MS);
    if (shot_wait(t, s, REQUEST_MS) || try_pause(t, LATE_MS) || shot_effect(t, s, &effect))
        return -1;
    judge_stale(t, s, effect);
    return effect > 0 ? 0 : run_next(t, next, TRY_FOUND_NOT_AGAIN);
}

/* ---- taken ---- */

/* The state of a request whose row is locked. */
enum met {
    MET_AT_COMPLETE, /* waits in complete() */
    MET_ANSWERED,    /* was answered before it called complete */
    MET_NOT,
};

/* Sends s while its row is locked, and waits until complete() is called. If that does not happen, unlocks the row and
 * records the reason for the case. */
static int send_while_locked(struct try_run *t, struct shot *s, enum try_case which, int64_t timeout_ms,
                             enum met *ret)
{
    const struct trial_claim *const claims[] = {&s->claim};
    int waiting;
    char words[320];

    if (trial_hold(t->inbox, claims, 1, &t->fault))
        return -1;
    shot_send(t, s, &ordinary, timeout_ms);
    if (try_meet(t, &s, 1, 1, &waiting))
        return -1;
    *ret = waiting ? MET_AT_COMPLETE : s->answered ? MET_ANSWERED : MET_NOT;
    if (waiting)
        return 0;
    if (s->answered)
        try_skip(t, which, "it %s before it called complete", shot_words(s, words, sizeof words));
    else
        try_skip(t, which, "it did not call complete in time");
    return trial_let_go(t->inbox, &t->fault) || shot_wait(t, s, REQUEST_MS) ? -1 : 0;
}

/* Waits until the waiting session got the error about its token, and its statement has ended. */
static int wait_told(struct try_run *t)
{
    int64_t until_ms = clock_ms() + REQUEST_MS;
    bool at_work = true;

    while (at_work && clock_ms() < until_ms)
        if (try_turn(t, clock_ms()) || trial_at_work(t->inbox, &at_work, &t->fault))
            return -1;
    return 0;
}

/* Ends the token while the application works, and makes it valid again after the error. An application that uses it
 * then has tried twice in one request: *ret_again. */
static int end_under_hands(struct try_run *t, bool *ret_again)
{
    struct trial_row row;
    struct shot *s;
    int64_t effect;
    enum met met;

    *ret_again = false;
    if (shot_new(t, &ordinary, &s) || send_while_locked(t, s, TRY_TAKEN, REQUEST_MS, &met))
        return -1;
    if (met != MET_AT_COMPLETE)
        return 0;
    if (trial_end(t->inbox, TRIAL_HOLDER, &s->claim, &t->fault) || trial_let_go(t->inbox, &t->fault) ||
        wait_told(t) || trial_restore(t->inbox, &s->claim, &t->fault) || shot_wait(t, s, REQUEST_MS) ||
        trial_look(t->inbox, &s->claim, false, &row, &t->fault) || shot_effect(t, s, &effect))
        return -1;
    *ret_again = row.completed;
    if (effect > 0 && !row.completed)
        try_found(t, TRY_FOUND_SWALLOWED_LATE, "It answered %d; --effect counts %d.", s->status, (int)effect);
    return 0;
}

static int take_under_hands(struct try_run *t)
{
    struct shot *s, *next;
    int64_t effect;
    enum met met;

    if (shot_new(t, &expiring, &s) || send_while_locked(t, s, TRY_TAKEN, REQUEST_MS, &met))
        return -1;
    if (met != MET_AT_COMPLETE)
        return 0;
    if (shot_take_over(t, TRIAL_HOLDER, s, &next) || trial_let_go(t->inbox, &t->fault) ||
        shot_wait(t, s, REQUEST_MS) || try_pause(t, LATE_MS) || shot_effect(t, s, &effect))
        return -1;
    if (effect > 0) {
        try_found(t, TRY_FOUND_SWALLOWED_LATE, "It answered %d; --effect counts %d.", s->status, (int)effect);
        return 0;
    }
    return run_next(t, next, TRY_FOUND_NOT_AGAIN_LATE);
}

int try_taken(struct try_run *t)
{
    bool again;

    if (!has_token(t, TRY_TAKEN))
        return 0;
    if (end_under_hands(t, &again))
        return -1;
    /* Behind a pooler another application's session may look like this one's, so the result must occur twice. */
    if (again && end_under_hands(t, &again))
        return -1;
    if (again)
        try_found(t, TRY_FOUND_RETRIES,
                  "It completed with a token that had been refused in the same request.");
    return take_under_hands(t);
}

/* ---- twice ---- */

int try_twice(struct try_run *t)
{
    struct shot *shots[2];
    const struct trial_claim *claims[1];
    int64_t effect;
    bool completed;
    int waiting;
    char words[2][320];

    if (!has_token(t, TRY_TWICE))
        return 0;
    if (shot_new(t, &ordinary, &shots[0]) || shot_again(t, shots[0], &shots[1]))
        return -1;
    claims[0] = &shots[0]->claim;
    if (trial_hold(t->inbox, claims, 1, &t->fault))
        return -1;
    for (int i = 0; i < 2; i++)
        shot_send(t, shots[i], &ordinary, REQUEST_MS);
    if (try_meet(t, shots, 2, 2, &waiting) || trial_let_go(t->inbox, &t->fault) ||
        shot_wait(t, shots[0], REQUEST_MS) || shot_wait(t, shots[1], REQUEST_MS) ||
        shot_finish(t, shots[0], &completed) || try_pause(t, LATE_MS) || shot_effect(t, shots[0], &effect))
        return -1;
    for (int i = 0; i < 2; i++)
        shot_words(shots[i], words[i], sizeof words[i]);
    if (!completed)
        try_found(t, TRY_FOUND_NEITHER_DONE, "One %.120s, the other %.120s.", words[0], words[1]);
    else if (effect > t->effect_of_one)
        try_found(t, TRY_FOUND_TWICE_DONE, "--effect counts %d instead of %d.", (int)effect,
                  (int)t->effect_of_one);
    return 0;
}

/* ---- early ---- */

/* Findings about one message while it is watched. */
struct watched {
    int64_t effect; /* at the previous read; -1: unknown */
    bool late;      /* the row was not completed at the answer */
    bool locked;    /* but another session was about to complete it */
};

/* Reads the row, then the effect. */
static int look_once(struct try_run *t, struct shot *s, struct watched *w, struct trial_row *row)
{
    bool said = shot_says_done(s) && s->status != 202, first = said && !w->late;

    if (trial_look(t->inbox, &s->claim, first, row, &t->fault))
        return -1;
    if (first && !row->completed) {
        w->late = true;
        w->locked = row->locked;
    }
    if (w->effect >= t->effect_of_one && w->effect > 0 && !row->completed)
        try_found(t, TRY_FOUND_WORK_FIRST, "--effect counted %d while the row was not completed.",
                  (int)w->effect);
    if (shot_effect(t, s, &w->effect))
        return -1;
    if (row->completed && w->effect >= 0 && w->effect < t->effect_of_one)
        try_found(t, TRY_FOUND_COMPLETED_FIRST, "--effect counted %d while the row was completed.",
                  (int)w->effect);
    return 0;
}

/* Reads repeatedly until the shot is answered and completed. */
static int watch(struct try_run *t, struct shot *s)
{
    struct watched w = {.effect = -1};
    struct trial_row row = {0};
    int64_t until_ms = clock_ms() + REQUEST_MS;

    shot_send(t, s, &ordinary, REQUEST_MS);
    for (int i = 0; clock_ms() < until_ms; i++) {
        bool answered = s->answered;

        if (try_turn(t, clock_ms() + (i > BUSY_LOOKS)) || look_once(t, s, &w, &row))
            return -1;
        if (answered && (row.completed || !shot_says_done(s)))
            break;
    }
    shot_abandon(t, s);
    if (w.late && row.completed)
        try_found(t, w.locked ? TRY_FOUND_ANSWERS_EARLY : TRY_FOUND_COMPLETES_LATE,
                  "It answered %d, and the row was completed later.", s->status);
    return 0;
}

/* While the row is locked, complete() cannot have succeeded, whatever the answer is. */
static int watch_held(struct try_run *t)
{
    struct shot *s;
    bool completed;
    enum met met;
    int64_t effect;

    if (shot_new(t, &ordinary, &s) || send_while_locked(t, s, TRY_EARLY, REQUEST_MS, &met))
        return -1;
    t->verdicts[TRY_EARLY].skipped[0] = '\0';
    if (shot_effect(t, s, &effect))
        return -1;
    if (met == MET_AT_COMPLETE && effect > 0)
        try_found(t, TRY_FOUND_WORK_FIRST, "--effect counted %d while complete had not been answered.",
                  (int)effect);
    if (met == MET_ANSWERED && shot_says_done(s) && s->status != 202)
        try_found(t, TRY_FOUND_COMPLETES_LATE, "It answered %d.", s->status);
    return trial_let_go(t->inbox, &t->fault) || shot_wait(t, s, REQUEST_MS) || shot_finish(t, s, &completed)
               ? -1
               : 0;
}

static int watch_response(struct try_run *t)
{
    struct shot *s;
    bool completed;
    int64_t effect, until_ms;

    if (shot_new(t, &ordinary, &s))
        return -1;
    shot_send(t, s, &ordinary, REQUEST_MS);
    if (shot_wait(t, s, REQUEST_MS) || shot_effect(t, s, &effect) || shot_finish(t, s, &completed))
        return -1;
    if (!shot_says_done(s) || effect >= t->effect_of_one)
        return 0;
    for (until_ms = clock_ms() + COMMIT_MS; effect < t->effect_of_one && clock_ms() < until_ms;)
        if (try_pause(t, OVER_MS) || shot_effect(t, s, &effect))
            return -1;
    try_found(t, TRY_FOUND_ACKED_EARLY, "It answered %d; --effect counted too few then, and %d later.",
              s->status, (int)effect);
    return 0;
}

static bool early_is_clear(const struct try_run *t)
{
    return t->found[TRY_FOUND_ACKED_EARLY] ||
           ((t->found[TRY_FOUND_COMPLETES_LATE] || t->found[TRY_FOUND_ANSWERS_EARLY]) &&
            (t->found[TRY_FOUND_WORK_FIRST] || t->found[TRY_FOUND_COMPLETED_FIRST]));
}

int try_early(struct try_run *t)
{
    int64_t until_ms;

    if (!t->effects && !t->q->transaction) {
        try_skip(t, TRY_EARLY, "without --effect the time of the commit is unknown");
        return 0;
    }
    until_ms = clock_ms() + WATCH_MS;
    if (t->q->transaction && watch_held(t))
        return -1;
    if (!t->effects)
        try_skip(t, TRY_EARLY,
                 "in part: without --effect it is unknown whether the work is in the transaction");
    for (int i = 0; i < N_WATCHED && !early_is_clear(t) && (i == 0 || clock_ms() < until_ms); i++) {
        struct shot *s;

        if (t->q->transaction ? shot_new(t, &ordinary, &s) || watch(t, s) : watch_response(t))
            return -1;
    }
    return 0;
}

/* ---- window ---- */

int try_window(struct try_run *t)
{
    struct shot *s, *next;
    int64_t effect, window_ms = WINDOW_MS + t->ordinary_us / 500;
    enum met met;

    if (!has_token(t, TRY_WINDOW))
        return 0;
    if (shot_new(t, &ordinary, &s) || send_while_locked(t, s, TRY_WINDOW, window_ms, &met))
        return -1;
    if (met != MET_AT_COMPLETE)
        return 0;
    /* Like a sidecar: closes the connection, then revokes the token. */
    if (shot_wait(t, s, window_ms + WINDOW_MS) || trial_end(t->inbox, TRIAL_HOLDER, &s->claim, &t->fault) ||
        trial_let_go(t->inbox, &t->fault) || wait_told(t) || try_pause(t, LATER_MS) ||
        shot_effect(t, s, &effect))
        return -1;
    if (effect > 0) {
        try_found(t, TRY_FOUND_WROTE_LATE, "--effect counts %d.", (int)effect);
        return 0;
    }
    return shot_take_over(t, TRIAL_ASKER, s, &next) ? -1 : run_next(t, next, TRY_FOUND_NOT_AFTER_WINDOW);
}
