/* Events from the broker: deliveries without their bodies, the channel and its loss, and questions about the queue. */
#include "core/order.h"
#include "core_bed.h"
#include "fields.h"

enum { MAX_MESSAGE = 1000, ROOM_MS = 250 };

static struct queue_rules rules(void)
{
    struct queue_rules r = bed_rules();

    r.max_message_bytes = MAX_MESSAGE;
    r.delivery_limit = 100;
    return r;
}

/* Delivers a message without its body. */
static struct delivery *deliver_skipped(struct bed *b, const char *id, uint64_t body_len, size_t n_bytes,
                                        int64_t delivery_count)
{
    struct arrival *a = bed_skipped(&b->q, id, 1000 + b->q.held.next_ref);

    a->copy.body_len = body_len;
    a->copy.n_bytes = n_bytes;
    a->copy.delivery_count = delivery_count;
    queue_delivered(&b->q, b->now, a, NULL);
    return bed_newest(b);
}

static void test_a_body_that_never_fits_is_held_or_rejected(void **state)
{
    static const struct {
        bool rejects, ordered, needs_consumer;
        int64_t delivery_count;
        enum operation op;
        enum wait_reason wait;
        bool pauses, stays;
        const char *text;
    } cases[] = {
        {.op = OP_REQUEUE, .wait = WAIT_HELD, .text = "a message of 1001 bytes, max_message is 1000"},
        {.delivery_count = 95,
         .op = OP_REQUEUE,
         .wait = WAIT_HELD,
         .text = "a message of 1001 bytes, max_message is 1000"},
        {.delivery_count = 96,
         .op = OP_REQUEUE,
         .wait = WAIT_HELD,
         .pauses = true,
         .text =
             "a message of 1001 bytes, max_message is 1000; near the delivery limit: nothing more is consumed "
             "here before max_message or on_too_large is changed"},
        {.delivery_count = 98,
         .needs_consumer = true,
         .op = OP_REQUEUE,
         .wait = WAIT_HELD,
         .pauses = true,
         .stays = true,
         .text =
             "a message of 1001 bytes, max_message is 1000; near the delivery limit: one message at a time is "
             "consumed here before max_message or on_too_large is changed"},
        {.rejects = true, .op = OP_REJECT, .text = "a message of 1001 bytes, max_message is 1000"},
        {.rejects = true,
         .delivery_count = 98,
         .op = OP_REJECT,
         .text = "a message of 1001 bytes, max_message is 1000"},
        {.ordered = true,
         .op = OP_CLAIM,
         .wait = WAIT_ORDER,
         .pauses = true,
         .stays = true,
         .text = "a message of 1001 bytes, max_message is 1000"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct queue_rules r = rules();

        r.too_large_is_reject = cases[i].rejects;
        r.ordered = cases[i].ordered;
        struct bed *b = bed_new(&r, KIND_QUORUM);

        if (cases[i].needs_consumer)
            b->q.returns.limits =
                (struct queue_limits){.read = true, .needs_consumer = true, .delivery_limit = LIMIT_UNKNOWN};
        struct delivery *d = deliver_skipped(b, "m", MAX_MESSAGE + 1, 2000, cases[i].delivery_count);

        bed_waits(b, d, cases[i].op, cases[i].wait, cases[i].rejects || cases[i].stays ? -1 : r.max_hold_ms);
        assert_int_equal(b->q.pauses[PAUSE_TOO_LARGE].since_ms != 0, cases[i].pauses);
        assert_int_equal(b->q.order.stop != NULL, cases[i].ordered);
        assert_int_equal(b->q.counts.dead.total, cases[i].rejects);
        assert_int_equal(b->q.counts.received.total, 0);
        assert_int_equal(b->q.consumer.largest.seen, 0); /* its body takes no memory */
        while (bed_next(b) && b->last.kind == ACTION_REJECT)
            ;
        assert_string_equal(bed_told(b, EVENT_TOO_LARGE)->text, cases[i].text);
        bed_end(b);
    }
}

static void test_a_message_whose_headers_do_not_fit_waits_or_stops_an_ordered_queue(void **state)
{
    struct queue_rules r = rules();

    for (int ordered = 0; ordered < 2; ordered++) {
        r.ordered = ordered;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = deliver_skipped(b, "m", MAX_MESSAGE, 2000000, 0);

        assert_int_equal(b->q.consumer.largest.seen, 2000000);
        if (ordered)
            bed_waits(b, d, OP_CLAIM, WAIT_ORDER, -1);
        else
            bed_waits(b, d, OP_REQUEUE, WAIT_ROOM, ROOM_MS);
        assert_int_equal(b->q.pauses[PAUSE_BYTES_FULL].since_ms != 0, !ordered);
        bed_next(b);
        if (ordered)
            assert_string_equal(
                bed_told(b, EVENT_TOO_LARGE)->text,
                "a message of 2000000 bytes with its properties and headers, the most with this "
                "max_bytes is 525288");
        else
            assert_null(bed_told(b, EVENT_TOO_LARGE));
        bed_end(b);
    }
}

static void test_a_delivery_of_a_lost_channel_is_dropped(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct arrival *a = bed_arrival(&b->q, "m");

    a->copy.tag.generation++;
    queue_delivered(&b->q, b->now, a, NULL);
    assert_int_equal(b->q.counts.received.total, 0);
    assert_int_equal(queue_n_held(&b->q), 0);
    bed_rest(b);
    bed_end(b);
}

static void test_a_redelivery_with_an_unknown_limit_is_logged_once(void **state)
{
    struct queue_rules r = rules();

    r.delivery_limit = LIMIT_UNKNOWN;
    struct bed *b = bed_new(&r, KIND_QUORUM);

    bed_claimed(b, "first", 1);
    bed_next(b);
    assert_null(bed_told(b, EVENT_LIMITS));
    for (int i = 0; i < 2; i++) {
        struct arrival *a = bed_arrival(&b->q, i ? "third" : "second");

        a->copy.delivery_count = 1;
        queue_delivered(&b->q, b->now, a, NULL);
    }
    while (bed_next(b))
        ;
    assert_int_equal(bed_n_told(b, EVENT_LIMITS), 1);
    assert_string_equal(bed_told(b, EVENT_LIMITS)->text,
                        "a quorum queue has delivered a message again: its delivery limit is not known (the "
                        "queue's arguments cannot be read); set queues.<name>.delivery_limit (0: none)");
    bed_end(b);
}

/* A dead letter needs the body, so a message without its body cannot be given up. */
static void test_a_message_without_its_body_is_not_given_up_by_its_id(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);

    queue_command_give_up(&b->q, b->now, "ann", "m", 2);
    assert_false(deliver_skipped(b, "m", MAX_MESSAGE + 1, 2000, 0)->given_up);
    assert_false(bed_deliver(b, "n")->given_up);
    assert_true(bed_deliver(b, "m")->given_up);
    bed_end(b);
}

static void test_a_delivery_shows_that_the_consumer_is_not_stuck(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct consumer_watch *w = &b->q.consumer.watch;

    w->stuck_for = "nothing was delivered";
    w->n_remedies = 3;
    w->standby = true;
    bed_deliver(b, "m");
    assert_null(w->stuck_for);
    assert_int_equal(w->n_remedies, 0);
    assert_false(w->standby);
    bed_end(b);
}

/* --- the channel --- */

static void lose(struct bed *b, int code)
{
    queue_channel_lost(&b->q, b->now, code, "closed by the broker");
    bed_rest(b);
}

static void open_again(struct bed *b)
{
    queue_channel_open(&b->q, b->now, b->q.generation + 2, 4, 0, KIND_UNKNOWN);
    bed_rest(b);
}

static void test_a_refused_subscription_is_repeated_with_backoff(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);

    for (int i = 1; i <= 8; i++) {
        int64_t most_ms = i < 6 ? 1000 << (i - 1) : 30000;

        lose(b, 403);
        assert_int_equal(b->q.consumer.n_failures, i);
        const struct bed_line *l = bed_told(b, EVENT_DISCONNECTED);

        assert_int_in_range(l->ms, most_ms / 10, most_ms);
        assert_int_equal(b->q.consumer.not_before_ms, b->now + l->ms);
        assert_string_equal(l->reason, "broker");
        assert_string_equal(l->text, "closed by the broker");
    }
    assert_int_equal(bed_n_told(b, EVENT_DISCONNECTED), 8);
    bed_end(b);
}

static void test_a_lost_connection_is_not_a_refusal(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);

    assert_int_equal(b->q.consumer.n_failures, -1);
    lose(b, 0);
    assert_int_equal(b->q.consumer.n_failures, 0);
    assert_int_equal(b->q.consumer.not_before_ms, 0);
    assert_null(bed_told(b, EVENT_DISCONNECTED)); /* the shell logs it, for all queues */
    lose(b, 403);
    assert_int_equal(b->q.consumer.n_failures, 1);
    lose(b, 0);
    assert_int_equal(b->q.consumer.n_failures, 1);
    bed_pass(b, 30000);
    open_again(b);
    assert_int_equal(b->q.consumer.n_failures, -1);
    bed_end(b);
}

static void test_a_missing_queue_is_logged_once_until_it_is_consumed(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);

    for (int i = 0; i < 3; i++) {
        lose(b, 404);
        assert_true(b->q.consumer.watch.no_queue);
        assert_int_equal(bed_n_told(b, EVENT_NO_QUEUE), 1);
    }
    lose(b, 0); /* the whole connection is lost */
    assert_true(b->q.consumer.watch.no_queue);
    lose(b, 403);
    assert_false(b->q.consumer.watch.no_queue);
    assert_int_equal(bed_n_told(b, EVENT_DISCONNECTED), 1);
    lose(b, 404);
    assert_int_equal(bed_n_told(b, EVENT_NO_QUEUE), 2);
    queue_depth(&b->q, b->now, -1, true); /* unknown */
    assert_true(b->q.consumer.not_before_ms > b->now);
    queue_depth(&b->q, b->now, 0, false); /* exists again */
    assert_int_equal(b->q.consumer.not_before_ms, b->now);
    open_again(b);
    assert_int_equal(b->q.consumer.state, CONSUMER_ACTIVE);
    lose(b, 404);
    assert_int_equal(bed_n_told(b, EVENT_NO_QUEUE), 3);
    bed_end(b);
}

static void test_a_new_channel_has_a_new_consumer_and_an_unknown_depth(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);
    uint32_t number = b->q.consumer.number;
    int n_asked;

    bed_deliver(b, "m");
    b->q.consumer.former = 7;
    b->q.consumer.n_parked = 1;
    queue_depth_asked(&b->q, b->now); /* the broker never answers */
    bed_pass(b, 10);
    queue_depth_asked(&b->q, b->now);
    assert_int_equal(b->q.consumer.watch.asked_ms, b->now - 10);
    b->q.consumer.watch.depth = 5;
    lose(b, 0);
    assert_int_equal(b->q.consumer.former, 0);
    assert_int_equal(b->q.consumer.n_used + b->q.consumer.n_parked, 0);
    assert_int_equal(b->q.held.unacked.len, 0);
    assert_int_equal(queue_n_held(&b->q), 0);
    open_again(b);
    assert_true(b->q.consumer.number > number);
    assert_int_equal(b->q.consumer.watch.depth, -1);
    assert_int_equal(b->q.returns.kind, KIND_QUORUM); /* known from before */
    n_asked = b->n_taken[ACTION_ASK_DEPTH];
    for (int64_t i = 0; i < r.stuck_ms; i += 1000) {
        bed_pass(b, 1000);
        bed_rest(b);
    }
    assert_int_equal(b->n_taken[ACTION_ASK_DEPTH], n_asked + 1);
    bed_end(b);
}

static void test_only_the_current_subscription_is_confirmed_and_logged(void **state)
{
    struct queue_rules r = rules();
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct consumer *c = &b->q.consumer;

    assert_int_equal(bed_n_told(b, EVENT_CONSUMING), 1);
    assert_int_equal(bed_told(b, EVENT_CONSUMING)->n, c->prefetch);
    assert_int_equal(bed_n_told(b, EVENT_READY), 1);
    c->state = CONSUMER_STARTING;
    queue_consuming(&b->q, b->now, c->number - 1);
    assert_int_equal(c->state, CONSUMER_STARTING);
    queue_consuming(&b->q, b->now, c->number); /* renewed credit */
    assert_int_equal(c->state, CONSUMER_ACTIVE);
    c->watch.since_ms = 5;
    queue_consuming(&b->q, b->now, c->number); /* active already */
    assert_int_equal(c->watch.since_ms, 5);
    bed_rest(b);
    assert_int_equal(bed_n_told(b, EVENT_CONSUMING), 1);
    lose(b, 0);
    open_again(b);
    assert_int_equal(bed_n_told(b, EVENT_CONSUMING), 2);
    assert_int_equal(bed_n_told(b, EVENT_READY), 1);

    c->former = c->number - 1;
    queue_stopped(&b->q, b->now, c->number - 2);
    queue_stopped(&b->q, b->now, c->number);
    assert_int_equal(c->former, c->number - 1);
    assert_int_equal(c->state, CONSUMER_ACTIVE); /* no cancel was sent */
    queue_stopped(&b->q, b->now, c->number - 1);
    assert_int_equal(c->former, 0);
    c->state = CONSUMER_STOPPING;
    queue_stopped(&b->q, b->now, c->number);
    assert_int_equal(c->state, CONSUMER_NONE);
    bed_end(b);
}

static void test_questions_about_a_queue_of_unknown_kind(void **state)
{
    static const struct {
        bool closed, received, starting;
        int64_t started_ms, depth_of_ms, depth; /* time since the start; from the start to the depth */
        size_t n_due;
        enum queue_doubt doubt;
    } cases[] = {
        {.started_ms = 999, .depth = -1, .doubt = DOUBT_NONE},
        {.started_ms = 1000, .depth = -1, .doubt = DOUBT_DEPTH},
        {.started_ms = 1000, .depth = -1, .received = true, .doubt = DOUBT_NONE},
        {.started_ms = 1000, .depth = -1, .starting = true, .doubt = DOUBT_NONE},
        {.started_ms = 3000, .depth_of_ms = 999, .depth = 5, .doubt = DOUBT_DEPTH},
        {.started_ms = 3000, .depth_of_ms = 1000, .depth = 5, .doubt = DOUBT_KIND},
        {.started_ms = 3000, .depth_of_ms = 1000, .depth = 0, .doubt = DOUBT_NONE},
        {.started_ms = 3000, .depth_of_ms = 1000, .depth = 1, .doubt = DOUBT_KIND},
        {.started_ms = 2000, .depth_of_ms = 1000, .depth = 5, .doubt = DOUBT_KIND},
        {.started_ms = 1999, .depth_of_ms = 1000, .depth = 5, .doubt = DOUBT_NONE},
        /* more than half of max_parked messages wait */
        {.started_ms = 10, .received = true, .n_due = 500, .doubt = DOUBT_NONE},
        {.started_ms = 10, .received = true, .n_due = 501, .doubt = DOUBT_KIND},
        {.started_ms = 10, .received = true, .n_due = 501, .closed = true, .doubt = DOUBT_NONE},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct queue_rules r = rules();
        struct bed *b = bed_new(&r, KIND_UNKNOWN);
        struct consumer *c = &b->q.consumer;
        uint64_t generation = b->q.generation;

        if (cases[i].starting)
            c->state = CONSUMER_STARTING;
        c->started_ms = b->now - cases[i].started_ms;
        c->watch.depth = cases[i].depth;
        c->watch.depth_of_ms = c->started_ms + cases[i].depth_of_ms;
        b->q.counts.received.total = cases[i].received;
        b->q.held.waiting[WAIT_DUE].len = cases[i].n_due;
        b->q.generation = cases[i].closed ? 0 : generation;
        if (queue_doubt(&b->q, b->now) != cases[i].doubt)
            fail_msg("case %zu", i);
        b->q.held.waiting[WAIT_DUE].len = 0;
        b->q.generation = generation;
        bed_end(b);
    }
}

/* A known outcome is written without the channel. */
static void test_outcomes_are_written_after_the_channel_is_lost(void **state)
{
    static const struct {
        int status;
        bool transaction;
        enum operation op;
    } cases[] = {
        {200, false, OP_COMPLETE},
        {500, false, OP_FAIL},
        {503, false, OP_RELEASE},
        {200, true, OP_CHECK},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct queue_rules r = rules();

        r.transaction = cases[i].transaction;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = bed_sent(b, "m", 1);

        bed_answer(b, d, cases[i].status);
        queue_channel_lost(&b->q, b->now, 0, "lost");
        assert_ptr_equal(bed_asks(b, cases[i].op), d);
        bed_row(b, d,
                cases[i].op == OP_FAIL      ? ROW_FAILED
                : cases[i].op == OP_RELEASE ? ROW_RELEASED
                                            : ROW_COMPLETED);
        bed_rest(b);
        assert_int_equal(queue_n_held(&b->q), 0);
        bed_end(b);
    }
}

/* Another replica gets the queue first, unless this one steps behind the owner. */
static void test_a_channel_that_an_ordered_queue_closed_reopens_after_a_second(void **state)
{
    for (int steps = 0; steps < 2; steps++) {
        struct queue_rules r = rules();

        r.ordered = true;
        struct bed *b = bed_new(&r, KIND_QUORUM);

        order_stop(&b->q, b->now, "a reason");
        b->q.handover.steps = steps;
        bed_does(b, ACTION_REOPEN);
        assert_string_equal(b->last.text, "a reason");
        queue_channel_lost(&b->q, b->now, 404, "closed");
        assert_int_equal(b->q.consumer.not_before_ms, b->now + (steps ? 0 : 1000));
        assert_int_equal(b->q.consumer.n_failures, steps ? -1 : 0);
        assert_false(b->q.consumer.watch.no_queue); /* the code is not the broker's */
        bed_rest(b);
        assert_null(bed_told(b, EVENT_NO_QUEUE));
        bed_end(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_body_that_never_fits_is_held_or_rejected),
        cmocka_unit_test(test_a_message_whose_headers_do_not_fit_waits_or_stops_an_ordered_queue),
        cmocka_unit_test(test_a_delivery_of_a_lost_channel_is_dropped),
        cmocka_unit_test(test_a_redelivery_with_an_unknown_limit_is_logged_once),
        cmocka_unit_test(test_a_message_without_its_body_is_not_given_up_by_its_id),
        cmocka_unit_test(test_a_delivery_shows_that_the_consumer_is_not_stuck),
        cmocka_unit_test(test_a_refused_subscription_is_repeated_with_backoff),
        cmocka_unit_test(test_a_lost_connection_is_not_a_refusal),
        cmocka_unit_test(test_a_missing_queue_is_logged_once_until_it_is_consumed),
        cmocka_unit_test(test_a_new_channel_has_a_new_consumer_and_an_unknown_depth),
        cmocka_unit_test(test_only_the_current_subscription_is_confirmed_and_logged),
        cmocka_unit_test(test_questions_about_a_queue_of_unknown_kind),
        cmocka_unit_test(test_outcomes_are_written_after_the_channel_is_lost),
        cmocka_unit_test(test_a_channel_that_an_ordered_queue_closed_reopens_after_a_second),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
