/* The active replica of an ordered queue: owners, stepping behind them, leaving. */
#include "bed.h"
#include "core/handover.h"
#include "fields.h"
#include "onceward/core/handover.h"

enum { SELF = 1, OTHER = 2, MEMBERS_MAX = 8, PARTITIONS_MAX = 64 };

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
    int64_t now;
    unsigned can; /* operations that are possible, besides acks */
    uint64_t generation, n_delivered;
    int n[N_EVENTS], n_subscribed, n_reopened;
};

static void open_channel(struct world *w, struct queue *q)
{
    queue_channel_open(q, w->now, ++w->generation, 4, 0, KIND_QUORUM);
    queue_limits_known(
        q, &(struct queue_limits){.read = true, .delivery_limit = LIMIT_NONE, .single_active = true});
}

static void carry_out(struct world *w, struct queue *q, const struct action *a)
{
    if (a->kind == ACTION_TELL)
        w->n[a->note.event]++;
    if (a->kind == ACTION_CONSUME) {
        w->n_subscribed++;
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
            while (queue_next(&w->q[i], w->now, 1u << OP_ACK | w->can, &a))
                carry_out(w, &w->q[i], &a);
            queue_reap(&w->q[i]);
        }
}

static struct world *world(void)
{
    struct queue_rules rules = bed_short_rules(4);
    struct world *w = calloc(1, sizeof(*w));

    w->now = 1000;
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
    struct arrival *a = bed_arrival(q, id);

    a->has_key = true;
    queue_delivered(q, w->now, a, NULL);
    run(w, 100);
}

/* Passes a report of another replica, whose subscriptions to the first partition, or to both, have this number. */
static bool report(struct world *w, uint64_t who, int64_t subscription, size_t n_partitions)
{
    struct queue *partitions[] = {&w->q[0], &w->q[1]};
    struct handover_peer peers[2];

    for (size_t i = 0; i < n_partitions; i++)
        peers[i] = (struct handover_peer){
            .who = who, .partition = i, .subscription = subscription, .may_consume = true, .is_active = true};
    return handover_presence(partitions, 2, w->now, peers, n_partitions);
}

/* Reports the other replica for a time. */
static void report_for(struct world *w, int64_t subscription, int64_t for_ms)
{
    for (int64_t until = w->now + for_ms; w->now < until;) {
        report(w, OTHER, subscription, 2);
        run(w, 1000);
    }
}

/* Of two members, each owns one of the partitions. */
static int not_owned(const struct world *w)
{
    assert_true((w->q[0].handover.owner == OTHER) != (w->q[1].handover.owner == OTHER));
    return w->q[0].handover.owner == OTHER ? 0 : 1;
}

static void test_an_idle_replica_steps_behind_the_owner_once_the_members_are_settled(void **state)
{
    struct world *w = world();

    assert_true(report(w, OTHER, 1, 2)); /* the next report is wanted soon */
    run(w, 500);
    assert_int_equal(w->n_reopened, 0);
    run(w, 500);
    assert_false(report(w, OTHER, 1, 2));
    run(w, 1100);
    assert_int_equal(w->n_reopened, 1);
    assert_int_equal(w->n_subscribed, 3);
    assert_int_equal(w->n[EVENT_RETURNED], 0);
    assert_int_equal(w->n[EVENT_HANDOVER], 0);
    assert_int_equal(w->n[EVENT_CONSUMING], 2); /* logged at the start */
    assert_int_equal(w->q[not_owned(w)].handover.behind, 1);
    end(w);
}

static void test_it_subscribes_again_at_once(void **state)
{
    struct world *w = world();

    while (!w->n_reopened) {
        report(w, OTHER, 1, 2);
        run(w, 100);
    }
    assert_int_equal(w->n_subscribed, 3);
    end(w);
}

static void test_it_steps_once_for_each_subscription_of_the_owner(void **state)
{
    struct world *w = world();

    report_for(w, 1, 70000);
    assert_int_equal(w->n_reopened, 1);
    report_for(w, 2, 20000);
    assert_int_equal(w->n_reopened, 2);
    end(w);
}

/* Two replicas that have different sets of partitions may each step behind the other one. */
static void test_it_steps_once_a_minute_at_most_unless_the_members_change(void **state)
{
    struct world *w = world();

    for (int64_t i = 1; i <= 50; i++)
        report_for(w, i, 1000);
    assert_int_equal(w->n_reopened, 1);
    report_for(w, 51, 20000);
    assert_int_equal(w->n_reopened, 2);
    report(w, OTHER + 1, 1, 2);
    report_for(w, 52, 5000);
    assert_int_equal(w->n_reopened, 3);
    end(w);
}

static void test_it_is_behind_an_owner_whom_it_knew_when_it_subscribed(void **state)
{
    struct world *w = world();

    report(w, OTHER, 1, 2);
    struct queue *q = &w->q[not_owned(w)];

    queue_channel_lost(q, w->now, 0, "connection lost");
    open_channel(w, q);
    run(w, 200);
    report_for(w, 1, 20000);
    assert_int_equal(w->n_reopened, 0);
    end(w);
}

static void test_an_idle_replica_does_not_step_while_it_pauses(void **state)
{
    struct world *w = world();

    report(w, OTHER, 1, 2);
    queue_refused(&w->q[0], w->now, PAUSE_OPERATOR, "test");
    queue_refused(&w->q[1], w->now, PAUSE_OPERATOR, "test");
    report_for(w, 1, 5000);
    assert_int_equal(w->n_reopened, 0);
    end(w);
}

/* The others step behind the owner first, so that the messages reach no third replica. */
static void test_an_active_replica_returns_what_it_holds_to_the_owner(void **state)
{
    struct world *w = world();

    report(w, OTHER, 1, 2);
    deliver(w, not_owned(w));
    report_for(w, 1, 3000);
    assert_int_equal(w->n[EVENT_HANDOVER], 0);
    report_for(w, 1, 5000); /* the claim is never answered: a window */
    assert_int_equal(w->n[EVENT_HANDOVER], 1);
    assert_int_equal(w->n[EVENT_RETURNED], 1);
    assert_int_equal(w->n_reopened, 1);
    assert_int_equal(w->n_subscribed, 3);
    end(w);
}

static void test_a_connection_that_is_lost_during_a_step_is_logged(void **state)
{
    struct world *w = world();
    int n;

    report(w, OTHER, 1, 2);
    n = not_owned(w);
    w->can = 1u << OP_CLAIM; /* the claim is never answered */
    deliver(w, n);
    for (int i = 0; i < 100 && !w->q[n].handover.steps; i++) {
        report(w, OTHER, 1, 2);
        run(w, 100);
    }
    assert_true(w->q[n].handover.steps);
    queue_channel_lost(&w->q[n], w->now, 0, "connection lost");
    open_channel(w, &w->q[n]);
    run(w, 200);
    assert_int_equal(w->n[EVENT_CONSUMING], 3);
    assert_int_equal(w->q[n].handover.returned_ms, 0);
    end(w);
}

static void test_it_keeps_the_partition_that_it_owns(void **state)
{
    struct world *w = world();

    report(w, OTHER, 1, 2);
    deliver(w, 1 - not_owned(w));
    report_for(w, 1, 70000);
    report_for(w, 2, 5000);
    assert_int_equal(w->n[EVENT_RETURNED], 0);
    assert_int_equal(w->n_reopened, 2); /* both times the other partition */
    end(w);
}

/* A slow database delays the reports, and the other replica may have drained meanwhile. */
static void test_an_old_report_is_no_reason_to_return_messages(void **state)
{
    struct world *w = world();

    report(w, OTHER, 1, 2);
    deliver(w, not_owned(w));
    w->q[not_owned(w)].handover.heard_ms = w->now - 10000;
    run(w, 20000);
    assert_int_equal(w->n_reopened, 0);
    report_for(w, 1, 5000);
    assert_int_equal(w->n[EVENT_HANDOVER], 1);
    end(w);
}

static void test_it_returns_nothing_to_an_owner_that_is_not_subscribed_or_cannot_consume(void **state)
{
    struct world *w = world();
    struct queue *partitions[] = {&w->q[0], &w->q[1]};

    report(w, OTHER, 1, 2);
    deliver(w, 0);
    deliver(w, 1);
    for (int i = 0; i < 20; i++) { /* subscribed to both, but paused */
        struct handover_peer peers[] = {{.who = OTHER, .subscription = 1},
                                        {.who = OTHER, .partition = 1, .subscription = 1}};

        handover_presence(partitions, 2, w->now, peers, 2);
        run(w, 1000);
    }
    assert_int_equal(w->n_reopened, 0);
    for (int i = 0; i < 20; i++) { /* subscribed to the partition that it does not own */
        struct handover_peer peer = {
            .who = OTHER, .partition = (size_t)(1 - not_owned(w)), .subscription = 1, .may_consume = true};

        handover_presence(partitions, 2, w->now, &peer, 1);
        run(w, 1000);
    }
    assert_int_equal(w->n_reopened, 0);
    report(w, OTHER, 1, 2);
    queue_presence(&w->q[0], w->now, 0); /* the database is lost */
    queue_presence(&w->q[1], w->now, 0);
    run(w, 9000);
    assert_int_equal(w->n_reopened, 0);
    end(w);
}

static void test_it_returns_messages_once_a_minute_at_most(void **state)
{
    struct world *w = world();
    int n;

    report(w, OTHER, 1, 2);
    n = not_owned(w);
    deliver(w, n);
    report_for(w, 1, 10000);
    assert_int_equal(w->n_reopened, 1);
    deliver(w, n); /* the owner was away for a moment */
    report_for(w, 2, 45000);
    assert_int_equal(w->n_reopened, 1);
    report_for(w, 2, 20000);
    assert_int_equal(w->n_reopened, 2);
    end(w);
}

static void test_a_standby_is_shown_as_one_and_is_not_stuck(void **state)
{
    struct world *w = world();

    report(w, OTHER, 1, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(queue_state(&w->q[i]) == QUEUE_STANDBY);
        assert_true(handover_is_standby(&w->q[i]));
    }
    run(w, 5000);
    assert_int_equal(w->n[EVENT_STANDBY], 2);
    deliver(w, 0);
    assert_true(queue_state(&w->q[0]) == QUEUE_CONSUMING);
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
    report(w, OTHER, 1, 1);
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

/* Replicas of two versions must compute the same owners during an upgrade. */
static void test_owners_and_hashes_stay_the_same(void **state)
{
    static const uint64_t members[] = {1, 2, 3}, partitions[] = {10, 11, 12, 13, 14, 15, 16};
    static const uint64_t expected[] = {3, 3, 2, 3, 2, 1, 1};
    uint64_t owners[COUNT(partitions)];

    assert_true(handover_hash("", 0) == 17665956581633026203u);
    assert_true(handover_hash("orders-1", 8) == 13438025036837555122u);
    handover_assign(members, COUNT(members), partitions, COUNT(partitions), owners);
    assert_memory_equal(owners, expected, sizeof(owners));
}

/* Each replica lists the partitions in the order of its own configuration. */
static void test_owners_depend_on_the_names_of_the_partitions(void **state)
{
    for (uint64_t other = 1; other <= 20; other++) {
        struct world *w = world();
        const uint64_t members[] = {SELF, OTHER}, names[] = {other, other + 100};
        uint64_t owners[2];

        for (int i = 0; i < 2; i++)
            handover_init(&w->q[i], SELF, names[i]);
        report(w, OTHER, 1, 2);
        handover_assign(members, 2, names, 2, owners);
        for (int i = 0; i < 2; i++)
            assert_true(w->q[i].handover.owner == owners[i]);
        end(w);
    }
}

static void test_when_a_replica_steps_behind_the_owner(void **state)
{
    static const struct {
        int64_t settled_ms, heard_ms, stepped_ms, held_ms,
            returned_ms; /* time since then; 0: a default, or never */
        int64_t ahead, behind;
        bool holds, paused, left, drains, steps;
    } cases[] = {
        {.ahead = 2, .behind = 1, .steps = true},
        {.ahead = 2, .steps = true},
        {.ahead = 2, .behind = 2},
        {.behind = 1}, /* the owner is not subscribed */
        {.ahead = 2, .settled_ms = 800, .steps = true},
        {.ahead = 2, .settled_ms = 799},
        {.ahead = 2, .heard_ms = 9999, .steps = true},
        {.ahead = 2, .heard_ms = 10000},
        {.ahead = 2, .left = true},
        {.ahead = 2, .drains = true},
        {.ahead = 2, .paused = true},
        /* once a minute while the members stay the same */
        {.ahead = 2, .settled_ms = 90000, .stepped_ms = 59999},
        {.ahead = 2, .settled_ms = 90000, .stepped_ms = 60000, .steps = true},
        {.ahead = 2, .settled_ms = 900, .stepped_ms = 900},
        {.ahead = 2, .settled_ms = 900, .stepped_ms = 901, .steps = true},
        /* while it holds messages */
        {.ahead = 2, .holds = true, .held_ms = 2499},
        {.ahead = 2, .holds = true, .held_ms = 2500, .steps = true},
        {.ahead = 2, .holds = true, .held_ms = 2500, .paused = true, .steps = true},
        {.ahead = 2, .holds = true, .held_ms = 2500, .returned_ms = 59999},
        {.ahead = 2, .holds = true, .held_ms = 2500, .returned_ms = 60000, .steps = true},
        {.ahead = 2, .returned_ms = 10, .steps = true},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world *w = world();
        struct queue *q = &w->q[0];
        struct handover *h = &q->handover;

        w->now = 1000000;
        if (cases[i].holds)
            deliver(w, 0);
        if (cases[i].paused)
            queue_refused(q, w->now, PAUSE_OPERATOR, "test");
        h->ahead = cases[i].ahead;
        h->behind = cases[i].behind;
        h->heard_ms = w->now - cases[i].heard_ms;
        h->stepped_ms = cases[i].stepped_ms ? w->now - cases[i].stepped_ms : 0;
        h->wanted_ms = cases[i].held_ms ? w->now - cases[i].held_ms : 0;
        h->returned_ms = cases[i].returned_ms ? w->now - cases[i].returned_ms : 0;
        q->share->members.since_ms = w->now - (cases[i].settled_ms ? cases[i].settled_ms : 90000);
        q->left_to_others = cases[i].left;
        q->drain = cases[i].drains ? DRAIN_FINISHING : DRAIN_NO;
        handover_step(q, w->now);
        if (h->steps != cases[i].steps)
            fail_msg("case %zu", i);
        assert_int_equal(q->order.stop != NULL, cases[i].steps);
        q->drain = DRAIN_NO;
        end(w);
    }
}

static void test_the_time_from_which_it_wants_to_step(void **state)
{
    struct world *w = world();
    struct handover *h = &w->q[0].handover;

    deliver(w, 0);
    h->ahead = 2;
    h->heard_ms = w->now;
    w->q[0].share->members.since_ms = w->now - 800;
    handover_step(&w->q[0], w->now);
    assert_int_equal(h->wanted_ms, w->now);
    handover_step(&w->q[0], w->now + 100);
    assert_int_equal(h->wanted_ms, w->now);
    h->ahead = 0; /* the owner is gone */
    handover_step(&w->q[0], w->now + 200);
    assert_int_equal(h->wanted_ms, 0);
    end(w);
}

static void test_a_step_is_remembered_and_whether_it_returned_messages(void **state)
{
    static const struct {
        bool planned, steps, holds;
        int64_t stepped_ms, returned_ms, again_ms;
    } cases[] = {
        {true, true, true, 5000, 5000, 5000}, {true, true, false, 5000, 0, 5000},
        {true, false, true, 0, 0, 6000}, /* stopped for another reason: other replicas get the queue first */
        {false, true, true, 0, 0, 5000},      {false, false, true, 0, 0, 5000},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world *w = world();
        struct handover *h = &w->q[0].handover;

        if (cases[i].holds)
            deliver(w, 0);
        h->steps = cases[i].steps;
        h->wanted_ms = 4000;
        assert_int_equal(handover_channel_lost(&w->q[0], 5000, cases[i].planned), cases[i].again_ms);
        assert_int_equal(h->stepped_ms, cases[i].stepped_ms);
        assert_int_equal(h->returned_ms, cases[i].returned_ms);
        assert_false(h->steps || h->is_active || h->wanted_ms);
        end(w);
    }
}

/* A replica is a member while it is subscribed and does not drain. */
static void test_partitions_belong_to_members_only(void **state)
{
    for (int i = 0; i < 4; i++) {
        struct world *w = world();
        struct queue *partitions[] = {&w->q[0], &w->q[1]};
        bool is_member = i == 0;

        for (int k = 0; k < 2; k++) {
            w->q[k].drain = i == 1 || i == 3 ? DRAIN_FINISHING : DRAIN_NO;
            w->q[k].consumer.state = i >= 2 ? CONSUMER_STARTING : CONSUMER_ACTIVE;
        }
        assert_true(handover_presence(partitions, 2, w->now, NULL, 0));
        for (int k = 0; k < 2; k++)
            assert_int_equal(w->q[k].handover.owner, is_member ? SELF : 0);
        report(w, OTHER, 1, 2);
        assert_int_equal((w->q[0].handover.owner == SELF) + (w->q[1].handover.owner == SELF), is_member);
        for (int k = 0; k < 2; k++)
            w->q[k].drain = DRAIN_NO;
        end(w);
    }
}

static void test_one_subscribed_partition_makes_a_member(void **state)
{
    struct world *w = world();
    struct queue *partitions[] = {&w->q[0], &w->q[1]};

    w->q[0].consumer.state = CONSUMER_NONE;
    handover_presence(partitions, 2, w->now, NULL, 0);
    assert_int_equal(w->q[0].handover.owner, SELF);
    assert_int_equal(w->q[1].handover.owner, SELF);
    end(w);
}

static void test_a_report_replaces_the_previous_one(void **state)
{
    struct world *w = world();
    struct queue *partitions[] = {&w->q[0], &w->q[1]}, *q = &w->q[0];
    int64_t since_ms;

    report(w, OTHER, 1, 2);
    q = &w->q[not_owned(w)];
    assert_true(handover_is_standby(q));
    assert_int_equal(q->n_others, 1);
    assert_int_equal(q->handover.ahead, 1);
    since_ms = q->share->members.since_ms;
    run(w, 300);
    report(w, OTHER, 2, 2); /* the same members */
    assert_int_equal(q->share->members.since_ms, since_ms);
    assert_int_equal(q->handover.ahead, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(w->q[i].handover.heard_ms, w->now);
    handover_presence(partitions, 2, w->now, NULL, 0); /* the other replica is gone */
    assert_int_equal(q->share->members.since_ms, w->now);
    for (int i = 0; i < 2; i++) {
        assert_false(handover_is_standby(&w->q[i]));
        assert_int_equal(w->q[i].n_others, 0);
        assert_int_equal(w->q[i].handover.ahead, 0);
    }
    report(w, OTHER, 2, 2);
    handover_unknown(q); /* the database is lost */
    assert_false(handover_is_standby(q));
    assert_int_equal(q->n_others, 0);
    assert_int_equal(q->handover.ahead, 0);
    end(w);
}

static void test_when_a_replica_is_a_standby(void **state)
{
    static const struct {
        bool ordered, active_here, other_is_active, subscribed, standby;
    } cases[] = {
        {true, false, true, true, true},   {false, false, true, true, false}, {true, true, true, true, false},
        {true, false, false, true, false}, {true, false, true, false, false},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world *w = world();
        struct queue *q = &w->q[0];

        q->rules.ordered = cases[i].ordered;
        q->handover.is_active = cases[i].active_here;
        q->handover.other_is_active = cases[i].other_is_active;
        q->consumer.state = cases[i].subscribed ? CONSUMER_ACTIVE : CONSUMER_STARTING;
        assert_int_equal(handover_is_standby(q), cases[i].standby);
        q->rules.ordered = true;
        end(w);
    }
}

static void test_the_order_of_reports_does_not_change_the_members(void **state)
{
    static const uint64_t orders[][4] = {{2, 3, 2, 3}, {3, 2, 2, 3}, {3, 3, 2, 2}};
    struct world *w = world();
    struct queue *partitions[] = {&w->q[0], &w->q[1]};
    int64_t since_ms = w->now;

    for (size_t i = 0; i < COUNT(orders); i++) {
        struct handover_peer peers[4];
        size_t next[4] = {0}; /* partition of the next report of a replica */

        for (int k = 0; k < 4; k++)
            peers[k] = (struct handover_peer){.who = orders[i][k],
                                              .partition = next[orders[i][k]]++,
                                              .subscription = 1,
                                              .may_consume = true};
        handover_presence(partitions, 2, w->now, peers, 4);
        assert_int_equal(w->q[0].share->members.since_ms, since_ms);
        assert_int_equal(w->q[0].n_others, 2);
        assert_true(w->q[0].handover.owner != w->q[1].handover.owner);
        w->now += 100;
    }
    end(w);
}

static void test_a_consumer_may_have_a_single_partition(void **state)
{
    struct world *w = world();
    struct queue *partitions[1] = {&w->q[0]};
    const struct handover_peer peer = {.who = OTHER, .subscription = 1, .may_consume = true};

    handover_presence(partitions, 1, w->now, &peer, 1);
    assert_int_equal(w->q[0].n_others, 1);
    assert_true(w->q[0].handover.owner == SELF || w->q[0].handover.owner == OTHER);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_owns_as_many_or_one_more),
        cmocka_unit_test(test_the_order_of_the_lists_changes_nothing),
        cmocka_unit_test(test_few_others_move_when_one_joins),
        cmocka_unit_test(test_an_idle_replica_steps_behind_the_owner_once_the_members_are_settled),
        cmocka_unit_test(test_it_subscribes_again_at_once),
        cmocka_unit_test(test_it_steps_once_for_each_subscription_of_the_owner),
        cmocka_unit_test(test_it_steps_once_a_minute_at_most_unless_the_members_change),
        cmocka_unit_test(test_it_is_behind_an_owner_whom_it_knew_when_it_subscribed),
        cmocka_unit_test(test_an_idle_replica_does_not_step_while_it_pauses),
        cmocka_unit_test(test_an_active_replica_returns_what_it_holds_to_the_owner),
        cmocka_unit_test(test_a_connection_that_is_lost_during_a_step_is_logged),
        cmocka_unit_test(test_it_keeps_the_partition_that_it_owns),
        cmocka_unit_test(test_an_old_report_is_no_reason_to_return_messages),
        cmocka_unit_test(test_it_returns_nothing_to_an_owner_that_is_not_subscribed_or_cannot_consume),
        cmocka_unit_test(test_it_returns_messages_once_a_minute_at_most),
        cmocka_unit_test(test_a_standby_is_shown_as_one_and_is_not_stuck),
        cmocka_unit_test(test_it_leaves_a_partition_to_others_that_are_subscribed_to_it),
        cmocka_unit_test(test_owners_and_hashes_stay_the_same),
        cmocka_unit_test(test_owners_depend_on_the_names_of_the_partitions),
        cmocka_unit_test(test_when_a_replica_steps_behind_the_owner),
        cmocka_unit_test(test_the_time_from_which_it_wants_to_step),
        cmocka_unit_test(test_a_step_is_remembered_and_whether_it_returned_messages),
        cmocka_unit_test(test_partitions_belong_to_members_only),
        cmocka_unit_test(test_one_subscribed_partition_makes_a_member),
        cmocka_unit_test(test_a_report_replaces_the_previous_one),
        cmocka_unit_test(test_when_a_replica_is_a_standby),
        cmocka_unit_test(test_the_order_of_reports_does_not_change_the_members),
        cmocka_unit_test(test_a_consumer_may_have_a_single_partition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
