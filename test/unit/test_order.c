/* Faults that an ordered queue detects: a key in two partitions, and another replica that receives messages, too. */
#include "bed.h"

enum { REPORT_MS = 5000, NO_KEY = 255 };

struct world {
    struct queue q[2]; /* partitions of one consumer */
    struct application application;
    struct database database;
    int64_t now;
    uint64_t n_delivered;
    int n[N_EVENTS];
    int64_t n_of_latest; /* log line */
    bool reopened;
    unsigned can;
    int n_claims;
    bool holds; /* the database answers that each row is held, and its message has crashed the application
                   twice */
    bool was_quarantined;
    bool not_due; /* each row waits for an hour */
};

static void carry_out(struct world *w, struct queue *q, const struct action *a)
{
    if (a->kind == ACTION_TELL) {
        w->n[a->note.event]++;
        w->n_of_latest = a->note.n;
    } else if (a->kind == ACTION_CONSUME)
        queue_consuming(q, w->now, a->number);
    else if (a->kind == ACTION_REOPEN)
        w->reopened = true;
    if (a->kind != ACTION_DATABASE || a->d->op != OP_CLAIM)
        return;
    w->n_claims++;
    w->was_quarantined |= a->d->claim->alone;
    if (w->not_due)
        queue_row(
            q, w->now, a->d->ref,
            &(struct row){.op = OP_CLAIM, .answer = ROW_NOT_DUE, .unproven_ms = -1, .wait_ms = 3600000});
    if (w->holds)
        queue_row(q, w->now, a->d->ref,
                  &(struct row){.op = OP_CLAIM, .answer = ROW_ON_HOLD, .attempt = 8, .crashes = 2});
}

static void run(struct world *w, int64_t for_ms)
{
    struct action a;

    for (int64_t until = w->now + for_ms; w->now < until; w->now += 100)
        for (int i = 0; i < 2; i++) {
            queue_time(&w->q[i], w->now);
            while (queue_next(&w->q[i], w->now, 1u << OP_ACK | w->can, &a))
                carry_out(w, &w->q[i], &a);
            queue_reap(&w->q[i]);
        }
}

static struct world *world(void)
{
    struct queue_rules rules = bed_short_rules(256);
    struct world *w = calloc(1, sizeof(*w));

    w->now = 1000;
    rules.ordered = true;
    rules.delivery_limit = LIMIT_NONE;
    bed_start(&w->application, &w->database, w->q, 2, &rules, w->now);
    for (int i = 0; i < 2; i++)
        queue_channel_open(&w->q[i], w->now, 1, 4, 0, KIND_QUORUM);
    run(w, 200);
    assert_int_equal(w->q[0].consumer.state, CONSUMER_ACTIVE);
    return w;
}

static void end(struct world *w)
{
    queue_deinit(&w->q[1]);
    queue_deinit(&w->q[0]);
    free(w);
}

static void deliver_body(struct world *w, int partition, uint8_t key, const char *id, int64_t count,
                         uint8_t fingerprint)
{
    struct queue *q = &w->q[partition];
    struct arrival *a = bed_arrival(q, id);

    w->n_delivered++;
    a->copy.delivery_count = count;
    a->copy.n_bytes = 100;
    a->has_key = key != NO_KEY;
    a->key[0] = key;
    a->fingerprint[0] = fingerprint;
    queue_delivered(q, w->now, a, NULL);
    run(w, 100);
}

static void deliver_again(struct world *w, int partition, uint8_t key, const char *id, int64_t count)
{
    deliver_body(w, partition, key, id, count, 0);
}

static void deliver_id(struct world *w, int partition, uint8_t key, const char *id)
{
    deliver_again(w, partition, key, id, 0);
}

static void deliver(struct world *w, int partition, uint8_t key)
{
    char id[24];

    snprintf(id, sizeof(id), "m%d", (int)w->n_delivered + 1);
    deliver_id(w, partition, key, id);
}

static void test_a_key_in_two_partitions_is_logged(void **state)
{
    struct world *w = world();

    deliver(w, 0, 1);
    deliver(w, 1, 2);
    deliver(w, 0, 1);
    assert_int_equal(w->n[EVENT_KEY_IN_TWO_PARTITIONS], 0);
    deliver(w, 1, 1);
    assert_int_equal(w->n[EVENT_KEY_IN_TWO_PARTITIONS], 1);
    deliver(w, 0, 1); /* each partition logs it, */
    deliver(w, 1, 1); /* once per stats interval */
    assert_int_equal(w->n[EVENT_KEY_IN_TWO_PARTITIONS], 2);
    end(w);
}

/* All partitions share a line, with the number of messages since the previous one. */
static void test_messages_without_a_key_are_counted_and_logged(void **state)
{
    struct world *w = world();

    deliver(w, 0, NO_KEY);
    assert_int_equal(w->n[EVENT_UNKEYED], 1);
    assert_int_equal(w->n_of_latest, 1);
    for (int i = 0; i < 5; i++)
        deliver(w, i % 2, NO_KEY);
    deliver(w, 0, 1);
    assert_int_equal(w->n[EVENT_UNKEYED], 1);
    run(w, 10000);
    deliver(w, 1, NO_KEY);
    assert_int_equal(w->n[EVENT_UNKEYED], 2);
    assert_int_equal(w->n_of_latest, 6);
    assert_int_equal(w->q[0].counts.unkeyed.total + w->q[1].counts.unkeyed.total, 7);
    end(w);
}

/* The first copy waits for its key, so the others wait with it. More of them follow it than on an unordered queue. */
static void test_copies_under_other_keys_follow_the_first(void **state)
{
    struct world *w = world();

    w->can = 1u << OP_CLAIM;
    deliver_id(w, 0, 1, "first");
    deliver_id(w, 0, 1, "twice");
    assert_int_equal(w->n_claims, 1);
    for (int i = 0; i < 30; i++)
        deliver_id(w, 0, (uint8_t)(2 + i), "twice");
    assert_int_equal(w->q[0].held.waiting[WAIT_FOLLOWING].len, 30);
    assert_int_equal(w->n_claims, 1);
    for (const struct link *k = w->q[0].held.waiting[WAIT_FOLLOWING].head.next;
         k != &w->q[0].held.waiting[WAIT_FOLLOWING].head; k = k->next)
        assert_int_equal(container_of((struct link *)k, struct delivery, in_list)->leader->ref, 2);
    end(w);
}

/* Later copies do not overtake a copy that waits for one with another body, whatever their bodies. */
static void test_copies_with_other_bodies_keep_their_order(void **state)
{
    struct world *w = world();
    struct queue *q = &w->q[0];

    w->can = 1u << OP_CLAIM;
    for (uint8_t i = 0; i < 3; i++) {
        deliver_body(w, 0, 1, "twice", 0, i > 0);
        run(w, 200);
    }
    assert_int_equal(q->held.waiting[WAIT_SURPLUS].len, 2);
    queue_row(q, w->now, 1, &(struct row){.op = OP_CLAIM, .answer = ROW_COMPLETED});
    for (int i = 0; i < 50 && w->n_claims < 2; i++)
        run(w, 100);
    assert_int_equal(w->n_claims, 2);
    assert_int_equal(q->held.waiting[WAIT_SURPLUS].len, 1); /* the third copy has not looked again */
    deliver_body(w, 0, 1, "twice", 0, 1);
    run(w, 5000);
    assert_int_equal(q->held.waiting[WAIT_FOLLOWING].len, 2);
    for (const struct link *k = q->held.waiting[WAIT_FOLLOWING].head.next;
         k != &q->held.waiting[WAIT_FOLLOWING].head; k = k->next)
        assert_int_equal(container_of((struct link *)k, struct delivery, in_list)->leader->ref, 2);
    end(w);
}

/* Passes a report of the other replica, and then delivers messages here. */
static void report(struct world *w, int64_t subscription, int64_t received, int n_here)
{
    queue_peer(&w->q[0], w->now, 77, subscription, received);
    run(w, REPORT_MS);
    for (int i = 0; i < n_here; i++)
        deliver(w, 0, 1);
}

static void test_messages_in_turns_pause_the_queue(void **state)
{
    struct world *w = world();

    report(w, 1, 10, 1);
    report(w, 1, 20, 1);
    report(w, 1, 30, 1);
    report(w, 1, 40, 1);
    assert_int_equal(w->n[EVENT_NOT_EXCLUSIVE], 0);
    report(w, 1, 50, 0);
    assert_int_equal(w->n[EVENT_NOT_EXCLUSIVE], 1);
    assert_true(w->reopened); /* the channel is closed, which returns the deliveries */
    queue_channel_lost(&w->q[0], w->now, 0, "reopened");
    queue_channel_open(&w->q[0], w->now, 2, 4, 0, KIND_QUORUM);
    run(w, 30000);
    assert_int_equal(w->q[0].consumer.state, CONSUMER_NONE);
    run(w, 40000);
    assert_int_equal(w->q[0].consumer.state, CONSUMER_ACTIVE);
    end(w);
}

/* The count of deliveries tells a message that the broker has taken back from a copy of it. */
static void test_a_message_that_comes_twice_on_one_channel_stops_the_queue(void **state)
{
    static const struct {
        const char *id;
        int64_t first, second;
        bool redelivered, stops;
    } cases[] = {{"a", 0, 1, true, true},  {"a", 1, 2, true, true},   {"a", 1, 1, true, false},
                 {"a", 2, 1, true, false}, {"a", 0, 1, false, false}, {"b", 0, 1, true, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world();
        struct queue *q = &w->q[0];

        w->can = 0;
        deliver_again(w, 0, 1, "a", cases[i].first);
        struct arrival *a = bed_arrival(q, cases[i].id);

        a->copy.delivery_count = cases[i].second;
        a->message->redelivered = cases[i].redelivered;
        a->has_key = true;
        a->key[0] = 1;
        queue_delivered(q, w->now, a, NULL);
        if ((q->order.stop != NULL) != cases[i].stops)
            fail_msg("case %zu: %s", i, q->order.stop ? q->order.stop : "does not stop");
        end(w);
    }
}

/* A ninth replica takes the place of the first. */
static void test_the_figures_of_eight_replicas_are_remembered(void **state)
{
    enum { N = 8 };
    struct world *w = world();
    const struct order_peer *peers = w->q[0].order.peers;

    for (int round = 1; round <= 2; round++)
        for (int i = 0; i < N; i++) {
            queue_peer(&w->q[0], w->now, (uint64_t)i + 1, 1, round * 10);
            assert_int_equal(peers[i].who, i + 1);
            assert_int_equal(peers[i].received, round * 10);
        }
    for (int i = 0; i < N + 1; i++) {
        queue_peer(&w->q[0], w->now, (uint64_t)i + 101, 1, 5);
        assert_int_equal(peers[i % N].who, i + 101);
    }
    end(w);
}

/* Either side has subscribed again, or the other one has received nothing in between. */
static void test_a_lawful_switch_is_none(void **state)
{
    struct world *w = world();

    for (int i = 0; i < 10; i++)
        report(w, 1 + i / 3, 10 * i, 1);
    for (int i = 0; i < 10; i++)
        report(w, 9, 1000, 1);
    for (int i = 0; i < 10; i++)
        report(w, 9, 2000 + i, 0);
    assert_int_equal(w->n[EVENT_NOT_EXCLUSIVE], 0);
    end(w);
}

/* The report is older than a delivery here: the other replica received first, then this one. */
static void test_an_old_report_is_no_proof(void **state)
{
    struct world *w = world();

    report(w, 1, 10, 1);
    report(w, 1, 10, 0);
    report(w, 1, 20, 1);
    for (int i = 0; i < 10; i++)
        report(w, 1, 20, 1);
    assert_int_equal(w->n[EVENT_NOT_EXCLUSIVE], 0);
    end(w);
}

/* The row is held since a copy that had a key. */
static void test_a_held_copy_without_a_key_may_use_the_prefetch_up(void **state)
{
    struct world *w = world();

    w->q[0].rules.holds_dead = w->holds = true;
    w->can = 1u << OP_CLAIM;
    w->q[0].consumer.prefetch = 2;
    deliver(w, 0, NO_KEY);
    run(w, 2000);
    assert_int_equal(w->n[EVENT_ORDER_BLOCKED], 0);
    deliver(w, 0, 1);
    run(w, 2000);
    assert_int_equal(w->n[EVENT_ORDER_BLOCKED], 1);
    assert_int_equal(w->n_of_latest, 0);
    end(w);
}

/* Each message has a key of its own, so none waits behind another. */
static void test_messages_in_backoff_may_use_the_prefetch_up(void **state)
{
    struct world *w = world();

    w->not_due = true;
    w->can = 1u << OP_CLAIM;
    w->q[0].consumer.prefetch = 2;
    deliver(w, 0, 1);
    run(w, 20000);
    assert_int_equal(w->n[EVENT_ORDER_BLOCKED], 0);
    deliver(w, 0, 2);
    run(w, 1000);
    assert_int_equal(w->n[EVENT_ORDER_BLOCKED], 1);
    assert_int_equal(w->n_of_latest, 0);
    run(w, 20000);
    assert_int_equal(w->n[EVENT_ORDER_BLOCKED], 3);
    end(w);
}

/* The log names the first message that others wait for at once, and their number. */
static void test_a_message_that_blocks_others_is_logged(void **state)
{
    static const struct {
        int keys[4];
        int n_behind;
    } cases[] = {{{1, 2, 2, 3}, 1}, {{1, 1, 1, 2}, 2}, {{1, 2, 2, 2}, 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world();

        w->not_due = true;
        w->can = 1u << OP_CLAIM;
        w->q[0].consumer.prefetch = 4;
        for (int k = 0; k < 4; k++)
            deliver(w, 0, (uint8_t)cases[i].keys[k]);
        run(w, 1500);
        assert_int_equal(w->n[EVENT_ORDER_BLOCKED], 1);
        assert_int_equal(w->n_of_latest, cases[i].n_behind);
        end(w);
    }
}

/* --- the delivery limit --- */

enum { LIMIT = 20, MAX_HOLD_MS = 600000 };

static struct world *world_with_limit(void)
{
    struct world *w = world();

    for (int i = 0; i < 2; i++)
        w->q[i].returns.configured = LIMIT;
    w->can = 1u << OP_CLAIM;
    return w;
}

static void reopen(struct world *w)
{
    static uint64_t generation = 100;

    assert_true(w->reopened);
    w->reopened = false;
    queue_channel_lost(&w->q[0], w->now, 0, "reopened");
    queue_channel_open(&w->q[0], w->now, ++generation, 4, 0, KIND_QUORUM);
}

static int64_t stop_of(struct world *w)
{
    const char *why;

    return queue_stop_wanted(&w->q[0], &why);
}

/* The queue claims nothing, and the messages return once, after max_hold, when the inbox has the stop. */
static void test_a_queue_near_its_limit_stops_until_an_operator_continues(void **state)
{
    struct world *w = world_with_limit();

    deliver_again(w, 0, 1, "far", LIMIT - 3);
    assert_int_equal(w->n_claims, 1);
    deliver_again(w, 0, 2, "near", LIMIT - 2);
    deliver_again(w, 0, 3, "nearer", LIMIT - 1);
    assert_int_equal(w->n_claims, 1);
    assert_int_equal(stop_of(w), LIMIT - 2);
    assert_true(w->n[EVENT_PAUSED] == 1);
    queue_stop_known(&w->q[0], w->now, 0, 0, 0, ""); /* asked before it stopped */
    run(w, 2 * MAX_HOLD_MS);
    assert_int_equal(stop_of(w), LIMIT - 2);
    assert_false(w->reopened);
    queue_stop_known(&w->q[0], w->now, LIMIT - 2, 0, 0, "near");
    assert_int_equal(stop_of(w), 0);
    run(w, 5000);
    reopen(w);
    run(w, 2 * MAX_HOLD_MS);
    assert_int_equal(w->q[0].consumer.state, CONSUMER_NONE);
    queue_stop_known(&w->q[0], w->now, 0, LIMIT - 1, 1, "");
    run(w, 2000);
    assert_int_equal(w->q[0].consumer.state, CONSUMER_ACTIVE);
    end(w);
}

/* The operator accepts one more return, and not one for all later messages. */
static void test_after_a_retry_the_queue_stops_again_where_less_is_left(void **state)
{
    struct world *w = world_with_limit();

    deliver_again(w, 0, 1, "near", LIMIT - 2);
    queue_stop_known(&w->q[0], w->now, LIMIT - 2, 0, 0, "near");
    queue_stop_known(&w->q[0], w->now, 0, LIMIT - 1, 1, "");
    run(w, 200);
    assert_int_equal(w->n_claims, 1);
    deliver_again(w, 0, 2, "other", LIMIT - 1);
    deliver(w, 0, 3);
    assert_int_equal(w->n_claims, 3);
    assert_int_equal(stop_of(w), 0);
    w->reopened = true;
    reopen(w); /* the messages near the limit are gone */
    run(w, 2000);
    assert_int_equal(queue_stop_outdated(&w->q[0]), 0);
    deliver(w, 0, 4);
    deliver_again(w, 0, 5, "again", LIMIT - 2);
    assert_int_equal(stop_of(w), LIMIT - 2);
    assert_int_equal(queue_stop_outdated(&w->q[0]), 1);
    queue_stop_known(&w->q[0], w->now, 0, LIMIT - 1, 1, ""); /* asked before it stopped again */
    assert_int_equal(stop_of(w), LIMIT - 2);
    assert_int_equal(queue_stop_outdated(&w->q[0]), 1);
    queue_stop_known(&w->q[0], w->now, LIMIT - 2, 0, 0, "again");
    assert_int_equal(queue_stop_outdated(&w->q[0]), 0);
    end(w);
}

/* The replica has started after the retry, or has stopped the queue once more before it read the retry. */
static void test_a_replica_that_did_not_know_the_stop_accepts_the_retry_of_it(void **state)
{
    struct world *w = world_with_limit();

    queue_stop_known(&w->q[0], w->now, 0, LIMIT - 1, 1, "");
    deliver_again(w, 0, 1, "near", LIMIT - 1);
    assert_int_equal(stop_of(w), 0);
    assert_int_equal(w->n_claims, 1);
    queue_stop_known(&w->q[0], w->now, 0, 0, 0, ""); /* another replica has processed the last of them */
    deliver_again(w, 0, 2, "nearer", LIMIT - 1);
    assert_int_equal(stop_of(w), LIMIT - 1);
    queue_stop_known(&w->q[0], w->now, 0, LIMIT - 2, 1, ""); /* not for this one */
    assert_int_equal(stop_of(w), LIMIT - 1);
    queue_stop_known(&w->q[0], w->now, 0, LIMIT - 1, 1, "");
    assert_int_equal(stop_of(w), 0);
    run(w, 200);
    assert_int_equal(w->n_claims, 2);
    end(w);
}

static void test_a_standby_of_a_stopped_queue_closes_its_channel(void **state)
{
    struct world *w = world_with_limit();

    queue_stop_known(&w->q[0], w->now, LIMIT - 2, 0, 0, "near");
    run(w, 200);
    reopen(w);
    run(w, 2 * MAX_HOLD_MS);
    assert_int_equal(w->q[0].consumer.state, CONSUMER_NONE);
    assert_int_equal(w->q[1].consumer.state, CONSUMER_ACTIVE);
    end(w);
}

/* The holder ends before the standby has closed its channel: the messages stay here instead of returning once more. */
static void test_a_standby_that_receives_the_messages_of_a_stopped_queue_keeps_them(void **state)
{
    struct world *w = world_with_limit();
    struct action a;
    (void)state;

    queue_stop_known(&w->q[0], w->now, LIMIT - 2, 0, 0, "near");
    while (!w->q[0].order.stop && queue_next(&w->q[0], w->now, 1u << OP_ACK | w->can, &a))
        carry_out(w, &w->q[0], &a);
    assert_non_null(w->q[0].order.stop);
    deliver_again(w, 0, 1, "m", LIMIT - 1);
    run(w, 1000);
    assert_false(w->reopened);
    assert_int_equal(w->n[EVENT_RETURNED], 0);
    run(w, MAX_HOLD_MS);
    reopen(w);
    assert_int_equal(w->n[EVENT_RETURNED], 1);
    end(w);
}

/* A value written by hand accepts no delivery, also if a limit of 2 makes the first delivery a near one. */
static void test_an_acceptance_below_0_is_none(void **state)
{
    struct world *w = world_with_limit();

    w->q[0].returns.configured = 2;
    queue_stop_known(&w->q[0], w->now, 0, -1, 1, "");
    deliver(w, 0, 1);
    assert_int_equal(stop_of(w), 0);
    deliver_again(w, 0, 2, "near", 1);
    assert_int_equal(stop_of(w), 1);
    end(w);
}

/* The broker drops the message with the next return: it is processed now, and held beyond max_hold. */
static void test_the_last_delivery_is_processed_and_not_returned(void **state)
{
    struct world *w = world_with_limit();

    deliver_again(w, 0, 1, "last", LIMIT);
    assert_int_equal(w->n_claims, 1);
    assert_int_equal(stop_of(w), 0);
    deliver_id(w, 0, 1, "behind");
    run(w, 2 * MAX_HOLD_MS);
    assert_false(w->reopened);
    end(w);
}

/* The message's key is unknown: a later one may have the same key. */
static void test_nothing_behind_a_message_without_its_body_is_claimed(void **state)
{
    struct world *w = world();
    struct arrival *large = bed_skipped(&w->q[0], "large", ++w->n_delivered);

    large->copy.body_len = 2000;
    w->can = 1u << OP_CLAIM;
    queue_delivered(&w->q[0], w->now, large, NULL);
    deliver(w, 0, 1);
    assert_int_equal(w->n_claims, 0);
    assert_true(w->reopened);
    deliver(w, 1, 2); /* of the other partition */
    assert_int_equal(w->n_claims, 1);
    end(w);
}

/* Two partitions of 256 messages: each message may have 64 KiB of max_bytes, and its properties and headers as much. */
static void test_large_headers_stop_the_queue_like_a_large_body(void **state)
{
    struct world *w = world();
    struct queue_room room;
    struct arrival *large = bed_skipped(&w->q[0], "large", ++w->n_delivered);

    large->copy.body_len = 10;
    w->q[0].rules.max_message_bytes = 64 << 10;
    w->q[0].rules.max_bytes = 512 * 64 << 10;
    queue_room(&w->q[0], false, &room);
    assert_int_equal(room.body, 64 << 10);
    assert_int_equal(room.whole, 128 << 10);
    large->copy.n_bytes = room.whole + 1;     /* the connection has skipped its body */
    w->q[0].rules.too_large_is_reject = true; /* bodies above max_message only */
    queue_delivered(&w->q[0], w->now, large, NULL);
    run(w, 100);
    assert_int_equal(w->n[EVENT_TOO_LARGE], 1);
    assert_int_equal(w->q[0].counts.dead.total, 0);
    assert_true(w->reopened);
    w->q[0].rules.max_bytes = 1 << 20;
    queue_room(&w->q[0], false, &room);
    assert_int_equal(room.whole, (64 + 16) << 10); /* the smallest share */
    end(w);
}

static void deliver_marked(struct world *w, int priority, bool was_here)
{
    struct arrival *a = bed_arrival(&w->q[0], "marked");

    a->has_key = true;
    a->key[0] = 1;
    a->was_here = was_here;
    a->message->has_priority = priority >= 0;
    a->message->priority = (uint8_t)priority;
    queue_delivered(&w->q[0], w->now, a, NULL);
    run(w, 100);
}

/* Each event is logged once per stats interval at most. */
static void test_messages_that_overtake_or_circle_are_logged(void **state)
{
    struct world *w = world();

    deliver_marked(w, -1, false);
    deliver_marked(w, 4, false);
    assert_int_equal(w->n[EVENT_ORDER_PRIORITY], 0);
    for (int i = 0; i < 3; i++)
        deliver_marked(w, 5, true);
    assert_int_equal(w->n[EVENT_ORDER_PRIORITY], 1);
    assert_int_equal(w->n[EVENT_ORDER_LOOP], 1);
    run(w, 10000);
    deliver_marked(w, 255, true);
    assert_int_equal(w->n[EVENT_ORDER_PRIORITY], 2);
    assert_int_equal(w->n[EVENT_ORDER_LOOP], 2);
    end(w);
}

/* Priorities overtake in quorum queues of RabbitMQ 4 only. */
static void test_a_priority_is_harmless_elsewhere(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct world *w = world();

        queue_channel_lost(&w->q[0], w->now, 0, "lost");
        queue_channel_open(&w->q[0], w->now, 2, i ? 4 : 3, 0, i ? KIND_CLASSIC : KIND_QUORUM);
        run(w, 1000);
        deliver_marked(w, 9, false);
        assert_int_equal(w->n[EVENT_ORDER_PRIORITY], 0);
        end(w);
    }
}

/* A held message is not sent: it is not quarantined, is no trial, and the circuit breaker does not hold it. */
static void test_a_held_message_waits_for_an_operator_alone(void **state)
{
    struct world *w = world();

    w->q[0].rules.holds_dead = w->holds = true;
    w->can = 1u << OP_CLAIM;
    deliver(w, 0, 1);
    assert_int_equal(w->n[EVENT_ORDER_HELD], 1);
    run(w, 70000);
    assert_int_in_range(w->n_claims, 2, 3);
    assert_false(w->was_quarantined);
    w->q[0].share->brake.on = true;
    w->n_claims = 0;
    run(w, 70000);
    assert_int_equal(w->n_claims, 0);
    w->q[0].share->brake.on = false; /* and again while it is about to look at its row */
    w->can = 0;
    run(w, 70000);
    w->q[0].share->brake.on = true;
    container_of(w->q[0].held.unacked.head.next, struct delivery, in_tags)->claim->tried_ms = w->now;
    queue_command_give_up_held(&w->q[0], w->now, "ann", w->now);
    assert_false(container_of(w->q[0].held.unacked.head.next, struct delivery, in_tags)->given_up);
    w->can = 1u << OP_CLAIM;
    queue_command_retry(&w->q[0], w->now, "ann");
    run(w, 1000);
    assert_int_in_range(w->n_claims, 1, 2);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_in_two_partitions_is_logged),
        cmocka_unit_test(test_messages_without_a_key_are_counted_and_logged),
        cmocka_unit_test(test_copies_under_other_keys_follow_the_first),
        cmocka_unit_test(test_copies_with_other_bodies_keep_their_order),
        cmocka_unit_test(test_messages_in_turns_pause_the_queue),
        cmocka_unit_test(test_a_message_that_comes_twice_on_one_channel_stops_the_queue),
        cmocka_unit_test(test_the_figures_of_eight_replicas_are_remembered),
        cmocka_unit_test(test_a_lawful_switch_is_none),
        cmocka_unit_test(test_an_old_report_is_no_proof),
        cmocka_unit_test(test_nothing_behind_a_message_without_its_body_is_claimed),
        cmocka_unit_test(test_messages_that_overtake_or_circle_are_logged),
        cmocka_unit_test(test_a_priority_is_harmless_elsewhere),
        cmocka_unit_test(test_large_headers_stop_the_queue_like_a_large_body),
        cmocka_unit_test(test_a_held_message_waits_for_an_operator_alone),
        cmocka_unit_test(test_a_held_copy_without_a_key_may_use_the_prefetch_up),
        cmocka_unit_test(test_messages_in_backoff_may_use_the_prefetch_up),
        cmocka_unit_test(test_a_message_that_blocks_others_is_logged),
        cmocka_unit_test(test_a_queue_near_its_limit_stops_until_an_operator_continues),
        cmocka_unit_test(test_after_a_retry_the_queue_stops_again_where_less_is_left),
        cmocka_unit_test(test_a_replica_that_did_not_know_the_stop_accepts_the_retry_of_it),
        cmocka_unit_test(test_a_standby_of_a_stopped_queue_closes_its_channel),
        cmocka_unit_test(test_a_standby_that_receives_the_messages_of_a_stopped_queue_keeps_them),
        cmocka_unit_test(test_an_acceptance_below_0_is_none),
        cmocka_unit_test(test_the_last_delivery_is_processed_and_not_returned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
