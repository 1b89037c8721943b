/* The simulated application: see app_sim.h. It handles a request by a short program of steps, one program for
 * each deed. */
#include "app_sim.h"

#include "broker_sim.h"
#include "database_sim.h"
#include "oracle.h"
#include "random.h"
#include "sidecar_sim.h"

#include "onceward/base/mem.h"

#include <stdlib.h>

enum { STEPS_MAX = 6, LOCK_RETRY_US = 5000 };

enum step {
    STEP_END,
    STEP_BEGIN,
    STEP_COMMIT,
    STEP_ROLLBACK,
    STEP_EXTEND,
    STEP_ANSWER,
    STEP_RESET,
    STEP_UNSENT,
    STEP_CRASH
};

/* Time before the step: thousandths of the work's time, and of the window. */
struct move {
    enum step step;
    int work, window, status;
};

static const struct move programs[N_DEEDS][STEPS_MAX] = {
    [DEED_OK] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_ANSWER, .status = 200}},
    [DEED_500] = {{STEP_ANSWER, 300, .status = 500}},
    [DEED_503] = {{STEP_ANSWER, 20, .status = 503}},
    [DEED_429] = {{STEP_ANSWER, 20, .status = 429}},
    [DEED_409] = {{STEP_ANSWER, 20, .status = 409}},
    [DEED_400] = {{STEP_ANSWER, 50, .status = 400}},
    [DEED_502] = {{STEP_ANSWER, 50, .status = 502}},
    [DEED_RESET] = {{STEP_RESET, 300}},
    [DEED_COMMIT_RESET] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_RESET}},
    [DEED_COMMIT_504] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_ANSWER, .status = 504}},
    [DEED_COMMIT_500] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_ANSWER, .status = 500}},
    [DEED_ROLLBACK] = {{STEP_BEGIN}, {STEP_ROLLBACK, 1000}, {STEP_ANSWER, .status = 500}},
    [DEED_HANG] = {{STEP_END}},
    [DEED_HANG_LATE] = {{STEP_BEGIN, .window = 1700}, {STEP_COMMIT, 1000}},
    [DEED_EARLY] = {{STEP_BEGIN}, {STEP_ANSWER, .status = 200}, {STEP_COMMIT, 2000}},
    [DEED_EARLY_NEVER] = {{STEP_ANSWER, 500, .status = 200}},
    [DEED_202] = {{STEP_ANSWER, 20, .status = 202}, {STEP_BEGIN, .window = 300}, {STEP_COMMIT, 1000}},
    [DEED_202_NEVER] = {{STEP_ANSWER, 20, .status = 202}},
    [DEED_TWICE] =
        {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_BEGIN}, {STEP_COMMIT, 500}, {STEP_ANSWER, .status = 200}},
    [DEED_LOCK_LONG] = {{STEP_BEGIN}, {STEP_COMMIT, .window = 1300}, {STEP_ANSWER, .status = 200}},
    [DEED_LOCK_ROLLBACK] = {{STEP_BEGIN}, {STEP_ROLLBACK, .window = 1300}, {STEP_ANSWER, .status = 500}},
    [DEED_EXTEND] = {{STEP_EXTEND, .window = 500},
                     {STEP_BEGIN, .window = 800},
                     {STEP_COMMIT, 1000},
                     {STEP_ANSWER, .status = 200}},
    [DEED_CRASH] = {{STEP_CRASH, 500}},
    [DEED_COMMIT_CRASH] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_CRASH}},
    [DEED_UNSENT] = {{STEP_UNSENT}},
    [DEED_SOME_FAIL] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_ANSWER, .status = 200}},
    [DEED_SOME_FORGOTTEN] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_ANSWER, .status = 200}},
    [DEED_SOME_CRASH] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_CRASH}},
    [DEED_NO_ECHO] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_ANSWER, .status = 200}},
    [DEED_UNKNOWN_NAME] = {{STEP_BEGIN}, {STEP_COMMIT, 1000}, {STEP_ANSWER, .status = 200}},
    [DEED_404] = {{STEP_ANSWER, 20, .status = 404}},
    [DEED_413] = {{STEP_ANSWER, 20, .status = 413}},
};

void app_sim_init(struct world *w, struct app_sim *a, int index)
{
    *a = (struct app_sim){.world = w, .index = index, .up = true, .slower = 1};
}

void app_sim_deinit(struct app_sim *a)
{
    free(a->busy);
}

static struct app_sim *app_of(const struct post *p)
{
    return &p->sidecar->app;
}

static bool is_transaction(const struct world *w, const struct post *p)
{
    return w->plan->queues[p->queue].rules.transaction;
}

/* --- answers --- */

static void answer_arrives(struct world *w, void *object, uint64_t kind_and_status, uint64_t retry_after)
{
    struct post *p = object;
    int64_t until = sidecar_frozen_until(p->sidecar);

    if (w->now_us < until)
        world_postpone(w, until);
    else
        sidecar_answered(w, p, kind_and_status & 255, (int)(kind_and_status >> 8), (int64_t)retry_after - 1);
}

static void answer(struct world *w, struct post *p, enum answer_kind kind, int status, int64_t retry_after_ms)
{
    if (p->travelling)
        return;
    p->travelling = true;
    world_at(w, w->now_us + wire_us(w), answer_arrives, p, (uint64_t)kind | (uint64_t)status << 8,
             (uint64_t)(retry_after_ms + 1));
}

/* Ends the transaction of the request without its work. */
static void roll_back(struct post *carrier)
{
    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];

        if (p->has_tx)
            inbox_sim_rollback(&p->truth->row, carrier->tx);
        p->has_tx = false;
    }
}

static void leave(struct app_sim *a, const struct post *p)
{
    for (size_t i = 0; i < a->n_busy; i++)
        if (a->busy[i] == p) {
            a->busy[i] = a->busy[--a->n_busy];
            return;
        }
}

/* Ends hanging handlers whose caller is gone. */
static void forget_abandoned(struct app_sim *a)
{
    for (size_t i = 0; i < a->n_busy;)
        if (!a->busy[i]->open && (a->busy[i]->deed == DEED_HANG || a->busy[i]->hung))
            a->busy[i] = a->busy[--a->n_busy];
        else
            i++;
}

static void enter(struct app_sim *a, struct post *p)
{
    if (a->n_busy == a->busy_cap) {
        a->busy_cap = a->busy_cap ? a->busy_cap * 2 : 64;
        a->busy = mem_realloc(a->busy, a->busy_cap * sizeof(struct post *));
    }
    a->busy[a->n_busy++] = p;
    p->at_application = true;
}

/* --- crash and start --- */

static void starts(struct world *w, void *object, uint64_t epoch, uint64_t unused)
{
    struct app_sim *a = object;

    (void)unused;
    if (epoch == a->epoch && !a->up)
        app_sim_start(w, a);
}

void app_sim_start(struct world *w, struct app_sim *a)
{
    if (w->now_us < a->back_us) {
        world_at(w, a->back_us, starts, a, a->epoch, 0);
        return;
    }
    TRACE(w, "application %d starts", a->index);
    a->up = true;
    a->epoch++;
}

void app_sim_crash(struct world *w, struct app_sim *a, int64_t down_us)
{
    bool proxy = w->plan->application.proxy;

    TRACE(w, "application %d ends, %zu requests were there", a->index, a->n_busy);
    w->counts.n_crashes++;
    a->up = false;
    a->epoch++;
    for (size_t i = 0; i < a->n_busy; i++) {
        struct post *p = a->busy[i];

        roll_back(p);
        p->at_application = false;
        answer(w, p, proxy ? ANSWER_STATUS : ANSWER_DIED, proxy ? 502 : 0, -1);
    }
    a->n_busy = 0;
    world_at(w, w->now_us + down_us, starts, a, a->epoch, 0);
}

bool app_sim_probe(const struct world *w, const struct app_sim *a, bool *ret_refused)
{
    bool proxy = w->plan->application.proxy, ready_url = w->plan->application.ready_url;

    *ret_refused = !a->up && !proxy;
    if (a->up)
        return !a->hangs || !ready_url;
    return proxy && !ready_url;
}

/* --- handling of a request --- */

static enum deed deed_of_character(const struct world *w, const struct post *p)
{
    const struct truth *t = p->truth;

    switch (t->character) {
    case CHARACTER_400:
        return DEED_400;
    case CHARACTER_500:
        return DEED_500;
    case CHARACTER_503:
        return DEED_503;
    case CHARACTER_429:
        return DEED_429;
    case CHARACTER_KILLER:
        return DEED_CRASH;
    case CHARACTER_FLAKY:
        return t->n_fails < t->param ? DEED_500 : DEED_OK;
    case CHARACTER_HANG:
        return DEED_HANG;
    case CHARACTER_POISON_200:
        return w->plan->queues[p->queue].rules.transaction ? DEED_EARLY_NEVER : DEED_500;
    default:
        return DEED_OK;
    }
}

static bool needs_transaction(enum deed d)
{
    return d == DEED_EARLY || d == DEED_EARLY_NEVER || d == DEED_202 || d == DEED_202_NEVER;
}

/* Chooses the deed by message and request only, so that a reduced plan treats the remaining messages the same. */
static enum deed choose_deed(const struct world *w, const struct post *p)
{
    uint64_t state =
        random_mix(w->plan->seed ^ ((uint64_t)p->truth->number << 20) ^ (uint64_t)p->truth->n_posts);
    uint64_t at = random_below(&state, 10000);
    enum deed own = deed_of_character(w, p);

    if (own != DEED_OK || w->quiet)
        return own;
    for (int d = 1; d < (p->enveloped ? N_DEEDS : DEED_SOME_FAIL); d++) {
        if (at < w->plan->application.rates[d])
            return !is_transaction(w, p) && needs_transaction((enum deed)d) ? DEED_OK : (enum deed)d;
        at -= w->plan->application.rates[d];
    }
    return DEED_OK;
}

static int status_of_deed(enum deed d)
{
    for (size_t i = 0; i < STEPS_MAX; i++)
        if (programs[d][i].step == STEP_ANSWER && programs[d][i].status / 100 != 2)
            return programs[d][i].status;
    return 0;
}

/* Chooses some messages of the request, in the way of its deed. */
static void choose_some(const struct world *w, struct post *carrier)
{
    static const int statuses[] = {500, 503, 409, 424, 429, 400, 502};
    uint64_t state = random_mix(w->plan->seed ^ ((uint64_t)carrier->truth->number << 20) ^
                                (uint64_t)carrier->truth->n_posts ^ 0x50e);

    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];

        if (random_chance(&state, 6000))
            continue;
        if (carrier->deed == DEED_SOME_FAIL) {
            p->named = statuses[random_below(&state, sizeof(statuses) / sizeof(*statuses))];
            if (w->plan->application.retry_after && random_chance(&state, 5000))
                p->named_s = (int64_t)random_below(&state, 20);
        } else {
            p->forgotten = is_transaction(w, p) || carrier->deed == DEED_SOME_CRASH;
        }
    }
}

/* Chooses the deed for a request with several messages: the worst of them ends it or hangs; others are named, or fail
 * the whole. */
static enum deed choose_deed_of_batch(struct world *w, struct post *carrier)
{
    enum deed whole = DEED_OK;

    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];
        enum deed own = deed_of_character(w, p);

        if (own == DEED_OK)
            continue;
        if (own == DEED_CRASH || (own == DEED_HANG && whole != DEED_CRASH)) {
            whole = own;
        } else if (w->plan->application.names_failures && carrier->n_members > 1) {
            p->named = status_of_deed(own);
            p->forgotten = !p->named;
        } else if (whole == DEED_OK) {
            whole = own;
        }
    }
    if (whole == DEED_OK) {
        whole = choose_deed(w, carrier);
        /* The message's own character is dealt with above. */
        if (deed_of_character(w, carrier) != DEED_OK)
            whole = DEED_OK;
    }
    if (w->plan->application.most_messages && carrier->n_members > w->plan->application.most_messages) {
        w->counts.n_too_many++;
        whole = w->plan->application.too_many;
    }
    carrier->deed = whole;
    if (whole == DEED_SOME_FAIL || whole == DEED_SOME_FORGOTTEN || whole == DEED_SOME_CRASH)
        choose_some(w, carrier);
    return whole;
}

static int64_t some_ms(uint64_t random)
{
    static const int64_t some[] = {-1, -1, 0, 300, 6000, 40000};

    return some[random % (sizeof(some) / sizeof(*some))];
}

/* Retry-After of an answer of "not now", if the plan wants some. */
static int64_t own_retry_after_of(const struct post *p, int status)
{
    const struct plan *plan = p->sidecar->world->plan;
    bool may = plan->application.retry_after && (status == 429 || status == 503 || status == 409);

    return may ? some_ms(random_mix(plan->seed ^ ((uint64_t)p->truth->number << 20) ^
                                    (uint64_t)p->truth->n_posts ^ 0x4e7a))
               : -1;
}

static int64_t retry_after_of(const struct post *p, int status)
{
    if (p->truth->character == CHARACTER_GOOD && p->n_members == 1)
        return own_retry_after_of(p, status);
    if (status != 429)
        return -1;
    for (size_t i = 0; i < p->n_members; i++)
        if (p->members[i]->truth->character == CHARACTER_429)
            return p->members[i]->truth->param;
    return p->truth->character == CHARACTER_429 ? p->truth->param : -1;
}

static void next_step(struct world *w, struct post *p);

/* Does a bad token spoil the transaction? Where bad messages are named, it spoils only its own (complete_valid). */
static bool is_spoilt(struct world *w, struct post *carrier, struct post *p, enum inbox_said said)
{
    if (said == INBOX_OK)
        return false;
    TRACE(w, "application %d: %s: the token is refused", p->sidecar->index, p->truth->id);
    if (carrier->n_members > 1 && w->plan->application.names_failures) {
        p->forgotten = true;
        return false;
    }
    answer(w, carrier, ANSWER_STATUS, said == INBOX_OW003 && carrier->n_members == 1 ? 200 : 500, -1);
    carrier->step = STEPS_MAX;
    return true;
}

/* False: the application waits for a lock, and repeats the step. */
static bool do_begin(struct world *w, struct post *carrier)
{
    bool begun = false;

    if (!is_transaction(w, carrier))
        return true;
    if (!w->database->up) {
        roll_back(carrier);
        answer(w, carrier, ANSWER_STATUS, 500, -1);
        carrier->step = STEPS_MAX;
        return true;
    }
    for (size_t i = 0; i < carrier->n_members; i++)
        begun |= carrier->members[i]->has_tx;
    if (!begun)
        carrier->tx = w->database->next_tx++;
    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];

        if (p->has_tx || p->named || p->forgotten)
            continue;
        enum inbox_said said =
            inbox_sim_complete(&p->truth->row, p->token, p->before ? &p->before->row : NULL, carrier->tx);

        if (said == INBOX_WAITS)
            return false;
        p->has_tx = said == INBOX_OK;
        if (is_spoilt(w, carrier, p, said)) {
            roll_back(carrier);
            return true;
        }
    }
    return true;
}

static void do_commit(struct world *w, struct post *carrier)
{
    bool lost = !w->database->up, any = carrier->enveloped;

    for (size_t i = 0; i < carrier->n_members; i++) {
        const struct post *p = carrier->members[i];

        any |= p->has_tx;
        lost |= p->has_tx && p->truth->row.locked_by != carrier->tx;
    }
    if (is_transaction(w, carrier) && (lost || (!any && carrier->n_members == 1))) {
        roll_back(carrier);
        answer(w, carrier, ANSWER_STATUS, 500, -1);
        carrier->step = STEPS_MAX;
        return;
    }
    if (is_transaction(w, carrier))
        database_flush(w);
    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];

        if (!is_transaction(w, p) && !p->named && !p->forgotten)
            oracle_effect(w, p);
        if (!p->has_tx)
            continue;
        p->has_tx = false;
        inbox_sim_commit(&p->truth->row, database_now(w), carrier->tx);
        TRACE(w, "application %d: %s is committed", p->sidecar->index, p->truth->id);
        oracle_effect(w, p);
    }
}

static void extend(struct world *w, struct post *carrier)
{
    for (size_t i = 0; i < carrier->n_members; i++) {
        struct post *p = carrier->members[i];

        if (w->database->up &&
            inbox_sim_extend(&p->truth->row, database_now(w), p->token,
                             w->plan->queues[p->queue].rules.token_window_ms * 1500) == INBOX_OK)
            TRACE(w, "application %d: %s is extended", p->sidecar->index, p->truth->id);
    }
}

static void count_kills(struct post *carrier)
{
    bool known = false;

    for (size_t i = 0; i < carrier->n_members; i++) {
        struct truth *t = carrier->members[i]->truth;

        t->n_kills += t->character == CHARACTER_KILLER;
        known |= t->character == CHARACTER_KILLER;
    }
    carrier->truth->n_kills += !known;
}

static void do_step(struct world *w, void *object, uint64_t epoch, uint64_t unused)
{
    struct post *p = object;
    struct app_sim *a = app_of(p);
    const struct move *m = &programs[p->deed][p->step];

    (void)unused;
    if (epoch != a->epoch || p->epoch != a->epoch)
        return;
    p->step++;
    switch (m->step) {
    case STEP_BEGIN:
        if (!do_begin(w, p)) {
            p->step--;
            world_at(w, w->now_us + LOCK_RETRY_US, do_step, p, epoch, 0);
            return;
        }
        break;
    case STEP_COMMIT:
        do_commit(w, p);
        break;
    case STEP_ROLLBACK:
        roll_back(p);
        break;
    case STEP_EXTEND:
        extend(w, p);
        break;
    case STEP_ANSWER:
        answer(w, p, ANSWER_STATUS, m->status, retry_after_of(p, m->status));
        break;
    case STEP_RESET:
        answer(w, p, ANSWER_DIED, 0, -1);
        break;
    case STEP_UNSENT:
        answer(w, p, ANSWER_UNREACHABLE, 0, -1);
        break;
    case STEP_CRASH:
        count_kills(p);
        app_sim_crash(w, a, w->plan->application.restart_us);
        return;
    default:
        p->step = STEPS_MAX;
    }
    next_step(w, p);
}

static void next_step(struct world *w, struct post *p)
{
    const struct move *m = &programs[p->deed][p->step];

    if (p->step >= STEPS_MAX || m->step == STEP_END) {
        if (p->deed != DEED_HANG)
            leave(app_of(p), p);
        p->at_application = false;
        return;
    }
    int64_t window_us = w->plan->queues[p->queue].rules.token_window_ms * 1000;
    int64_t takes_us = p->service_us * m->work / 1000 + window_us * m->window / 1000;

    if (takes_us)
        world_at(w, w->now_us + takes_us, do_step, p, p->epoch, 0);
    else
        do_step(w, p, p->epoch, 0);
}

/* Refuses each message of a batch by name, or the whole. */
static void refuse(struct world *w, struct post *carrier, int status)
{
    bool names = carrier->enveloped && w->plan->application.names_failures && status != 503;

    for (size_t i = 0; i < carrier->n_members && names; i++)
        carrier->members[i]->named = status;
    answer(w, carrier, ANSWER_STATUS, names ? 200 : status, -1);
}

static void request_arrives(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    struct post *p = object;
    struct app_sim *a = app_of(p);
    int capacity = w->plan->application.capacity;
    bool proxy = w->plan->application.proxy;

    (void)unused;
    (void)unused2;
    if (!a->up) {
        w->counts.n_refused++;
        answer(w, p, proxy ? ANSWER_STATUS : ANSWER_UNREACHABLE, proxy ? 502 : 0, -1);
        return;
    }
    p->epoch = a->epoch;
    forget_abandoned(a);
    if (a->hangs) {
        p->hung = true;
        enter(a, p);
        return;
    }
    if (a->forced || (capacity && a->n_busy >= (size_t)capacity)) {
        refuse(w, p, a->forced ? a->forced : 503);
        return;
    }
    p->deed = p->enveloped ? choose_deed_of_batch(w, p) : choose_deed(w, p);
    p->service_us = w->plan->application.service_us * a->slower;
    if (w->plan->jitter)
        p->service_us = random_between(&w->random, p->service_us / 2, p->service_us * 3 / 2);
    for (size_t i = 0; i < p->n_members; i++)
        p->members[i]->truth->n_fails++;
    enter(a, p);
    if (p->deed != DEED_OK)
        TRACE(w, "application %d: %s: %s", a->index, p->truth->id, deed_name(p->deed));
    next_step(w, p);
}

void app_sim_post(struct world *w, struct app_sim *a, struct post *p)
{
    (void)a;
    world_at(w, w->now_us + wire_us(w), request_arrives, p, 0, 0);
}
