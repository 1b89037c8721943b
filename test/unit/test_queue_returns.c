/* Deliveries that a queue can neither finish nor return: near the delivery limit, too large, or at the end of a
 * drain. The broker accepts everything, and all rows of the database are locked. */
#include "core_bed.h"

#include "core/pauses.h"

enum { LIMIT = 5, HOLD_MS = 60000, MAX_MESSAGE = 1000 };
static const unsigned ALL = ~0u;

struct world {
    struct queue q;
    struct application application;
    struct database database;
    int64_t now;
    int n_requeued, n_rejected, n_buried, n_consumed, n_published, n_acked;
    enum dead_reason dead;
    char text[600]; /* of the latest letter */
    bool rowless;
    unsigned cannot;              /* operations that are impossible now */
    enum publication publication; /* result of the copies, and its reason */
    const char *why;
    bool too_often;      /* the rows answer that the message was renewed too often, */
    bool is_counted;     /* and count it */
    bool not_due;        /* the rows are not due for an hour */
    const char *id;      /* id of the deliveries; NULL: all are of one message */
    bool is_dead;        /* the rows are dead */
    bool refuses, works; /* the database refuses statements; it claims, instead of reporting all rows as
                            locked */
    bool is_silent;      /* the database does not answer */
};

static void at_database(struct world *w, struct delivery *d)
{
    struct row r = {.op = d->op, .unproven_ms = -1, .answer = ROW_LOCKED};

    if (w->is_silent)
        return;
    if (w->refuses) {
        r.answer = ROW_RETRY;
        strcpy(r.sqlstate, "53100");
        queue_row(&w->q, w->now, d->ref, &r);
        return;
    }
    if (w->not_due) {
        r.answer = ROW_NOT_DUE;
        r.wait_ms = 3600000;
    }
    if (w->is_dead)
        r.answer = ROW_DEAD;
    if (w->works)
        r.answer = d->op == OP_RENEW      ? ROW_RENEWED
                   : d->op == OP_RELEASE  ? ROW_RELEASED
                   : d->op == OP_COMPLETE ? ROW_COMPLETED
                                          : ROW_CLAIMED;
    if (d->op == OP_RENEW && w->too_often) {
        r.answer = ROW_TOO_OFTEN;
        r.wait_ms = w->is_counted ? 5000 : 0;
    }
    if (d->op == OP_DEAD_LETTER) {
        w->n_buried++;
        w->dead = delivery_dead_letter(d)->reason;
        snprintf(w->text, sizeof(w->text), "%s", d->outcome.error);
        w->rowless = delivery_is_rowless(d);
        r.answer = ROW_DEAD_LETTERED;
    }
    queue_row(&w->q, w->now, d->ref, &r);
}

static void carry_out(struct world *w, const struct action *a)
{
    w->n_requeued += a->kind == ACTION_REQUEUE;
    w->n_rejected += a->kind == ACTION_REJECT;
    w->n_consumed += a->kind == ACTION_CONSUME;
    w->n_acked += a->kind == ACTION_ACK;
    if (a->kind == ACTION_PUBLISH) {
        w->n_published++;
        queue_published(&w->q, w->now, a->ref, w->publication, w->why);
    }
    if (a->kind == ACTION_DATABASE)
        at_database(w, a->d);
    else if (a->kind == ACTION_CONSUME)
        queue_consuming(&w->q, w->now, a->number);
    else if (a->kind == ACTION_CANCEL)
        queue_stopped(&w->q, w->now, a->number);
}

static void turn(struct world *w)
{
    struct action a;

    queue_time(&w->q, w->now);
    while (queue_next(&w->q, w->now, ALL & ~w->cannot, &a))
        carry_out(w, &a);
    queue_reap(&w->q);
    if (database_wants_try(&w->database, w->now)) {
        database_try_sent(&w->database);
        database_tried(&w->database, w->now, !w->refuses, "disk full", UINT64_MAX / 2);
    }
}

static void run(struct world *w, int64_t until)
{
    for (; w->now < until; w->now += 10)
        turn(w);
}

/* Wakes the queue only at its deadlines. */
static void run_deadlines(struct world *w, int64_t until)
{
    int64_t at = queue_deadline(&w->q, w->now);

    for (at = at > w->now ? at : w->now + 1; at <= until; at = queue_deadline(&w->q, w->now)) {
        assert_true(at > w->now); /* else it would not sleep */
        w->now = at;
        turn(w);
    }
    w->now = until;
}

static struct world *world(enum queue_kind kind)
{
    struct queue_rules rules = bed_short_rules(16);
    struct world *w = calloc(1, sizeof(*w));

    w->now = 1;
    rules.max_hold_ms = HOLD_MS;
    rules.max_parked = 100;
    rules.max_bytes = 1 << 20;
    rules.max_message_bytes = MAX_MESSAGE;
    rules.delivery_limit = LIMIT;
    bed_start(&w->application, &w->database, &w->q, 1, &rules, w->now);
    queue_channel_open(&w->q, w->now, 1, 3, 0, kind);
    run(w, 50);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    return w;
}

static void end(struct world *w)
{
    queue_deinit(&w->q);
    free(w);
}

static void deliver_rejected(struct world *w, int64_t n_rejected, int64_t delivery_count, uint64_t body_len)
{
    struct arrival *a = bed_arrival(&w->q, w->id ? w->id : "m1");

    a->copy.delivery_count = delivery_count;
    a->copy.n_rejected = n_rejected;
    a->copy.body_len = body_len;
    a->message->redelivered = delivery_count > 0;
    if (body_len > MAX_MESSAGE) {
        message_free(a->message);
        a->message = NULL;
    }
    queue_delivered(&w->q, w->now, a, NULL);
}

static void deliver(struct world *w, int64_t delivery_count, uint64_t body_len)
{
    deliver_rejected(w, 0, delivery_count, body_len);
}

static void test_an_unknown_limit_is_told_at_the_first_redelivery(void **state)
{
    struct world *w = world(KIND_QUORUM);

    w->q.returns.configured = LIMIT_UNKNOWN;
    deliver(w, 0, 10);
    assert_false(w->q.returns.told);
    w->id = "m2";
    deliver(w, 1, 10);
    assert_true(w->q.returns.told);
    end(w);
}

static void test_what_a_locked_row_keeps_goes_back_or_is_renewed_near_the_limit(void **state)
{
    for (int count = 0; count < LIMIT; count++) {
        struct world *w = world(KIND_QUORUM);
        bool near = count >= LIMIT - 2;

        deliver(w, count, 10);
        run(w, HOLD_MS - 2000);
        assert_int_equal(w->n_requeued + w->n_buried, 0);
        run(w, HOLD_MS + 3000);
        assert_int_equal(w->n_requeued, !near);
        assert_int_equal(w->n_published, near);
        assert_int_equal(w->n_acked, near);
        assert_int_equal(w->n_buried + w->n_rejected, 0);
        assert_int_equal(queue_n_held(&w->q), 0);
        end(w);
    }
}

/* A letter with the reason is written instead. */
static void test_what_cannot_be_published_is_stored_near_the_limit(void **state)
{
    static const struct {
        enum publication publication;
        const char *why;
        bool drops_head;
    } cases[] = {{PUBLICATION_FAILED, "nack", false},
                 {PUBLICATION_REFUSED, "its id", false},
                 {PUBLICATION_FORBIDDEN, "no permission", false},
                 {PUBLICATION_CONFIRMED, "x-overflow reject-publish", true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(KIND_QUORUM);

        w->publication = cases[i].publication;
        w->why = cases[i].why;
        w->works = true;
        queue_limits_known(&w->q, &(struct queue_limits){true, LIMIT, cases[i].drops_head});
        deliver(w, LIMIT - 2, 10);
        run(w, HOLD_MS - 2000);
        assert_int_equal(w->n_buried, cases[i].publication != PUBLICATION_FAILED || cases[i].drops_head);
        run(w, HOLD_MS + 3000);
        assert_int_equal(w->n_buried, 1);
        assert_int_equal(w->n_rejected, 1);
        assert_int_equal(w->dead, DEAD_DELIVERY_LIMIT);
        assert_non_null(strstr(w->text, "its delivery limit is 5"));
        assert_non_null(strstr(w->text, cases[i].why));
        assert_int_equal(w->n_published > 0, !cases[i].drops_head);
        assert_int_equal(w->n_acked + w->n_requeued, 0);
        end(w);
    }
}

/* The broker has refused the permission to publish a copy. */
static struct world *world_without_permission(void)
{
    struct world *w = world(KIND_QUORUM);

    w->works = true;
    w->publication = PUBLICATION_FORBIDDEN;
    w->why = "no permission";
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 500);
    return w;
}

/* An operator may grant the permission at any time. */
static void test_a_refused_permission_is_tried_again_after_a_minute(void **state)
{
    struct world *w = world_without_permission();

    assert_int_equal(w->n_buried, 1);
    w->publication = PUBLICATION_CONFIRMED;
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 500);
    assert_int_equal(w->n_buried, 2);
    assert_int_equal(w->n_published, 1);
    run(w, w->now + 61000);
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 500);
    assert_int_equal(w->n_buried, 2);
    assert_int_equal(w->n_published, 2);
    assert_int_equal(w->n_acked, 1);
    end(w);
}

/* Arguments of the queue decide until they are read again. */
static void test_a_queue_that_drops_its_head_is_not_tried_again(void **state)
{
    struct world *w = world_without_permission();

    queue_limits_known(&w->q, &(struct queue_limits){true, LIMIT, true});
    w->publication = PUBLICATION_CONFIRMED;
    run(w, w->now + 61000);
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 500);
    assert_int_equal(w->n_published, 1);
    assert_int_equal(w->n_buried, 2);
    queue_limits_known(&w->q, &(struct queue_limits){true, LIMIT, false});
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 500);
    assert_int_equal(w->n_published, 2);
    end(w);
}

/* Each message is renewed on arrival: without a limit none is, and with an unknown one at the first redelivery;
 * RabbitMQ 4 has a limit of 20 then. */
static void test_what_comes_near_the_limit_is_renewed_at_once(void **state)
{
    static const struct {
        int told, read, major, from; /* from: 0, never */
    } cases[] = {{LIMIT_UNKNOWN, LIMIT_UNKNOWN, 3, 3},
                 {LIMIT_UNKNOWN, LIMIT_UNKNOWN, 4, 18},
                 {LIMIT_NONE, LIMIT_UNKNOWN, 3, 0},
                 {LIMIT_UNKNOWN, LIMIT_NONE, 4, 0},
                 {LIMIT_UNKNOWN, 7, 3, 5},
                 {20, 7, 4, 5},
                 {LIMIT_NONE, 7, 3, 5},
                 {1, LIMIT_UNKNOWN, 3, 1},
                 {LIMIT_NONE, 0, 3, 1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int count = 0; count < 22; count++) {
            struct world *w = world(KIND_QUORUM);
            bool renewed = cases[i].from && count >= cases[i].from;

            w->works = true;
            w->q.returns.configured = cases[i].told;
            w->q.returns.server_major = cases[i].major;
            queue_limits_known(&w->q, &(struct queue_limits){true, cases[i].read, false});
            deliver(w, count, 10);
            run(w, w->now + 500);
            assert_int_equal(w->n_published, renewed);
            assert_int_equal(w->n_acked, renewed);
            assert_int_equal(w->n_buried + w->n_requeued, 0);
            end(w);
        }
}

static void lose_channel(struct world *w)
{
    uint64_t next = w->q.generation + 1;

    queue_channel_lost(&w->q, w->now, 0, "connection lost");
    queue_channel_open(&w->q, w->now, next, 3, 0, w->q.returns.kind);
    run(w, w->now + 1000);
}

/* A start near a limit takes one delivery at a time, until one far from it arrives. */
static void test_a_start_near_a_limit_is_cautious(void **state)
{
    struct world *w = world(KIND_QUORUM);

    w->works = true;
    w->q.ready = false;
    queue_limits_known(&w->q, &(struct queue_limits){true, LIMIT, false});
    lose_channel(w);
    assert_int_equal(w->q.consumer.prefetch, 1);
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 500);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->q.consumer.prefetch, 1);
    deliver(w, 0, 10);
    run(w, w->now + 500);
    assert_int_equal(w->q.consumer.prefetch, 16);
    end(w);
}

/* With a limit of 0 the broker drops a message with its first return: each is delivered alone, forwarded like any
 * other, and renewed, or stored whole, instead of returned. RabbitMQ 4.3 does not count returns. */
static void test_with_a_limit_of_0_nothing_is_returned(void **state)
{
    static const struct {
        bool drops_head;
        int minor, n_published, n_buried, n_requeued;
    } cases[] = {{false, 2, 1, 0, 0}, {true, 2, 0, 1, 0}, {false, 3, 0, 0, 1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(KIND_QUORUM);

        w->q.ready = false;
        queue_limits_known(&w->q, &(struct queue_limits){
                                      .read = true, .drops_head = cases[i].drops_head, .delivery_limit = 0});
        lose_channel(w);
        w->q.returns.server_major = 4;
        w->q.returns.server_minor = cases[i].minor;
        assert_int_equal(w->q.consumer.prefetch, 1);
        deliver(w, 0, 10);
        run(w, w->now + 500);
        assert_int_equal(w->n_published + w->n_buried + w->n_requeued, 0);
        assert_int_equal(w->q.held.waiting[WAIT_LOCKED].len, 1);
        assert_int_equal(w->q.consumer.prefetch, 1);
        run(w, w->now + HOLD_MS + 1000);
        assert_int_equal(w->n_published, cases[i].n_published);
        assert_int_equal(w->n_buried, cases[i].n_buried);
        assert_int_equal(w->n_requeued, cases[i].n_requeued);
        end(w);
    }
}

/* A renewal ends when an operator gives the message up: it is claimed for its letter, whatever the renewal waits for.
 * A copy that was published already is given up when it is delivered. */
static void test_a_message_that_is_given_up_is_not_renewed_any_more(void **state)
{
    static const char ids[] = "m1";
    static const struct {
        const char *waits_for;
        unsigned cannot;
        enum publication publication;
        bool too_often;
        int n_published; /* before the command */
    } cases[] = {{"its row's turn", 1u << OP_RENEW, PUBLICATION_CONFIRMED, false, 0},
                 {"a renewal that is left", 0, PUBLICATION_CONFIRMED, true, 0},
                 {"the publishing connection", 1u << OP_PUBLISH, PUBLICATION_CONFIRMED, false, 0},
                 {"the next try after a nack", 0, PUBLICATION_FAILED, false, 1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(KIND_QUORUM);

        w->works = true;
        w->cannot = cases[i].cannot;
        w->publication = cases[i].publication;
        w->why = "nack";
        w->too_often = cases[i].too_often;
        deliver(w, LIMIT - 2, 10);
        run(w, w->now + 100);
        assert_int_equal(w->n_published, cases[i].n_published);
        queue_command_give_up(&w->q, w->now, "ann", ids, sizeof(ids));
        run(w, w->now + 100);
        assert_int_equal(w->n_buried, 1);
        assert_int_equal(w->n_rejected, 1);
        assert_int_equal(w->dead, DEAD_OPERATOR);
        assert_int_equal(w->n_published, cases[i].n_published);
        assert_int_equal(w->n_acked + w->n_requeued, 0);
        end(w);
    }
}

/* The statement, or the copy, is in flight when the command comes. */
static void test_a_renewal_in_flight_ends_with_its_answer(void **state)
{
    static const char ids[] = "m1";
    static const struct {
        bool renewed;
        enum publication publication;
        int n_buried, n_acked;
    } cases[] = {{true, PUBLICATION_CONFIRMED, 0, 1}, {true, PUBLICATION_FAILED, 1, 0}, {false, 0, 1, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(KIND_QUORUM);
        struct action a;

        w->works = true;
        w->cannot = 1u << OP_PUBLISH | 1u << OP_RENEW;
        deliver(w, LIMIT - 2, 10);
        run(w, w->now + 100);
        assert_true(queue_next(&w->q, w->now, 1u << OP_RENEW, &a) && a.kind == ACTION_DATABASE);
        if (cases[i].renewed) {
            at_database(w, a.d);
            assert_true(queue_next(&w->q, w->now, 1u << OP_PUBLISH, &a) && a.kind == ACTION_PUBLISH);
        }
        queue_command_give_up(&w->q, w->now, "ann", ids, sizeof(ids));
        if (cases[i].renewed)
            queue_published(&w->q, w->now, a.ref, cases[i].publication, "nack");
        else
            at_database(w, a.d);
        run(w, w->now + 1000);
        assert_int_equal(w->n_buried, cases[i].n_buried);
        assert_int_equal(w->n_acked, cases[i].n_acked);
        assert_int_equal(w->n_published + w->n_requeued, 0);
        end(w);
    }
}

/* Beyond its pace a message is renewed, and the queue pauses; without renewals left it is held until max_hold. */
static void test_a_message_that_is_renewed_too_often_pauses_its_queue(void **state)
{
    for (int counted = 0; counted < 2; counted++) {
        struct world *w = world(KIND_QUORUM);

        w->works = w->too_often = true;
        w->is_counted = counted;
        deliver(w, LIMIT - 2, 10);
        run(w, w->now + 500);
        assert_true(w->q.pauses[PAUSE_RENEWAL_LOOP].since_ms);
        assert_int_equal(w->n_published, counted);
        assert_int_equal(w->n_acked, counted);
        assert_int_equal(w->q.consumer.state, CONSUMER_NONE);
        run(w, w->now + 6000);
        assert_int_equal(!w->q.pauses[PAUSE_RENEWAL_LOOP].since_ms, counted);
        assert_int_equal(w->q.consumer.state == CONSUMER_ACTIVE, counted);
        run(w, HOLD_MS + 3000);
        assert_int_equal(w->n_buried, !counted);
        end(w);
    }
}

/* A queue that the broker would delete keeps its consumer in that pause. Its one delivery, whose copy is in the queue
 * already, is acked at the end of the pause: otherwise the copy would arrive at once. */
static void test_a_queue_that_needs_a_consumer_keeps_it_when_a_message_is_renewed_too_often(void **state)
{
    struct world *w = world(KIND_QUORUM);

    queue_limits_known(&w->q,
                       &(struct queue_limits){.read = true, .delivery_limit = LIMIT, .needs_consumer = true});
    w->works = w->too_often = w->is_counted = true;
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 500);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    assert_int_equal(w->q.consumer.prefetch, 1);
    deliver(w, LIMIT - 2, 10);
    run(w, w->now + 4000);
    assert_int_equal(w->n_published, 2);
    assert_int_equal(w->n_acked, 0);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    run(w, w->now + 2000);
    assert_false(w->q.pauses[PAUSE_RENEWAL_LOOP].since_ms);
    assert_int_equal(w->n_acked, 2);
    assert_int_equal(w->q.consumer.prefetch, 16);
    end(w);
}

/* RabbitMQ 4.3 does not count deliveries that were returned by nack. */
static void test_what_a_broker_does_not_count_goes_back_near_the_limit(void **state)
{
    struct world *w = world(KIND_QUORUM);

    w->q.returns.server_major = 4;
    w->q.returns.server_minor = 3;
    deliver(w, LIMIT - 1, 10);
    run(w, HOLD_MS + 3000);
    assert_int_equal(w->n_published + w->n_buried, 0);
    assert_int_equal(w->n_requeued, 1);
    end(w);
}

static void test_room_is_made_near_the_limit_before_the_kind_is_known(void **state)
{
    static const enum queue_kind kinds[] = {KIND_UNKNOWN, KIND_QUORUM, KIND_CLASSIC};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct world *w = world(kinds[i]);
        struct queue_room room;

        queue_room(&w->q, false, &room);
        assert_true(room.near_count == INT64_MAX);
        queue_room(&w->q, true, &room);
        assert_true(room.near_count == (kinds[i] == KIND_CLASSIC ? INT64_MAX : LIMIT - 2));
        end(w);
    }
}

/* With a prefetch of 1 such a delivery has all the credit. Others need it, once the pause is over. */
static void test_what_has_no_room_keeps_no_credit(void **state)
{
    struct world *w = world(KIND_CLASSIC);
    struct arrival *large = bed_skipped(&w->q, "large", 1000000);

    w->q.rules.prefetch = w->q.rules.concurrency = w->q.consumer.prefetch = 1;
    w->q.rules.max_bytes = MAX_MESSAGE;
    w->q.rules.max_hold_ms = 3600000;
    w->not_due = true;
    deliver(w, 0, 10);
    run(w, w->now + 1000);
    assert_int_equal(w->n_consumed, 2); /* the delivery before is parked */
    large->copy.consumer = w->q.consumer.number;
    large->copy.body_len = large->copy.n_bytes = MAX_MESSAGE;
    queue_delivered(&w->q, w->now, large, NULL);
    run(w, w->now + 1000);
    assert_true(w->q.pauses[PAUSE_BYTES_FULL].since_ms);
    assert_int_equal(w->n_consumed, 2);
    run(w, w->now + 150000);
    assert_false(w->q.pauses[PAUSE_BYTES_FULL].since_ms);
    assert_int_equal(w->n_requeued, 0);
    assert_int_equal(w->n_consumed, 3);
    end(w);
}

/* Others pass the message until the limit is near. Then it stays in the queue, where an operator can take it out. */
static void test_what_is_too_large_holds_up_others_only_before_the_limit(void **state)
{
    struct world *w = world(KIND_QUORUM);

    deliver(w, 0, MAX_MESSAGE + 1);
    run(w, HOLD_MS - 2000);
    assert_int_equal(w->n_requeued, 0);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    assert_int_equal(w->q.consumer.n_parked, 1);
    run(w, HOLD_MS + 3000);
    assert_int_equal(w->n_requeued, 1);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    deliver(w, 1, MAX_MESSAGE + 1);
    run(w, 20 * HOLD_MS);
    assert_int_equal(w->n_requeued, 2);
    assert_int_equal(w->q.consumer.state, CONSUMER_NONE);
    assert_int_equal(w->n_buried + w->n_rejected, 0);
    end(w);
}

static void test_copies_of_one_message_count_as_parked_up_to_those_that_follow_it(void **state)
{
    struct world *w = world(KIND_QUORUM);
    const struct queue_pause *full = &w->q.pauses[PAUSE_PARKED_FULL];

    for (int i = 0; i < 200; i++)
        deliver(w, 0, 10);
    run(w, w->now + 1000);
    assert_int_equal(queue_n_held(&w->q), 200);
    assert_int_equal(queue_n_parked(&w->q), 17);
    assert_int_equal(full->since_ms, 0);
    for (int i = 0; i < 100; i++)
        deliver(w, 0, 10);
    run(w, w->now + 1000);
    assert_int_not_equal(full->since_ms, 0);
    w->works = true;
    run(w, w->now + 2000);
    end(w);
}

/* Deliveries that are due last make room for others, unless that would change the order of the queue. */
static void test_what_is_not_due_for_long_stays_under_a_single_active_consumer(void **state)
{
    for (int single = 0; single < 2; single++) {
        struct world *w = world(KIND_CLASSIC);
        char id[16];

        queue_limits_known(&w->q, &(struct queue_limits){.read = true, .single_active = single});
        queue_presence(&w->q, w->now, 1);
        w->not_due = true;
        w->id = id;
        for (int i = 0; i < 60; i++) {
            snprintf(id, sizeof(id), "m%d", i);
            deliver(w, 0, 10);
        }
        run(w, w->now + 40000);
        assert_int_equal(w->n_requeued, single ? 0 : 10);
        end(w);
    }
}

/* Waits of 200 dead messages that have been rejected this many times. */
static void circle(struct world *w, int n_rejected, int64_t *ret_least, int64_t *ret_most)
{
    char id[16];

    *ret_least = INT64_MAX;
    *ret_most = 0;
    w->id = id;
    for (int i = 0; i < 200; i++) {
        snprintf(id, sizeof(id), "m%d", i);
        deliver_rejected(w, n_rejected, 0, 10);
        turn(w);
        const struct delivery *d = queue_find(&w->q, w->q.held.next_ref);
        assert_int_equal(d->wait, WAIT_CIRCLING);
        int64_t wait = d->timer.at_ms - w->now;
        *ret_least = wait < *ret_least ? wait : *ret_least;
        *ret_most = wait > *ret_most ? wait : *ret_most;
    }
    w->id = NULL;
}

static void test_a_dead_message_that_circles_waits_longer_each_time(void **state)
{
    enum { REVIVE = 3 };
    static const struct {
        int n_rejected, max_parked;
        int64_t hold_ms, most_ms;
    } cases[] = {
        {1, 1000, 3600000, 2000},
        {REVIVE + 1, 1000, 3600000, 2000},
        {REVIVE + 2, 1000, 3600000, 4000},
        {REVIVE + 5, 1000, 3600000, 32000},
        {REVIVE + 30, 1000, 3600000, 300000},
        {REVIVE + 1000, 1000, 3600000, 300000},
        {REVIVE + 30, 1000, HOLD_MS, HOLD_MS},
        {REVIVE + 30, 1, 3600000, 1000}, /* other messages use half of the room: none waits long */
        {REVIVE + 30, 1, 500, 500},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(KIND_CLASSIC);
        int64_t least, most;

        w->is_dead = true;
        w->q.rules.revive = REVIVE;
        w->q.rules.max_hold_ms = cases[i].hold_ms;
        w->q.rules.max_parked = cases[i].max_parked;
        circle(w, cases[i].n_rejected, &least, &most);
        assert_in_range(least, cases[i].most_ms / 10, cases[i].most_ms / 4);
        assert_in_range(most, cases[i].most_ms * 3 / 4, cases[i].most_ms);
        end(w);
    }
}

static void test_what_waits_for_its_reject_keeps_no_body(void **state)
{
    struct world *w = world(KIND_CLASSIC);

    w->is_dead = true;
    deliver_rejected(w, 9, 0, 10);
    run(w, w->now + 1000);
    assert_int_equal(queue_n_held(&w->q), 1);
    assert_int_equal(w->n_rejected, 0);
    assert_int_equal(w->q.held.n_bytes, 0);
    run(w, w->now + HOLD_MS + 60000);
    assert_int_equal(w->n_rejected, 1);
    assert_int_equal(queue_n_held(&w->q), 0);
    end(w);
}

static void test_a_drain_that_is_asked_for_again_ends_no_later(void **state)
{
    struct world *w = world(KIND_QUORUM);

    queue_drain(&w->q, w->now, w->now + 30000);
    queue_drain(&w->q, w->now, w->now + 500);
    assert_int_equal(w->q.drain_until_ms, w->now + 500);
    queue_drain(&w->q, w->now, w->now + 60000);
    assert_int_equal(w->q.drain_until_ms, w->now + 500);
    end(w);
}

/* The tries have become rare by then, but near the end the database is asked often. */
static void
test_what_the_broker_would_drop_is_stored_when_the_database_works_again_before_a_drain_ends(void **state)
{
    struct world *w = world(KIND_QUORUM);
    int64_t ends = w->now + 25000 + 3000;

    w->refuses = w->works = true;
    deliver(w, LIMIT - 1, 10);
    queue_drain(&w->q, w->now, w->now + 25000);
    run(w, ends - 2900);
    w->database.try_at_ms = w->now + DATABASE_TRY_LAST_MS;
    run(w, ends - 1000);
    assert_int_equal(w->n_requeued + w->n_buried, 0);
    w->refuses = false;
    run(w, ends - 500);
    assert_int_equal(w->n_published, 1);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->n_buried + w->n_requeued, 0);
    run(w, ends + 1000);
    assert_int_equal(w->q.drain, DRAIN_DONE);
    end(w);
}

/* The broker drops each message that such a queue gets back. */
static void test_a_drain_stores_each_message_of_a_queue_with_a_limit_of_0(void **state)
{
    struct world *w = world(KIND_QUORUM);
    int64_t ends = w->now + 25000 + 3000;

    w->q.returns.configured = w->q.returns.limits.delivery_limit = 0;
    w->q.returns.no_renewal = "the queue drops its head";
    w->refuses = w->works = true;
    deliver(w, 0, 10);
    run(w, w->now + 1000);
    queue_drain(&w->q, w->now, w->now + 25000);
    run(w, ends - 2500);
    w->refuses = false;
    run(w, ends + 1000);
    assert_int_equal(w->n_buried, 1);
    assert_int_equal(w->n_rejected, 1);
    assert_int_equal(w->n_requeued, 0);
    assert_int_equal(w->q.drain, DRAIN_DONE);
    end(w);
}

/* The claim was answered during the drain, when nothing is sent any more, and no copy can be published. */
static void test_a_drain_stores_a_message_with_a_limit_of_0_that_it_has_claimed(void **state)
{
    struct world *w = world(KIND_QUORUM);

    w->q.returns.configured = w->q.returns.limits.delivery_limit = 0;
    w->q.returns.no_renewal = "the queue drops its head";
    w->works = w->is_silent = true;
    deliver(w, 0, 10);
    run(w, w->now + 1000);
    queue_drain(&w->q, w->now, w->now + 25000);
    w->is_silent = false;
    at_database(w, container_of(list_first(&w->q.held.sent[OP_CLAIM]), struct delivery, in_list));
    run(w, w->now + 1000);
    assert_int_equal(w->n_buried, 1);
    assert_int_equal(w->n_rejected, 1);
    assert_int_equal(w->n_requeued, 0);
    assert_int_equal(w->q.drain, DRAIN_DONE);
    end(w);
}

/* The broker drops what it gets back, and whether the claim or its release was written is unknown. */
static void test_a_drain_publishes_a_message_whose_release_has_no_answer(void **state)
{
    struct world *w = world(KIND_QUORUM);
    int64_t ends = w->now + 25000 + 3000;

    w->q.returns.configured = w->q.returns.limits.delivery_limit = 0;
    w->refuses = w->works = true;
    deliver(w, 0, 10);
    run(w, w->now + 1000);
    queue_drain(&w->q, w->now, w->now + 25000);
    run(w, w->now + 5000);
    assert_int_equal(w->q.held.wanted[OP_RELEASE].len + w->q.held.waiting[WAIT_AGAIN].len, 1);
    w->refuses = false;
    w->is_silent = true;
    run(w, ends + 1000);
    assert_int_equal(w->n_published, 1);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->n_requeued + w->n_buried, 0);
    assert_int_equal(w->q.drain, DRAIN_DONE);
    end(w);
}

/* The database is silent after the claim. Returns at the end of the grace period, when the release was sent. */
static struct world *drain_without_answers(int64_t delivery_limit, int64_t *ret_ends)
{
    struct world *w = world(KIND_QUORUM);

    w->q.returns.configured = w->q.returns.limits.delivery_limit = delivery_limit;
    w->works = true;
    deliver(w, 0, 10);
    run(w, w->now + 100);
    assert_int_equal(w->q.held.sent[OP_FORWARD].len, 1);
    w->is_silent = true;
    queue_drain(&w->q, w->now, w->now + 130);
    run_deadlines(w, w->now + 130);
    *ret_ends = w->q.drain_until_ms;
    assert_int_equal(*ret_ends, w->now + 3000);
    assert_int_equal(w->q.held.sent[OP_RELEASE].len, 1);
    return w;
}

/* Half of the time for releases is left for the copy. */
static void test_a_drain_waits_half_of_its_time_for_an_answer(void **state)
{
    int64_t ends;
    struct world *w = drain_without_answers(0, &ends);

    run_deadlines(w, ends - 1501);
    assert_int_equal(w->q.held.sent[OP_RELEASE].len, 1);
    assert_int_equal(w->n_published, 0);
    run_deadlines(w, ends - 1500);
    assert_int_equal(w->n_published, 1);
    run_deadlines(w, ends - 1400);
    assert_int_equal(w->n_acked, 1);
    run_deadlines(w, ends + 1000);
    assert_int_equal(w->n_published, 1);
    assert_int_equal(w->n_requeued + w->n_buried, 0);
    assert_int_equal(w->q.drain, DRAIN_DONE);
    end(w);
}

/* The broker redelivers it. */
static void test_a_drain_requeues_a_message_far_from_its_limit_without_an_answer(void **state)
{
    int64_t ends;
    struct world *w = drain_without_answers(LIMIT, &ends);

    run_deadlines(w, ends - 10);
    assert_int_equal(w->q.held.sent[OP_RELEASE].len, 1);
    run_deadlines(w, ends);
    assert_int_equal(w->n_requeued, 1);
    run_deadlines(w, ends + 1000);
    assert_int_equal(w->n_requeued, 1);
    assert_int_equal(w->n_published + w->n_buried, 0);
    end(w);
}

/* No release can be sent, for example because the database is silent about others. Returns while it is wanted. */
static struct world *drain_without_releases(const char *no_renewal, int64_t *ret_ends)
{
    struct world *w = world(KIND_QUORUM);

    w->q.returns.configured = w->q.returns.limits.delivery_limit = 0;
    w->q.returns.no_renewal = no_renewal;
    w->works = true;
    deliver(w, 0, 10);
    run(w, w->now + 100);
    w->cannot = 1u << OP_RELEASE;
    queue_drain(&w->q, w->now, w->now + 130);
    run_deadlines(w, w->now + 130);
    *ret_ends = w->q.drain_until_ms;
    run_deadlines(w, *ret_ends - 1501);
    assert_int_equal(w->q.held.wanted[OP_RELEASE].len, 1);
    return w;
}

static void test_a_drain_publishes_a_message_whose_release_was_not_sent(void **state)
{
    int64_t ends;
    struct world *w = drain_without_releases(NULL, &ends);

    run_deadlines(w, ends - 1400);
    assert_int_equal(w->n_published, 1);
    assert_int_equal(w->n_acked, 1);
    run_deadlines(w, ends + 1000);
    assert_int_equal(w->n_requeued + w->n_buried, 0);
    end(w);
}

static void test_a_drain_stores_a_message_whose_release_was_not_sent(void **state)
{
    int64_t ends;
    struct world *w = drain_without_releases("the queue drops its head", &ends);

    run_deadlines(w, ends + 1000);
    assert_int_equal(w->n_buried, 1);
    assert_int_equal(w->n_rejected, 1);
    assert_int_equal(w->n_requeued + w->n_published, 0);
    end(w);
}

/* With `response` a copy would repeat the effect. */
static void test_a_drain_completes_what_was_answered(void **state)
{
    struct world *w = world(KIND_QUORUM);
    int64_t ends;

    w->q.returns.configured = w->q.returns.limits.delivery_limit = 0;
    w->q.rules.transaction = false;
    w->works = true;
    deliver(w, 0, 10);
    run(w, w->now + 100);
    w->cannot = 1u << OP_COMPLETE;
    queue_answered(&w->q, w->now,
                   container_of(w->q.held.sent[OP_FORWARD].head.next, struct delivery, in_list)->request->ref,
                   &(struct answer){.kind = ANSWER_STATUS, .status = 200, .batch = -1, .retry_after_ms = -1});
    queue_drain(&w->q, w->now, w->now + 130);
    run_deadlines(w, w->now + 130);
    ends = w->q.drain_until_ms;
    run_deadlines(w, ends - 1000);
    assert_int_equal(w->q.held.wanted[OP_COMPLETE].len, 1);
    w->cannot = 0;
    run(w, ends);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->n_published + w->n_buried + w->n_requeued, 0);
    end(w);
}

/* The dead letter has no answer for 500 ms, although the broker takes publications again by then. */
static void test_a_drain_keeps_the_letter_that_replaces_a_copy(void **state)
{
    int64_t ends;
    struct world *w = drain_without_answers(0, &ends);

    w->cannot = 1u << OP_PUBLISH;
    run_deadlines(w, ends - 501);
    assert_int_equal(w->q.held.wanted[OP_PUBLISH].len, 1);
    run_deadlines(w, ends - 500);
    assert_int_equal(w->q.held.sent[OP_DEAD_LETTER].len, 1);
    w->cannot = 0;
    turn(w);
    run(w, ends);
    assert_int_equal(w->q.held.sent[OP_DEAD_LETTER].len, 1);
    assert_int_equal(w->n_published + w->n_requeued, 0);
    end(w);
}

/* The publisher sets no ids. */
static void deliver_large_without_id(struct world *w, int n, int64_t delivery_count, uint64_t body_len)
{
    for (; n > 0; n--) {
        struct arrival *a = bed_arrival(&w->q, "");

        a->copy.delivery_count = delivery_count;
        a->copy.body_len = body_len;
        a->no_id = DEAD_NO_MESSAGE_ID;
        a->message->redelivered = w->q.generation > 1;
        queue_delivered(&w->q, w->now, a, "no id");
    }
}

static void deliver_without_id(struct world *w, int n, int64_t delivery_count)
{
    deliver_large_without_id(w, n, delivery_count, 10);
}

/* The letter waits for the database nearly until the end of the drain. */
static void test_a_drain_keeps_the_reason_of_a_letter_with_a_limit_of_0(void **state)
{
    struct world *w = world(KIND_QUORUM);
    int64_t ends = w->now + 130 + 3000;

    w->q.returns.configured = w->q.returns.limits.delivery_limit = 0;
    w->works = true;
    w->cannot = 1u << OP_DEAD_LETTER;
    deliver_without_id(w, 1, 0);
    queue_drain(&w->q, w->now, w->now + 130);
    run(w, ends - 1000);
    assert_int_equal(w->q.held.wanted[OP_DEAD_LETTER].len, 1);
    w->cannot = 0;
    run(w, ends + 1000);
    assert_int_equal(w->n_buried, 1);
    assert_int_equal(w->n_rejected, 1);
    assert_int_equal(w->dead, DEAD_NO_MESSAGE_ID);
    end(w);
}

/* The broker redelivers these messages. Otherwise the first copies would never end, and would fill max_parked. */
static void test_what_waits_to_die_goes_with_its_channel(void **state)
{
    struct world *w = world(KIND_CLASSIC);

    w->works = true;
    for (int i = 0; i < 5; i++) {
        deliver_without_id(w, 60, 0);
        run(w, w->now + 2000);
        assert_true(w->q.share->brake.on);
        assert_int_equal(queue_n_held(&w->q), 60);
        assert_int_equal(w->q.held.unacked.len, 60);
        lose_channel(w);
        assert_int_equal(queue_n_held(&w->q), 0);
        assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    }
    assert_int_equal(w->n_buried + w->n_rejected + w->n_requeued, 0);
    end(w);
}

/* A letter without a row belongs to its delivery: redelivered copies write their own. */
static void test_letters_without_a_row_go_with_their_channel_but_near_the_limit(void **state)
{
    struct world *w = world(KIND_QUORUM);

    w->works = true;
    deliver_without_id(w, 10, 0);
    lose_channel(w);
    assert_int_equal(w->n_buried, 0);
    assert_int_equal(queue_n_held(&w->q), 0);
    deliver_without_id(w, 10, LIMIT - 2);
    lose_channel(w);
    assert_int_equal(w->n_buried, 10);
    assert_int_equal(queue_n_held(&w->q), 0);
    assert_int_equal(w->n_rejected, 0);
    end(w);
}

static void test_a_drain_gives_back_what_waits_to_die(void **state)
{
    struct world *w = world(KIND_CLASSIC);

    w->works = true;
    deliver_without_id(w, 30, 0);
    run(w, w->now + 2000);
    assert_true(w->q.share->brake.on);
    queue_drain(&w->q, w->now, w->now + 25000);
    run(w, w->now + 1000);
    assert_int_equal(w->q.drain, DRAIN_DONE);
    assert_int_equal(w->n_requeued, 30);
    assert_int_equal(w->n_buried, 0);
    end(w);
}

/* The kind is learnt late, when the messages are near the limit: their letters have the original reason. */
static void test_what_waits_to_die_near_the_limit_is_stored_with_its_own_reason(void **state)
{
    struct world *w = world(KIND_CLASSIC);

    w->works = true;
    deliver_without_id(w, 25, LIMIT - 1);
    run(w, w->now + 2000);
    assert_true(w->q.share->brake.on);
    assert_int_equal(w->n_buried, 0);
    queue_kind_known(&w->q, KIND_QUORUM);
    run(w, HOLD_MS + 3000);
    assert_int_equal(w->n_buried, 25);
    assert_int_equal(w->n_rejected, 25);
    assert_int_equal(w->dead, DEAD_NO_MESSAGE_ID);
    assert_string_equal(w->text, "no id");
    end(w);
}

/* Large letters wait for a side connection, which cannot be made. */
static void test_letters_behind_many_large_ones_are_written(void **state)
{
    struct world *w = world(KIND_QUORUM);

    w->works = true;
    w->cannot = CAN_DEAD_LETTER_LARGE;
    w->q.rules.max_message_bytes = 2 * LETTER_LARGE_BYTES;
    deliver_large_without_id(w, 200, LIMIT - 1, LETTER_LARGE_BYTES + 1);
    deliver_without_id(w, 5, LIMIT - 1);
    run(w, w->now + 100);
    assert_int_equal(w->n_buried, 5);
    assert_true(w->q.asks.large_letter);
    w->cannot = 0;
    run(w, w->now + 100);
    assert_int_equal(w->n_buried, 205);
    assert_int_equal(queue_n_held(&w->q), 0);
    end(w);
}

/* A standby of a single active consumer gets no delivery until the active one leaves: the active one may
 * leave messages to it. */
static void test_a_standby_may_consume_and_a_paused_queue_may_not(void **state)
{
    struct world *w = world(KIND_QUORUM);
    struct consumer_watch *watch = &w->q.consumer.watch;

    assert_true(queue_may_consume(&w->q));
    watch->depth = 85;
    watch->n_remedies = 1;
    assert_int_equal(queue_state(&w->q), QUEUE_STUCK);
    assert_true(queue_may_consume(&w->q));
    watch->n_remedies = 3;
    watch->standby = true;
    assert_int_equal(queue_state(&w->q), QUEUE_STANDBY);
    assert_true(queue_may_consume(&w->q));
    queue_application_down(&w->q, w->now, "connection refused");
    assert_false(queue_may_consume(&w->q));
    end(w);
}

/* --- room, pauses and drains --- */

/* A classic queue, which has no delivery limit. */
static struct bed *bed_of(void)
{
    const struct queue_rules rules = bed_rules();

    return bed_new(&rules, KIND_CLASSIC);
}

/* Delivers a message whose row is due after this time. */
static struct delivery *bed_not_due(struct bed *b, const char *id, int64_t wait_ms)
{
    struct delivery *d = bed_deliver(b, id);

    assert_ptr_equal(bed_asks(b, OP_CLAIM), d);
    bed_row_of(b, d, (struct row){.answer = ROW_NOT_DUE, .wait_ms = wait_ms, .unproven_ms = -1});
    return d;
}

/* Asserts that these deliveries are requeued, and no others. */
static void assert_requeues(struct bed *b, struct delivery *const *expected, size_t n)
{
    uint64_t tags[8];
    bool found[8] = {false};

    for (size_t i = 0; i < n; i++)
        tags[i] = expected[i]->arrival->copy.tag.number;
    for (size_t i = 0; i < n; i++) {
        uint64_t tag = bed_does(b, ACTION_REQUEUE)->tag.number;
        size_t k = 0;

        while (k < n && (tags[k] != tag || found[k]))
            k++;
        assert_true(k < n);
        found[k] = true;
    }
    bed_rest(b);
}

/* Of the messages that wait longer than pause_hold, those due last are requeued, until half of max_parked are left. */
static void test_the_messages_due_last_make_room(void **state)
{
    static const int64_t waits_ms[] = {90000, 50000, 120000, 20000, 70000, 110000};
    static const struct {
        bool others;
        size_t n; /* returned */
    } cases[] = {{true, 3}, {false, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules rules = bed_rules();

        rules.max_parked = 4;
        struct bed *b = bed_new(&rules, KIND_CLASSIC);
        struct delivery *d[6];

        b->q.rules.max_parked = 100; /* while they arrive */
        for (int k = 0; k < 6; k++)
            d[k] = bed_not_due(b, (char[]){(char)('a' + k), 0}, waits_ms[k]);
        b->q.rules.max_parked = 4;
        if (cases[i].others)
            queue_presence(&b->q, b->now, 1);
        bed_pass(b, 1000);
        assert_requeues(b, (struct delivery *[]){d[2], d[5], d[0]}, cases[i].n);
        bed_end(b);
    }
}

/* Once a pause of this replica has lasted for pause_hold, another replica gets the messages. */
static void test_a_pause_leaves_messages_to_other_replicas_after_pause_hold(void **state)
{
    static const struct {
        int64_t paused_ms;
        int n_others;
        bool works, leaves;
    } cases[] = {
        {29999, 1, true, false}, {30000, 1, true, true}, {30000, 0, true, false}, {30000, 1, false, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of();
        struct delivery *d = bed_not_due(b, "m", 600000);

        queue_limits_known(&b->q, &(struct queue_limits){.read = true, .delivery_limit = LIMIT_NONE});
        b->application.gone = true;
        bed_pass(b, 1000);
        bed_rest(b);
        assert_int_equal(b->q.pauses[PAUSE_APPLICATION].since_ms, b->now);
        queue_presence(&b->q, b->now, cases[i].n_others);
        b->database.refuses = !cases[i].works;
        bed_pass(b, cases[i].paused_ms);
        bed_rest(b); /* the consumer is cancelled first */
        assert_int_equal(b->q.left_to_others, cases[i].leaves);
        if (cases[i].leaves) {
            bed_pass(b, 1000);
            assert_requeues(b, &d, 1);
        }
        bed_end(b);
    }
}

/* A refused permission concerns the whole queue. A message that could be renewed only after its claim is claimed at
 * once, and dead-lettered, although the application is down. */
static void test_a_refused_permission_dead_letters_other_messages_near_their_limit(void **state)
{
    struct queue_rules rules = bed_rules();

    rules.delivery_limit = 3; /* a copy is published from 1 delivery on, a dead letter written from 2 on */
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct delivery *d[2];

    for (int i = 0; i < 2; i++) {
        struct arrival *a = bed_arrival(&b->q, i ? "n" : "m");

        a->copy.delivery_count = 2 - i;
        queue_delivered(&b->q, b->now, a, NULL);
        d[i] = bed_newest(b);
    }
    for (int i = 0; i < 2; i++)
        assert_ptr_equal(bed_asks(b, OP_RENEW), d[i]);
    bed_row(b, d[1], ROW_RENEWED);
    d[0]->renewal = RENEWAL_AFTER_CLAIM;
    life_go(&b->q, b->now, d[0], FACT_ROW, step_want(OP_CLAIM));
    b->application.gone = true;
    bed_does(b, ACTION_PUBLISH);
    uint64_t ref = b->last.ref;

    bed_rest(b);
    queue_published(&b->q, b->now, ref, PUBLICATION_FORBIDDEN, "forbidden");
    assert_ptr_equal(bed_asks(b, OP_CLAIM), d[0]);
    bed_row(b, d[0], ROW_CLAIMED);
    bed_wants(d[0], OP_DEAD_LETTER);
    assert_int_equal(delivery_dead_letter(d[0])->reason, DEAD_DELIVERY_LIMIT);
    assert_non_null(strstr(d[0]->outcome.error, "; not published to its queue again: forbidden"));
    bed_asks(b, OP_DEAD_LETTER);
    bed_rest(b); /* the other message is not near its limit */
    bed_end(b);
}

/* Messages whose reject or requeue would come later do not delay a drain. */
static void test_a_drain_rejects_and_requeues_without_waiting(void **state)
{
    struct queue_rules rules = bed_rules();

    rules.max_bytes = 1000;
    struct bed *b = bed_new(&rules, KIND_CLASSIC);
    struct arrival *a = bed_arrival(&b->q, "m");

    a->copy.n_rejected = 4;
    queue_delivered(&b->q, b->now, a, NULL);
    struct delivery *circling = bed_newest(b);

    bed_asks(b, OP_CLAIM);
    bed_row(b, circling, ROW_DEAD);
    assert_int_equal(circling->wait, WAIT_CIRCLING);
    b->can = ~(1u << OP_CLAIM);
    bed_deliver(b, "n"); /* takes memory */
    a = bed_skipped(&b->q, "large", 1000000);
    a->copy.body_len = a->copy.n_bytes = 2000;
    queue_delivered(&b->q, b->now, a, NULL);
    assert_int_equal(bed_newest(b)->wait, WAIT_ROOM);
    queue_drain(&b->q, b->now, b->now + 25000);
    for (int i = 0; i < 20 && b->q.drain != DRAIN_DONE; i++) {
        while (bed_next(b))
            ;
        bed_pass(b, 100);
    }
    assert_int_equal(b->q.drain, DRAIN_DONE);
    assert_int_equal(b->n_taken[ACTION_REJECT], 1);
    assert_int_equal(b->n_taken[ACTION_REQUEUE], 2);
    bed_end(b);
}

/* A drain ends by requeuing all messages except those that only wait for their ack. */
static void test_the_end_of_a_drain_requeues_no_completed_message(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_CLASSIC);
    struct delivery *completed = bed_sent(b, "m", 1), *d = bed_sent(b, "n", 1);

    b->can = ~(1u << OP_ACK);
    bed_answer(b, completed, 200);
    bed_asks(b, OP_COMPLETE);
    bed_row(b, completed, ROW_COMPLETED);
    queue_drain(&b->q, b->now, b->now + 1000);
    bed_pass(b, 1000);
    bed_does(b, ACTION_ABANDON);
    assert_ptr_equal(bed_asks(b, OP_RELEASE), d); /* without an answer */
    bed_pass(b, 3000);
    while (bed_next(b))
        ;
    assert_int_equal(b->q.drain, DRAIN_LEAVING);
    b->can = ~0u;
    while (bed_next(b))
        ;
    assert_int_equal(b->n_taken[ACTION_ACK], 1);
    assert_int_equal(b->n_taken[ACTION_REQUEUE], 1);
    bed_end(b);
}

/* --- too large --- */

/* A body that never fits is rejected without a dead letter, so it circles without being logged as dead. */
static void test_a_rejected_body_that_never_fits_waits_between_rounds(void **state)
{
    struct queue_rules rules = bed_rules();

    rules.max_message_bytes = MAX_MESSAGE;
    rules.too_large_is_reject = true;
    struct bed *b = bed_new(&rules, KIND_CLASSIC);
    struct arrival *a = bed_skipped(&b->q, "large", 1000000);

    a->copy.body_len = a->copy.n_bytes = 2 * MAX_MESSAGE;
    a->copy.n_rejected = 1;
    queue_delivered(&b->q, b->now, a, NULL);
    bed_waits_between(b, bed_newest(b), OP_REJECT, WAIT_CIRCLING, 200, 2000);
    bed_rest(b);
    assert_non_null(bed_told(b, EVENT_PARKED));
    assert_null(bed_told(b, EVENT_DEAD_AGAIN));
    bed_pass(b, 2000);
    bed_does(b, ACTION_REJECT);
    bed_rest(b);
    bed_end(b);
}

/* --- the clock --- */

/* The question comes after a window, and then once per stats interval. */
static void test_the_owner_of_a_lock_is_asked_for_after_a_window(void **state)
{
    struct bed *b = bed_of();
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row(b, d, ROW_LOCKED);
    b->can = ~(1u << OP_CLAIM | 1u << OP_LOOK); /* its row stays locked */
    d->timer.at_ms += 1000000;
    for (int64_t passed = 0; passed < BED_WINDOW_MS; passed += 1000) {
        bed_pass(b, 1000);
        bed_rest(b);
    }
    bed_pass(b, 1000);
    assert_int_equal(bed_does(b, ACTION_ASK_LOCK_HOLDER)->ref, d->ref);
    bed_rest(b);
    bed_pass(b, 9000);
    bed_rest(b);
    bed_pass(b, 1000);
    assert_int_equal(bed_does(b, ACTION_ASK_LOCK_HOLDER)->ref, d->ref);
    bed_end(b);
}

/* Full slots raise the limit only while another message wants one. */
static void test_the_limit_grows_only_while_messages_want_a_slot(void **state)
{
    for (int wants = 0; wants < 2; wants++) {
        struct bed *b = bed_of();
        struct limiter *l = &b->q.share->limiter;

        l->limit = l->threshold = 2;
        b->application.limiter.limit = b->application.limiter.threshold = 2;
        bed_sent(b, "m", 1);
        bed_sent(b, "n", 1);
        b->can = 0;
        if (wants)
            bed_deliver(b, "o");
        for (int i = 0; i < 12; i++) {
            bed_pass(b, 100);
            bed_rest(b);
        }
        assert_int_equal((int)l->limit, 2 + wants);
        bed_end(b);
    }
}

/* --- pauses --- */

/* A queue with too many waiting messages pauses until they are fewer than nine tenths of max_parked. A message that is
 * being released counts until its row is written. */
static void test_a_queue_with_many_parked_messages_pauses(void **state)
{
    enum { MOST = 20 };
    static const struct {
        int n_left;
        bool releases;
        bool pauses;
    } cases[] = {{18, false, true}, {17, false, false}, {17, true, true}, {16, true, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules rules = bed_rules();

        rules.max_parked = MOST;
        struct bed *b = bed_new(&rules, KIND_CLASSIC);
        struct delivery *answered = bed_sent(b, "answered", 1);

        for (int k = 0; k < MOST; k++) {
            char id[16];

            assert_false(b->q.pauses[PAUSE_PARKED_FULL].since_ms);
            snprintf(id, sizeof(id), "m%d", k);
            bed_not_due(b, id, k < MOST - cases[i].n_left ? 20000 : 200000);
            b->can = ~(1u << OP_RELEASE);
        }
        bed_rest(b);
        assert_int_equal(bed_told(b, EVENT_PARKED_FULL)->n, MOST);
        assert_string_equal(bed_told(b, EVENT_PARKED_FULL)->text,
                            "20 parked; most frequent: waiting for their next attempt");
        assert_string_equal(b->q.pauses[PAUSE_PARKED_FULL].text, bed_told(b, EVENT_PARKED_FULL)->text);
        if (cases[i].releases)
            bed_answer(b, answered, 409);
        b->can = 0;
        bed_pass(b, 20000);
        bed_rest(b);
        bed_rest(b);
        assert_int_equal(b->q.pauses[PAUSE_PARKED_FULL].since_ms != 0, cases[i].pauses);
        bed_end(b);
    }
}

static void test_the_line_about_parked_messages_names_the_most_frequent_error(void **state)
{
    for (int fails = 0; fails < 2; fails++) {
        struct queue_rules rules = bed_rules();

        rules.max_parked = 2;
        struct bed *b = bed_new(&rules, KIND_CLASSIC);

        for (int k = 0; k < 2; k++) {
            struct delivery *d = bed_sent(b, k ? "n" : "m", 1);

            bed_answer(b, d, 500);
            bed_asks(b, OP_FAIL);
            bed_row(b, d, ROW_FAILED);
        }
        if (fails)
            brake_force(&b->q.own.brake, b->now, "");
        bed_rest(b);
        assert_string_equal(
            bed_told(b, EVENT_PARKED_FULL)->text,
            fails
                ? "2 parked while everything fails: `onceward give-up --consumer C --held` makes dead letters "
                  "of them"
                : "2 parked; most frequent: answered 500");
        bed_end(b);
    }
}

/* Half of max_bytes must be free, and the largest message must fit. */
static void test_a_queue_with_full_memory_resumes_with_room_for_the_largest(void **state)
{
    static const struct {
        size_t held[2], largest;
        bool resumes;
    } cases[] = {{{250, 250}, 500, true}, {{251, 250}, 251, false}, {{250, 250}, 501, false},
                 {{200, 200}, 600, true}, {{200, 200}, 601, false}, {{0, 0}, 5000, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int before = 0; before < 2;
             before++) { /* the largest was seen in this interval, or in the previous one */
            struct queue_rules rules = bed_rules();

            rules.max_bytes = 1000;
            struct bed *b = bed_new(&rules, KIND_CLASSIC);

            b->can = 0;
            for (int k = 0; k < 2; k++) {
                struct arrival *a = bed_arrival(&b->q, k ? "n" : "m");

                a->copy.n_bytes = cases[i].held[k];
                queue_delivered(&b->q, b->now, a, NULL);
            }
            assert_int_equal(b->q.share->n_bytes, cases[i].held[0] + cases[i].held[1]);
            *(before ? &b->q.consumer.largest.before : &b->q.consumer.largest.seen) = cases[i].largest;
            pause_begin(&b->q, b->now, PAUSE_BYTES_FULL, "max_bytes are held");
            bed_rest(b);
            assert_int_equal(!b->q.pauses[PAUSE_BYTES_FULL].since_ms, cases[i].resumes);
            bed_end(b);
        }
}

/* Some pauses end within a moment, and are not worth two lines. */
static void test_pauses_are_logged_at_once_or_after_a_second(void **state)
{
    static const struct {
        enum pause_reason reason;
        bool at_once;
    } cases[] = {{PAUSE_APPLICATION, false}, {PAUSE_BYTES_FULL, false}, {PAUSE_OVERLOADED, false},
                 {PAUSE_RENEWAL_LOOP, true}, {PAUSE_REFUSED, true},     {PAUSE_TOO_LARGE, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of();

        b->can = 0;
        bed_deliver(b, "m");
        b->application.gone = cases[i].reason == PAUSE_APPLICATION;
        b->q.share->limiter.slow_since_ms = cases[i].reason == PAUSE_OVERLOADED ? b->now : 0;
        b->q.share->n_bytes += cases[i].reason == PAUSE_BYTES_FULL ? b->q.rules.max_bytes : 0;
        b->q.loop_until_ms = b->now + 9000;
        pause_begin(&b->q, b->now, cases[i].reason, "why");
        bed_rest(b);
        assert_int_equal(bed_n_told(b, EVENT_PAUSED), cases[i].at_once);
        bed_pass(b, 999);
        bed_rest(b);
        assert_int_equal(bed_n_told(b, EVENT_PAUSED), cases[i].at_once);
        bed_pass(b, 1);
        bed_rest(b);
        assert_int_equal(bed_n_told(b, EVENT_PAUSED), 1);
        assert_string_equal(bed_told(b, EVENT_PAUSED)->text, "why");
        bed_pass(b, 5000);
        bed_rest(b);
        assert_int_equal(bed_n_told(b, EVENT_PAUSED), 1);
        b->q.share->n_bytes -= cases[i].reason == PAUSE_BYTES_FULL ? b->q.rules.max_bytes : 0;
        bed_end(b);
    }
}

/* A limit of 1 without a good answer is a pause while messages wait, or while the next try waits. */
static void test_a_slow_application_pauses_its_queue_while_messages_wait(void **state)
{
    static const struct {
        bool slow, held;
        int64_t wait_ms;
        bool pauses;
    } cases[] = {
        {true, true, 0, true}, {true, false, 0, false}, {true, false, 1, true}, {false, true, 1, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int shared = 0; shared < 2; shared++) {
            struct bed *b = bed_of();
            struct limiter *l = shared ? &b->application.limiter : &b->q.share->limiter;

            b->can = 0;
            if (cases[i].held)
                bed_deliver(b, "m");
            l->slow_since_ms = cases[i].slow ? b->now : 0;
            l->wait_until_ms = b->now + cases[i].wait_ms;
            bed_rest(b);
            assert_int_equal(b->q.pauses[PAUSE_OVERLOADED].since_ms != 0, cases[i].pauses && !shared);
            assert_int_equal(b->q.pauses[PAUSE_APPLICATION].since_ms != 0, cases[i].pauses && shared);
            l->slow_since_ms = 0;
            bed_rest(b);
            assert_int_equal(b->q.pauses[PAUSE_OVERLOADED].since_ms, 0);
            assert_int_equal(b->q.pauses[PAUSE_APPLICATION].since_ms, 0);
            bed_end(b);
        }
}

/* The text of the pause is the latest reason. */
static void test_a_database_that_is_down_for_a_second_pauses_the_queue(void **state)
{
    struct bed *b = bed_of();

    b->can = 0;
    b->database.down_since_ms = b->now;
    snprintf(b->database.reason, sizeof(b->database.reason), "refused");
    bed_pass(b, 999);
    bed_rest(b);
    assert_int_equal(b->q.pauses[PAUSE_DATABASE].since_ms, 0);
    bed_pass(b, 1);
    bed_rest(b);
    assert_string_equal(bed_told(b, EVENT_PAUSED)->text, "refused");
    snprintf(b->database.reason, sizeof(b->database.reason), "timeout");
    bed_rest(b);
    assert_string_equal(b->q.pauses[PAUSE_DATABASE].text, "timeout");
    b->database.down_since_ms = 0;
    bed_pass(b, 500);
    bed_rest(b);
    assert_int_equal(b->q.pauses[PAUSE_DATABASE].since_ms, 0);
    assert_int_equal(bed_told(b, EVENT_RESUMED)->ms, 500);
    bed_end(b);
}

/* --- max_hold --- */

static struct delivery *not_due(struct bed *b)
{
    return bed_not_due(b, "m", 299000);
}

static struct delivery *claim_is_locked(struct bed *b)
{
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row(b, d, ROW_LOCKED);
    d->timer.at_ms += 1000000;
    return d;
}

/* Answers a request with this status, and the operation that follows with this row. */
static struct delivery *answered(struct bed *b, int status, enum row_answer row)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, status);
    bed_asks(b, d->op);
    bed_row(b, d, row);
    if (d->timer.slot)
        d->timer.at_ms += 1000000;
    return d;
}

static struct delivery *check_is_locked(struct bed *b)
{
    return answered(b, 200, ROW_LOCKED);
}

static struct delivery *failure_is_locked(struct bed *b)
{
    return answered(b, 500, ROW_LOCKED);
}

static struct delivery *failure_is_refused(struct bed *b)
{
    return answered(b, 500, ROW_UNKNOWN);
}

static struct delivery *is_accepted(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 202);
    return d;
}

static struct delivery *is_in_flight(struct bed *b)
{
    return bed_sent(b, "m", 1);
}

static struct delivery *claim_is_wanted(struct bed *b)
{
    return bed_deliver(b, "m");
}

static struct delivery *claim_is_sent(struct bed *b)
{
    bed_deliver(b, "m");
    return bed_asks(b, OP_CLAIM);
}

static struct delivery *waits_for_breaker(struct bed *b)
{
    struct arrival *a = bed_arrival(&b->q, "");

    brake_force(&b->q.own.brake, b->now, "");
    a->no_id = DEAD_NO_MESSAGE_ID;
    queue_delivered(&b->q, b->now, a, "no id");
    assert_int_equal(bed_newest(b)->wait, WAIT_BRAKE);
    return bed_newest(b);
}

static struct delivery *letter_without_database(struct bed *b)
{
    struct arrival *a = bed_arrival(&b->q, "");

    a->no_id = DEAD_NO_MESSAGE_ID;
    queue_delivered(&b->q, b->now, a, "no id");
    b->database.refuses = true;
    return bed_newest(b);
}

static struct delivery *letter_with_database(struct bed *b)
{
    struct delivery *d = letter_without_database(b);

    b->database.refuses = false;
    return d;
}

static struct delivery *letter_with_row_without_database(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 400);
    b->database.refuses = true;
    return d;
}

static struct delivery *letter_is_sent(struct bed *b)
{
    struct delivery *d = letter_with_database(b);

    bed_pass(b, 1000);
    bed_asks(b, OP_DEAD_LETTER);
    b->database.refuses = true;
    return d;
}

static struct delivery *revocation_is_locked(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_pass(b, b->q.rules.token_window_ms);
    bed_asks(b, OP_REVOKE);
    bed_row(b, d, ROW_LOCKED);
    d->timer.at_ms += 1000000;
    return d;
}

/* A delivery that only waits is requeued, and so is one whose row an application keeps locked. An outcome that only
 * has to be written stays, since its loss could repeat an effect. */
static void test_deliveries_that_only_wait_are_requeued_after_max_hold(void **state)
{
    static const struct {
        const char *name;
        struct delivery *(*make)(struct bed *);
        bool returns, releases; /* the claim is released first */
    } cases[] = {{"not due", not_due, true},
                 {"locked claim", claim_is_locked, true, true},
                 {"locked check", check_is_locked, true},
                 {"locked failure", failure_is_locked, true},
                 {"failure without an answer", failure_is_refused, false},
                 {"accepted", is_accepted, false},
                 {"in flight", is_in_flight, false},
                 {"claim wanted", claim_is_wanted, true},
                 {"claim sent", claim_is_sent, false},
                 {"letter behind the breaker", waits_for_breaker, true},
                 {"letter without a row or a database", letter_without_database, true},
                 {"letter without a row", letter_with_database, false},
                 {"letter with a row, without a database", letter_with_row_without_database, false},
                 {"letter in flight", letter_is_sent, false},
                 {"in flight, with a locked row", revocation_is_locked, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules rules = bed_rules();

        rules.transaction = true;
        rules.max_hold_ms = 20000;
        rules.token_window_ms = 10000;
        rules.stats_interval_ms = 1000000000; /* no question for the owner of the lock */
        struct bed *b = bed_new(&rules, KIND_CLASSIC);
        struct delivery *d = cases[i].make(b);
        uint64_t tag = d->arrival->copy.tag.number;

        b->can = 1u << OP_ACK | 1u << OP_REQUEUE;
        bed_pass(b, 19999);
        bed_rest(b);
        bed_pass(b, 1000); /* checked once a second */
        if (bed_next(b) != (cases[i].returns && !cases[i].releases))
            fail_msg("%s", cases[i].name);
        if (cases[i].releases) {
            bed_wants(d, OP_RELEASE);
            assert_true(delivery_release(d)->then_requeue);
        } else if (cases[i].returns) {
            assert_int_equal(b->last.kind, ACTION_REQUEUE);
            assert_int_equal(b->last.tag.number, tag);
            bed_rest(b);
        }
        assert_int_equal(bed_n_told(b, EVENT_RETURNED), cases[i].returns);
        if (cases[i].returns) {
            assert_int_equal(bed_told(b, EVENT_RETURNED)->n, 1);
            assert_string_equal(bed_told(b, EVENT_RETURNED)->text, "held for max_hold");
        }
        bed_end(b);
    }
}

/* --- the start of a drain --- */

static void test_a_drain_is_logged_once_with_its_time(void **state)
{
    struct bed *b = bed_of();

    b->can = 0;
    queue_hurry(&b->q, b->now); /* no drain has begun */
    assert_int_equal(b->q.drain_until_ms, 0);
    bed_deliver(b, "m");
    bed_deliver(b, "n");
    queue_drain(&b->q, b->now, b->now + 25000);
    queue_drain(&b->q, b->now, b->now + 24000);
    while (bed_next(b))
        ;
    assert_int_equal(bed_n_told(b, EVENT_DRAINING), 1);
    assert_int_equal(bed_told(b, EVENT_DRAINING)->n, 2);
    assert_int_equal(bed_told(b, EVENT_DRAINING)->ms, 25000);
    assert_int_equal(b->q.drain_until_ms, b->now + 24000);
    queue_hurry(&b->q, b->now + 5);
    assert_int_equal(b->q.drain_until_ms, b->now + 5);
    b->q.drain = DRAIN_RELEASING;
    queue_hurry(&b->q, b->now + 7);
    assert_int_equal(b->q.drain_until_ms, b->now + 5);
    queue_drain(&b->q, b->now, b->now + 1);
    assert_int_equal(b->q.drain_until_ms, b->now + 5);
    bed_end(b);
}

static void test_a_queue_with_many_surplus_copies_pauses(void **state)
{
    enum { MOST = 20 };
    struct queue_rules rules = bed_rules();

    rules.max_parked = MOST;
    rules.max_bytes = rules.max_message_bytes = 1000; /* fewer copies fit than messages may be parked */
    struct bed *b = bed_new(&rules, KIND_CLASSIC);
    size_t *n = &b->q.held.waiting[WAIT_SURPLUS].len; /* counted, and not looked at */
    static const struct {
        size_t n;
        bool pauses;
    } cases[] = {{MOST - 1, false}, {MOST, true}, {MOST - 2, true}, {MOST - 3, false}, {0, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        *n = cases[i].n;
        bed_pass(b, 1000);
        queue_time(&b->q, b->now);
        if (pause_is_on(&b->q, PAUSE_PARKED_FULL) != cases[i].pauses)
            fail_msg("%zu copies", cases[i].n);
    }
    bed_end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_unknown_limit_is_told_at_the_first_redelivery),
        cmocka_unit_test(test_what_a_locked_row_keeps_goes_back_or_is_renewed_near_the_limit),
        cmocka_unit_test(test_what_cannot_be_published_is_stored_near_the_limit),
        cmocka_unit_test(test_a_refused_permission_is_tried_again_after_a_minute),
        cmocka_unit_test(test_a_queue_that_drops_its_head_is_not_tried_again),
        cmocka_unit_test(test_what_comes_near_the_limit_is_renewed_at_once),
        cmocka_unit_test(test_a_start_near_a_limit_is_cautious),
        cmocka_unit_test(test_with_a_limit_of_0_nothing_is_returned),
        cmocka_unit_test(test_a_message_that_is_given_up_is_not_renewed_any_more),
        cmocka_unit_test(test_a_renewal_in_flight_ends_with_its_answer),
        cmocka_unit_test(test_a_message_that_is_renewed_too_often_pauses_its_queue),
        cmocka_unit_test(test_a_queue_that_needs_a_consumer_keeps_it_when_a_message_is_renewed_too_often),
        cmocka_unit_test(test_what_a_broker_does_not_count_goes_back_near_the_limit),
        cmocka_unit_test(test_room_is_made_near_the_limit_before_the_kind_is_known),
        cmocka_unit_test(test_what_has_no_room_keeps_no_credit),
        cmocka_unit_test(test_what_is_too_large_holds_up_others_only_before_the_limit),
        cmocka_unit_test(test_copies_of_one_message_count_as_parked_up_to_those_that_follow_it),
        cmocka_unit_test(test_a_dead_message_that_circles_waits_longer_each_time),
        cmocka_unit_test(test_what_waits_for_its_reject_keeps_no_body),
        cmocka_unit_test(test_what_is_not_due_for_long_stays_under_a_single_active_consumer),
        cmocka_unit_test(test_a_drain_that_is_asked_for_again_ends_no_later),
        cmocka_unit_test(
            test_what_the_broker_would_drop_is_stored_when_the_database_works_again_before_a_drain_ends),
        cmocka_unit_test(test_what_waits_to_die_goes_with_its_channel),
        cmocka_unit_test(test_letters_without_a_row_go_with_their_channel_but_near_the_limit),
        cmocka_unit_test(test_a_drain_gives_back_what_waits_to_die),
        cmocka_unit_test(test_a_drain_stores_each_message_of_a_queue_with_a_limit_of_0),
        cmocka_unit_test(test_a_drain_stores_a_message_with_a_limit_of_0_that_it_has_claimed),
        cmocka_unit_test(test_a_drain_publishes_a_message_whose_release_has_no_answer),
        cmocka_unit_test(test_a_drain_waits_half_of_its_time_for_an_answer),
        cmocka_unit_test(test_a_drain_requeues_a_message_far_from_its_limit_without_an_answer),
        cmocka_unit_test(test_a_drain_keeps_the_reason_of_a_letter_with_a_limit_of_0),
        cmocka_unit_test(test_a_drain_publishes_a_message_whose_release_was_not_sent),
        cmocka_unit_test(test_a_drain_stores_a_message_whose_release_was_not_sent),
        cmocka_unit_test(test_a_drain_completes_what_was_answered),
        cmocka_unit_test(test_a_drain_keeps_the_letter_that_replaces_a_copy),
        cmocka_unit_test(test_what_waits_to_die_near_the_limit_is_stored_with_its_own_reason),
        cmocka_unit_test(test_letters_behind_many_large_ones_are_written),
        cmocka_unit_test(test_a_standby_may_consume_and_a_paused_queue_may_not),
        cmocka_unit_test(test_the_messages_due_last_make_room),
        cmocka_unit_test(test_a_pause_leaves_messages_to_other_replicas_after_pause_hold),
        cmocka_unit_test(test_a_refused_permission_dead_letters_other_messages_near_their_limit),
        cmocka_unit_test(test_a_drain_rejects_and_requeues_without_waiting),
        cmocka_unit_test(test_the_end_of_a_drain_requeues_no_completed_message),
        cmocka_unit_test(test_a_rejected_body_that_never_fits_waits_between_rounds),
        cmocka_unit_test(test_the_owner_of_a_lock_is_asked_for_after_a_window),
        cmocka_unit_test(test_the_limit_grows_only_while_messages_want_a_slot),
        cmocka_unit_test(test_a_queue_with_many_parked_messages_pauses),
        cmocka_unit_test(test_the_line_about_parked_messages_names_the_most_frequent_error),
        cmocka_unit_test(test_a_queue_with_full_memory_resumes_with_room_for_the_largest),
        cmocka_unit_test(test_pauses_are_logged_at_once_or_after_a_second),
        cmocka_unit_test(test_a_slow_application_pauses_its_queue_while_messages_wait),
        cmocka_unit_test(test_a_database_that_is_down_for_a_second_pauses_the_queue),
        cmocka_unit_test(test_deliveries_that_only_wait_are_requeued_after_max_hold),
        cmocka_unit_test(test_a_drain_is_logged_once_with_its_time),
        cmocka_unit_test(test_a_queue_with_many_surplus_copies_pauses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
