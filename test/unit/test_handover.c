/* Which replica is active on an ordered queue: owners, taking over, yielding, leaving. */
#include "bed.h"
#include "onceward/core/handover.h"

enum { SELF = 1, OTHER = 2, LOWEST = 0, HIGHEST = 1 << 24, MEMBERS_MAX = 8, PARTITIONS_MAX = 64 };

/* --- owners --- */

static uint64_t state_of_random = 7;

static uint64_t random_number(void)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return handover_hash(&state_of_random, sizeof(state_of_random));
}

static size_t n_owned(const uint64_t *owners, size_t n, uint64_t member)
{
    size_t owned = 0;

    for (size_t i = 0; i < n; i++)
        owned += owners[i] == member;
    return owned;
}

static void assert_even(size_t n_members, size_t n_partitions)
{
    uint64_t members[MEMBERS_MAX] = {0}, partitions[PARTITIONS_MAX] = {0}, owners[PARTITIONS_MAX];

    for (size_t i = 0; i < n_members; i++)
        members[i] = random_number();
    for (size_t i = 0; i < n_partitions; i++)
        partitions[i] = random_number();
    handover_assign(members, n_members, partitions, n_partitions, owners);
    for (size_t i = 0; i < n_members; i++) {
        size_t n = n_owned(owners, n_partitions, members[i]);

        assert_int_in_range(n, n_partitions / n_members, (n_partitions + n_members - 1) / n_members);
    }
}

static void test_every_member_owns_as_many_or_one_more(void **state)
{
    for (int i = 0; i < 1000; i++) {
        assert_even(4, 16);
        assert_even(3, 16);
        assert_even(5, 16);
        assert_even(8, 3);
        assert_even(1, 64);
    }
}

static void test_the_order_of_the_lists_changes_nothing(void **state)
{
    uint64_t members[4] = {3, 1, 4, 9}, backwards[4] = {9, 4, 1, 3};
    uint64_t partitions[16], turned[16], owners[16], again[16];

    for (size_t i = 0; i < 16; i++)
        turned[15 - i] = partitions[i] = random_number();
    handover_assign(members, 4, partitions, 16, owners);
    handover_assign(backwards, 4, turned, 16, again);
    for (size_t i = 0; i < 16; i++)
        assert_true(owners[i] == again[15 - i]);
}

/* A fourth member needs 4 of 16 partitions. */
static void test_few_others_move_when_one_joins(void **state)
{
    size_t n_moved = 0;

    for (int i = 0; i < 1000; i++) {
        uint64_t members[4] = {0}, partitions[16] = {0}, before[16], after[16];

        for (size_t k = 0; k < 16; k++)
            partitions[k] = k;
        for (size_t k = 0; k < 4; k++)
            members[k] = random_number();
        handover_assign(members, 3, partitions, 16, before);
        handover_assign(members, 4, partitions, 16, after);
        for (size_t k = 0; k < 16; k++)
            n_moved += before[k] != after[k];
    }
    assert_int_in_range(n_moved, 4000, 6500);
}

/* --- a single replica --- */

struct world {
    struct queue q[2]; /* partitions of one consumer */
    struct application application;
    struct database database;
    int64_t now, consume_priority;
    uint64_t generation, n_delivered;
    int major, minor; /* version of the broker */
    int n[N_EVENTS], n_subscribed, n_reopened;
};

static void open_channel(struct world *w, struct queue *q)
{
    queue_channel_open(q, w->now, ++w->generation, w->major, w->minor, KIND_QUORUM);
    queue_limits_known(
        q, &(struct queue_limits){.read = true, .delivery_limit = LIMIT_NONE, .single_active = true});
}

static void carry_out(struct world *w, struct queue *q, const struct action *a)
{
    if (a->kind == ACTION_TELL)
        w->n[a->note.event]++;
    if (a->kind == ACTION_CONSUME) {
        w->n_subscribed++;
        w->consume_priority = a->priority;
        queue_consuming(q, w->now, a->number);
    }
    if (a->kind == ACTION_REOPEN) {
        w->n_reopened++;
        queue_channel_lost(q, w->now, 0, "reopened");
        open_channel(w, q);
    }
}

static void run(struct world *w, int64_t for_ms)
{
    struct action a;

    for (int64_t until = w->now + for_ms; w->now < until; w->now += 100)
        for (int i = 0; i < 2; i++) {
            queue_time(&w->q[i], w->now);
            while (queue_next(&w->q[i], w->now, 1u << OP_ACK, &a))
                carry_out(w, &w->q[i], &a);
            queue_reap(&w->q[i]);
        }
}

static struct world *world_of(int major, int minor)
{
    struct queue_rules rules = bed_short_rules(4);
    struct world *w = calloc(1, sizeof(*w));

    w->now = 1000;
    w->major = major;
    w->minor = minor;
    rules.ordered = true;
    rules.delivery_limit = LIMIT_NONE;
    rules.commit_grace_ms = 0;
    rules.pause_hold_ms = 3000;
    bed_start(&w->application, &w->database, w->q, 2, &rules, w->now);
    for (int i = 0; i < 2; i++) {
        handover_init(&w->q[i], SELF, (uint64_t)i);
        open_channel(w, &w->q[i]);
    }
    run(w, 200);
    assert_int_equal(w->n_subscribed, 2);
    return w;
}

static struct world *world(void)
{
    return world_of(4, 0);
}

static void end(struct world *w)
{
    queue_deinit(&w->q[1]);
    queue_deinit(&w->q[0]);
    free(w);
}

static void deliver(struct world *w, int partition)
{
    char id[24];

    snprintf(id, sizeof(id), "m%d", (int)++w->n_delivered);
    struct queue *q = &w->q[partition];
    struct arrival a = bed_arrival(q, id);

    a.has_key = true;
    queue_delivered(q, w->now, &a);
    run(w, 100);
}

/* Passes a report of another replica with a subscription to the first partition, or to both. */
static bool report(struct world *w, uint64_t who, int64_t priority, size_t n_partitions)
{
    struct queue *partitions[] = {&w->q[0], &w->q[1]};
    struct handover_peer peers[2];

    for (size_t i = 0; i < n_partitions; i++)
        peers[i] = (struct handover_peer){
            .who = who, .partition = i, .priority = priority, .may_consume = true, .is_active = true};
    return handover_presence(partitions, 2, w->now, peers, n_partitions);
}

static int owned(const struct world *w)
{
    return w->q[0].handover.is_owner ? 0 : 1;
}

/* Outranks the replica on both partitions, of which it owns one. */
static void outrank(struct world *w)
{
    report(w, OTHER, HIGHEST, 2);
    assert_true(w->q[0].handover.is_owner != w->q[1].handover.is_owner);
}

static void test_the_owner_takes_over_and_outranks_the_others(void **state)
{
    struct world *w = world();

    assert_true(report(w, OTHER, 5 << 16, 2)); /* the next report is wanted soon */
    run(w, 500);
    assert_int_equal(w->n_subscribed, 2);
    run(w, 500);
    assert_false(report(w, OTHER, 5 << 16, 2));
    run(w, 200);
    assert_int_equal(w->n_subscribed, 3);
    assert_true(w->consume_priority > 5 << 16);
    assert_true(w->q[owned(w)].handover.priority == w->consume_priority);
    assert_int_equal(w->n[EVENT_RETURNED], 0); /* no delivery was held */
    end(w);
}

static void test_a_replica_that_finds_no_other_has_a_level_and_a_joiner_has_none(void **state)
{
    struct world *w = world();

    queue_channel_lost(&w->q[0], w->now, 0, "connection lost");
    open_channel(w, &w->q[0]);
    run(w, 200);
    assert_true(w->consume_priority >> 16 == 0); /* the others are unknown */
    report(w, OTHER, LOWEST, 0);
    queue_channel_lost(&w->q[0], w->now, 0, "connection lost");
    open_channel(w, &w->q[0]);
    run(w, 200);
    assert_true(w->consume_priority >> 16 == 1);
    report(w, OTHER, 1 << 16, 2);
    queue_channel_lost(&w->q[0], w->now, 0, "connection lost");
    open_channel(w, &w->q[0]);
    run(w, 200);
    assert_true(w->consume_priority >> 16 == 0);
    end(w);
}

static void test_it_takes_over_once_per_change_of_the_members(void **state)
{
    struct world *w = world();

    for (int i = 0; i < 5; i++) {
        outrank(w);
        run(w, 1000);
    }
    assert_int_equal(w->n_subscribed, 3);
    report(w, OTHER + 1, 2 * HIGHEST, 2);
    run(w, 1000);
    report(w, OTHER + 1, 2 * HIGHEST, 2);
    run(w, 1000);
    assert_int_equal(w->n_subscribed, 4);
    end(w);
}

static void test_a_lost_connection_lets_it_take_over_again(void **state)
{
    struct world *w = world();

    outrank(w);
    run(w, 1000);
    outrank(w);
    run(w, 1000);
    struct queue *q = &w->q[owned(w)];

    queue_channel_lost(q, w->now, 0, "connection lost");
    open_channel(w, q);
    run(w, 200);
    assert_true(q->handover.priority >> 16 == 0);
    outrank(w);
    run(w, 1000);
    assert_true(q->handover.priority > HIGHEST);
    end(w);
}

static void test_it_takes_nothing_over_while_it_holds_messages_or_pauses(void **state)
{
    struct world *w = world();

    outrank(w);
    run(w, 1000);
    deliver(w, owned(w));
    outrank(w);
    run(w, 1000);
    assert_int_equal(w->n_subscribed, 2);
    end(w);

    w = world();
    outrank(w);
    queue_refused(&w->q[0], w->now, PAUSE_OPERATOR, "test");
    queue_refused(&w->q[1], w->now, PAUSE_OPERATOR, "test");
    run(w, 1000);
    outrank(w);
    run(w, 1000);
    assert_int_equal(w->n_subscribed, 2);
    end(w);
}

static void test_the_first_subscriber_stays_active_without_priorities(void **state)
{
    static const struct {
        int major, minor;
        bool classic;
    } cases[] = {{3, 13, false}, {4, 0, true}, {4, 3, false}, {5, 0, false}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        struct world *w = world_of(cases[k].major, cases[k].minor);

        assert_true(cases[k].classic || !w->consume_priority);
        for (int i = 0; cases[k].classic && i < 2; i++)
            queue_kind_known(&w->q[i], KIND_CLASSIC);
        deliver(w, 0);
        for (int i = 0; i < 10; i++) {
            report(w, OTHER, HIGHEST, 2);
            run(w, 1000);
        }
        assert_int_equal(w->n_reopened, 0);
        assert_true(queue_state(&w->q[0]) == QUEUE_CONSUMING); /* the receiver of a message */
        assert_true(queue_state(&w->q[1]) == QUEUE_STANDBY);
        end(w);
    }
}

static int not_owned(const struct world *w)
{
    return 1 - owned(w);
}

static void test_it_yields_what_does_not_end_to_a_higher_one(void **state)
{
    struct world *w = world();

    outrank(w);
    deliver(w, not_owned(w));
    run(w, 4500);
    assert_int_equal(w->n[EVENT_HANDOVER], 0);
    run(w, 3500); /* the claim is never answered: a window */
    assert_int_equal(w->n[EVENT_HANDOVER], 1);
    assert_int_equal(w->n[EVENT_RETURNED], 1);
    assert_int_equal(w->n_reopened, 1);
    assert_true(w->q[not_owned(w)].handover.priority < HIGHEST);
    end(w);
}

static void test_it_keeps_what_it_still_receives(void **state)
{
    struct world *w = world();

    outrank(w);
    for (int i = 0; i < 3; i++) {
        deliver(w, not_owned(w));
        run(w, 4000);
    }
    assert_int_equal(w->n_reopened, 0);
    deliver(w, not_owned(w)); /* the prefetch is used up, so that nothing can arrive */
    for (int i = 0; i < 4; i++) {
        report(w, OTHER, HIGHEST, 2);
        run(w, 5000);
    }
    assert_int_equal(w->q[not_owned(w)].held.unacked.len, 4);
    assert_int_equal(w->n[EVENT_HANDOVER], 0);
    end(w);
}

/* A slow database delays the reports, and the other replica may have drained meanwhile. */
static void test_an_old_report_is_no_reason_to_yield(void **state)
{
    struct world *w = world();

    outrank(w);
    run(w, 9000);
    deliver(w, not_owned(w));
    run(w, 20000);
    assert_int_equal(w->n[EVENT_HANDOVER], 0);
    assert_int_equal(w->n_reopened, 0);
    outrank(w);
    run(w, 1000);
    assert_int_equal(w->n[EVENT_HANDOVER], 1);
    end(w);
}

static void test_it_yields_to_none_that_is_not_subscribed(void **state)
{
    struct world *w = world();

    deliver(w, 0);
    deliver(w, 1);
    report(w, OTHER, LOWEST, 2);
    run(w, 20000);
    assert_int_equal(w->n_reopened, 0);
    outrank(w);
    run(w, 3000);
    report(w, OTHER, HIGHEST, 0); /* the other replica is gone */
    run(w, 20000);
    assert_int_equal(w->n_reopened, 0);
    outrank(w);
    run(w, 3000);
    queue_presence(&w->q[0], w->now, 0); /* the database is lost */
    queue_presence(&w->q[1], w->now, 0);
    run(w, 20000);
    assert_int_equal(w->n_reopened, 0);
    report(w, OTHER, HIGHEST, 1); /* another replica is subscribed to one partition */
    run(w, 20000);
    assert_int_equal(w->n_reopened, 1);
    assert_int_equal(w->q[1].held.unacked.len, 1);
    end(w);
}

static void test_it_yields_once_per_change_and_once_a_minute(void **state)
{
    struct world *w = world();
    int n = 0;

    outrank(w);
    deliver(w, not_owned(w));
    run(w, 10000);
    assert_int_equal(w->n_reopened, 1);
    for (; n < 12; n++) { /* the same members: not again */
        outrank(w);
        run(w, 100);
        if (!w->q[not_owned(w)].held.unacked.len)
            deliver(w, not_owned(w));
        run(w, 10000);
    }
    assert_int_equal(w->n_reopened, 2); /* and the owned one was taken over */
    end(w);

    w = world();
    outrank(w);
    deliver(w, 0);
    deliver(w, 1);
    run(w, 10000);
    assert_int_equal(w->n_reopened, 2);
    deliver(w, 0);
    deliver(w, 1);
    for (int i = 0; i < 8; i++) {
        report(w, OTHER + 1, HIGHEST, 2); /* the members change within the minute */
        run(w, 5000);
    }
    assert_int_equal(w->n_reopened, 2);
    for (int i = 0; i < 4; i++) {
        report(w, OTHER + 1, HIGHEST, 2);
        run(w, 5000);
    }
    assert_int_equal(w->n_reopened, 4);
    end(w);
}

/* The members are the same afterwards, and this replica may be the first to subscribe again. */
static void test_a_lost_connection_lets_it_yield_again(void **state)
{
    struct world *w = world();
    int n;

    outrank(w);
    n = not_owned(w);
    deliver(w, n);
    for (int i = 0; i < 3; i++) {
        report(w, OTHER, HIGHEST, 2);
        run(w, 5000);
    }
    assert_int_equal(w->n[EVENT_RETURNED], 1);
    queue_channel_lost(&w->q[n], w->now, 0, "connection lost");
    open_channel(w, &w->q[n]);
    run(w, 200);
    deliver(w, n);
    for (int i = 0; i < 15; i++) {
        report(w, OTHER, HIGHEST, 2);
        run(w, 5000);
    }
    assert_int_equal(w->n[EVENT_RETURNED], 2);
    end(w);
}

static void test_a_standby_is_shown_as_one_and_is_not_stuck(void **state)
{
    struct world *w = world();

    outrank(w);
    for (int i = 0; i < 2; i++) {
        assert_true(queue_state(&w->q[i]) == QUEUE_STANDBY);
        assert_true(handover_is_standby(&w->q[i]));
    }
    run(w, 5000);
    assert_int_equal(w->n[EVENT_STANDBY], 2);
    deliver(w, 0);
    assert_true(queue_state(&w->q[0]) == QUEUE_CONSUMING); /* until all is acked, when the broker switches */
    run(w, 1000);
    for (int i = 0; i < 200; i++) {
        struct queue *q = &w->q[1];

        queue_depth_asked(q, w->now);
        queue_depth(q, w->now, 10, false);
        run(w, 1000);
    }
    assert_int_equal(w->n[EVENT_STUCK], 0);
    end(w);
}

static void test_it_leaves_a_partition_to_others_that_are_subscribed_to_it(void **state)
{
    struct world *w = world();

    deliver(w, 0);
    deliver(w, 1);
    report(w, OTHER, LOWEST, 1);
    assert_int_equal(w->q[0].n_others, 1);
    assert_int_equal(w->q[1].n_others, 0);
    application_probed(&w->application, w->now, false, false, 2);
    for (int i = 0; i < 2; i++)
        queue_application_down(&w->q[i], w->now, "test");
    w->application.gone = true;
    run(w, 20000);
    assert_int_equal(w->q[0].consumer.state, CONSUMER_NONE);
    assert_int_equal(w->q[1].consumer.state, CONSUMER_ACTIVE);
    assert_int_equal(w->q[1].held.unacked.len, 1);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_owns_as_many_or_one_more),
        cmocka_unit_test(test_the_order_of_the_lists_changes_nothing),
        cmocka_unit_test(test_few_others_move_when_one_joins),
        cmocka_unit_test(test_the_owner_takes_over_and_outranks_the_others),
        cmocka_unit_test(test_a_replica_that_finds_no_other_has_a_level_and_a_joiner_has_none),
        cmocka_unit_test(test_it_takes_over_once_per_change_of_the_members),
        cmocka_unit_test(test_a_lost_connection_lets_it_take_over_again),
        cmocka_unit_test(test_it_takes_nothing_over_while_it_holds_messages_or_pauses),
        cmocka_unit_test(test_the_first_subscriber_stays_active_without_priorities),
        cmocka_unit_test(test_it_yields_what_does_not_end_to_a_higher_one),
        cmocka_unit_test(test_it_keeps_what_it_still_receives),
        cmocka_unit_test(test_an_old_report_is_no_reason_to_yield),
        cmocka_unit_test(test_it_yields_to_none_that_is_not_subscribed),
        cmocka_unit_test(test_it_yields_once_per_change_and_once_a_minute),
        cmocka_unit_test(test_a_lost_connection_lets_it_yield_again),
        cmocka_unit_test(test_a_standby_is_shown_as_one_and_is_not_stuck),
        cmocka_unit_test(test_it_leaves_a_partition_to_others_that_are_subscribed_to_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
