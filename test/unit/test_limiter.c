/* The limiter: its start, tolerated answers, cuts, and waits. */
#include "cmocka_all.h"
#include "fields.h"
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

static void test_good_answers_save_at_most_a_whole_budget(void **state)
{
    struct limiter l = warm();
    int n = 0;

    for (; limiter_room(&l, 0) == MOST; n++)
        bad(&l, 0);
    assert_int_equal(n, LIMITER_BUDGET / 2);
    assert_int_equal(limiter_room(&l, 0), MOST * 7 / 10);
    for (n = 0; limiter_room(&l, 0) == MOST * 7 / 10; n++) /* the budget is full after a cut */
        bad(&l, 0);
    assert_int_equal(n, LIMITER_BUDGET / 2);
}

static void test_a_wait_has_a_jitter_of_a_quarter_either_way(void **state)
{
    static const struct {
        int64_t retry_after_ms;
        uint64_t random;
        int64_t first_ms, second_ms;
    } cases[] = {
        {-1, 0, 75, 150}, {-1, 50, 125, 200}, {-1, 51, 75, 201},  {-1, 100, 124, 250}, {-1, 101, 125, 150},
        {75, 0, 75, 150}, {76, 0, 76, 150},   {160, 0, 160, 160}, {0, 50, 125, 200},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct limiter l;

        limiter_init(&l, MOST);
        limiter_collapse(&l, 1);
        limiter_bad(&l, 1000, limiter_mark(&l), LONG_MS, cases[i].retry_after_ms, cases[i].random);
        assert_int_equal(l.wait_until_ms - 1000, cases[i].first_ms);
        assert_int_equal(limiter_room(&l, l.wait_until_ms - 1), 0);
        assert_int_equal(limiter_room(&l, l.wait_until_ms), 1);
        limiter_bad(&l, 2000, limiter_mark(&l), LONG_MS, cases[i].retry_after_ms, cases[i].random);
        assert_int_equal(l.wait_until_ms - 2000, cases[i].second_ms);
    }
}

static void test_the_kind_of_an_answer_bounds_the_wait(void **state)
{
    struct limiter l;

    limiter_init(&l, 1);
    for (int i = 0; i < 9; i++)
        bad(&l, 1000 * i);
    assert_int_equal(l.wait_ms, LONG_MS);
    limiter_bad(&l, 20000, limiter_mark(&l), LIMITER_WAIT_UNTRIED_MS, -1, 0);
    assert_int_equal(l.wait_ms, LIMITER_WAIT_UNTRIED_MS);
    assert_int_equal(l.wait_until_ms, 20000 + LIMITER_WAIT_UNTRIED_MS * 3 / 4);
}

static void test_it_knows_since_when_it_is_slow(void **state)
{
    struct limiter l = warm();

    assert_int_equal(l.slow_since_ms, 0);
    limiter_collapse(&l, 500);
    assert_int_equal(l.slow_since_ms, 500);
    limiter_collapse(&l, 600);
    bad(&l, 700);
    assert_int_equal(l.slow_since_ms, 500);
    limiter_good(&l, limiter_mark(&l));
    assert_int_equal(l.slow_since_ms, 0);
    assert_int_equal(l.wait_ms, 0);
    while (l.limit >= 2)
        bad(&l, 800);
    assert_int_equal(l.slow_since_ms, 0); /* no wait yet, though the limit is 1 */
    bad(&l, 900);
    assert_int_equal(l.slow_since_ms, 900);
}

static void test_answers_to_requests_before_a_cut_change_nothing(void **state)
{
    struct limiter l = warm();
    uint64_t mark = limiter_mark(&l);

    limiter_collapse(&l, 500);
    limiter_bad(&l, 600, mark, LONG_MS, -1, 0);
    assert_int_equal(l.wait_until_ms, 0);
    limiter_good(&l, mark);
    assert_int_equal(limiter_room(&l, 600), 1);
    assert_int_equal(l.slow_since_ms, 500);
}

static void test_above_its_threshold_the_limit_grows_by_one_for_each_round_of_answers(void **state)
{
    struct limiter l = warm();
    int n = 0;

    limiter_collapse(&l, 0);
    for (int i = 1; i < MOST / 2; i++)
        limiter_good(&l, limiter_mark(&l));
    for (; limiter_room(&l, 0) == MOST / 2; n++)
        limiter_good(&l, limiter_mark(&l));
    assert_int_in_range(n, MOST / 2, MOST / 2 + 1);
    limiter_init(&l, 4);
    limiter_collapse(&l, 0); /* half of it is 2 */
    limiter_collapse(&l, 0); /* the limit is 1 already */
    limiter_good(&l, limiter_mark(&l));
    assert_int_equal(limiter_room(&l, 0), 2);
    limiter_init(&l, 3);
    while (limiter_room(&l, 0) == 3)
        bad(&l, 0);
    limiter_collapse(&l, 0);
    assert_true(l.threshold > 1); /* half of 2.1 */
    limiter_init(&l, 1);
    limiter_collapse(&l, 0);
    limiter_good(&l, limiter_mark(&l));
    assert_int_equal(limiter_room(&l, 0), 1);
}

static void test_the_limit_grows_without_answers_only_while_every_slot_is_taken(void **state)
{
    static const struct {
        int n_out;
        bool more, waits;
        int64_t deadline_ms;
    } cases[] = {
        {LIMITER_FIRST, true, false, 1000 + LIMITER_DOUBLE_MS},
        {LIMITER_FIRST - 1, true, false, INT64_MAX},
        {LIMITER_FIRST, false, false, INT64_MAX},
        {LIMITER_FIRST, true, true, 1050}, /* the end of the wait */
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct limiter l;

        limiter_init(&l, 64);
        l.wait_until_ms = cases[i].waits ? 1050 : 0;
        limiter_busy(&l, 1000, cases[i].n_out, cases[i].more, false);
        assert_int_equal(limiter_deadline(&l, 1000), cases[i].deadline_ms);
        limiter_busy(&l, 1000 + LIMITER_DOUBLE_MS - 1, cases[i].n_out, cases[i].more, false);
        assert_int_equal(l.limit, LIMITER_FIRST);
        limiter_busy(&l, 1000 + LIMITER_DOUBLE_MS, cases[i].n_out, cases[i].more, false);
        assert_int_equal(l.limit, i ? LIMITER_FIRST : 2 * LIMITER_FIRST);
    }
}

static void test_a_bad_answer_or_an_outage_restarts_the_busy_time(void **state)
{
    for (int i = 0; i < 3; i++) {
        struct limiter l;

        limiter_init(&l, 64);
        limiter_busy(&l, 1000, LIMITER_FIRST, true, true);
        if (i == 1)
            bad(&l, 1500);
        if (i == 2)
            limiter_collapse(&l, 1500);
        limiter_busy(&l, 1600, LIMITER_FIRST, true, true);
        assert_int_equal(limiter_deadline(&l, 1600), (i ? 1600 : 1000) + LIMITER_BUSY_MS);
        assert_int_equal(l.limit, i == 2 ? 1 : LIMITER_FIRST);
    }
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
        cmocka_unit_test(test_good_answers_save_at_most_a_whole_budget),
        cmocka_unit_test(test_a_wait_has_a_jitter_of_a_quarter_either_way),
        cmocka_unit_test(test_the_kind_of_an_answer_bounds_the_wait),
        cmocka_unit_test(test_it_knows_since_when_it_is_slow),
        cmocka_unit_test(test_answers_to_requests_before_a_cut_change_nothing),
        cmocka_unit_test(test_above_its_threshold_the_limit_grows_by_one_for_each_round_of_answers),
        cmocka_unit_test(test_the_limit_grows_without_answers_only_while_every_slot_is_taken),
        cmocka_unit_test(test_a_bad_answer_or_an_outage_restarts_the_busy_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
