/* The simulated inbox: see inbox_sim.h. Each function is the SQL function of its name, for one item. */
#include "inbox_sim.h"

#include "onceward/base/mem.h"

#include <string.h>

static bool has_token(const struct inbox_row_sim *r, const uint8_t token[16])
{
    return memcmp(r->token, token, 16) == 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t not_below_0(int64_t us)
{
    return us < 0 ? 0 : us;
}

/* Is there a row? Only claims see one that was moved to the history. */
static bool has_row(const struct inbox_row_sim *r)
{
    return r->status != INBOX_NONE && !r->moved;
}

static void reply_row(const struct inbox_row_sim *r, int64_t now_us, struct inbox_reply *ret)
{
    ret->body = r->body;
    ret->attempt = r->attempt;
    ret->takeovers = r->takeovers;
    ret->crashes = r->crashes;
    ret->unproven_step = r->unproven_step;
    ret->batch_cap = r->batch_cap;
    ret->unproven_us = r->unproven_us < 0 ? -1 : not_below_0(now_us - r->unproven_us);
    ret->age_us = not_below_0(now_us - (r->alive_us ? r->alive_us : r->received_us));
}

static int64_t max_window(const struct inbox_asker *who)
{
    return who->max_window_us > who->window_us ? who->max_window_us : who->window_us;
}

/* Was the window given by a clock that was ahead? */
static bool ends_late(const struct inbox_row_sim *r, int64_t now_us)
{
    return r->expires_us - INBOX_MOST_US > now_us + INBOX_GRACE_US;
}

static bool revives(const struct inbox_row_sim *r, const struct inbox_asker *who, int64_t deaths)
{
    return deaths > 0 && who->revive > 0 && r->n_letters > 0 && deaths > r->letter_deaths &&
           who->revive >= r->n_letters;
}

/* As holder_is_gone: may the token be ended before its window ends? Not if the application has extended it. */
static bool holder_is_gone(const struct inbox_row_sim *r, const struct inbox_asker *who)
{
    int64_t slack_us = who->max_window_us > who->window_us ? who->max_window_us - who->window_us : 0;

    if (!who->transaction || r->max_expires_us - r->expires_us < slack_us)
        return false;
    if (who->own && !r->takeovers && r->instance == who->instance)
        return r->number < who->number;
    return who->gone & (1u << r->instance);
}

static bool is_swept(const struct inbox_row_sim *r)
{
    return r->status == INBOX_FAILED && r->swept;
}

/* Answer to a claim of a row whose owner ended without an answer. */
static enum row_answer takeover_answer(const struct inbox_row_sim *r, int64_t now_us,
                                       const struct inbox_asker *who, const struct inbox_ask *ask)
{
    if (r->takeovers >= who->max_attempts + 2)
        return ROW_EXHAUSTED;
    if (is_swept(r) && has_token(r, ask->token))
        return ROW_LOST;
    if (is_swept(r) && r->next_us > now_us)
        return ROW_NOT_DUE;
    return r->takeovers >= 1 && !ask->alone ? ROW_DUE : ROW_CLAIMED;
}

/* Answer to a claim if the row is not locked. */
static enum row_answer claim_answer(const struct inbox_row_sim *r, int64_t now_us,
                                    const struct inbox_asker *who, const struct inbox_ask *ask)
{
    if (r->body != ask->body)
        return ROW_MISMATCH;
    switch (r->status) {
    case INBOX_COMPLETED:
        return ROW_COMPLETED;
    case INBOX_HELD:
        return ROW_ON_HOLD;
    case INBOX_DEAD:
        return revives(r, who, ask->deaths) ? ROW_CLAIMED : ROW_DEAD;
    case INBOX_PROCESSING:
        if (has_token(r, ask->token))
            return ROW_CLAIMED;
        if (r->expires_us > now_us - INBOX_GRACE_US && !holder_is_gone(r, who))
            return ROW_HELD;
        return takeover_answer(r, now_us, who, ask);
    case INBOX_FAILED:
        if (r->swept)
            return takeover_answer(r, now_us, who, ask);
        if (r->attempt >= who->max_attempts)
            return who->ordered && !who->transaction && r->next_us > now_us ? ROW_NOT_DUE : ROW_EXHAUSTED;
        /* fall through */
    default:
        if (has_token(r, ask->token))
            return ROW_LOST;
        return r->next_us > now_us ? ROW_NOT_DUE : ROW_CLAIMED;
    }
}

static int64_t wait_of(const struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                       enum row_answer a)
{
    if (a == ROW_HELD)
        return least(r->expires_us + INBOX_GRACE_US - now_us, max_window(who) + 2 * INBOX_GRACE_US);
    return a == ROW_NOT_DUE ? r->next_us - now_us : 0;
}

/* Shortens a row of another owner that would be held, or not due, until a late end. */
static bool shorten(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                    const struct inbox_ask *ask)
{
    bool waits = (r->status == INBOX_PROCESSING && !has_token(r, ask->token)) ||
                 (r->status == INBOX_WAITING && r->next_us > now_us);

    if (!waits || r->body != ask->body || r->locked_by || !ends_late(r, now_us))
        return false;
    r->expires_us = r->max_expires_us = now_us + max_window(who);
    r->next_us = least(r->next_us, r->expires_us + INBOX_GRACE_US);
    return true;
}

static void claim_take(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                       const struct inbox_ask *ask, struct inbox_reply *ret)
{
    bool again = r->status == INBOX_PROCESSING && has_token(r, ask->token);
    int64_t most = now_us + max_window(who);

    if (r->status == INBOX_DEAD) {
        r->attempt = 1;
        r->takeovers = 0;
        r->crashes = r->unproven_step = r->batch_cap = 0;
        r->unproven_us = -1;
        r->alive_us = now_us;
    } else if (!again && (r->status == INBOX_PROCESSING || is_swept(r))) {
        r->takeovers += r->takeovers < 2 || r->alone;
        ret->taken_over = r->status == INBOX_PROCESSING;
    } else if (!again) {
        r->attempt++;
    }
    if (r->unclaimed)
        r->received_us = now_us;
    r->unclaimed = false;
    r->max_expires_us = again && r->max_expires_us > most ? r->max_expires_us : most;
    r->status = INBOX_PROCESSING;
    memcpy(r->token, ask->token, 16);
    if (!again || r->expires_us < now_us + who->window_us)
        r->expires_us = now_us + who->window_us;
    r->swept = false;
    r->alone = ask->alone;
    r->instance = who->instance;
    r->number = who->number;
    r->flushed = true;
}

void inbox_sim_claim(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                     const struct inbox_ask *ask, struct inbox_reply *ret)
{
    *ret = (struct inbox_reply){.unproven_us = -1};
    if (r->status == INBOX_NONE) {
        *r = (struct inbox_row_sim){.status = INBOX_PROCESSING,
                                    .attempt = 1,
                                    .body = ask->body,
                                    .received_us = now_us,
                                    .expires_us = now_us + who->window_us,
                                    .max_expires_us = now_us + max_window(who),
                                    .instance = who->instance,
                                    .number = who->number,
                                    .unproven_us = -1,
                                    .alone = ask->alone,
                                    .flushed = !who->transaction,
                                    .n_letters = r->n_letters,
                                    .letter_deaths = r->letter_deaths};
        memcpy(r->token, ask->token, 16);
        ret->inserted = true;
        ret->answer = ROW_CLAIMED;
    } else if (r->moved) {
        ret->answer = r->body == ask->body ? ROW_COMPLETED : ROW_MISMATCH;
        ret->body = r->body;
        return;
    } else {
        /* A repetition, with a token that was extended beyond a new window, changes nothing. */
        bool stands = r->status == INBOX_PROCESSING && has_token(r, ask->token) &&
                      r->expires_us >= now_us + who->window_us;

        bool shortened = shorten(r, now_us, who, ask);

        ret->answer = claim_answer(r, now_us, who, ask);
        if (ret->answer == ROW_CLAIMED && (r->locked_by || shortened) && !stands)
            ret->answer = ROW_LOCKED;
        if (ret->answer == ROW_CLAIMED && !stands)
            claim_take(r, now_us, who, ask, ret);
        ret->wait_us = wait_of(r, now_us, who, ret->answer);
    }
    reply_row(r, now_us, ret);
}

void inbox_sim_look(const struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                    const struct inbox_ask *ask, struct inbox_reply *ret)
{
    *ret = (struct inbox_reply){.unproven_us = -1};
    if (!has_row(r)) {
        ret->answer = ROW_VANISHED;
        return;
    }
    ret->answer = claim_answer(r, now_us, who, ask);
    if (r->body == ask->body && r->status == INBOX_DEAD)
        ret->answer = ROW_DEAD;
    else if (r->body == ask->body && r->status == INBOX_PROCESSING && has_token(r, ask->token))
        ret->wait_us = least(r->expires_us - now_us, max_window(who));
    else if (ret->answer == ROW_CLAIMED || ret->answer == ROW_EXHAUSTED || ret->answer == ROW_LOST ||
             ret->answer == ROW_DUE || ret->answer == ROW_ON_HOLD)
        ret->answer = r->next_us > now_us && (r->status == INBOX_FAILED || r->status == INBOX_WAITING)
                          ? ROW_NOT_DUE
                          : ROW_DUE;
    if (ret->answer != ROW_CLAIMED)
        ret->wait_us = wait_of(r, now_us, who, ret->answer);
    reply_row(r, now_us, ret);
}

void inbox_sim_renew(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                     const struct inbox_ask *ask, struct inbox_reply *ret)
{
    enum { MOST = 1000, MINUTE_US = 60000000, EACH_US = 6000000 };

    *ret = (struct inbox_reply){.unproven_us = -1};
    if (r->status == INBOX_NONE)
        *r = (struct inbox_row_sim){.status = INBOX_WAITING,
                                    .body = ask->body,
                                    .token = {0xff, 0xfe}, /* a token without an owner */
                                    .received_us = now_us,
                                    .next_us = now_us,
                                    .expires_us = now_us - INBOX_GRACE_US,
                                    .max_expires_us = now_us - INBOX_GRACE_US,
                                    .unproven_us = -1,
                                    .instance = -1,
                                    .unclaimed = true,
                                    .flushed = true,
                                    .n_letters = r->n_letters,
                                    .letter_deaths = r->letter_deaths};
    if (r->body != ask->body)
        ret->answer = ROW_MISMATCH;
    else if (r->status == INBOX_COMPLETED || r->status == INBOX_DEAD)
        ret->answer = r->status == INBOX_DEAD ? ROW_DEAD : ROW_COMPLETED;
    else if (r->status == INBOX_PROCESSING && r->expires_us > now_us - INBOX_GRACE_US &&
             !holder_is_gone(r, who)) {
        ret->answer = ROW_HELD;
        ret->wait_us = wait_of(r, now_us, who, ROW_HELD);
    } else if (r->renewals >= MOST) {
        ret->answer = ROW_TOO_OFTEN;
    } else if (r->locked_by) {
        ret->answer = ROW_LOCKED;
    } else {
        bool runs = r->renewals_until_us >= now_us && r->renewals_until_us <= now_us + MINUTE_US;
        int64_t paced = runs ? r->renewals_until_us : now_us, over = paced - (now_us + MINUTE_US - EACH_US);

        r->renewals++;
        r->renewals_until_us = over > 0 ? now_us + MINUTE_US : paced + EACH_US;
        r->flushed = true;
        ret->answer = over > 0 ? ROW_TOO_OFTEN : ROW_RENEWED;
        ret->wait_us = over > 0 ? over : 0;
    }
    ret->body = r->body;
}

void inbox_sim_settle(struct inbox_row_sim *r, int64_t now_us, const struct inbox_ask *ask,
                      struct inbox_reply *ret)
{
    *ret = (struct inbox_reply){.unproven_us = -1};
    if (!has_row(r))
        ret->answer = ROW_VANISHED;
    else if (r->status == INBOX_COMPLETED)
        ret->answer = ROW_COMPLETED;
    else if (!has_token(r, ask->token) ||
             !(r->status == INBOX_PROCESSING || (r->status == INBOX_FAILED && r->swept)))
        ret->answer = ROW_LOST;
    else if (r->locked_by)
        ret->answer = ROW_LOCKED;
    else {
        r->status = INBOX_COMPLETED;
        r->completed_us = now_us;
        r->flushed = true;
        ret->answer = ROW_COMPLETED;
    }
}

static void write_marks(struct inbox_row_sim *r, int64_t now_us, const struct inbox_ask *ask)
{
    if (ask->crashes >= 0)
        r->crashes = ask->crashes;
    if (ask->unproven_step >= 0) {
        r->unproven_step = ask->unproven_step;
        r->unproven_us = now_us;
    }
    if (ask->batch_cap > 0)
        r->batch_cap = ask->batch_cap;
    r->flushed = true;
}

void inbox_sim_fail(struct inbox_row_sim *r, int64_t now_us, const struct inbox_ask *ask,
                    struct inbox_reply *ret)
{
    *ret = (struct inbox_reply){.unproven_us = -1};
    if (!has_row(r))
        ret->answer = ROW_VANISHED;
    else if (!has_token(r, ask->token) || r->status == INBOX_DEAD || r->status == INBOX_HELD)
        ret->answer = ROW_LOST;
    else if (r->status == INBOX_COMPLETED)
        ret->answer = ROW_COMPLETED;
    else if (r->status == INBOX_FAILED || r->status == INBOX_WAITING)
        ret->answer = r->status == INBOX_FAILED ? ROW_FAILED : ROW_RELEASED;
    else if (ask->only_expired && r->expires_us > now_us && !ends_late(r, now_us)) {
        ret->answer = ROW_EXTENDED;
        ret->wait_us = r->expires_us - now_us;
    } else if (r->locked_by)
        ret->answer = ROW_LOCKED;
    else {
        r->status = ask->give_back ? INBOX_WAITING : INBOX_FAILED;
        if (ask->give_back && r->attempt > 0)
            r->attempt--;
        r->next_us = now_us + ask->delay_us;
        r->swept = false;
        write_marks(r, now_us, ask);
        ret->inserted = true;
        ret->answer = ask->give_back ? ROW_RELEASED : ROW_FAILED;
    }
}

void inbox_sim_release(struct inbox_row_sim *r, int64_t now_us, const struct inbox_ask *ask,
                       struct inbox_reply *ret)
{
    *ret = (struct inbox_reply){.unproven_us = -1};
    if (!has_row(r))
        ret->answer = ROW_VANISHED;
    else if (!has_token(r, ask->token))
        ret->answer = ROW_LOST;
    else if (r->status == INBOX_COMPLETED)
        ret->answer = ROW_COMPLETED;
    else if (r->status == INBOX_WAITING)
        ret->answer = ROW_RELEASED;
    else if (r->status != INBOX_PROCESSING)
        ret->answer = ROW_LOST;
    else if (r->locked_by)
        ret->answer = ROW_LOCKED;
    else {
        int64_t end = least(r->expires_us, now_us + INBOX_MOST_US);

        if (end < now_us)
            end = now_us;

        r->status = INBOX_WAITING;
        if (r->attempt > 0)
            r->attempt--;
        r->next_us = ask->delay_us < 0 ? end - ask->delay_us : now_us + ask->delay_us;
        write_marks(r, now_us, ask);
        ret->inserted = true;
        ret->answer = ROW_RELEASED;
    }
}

static bool may_bury(const struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                     const struct inbox_ask *ask)
{
    bool stale = r->expires_us <= now_us - INBOX_GRACE_US;

    if (!ask->exhausted)
        return has_token(r, ask->token) && (r->status == INBOX_PROCESSING || r->status == INBOX_FAILED);
    if (ask->near_limit)
        return r->status == INBOX_FAILED || r->status == INBOX_HELD || (r->status == INBOX_WAITING && stale);
    if (r->status == INBOX_FAILED && !r->swept)
        return r->attempt >= who->max_attempts;
    return r->takeovers >= who->max_attempts + 2 &&
           (r->status == INBOX_FAILED ||
            (r->status == INBOX_PROCESSING && (stale || holder_is_gone(r, who))));
}

void inbox_sim_bury(struct inbox_row_sim *r, int64_t now_us, const struct inbox_asker *who,
                    const struct inbox_ask *ask, struct inbox_reply *ret)
{
    *ret = (struct inbox_reply){.unproven_us = -1};
    if (!has_row(r))
        ret->answer = ROW_VANISHED;
    else if (may_bury(r, now_us, who, ask)) {
        ret->answer = r->locked_by ? ROW_LOCKED : ask->holds ? ROW_ON_HOLD : ROW_DEAD_LETTERED;
        if (r->locked_by)
            return;
        r->status = ask->holds ? INBOX_HELD : INBOX_DEAD;
        memcpy(r->token, ask->token, 16);
        r->expires_us = now_us;
        r->flushed = true;
        r->n_letters += !ask->holds;
        if (!ask->holds)
            r->letter_deaths = ask->deaths;
        ret->inserted = true;
        ret->attempt = r->attempt;
    } else if (ask->holds && r->status == INBOX_HELD && has_token(r, ask->token))
        ret->answer = ROW_ON_HOLD;
    else if (r->status == INBOX_COMPLETED)
        ret->answer = ROW_COMPLETED;
    else if (r->status == INBOX_DEAD)
        ret->answer = has_token(r, ask->token) && r->n_letters ? ROW_DEAD_LETTERED : ROW_DEAD;
    else if (ask->exhausted && ask->near_limit && r->status == INBOX_WAITING)
        ret->answer = ROW_LOCKED;
    else
        ret->answer = ROW_LOST;
}

bool inbox_sim_is_letter(const struct inbox_letter_sim *l, const struct inbox_ask *ask, uint64_t says)
{
    static const uint8_t none[16];

    if (memcmp(l->token, ask->token, 16) != 0)
        return false;
    return memcmp(ask->token, none, 16) != 0 || l->says == says;
}

size_t inbox_sim_letter(struct inbox_letters_sim *all, const struct inbox_ask *ask, uint64_t says,
                        bool *ret_inserted)
{
    *ret_inserted = false;
    for (size_t i = 0; i < all->n && ask->looked_for; i++)
        if (inbox_sim_is_letter(&all->items[i], ask, says))
            return i;
    if (all->n == all->cap) {
        all->cap = all->cap ? all->cap * 2 : 16;
        all->items = mem_realloc(all->items, all->cap * sizeof(*all->items));
    }
    memcpy(all->items[all->n].token, ask->token, 16);
    all->items[all->n].says = says;
    *ret_inserted = true;
    return all->n++;
}

/* Is the row completed, as this transaction sees it? */
static bool is_done(const struct inbox_row_sim *r, uint64_t tx)
{
    return has_row(r) && (r->status == INBOX_COMPLETED || (r->locked_by == tx && !r->only_locked));
}

static void take(struct inbox_row_sim *r, uint64_t tx, bool only_locked)
{
    r->locked_by = tx;
    r->only_locked = only_locked;
}

enum inbox_said inbox_sim_complete(struct inbox_row_sim *r, const uint8_t token[16],
                                   const struct inbox_row_sim *before, uint64_t tx)
{
    if (!has_row(r) || !has_token(r, token))
        return INBOX_OW001;
    if (is_done(r, tx))
        return INBOX_OW003;
    if (before && !is_done(before, tx))
        return INBOX_OW001;
    if (r->locked_by && r->locked_by != tx)
        return INBOX_WAITS;
    if (r->status != INBOX_PROCESSING)
        return INBOX_OW001;
    take(r, tx, false);
    return INBOX_OK;
}

static bool is_open(const struct inbox_row_sim *r, const uint8_t token[16])
{
    return has_row(r) && has_token(r, token) && r->status == INBOX_PROCESSING;
}

static bool is_held_by_other(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16], size_t n,
                             uint64_t tx)
{
    for (size_t i = 0; i < n; i++)
        if (is_open(rows[i], tokens[i]) && rows[i]->locked_by && rows[i]->locked_by != tx)
            return true;
    return false;
}

enum inbox_said inbox_sim_complete_valid(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16],
                                         struct inbox_row_sim *const *befores, size_t n, uint64_t tx,
                                         uint64_t *ret_valid)
{
    *ret_valid = 0;
    if (is_held_by_other(rows, tokens, n, tx))
        return INBOX_WAITS;
    for (size_t i = 0; i < n; i++) {
        if (!is_open(rows[i], tokens[i]) || is_done(rows[i], tx))
            continue;
        bool comes_too_early = befores[i] && !is_done(befores[i], tx);

        take(rows[i], tx, comes_too_early);
        *ret_valid |= comes_too_early ? 0 : UINT64_C(1) << i;
    }
    return INBOX_OK;
}

/* Reason why not all tokens could be used. */
static enum inbox_said refusal(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16], size_t n,
                               uint64_t tx)
{
    for (size_t i = 0; i < n; i++)
        if (!has_row(rows[i]) || !has_token(rows[i], tokens[i]) ||
            (rows[i]->status != INBOX_COMPLETED && !(tx && is_done(rows[i], tx))))
            return INBOX_OW001;
    return INBOX_OW003;
}

static bool is_among(struct inbox_row_sim *const *rows, size_t n, const struct inbox_row_sim *r)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i] == r)
            return true;
    return false;
}

/* Does the message follow one of its key that is neither completed nor among these? */
static bool is_apart(struct inbox_row_sim *const *rows, struct inbox_row_sim *const *befores, size_t n,
                     size_t i, uint64_t tx)
{
    return befores[i] && !is_done(befores[i], tx) && !is_among(rows, n, befores[i]);
}

enum inbox_said inbox_sim_complete_all(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16],
                                       struct inbox_row_sim *const *befores, size_t n, uint64_t tx)
{
    for (size_t i = 0; i < n; i++)
        if (!is_apart(rows, befores, n, i, tx) && is_held_by_other(&rows[i], &tokens[i], 1, tx))
            return INBOX_WAITS;
    for (size_t i = 0; i < n; i++)
        if (!is_open(rows[i], tokens[i]) || is_done(rows[i], tx) || is_apart(rows, befores, n, i, tx))
            return refusal(rows, tokens, n, tx);
    for (size_t i = 0; i < n; i++)
        take(rows[i], tx, false);
    return INBOX_OK;
}

enum inbox_said inbox_sim_extend_all(struct inbox_row_sim *const *rows, const uint8_t (*tokens)[16], size_t n,
                                     int64_t now_us, int64_t for_us)
{
    for (size_t i = 0; i < n; i++)
        if (!is_open(rows[i], tokens[i]))
            return refusal(rows, tokens, n, 0);
    for (size_t i = 0; i < n; i++)
        inbox_sim_extend(rows[i], now_us, tokens[i], for_us);
    return INBOX_OK;
}

void inbox_sim_commit(struct inbox_row_sim *r, int64_t now_us, uint64_t tx)
{
    if (r->locked_by != tx)
        return;
    r->locked_by = 0;
    if (r->only_locked)
        return;
    r->status = INBOX_COMPLETED;
    r->completed_us = now_us;
    r->flushed = true;
}

void inbox_sim_rollback(struct inbox_row_sim *r, uint64_t tx)
{
    if (r->locked_by == tx)
        r->locked_by = 0;
}

enum inbox_said inbox_sim_extend(struct inbox_row_sim *r, int64_t now_us, const uint8_t token[16],
                                 int64_t for_us)
{
    int64_t end = now_us + for_us;

    if (!has_row(r) || !has_token(r, token))
        return INBOX_OW001;
    if (r->status == INBOX_COMPLETED)
        return INBOX_OW003;
    if (r->status != INBOX_PROCESSING)
        return INBOX_OW001;
    if (r->locked_by)
        return INBOX_OK;
    if (end > r->max_expires_us)
        end = r->max_expires_us;
    if (end > r->expires_us)
        r->expires_us = end;
    return INBOX_OK;
}

bool inbox_sim_sweep(struct inbox_row_sim *r, int64_t now_us, int64_t late_us)
{
    if (r->status != INBOX_PROCESSING || r->locked_by || r->expires_us > now_us - late_us)
        return false;
    r->status = INBOX_FAILED;
    r->swept = true;
    r->next_us = now_us;
    r->flushed = true;
    return true;
}

bool inbox_sim_move(struct inbox_row_sim *r)
{
    if (r->status != INBOX_COMPLETED || r->moved || r->locked_by)
        return false;
    r->moved = true;
    return true;
}

bool inbox_sim_redrive(struct inbox_row_sim *r, int64_t now_us)
{
    if (r->status != INBOX_DEAD)
        return false;
    r->status = INBOX_WAITING;
    memset(r->token, 0x11, sizeof(r->token)); /* a new token that no sidecar has */
    r->attempt = r->takeovers = r->crashes = r->unproven_step = r->renewals = r->batch_cap = 0;
    r->renewals_until_us = 0;
    r->unproven_us = -1;
    r->next_us = now_us;
    r->alive_us = now_us;
    r->expires_us = now_us - INBOX_GRACE_US;
    return true;
}

bool inbox_sim_retry(struct inbox_row_sim *r, int64_t now_us)
{
    if (r->status != INBOX_HELD || r->locked_by)
        return false;
    r->status = INBOX_WAITING;
    r->attempt = r->takeovers = r->crashes = r->unproven_step = r->batch_cap = 0;
    r->unproven_us = -1;
    r->next_us = r->alive_us = now_us;
    r->flushed = true;
    return true;
}
