/* Deliveries that may be requeued: credible counts, and the counts that are near the limit. */
#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"
#include "onceward/broker/arguments.h"
#include "onceward/core/returns.h"

#include <string.h>

static void test_from_where_a_delivery_is_near(void **state)
{
    static const struct {
        enum queue_kind kind;
        int configured, major;
        int64_t near; /* the first count that is near; 0: none */
        bool read;
    } cases[] = {
        {KIND_CLASSIC, 2, 4, 0},
        {KIND_UNKNOWN, 2, 3, 0},
        {KIND_QUORUM, LIMIT_UNKNOWN, 3, 3},
        {KIND_QUORUM, LIMIT_UNKNOWN, 4, 3},
        {KIND_QUORUM, LIMIT_UNKNOWN, 4, 18, .read = true},
        {KIND_QUORUM, LIMIT_NONE, 4, 0},
        {KIND_QUORUM, 0, 4, 1},
        {KIND_QUORUM, 1, 4, 1},
        {KIND_QUORUM, 2, 3, 2},
        {KIND_QUORUM, 3, 3, 2},
        {KIND_QUORUM, 5, 3, 3},
        {KIND_QUORUM, 20, 3, 18},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct returns r = {
            .kind = cases[i].kind, .configured = cases[i].configured, .server_major = cases[i].major};
        int64_t first = 0;

        r.limits = (struct queue_limits){.read = cases[i].read, .delivery_limit = LIMIT_UNKNOWN};
        for (int64_t count = 0; count < 100 && !first; count++)
            if (returns_is_near(&r, count))
                first = count;
        assert_int_equal(first, cases[i].near);
    }
}

static void test_what_a_publisher_writes_is_believed_on_no_classic_queue(void **state)
{
    struct returns r = {.kind = KIND_CLASSIC, .configured = 5};

    assert_false(returns_is_near(&r, 1000));
    assert_int_equal(returns_count(&r, 1000), 0);
}

static void test_a_limit_that_nobody_has_told_is_asked_for_once(void **state)
{
    struct returns r = {.kind = KIND_QUORUM, .configured = LIMIT_UNKNOWN, .server_major = 3};

    assert_false(returns_limit_is_missing(&r, 0));
    assert_true(returns_limit_is_missing(&r, 1));
    assert_false(returns_limit_is_missing(&r, 1));
    r = (struct returns){.kind = KIND_QUORUM, .configured = 5, .server_major = 3};
    assert_false(returns_limit_is_missing(&r, 1));
}

static void test_what_is_returned_goes_behind_only_where_nothing_is_counted(void **state)
{
    static const struct {
        enum queue_kind kind;
        int configured, major;
        bool behind;
    } cases[] = {
        {KIND_CLASSIC, LIMIT_UNKNOWN, 3, false}, {KIND_CLASSIC, LIMIT_NONE, 3, false},
        {KIND_UNKNOWN, LIMIT_UNKNOWN, 3, false}, {KIND_QUORUM, LIMIT_UNKNOWN, 3, true},
        {KIND_QUORUM, LIMIT_NONE, 3, true},      {KIND_QUORUM, 5, 3, false},
        {KIND_QUORUM, LIMIT_UNKNOWN, 4, false},  {KIND_QUORUM, LIMIT_NONE, 4, false},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct returns r = {
            .kind = cases[i].kind, .configured = cases[i].configured, .server_major = cases[i].major};

        assert_int_equal(returns_go_behind(&r), cases[i].behind);
    }
}

static void test_one_or_two_deliveries_before_the_end_it_is_the_last(void **state)
{
    static const struct {
        enum queue_kind kind;
        int configured, major;
        int64_t last; /* 0: never */
        bool read;
    } cases[] = {
        {KIND_CLASSIC, 5, 4, 0},
        {KIND_QUORUM, LIMIT_UNKNOWN, 3, 4}, /* as if it were 5 */
        {KIND_QUORUM, LIMIT_UNKNOWN, 4, 4},
        {KIND_QUORUM, LIMIT_UNKNOWN, 4, 19, .read = true},
        {KIND_QUORUM, LIMIT_NONE, 4, 0},
        {KIND_QUORUM, 0, 3, 1},
        {KIND_QUORUM, 2, 3, 1},
        {KIND_QUORUM, 5, 3, 4},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct returns r = {
            .kind = cases[i].kind, .configured = cases[i].configured, .server_major = cases[i].major};
        int64_t first = 0;

        r.limits = (struct queue_limits){.read = cases[i].read, .delivery_limit = LIMIT_UNKNOWN};
        for (int64_t count = 0; count < 100 && !first; count++)
            if (returns_is_last(&r, count))
                first = count;
        assert_int_equal(first, cases[i].last);
    }
}

/* The key says 0 for none; the queue's argument of 0 is a limit, and drops a message with its first return. */
static void test_a_limit_of_none_differs_from_a_limit_of_0(void **state)
{
    static const struct {
        int key, read, limit;
        const char *words;
    } cases[] = {
        {-1, LIMIT_UNKNOWN, LIMIT_UNKNOWN, "is not known"},
        {0, LIMIT_UNKNOWN, LIMIT_NONE, "it has no delivery limit (delivery_limit)"},
        {-1, LIMIT_NONE, LIMIT_NONE, "it has no delivery limit (x-delivery-limit of the queue)"},
        {-1, 0, 0, "its delivery limit is 0 (x-delivery-limit of the queue)"},
        {0, 0, 0, "its delivery limit is 0 (x-delivery-limit of the queue)"},
        {5, 0, 0, "its delivery limit is 0 (x-delivery-limit of the queue)"},
        {5, LIMIT_NONE, 5, "its delivery limit is 5 (delivery_limit)"},
        {0, 7, 7, "its delivery limit is 7 (x-delivery-limit of the queue)"},
        {9, 7, 7, "its delivery limit is 7 (x-delivery-limit of the queue)"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct returns r = {.kind = KIND_QUORUM,
                            .configured = returns_limit_of_key(cases[i].key),
                            .limits = {.read = true, .delivery_limit = cases[i].read},
                            .server_major = 3};
        struct buf words = {0};

        returns_limit_words(&r, &words);
        assert_int_equal(returns_limit(&r), cases[i].limit);
        assert_non_null(strstr(buf_text(&words), cases[i].words));
        assert_int_equal(returns_leave_none(&r), cases[i].limit == 0);
        assert_int_equal(returns_limit_is_near(&r), cases[i].limit < LIMIT_SINCE_4);
        buf_deinit(&words);
    }
}

/* Before the first message is taken. NULL: the queue may be ordered. */
static void test_arguments_that_cannot_keep_an_order_are_refused(void **state)
{
    static const struct {
        struct broker_arguments arguments;
        int limit;
        bool holds_dead;
        const char *names;
    } cases[] = {
        {{.single_active_consumer = true}, LIMIT_NONE, false, NULL},
        {{.single_active_consumer = true}, LIMIT_NONE, true, NULL},
        {{.single_active_consumer = true, .delayed_retry = "disabled"}, 20, false, NULL},
        {{.single_active_consumer = false}, LIMIT_NONE, false, "x-single-active-consumer"},
        {{.single_active_consumer = true, .max_priority = 1}, LIMIT_NONE, false, "x-max-priority"},
        {{.single_active_consumer = true, .delayed_retry = "all"}, LIMIT_NONE, false, "x-delayed-retry-type"},
        {{.single_active_consumer = true}, 19, false, "at least 20"},
        {{.single_active_consumer = true}, 20, true, "order.on_dead hold"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *refusal =
            broker_arguments_order_refusal(&cases[i].arguments, cases[i].limit, cases[i].holds_dead);

        assert_int_equal(refusal != NULL, cases[i].names != NULL);
        assert_true(!refusal || strstr(refusal, cases[i].names));
    }
    assert_non_null(strstr(broker_arguments_order_unread(LIMIT_UNKNOWN, false), "set delivery_limit"));
    assert_null(broker_arguments_order_unread(LIMIT_NONE, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_where_a_delivery_is_near),
        cmocka_unit_test(test_what_a_publisher_writes_is_believed_on_no_classic_queue),
        cmocka_unit_test(test_a_limit_that_nobody_has_told_is_asked_for_once),
        cmocka_unit_test(test_what_is_returned_goes_behind_only_where_nothing_is_counted),
        cmocka_unit_test(test_one_or_two_deliveries_before_the_end_it_is_the_last),
        cmocka_unit_test(test_a_limit_of_none_differs_from_a_limit_of_0),
        cmocka_unit_test(test_arguments_that_cannot_keep_an_order_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
