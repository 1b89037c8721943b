/* The quarantined group of a queue (src/core/quarantine.c): which messages join it, and when its quarantine ends. */
#include "core_bed.h"

#include "core/quarantine.h"

enum { MOST = 10 };

static struct bed *bed_of(void)
{
    struct queue_rules r = bed_batch_rules(MOST);

    r.transaction = true;
    return bed_new(&r, KIND_QUORUM);
}

/* Delivers a message whose row has these counts. */
static struct delivery *deliver(struct bed *b, int n, int crashes, int takeovers)
{
    char id[16];

    snprintf(id, sizeof(id), "m%d", n);
    struct delivery *d = bed_deliver(b, id);

    d->claim->crashes = crashes;
    d->claim->takeovers = takeovers;
    return d;
}

/* Delivers a message with one crash, and opens a group with it. The group then has the application to itself. */
static struct delivery *open_group(struct bed *b)
{
    struct delivery *d = deliver(b, 0, 1, 0);

    quarantine_open(&b->q, d);
    assert_true(quarantine_has(&b->q, d));
    assert_int_equal(application_take_place(&b->application, b->now, quarantine_owner(&b->q, d), false),
                     PLACE_TAKEN);
    return d;
}

static void end(struct bed *b)
{
    b->application.place.owner = 0;
    bed_end(b);
}

/* After a second crash or a third takeover, the message gets a request of its own. */
static void test_messages_with_one_crash_or_two_takeovers_go_in_a_group(void **state)
{
    static const struct {
        int crashes, takeovers, cap;
        bool goes;
    } cases[] = {{0, 0, 0, false}, {1, 0, 0, true},  {1, 2, 0, true},  {0, 2, 0, true},
                 {0, 1, 0, false}, {0, 3, 0, false}, {1, 3, 0, false}, {2, 0, 0, false},
                 {2, 2, 0, false}, {1, 0, 1, false}, {1, 0, 2, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of();
        struct delivery *d = deliver(b, 1, cases[i].crashes, cases[i].takeovers);

        d->claim->batch_cap = cases[i].cap;
        d->claim->alone = true;
        quarantine_open(&b->q, d);
        if (quarantine_has(&b->q, d) != cases[i].goes)
            fail_msg("case %d", (int)i);
        assert_int_equal(d->claim->alone, !cases[i].goes);
        end(b);
    }
}

/* A message that joined a group would never end its own quarantine. */
static void test_a_message_quarantined_alone_opens_no_group(void **state)
{
    struct bed *b = bed_of();
    struct delivery *d = deliver(b, 1, 1, 0);

    b->application.place.owner = quarantine_owner(&b->q, d);
    quarantine_open(&b->q, d);
    assert_false(quarantine_has(&b->q, d));
    end(b);
}

static void test_there_is_one_group_at_a_time(void **state)
{
    struct bed *b = bed_of();
    struct delivery *d = open_group(b), *other = deliver(b, 1, 1, 0);
    uint64_t number = b->q.quarantine.number;

    quarantine_open(&b->q, other);
    quarantine_open(&b->q, d);
    assert_int_equal(b->q.quarantine.number, number);
    assert_int_equal(b->q.quarantine.n, 1);
    assert_false(quarantine_has(&b->q, other));
    b->application.place.owner = 0; /* the group waits, so another message may open one */
    quarantine_open(&b->q, other);
    assert_int_equal(b->q.quarantine.number, number + 1);
    assert_true(quarantine_has(&b->q, other));
    assert_false(quarantine_has(&b->q, d));
    end(b);
}

static void test_a_group_takes_messages_of_one_kind_until_it_is_sent(void **state)
{
    static const struct {
        int crashes, cap, cap_of_group;
        uint64_t failed_with, failed_with_of_group;
        bool waits, sent, joins; /* the group waits for quarantine; its request is in flight */
    } cases[] = {
        {1, 0, 0, 0, 0, false, false, true},  {0, 0, 0, 0, 0, false, false, false},
        {2, 0, 0, 0, 0, false, false, false}, {1, 0, 0, 7, 8, false, false, true},
        {1, 4, 4, 7, 7, false, false, true},  {1, 4, 4, 7, 8, false, false, false},
        {1, 4, 5, 7, 7, false, false, false}, {1, 0, 4, 0, 0, false, false, false},
        {1, 0, 0, 0, 0, true, false, false},  {1, 0, 0, 0, 0, false, true, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of();

        open_group(b);
        struct delivery *d = deliver(b, 1, cases[i].crashes, 0);

        d->claim->batch_cap = cases[i].cap;
        d->claim->failed_with = cases[i].failed_with;
        b->q.quarantine.batch_cap = cases[i].cap_of_group;
        b->q.quarantine.failed_with = cases[i].failed_with_of_group;
        if (cases[i].waits)
            b->application.place.taken = false;
        if (cases[i].sent)
            quarantine_sent(&b->q);
        if (quarantine_join(&b->q, d) != cases[i].joins)
            fail_msg("case %d", (int)i);
        assert_int_equal(quarantine_has(&b->q, d), cases[i].joins);
        assert_int_equal(b->q.quarantine.n, 1 + cases[i].joins);
        end(b);
    }
}

static void test_a_group_has_at_most_eight_messages_or_its_cap(void **state)
{
    static const int caps[] = {0, 3, 9};

    for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
        struct bed *b = bed_of();
        struct delivery *first = open_group(b);
        size_t most = caps[i] == 3 ? 3 : GROUP_MOST;

        first->claim->batch_cap = b->q.quarantine.batch_cap = caps[i];
        for (int n = 1; n < 12; n++) {
            struct delivery *d = deliver(b, n, 1, 0);

            d->claim->batch_cap = caps[i];
            assert_int_equal(quarantine_join(&b->q, d), (size_t)n < most);
        }
        assert_int_equal(b->q.quarantine.n, most);
        end(b);
    }
}

/* The oldest message that fits is next, except messages that are requeued soon. */
static void test_the_next_member_is_the_first_wanted_claim_that_fits(void **state)
{
    struct bed *b = bed_of();
    struct delivery *first = open_group(b);

    first->claim->crashes = 0; /* claims of members are sent, and not in the list */
    deliver(b, 1, 0, 0);
    struct delivery *old = deliver(b, 2, 1, 0), *next = deliver(b, 3, 1, 0);

    old->arrival->received_ms = b->now - b->q.rules.max_hold_ms;
    assert_ptr_equal(quarantine_next(&b->q, b->now), next);
    next->claim->crashes = 0;
    assert_null(quarantine_next(&b->q, b->now));
    assert_false(b->q.quarantine.is_open); /* the list is not walked again */
    old->arrival->received_ms++;
    assert_null(quarantine_next(&b->q, b->now));
    b->q.quarantine.is_open = true;
    b->application.place.taken = false;
    assert_null(quarantine_next(&b->q, b->now));
    b->application.place.taken = true;
    assert_ptr_equal(quarantine_next(&b->q, b->now), old);
    assert_true(quarantine_has(&b->q, first));
    end(b);
}

static void test_the_last_member_to_leave_ends_the_quarantine_of_its_group(void **state)
{
    struct bed *b = bed_of();
    struct delivery *first = open_group(b), *second = deliver(b, 1, 1, 0), *other = deliver(b, 2, 1, 0);
    uint64_t owner = b->application.place.owner;

    assert_true(quarantine_join(&b->q, second));
    quarantine_leave(&b->q, b->now, other); /* not a member */
    assert_int_equal(b->q.quarantine.n, 2);
    quarantine_leave(&b->q, b->now, first);
    assert_int_equal(first->claim->group, 0);
    assert_int_equal(b->application.place.owner, owner);
    quarantine_leave(&b->q, b->now, second);
    assert_int_equal(second->claim->group, 0);
    assert_int_equal(b->q.quarantine.n, 0);
    assert_int_equal(b->application.place.owner, 0);
    end(b);
}

/* Owners distinguish deliveries, groups and queues. */
static void test_owners_of_quarantine_are_unique(void **state)
{
    struct bed *b = bed_of();
    struct delivery *d = deliver(b, 1, 1, 0), *other = deliver(b, 2, 2, 0);
    uint64_t alone = quarantine_owner(&b->q, d);

    assert_int_not_equal(alone, quarantine_owner(&b->q, other));
    quarantine_open(&b->q, d);
    uint64_t group = quarantine_owner(&b->q, d);

    assert_int_not_equal(group, alone);
    assert_int_equal(group, 1ull << 40 | 1ull << 39 | 1);
    assert_int_equal(alone, 1ull << 40 | d->ref);
    assert_int_equal(queue_number_of(group), 1);
    assert_int_equal(queue_number_of(alone), 1);
    end(b);
}

/* A message that already has a slot joins the group, opens one, or finds quarantine taken. */
static void test_a_claimed_message_joins_or_opens_a_group(void **state)
{
    static const struct {
        bool has_group, is_sent, is_busy;
        bool finds;
        size_t n; /* members afterwards */
    } cases[] = {{false, false, false, true, 1},
                 {true, false, false, true, 2},
                 {true, true, false, false, 1},
                 {false, false, true, false, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of();

        if (cases[i].has_group)
            open_group(b);
        if (cases[i].is_sent)
            quarantine_sent(&b->q);
        if (cases[i].is_busy)
            b->application.n_accepted = 1;
        struct delivery *d = deliver(b, 1, 1, 0);

        assert_int_equal(quarantine_find(&b->q, b->now, d), cases[i].finds);
        assert_int_equal(quarantine_has(&b->q, d), cases[i].finds);
        assert_int_equal(b->q.quarantine.n, cases[i].n);
        assert_int_equal(b->application.place.owner != 0, cases[i].has_group || cases[i].finds);
        b->application.n_accepted = 0;
        end(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_with_one_crash_or_two_takeovers_go_in_a_group),
        cmocka_unit_test(test_a_message_quarantined_alone_opens_no_group),
        cmocka_unit_test(test_there_is_one_group_at_a_time),
        cmocka_unit_test(test_a_group_takes_messages_of_one_kind_until_it_is_sent),
        cmocka_unit_test(test_a_group_has_at_most_eight_messages_or_its_cap),
        cmocka_unit_test(test_the_next_member_is_the_first_wanted_claim_that_fits),
        cmocka_unit_test(test_the_last_member_to_leave_ends_the_quarantine_of_its_group),
        cmocka_unit_test(test_owners_of_quarantine_are_unique),
        cmocka_unit_test(test_a_claimed_message_joins_or_opens_a_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
