/* Waiting before the first `ready`: logged when it begins and when its reason changes, and now and then as a
 * warning. */
#include "cmocka_all.h"

#include "onceward/core/waiting.h"

#include <string.h>

enum { PATIENCE_MS = 60000 };

static enum waiting_line told(struct waiting *w, enum waiting_for what, const char *text, int64_t now_ms)
{
    return waiting_for(w, what, text, false, now_ms, PATIENCE_MS);
}

static void test_a_start_in_order_is_told_once_each_and_never_warned_of(void **state)
{
    struct waiting w = {0};

    for (int64_t now = 0; now < PATIENCE_MS; now += 250) {
        assert_int_equal(told(&w, WAITING_BROKER, "refused", now), now ? WAITING_NO_LINE : WAITING_LINE);
        assert_int_equal(told(&w, WAITING_DATABASE, "refused", now), now ? WAITING_NO_LINE : WAITING_LINE);
    }
    assert_int_equal(told(&w, WAITING_APPLICATION, "refused", PATIENCE_MS), WAITING_LINE);
}

static void test_what_lasts_is_a_warning_once_a_patience(void **state)
{
    struct waiting w = {0};
    int n = 0;

    told(&w, WAITING_BROKER, "refused", 5);
    for (int64_t now = 5; now <= 5 + 3 * PATIENCE_MS; now += 250) {
        enum waiting_line line = told(&w, WAITING_BROKER, "refused", now);

        assert_int_equal(line == WAITING_WARNING, now > 5 && (now - 5) % PATIENCE_MS == 0);
        n += line == WAITING_WARNING;
    }
    assert_int_equal(n, 3);
}

static void test_another_reason_is_told_not_more_than_once_a_second(void **state)
{
    struct waiting w = {0};
    char long_text[2 * WAITING_TEXT_MAX];

    assert_int_equal(told(&w, WAITING_DATABASE, "refused", 0), WAITING_LINE);
    assert_int_equal(told(&w, WAITING_DATABASE, "starting up", 900), WAITING_NO_LINE);
    assert_int_equal(told(&w, WAITING_DATABASE, "starting up", 1000), WAITING_LINE);
    assert_int_equal(told(&w, WAITING_DATABASE, "starting up", 5000), WAITING_NO_LINE);
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    assert_int_equal(told(&w, WAITING_DATABASE, long_text, 6000), WAITING_LINE);
    assert_int_equal(told(&w, WAITING_DATABASE, long_text, 8000), WAITING_NO_LINE);
}

static void test_what_was_there_begins_anew(void **state)
{
    struct waiting w = {0};

    told(&w, WAITING_APPLICATION, "refused", 0);
    waiting_over(&w, WAITING_APPLICATION);
    assert_int_equal(told(&w, WAITING_APPLICATION, "refused", PATIENCE_MS), WAITING_LINE);
    assert_int_equal(told(&w, WAITING_APPLICATION, "refused", 2 * PATIENCE_MS - 1), WAITING_NO_LINE);
    assert_int_equal(told(&w, WAITING_APPLICATION, "refused", 2 * PATIENCE_MS), WAITING_WARNING);
}

/* A wrong password does not improve with time: a warning at once, also when the peer was up before and
 * refuses later. */
static void test_a_refusal_is_a_warning_at_once_and_once_a_patience(void **state)
{
    struct waiting w = {0};

    assert_int_equal(waiting_for(&w, WAITING_BROKER, "ACCESS_REFUSED", true, 0, PATIENCE_MS),
                     WAITING_WARNING);
    for (int64_t now = 250; now < PATIENCE_MS; now += 250)
        assert_int_equal(waiting_for(&w, WAITING_BROKER, "ACCESS_REFUSED", true, now, PATIENCE_MS),
                         WAITING_NO_LINE);
    assert_int_equal(waiting_for(&w, WAITING_BROKER, "ACCESS_REFUSED", true, PATIENCE_MS, PATIENCE_MS),
                     WAITING_WARNING);
    assert_int_equal(told(&w, WAITING_DATABASE, "connection refused", 0), WAITING_LINE);
    assert_int_equal(waiting_for(&w, WAITING_DATABASE, "28P01", true, 250, PATIENCE_MS), WAITING_WARNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_start_in_order_is_told_once_each_and_never_warned_of),
        cmocka_unit_test(test_what_lasts_is_a_warning_once_a_patience),
        cmocka_unit_test(test_another_reason_is_told_not_more_than_once_a_second),
        cmocka_unit_test(test_what_was_there_begins_anew),
        cmocka_unit_test(test_a_refusal_is_a_warning_at_once_and_once_a_patience),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
