/* Requests with several messages in the core of a queue, in virtual time: how many requests a bad message costs, and
 * which messages are charged. */
#include "bed.h"
#include "core/batches.h"
#include "onceward/base/buf.h"
#include "onceward/core/token.h"

enum { N = 100, MOST = 1600, UNANSWERED = -1, DIED = -2, SERVICE_MS = 20 };

/* A request at an application that works for a while. */
struct flight {
    const struct request *request;
    int64_t at;
    int status;
};

struct world {
    struct queue q;
    struct application application;
    struct database database;
    int64_t now, started; /* answers arrive at once until then, so that all messages are claimed */
    bool completed[MOST], dead[MOST];
    char error[MOST][400], said[MOST][400]; /* at the end of the latest attempt */
    int attempts[MOST], caps[MOST], n_posts[MOST], crashes[MOST], takeovers[MOST];
    int64_t due[MOST];
    struct delivery *asked[4 * MOST]; /* at the database, which answers everything of a turn together */
    int n_asked;
    struct flight flights[64];
    int n_flights, n_crashes, n_crashes_of_groups;
    bool takes_time;
    bool forgets;     /* the application answers 2xx and completes nothing */
    bool no_field;    /* the application answers 2xx without the count */
    bool redelivered; /* deliveries from now on */
    int64_t age_ms;   /* of each row at its claim */
    const char *says; /* the body of its answers */
    int64_t database_until, due_step;
    int64_t extended_until; /* the application has extended the tokens, */
    int n_expired;          /* but not those of the messages below this number */
    char result[MOST][40];  /* stored with the completion */
    char size_line[100];    /* the latest: size and reason */
    int n_size_lines, n_requests, n_failed, n_acked, sizes[1000];
    int (*status)(struct world *, const struct request *);
};

static int number_of(const struct delivery *d)
{
    return atoi(d->arrival->id);
}

static bool has(const struct request *r, int message)
{
    list_each(&r->members,
              k) if (number_of(container_of(k, struct delivery, in_request)) == message) return true;
    return false;
}

static void at_database(struct world *w, struct delivery *d)
{
    int n = number_of(d);
    struct row r = {.op = d->op, .unproven_ms = -1};

    switch (d->op) {
    case OP_CLAIM:
        r.answer = w->completed[n] ? ROW_COMPLETED : w->due[n] > w->now ? ROW_NOT_DUE : ROW_CLAIMED;
        r.wait_ms = w->due[n] - w->now;
        r.age_ms = w->age_ms;
        w->attempts[n] += r.answer == ROW_CLAIMED;
        break;
    case OP_LOOK:
        r.answer = ROW_DUE;
        break;
    case OP_CHECK:
        r.answer = w->completed[n] ? ROW_COMPLETED : ROW_CLAIMED;
        break;
    case OP_COMPLETE:
        r.answer = ROW_COMPLETED;
        snprintf(w->result[n], sizeof(w->result[n]), "%.*s", (int)d->outcome.complete.result_len,
                 d->outcome.complete.result ? d->outcome.complete.result : "");
        w->completed[n] = true;
        break;
    case OP_FAIL:
    case OP_REVOKE:
    case OP_RELEASE:
        snprintf(w->error[n], sizeof(w->error[n]), "%s", d->outcome.error ? d->outcome.error : "");
        snprintf(w->said[n], sizeof(w->said[n]), "%s", d->outcome.said ? d->outcome.said : w->error[n]);
        if (d->op == OP_REVOKE && w->now < w->extended_until && n >= w->n_expired) {
            r.answer = ROW_EXTENDED;
            r.wait_ms = w->extended_until - w->now;
            break;
        }
        r.answer = d->op == OP_RELEASE || !delivery_failure(d)->charged ? ROW_RELEASED : ROW_FAILED;
        w->attempts[n] -= r.answer == ROW_RELEASED;
        if (d->claim->next_cap > 0)
            w->caps[n] = d->claim->next_cap;
        if (delivery_changes(d)->crashes >= 0)
            w->crashes[n] = delivery_changes(d)->crashes;
        w->due[n] = w->now + delivery_delay_ms(d);
        if (w->due_step)
            w->due[n] = (w->due[n] / w->due_step + 1) * w->due_step;
        break;
    case OP_DEAD_LETTER:
        r.answer = ROW_DEAD_LETTERED;
        w->dead[n] = true;
        break;
    default:
        fail();
    }
    r.attempt = w->attempts[n];
    r.batch_cap = w->caps[n];
    r.crashes = w->crashes[n];
    r.takeovers = w->takeovers[n];
    queue_row(&w->q, w->now, d->ref, &r);
}

/* Asserts that messages that failed together share requests only with each other, within their cap. */
static void assert_one_kind(const struct request *r)
{
    const struct delivery *first = request_first(r);

    list_each(&r->members, k)
    {
        const struct delivery *d = container_of(k, struct delivery, in_request);

        assert_int_equal(d->claim->batch_cap, first->claim->batch_cap);
        assert_true(!d->claim->batch_cap || d->claim->failed_with == first->claim->failed_with);
    }
    assert_true(!first->claim->batch_cap || r->n_sent <= (size_t)first->claim->batch_cap);
}

/* Asserts that a quarantined request has the application to itself, and that a group has at most eight messages, none
 * of which joins it later. */
static void assert_quarantine(const struct world *w, const struct request *r)
{
    const struct delivery *first = request_first(r);

    list_each(&r->members, k)
        assert_int_equal(container_of(k, struct delivery, in_request)->claim->alone, first->claim->alone);
    if (first->claim->alone)
        assert_true(r->n_sent <= 8 && w->application.n_out == 1);
    if (first->claim->group && first->claim->group == w->q.quarantine.number)
        assert_true(w->q.quarantine.is_sent);
    if (first->claim->crashes > 1)
        assert_int_equal(r->n_sent, 1);
}

static void answer(struct world *w, struct flight f)
{
    const struct request *r = f.request;
    struct answer a = {.kind = f.status == DIED ? ANSWER_DIED : ANSWER_STATUS,
                       .status = f.status == DIED ? 0 : f.status,
                       .batch = f.status / 100 == 2 && !w->no_field ? (int64_t)r->n_sent : -1,
                       .retry_after_ms = -1,
                       .body = slice_of(w->says ? w->says : ""),
                       .brief = "answered",
                       .error = "answered",
                       .took_us = 1000};

    list_each(&r->members, k)
    {
        int n = number_of(container_of(k, struct delivery, in_request));

        w->completed[n] |= f.status == 200 && w->q.rules.transaction && !w->forgets;
    }
    const struct delivery *first = request_first(r);

    queue_answered(&w->q, w->now, r->ref, &a);
    assert_true(first->request != r || r->body.cap == 0); /* no waiting delivery keeps it in memory */
}

/* Ends the application with all requests there. */
static void crash(struct world *w)
{
    size_t n = 0;

    for (int i = 0; i < w->n_flights; i++)
        n += w->flights[i].request->n_sent;
    w->n_crashes++;
    w->n_crashes_of_groups += n > 1;
    while (w->n_flights) {
        struct flight f = w->flights[--w->n_flights];

        f.status = DIED;
        answer(w, f);
    }
}

static void answer_due(struct world *w)
{
    for (int i = 0; i < w->n_flights; i++) {
        struct flight f = w->flights[i];

        if (f.at > w->now)
            continue;
        if (f.status == DIED) {
            crash(w);
            return;
        }
        w->flights[i--] = w->flights[--w->n_flights];
        answer(w, f);
    }
}

static void at_application(struct world *w, const struct request *r)
{
    int status = w->status(w, r);

    assert_one_kind(r);
    assert_quarantine(w, r);

    w->sizes[w->n_requests++] = (int)r->n_sent;
    w->n_failed += status / 100 != 2;
    assert_true(w->n_requests < 1000 && r->body.len > 0);
    list_each(&r->members, k)
    {
        int n = number_of(container_of(k, struct delivery, in_request));

        w->n_posts[n]++;
    }
    if (status == UNANSWERED)
        return;
    w->flights[w->n_flights++] = (struct flight){r, w->now + (w->takes_time ? SERVICE_MS : 0), status};
    if (!w->takes_time)
        answer_due(w);
}

static void carry_out(struct world *w, const struct action *a)
{
    switch (a->kind) {
    case ACTION_DATABASE:
        w->asked[w->n_asked++] = a->d;
        break;
    case ACTION_FORWARD:
        at_application(w, a->request);
        break;
    case ACTION_TELL:
        w->n_size_lines += a->note.event == EVENT_BATCH_SIZE;
        if (a->note.event == EVENT_BATCH_SIZE)
            snprintf(w->size_line, sizeof(w->size_line), "%d: %s", (int)a->note.n, a->note.text);
        break;
    case ACTION_ACK:
        w->n_acked += (int)a->n;
        break;
    case ACTION_CONSUME:
        queue_consuming(&w->q, w->now, a->number);
        break;
    case ACTION_CANCEL:
        queue_stopped(&w->q, w->now, a->number);
        break;
    default:
        break;
    }
}

static void run(struct world *w, int64_t until)
{
    struct action a;

    while (w->now < until) {
        if (application_wants_probe(&w->application, w->now)) {
            bed_application_is_up(&w->application, w->now);
        }
        answer_due(w);
        queue_time(&w->q, w->now);
        for (int n = 0; n < 100000 && queue_next(&w->q, w->now, ~0u, &a); n++)
            carry_out(w, &a);
        bool more = w->n_asked > 0;

        more &= w->now >= w->database_until;
        for (int i = 0; i < w->n_asked && more; i++)
            at_database(w, w->asked[i]);
        if (more)
            w->n_asked = 0;
        queue_reap(&w->q);
        if (more)
            continue;
        if (!queue_n_held(&w->q) && w->now > 100)
            return;
        int64_t next = queue_deadline(&w->q, w->now), other = application_deadline(&w->application, w->now);

        next = next < other ? next : other;
        for (int i = 0; i < w->n_flights; i++)
            next = next < w->flights[i].at ? next : w->flights[i].at;
        if (w->n_asked)
            next = next < w->database_until ? next : w->database_until;
        next = next > w->now ? next : w->now + 1;
        w->now = next < until ? next : until;
    }
}

static void deliver(struct world *w, int number, size_t body_len)
{
    char id[16];

    snprintf(id, sizeof(id), "%d", number);
    struct arrival *a = bed_arrival(&w->q, id);

    a->message->redelivered = w->redelivered;
    a->message->body = body_len ? calloc(1, body_len) : NULL;
    a->message->body_len = a->copy.body_len = body_len;
    queue_delivered(&w->q, w->now, a, NULL);
}

/* Makes a world with a single slot, so that all messages are in one request at first; or with as many slots as are
 * needed for that. first: the world whose consumer it shares as another partition; NULL: none. */
static struct world *partition_of(struct world *first, int n, bool transaction,
                                  int (*status)(struct world *, const struct request *))
{
    int n_slots = n > N ? n / N : 1;
    static const int permanent[] = {400, 422};
    struct queue_rules rules = bed_batch_rules(N);
    struct world *w = calloc(1, sizeof(*w));

    w->now = 1;
    w->status = status;
    rules.transaction = transaction;
    rules.concurrency = n_slots;
    rules.prefetch = 2 * N * n_slots;
    rules.max_parked = 2 * MOST;
    rules.permanent_status = permanent;
    rules.n_permanent_status = 2;
    bed_start(&w->application, &w->database, &w->q, 1, &rules, w->now);
    if (first)
        queue_join_share(&w->q, &first->q);
    queue_channel_open(&w->q, w->now, 1, 3, 0, KIND_CLASSIC);
    run(w, 50);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    for (int i = 0; i < n; i++)
        deliver(w, i, 0);
    return w;
}

static struct world *world_of(int n, bool transaction, int (*status)(struct world *, const struct request *))
{
    return partition_of(NULL, n, transaction, status);
}

static struct world *world(bool transaction, int (*status)(struct world *, const struct request *))
{
    return world_of(N, transaction, status);
}

static void end(struct world *w)
{
    queue_deinit(&w->q);
    bed_is_empty(&w->application);
    free(w);
}

static int bad;

static int one_is_bad(struct world *w, const struct request *r)
{
    return has(r, bad) ? 500 : 200;
}

static void assert_only_bad_is_charged(const struct world *w)
{
    for (int i = 0; i < N; i++) {
        assert_int_equal(w->dead[i], i == bad);
        assert_int_equal(w->attempts[i], i == bad ? 2 : 1);
    }
}

static void one_bad_message_costs_at_most_fifteen_more_requests(void **state)
{
    for (bad = 0; bad < N; bad++) {
        struct world *w = world(true, one_is_bad);

        run(w, 600000);
        assert_int_equal(w->sizes[0], N);
        assert_only_bad_is_charged(w);
        /* The first, at most 15 more, and its second attempt. */
        if (w->n_requests > 1 + 15 + 1)
            fail_msg("%d: %d requests", bad, w->n_requests);
        end(w);
    }
}

static int n_bad;

static int some_are_bad(struct world *w, const struct request *r)
{
    for (int i = 0; i < n_bad; i++)
        if (has(r, i * N / n_bad + N / n_bad / 2))
            return 500;
    return 200;
}

/* The figures of the guide, with evenly spread bad messages, which cost most. */
static void several_bad_messages_cost_as_many_requests_as_the_guide_says(void **state)
{
    static const struct {
        int n, extra;
    } cases[] = {{2, 26}, {5, 54}, {10, 90}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct world *w;

        n_bad = cases[i].n;
        w = world(true, some_are_bad);
        run(w, 600000);
        for (int m = 0; m < N; m++)
            assert_int_equal(w->dead[m], m % (N / n_bad) == N / n_bad / 2);
        assert_true(w->n_requests <= 1 + cases[i].extra + n_bad);
        end(w);
    }
}

static void in_response_no_other_goes_more_than_twice(void **state)
{
    bad = 42;
    struct world *w = world(false, one_is_bad);

    run(w, 600000);
    assert_only_bad_is_charged(w);
    for (int i = 0; i < N; i++)
        assert_int_in_range(w->n_posts[i], 1, i == bad ? 3 : 2);
    end(w);
}

/* Rows keep the cap, but not the request that failed: a new sidecar has only the cap. */
static void after_a_restart_messages_of_equal_caps_go_together(void **state)
{
    bad = 40;
    struct world *w = world_of(0, true, one_is_bad);

    for (int i = 0; i < N; i++) {
        w->caps[i] = i % 5 == 0 ? 0 : i % 2 ? 25 : 50;
        deliver(w, i, 0);
    }
    run(w, 600000);
    assert_only_bad_is_charged(w);
    assert_int_in_range(w->n_requests, 4, 20);
    end(w);
}

static int one_is_refused(struct world *w, const struct request *r)
{
    return has(r, bad) ? 422 : 200;
}

/* A lone message cannot show whether the application knows batches, so it is not charged before an answer shows
 * that. */
static void a_refused_message_that_is_the_first_does_not_pause_the_queue(void **state)
{
    bad = 0;
    struct world *w = world_of(1, true, one_is_refused);

    for (int tries = 1; tries <= w->q.rules.max_attempts; tries++) {
        while (w->n_requests < tries)
            run(w, w->now + 1);
        assert_false(w->q.share->brake.on || w->dead[0] || w->attempts[0] > 1);
    }
    run(w, 60000); /* no other message has arrived, which an operator should know */
    assert_true(w->q.pauses[PAUSE_NO_BATCHES].since_ms && !w->dead[0]);
    deliver(w, 1, 0);
    run(w, 600000);
    assert_true(w->completed[1] && w->dead[0]);
    end(w);
}

static int does_not_know_batches(struct world *w, const struct request *r)
{
    return 422;
}

static void an_application_that_does_not_know_batches_kills_nothing(void **state)
{
    for (int together = 0; together < 2; together++) {
        struct world *w = world_of(0, true, does_not_know_batches);

        for (int i = 0; i < N; i++) {
            deliver(w, i, 0);
            run(w, w->now + (together ? 0 : 1000));
        }
        run(w, w->now + 60000);
        assert_true(w->q.share->brake.on);
        for (int i = 0; i < N; i++)
            assert_true(!w->dead[i] && w->attempts[i] <= 1);
        end(w);
    }
}

static int says_not_now, n_refusals;

static int refuses_twice(struct world *w, const struct request *r)
{
    return w->n_requests < n_refusals ? says_not_now : 200;
}

/* 429 and 503: all members are released, and the limiter waits. */
static void an_overloaded_application_gets_the_same_again(void **state)
{
    for (int i = 0; i < 2; i++) {
        says_not_now = i ? 503 : 429;
        n_refusals = 1;
        struct world *w = world(true, refuses_twice);

        run(w, w->now + 20);
        assert_int_equal(w->sizes[0], N);
        assert_true(w->application.limiter.limit < 2 && w->q.share->limiter.wait_until_ms > w->now);
        run(w, 600000);
        for (int m = 0; m < N; m++)
            assert_true(w->completed[m] && w->attempts[m] == 1 && !w->caps[m]);
        end(w);
    }
}

/* A locked row is answered in halves, since one member may be the cause. No message is charged. */
static int one_is_locked(struct world *w, const struct request *r)
{
    return has(r, bad) && w->now < 600000 ? says_not_now : 200;
}

static void not_now_because_of_one_member_goes_in_halves(void **state)
{
    static const int statuses[] = {408, 409, 423, 425};

    bad = 42;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        says_not_now = statuses[i];
        struct world *w = world(true, one_is_locked);

        run(w, 500000);
        for (int m = 0; m < N; m++)
            assert_true(w->completed[m] == (m != bad) && !w->dead[m] && w->attempts[m] <= 1);
        assert_int_equal(w->sizes[0], N);
        run(w, 2000000);
        assert_true(w->completed[bad]);
        end(w);
    }
}

static void not_now_for_ever_because_of_one_member_stops_no_other(void **state)
{
    bad = 42;
    for (int i = 0; i < 2; i++) {
        says_not_now = i ? 503 : 429;
        struct world *w = world(true, one_is_locked);

        run(w, 400000);
        for (int m = 0; m < N; m++)
            assert_true(w->completed[m] == (m != bad) && !w->dead[m] && w->attempts[m] <= 1);
        end(w);
    }
}

/* A status of permanent_status in answer to a single message is permanent, whatever it means otherwise. In answer to
 * several messages it says nothing about one of them. */
static void a_permanent_status_kills_only_a_message_alone(void **state)
{
    static const int statuses[] = {408, 409, 423, 425, 429, 500, 502, 503, 504};

    bad = 42;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        struct world *w = world_of(0, true, one_is_locked);

        says_not_now = statuses[i];
        w->q.rules.permanent_status = statuses + i;
        w->q.rules.n_permanent_status = 1;
        w->takes_time = true;
        for (int m = 0; m < N; m++)
            deliver(w, m, 0);
        run(w, 400000);
        assert_int_equal(w->sizes[0], N);
        for (int m = 0; m < N; m++)
            if (w->dead[m] != (m == bad) || w->completed[m] != (m != bad) || w->attempts[m] != 1)
                fail_msg("%d: message %d: dead %d, completed %d, %d attempts", statuses[i], m, w->dead[m],
                         w->completed[m], w->attempts[m]);
        end(w);
    }
}

/* The next attempt may be later than max_hold, and a new delivery does not know how often the message was refused. */
static void a_redelivered_message_that_is_refused_in_company_goes_alone(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct world *w = world_of(0, i == 0, refuses_twice);

        says_not_now = i ? 503 : 429;
        n_refusals = 1;
        w->redelivered = true;
        w->due_step = 60000;
        deliver(w, 0, 0);
        deliver(w, 1, 0);
        run(w, 600000);
        assert_int_equal(w->sizes[0], 2);
        assert_int_equal(w->n_requests, 3);
        assert_true(w->completed[0] && w->completed[1] && !w->caps[0] && !w->caps[1]);
        end(w);
    }
}

/* The copy of a renewal is no redelivery, but its row is older than this delivery. If another request succeeds after
 * the refusal, one member of the refused one may be the cause; without that, an overload may be. */
static void a_message_with_an_older_row_that_is_refused_in_company_goes_alone(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct world *w = world_of(0, i == 0, refuses_twice);

        says_not_now = i ? 503 : 429;
        n_refusals = 1;
        w->age_ms = 120000;
        w->due_step = 60000;
        deliver(w, 0, 0);
        deliver(w, 1, 0);
        run(w, 600000);
        assert_int_equal(w->sizes[0], 2);
        assert_int_equal(w->n_requests, 3);
        assert_true(w->completed[0] && w->completed[1] && !w->caps[0] && !w->caps[1]);
        end(w);
    }
}

/* The first claims are answered too late to be sent. The rows of the second claims are as old as this delivery. */
static void a_message_that_was_claimed_here_before_goes_with_the_others_again(void **state)
{
    struct world *w = world_of(0, true, refuses_twice);

    says_not_now = 429;
    n_refusals = 1;
    w->due_step = 60000;
    w->database_until = w->now + w->q.rules.token_window_ms;
    deliver(w, 0, 0);
    deliver(w, 1, 0);
    run(w, w->database_until);
    assert_int_equal(w->n_requests, 0);
    w->age_ms = w->q.rules.token_window_ms;
    run(w, 600000);
    assert_int_equal(w->n_requests, 2);
    assert_true(w->completed[0] && w->completed[1]);
    end(w);
}

static int refuses_pairs(struct world *w, const struct request *r)
{
    return r->n_sent > 1 ? 429 : 200;
}

/* The success of another message after the first refusal counts at the second one too, though a claim is between. */
static void a_message_with_an_older_row_that_is_refused_again_goes_in_halves(void **state)
{
    struct world *w = world_of(0, true, refuses_pairs);

    w->age_ms = 120000;
    w->due_step = 60000;
    deliver(w, 0, 0);
    deliver(w, 1, 0);
    run(w, 1000);
    assert_int_equal(w->n_requests, 1);
    w->age_ms = 0;
    deliver(w, 2, 0);
    run(w, 50000);
    assert_int_equal(w->n_requests, 2);
    w->age_ms = 120000;
    run(w, 60500);
    assert_int_equal(w->sizes[2], 2);
    assert_int_equal(w->caps[0], 1);
    assert_int_equal(w->caps[1], 1);
    end(w);
}

static int takes_ten(struct world *w, const struct request *r)
{
    return r->n_sent > 10 ? 413 : 200;
}

static int takes_all_but_one(struct world *w, const struct request *r)
{
    return w->n_requests && has(r, bad) ? 413 : 200;
}

/* 413 halves the size until the application takes it; for one large message it is halved once. */
static void a_request_that_is_too_large_goes_in_halves(void **state)
{
    struct world *w = world_of(1, true, takes_ten); /* the answer shows that the application knows batches */

    run(w, 100);
    for (int i = 1; i < N; i++)
        deliver(w, i, 0);
    run(w, 600000);
    for (int i = 0; i < N; i++)
        assert_true(w->completed[i] && w->attempts[i] == 1);
    end(w);

    bad = 42;
    w = world_of(1, true, takes_all_but_one);
    run(w, 100);
    for (int i = 1; i < N; i++)
        deliver(w, i, 0);
    run(w, 600000);
    for (int i = 0; i < N; i++)
        assert_true(w->completed[i] == (i != bad) && w->attempts[i] <= 1 + (i == bad));
    assert_int_equal(queue_batch_size(&w->q), N / 2);
    assert_int_equal(w->n_size_lines, 1);
    assert_string_equal(w->size_line, "50: a request was answered 413");
    end(w);

    w = world_of(1, true, takes_ten); /* the circuit breaker does not count a 413 */
    run(w, 100);
    for (int i = 1; i < N; i++)
        deliver(w, i, 0);
    while (w->n_requests < 2)
        run(w, w->now + 1);
    assert_int_equal(w->q.share->brake.n, 0);
    end(w);
}

static size_t capacity;

static int remembers_the_capacity(struct world *w, const struct request *r)
{
    if (!has(r, 1) && r->body.cap > capacity)
        capacity = r->body.cap;
    return 200;
}

static void a_body_that_does_not_fit_is_not_encoded(void **state)
{
    struct world *w = world_of(1, true, remembers_the_capacity);

    deliver(w, 1, 32 << 20);
    deliver(w, 2, 0);
    capacity = 0;
    run(w, 600000);
    assert_int_in_range(capacity, 1, 1 << 20);
    assert_int_equal(w->n_acked, 3);
    end(w);
}

static int one_kills(struct world *w, const struct request *r)
{
    return has(r, bad) ? DIED : 200;
}

static void assert_only_killer_is_charged(const struct world *w, int n)
{
    for (int i = 0; i < n; i++) {
        if (w->dead[i] != (i == bad) || w->attempts[i] != (i == bad ? 2 : 1))
            fail_msg("%d of %d: %d attempts, dead %d, completed %d", i, n, w->attempts[i], w->dead[i],
                     w->completed[i]);
    }
}

/* Of 1,600 messages in flight one ends the application: the first crash, that of its group, and then its own. */
static void a_killer_among_many_is_found_after_two_crashes(void **state)
{
    for (bad = 0; bad < MOST; bad += 333) {
        struct world *w = world_of(MOST, true, one_kills);

        w->takes_time = true;
        w->application.limiter.limit = w->q.share->limiter.limit = 16;
        run(w, 1200000);
        assert_int_equal(w->sizes[15], N);
        assert_only_killer_is_charged(w, MOST);
        assert_int_in_range(w->n_crashes_of_groups, 1, 2);
        assert_int_equal(w->n_crashes, w->n_crashes_of_groups + 2);
        end(w);
    }
}

static void a_killer_in_response_is_found_by_groups_too(void **state)
{
    bad = 42;
    struct world *w = world(false, one_kills);

    w->takes_time = true;
    run(w, 600000);
    assert_only_killer_is_charged(w, N);
    assert_int_in_range(w->n_crashes_of_groups, 1, 2);
    for (int i = 0; i < N; i++)
        assert_int_in_range(w->n_posts[i], 2, i == bad ? 4 : 3);
    end(w);
}

static int answers_each(struct world *w, const struct request *r)
{
    return 200;
}

static int says_the_third_attempt(struct world *w, const struct request *r)
{
    static const char attempt[] = "\"attempt\":3,";

    assert_non_null(memmem(r->body.data, r->body.len, attempt, sizeof(attempt) - 1));
    return 200;
}

/* Each takeover is an attempt for the application, which may have begun its work. */
static void a_takeover_counts_as_an_attempt_in_the_body(void **state)
{
    struct world *w = world_of(0, true, says_the_third_attempt);

    for (int i = 0; i < N; i++) {
        w->takeovers[i] = 2;
        deliver(w, i, 0);
    }
    run(w, 600000);
    assert_true(w->n_requests > 0);
    end(w);
}

/* Two sidecars have died with these messages, perhaps because of one of them; a third one has died with a group. */
static void after_the_second_takeover_messages_go_in_groups(void **state)
{
    for (int takeovers = 2; takeovers <= 3; takeovers++) {
        struct world *w = world_of(0, true, answers_each);

        for (int i = 0; i < N; i++) {
            w->takeovers[i] = takeovers;
            deliver(w, i, 0);
        }
        run(w, 600000);
        for (int i = 0; i < N; i++)
            assert_true(w->completed[i]);
        if (takeovers == 2)
            assert_int_in_range(w->n_requests, N / 8, N / 8 + 10);
        else
            assert_int_in_range(w->n_requests, N - 10, N);
        end(w);
    }
}

/* Only the row shows that they were in a crash. */
static void after_a_restart_the_suspects_go_in_groups(void **state)
{
    bad = 42;
    struct world *w = world_of(0, true, one_kills);

    for (int i = 0; i < N; i++) {
        w->crashes[i] = 1;
        deliver(w, i, 0);
    }
    run(w, 600000);
    assert_only_killer_is_charged(w, N);
    assert_int_in_range(w->n_crashes_of_groups, 0, 1);
    assert_int_in_range(w->n_requests, N / 8, N / 8 + 8 + 8);
    end(w);
}

/* Requests were small when the message began to wait for the application, and are large when it is claimed. */
static void a_message_that_waits_alone_stays_alone_when_requests_grow(void **state)
{
    struct world *w = world_of(2, true, answers_each);
    struct batch_size *size = &w->application.batch_size;

    w->application.limiter.limit = w->q.share->limiter.limit = 2;
    w->takes_time = true;
    size->messages = 1;
    w->crashes[1] = 1;
    while (!w->application.place.owner && w->now < 60000)
        run(w, w->now + 1);
    assert_true(w->application.place.owner && w->n_flights);
    size->messages = N;
    run(w, 600000);
    assert_true(w->completed[0] && w->completed[1]);
    assert_int_equal(w->application.place.owner, 0);
    end(w);
}

static int all_are_bad(struct world *w, const struct request *r)
{
    return 500;
}

/* The circuit breaker is on after few requests, and no message is dead. */
static void a_bad_deployment_sets_the_circuit_breaker(void **state)
{
    struct world *w = world(true, all_are_bad);

    while (!w->q.share->brake.on && w->now < 600000)
        run(w, w->now + 1);
    assert_true(w->q.share->brake.on);
    assert_int_in_range(w->n_requests, 1, 20);
    run(w, w->now + 60000);
    for (int i = 0; i < N; i++)
        assert_false(w->dead[i]);
    end(w);
}

static int answers_well(struct world *w, const struct request *r)
{
    return 200;
}

static int nothing_is_answered(struct world *w, const struct request *r)
{
    return w->n_requests ? UNANSWERED : 200;
}

static void a_deployment_that_hangs_sets_the_circuit_breaker(void **state)
{
    struct world *w = world_of(1, true, nothing_is_answered);

    run(w, w->now + 1000);
    for (int i = 1; i < N; i++)
        deliver(w, i, 0);
    while (!w->q.share->brake.on && w->now < 3600000)
        run(w, w->now + 1000);
    assert_true(w->q.share->brake.on && w->q.pauses[PAUSE_EVERYTHING_FAILS].since_ms);
    assert_int_in_range(w->n_requests, 1, 10);
    for (int i = 0; i < N; i++)
        assert_true(!w->dead[i] && w->attempts[i] <= 1);
    end(w);
}

/* Names each message of a request with this status. */
static const char *names_all(int n, int status)
{
    static char text[N * 40];
    size_t len = (size_t)snprintf(text, sizeof(text), "{\"failures\": [");

    for (int i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s{\"id\": \"%d\", \"status\": %d}",
                                i ? ", " : "", i, status);
    snprintf(text + len, sizeof(text) - len, "]}");
    return text;
}

/* Named messages count one by one, as if each had been sent alone: with fewer than the threshold they are dead, with
 * more none is. */
static void messages_that_are_named_together_count_each(void **state)
{
    for (int i = 0; i < 4; i++) {
        int n = i < 2 ? 19 : 20;
        struct world *w = world_of(0, i % 2, answers_well);

        w->forgets = true;
        w->says = names_all(n, 422);
        for (int m = 0; m < n; m++)
            deliver(w, m, 0);
        while (!w->n_requests)
            run(w, w->now + 1);
        run(w, w->now + 20000);
        assert_int_equal(w->sizes[0], n);
        assert_int_equal(w->q.share->brake.on, n == 20);
        for (int m = 0; m < n; m++)
            assert_int_equal(w->dead[m], n < 20);
        end(w);
    }
}

/* A good answer to a request of one partition shows that the application knows batches, for all of them. */
static void partitions_share_what_the_application_knows(void **state)
{
    struct world *a = world(true, answers_well), *b;

    run(a, 60000);
    assert_true(a->completed[0]);
    bad = 0;
    b = partition_of(a, 1, true, one_is_refused);
    run(b, 60000);
    assert_true(b->dead[0] && !b->q.pauses[PAUSE_NO_BATCHES].since_ms);
    end(b);
    end(a);
}

static void bad_answers_to_partitions_are_counted_together(void **state)
{
    struct world *a = world_of(0, false, answers_well), *b = partition_of(a, 0, false, answers_well);

    a->no_field = b->no_field = true;
    for (int i = 0; i < 3; i++) {
        struct world *w = i == 1 ? b : a;

        assert_false(a->q.share->brake.on);
        deliver(w, i, 0);
        for (int n = w->n_requests; w->n_requests == n;)
            run(w, w->now + 1);
    }
    assert_true(a->q.share->brake.on && a->q.pauses[PAUSE_BAD_ANSWER].since_ms);
    run(b, b->now + 1);
    assert_string_equal(b->q.pauses[PAUSE_EVERYTHING_FAILS].text, "its answer has no field Onceward-Batch");
    end(b);
    end(a);
}

static int four_are_bad(struct world *w, const struct request *r)
{
    for (int i = 0; i < 4; i++)
        if (has(r, i * 25))
            return 500;
    return 200;
}

/* The circuit breaker of five counts bad messages, not the requests that find them. */
static void four_bad_messages_do_not_set_the_circuit_breaker(void **state)
{
    struct world *w = world(true, four_are_bad);

    while (w->n_requests < 15) {
        run(w, w->now + 1);
        assert_false(w->q.share->brake.on);
    }
    run(w, 600000);
    for (int i = 0; i < N; i++)
        assert_true(w->dead[i] == (i % 25 == 0) && w->attempts[i] == (i % 25 == 0 ? 2 : 1));
    end(w);
}

/* The same message is named in each answer, beside one that is not: it does not become another message. */
static void a_message_that_is_named_often_counts_once(void **state)
{
    struct world *w = world_of(0, true, answers_well);

    w->q.rules.max_attempts = 8;
    w->forgets = true;
    w->q.rules.max_backoff_ms = w->due_step = 20000;
    w->says = "{\"failures\": [{\"id\": \"0\", \"status\": 500}, {\"id\": \"1\", \"status\": 429}]}";
    deliver(w, 0, 0);
    deliver(w, 1, 0);
    for (int64_t until = w->now; !w->dead[0] && until < 600000;) {
        run(w, until += 1000);
        assert_false(w->q.share->brake.on);
    }
    assert_true(w->dead[0] && !w->dead[1]);
    assert_int_equal(w->sizes[0], 2);
    assert_int_equal(w->sizes[w->n_requests - 1], 2);
    end(w);
}

/* Statuses that would slow the queue or begin a quarantine as answers to the whole. */
static void failures_that_are_named_move_neither_limiter_nor_quarantine(void **state)
{
    struct world *w = world_of(0, false, answers_well);
    double limit = w->q.share->limiter.limit;

    w->q.rules.max_attempts = 8;
    w->says = "{\"failures\": [{\"id\": \"0\", \"status\": 503}, {\"id\": \"1\", \"status\": 429},"
              " {\"id\": \"2\", \"status\": 502}, {\"id\": \"3\", \"status\": 504}]}";
    for (int i = 0; i < 10; i++)
        deliver(w, i, 0);
    while (!w->n_requests)
        run(w, w->now + 1);
    assert_int_equal(w->sizes[0], 10);
    assert_true(w->q.share->limiter.limit >= limit && w->application.limiter.limit >= limit);
    assert_true(!w->q.share->limiter.wait_until_ms && !w->application.limiter.wait_until_ms);
    assert_int_equal(w->application.n_crashes, 0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(w->completed[i], i > 3);
        assert_int_equal(w->crashes[i], 0);
        assert_int_equal(w->attempts[i], i > 1);
    }
    end(w);
}

/* The rows are read late, when another sidecar has taken over one of two messages and completed it. */
static void a_completion_by_another_owner_charges_no_neighbour(void **state)
{
    struct world *w = world_of(0, true, answers_well);

    w->forgets = true;
    deliver(w, 0, 0);
    deliver(w, 1, 0);
    while (!w->n_requests)
        run(w, w->now + 1);
    assert_int_equal(w->sizes[0], 2);
    w->database_until = w->now + w->q.rules.token_window_ms + TAKEOVER_GRACE_MS + 1000;
    run(w, w->database_until);
    w->completed[0] = true;
    w->forgets = false;
    run(w, 600000);
    assert_true(w->completed[1]);
    assert_int_equal(w->attempts[1], 1);
    end(w);
}

static int accepts(struct world *w, const struct request *r)
{
    return 202;
}

/* The answer promises completions that never come: the whole request has failed. */
static void a_deployment_that_completes_nothing_sets_the_circuit_breaker(void **state)
{
    struct world *w = world(true, answers_well);

    w->forgets = true;
    while (!w->q.share->brake.on && w->now < 600000)
        run(w, w->now + 1);
    assert_true(w->q.share->brake.on);
    assert_int_in_range(w->n_requests, 1, 50);
    run(w, w->now + 60000);
    for (int i = 0; i < N; i++)
        assert_false(w->dead[i]);
    end(w);
}

/* A 202 whose completions never come charges the messages that were sent alone, and none that was sent in company. */
static void a_batch_that_is_accepted_and_never_completed_charges_nobody(void **state)
{
    struct world *w = world(true, accepts);

    w->forgets = true;
    run(w, 300000);
    assert_int_equal(w->sizes[0], N);
    assert_int_in_range(w->sizes[1], 2, N / 2);
    for (int i = 0; i < N; i++)
        assert_true(!w->dead[i] && w->attempts[i] <= 1);
    end(w);
}

static int one_hangs(struct world *w, const struct request *r)
{
    return has(r, bad) ? UNANSWERED : 200;
}

static void a_message_that_hangs_is_alone_at_its_third_request(void **state)
{
    bad = 7;
    struct world *w = world(true, one_hangs);
    int with_bad[3] = {0}, n = 0;

    for (int seen = 0; n < 3 && w->now < 900000;) {
        run(w, w->now + 10);
        if (w->n_posts[bad] > seen && n < 3) {
            seen = w->n_posts[bad];
            with_bad[n++] = w->sizes[w->n_requests - 1];
        }
    }
    assert_int_equal(with_bad[0], N);
    assert_int_in_range(with_bad[1], 1, 8);
    run(w, 1200000);
    for (int i = 0; i < N; i++)
        if (i != bad)
            assert_true(w->completed[i] && w->attempts[i] == 1);
    end(w);
}

/* The end of an extended window says nothing about the size of a request. */
static void an_extended_request_keeps_its_size(void **state)
{
    struct world *w = world(true, nothing_is_answered);

    w->n_requests = 1;
    w->due_step = 10000;
    w->extended_until = w->now + 100000;
    while (w->n_requests < 2)
        run(w, w->now + 1);
    const struct request *r = container_of(list_first(&w->q.held.in_flight), struct request, in_list);

    run(w, 50000);
    assert_ptr_equal(container_of(list_first(&w->q.held.in_flight), struct request, in_list), r);
    answer(w, (struct flight){r, w->now, 503});
    w->status = answers_well;
    run(w, 600000);
    for (int i = 0; i < N; i++)
        assert_true(w->completed[i] && w->caps[i] == 0);
    assert_int_equal(w->sizes[2], N);
    end(w);
}

/* Members are claimed at different times, so their windows end one after the other, and the answer names all. */
static void a_failure_of_a_member_whose_window_is_over_is_read(void **state)
{
    static const uint8_t secret[TOKEN_SECRET];
    struct buf by_id = {0}, by_token = {0};

    buf_add_text(&by_id, "{\"failures\":[{\"id\":\"0\"},{\"id\":\"7\"}]}");
    buf_add_text(&by_token, "{\"failures\":[{\"token\":\"");
    token_write(&by_token, SLICE("c"), SLICE("0"), secret);
    buf_add_text(&by_token, "\"},{\"id\":\"7\"}]}");
    for (int i = 0; i < 2; i++) {
        struct world *w = world(false, nothing_is_answered);

        w->n_requests = 1;
        w->extended_until = w->now + 100000;
        w->n_expired = 1;
        run(w, 40000);
        const struct request *r = container_of(list_first(&w->q.held.in_flight), struct request, in_list);

        assert_int_equal(r->n_sent, N);
        assert_int_equal(r->members.len, N - 1);
        w->status = answers_well;
        w->says = buf_text(i ? &by_token : &by_id);
        answer(w, (struct flight){r, w->now, 200});
        w->says = NULL;
        run(w, 600000);
        for (int m = 0; m < N; m++) {
            assert_true(w->completed[m]);
            assert_int_equal(w->n_posts[m], m == 0 || m == 7 ? 2 : 1);
        }
        assert_int_equal(w->q.share->n_bad_answers, 0);
        end(w);
    }
    buf_deinit(&by_id);
    buf_deinit(&by_token);
}

/* Members that succeed show that the application works, however many failures are named before them. */
static void named_failures_beside_a_success_do_not_count(void **state)
{
    struct world *w = world_of(0, false, answers_well);

    w->says = names_all(30, 422);
    for (int m = 0; m < 31; m++)
        deliver(w, m, 0);
    while (!w->n_requests)
        run(w, w->now + 1);
    assert_int_equal(w->q.share->brake.n, 0);
    run(w, w->now + 20000);
    assert_int_equal(w->n_requests, 1);
    for (int m = 0; m < 31; m++)
        assert_true(w->dead[m] == (m < 30) && w->completed[m] == (m == 30));
    end(w);
}

/* The first half to fail contains the bad message of the whole request. A failure of the second half shows another
 * bad message. */
static void a_failed_request_counts_and_so_does_its_second_failed_half(void **state)
{
    static const int sizes[] = {100, 50, 50}, counts[] = {1, 1, 2};
    struct world *w = world(true, all_are_bad);

    w->takes_time = true;
    for (int i = 0; i < 3; i++) {
        while (w->n_requests < i + 2) /* the next request follows the answer */
            run(w, w->now + 1);
        assert_int_equal(w->sizes[i], sizes[i]);
        assert_int_equal(w->q.share->brake.n, counts[i]);
    }
    end(w);
}

/* After the first two refusals both messages wait together, since the application may be overloaded. */
static void a_pair_that_is_refused_three_times_beside_successes_is_split(void **state)
{
    static const int sizes[] = {2, 1, 2, 1, 2};
    struct world *w = world_of(0, true, refuses_pairs);

    w->due_step = 60000;
    deliver(w, 0, 0);
    deliver(w, 1, 0);
    for (int i = 0; i < 5; i++) {
        if (i % 2)
            deliver(w, 2 + i, 0);
        while (w->n_requests == i && w->now < 600000)
            run(w, w->now + 1);
        assert_int_equal(w->sizes[i], sizes[i]);
        run(w, w->now + 100); /* the release is written */
        assert_int_equal(w->caps[0], i == 4);
        assert_int_equal(w->caps[1], i == 4);
    }
    end(w);
}

static void a_body_that_is_larger_than_the_request_so_far_joins_it(void **state)
{
    struct world *w = world_of(0, true, answers_well);

    deliver(w, 0, 0);
    deliver(w, 1, 100000);
    run(w, 60000);
    assert_int_equal(w->sizes[0], 2);
    assert_true(w->completed[0] && w->completed[1]);
    end(w);
}

/* The text goes to the row if error_body is on, and never to the log. */
static void a_named_failure_has_its_status_wait_and_text(void **state)
{
    for (int i = 0; i < 3; i++) {
        struct world *w = world_of(0, false, answers_well);
        char says[600], text[400];

        memset(text, 'x', 300);
        text[i == 2 ? 300 : 4] = 0;
        snprintf(says, sizeof(says),
                 "{\"failures\": [{\"id\": \"0\", \"status\": 500, \"error\": \"%s\"},"
                 "{\"id\": \"1\", \"status\": 429, \"retry_after\": 77}]}",
                 text);
        w->says = says;
        w->q.rules.batch.error_body = i > 0;
        for (int m = 0; m < 3; m++)
            deliver(w, m, 0);
        while (!w->due[0] || !w->due[1] || !w->completed[2])
            run(w, w->now + 1);
        assert_string_equal(w->error[0], "answered 500");
        text[i == 2 ? 256 : 4] = 0; /* cut */
        snprintf(says, sizeof(says), i ? "answered 500: \"%s\"" : "answered 500", text);
        assert_string_equal(w->said[0], says);
        assert_string_equal(w->said[1], "answered 429");
        assert_true(w->due[1] - w->now >= 76000);
        end(w);
    }
}

/* --- figures of a request --- */

/* As many failed requests as can be in flight, but at least five, switch the circuit breaker on. */
static void the_weight_of_a_failed_request(void **state)
{
    static const int cases[][3] = {{20, 1, 4},  {20, 5, 4},  {20, 6, 4}, {20, 7, 3}, {20, 16, 2},
                                   {20, 20, 1}, {20, 64, 1}, {21, 5, 5}, {0, 5, 0}};
    struct world *w = world_of(0, true, answers_well);

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        w->q.share->brake.threshold = cases[i][0];
        w->q.rules.concurrency = cases[i][1];
        assert_int_equal(batches_failure_weight(&w->q), cases[i][2]);
    }
    end(w);
}

static void shares_of_slots(void **state)
{
    static const struct {
        size_t units, slots;
    } cases[] = {{0, 0}, {1, 1}, {SLOT_UNITS, 1}, {SLOT_UNITS + 1, 2}, {2 * SLOT_UNITS, 2}};
    struct world *w = world_of(2, true, nothing_is_answered);
    struct delivery *d;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        assert_int_equal(slots_of(cases[i].units), cases[i].slots);
    d = (struct delivery *)queue_find(&w->q, 1);
    assert_int_equal(batches_share(&w->q, d), SLOT_UNITS / N);
    d->claim->batch_cap = N + 1;
    assert_int_equal(batches_share(&w->q, d), SLOT_UNITS / N);
    d->claim->batch_cap = 7;
    assert_int_equal(batches_share(&w->q, d), SLOT_UNITS / 7);
    assert_int_equal(batches_most_of_group(&w->q, d), 7);
    d->claim->batch_cap = 9;
    assert_int_equal(batches_most_of_group(&w->q, d), 8);
    d->claim->crashes = 1;
    assert_int_equal(batches_share(&w->q, d), SLOT_UNITS);
    d->claim->crashes = 0;
    d->claim->alone = true;
    assert_int_equal(batches_share(&w->q, d), SLOT_UNITS);
    d->claim->alone = false;
    w->q.rules.batch.max_messages = 5;
    assert_int_equal(batches_share(&w->q, d), SLOT_UNITS / 5);
    w->q.rules.batch.max_messages = N;
    d->claim->batch_cap = 0;
    end(w);
}

static void when_a_message_may_share_its_request(void **state)
{
    static const struct {
        bool breaker, redelivered;
        int64_t slow_since_ms;
        int n_refused;
        bool shares;
    } cases[] = {
        {.shares = true},
        {.breaker = true},
        {.slow_since_ms = 5, .n_refused = 1, .shares = true},
        {.slow_since_ms = 5, .n_refused = 2},
        {.slow_since_ms = 5, .n_refused = 3},
        {.n_refused = 3, .shares = true},
        {.redelivered = true, .shares = true},
        {.slow_since_ms = 5, .redelivered = true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct world *w = world_of(0, true, answers_well);

        w->redelivered = cases[i].redelivered;
        deliver(w, 0, 0);
        struct delivery *d = (struct delivery *)queue_find(&w->q, 1);

        if (cases[i].breaker)
            brake_force(&w->q.share->brake, w->now, "all fails");
        w->q.share->limiter.slow_since_ms = cases[i].slow_since_ms;
        d->claim->n_refused = cases[i].n_refused;
        if (batches_may_share(&w->q, d) != cases[i].shares)
            fail_msg("case %zu", i);
        end(w);
    }
}

static void the_halves_of_the_latest_64_failed_requests_are_known(void **state)
{
    struct world *w = world_of(0, true, answers_well);

    assert_true(batches_failure_is_new(&w->q, &(struct request){.parent = 0}));
    for (uint64_t parent = 1; parent <= 65; parent++)
        assert_false(batches_failure_is_new(&w->q, &(struct request){.parent = parent}));
    for (uint64_t parent = 2; parent <= 65; parent++)
        assert_true(batches_failure_is_new(&w->q, &(struct request){.parent = parent}));
    assert_false(batches_failure_is_new(&w->q, &(struct request){.parent = 1})); /* forgotten */
    end(w);
}

/* The messages are sent again in groups of 8, and then alone. */
static void a_request_that_hangs_halves_the_size_once(void **state)
{
    static const struct {
        int n, cap;
    } cases[] = {{1, 0}, {2, 1}, {8, 1}, {9, 8}, {N, 8}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int n = cases[i].n;
        struct world *w = world_of(1, true, nothing_is_answered);

        run(w, w->now + 1000);
        for (int m = 1; m <= n; m++)
            deliver(w, m, 0);
        run(w, w->now + w->q.rules.token_window_ms + 3000);
        assert_int_equal(w->sizes[1], n);
        assert_int_equal(queue_batch_size(&w->q), n > 1 ? N / 2 : N);
        assert_int_equal(w->n_size_lines, n > 1);
        assert_string_equal(w->size_line, n > 1 ? "50: a request was not answered within its window" : "");
        assert_int_equal(w->caps[n], cases[i].cap);
        end(w);
    }
}

static void a_request_ends_at_the_first_message_that_does_not_fit(void **state)
{
    static const size_t lengths[] = {0, 700000, 700000, 0}; /* base64 of only one of them fits */
    struct world *w = world_of(0, true, answers_well);

    for (int m = 0; m < 4; m++)
        deliver(w, m, lengths[m]);
    run(w, 60000);
    assert_int_equal(w->n_requests, 2);
    assert_int_equal(w->sizes[0], 2);
    assert_int_equal(w->sizes[1], 2);
    end(w);
}

static void reaching_the_configured_size_again_is_logged(void **state)
{
    struct world *w = world_of(0, true, answers_well);
    struct batch_size *size = &w->application.batch_size;

    size->messages = 95; /* a tenth more exceeds the configured size */
    for (int m = 0; m < 96; m++)
        deliver(w, m, 0);
    run(w, 60000);
    assert_int_equal(w->sizes[0], 95);
    assert_int_equal(w->n_size_lines, 1);
    assert_string_equal(w->size_line, "100: as configured, since such requests succeed");
    end(w);
}

static void each_member_stores_its_own_result(void **state)
{
    struct world *w = world_of(0, false, answers_well);

    w->q.rules.store_response_bytes = 100;
    w->says = "{\"results\": {\"0\": {\"a\": 1}, \"2\": \"b\"}}";
    for (int m = 0; m < 3; m++)
        deliver(w, m, 0);
    run(w, 60000);
    assert_int_equal(w->n_requests, 1);
    assert_string_equal(w->result[0], "{\"a\": 1}");
    assert_string_equal(w->result[1], "");
    assert_string_equal(w->result[2], "\"b\"");
    end(w);
}

static void a_bad_answer_gives_its_reason_to_each_member(void **state)
{
    struct world *w = world_of(0, true, answers_well);

    w->no_field = w->forgets = true;
    deliver(w, 0, 0);
    deliver(w, 1, 0);
    while (!w->error[1][0])
        run(w, w->now + 1);
    assert_string_equal(w->error[0], "its answer has no field Onceward-Batch");
    assert_string_equal(w->error[1], "its answer has no field Onceward-Batch");
    end(w);
}

/* A 422 to an unknown format says nothing about the size. */
static void an_application_that_does_not_know_batches_keeps_the_size(void **state)
{
    struct world *w = world(true, does_not_know_batches);

    while (!w->n_requests)
        run(w, w->now + 1);
    assert_int_equal(w->n_size_lines, 0);
    assert_int_equal(queue_batch_size(&w->q), N);
    end(w);
}

/* Only consecutive refusals count. */
static void another_answer_resets_the_count_of_refusals(void **state)
{
    struct world *w = world_of(0, true, all_are_bad);

    deliver(w, 0, 0);
    deliver(w, 1, 0);
    struct delivery *d = (struct delivery *)queue_find(&w->q, 1);

    d->claim->n_refused = 2;
    while (!w->n_requests)
        run(w, w->now + 1);
    assert_int_equal(d->claim->n_refused, 0);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_bad_message_costs_at_most_fifteen_more_requests),
        cmocka_unit_test(several_bad_messages_cost_as_many_requests_as_the_guide_says),
        cmocka_unit_test(in_response_no_other_goes_more_than_twice),
        cmocka_unit_test(after_a_restart_messages_of_equal_caps_go_together),
        cmocka_unit_test(a_refused_message_that_is_the_first_does_not_pause_the_queue),
        cmocka_unit_test(an_application_that_does_not_know_batches_kills_nothing),
        cmocka_unit_test(an_overloaded_application_gets_the_same_again),
        cmocka_unit_test(not_now_because_of_one_member_goes_in_halves),
        cmocka_unit_test(not_now_for_ever_because_of_one_member_stops_no_other),
        cmocka_unit_test(a_permanent_status_kills_only_a_message_alone),
        cmocka_unit_test(a_redelivered_message_that_is_refused_in_company_goes_alone),
        cmocka_unit_test(a_message_with_an_older_row_that_is_refused_in_company_goes_alone),
        cmocka_unit_test(a_message_with_an_older_row_that_is_refused_again_goes_in_halves),
        cmocka_unit_test(a_message_that_was_claimed_here_before_goes_with_the_others_again),
        cmocka_unit_test(a_request_that_is_too_large_goes_in_halves),
        cmocka_unit_test(a_body_that_does_not_fit_is_not_encoded),
        cmocka_unit_test(a_killer_among_many_is_found_after_two_crashes),
        cmocka_unit_test(a_killer_in_response_is_found_by_groups_too),
        cmocka_unit_test(after_the_second_takeover_messages_go_in_groups),
        cmocka_unit_test(a_takeover_counts_as_an_attempt_in_the_body),
        cmocka_unit_test(after_a_restart_the_suspects_go_in_groups),
        cmocka_unit_test(a_message_that_waits_alone_stays_alone_when_requests_grow),
        cmocka_unit_test(a_bad_deployment_sets_the_circuit_breaker),
        cmocka_unit_test(a_deployment_that_hangs_sets_the_circuit_breaker),
        cmocka_unit_test(messages_that_are_named_together_count_each),
        cmocka_unit_test(partitions_share_what_the_application_knows),
        cmocka_unit_test(bad_answers_to_partitions_are_counted_together),
        cmocka_unit_test(four_bad_messages_do_not_set_the_circuit_breaker),
        cmocka_unit_test(a_message_that_is_named_often_counts_once),
        cmocka_unit_test(a_deployment_that_completes_nothing_sets_the_circuit_breaker),
        cmocka_unit_test(a_batch_that_is_accepted_and_never_completed_charges_nobody),
        cmocka_unit_test(failures_that_are_named_move_neither_limiter_nor_quarantine),
        cmocka_unit_test(a_completion_by_another_owner_charges_no_neighbour),
        cmocka_unit_test(a_message_that_hangs_is_alone_at_its_third_request),
        cmocka_unit_test(an_extended_request_keeps_its_size),
        cmocka_unit_test(a_failure_of_a_member_whose_window_is_over_is_read),
        cmocka_unit_test(named_failures_beside_a_success_do_not_count),
        cmocka_unit_test(a_failed_request_counts_and_so_does_its_second_failed_half),
        cmocka_unit_test(a_pair_that_is_refused_three_times_beside_successes_is_split),
        cmocka_unit_test(a_body_that_is_larger_than_the_request_so_far_joins_it),
        cmocka_unit_test(a_named_failure_has_its_status_wait_and_text),
        cmocka_unit_test(the_weight_of_a_failed_request),
        cmocka_unit_test(shares_of_slots),
        cmocka_unit_test(when_a_message_may_share_its_request),
        cmocka_unit_test(the_halves_of_the_latest_64_failed_requests_are_known),
        cmocka_unit_test(a_request_that_hangs_halves_the_size_once),
        cmocka_unit_test(a_request_ends_at_the_first_message_that_does_not_fit),
        cmocka_unit_test(reaching_the_configured_size_again_is_logged),
        cmocka_unit_test(each_member_stores_its_own_result),
        cmocka_unit_test(a_bad_answer_gives_its_reason_to_each_member),
        cmocka_unit_test(an_application_that_does_not_know_batches_keeps_the_size),
        cmocka_unit_test(another_answer_resets_the_count_of_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
