/* The limiter: its start, tolerated answers, cuts, and waits. */
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

static void test_a_good_answer_adds_one_from_a_fresh_start_on(void **state)
{
    struct limiter l;

    limiter_init(&l, 2);
    assert_int_equal(limiter_room(&l, 0), 2);
    limiter_init(&l, MOST);
    assert_int_equal(limiter_room(&l, 0), LIMITER_FIRST);
    for (int n = LIMITER_FIRST + 1; n <= MOST; n++) {
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

    for (int i = 0; i < MOST; i++) /* all that were in flight at one moment */
        limiter_bad(&l, 0, mark, LONG_MS, -1, 0);
    assert_int_equal(limiter_room(&l, 0), MOST * 7 / 10);
    limiter_good(&l, mark); /* sent before the cut */
    assert_int_equal(limiter_room(&l, 0), MOST * 7 / 10);
}

static void test_the_latest_cut_has_a_reason(void **state)
{
    struct limiter l = warm();

    limiter_blame(&l, "answered 429");
    bad(&l, 0); /* tolerated */
    assert_null(limiter_reason(&l));
    while (limiter_room(&l, 0) == MOST)
        bad(&l, 0);
    assert_string_equal(limiter_reason(&l), "answered 429");
    limiter_collapse(&l, 1);
    assert_string_equal(limiter_reason(&l), "the application was not available");
    limiter_blame(&l, "answered 503");
    bad(&l, 2); /* at 1 there is no cut, but a wait */
    assert_string_equal(limiter_reason(&l), "answered 503");
    while (limiter_room(&l, 100000) < MOST)
        limiter_good(&l, limiter_mark(&l));
    assert_null(limiter_reason(&l));
}

static void test_at_one_it_waits_ever_longer_and_a_good_answer_ends_it(void **state)
{
    struct limiter l;
    int64_t before = 0;

    limiter_init(&l, MOST);
    limiter_collapse(&l, 1);
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
    limiter_collapse(&l, 0);
    limiter_bad(&l, 0, limiter_mark(&l), LONG_MS, 5000, 0);
    assert_int_equal(l.wait_until_ms, 5000);
    limiter_bad(&l, 10000, limiter_mark(&l), LONG_MS, 3600000, 0);
    assert_int_equal(l.wait_until_ms, 10000 + LONG_MS);
    limiter_bad(&l, 90000, limiter_mark(&l), 1000, 3600000, 0); /* for an untried message */
    assert_int_equal(l.wait_until_ms, 90000 + 1000);
}

static void test_nobody_there_is_one_at_once(void **state)
{
    struct limiter l = warm();

    limiter_collapse(&l, 7);
    assert_int_equal(limiter_room(&l, 7), 1);
    for (int i = 0; i < MOST / 2; i++)
        limiter_good(&l, limiter_mark(&l));
    assert_int_equal(limiter_room(&l, 7), MOST / 2); /* quickly up to half of the former limit */
}

/* Keeps every slot taken for that long from *now on. */
static void stays_full(struct limiter *l, int64_t *now, int64_t ms, bool hangs)
{
    for (int64_t until = *now + ms; *now <= until; *now += 10) {
        limiter_busy(l, *now, (int)l->limit, true, hangs);
        assert_true(l->limit >= l->most || limiter_deadline(l, *now) > *now);
    }
}

static void test_long_jobs_double_the_limit(void **state)
{
    struct limiter l;
    int64_t now = 1;

    limiter_init(&l, 64);
    stays_full(&l, &now, LIMITER_DOUBLE_MS, false);
    assert_int_equal(limiter_room(&l, now), 8);
    stays_full(&l, &now, 3 * LIMITER_DOUBLE_MS, false);
    assert_int_equal(limiter_room(&l, now), 64);
    limiter_busy(&l, now, 0, true, false); /* slots are free */
    assert_int_equal(limiter_deadline(&l, now), INT64_MAX);
}

static void test_long_jobs_double_the_limit_up_to_half_of_what_it_was_before_an_outage(void **state)
{
    struct limiter l = warm();
    int64_t now = 1;

    limiter_collapse(&l, now);
    stays_full(&l, &now, 3 * LIMITER_DOUBLE_MS, false);
    assert_int_equal(limiter_room(&l, now), MOST / 2);
    stays_full(&l, &now, LIMITER_BUSY_MS, false);
    assert_int_equal(limiter_room(&l, now), MOST / 2 + 1);
}

static void test_an_application_that_seems_to_hang_gets_one_more_a_second(void **state)
{
    struct limiter l;
    int64_t now = 1;

    limiter_init(&l, 64);
    stays_full(&l, &now, 4 * LIMITER_BUSY_MS, true);
    assert_int_in_range(limiter_room(&l, now), LIMITER_FIRST + 3, LIMITER_FIRST + 4);
}

static void test_no_doubling_after_a_bad_answer(void **state)
{
    struct limiter l;
    int64_t now = 1;

    limiter_init(&l, 64);
    bad(&l, now);
    stays_full(&l, &now, LIMITER_BUSY_MS / 2, false);
    assert_int_equal(limiter_room(&l, now), LIMITER_FIRST);
    for (int i = 0; i < 10; i++)
        limiter_good(&l, limiter_mark(&l));
    limiter_busy(&l, now, 0, true, false); /* slots are free */
    stays_full(&l, &now, LIMITER_DOUBLE_MS, false);
    assert_int_equal(limiter_room(&l, now), 2 * (LIMITER_FIRST + 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_answer_adds_one_from_a_fresh_start_on),
        cmocka_unit_test(test_a_bad_answer_now_and_then_costs_nothing),
        cmocka_unit_test(test_half_a_budget_cuts_the_limit_once),
        cmocka_unit_test(test_the_latest_cut_has_a_reason),
        cmocka_unit_test(test_at_one_it_waits_ever_longer_and_a_good_answer_ends_it),
        cmocka_unit_test(test_a_wish_to_retry_later_is_honoured_up_to_the_longest_wait),
        cmocka_unit_test(test_nobody_there_is_one_at_once),
        cmocka_unit_test(test_long_jobs_double_the_limit),
        cmocka_unit_test(test_long_jobs_double_the_limit_up_to_half_of_what_it_was_before_an_outage),
        cmocka_unit_test(test_an_application_that_seems_to_hang_gets_one_more_a_second),
        cmocka_unit_test(test_no_doubling_after_a_bad_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
