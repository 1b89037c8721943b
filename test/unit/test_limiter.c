/* The limiter: how it starts, what it forgives, when it is cut, and how it waits. */
#include "cmocka_all.h"
#include "onceward/core/limiter.h"

enum { MOST = 16, LONG_MS = LIMITER_WAIT_LAST_MS };

static struct limiter warm(void)
{
    struct limiter l;

    limiter_init(&l, MOST);
    for (int i = 0; i < 100; i++)
        limiter_good(&l, limiter_mark(&l));
    return l;
}

static void bad(struct limiter *l, int64_t now_ms)
{
    limiter_bad(l, now_ms, limiter_mark(l), LONG_MS, -1, 0);
}

static void test_it_starts_at_one_and_doubles(void **state)
{
    struct limiter l;

    limiter_init(&l, MOST);
    assert_int_equal(limiter_room(&l, 0), 1);
    for (int n = 2; n <= MOST; n++) {
        limiter_good(&l, limiter_mark(&l));
        assert_int_equal(limiter_room(&l, 0), n);
    }
    limiter_good(&l, limiter_mark(&l));
    assert_int_equal(limiter_room(&l, 0), MOST);
}

static void test_a_bad_answer_now_and_then_costs_nothing(void **state)
{
    struct limiter l = warm();

    for (int i = 0; i < 10000; i++) {
        if (i % 20 == 0)
            bad(&l, i);
        else
            limiter_good(&l, limiter_mark(&l));
        assert_int_equal(limiter_room(&l, i), MOST);
    }
}

static void test_half_a_budget_cuts_the_limit_once(void **state)
{
    struct limiter l = warm();
    uint64_t mark = limiter_mark(&l);

    for (int i = 0; i < MOST; i++) /* all that were out, of one moment */
        limiter_bad(&l, 0, mark, LONG_MS, -1, 0);
    assert_int_equal(limiter_room(&l, 0), MOST * 7 / 10);
    limiter_good(&l, mark); /* asked for before the cut */
    assert_int_equal(limiter_room(&l, 0), MOST * 7 / 10);
}

static void test_at_one_it_waits_ever_longer_and_a_good_answer_ends_it(void **state)
{
    struct limiter l;
    int64_t before = 0;

    limiter_init(&l, MOST);
    for (int i = 0; i < 12; i++) {
        int64_t now = 100000 * (i + 1), wait;

        bad(&l, now);
        wait = l.wait_until_ms - now;
        assert_int_equal(limiter_room(&l, now), 0);
        assert_true(wait >= before && wait <= LONG_MS);
        before = wait;
    }
    assert_int_equal(l.wait_ms, LONG_MS);
    limiter_good(&l, limiter_mark(&l));
    assert_true(limiter_room(&l, 1200001) >= 1);
    assert_int_equal(l.slow_since_ms, 0);
}

static void test_a_wish_to_retry_later_is_honoured_up_to_the_longest_wait(void **state)
{
    struct limiter l;

    limiter_init(&l, MOST);
    limiter_bad(&l, 0, limiter_mark(&l), LONG_MS, 5000, 0);
    assert_int_equal(l.wait_until_ms, 5000);
    limiter_bad(&l, 10000, limiter_mark(&l), LONG_MS, 3600000, 0);
    assert_int_equal(l.wait_until_ms, 10000 + LONG_MS);
    limiter_bad(&l, 90000, limiter_mark(&l), 1000, 3600000, 0); /* of a message that was not tried before */
    assert_int_equal(l.wait_until_ms, 90000 + 1000);
}

static void test_nobody_there_is_one_at_once(void **state)
{
    struct limiter l = warm();

    limiter_collapse(&l, 7);
    assert_int_equal(limiter_room(&l, 7), 1);
    for (int i = 0; i < MOST / 2; i++)
        limiter_good(&l, limiter_mark(&l));
    assert_int_equal(limiter_room(&l, 7), MOST / 2); /* quickly up to half of what was */
}

static void test_long_jobs_raise_it_too(void **state)
{
    struct limiter l;

    limiter_init(&l, MOST);
    for (int64_t t = 0; t <= 5 * LIMITER_BUSY_MS; t += 100)
        limiter_busy(&l, t, (int)l.limit, true);
    assert_true(l.limit >= 5);
    limiter_busy(&l, 6000, 0, true); /* slots are free */
    assert_int_equal(limiter_deadline(&l, 6000), INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_starts_at_one_and_doubles),
        cmocka_unit_test(test_a_bad_answer_now_and_then_costs_nothing),
        cmocka_unit_test(test_half_a_budget_cuts_the_limit_once),
        cmocka_unit_test(test_at_one_it_waits_ever_longer_and_a_good_answer_ends_it),
        cmocka_unit_test(test_a_wish_to_retry_later_is_honoured_up_to_the_longest_wait),
        cmocka_unit_test(test_nobody_there_is_one_at_once),
        cmocka_unit_test(test_long_jobs_raise_it_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
