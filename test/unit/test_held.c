/* The predicates of src/core/held.c: which deliveries are idle, parked, near their limit, or may be renewed. */
#include "core_bed.h"

#include "core/held.h"

/* A delivery with the structs that these predicates read. */
struct sample {
    struct delivery d;
    struct claim claim;
    struct arrival arrival;
    struct message message;
    struct request request;
};

static struct sample *sample_new(void)
{
    struct sample *s = calloc(1, sizeof(*s));

    s->d.claim = &s->claim;
    s->d.arrival = &s->arrival;
    s->d.phase = PHASE_WANTED;
    s->d.op = OP_CLAIM;
    s->arrival.id_len = 1;
    s->arrival.message = &s->message;
    return s;
}

static void be_in_flight(struct sample *s)
{
    s->d.request = &s->request;
    s->d.in_request.next = &s->d.in_request;
    s->request.in_flight = true;
}

static void test_only_deliveries_that_wait_are_idle(void **state)
{
    static const bool idle[N_OPERATIONS] = {
        [OP_NONE] = true, [OP_CLAIM] = true, [OP_LOOK] = true, [OP_RENEW] = true, [OP_PUBLISH] = true};

    for (int op = 0; op < N_OPERATIONS; op++) {
        struct sample *s = sample_new();

        s->d.op = (enum operation)op;
        assert_int_equal(held_is_idle(&s->d), idle[op]);
        s->d.phase = PHASE_SENT;
        assert_false(held_is_idle(&s->d));
        s->d.phase = PHASE_WANTED;
        s->claim.accepted_until_ms = 1;
        assert_false(held_is_idle(&s->d));
        s->claim.accepted_until_ms = 0;
        be_in_flight(s);
        assert_false(held_is_idle(&s->d));
        free(s);
    }
}

/* Parked deliveries hold no credit, so others arrive. */
static void test_deliveries_that_wait_long_are_parked(void **state)
{
    static const struct {
        enum operation op;
        enum phase phase;
        enum wait_reason wait;
        bool put_off, accepted, has_body;
        bool parked;
    } cases[] = {
        {OP_CLAIM, PHASE_WANTED, WAIT_NONE, false, false, true, false},
        {OP_CLAIM, PHASE_WANTED, WAIT_NONE, true, false, true, true},
        {OP_CLAIM, PHASE_SENT, WAIT_NONE, true, false, true, false},
        {OP_RELEASE, PHASE_WANTED, WAIT_NONE, true, false, true, false},
        {OP_CLAIM, PHASE_WANTED, WAIT_DUE, false, false, true, true},
        {OP_LOOK, PHASE_WANTED, WAIT_HELD, false, false, true, true},
        {OP_CLAIM, PHASE_WANTED, WAIT_BRAKE, false, false, true, true},
        {OP_DEAD_LETTER, PHASE_WANTED, WAIT_BRAKE, false, false, true, true},
        {OP_DEAD_LETTER, PHASE_WANTED, WAIT_LOCKED, false, false, true, false},
        {OP_REQUEUE, PHASE_WANTED, WAIT_ROOM, false, false, false, true},
        {OP_REQUEUE, PHASE_WANTED, WAIT_HELD, false, false, false, true},
        {OP_REQUEUE, PHASE_WANTED, WAIT_HELD, false, false, true, false},
        {OP_CHECK, PHASE_WANTED, WAIT_WATCHING, false, true, true, true},
        {OP_CHECK, PHASE_WANTED, WAIT_WATCHING, false, false, true, false},
        {OP_FAIL, PHASE_WANTED, WAIT_AGAIN, false, false, true, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sample *s = sample_new();

        s->d.op = cases[i].op;
        s->d.phase = cases[i].phase;
        s->d.wait = cases[i].wait;
        s->d.outcome.request = cases[i].put_off ? REQUEST_PUT_OFF : REQUEST_ANSWERED;
        s->claim.accepted_until_ms = cases[i].accepted;
        if (!cases[i].has_body)
            s->arrival.message = NULL;
        if (held_is_parked(&s->d) != cases[i].parked)
            fail_msg("case %d", (int)i);
        free(s);
    }
}

/* --- renewals --- */

static void can_renew(struct sample *s)
{
    (void)s;
}

static void has_no_body(struct sample *s)
{
    s->arrival.message = NULL;
}

static void has_no_id(struct sample *s)
{
    s->arrival.id_len = 0;
}

static void is_refused(struct sample *s)
{
    s->d.renewal = RENEWAL_REFUSED;
}

static void is_after_claim(struct sample *s)
{
    s->d.renewal = RENEWAL_AFTER_CLAIM;
}

static void is_dead_letter(struct sample *s)
{
    s->d.op = OP_DEAD_LETTER;
}

static void is_rowless(struct sample *s)
{
    s->d.outcome.kind = OUTCOME_DEAD_LETTER;
    s->d.outcome.dead_letter.row = LETTER_ROWLESS;
}

static void has_row(struct sample *s)
{
    s->d.outcome.kind = OUTCOME_DEAD_LETTER;
    s->d.outcome.dead_letter.row = LETTER_CLAIMED;
}

static void is_dead(struct sample *s)
{
    s->d.row_end = ROW_END_DEAD;
}

static void is_on_hold(struct sample *s)
{
    s->d.row_end = ROW_END_ON_HOLD;
}

static void is_given_up(struct sample *s)
{
    s->d.given_up = true;
}

/* A message that cannot be renewed is stored near its limit. A first delivery is never near. */
static void test_which_messages_may_be_renewed(void **state)
{
    static const struct {
        void (*make)(struct sample *);
        bool can;
    } cases[] = {{can_renew, true},      {has_no_body, false},    {has_no_id, false},  {is_refused, false},
                 {is_after_claim, true}, {is_dead_letter, false}, {is_rowless, false}, {has_row, true},
                 {is_dead, false},       {is_on_hold, true},      {is_given_up, false}};
    struct queue_rules rules = bed_rules();

    rules.delivery_limit = 3; /* renewed from 1 delivery on, stored from 2 on */
    struct bed *b = bed_new(&rules, KIND_QUORUM);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sample *s = sample_new();

        cases[i].make(s);
        if (held_can_renew(&b->q, &s->d) != cases[i].can)
            fail_msg("case %d", (int)i);
        assert_false(held_is_near(&b->q, &s->d));
        s->arrival.copy.delivery_count = 1;
        assert_int_equal(held_is_near(&b->q, &s->d), cases[i].can);
        s->arrival.copy.delivery_count = 2;
        assert_true(held_is_near(&b->q, &s->d));
        b->q.returns.no_renewal = "forbidden";
        assert_false(held_can_renew(&b->q, &s->d));
        b->q.returns.no_renewal = NULL;
        free(s);
    }
    bed_end(b);
}

/* --- waits --- */

/* The application may still be working after a request without an answer, so the next attempt waits for a window. */
static void test_a_wait_after_an_unanswered_request_is_at_least_a_window(void **state)
{
    static const struct {
        enum request_end end;
        int64_t least_ms;
    } cases[] = {{REQUEST_ANSWERED, 100},
                 {REQUEST_PUT_OFF, 100},
                 {REQUEST_CRASHED, 100},
                 {REQUEST_UNANSWERED, BED_WINDOW_MS}};
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sample *s = sample_new();
        int64_t wait;

        s->d.outcome.request = cases[i].end;
        wait = held_delay_ms(&b->q, &s->d, 1);
        assert_int_in_range(wait, cases[i].least_ms, cases[i].least_ms > 1000 ? cases[i].least_ms : 1000);
        s->d.outcome.request = REQUEST_UNANSWERED;
        assert_int_in_range(held_delay_ms(&b->q, &s->d, 20), BED_WINDOW_MS, rules.max_backoff_ms);
        free(s);
    }
    bed_end(b);
}

static void test_waits_for_a_lock_double_up_to_a_second(void **state)
{
    static const int64_t waits[] = {20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000, 1000};
    struct sample *s = sample_new();

    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        assert_int_equal(held_lock_wait_ms(&s->d), waits[i]);
    s->d.n_waits = 1 << 20;
    assert_int_equal(held_lock_wait_ms(&s->d), 1000);
    free(s);
}

/* --- the state of the queue --- */

static void test_the_state_of_a_queue_is_the_first_that_applies(void **state)
{
    static const struct {
        enum drain_state drain;
        bool no_queue, connected, ready, paused, stream, standby_of_depth, remedied, has_messages;
        uint64_t place; /* number of the queue with the quarantined message */
        enum consumer_state consumer;
        enum queue_state expected;
        bool may_consume;
    } cases[] = {
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .remedied = true,
         .expected = QUEUE_CONSUMING,
         .may_consume = true},
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .has_messages = true,
         .expected = QUEUE_CONSUMING,
         .may_consume = true},
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .expected = QUEUE_CONSUMING,
         .may_consume = true},
        {.connected = true, .ready = true, .consumer = CONSUMER_NONE, .expected = QUEUE_WAITING},
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .place = 1,
         .expected = QUEUE_SUSPECTS,
         .may_consume = true},
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .place = 2,
         .expected = QUEUE_WAITING_FOR_SUSPECT,
         .may_consume = true},
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .place = 1,
         .remedied = true,
         .has_messages = true,
         .expected = QUEUE_STUCK,
         .may_consume = true},
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .remedied = true,
         .has_messages = true,
         .standby_of_depth = true,
         .expected = QUEUE_STANDBY,
         .may_consume = true},
        {.connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .remedied = true,
         .has_messages = true,
         .paused = true,
         .expected = QUEUE_PAUSED},
        {.connected = true, .consumer = CONSUMER_ACTIVE, .paused = true, .expected = QUEUE_PAUSED},
        {.connected = true, .consumer = CONSUMER_ACTIVE, .expected = QUEUE_STARTING},
        {.ready = true, .consumer = CONSUMER_NONE, .expected = QUEUE_DISCONNECTED},
        {.ready = true, .paused = true, .consumer = CONSUMER_NONE, .expected = QUEUE_DISCONNECTED},
        {.ready = true, .stream = true, .consumer = CONSUMER_NONE, .expected = QUEUE_PAUSED},
        {.no_queue = true, .consumer = CONSUMER_NONE, .expected = QUEUE_NO_QUEUE},
        {.no_queue = true,
         .connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .expected = QUEUE_NO_QUEUE},
        {.drain = DRAIN_FINISHING, .no_queue = true, .expected = QUEUE_DRAINING},
        {.drain = DRAIN_LEAVING,
         .connected = true,
         .ready = true,
         .consumer = CONSUMER_ACTIVE,
         .expected = QUEUE_DRAINING},
        {.drain = DRAIN_DONE, .connected = true, .ready = true, .expected = QUEUE_DRAINED},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules rules = bed_rules();
        struct bed *b = bed_new(&rules, KIND_QUORUM);
        struct queue *q = &b->q;

        q->drain = cases[i].drain;
        q->consumer.watch.no_queue = cases[i].no_queue;
        q->generation = cases[i].connected;
        q->ready = cases[i].ready;
        q->pauses[PAUSE_OPERATOR].since_ms = cases[i].paused;
        q->pauses[PAUSE_STREAM].since_ms = cases[i].stream;
        q->consumer.watch.n_remedies = cases[i].remedied;
        q->consumer.watch.depth = cases[i].has_messages;
        q->consumer.watch.standby = cases[i].standby_of_depth;
        q->application->place.owner = cases[i].place << 40 | (cases[i].place ? 7 : 0);
        q->consumer.state = cases[i].consumer;
        if (queue_state(q) != cases[i].expected || queue_may_consume(q) != cases[i].may_consume)
            fail_msg("case %d: %d, %d", (int)i, queue_state(q), queue_may_consume(q));
        q->left_to_others = true;
        assert_false(queue_may_consume(q));
        q->left_to_others = false;
        b->database.linked = false; /* a pause that is not logged */
        assert_false(queue_may_consume(q));
        b->database.linked = true;
        q->application->place.owner = 0;
        q->generation = 1;
        bed_end(b);
    }
}

static void test_the_lower_limit_applies_with_its_reason(void **state)
{
    static const struct {
        double own, shared;
        int limit;
        const char *reason;
    } cases[] = {{3.9, 8, 3, "own"}, {8, 2.5, 2, "shared"}, {4, 4, 4, "own"}, {16, 16, 16, NULL}};
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct limiter *own = &b->q.share->limiter, *shared = &b->application.limiter;

    own->reason = "own";
    shared->reason = "shared";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        own->limit = cases[i].own;
        shared->limit = cases[i].shared;
        assert_int_equal(queue_limit(&b->q), cases[i].limit);
        if (cases[i].reason)
            assert_string_equal(queue_limit_reason(&b->q), cases[i].reason);
        else
            assert_null(queue_limit_reason(&b->q));
    }
    bed_end(b);
}

static void test_the_age_of_a_queue_is_that_of_its_oldest_delivery(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);

    assert_int_equal(queue_oldest_ms(&b->q, b->now), 0);
    bed_deliver(b, "m");
    bed_pass(b, 30);
    bed_deliver(b, "n");
    bed_pass(b, 12);
    assert_int_equal(queue_oldest_ms(&b->q, b->now), 42);
    assert_int_equal(queue_n_held(&b->q), 2);
    bed_asks(b, OP_CLAIM);
    assert_int_equal(queue_n_held(&b->q), 2);
    bed_row_of(b, b->last.d, (struct row){.answer = ROW_NOT_DUE, .wait_ms = 9000, .unproven_ms = -1});
    assert_int_equal(queue_n_held(&b->q), 2);
    assert_int_equal(queue_n_parked(&b->q), 1);
    bed_end(b);
}

static void test_a_message_that_was_not_looked_up_asks_for_a_lookup(void **state)
{
    for (int looked = 0; looked < 2; looked++) {
        struct queue_rules rules = bed_rules();
        struct bed *b = bed_new(&rules, KIND_QUORUM);
        struct delivery *d = bed_deliver(b, "m");

        assert_true(b->q.flow.looks_left);
        d->claim->looked = looked;
        b->q.flow.looks_left = false;
        held_move(&b->q, b->now, d, OP_CLAIM, PHASE_WANTED, WAIT_NONE);
        assert_int_equal(b->q.flow.looks_left, !looked);
        b->q.flow.looks_left = false;
        held_move(&b->q, b->now, d, OP_LOOK, PHASE_WANTED, WAIT_NONE);
        assert_false(b->q.flow.looks_left);
        bed_end(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_deliveries_that_wait_are_idle),
        cmocka_unit_test(test_deliveries_that_wait_long_are_parked),
        cmocka_unit_test(test_which_messages_may_be_renewed),
        cmocka_unit_test(test_a_wait_after_an_unanswered_request_is_at_least_a_window),
        cmocka_unit_test(test_waits_for_a_lock_double_up_to_a_second),
        cmocka_unit_test(test_the_state_of_a_queue_is_the_first_that_applies),
        cmocka_unit_test(test_the_lower_limit_applies_with_its_reason),
        cmocka_unit_test(test_the_age_of_a_queue_is_that_of_its_oldest_delivery),
        cmocka_unit_test(test_a_message_that_was_not_looked_up_asks_for_a_lookup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
