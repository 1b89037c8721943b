/* The selection of claims, lookups and requests: how many claims are ahead of free slots, when a message is looked up
 * or claimed again, and which claims are released unsent. */
#include "core/batches.h"
#include "core/claims.h"
#include "core_bed.h"
#include "fields.h"

enum { TENTH_MS = BED_WINDOW_MS / 10, BACKLOG_MS = 100, LEFT_MS = 60000 };

static struct bed *bed_of(const struct queue_rules *rules)
{
    struct bed *b = bed_new(rules, KIND_QUORUM);

    b->application.limiter.limit = b->q.own.limiter.limit = rules->concurrency;
    return b;
}

static struct bed *bed(void)
{
    const struct queue_rules r = bed_rules();

    return bed_of(&r);
}

static void deliver_many(struct bed *b, int n)
{
    for (int i = 0; i < n; i++) {
        char id[16];

        snprintf(id, sizeof(id), "m%d", i);
        bed_deliver(b, id);
    }
}

/* Takes all actions; returns the number of claims. */
static int take_claims(struct bed *b)
{
    int n = 0;

    while (bed_next(b))
        n += b->last.kind == ACTION_DATABASE && b->last.d->op == OP_CLAIM;
    return n;
}

/* --- slots --- */

static void test_claims_ahead_of_free_slots(void **state)
{
    static const struct {
        double queue, application; /* limits */
        int prefetch, batch;
        double claim_us, service_us;
        int n;
    } cases[] = {
        {16, 16, 128, 0, 0, 0, 16},
        /* as many as are served during two round trips of a claim */
        {16, 16, 128, 0, 10, 1000, 16},
        {16, 16, 128, 0, 500, 1000, 16 + 16},
        {16, 16, 128, 0, 1000, 1000, 16 + 32},
        {8, 16, 128, 0, 1000, 1000, 8 + 16},
        {16, 8, 128, 0, 1000, 1000, 8 + 16},
        /* at most four times the limit, and half of the prefetch */
        {16, 16, 400, 0, 10000, 1000, 16 + 64},
        {4, 16, 400, 0, 10000, 1000, 4 + 16},
        {16, 16, 40, 0, 10000, 1000, 16 + 20},
        /* a limit of 1: each claim is a try */
        {1, 16, 128, 0, 1000, 1000, 1},
        {16, 1, 128, 0, 1000, 1000, 1},
        /* with batches: the next one is claimed while all slots are taken */
        {2, 2, 32, 4, 0, 0, (2 + 1) * 4},
        {2, 2, 32, 4, 500, 1000, (2 + 2) * 4},
        {2, 2, 16, 4, 10000, 1000, (2 + 2) * 4},
        {4, 4, 16, 4, 10000, 1000, 16},
        {3, 3, 12, 4, 500, 1000, (3 + 1) * 4 - 4},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct queue_rules r = cases[i].batch ? bed_batch_rules(cases[i].batch) : bed_rules();

        r.prefetch = cases[i].prefetch;
        struct bed *b = bed_of(&r);
        int n;

        b->q.own.limiter.limit = cases[i].queue;
        b->application.limiter.limit = cases[i].application;
        b->q.flow.claim_us = cases[i].claim_us;
        b->q.flow.service_us = cases[i].service_us;
        deliver_many(b, cases[i].prefetch);
        n = take_claims(b);
        if (n != cases[i].n)
            fail_msg("case %zu: %d claims instead of %d", i, n, cases[i].n);
        bed_end(b);
    }
}

static void test_the_oldest_request_may_hang_after_half_of_its_window(void **state)
{
    struct bed *b = bed();

    assert_false(queue_may_hang(&b->q, b->now));
    assert_false(queue_wants_slot(&b->q));
    bed_deliver(b, "m");
    assert_true(queue_wants_slot(&b->q));
    bed_row(b, bed_asks(b, OP_CLAIM), ROW_CLAIMED);
    assert_true(queue_wants_slot(&b->q));
    bed_does(b, ACTION_FORWARD);
    assert_false(queue_wants_slot(&b->q));
    assert_false(queue_may_hang(&b->q, b->now + BED_WINDOW_MS / 2));
    assert_true(queue_may_hang(&b->q, b->now + BED_WINDOW_MS / 2 + 1));
    b->q.held.overdue.len++; /* a request whose window has ended */
    assert_true(queue_may_hang(&b->q, b->now));
    b->q.held.overdue.len--;
    bed_end(b);
}

/* --- short windows --- */

static void test_a_claim_with_a_short_window_is_repeated_twice(void **state)
{
    static const struct {
        int64_t answer_ms; /* of each claim */
        int n_claims;
        int64_t told_ms; /* -1: none */
    } cases[] = {
        {0, 1, -1},
        {TENTH_MS, 1, -1},
        {TENTH_MS + 1, 3, 9 * TENTH_MS - 1},
        {9 * TENTH_MS, 3, TENTH_MS},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed *b = bed();

        for (int attempt = 1; attempt <= 2; attempt++) {
            struct delivery *d = attempt == 1 ? bed_deliver(b, "m") : bed_newest(b);
            int n = 0;

            /* A claim that is wanted again is sent with the next turn. */
            while ((bed_next(b) || bed_next(b)) && b->last.kind == ACTION_DATABASE) {
                assert_int_equal(b->last.new_token, n == 0);
                n++;
                bed_pass(b, cases[i].answer_ms);
                bed_row_of(b, d, (struct row){.answer = ROW_CLAIMED, .attempt = attempt, .unproven_ms = -1});
            }
            assert_int_equal(b->last.kind, ACTION_FORWARD);
            assert_int_equal(n, cases[i].n_claims);
            bed_rest(b);
            const struct bed_line *l = bed_told(b, EVENT_SHORT_WINDOW);

            assert_int_equal(l ? l->ms : -1, cases[i].told_ms);
            bed_answer(b, d, 500);
            bed_row(b, bed_asks(b, OP_FAIL), ROW_FAILED);
            bed_rest(b);
            bed_pass(b, d->timer.at_ms - b->now);
        }
        bed_end(b);
    }
}

static void test_claims_that_cannot_be_sent_soon_are_released(void **state)
{
    static const struct {
        int64_t queue_waits_ms, application_waits_ms, passed_ms;
        bool gone, failing, paused, down, drains, held_back;
        bool released;
    } cases[] = {
        {.released = false},
        {.passed_ms = 9 * TENTH_MS + 1, .released = true},
        {.queue_waits_ms = TENTH_MS, .held_back = true},
        {.queue_waits_ms = TENTH_MS + 1, .released = true},
        {.application_waits_ms = TENTH_MS, .held_back = true},
        {.application_waits_ms = TENTH_MS + 1, .released = true},
        {.gone = true, .released = true},
        {.failing = true, .released = true},
        {.paused = true, .released = true},
        {.down = true, .released = true},
        {.drains = true, .released = true},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed *b = bed();
        struct delivery *d = bed_claimed(b, "m", 1);

        bed_pass(b, cases[i].passed_ms);
        b->q.own.limiter.wait_until_ms = b->now + cases[i].queue_waits_ms;
        b->application.limiter.wait_until_ms = b->now + cases[i].application_waits_ms;
        b->application.gone = cases[i].gone;
        b->application.probe.failing = cases[i].failing;
        b->q.commands.paused = cases[i].paused;
        if (cases[i].down)
            database_refused(&b->database, b->now, "53100", "full", false);
        if (cases[i].drains)
            queue_drain(&b->q, b->now, b->now + 10000);
        bool acts = bed_next(b);

        if (cases[i].released) {
            assert_int_equal(d->op, OP_RELEASE);
            assert_string_equal(d->outcome.error,
                                "its window was nearly over, or the queue came to pause, before "
                                "it could be sent");
            assert_int_equal(delivery_release(d)->then_requeue, cases[i].drains);
            assert_int_equal(delivery_release(d)->delay_ms, 0);
        } else if (cases[i].held_back) {
            assert_false(acts);
            bed_wants(d, OP_FORWARD);
        } else {
            assert_int_equal(b->last.kind, ACTION_FORWARD);
        }
        bed_end(b);
    }
}

/* --- lookups --- */

/* The application is down, so the messages wait. */
static void test_a_waiting_message_is_looked_up_once(void **state)
{
    struct bed *b = bed();
    struct delivery *first, *second;

    b->application.gone = true;
    first = bed_deliver(b, "m1");
    bed_rest(b);
    bed_pass(b, 60);
    second = bed_deliver(b, "m2");
    bed_pass(b, BACKLOG_MS - 61);
    bed_rest(b);
    bed_pass(b, 1);
    assert_ptr_equal(bed_asks(b, OP_LOOK), first);
    bed_rest(b);
    assert_int_equal(b->q.flow.look_ms, b->now + 60);
    bed_row(b, first, ROW_DUE);
    bed_pass(b, 59);
    bed_rest(b);
    bed_pass(b, 1);
    assert_ptr_equal(bed_asks(b, OP_LOOK), second);
    bed_row(b, second, ROW_DUE);
    bed_pass(b, 10000);
    bed_rest(b);
    bed_end(b);
}

static void test_messages_whose_row_is_known_are_not_looked_up(void **state)
{
    for (int i = 0; i < 5; i++) {
        struct bed *b = bed();
        struct delivery *d;

        b->application.gone = true;
        d = bed_deliver(b, "m");
        d->claim->looked = i == 0;
        d->claim->crashes = i == 1;
        d->claim->takeovers = i == 2;
        if (i == 3)
            d->claim->of_row = CLAIM_HELD;
        bed_pass(b, 200);
        if (i == 4)
            bed_asks(b, OP_LOOK);
        bed_rest(b);
        bed_end(b);
    }
}

/* Lookups in a queue of new messages only cost time while claims go on. */
static void test_the_time_of_the_next_lookups(void **state)
{
    static const struct {
        double duplicates;
        bool looks_left;
        int64_t look_ms, claimed_ms, deadline_ms; /* after, before and after now; deadline 0: none */
    } cases[] = {
        {0.5, true, 50, 10, 50},
        {0.5, true, 1, 10, 1},
        {0.5, true, 0, 10, 0},
        {0.02, true, 50, 10, BACKLOG_MS + 1 - 10},
        {0.03, true, 50, 10, 50},
        {0, true, 200, 10, 200},
        {0, true, 0, BACKLOG_MS, 1},
        {0, true, 0, BACKLOG_MS + 1, 0},
        {0, true, 50, BACKLOG_MS + 1, 50},
        {0.6, true, 50, 10, 50},
        {0.6, false, 50, 10, 50},
        {0.7, false, 50, 10, 0},
        {0.7, true, 50, 10, 50},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed *b = bed();

        assert_true(claims_deadline(&b->q, b->now) == INT64_MAX); /* no message waits */
        bed_deliver(b, "m");
        b->q.flow.duplicates = cases[i].duplicates;
        b->q.flow.looks_left = cases[i].looks_left;
        b->q.flow.look_ms = b->now + cases[i].look_ms;
        b->q.flow.claimed_ms = b->now - cases[i].claimed_ms;
        int64_t at_ms = claims_deadline(&b->q, b->now);

        if (at_ms != (cases[i].deadline_ms ? b->now + cases[i].deadline_ms : INT64_MAX))
            fail_msg("case %zu: in %lld ms", i, (long long)(at_ms - b->now));
        bed_end(b);
    }
}

/* --- the circuit breaker --- */

static struct delivery *deliver_redelivered(struct bed *b, const char *id)
{
    struct arrival *a = bed_arrival(&b->q, id);

    a->message->redelivered = true;
    queue_delivered(&b->q, b->now, a, NULL);
    bed_newest(b)->claim->looked = true;
    return bed_newest(b);
}

static void test_redelivered_messages_are_left_to_other_replicas_for_a_minute(void **state)
{
    static const struct {
        bool first, without_others, ordered, off;
        int64_t claimed_ms;
    } cases[] = {
        {.claimed_ms = LEFT_MS}, {.first = true}, {.without_others = true}, {.ordered = true}, {.off = true},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct queue_rules r = bed_rules();

        r.ordered = cases[i].ordered;
        struct bed *b = bed_of(&r);
        struct delivery *d;

        if (!cases[i].off)
            assert_true(brake_force(&b->q.own.brake, b->now, "all fails"));
        b->q.n_others = !cases[i].without_others;
        d = cases[i].first ? bed_deliver(b, "m") : deliver_redelivered(b, "m");
        d->claim->looked = true;
        if (cases[i].claimed_ms) {
            bed_rest(b);
            bed_pass(b, cases[i].claimed_ms - 1);
            bed_rest(b);
            bed_pass(b, 1);
        }
        assert_ptr_equal(bed_asks(b, OP_CLAIM), d);
        bed_end(b);
    }
}

static void test_attempts_per_second_while_the_breaker_is_on(void **state)
{
    for (int n_others = 0; n_others < 2; n_others++) {
        struct bed *b = bed();

        assert_true(brake_force(&b->q.own.brake, b->now, "all fails"));
        b->q.n_others = n_others;
        b->q.own.limiter.limit = b->application.limiter.limit = 16;
        deliver_many(b, 64);
        assert_int_equal(take_claims(b), n_others ? 1 : 16);
        b->q.flow.look_ms = b->now; /* no lookups */
        b->q.flow.duplicates = 0.1;
        assert_int_equal(claims_deadline(&b->q, b->now), (b->now / 1000 + 1) * 1000);
        bed_end(b);
    }
}

/* --- candidates --- */

static void test_with_a_limit_of_1_the_message_with_the_oldest_try_goes_first(void **state)
{
    static const struct {
        int64_t tried_ms[3]; /* 0: never */
        double queue, application;
        int first;
    } cases[] = {
        {{500, 300, 0}, 1, 16, 2},   {{500, 300, 400}, 1, 16, 1}, {{300, 500, 400}, 1, 16, 0},
        {{500, 300, 400}, 16, 1, 1}, {{500, 300, 0}, 16, 16, 0},  {{300, 300, 300}, 1, 16, 0},
        {{500, 300, 400}, 2, 2, 0},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed *b = bed();
        struct delivery *d[3];

        for (int k = 0; k < 3; k++) {
            char id[16];

            snprintf(id, sizeof(id), "m%d", k);
            d[k] = bed_deliver(b, id);
            d[k]->claim->tried_ms = cases[i].tried_ms[k];
        }
        b->q.own.limiter.limit = cases[i].queue;
        b->application.limiter.limit = cases[i].application;
        assert_ptr_equal(bed_asks(b, OP_CLAIM), d[cases[i].first]);
        bed_end(b);
    }
}

static void test_a_message_that_cannot_be_claimed_within_max_hold_is_requeued(void **state)
{
    const struct queue_rules r = bed_rules();
    struct bed *b = bed_new(&r, KIND_CLASSIC);
    struct delivery *d = bed_deliver(b, "m");

    d->claim->looked = true;
    b->application.gone = true;
    bed_pass(b, r.max_hold_ms - 1);
    bed_rest(b);
    bed_pass(b, 1);
    while (bed_next(b) && b->last.kind != ACTION_REQUEUE)
        ;
    assert_int_equal(b->last.kind, ACTION_REQUEUE);
    assert_string_equal(bed_told(b, EVENT_RETURNED)->text, "held for max_hold");
    assert_int_equal(bed_told(b, EVENT_RETURNED)->n, 1);
    bed_end(b);
}

/* --- requests --- */

static void test_a_claimed_message_is_sent_when_a_slot_is_free(void **state)
{
    static const struct {
        double queue, application;      /* limits */
        int n_own, n_other, n_accepted; /* in flight in this queue and in others; answered 202 in others */
        uint64_t owner;                 /* of quarantine: another queue's message */
        bool taken;
        int64_t joined_ms;
        bool sent;
    } cases[] = {
        {.queue = 16, .application = 16, .n_own = 1, .sent = true},
        {.queue = 2, .application = 16, .n_own = 1, .sent = true},
        {.queue = 1, .application = 16, .n_own = 1},
        {.queue = 16, .application = 2, .n_own = 1, .sent = true},
        {.queue = 16, .application = 1, .n_own = 1},
        {.queue = 16, .application = 2, .n_own = 1, .n_other = 1},
        {.queue = 16, .application = 3, .n_own = 1, .n_other = 1, .sent = true},
        {.queue = 16, .application = 2, .n_own = 1, .n_accepted = 1},
        /* a queue with nothing in flight needs no free slot */
        {.queue = 1, .application = 1, .n_other = 1, .sent = true},
        /* claimed messages are sent before quarantine begins; after that, none joins it before its time */
        {.queue = 16, .application = 16, .owner = 99, .sent = true},
        {.queue = 16, .application = 16, .owner = 99, .taken = true, .joined_ms = 1},
        {.queue = 16, .application = 16, .owner = 99, .taken = true, .joined_ms = 0, .sent = true},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed *b = bed();
        struct application *a = &b->application;

        if (cases[i].n_own)
            bed_sent(b, "other", 1);
        struct delivery *d = bed_claimed(b, "m", 1);

        b->q.own.limiter.limit = cases[i].queue;
        a->limiter.limit = cases[i].application;
        a->n_out += cases[i].n_other;
        a->n_accepted += cases[i].n_accepted;
        a->place.owner = cases[i].owner;
        a->place.taken = cases[i].taken;
        a->place.until_ms = b->now + cases[i].joined_ms;
        bool sent = bed_next(b) && b->last.kind == ACTION_FORWARD;

        if (sent != cases[i].sent)
            fail_msg("case %zu", i);
        if (!sent)
            bed_wants(d, OP_FORWARD);
        a->n_out -= cases[i].n_other;
        a->n_accepted -= cases[i].n_accepted;
        bed_end(b);
    }
}

static void test_ready_messages_are_shared_among_the_free_slots(void **state)
{
    static const struct {
        double queue, application;
        int n_other, n_accepted;
        size_t n_first;
    } cases[] = {
        {4, 4, 0, 0, 2}, {2, 4, 0, 0, 4}, {4, 2, 0, 0, 4}, {4, 4, 2, 0, 4},
        {4, 4, 0, 2, 4}, {3, 4, 0, 0, 3}, {1, 4, 0, 0, 8}, {4, 1, 1, 0, 8},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct queue_rules r = bed_batch_rules(10);

        r.concurrency = 4;
        struct bed *b = bed_of(&r);
        struct delivery *claimed[8];
        struct application *a = &b->application;

        deliver_many(b, 8);
        for (int k = 0; k < 8; k++)
            claimed[k] = bed_asks(b, OP_CLAIM);
        for (int k = 0; k < 8; k++)
            bed_row(b, claimed[k], ROW_CLAIMED);
        b->q.own.limiter.limit = cases[i].queue;
        a->limiter.limit = cases[i].application;
        a->n_out += cases[i].n_other;
        a->n_accepted += cases[i].n_accepted;
        bed_does(b, ACTION_FORWARD);
        assert_int_equal(b->last.request->members.len, cases[i].n_first);
        a->n_out -= cases[i].n_other;
        a->n_accepted -= cases[i].n_accepted;
        bed_end(b);
    }
}

/* A message that kills the application slowly needs longer. A message that only hangs is revoked before others join. */
static void test_others_join_a_quarantined_message_later_after_more_crashes(void **state)
{
    static const struct {
        int crashes, takeovers;
        int64_t windows; /* 0: never */
    } cases[] = {{1, 0, 1},  {2, 0, 2}, {3, 0, 4}, {6, 0, 32}, {7, 0, 64},
                 {9, 0, 64}, {1, 1, 1}, {0, 2, 0}, {1, 2, 0}};

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed *b = bed();
        struct delivery *d = bed_deliver(b, "m");

        d->claim->crashes = cases[i].crashes;
        d->claim->takeovers = cases[i].takeovers;
        bed_asks(b, OP_CLAIM);
        bed_row_of(b, d,
                   (struct row){.answer = ROW_CLAIMED,
                                .attempt = 1,
                                .crashes = cases[i].crashes,
                                .takeovers = cases[i].takeovers,
                                .unproven_ms = -1});
        bed_does(b, ACTION_FORWARD);
        assert_true(b->application.place.taken);
        if (cases[i].windows)
            assert_int_equal(b->application.place.until_ms - b->now, cases[i].windows * BED_WINDOW_MS + 1000);
        else
            assert_true(b->application.place.until_ms == INT64_MAX);
        bed_end(b);
    }
}

static void test_messages_answered_202_keep_their_slots(void **state)
{
    for (int n_accepted = 1; n_accepted <= 2; n_accepted++) {
        struct bed *b = bed();

        bed_sent(b, "other", 1);
        bed_claimed(b, "m", 1);
        b->q.own.limiter.limit = 3;
        b->q.own.accepted_units += (size_t)n_accepted * SLOT_UNITS;
        assert_int_equal(claims_n_slots(&b->q), 2 + n_accepted);
        assert_int_equal(bed_next(b), n_accepted == 1);
        b->q.own.accepted_units -= (size_t)n_accepted * SLOT_UNITS;
        bed_end(b);
    }
}

static void test_a_claim_forgets_the_outcome_of_the_previous_attempt(void **state)
{
    static const enum request_end ends[][2] = {{REQUEST_CRASHED, REQUEST_ANSWERED},
                                               {REQUEST_UNANSWERED, REQUEST_ANSWERED}};

    for (size_t i = 0; i < COUNT(ends); i++) {
        struct bed *b = bed();
        struct delivery *d = bed_deliver(b, "m");

        d->outcome.request = ends[i][0];
        d->outcome.http_status = 500;
        d->claim->next_cap = 3;
        bed_asks(b, OP_CLAIM);
        assert_int_equal(d->outcome.request, ends[i][1]);
        assert_int_equal(d->outcome.kind, OUTCOME_NONE);
        assert_int_equal(d->outcome.http_status, 0);
        assert_int_equal(d->claim->next_cap, 0);
        assert_int_equal(d->claim->window_ends_ms, b->now + BED_WINDOW_MS);
        assert_int_equal(d->claim->of_row, CLAIM_OFFERED);
        bed_end(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claims_ahead_of_free_slots),
        cmocka_unit_test(test_the_oldest_request_may_hang_after_half_of_its_window),
        cmocka_unit_test(test_a_claim_with_a_short_window_is_repeated_twice),
        cmocka_unit_test(test_claims_that_cannot_be_sent_soon_are_released),
        cmocka_unit_test(test_a_waiting_message_is_looked_up_once),
        cmocka_unit_test(test_messages_whose_row_is_known_are_not_looked_up),
        cmocka_unit_test(test_the_time_of_the_next_lookups),
        cmocka_unit_test(test_redelivered_messages_are_left_to_other_replicas_for_a_minute),
        cmocka_unit_test(test_attempts_per_second_while_the_breaker_is_on),
        cmocka_unit_test(test_with_a_limit_of_1_the_message_with_the_oldest_try_goes_first),
        cmocka_unit_test(test_a_message_that_cannot_be_claimed_within_max_hold_is_requeued),
        cmocka_unit_test(test_a_claimed_message_is_sent_when_a_slot_is_free),
        cmocka_unit_test(test_ready_messages_are_shared_among_the_free_slots),
        cmocka_unit_test(test_others_join_a_quarantined_message_later_after_more_crashes),
        cmocka_unit_test(test_messages_answered_202_keep_their_slots),
        cmocka_unit_test(test_a_claim_forgets_the_outcome_of_the_previous_attempt),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
