/* The application: which message a crash is charged to, quarantine, and detection of recovery. */
#include "cmocka_all.h"
#include "onceward/core/application.h"

static struct application reached(void)
{
    static const struct application_rules rules = {
        .concurrency = 16, .ready_interval_ms = 1000, .window_ms = 30000};
    struct application a;

    application_init(&a, &rules, 0);
    application_probe_sent(&a);
    application_probed(&a, 1, true, false, 0);
    return a;
}

static struct application_request send(struct application *a, bool alone)
{
    struct application_request r;

    application_sent(a, alone, &r);
    return r;
}

static void answer(struct application *a, int64_t now_ms, const struct application_request *r)
{
    application_returned(a);
    application_answered(a, now_ms, r);
}

static enum crash crash(struct application *a, int64_t now_ms, const struct application_request *r)
{
    application_returned(a);
    return application_crashed(a, now_ms, r, -1, 0);
}

static void test_nothing_is_sent_before_it_was_reached(void **state)
{
    static const struct application_rules rules = {
        .concurrency = 16, .ready_interval_ms = 1000, .window_ms = 30000};
    struct application a;

    application_init(&a, &rules, 0);
    assert_true(application_wants_probe(&a, 0));
    assert_false(application_may_send(&a, 0, 0));
    application_probe_sent(&a);
    application_probed(&a, 5, false, true, 0);
    assert_false(application_may_send(&a, 5, 0));
    assert_false(a.reached);
    application_probe_sent(&a);
    application_probed(&a, 60, true, false, 0);
    assert_true(application_may_send(&a, 60, 0));
    assert_false(application_wants_probe(&a, 100000));
}

static void test_all_that_were_out_belong_to_one_crash(void **state)
{
    struct application a = reached();
    struct application_request first = send(&a, false), r[3];

    answer(&a, 10, &first);
    for (int i = 0; i < 3; i++)
        r[i] = send(&a, false);
    for (int i = 0; i < 3; i++)
        assert_int_equal(crash(&a, 20, &r[i]), CRASH_QUARANTINED);
    assert_int_equal(a.n_crashes, 1);
}

static void test_a_lone_crash_is_charged_when_it_was_seen_alive_before(void **state)
{
    struct application a = reached();
    struct application_request r = send(&a, false);

    answer(&a, 10, &r);
    r = send(&a, true);
    assert_int_equal(crash(&a, 20, &r), CRASH_CHARGED);
    r = send(&a, true); /* the application was not seen alive since */
    assert_int_equal(crash(&a, 30, &r), CRASH_UNPROVEN);
    r = send(&a, false);
    assert_int_equal(crash(&a, 40, &r), CRASH_NOT_ITS_OWN);
}

static void test_refused_and_then_accepted_is_a_sign_of_life(void **state)
{
    struct application a = reached();
    struct application_request r = send(&a, true);

    assert_int_equal(crash(&a, 20, &r), CRASH_UNPROVEN);
    assert_true(application_wants_probe(&a, 20));
    application_probe_sent(&a);
    application_probed(&a, 21, false, true, 0);
    application_probe_sent(&a);
    application_probed(&a, 500, true, false, 0);
    r = send(&a, true);
    assert_int_equal(crash(&a, 600, &r), CRASH_CHARGED);
}

static void test_behind_a_proxy_a_connect_is_no_sign_of_life(void **state)
{
    struct application a = reached();
    struct application_request r = send(&a, true);

    assert_int_equal(crash(&a, 20, &r), CRASH_UNPROVEN);
    application_probe_sent(&a);
    application_probed(&a, 21, true, false, 0); /* the proxy always accepts */
    r = send(&a, true);
    assert_int_equal(crash(&a, 600, &r), CRASH_UNPROVEN);
}

/* A refused connection, then an accepted one: the application is back. A connection that broke early, then an
 * accepted one: a proxy that always accepts does that. */
static void test_what_broke_before_it_was_sent_is_no_refused_connection(void **state)
{
    for (int refused = 0; refused < 2; refused++) {
        struct application a = reached();
        struct application_request r = send(&a, true);

        assert_int_equal(crash(&a, 20, &r), CRASH_UNPROVEN);
        application_probe_sent(&a);
        application_probed(&a, 21, true, false, 0);
        send(&a, true);
        application_returned(&a);
        application_unreachable(&a, 600, refused);
        assert_true(application_wants_probe(&a, 650));
        application_probe_sent(&a);
        application_probed(&a, 651, true, false, 0);
        r = send(&a, true);
        assert_int_equal(crash(&a, 700, &r), refused ? CRASH_CHARGED : CRASH_UNPROVEN);
    }
}

static int64_t probe_after_ms(struct application *a, int64_t now_ms)
{
    send(a, false);
    application_returned(a);
    application_unreachable(a, now_ms, false);
    int64_t at = a->probe.at_ms;

    application_probe_sent(a);
    application_probed(a, at, true, false, 0);
    return at - now_ms;
}

/* Each probe succeeds, and each request breaks before it was sent. */
static void test_what_is_tried_in_vain_is_tried_ever_more_rarely(void **state)
{
    struct application a = reached();
    struct application_request r;

    assert_int_equal(probe_after_ms(&a, 1000), 50);
    assert_int_equal(a.limiter.slow_since_ms, 0); /* a single failure has no effect */
    assert_int_equal(probe_after_ms(&a, 2000), 100);
    assert_int_equal(a.limiter.slow_since_ms, 2000);
    for (int i = 0; i < 40; i++)
        probe_after_ms(&a, 3000 + i);
    assert_int_equal(probe_after_ms(&a, 4000), 1000);
    assert_int_equal(a.limiter.slow_since_ms, 2000);
    r = send(&a, false);
    answer(&a, 5000, &r);
    assert_int_equal(a.limiter.slow_since_ms, 0);
    assert_int_equal(probe_after_ms(&a, 6000), 50);
    r = send(&a, false);
    application_returned(&a);
    application_refused_politely(&a, &r, 503); /* counts as an answer */
    assert_int_equal(probe_after_ms(&a, 7000), 50);
}

static void test_unproven_charges_come_ever_more_rarely(void **state)
{
    assert_true(unproven_may_charge(-1, 0, 300000));
    assert_false(unproven_may_charge(299999, 1, 300000));
    assert_true(unproven_may_charge(300000, 1, 300000));
    assert_false(unproven_may_charge(600000 - 1, 2, 300000));
    assert_true(unproven_may_charge(600000, 2, 300000));
    assert_false(unproven_may_charge(INT64_MAX / 4, 200, 300000));
}

static void test_who_goes_alone_waits_for_others_and_they_for_it(void **state)
{
    struct application a = reached();
    struct application_request other = send(&a, false);

    assert_int_equal(application_take_place(&a, 10, 7, false), PLACE_WAIT);
    assert_false(application_may_send(&a, 10, 0));
    assert_int_equal(application_take_place(&a, 11, 8, false), PLACE_WAIT); /* only one at a time */
    answer(&a, 20, &other);
    assert_int_equal(application_take_place(&a, 20, 7, false), PLACE_TAKEN);
    assert_false(application_may_send(&a, 20, 0));
    application_leave_place(&a, 30, 8); /* belongs to another message */
    assert_false(application_may_send(&a, 30, 0));
    application_leave_place(&a, 30, 7);
    assert_true(application_may_send(&a, 30, 0));
}

static void test_a_long_job_is_waited_for_a_window_at_most(void **state)
{
    struct application a = reached();

    send(&a, false);
    assert_int_equal(application_take_place(&a, 0, 7, false), PLACE_WAIT);
    assert_int_equal(application_take_place(&a, 29999, 7, false), PLACE_WAIT);
    assert_int_equal(application_take_place(&a, 30000, 7, false),
                     PLACE_BESIDE); /* no message can be quarantined beside it */
}

static void test_who_was_there_at_two_crashes_waits_and_others_have_half_of_the_time(void **state)
{
    struct application a = reached();

    send(&a, false);
    assert_int_equal(application_take_place(&a, 0, 7, false), PLACE_WAIT);
    application_leave_place(&a, 10000, 7); /* exceeds the credit */
    assert_int_equal(application_take_place(&a, 19999, 7, false), PLACE_BESIDE);
    assert_int_equal(application_take_place(&a, 19999, 8, true), PLACE_BESIDE);
    assert_int_equal(application_take_place(&a, 20000, 7, false), PLACE_BESIDE);
    assert_int_equal(application_take_place(&a, 20000, 8, true), PLACE_WAIT);
    assert_false(application_may_send(&a, 20000, 0));
    application_leave_place(&a, 20700, 8);
    assert_int_equal(application_take_place(&a, 21399, 8, true), PLACE_BESIDE);
    assert_int_equal(application_take_place(&a, 21400, 8, true), PLACE_WAIT);
}

static void test_nobody_goes_alone_before_ready_url_has_said_that_it_is_back(void **state)
{
    struct application a = reached();

    a.rules.has_ready_url = true;
    struct application_request r = send(&a, false);

    assert_int_equal(crash(&a, 20, &r), CRASH_QUARANTINED);
    assert_int_equal(application_take_place(&a, 1000, 7, true), PLACE_WAIT);
    assert_false(application_find_place(&a, 1000, 7));
    assert_true(application_may_send(&a, 1000, 0)); /* others try */
    application_probe_sent(&a);
    application_probed(&a, 1001, true, false, 0);
    assert_int_equal(application_take_place(&a, 1001, 7, true), PLACE_TAKEN);
}

static void test_a_probe_that_began_before_a_crash_is_followed_by_another(void **state)
{
    struct application a = reached();

    a.rules.has_ready_url = true;
    struct application_request r = send(&a, false);

    application_probe_sent(&a);
    assert_int_equal(crash(&a, 20, &r), CRASH_QUARANTINED);
    application_probed(&a, 21, true, false, 0);
    assert_true(application_wants_probe(&a, 21));
    assert_int_equal(application_take_place(&a, 21, 7, true), PLACE_WAIT);
    application_probe_sent(&a);
    application_probed(&a, 22, true, false, 0);
    assert_false(application_wants_probe(&a, 22));
    assert_int_equal(application_take_place(&a, 1000, 7, true), PLACE_TAKEN);
}

static void test_slots_are_kept_idle_a_tenth_of_the_time(void **state)
{
    struct application a = reached();
    int64_t now = 0, idle = 0;
    int n_beside = 0;

    send(&a, false); /* never ends */
    for (int i = 0; i < 1000; i++) {
        enum place p = application_take_place(&a, now, 7, false);

        n_beside += p == PLACE_BESIDE;
        now += 100;
        if (p == PLACE_WAIT) {
            idle += 100;
            application_leave_place(&a, now, 7);
        }
    }
    assert_true(n_beside > 0);
    assert_true(idle <= now / 10 + 2000 + 100);
}

static void test_a_long_job_that_goes_alone_is_joined_and_then_not_charged(void **state)
{
    (void)state;
    struct application a = reached();
    struct application_request first = send(&a, false), alone, other;

    answer(&a, 0, &first);
    assert_int_equal(application_take_place(&a, 0, 7, false), PLACE_TAKEN);
    application_sent(&a, true, &alone);
    application_share_place(&a, 7, 30000);
    assert_false(application_may_send(&a, 29999, 0));
    assert_int_equal(application_deadline(&a, 29999), 30000);
    assert_true(application_may_send(&a, 30000, 0));
    assert_int_equal(application_take_place(&a, 30000, 8, false), PLACE_BESIDE);
    application_sent(&a, false, &other);
    assert_int_equal(crash(&a, 31000, &alone), CRASH_QUARANTINED);
    assert_int_equal(crash(&a, 31000, &other), CRASH_QUARANTINED);
}

static void test_the_first_crash_of_all_quarantines_and_is_not_charged(void **state)
{
    (void)state;
    struct application a = reached();
    struct application_request first = send(&a, false), second;

    assert_int_equal(crash(&a, 0, &first), CRASH_QUARANTINED);
    second = send(&a, false);
    assert_int_equal(crash(&a, 1000, &second), CRASH_NOT_ITS_OWN);
}

static void test_who_has_a_slot_and_nobody_beside_it_has_the_place(void **state)
{
    struct application a = reached();
    struct application_request other;

    application_reserve(&a); /* its own slot */
    assert_true(application_find_place(&a, 0, 7));
    assert_int_equal(application_take_place(&a, 0, 8, false), PLACE_WAIT);
    assert_false(application_may_send(&a, 0, 0));
    application_leave_place(&a, 0, 7);

    application_reserve(&a);
    assert_false(application_find_place(&a, 0, 7)); /* another claim has a slot, too */
    application_unreserve(&a);
    other = send(&a, false);
    assert_false(application_find_place(&a, 0, 7));
    answer(&a, 1, &other);
    a.n_accepted = 1;
    assert_false(application_find_place(&a, 1, 7));
    a.n_accepted = 0;
    a.n_abandoned = 1; /* abandoned, but not removed from the connection */
    assert_false(application_find_place(&a, 1, 7));
    a.n_abandoned = 0;
    assert_true(application_find_place(&a, 1, 7));
}

static void test_reached_for_the_first_time_it_was_not_down(void **state)
{
    static const struct application_rules rules = {
        .concurrency = 16, .has_ready_url = true, .ready_interval_ms = 1000, .window_ms = 30000};
    struct application a;

    application_init(&a, &rules, 5);
    assert_int_equal(a.limiter.slow_since_ms, 5);
    application_probe_sent(&a);
    application_probed(&a, 10, true, false, 0);
    assert_int_equal(a.limiter.slow_since_ms, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_sent_before_it_was_reached),
        cmocka_unit_test(test_all_that_were_out_belong_to_one_crash),
        cmocka_unit_test(test_a_lone_crash_is_charged_when_it_was_seen_alive_before),
        cmocka_unit_test(test_refused_and_then_accepted_is_a_sign_of_life),
        cmocka_unit_test(test_behind_a_proxy_a_connect_is_no_sign_of_life),
        cmocka_unit_test(test_what_broke_before_it_was_sent_is_no_refused_connection),
        cmocka_unit_test(test_what_is_tried_in_vain_is_tried_ever_more_rarely),
        cmocka_unit_test(test_unproven_charges_come_ever_more_rarely),
        cmocka_unit_test(test_who_goes_alone_waits_for_others_and_they_for_it),
        cmocka_unit_test(test_a_long_job_is_waited_for_a_window_at_most),
        cmocka_unit_test(test_slots_are_kept_idle_a_tenth_of_the_time),
        cmocka_unit_test(test_who_was_there_at_two_crashes_waits_and_others_have_half_of_the_time),
        cmocka_unit_test(test_nobody_goes_alone_before_ready_url_has_said_that_it_is_back),
        cmocka_unit_test(test_a_long_job_that_goes_alone_is_joined_and_then_not_charged),
        cmocka_unit_test(test_the_first_crash_of_all_quarantines_and_is_not_charged),
        cmocka_unit_test(test_a_probe_that_began_before_a_crash_is_followed_by_another),
        cmocka_unit_test(test_who_has_a_slot_and_nobody_beside_it_has_the_place),
        cmocka_unit_test(test_reached_for_the_first_time_it_was_not_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
