/* Runs of one key in requests with several messages, in virtual time: which messages share a request, with which
 * tokens, and what happens to those behind a failed one. */
#include "bed.h"
#include "onceward/base/buf.h"

enum { MOST = 64, BATCH = 10 };

struct world {
    struct queue q;
    struct application application;
    struct database database;
    int64_t now;
    bool completed[MOST], dead[MOST], held[MOST]; /* held: by another owner */
    bool locked[MOST];                            /* by an open transaction */
    int n_claims[MOST], attempts[MOST], caps[MOST], crashes[MOST], takeovers[MOST];
    size_t n_bytes;             /* of the latest request */
    const struct request *open; /* the application's request; NULL: none */
    bool hangs;                 /* the application does not answer by itself */
    int status;                 /* status of its answers, */
    const char *says;           /* body of its answers, */
    int fails;                  /* message that it does not complete; -1: none */
    char requests[4000]; /* "1 2<1 3<2;": the number of each member, and of the one that its token names */
    struct delivery *asked[4 * MOST];
    int n_asked, n_dead;
    bool database_waits;
    char released[200]; /* reason of the latest release of a claim */
};

static int number_of(const struct delivery *d)
{
    return atoi(d->arrival->id);
}

static void at_database(struct world *w, struct delivery *d)
{
    int n = number_of(d);
    struct row r = {.op = d->op, .unproven_ms = -1};

    switch (d->op) {
    case OP_CLAIM:
        w->n_claims[n]++;
        r.answer = w->completed[n] ? ROW_COMPLETED
                   : w->held[n]    ? ROW_HELD
                   : w->locked[n]  ? ROW_LOCKED
                                   : ROW_CLAIMED;
        r.wait_ms = 500;
        w->attempts[n] += r.answer == ROW_CLAIMED;
        break;
    case OP_LOOK:
        r.answer = w->held[n] ? ROW_HELD : ROW_DUE;
        r.wait_ms = 500;
        break;
    case OP_CHECK:
        r.answer = w->completed[n] ? ROW_COMPLETED : ROW_CLAIMED;
        break;
    case OP_COMPLETE:
        r.answer = ROW_COMPLETED;
        w->completed[n] = true;
        break;
    case OP_FAIL:
    case OP_RELEASE:
        r.answer = d->op == OP_RELEASE || !delivery_failure(d)->charged ? ROW_RELEASED : ROW_FAILED;
        w->attempts[n] -= r.answer == ROW_RELEASED;
        snprintf(w->released, sizeof(w->released), "%s", d->outcome.error ? d->outcome.error : "");
        if (d->claim->next_cap > 0)
            w->caps[n] = d->claim->next_cap;
        break;
    case OP_DEAD_LETTER:
        r.answer = ROW_DEAD_LETTERED;
        w->dead[n] = true;
        w->n_dead++;
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

/* Answers for the application, which completes a message behind another one only after that. */
static void answer(struct world *w)
{
    const struct request *r = w->open;
    int before = -1;
    struct answer a = {.kind = ANSWER_STATUS,
                       .status = w->status,
                       .batch = (int64_t)r->n_sent,
                       .retry_after_ms = -1,
                       .body = slice_of(w->says),
                       .brief = "answered",
                       .error = "answered",
                       .took_us = 1000};

    list_each(&r->members, k)
    {
        const struct delivery *d = request_member(k);
        int n = number_of(d);

        w->completed[n] |= w->status == 200 && w->q.rules.transaction && n != w->fails &&
                           (!d->claim->is_behind || w->completed[before]);
        before = n;
    }
    w->open = NULL;
    queue_answered(&w->q, w->now, r->ref, &a);
}

static void at_application(struct world *w, const struct request *r)
{
    size_t len = strlen(w->requests);
    int before = -1;

    assert_null(w->open);
    list_each(&r->members, k)
    {
        const struct delivery *d = request_member(k);

        len += (size_t)snprintf(w->requests + len, sizeof(w->requests) - len, "%s%d", before < 0 ? "" : " ",
                                number_of(d));
        if (d->claim->is_behind)
            len += (size_t)snprintf(w->requests + len, sizeof(w->requests) - len, "<%d", before);
        before = number_of(d);
    }
    snprintf(w->requests + len, sizeof(w->requests) - len, ";");
    w->open = r;
    w->n_bytes = r->body.len;
    if (!w->hangs)
        answer(w);
}

static void carry_out(struct world *w, const struct action *a)
{
    if (a->kind == ACTION_DATABASE)
        w->asked[w->n_asked++] = a->d;
    else if (a->kind == ACTION_FORWARD)
        at_application(w, a->request);
    else if (a->kind == ACTION_CONSUME)
        queue_consuming(&w->q, w->now, a->number);
}

static void run(struct world *w, int64_t for_ms)
{
    struct action a;

    for (int64_t until = w->now + for_ms; w->now < until; w->now += 10) {
        queue_time(&w->q, w->now);
        do {
            while (queue_next(&w->q, w->now, ~0u, &a))
                carry_out(w, &a);
            int n = w->database_waits ? 0 : w->n_asked;
            for (int i = 0; i < n; i++)
                at_database(w, w->asked[i]);
            w->n_asked -= n;
        } while (w->n_asked && !w->database_waits);
        queue_reap(&w->q);
    }
}

static struct world *world(bool transaction)
{
    struct queue_rules rules = bed_batch_rules(BATCH);
    struct world *w = calloc(1, sizeof(*w));

    w->now = 1000;
    w->status = 200;
    w->says = "";
    w->fails = -1;
    rules.transaction = transaction;
    rules.ordered = true;
    rules.max_window_ms = 30000;
    rules.commit_grace_ms = 100;
    rules.max_hold_ms = 600000;
    rules.concurrency = 1;
    rules.prefetch = 256;
    rules.max_parked = 257;
    rules.delivery_limit = LIMIT_NONE;
    bed_start(&w->application, &w->database, &w->q, 1, &rules, w->now);
    queue_channel_open(&w->q, w->now, 1, 4, 0, KIND_QUORUM);
    run(w, 200);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    return w;
}

static void end(struct world *w)
{
    queue_deinit(&w->q);
    free(w);
}

static void deliver_body(struct world *w, int number, uint8_t key, const char *type, const char *body)
{
    char id[16];

    snprintf(id, sizeof(id), "%d", number);
    struct arrival *a = bed_arrival(&w->q, id);

    a->has_key = true;
    a->key[0] = key;
    a->message->body_len = a->copy.body_len = strlen(body);
    a->message->body = strlen(body) ? strdup(body) : NULL;
    a->message->properties[PROPERTY_CONTENT_TYPE] = slice_of(type);
    queue_delivered(&w->q, w->now, a, NULL);
}

static void deliver(struct world *w, int number, uint8_t key)
{
    deliver_body(w, number, key, "", "");
}

static void deliver_some(struct world *w, int first, int last, uint8_t key)
{
    for (int n = first; n <= last; n++)
        deliver(w, n, key);
}

static void test_messages_of_a_key_share_a_request_in_their_order(void **state)
{
    struct world *w = world(true);
    (void)state;

    deliver_some(w, 1, 12, 1);
    run(w, 100);
    assert_string_equal(w->requests, "1 2<1 3<2 4<3 5<4 6<5 7<6 8<7 9<8 10<9;11 12<11;");
    for (int n = 1; n <= 12; n++) {
        assert_int_equal(w->attempts[n], 1);
        assert_int_equal(w->n_claims[n], 1);
    }
    end(w);
}

/* As many messages are claimed as fit, to the last byte. */
static void test_claims_know_the_size_of_their_request(void **state)
{
    static const char *const bodies[][2] = {
        {"application/json", "[1, 22]"}, {"text/plain", "[1, 22]"}, {"text/plain", "[1,222]"}, {"", "[1]"}};
    (void)state;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        size_t most = 0;

        for (int less = -1; less < 2; less++) {
            struct world *w = world(true);

            if (less >= 0)
                w->q.rules.batch.max_bytes = most - (size_t)less;
            for (int n = 1; n <= (less < 0 ? 3 : 5); n++)
                deliver_body(w, n, 1, bodies[i][0], bodies[i][1]);
            run(w, 100);
            assert_string_equal(w->requests, less < 0    ? "1 2<1 3<2;"
                                             : less == 0 ? "1 2<1 3<2;4 5<4;"
                                                         : "1 2<1;3 4<3;5;");
            for (int n = 1; n <= 5; n++)
                assert_true(w->n_claims[n] <= 1);
            most = less < 0 ? w->n_bytes : most;
            end(w);
        }
    }
}

/* The broken body is taken for JSON at its claim, and takes more in base64. Its message is released while the request
 * is in flight. */
static void test_a_message_that_does_not_fit_is_released_at_once(void **state)
{
    size_t most = 0;
    (void)state;

    for (int is_broken = 0; is_broken < 2; is_broken++) {
        struct world *w = world(true);

        if (is_broken)
            w->q.rules.batch.max_bytes = most;
        w->hangs = true;
        deliver_body(w, 1, 1, "application/json", "[1, 22]");
        deliver_body(w, 2, 1, "application/json", "[1, 22]");
        deliver_body(w, 3, 1, "application/json", is_broken ? "[1, 22}" : "[1, 22]");
        run(w, 100);
        assert_string_equal(w->requests, is_broken ? "1 2<1;" : "1 2<1 3<2;");
        assert_int_equal(w->n_claims[3], 1);
        assert_int_equal(w->attempts[3], !is_broken);
        most = w->n_bytes;
        answer(w);
        end(w);
    }
}

/* Answers the claim of one message, while the database waits. */
static void answer_claim(struct world *w, int number)
{
    int i = 0;

    while (i < w->n_asked && number_of(w->asked[i]) != number)
        i++;
    assert_true(i < w->n_asked && w->asked[i]->op == OP_CLAIM);
    struct delivery *d = w->asked[i];

    w->asked[i] = w->asked[--w->n_asked];
    at_database(w, d);
    run(w, 50);
}

/* A run is neither sent nor released before the last of its claims is answered. */
static void test_a_run_waits_for_all_answers_to_its_claims(void **state)
{
    static const int orders[][3] = {{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}};
    (void)state;

    for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
        struct world *w = world(true);

        w->database_waits = true;
        deliver_some(w, 1, 3, 1);
        run(w, 50);
        assert_int_equal(w->n_asked, 3);
        for (int k = 0; k < 3; k++) {
            assert_string_equal(w->requests, "");
            assert_int_equal(w->n_asked, 3 - k);
            answer_claim(w, orders[i][k]);
        }
        assert_string_equal(w->requests, "1 2<1 3<2;");
        end(w);
    }
}

/* Delivers messages 1 to last while the row of the first is locked: the claims of the others read their rows. */
static void deliver_behind_a_lock(struct world *w, int last)
{
    w->locked[1] = true;
    deliver_some(w, 1, last, 1);
    run(w, 1000);
    w->locked[1] = false;
}

/* Rows that were taken over, or whose message has crashed an application, cause no claims behind them. */
static void test_a_message_with_a_failure_in_its_row_goes_alone(void **state)
{
    (void)state;
    for (int crashed = 0; crashed < 2; crashed++) {
        struct world *w = world(true);

        w->takeovers[3] = !crashed;
        w->crashes[3] = crashed;
        deliver_behind_a_lock(w, 5);
        run(w, 5000);
        assert_string_equal(w->requests, "1;2;3;4 5<4;");
        assert_int_equal(w->n_claims[3], 2);
        assert_int_equal(w->n_claims[4], 2);
        end(w);
    }
}

/* Messages are claimed up to the cap of their rows, and to the next one with another cap. */
static void test_claims_know_the_caps_of_their_rows(void **state)
{
    struct world *w = world(true);
    (void)state;

    for (int n = 2; n <= 6; n++)
        w->caps[n] = 2;
    w->caps[7] = w->caps[8] = 40;
    deliver_behind_a_lock(w, 8);
    run(w, 5000);
    assert_string_equal(w->requests, "1;2 3<2;4 5<4;6;7 8<7;");
    for (int n = 2; n <= 8; n++)
        assert_int_equal(w->n_claims[n], 2);
    end(w);
}

/* The application takes three messages in a request, fewer than the caps of their rows. */
static void test_claims_know_the_learned_size(void **state)
{
    struct world *w = world(true);
    (void)state;

    for (int n = 2; n <= 6; n++)
        w->caps[n] = 8;
    deliver_behind_a_lock(w, 6);
    w->application.batch_size.messages = 3;
    run(w, 5000);
    assert_string_equal(w->requests, "1;2 3<2 4<3;5 6<5;");
    for (int n = 2; n <= 6; n++)
        assert_int_equal(w->n_claims[n], 2);
    end(w);
}

static void test_a_message_without_a_key_goes_alone(void **state)
{
    struct world *w = world(true);
    (void)state;

    struct arrival *a = bed_arrival(&w->q, "1");

    queue_delivered(&w->q, w->now, a, NULL);
    run(w, 100);
    assert_string_equal(w->requests, "1;");
    end(w);
}

static void test_a_run_goes_to_another_request_where_it_does_not_fit(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        struct world *w = world(true);

        w->hangs = true;
        deliver(w, 1, 1);
        run(w, 100);
        deliver_some(w, 2, 5, 2);
        deliver_some(w, 6, 11 + more, 3);
        run(w, 100);
        w->hangs = false;
        answer(w);
        run(w, 100);
        assert_string_equal(w->requests, more ? "1;2 3<2 4<3 5<4;6 7<6 8<7 9<8 10<9 11<10 12<11;"
                                              : "1;2 3<2 4<3 5<4 6 7<6 8<7 9<8 10<9 11<10;");
        for (int n = 2; n <= 11 + more; n++)
            assert_int_equal(w->n_claims[n], 1);
        end(w);
    }
}

static void test_runs_of_several_keys_share_a_request_if_they_fit(void **state)
{
    struct world *w = world(true);
    (void)state;

    deliver_some(w, 1, 4, 1);
    deliver_some(w, 5, 8, 2);
    deliver_some(w, 9, 12, 3);
    run(w, 100);
    assert_string_equal(w->requests, "1 2<1 3<2 4<3 5 6<5 7<6 8<7;9 10<9 11<10 12<11;");
    end(w);
}

/* The messages behind the held one wait. Their claims were useless, and no attempt is charged to them. */
static void test_a_run_ends_at_a_message_that_another_owner_has(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->held[3] = true;
    deliver_some(w, 1, 5, 1);
    run(w, 300);
    assert_string_equal(w->requests, "1 2<1;");
    assert_int_equal(w->attempts[4], 0);
    assert_string_equal(w->released, "not sent: the message before it in its key is not ready");
    w->held[3] = false;
    run(w, 3000);
    assert_string_equal(w->requests, "1 2<1;3 4<3 5<4;");
    end(w);
}

/* The row of the first message is locked for long: the others are not claimed and released with each look at it. */
static void test_messages_behind_a_locked_row_are_claimed_once(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->locked[1] = true;
    deliver_some(w, 1, 5, 1);
    run(w, 3000);
    assert_true(w->n_claims[1] > 1);
    for (int n = 2; n <= 5; n++)
        assert_int_equal(w->n_claims[n], 1);
    assert_string_equal(w->requests, "");
    w->locked[1] = false;
    run(w, 2000);
    assert_string_equal(w->requests, "1;2 3<2 4<3 5<4;");
    end(w);
}

static void test_what_is_behind_a_failed_message_is_not_attempted(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->fails = 2;
    w->says = "{\"failures\": [{\"id\": \"2\", \"status\": 500}, {\"id\": \"4\", \"status\": 500}]}";
    deliver_some(w, 1, 4, 1);
    deliver(w, 5, 2);
    run(w, 100);
    assert_string_equal(w->requests, "1 2<1 3<2 4<3 5;");
    assert_true(w->completed[1] && w->completed[5] && !w->completed[3]);
    assert_int_equal(w->attempts[2], 1);
    assert_int_equal(w->attempts[3] + w->attempts[4], 0);
    assert_string_equal(w->released, "not attempted: the message before it in its key has failed");
    w->fails = -1;
    w->says = "";
    run(w, 5000);
    /* the failed message goes alone, the others as if they had never been sent */
    assert_string_equal(w->requests, "1 2<1 3<2 4<3 5;2;3 4<3;");
    end(w);
}

/* A failure beside others that succeeded says nothing about the application; beside others that were not attempted it
 * counts for the circuit breaker. */
static void test_a_failure_without_a_success_counts_for_the_breaker(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->fails = 1;
    w->says = "{\"failures\": [{\"id\": \"1\", \"status\": 500}]}";
    deliver_some(w, 1, 4, 1);
    run(w, 50);
    assert_string_equal(w->requests, "1 2<1 3<2 4<3;");
    assert_int_equal(w->q.share->brake.n, 1);
    end(w);
}

static void test_what_is_behind_a_dead_message_goes_on(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->fails = 1;
    w->says = "{\"failures\": [{\"id\": \"1\", \"status\": 422}]}";
    w->hangs = true;
    deliver_some(w, 1, 3, 1);
    run(w, 100);
    answer(w);
    w->says = "";
    w->fails = -1;
    w->hangs = false;
    run(w, 1500); /* a death without a success beside it waits for a second */
    assert_string_equal(w->requests, "1 2<1 3<2;2 3<2;");
    assert_true(w->dead[1] && w->completed[3]);
    end(w);
}

/* The answer says 200, and the row of the second is not completed: the third is not at fault. */
static void test_what_is_behind_a_forgotten_message_is_not_charged(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->fails = 2;
    deliver_some(w, 1, 3, 1);
    run(w, 400);
    assert_string_equal(w->requests, "1 2<1 3<2;");
    assert_int_equal(w->attempts[2], 1);
    assert_int_equal(w->attempts[3], 0);
    end(w);
}

static void test_in_response_the_answer_decides(void **state)
{
    struct world *w = world(false);
    (void)state;

    w->says = "{\"failures\": [{\"id\": \"2\", \"status\": 500}, {\"id\": \"3\", \"status\": 424}]}";
    deliver_some(w, 1, 4, 1);
    run(w, 100);
    assert_true(w->completed[1] && !w->completed[2] && !w->completed[3] && w->completed[4]);
    assert_int_equal(w->attempts[2], 1);
    assert_int_equal(w->attempts[3], 0);
    end(w);
}

/* The line is lost with the channel, so nothing is known about the messages before it. */
static void test_a_run_that_was_not_sent_ends_with_its_channel(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->database_waits = true;
    deliver_some(w, 2, 4, 2);
    run(w, 100);
    assert_int_equal(w->n_asked, 3);
    queue_channel_lost(&w->q, w->now, 0, "lost");
    w->database_waits = false;
    run(w, 1000);
    assert_string_equal(w->requests, "2;");
    assert_int_equal(w->attempts[3] + w->attempts[4], 0);
    end(w);
}

/* After whole failures, halves of the run are sent in sequence, with a cap in each row. */
static void test_a_run_that_failed_as_a_whole_goes_in_smaller_ones(void **state)
{
    struct world *w = world(true);
    (void)state;

    w->status = 500;
    w->hangs = true;
    deliver_some(w, 1, 4, 1);
    run(w, 100);
    answer(w);
    w->status = 200;
    w->hangs = false;
    run(w, 1000);
    assert_string_equal(w->requests, "1 2<1 3<2 4<3;1 2<1;3 4<3;");
    for (int n = 1; n <= 4; n++)
        assert_int_equal(w->attempts[n], 1);
    end(w);
}

/* Each free slot gets its share of the runs, not of their messages. */
static void test_runs_of_two_keys_go_to_two_free_slots(void **state)
{
    for (int n_slots = 1; n_slots <= 2; n_slots++) {
        struct world *w = world(true);

        w->q.rules.concurrency = n_slots;
        limiter_init(&w->application.limiter, n_slots);
        limiter_init(&w->q.share->limiter, n_slots);
        deliver_some(w, 1, 3, 1);
        deliver_some(w, 4, 6, 2);
        run(w, 100);
        assert_string_equal(w->requests, n_slots == 1 ? "1 2<1 3<2 4 5<4 6<5;" : "1 2<1 3<2;4 5<4 6<5;");
        end(w);
    }
}

static void test_the_second_message_of_a_run_leads_when_the_first_is_completed(void **state)
{
    struct world *w = world(true);

    w->completed[1] = true;
    deliver_some(w, 1, 3, 1);
    run(w, 1000);
    assert_string_equal(w->requests, "2 3<2;");
    assert_int_equal(w->n_claims[2], 1);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_of_a_key_share_a_request_in_their_order),
        cmocka_unit_test(test_claims_know_the_size_of_their_request),
        cmocka_unit_test(test_a_message_that_does_not_fit_is_released_at_once),
        cmocka_unit_test(test_runs_of_several_keys_share_a_request_if_they_fit),
        cmocka_unit_test(test_a_run_waits_for_all_answers_to_its_claims),
        cmocka_unit_test(test_a_message_with_a_failure_in_its_row_goes_alone),
        cmocka_unit_test(test_claims_know_the_caps_of_their_rows),
        cmocka_unit_test(test_claims_know_the_learned_size),
        cmocka_unit_test(test_a_message_without_a_key_goes_alone),
        cmocka_unit_test(test_a_run_goes_to_another_request_where_it_does_not_fit),
        cmocka_unit_test(test_a_run_ends_at_a_message_that_another_owner_has),
        cmocka_unit_test(test_messages_behind_a_locked_row_are_claimed_once),
        cmocka_unit_test(test_what_is_behind_a_failed_message_is_not_attempted),
        cmocka_unit_test(test_a_failure_without_a_success_counts_for_the_breaker),
        cmocka_unit_test(test_what_is_behind_a_dead_message_goes_on),
        cmocka_unit_test(test_what_is_behind_a_forgotten_message_is_not_charged),
        cmocka_unit_test(test_in_response_the_answer_decides),
        cmocka_unit_test(test_a_run_that_was_not_sent_ends_with_its_channel),
        cmocka_unit_test(test_a_run_that_failed_as_a_whole_goes_in_smaller_ones),
        cmocka_unit_test(test_runs_of_two_keys_go_to_two_free_slots),
        cmocka_unit_test(test_the_second_message_of_a_run_leads_when_the_first_is_completed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
