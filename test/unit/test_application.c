/* The application: which message a crash is charged to, quarantine, and detection of recovery. */
#include "cmocka_all.h"
#include "fields.h"
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

static void test_it_has_slots_only_while_it_is_available(void **state)
{
    static const struct {
        bool gone, failing, kept, waits;
        int n_out, n_reserved, n_accepted, room;
        bool may_first, may_more;
    } cases[] = {
        {.room = 4, .may_first = true, .may_more = true},
        {.n_out = 1, .n_reserved = 1, .n_accepted = 1, .room = 1, .may_first = true, .may_more = true},
        {.n_out = 2, .n_reserved = 1, .n_accepted = 1, .may_first = true},
        {.n_accepted = 5, .may_first = true},
        {.gone = true},
        {.failing = true},
        {.kept = true},
        {.waits = true},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct application a = reached();

        a.gone = cases[i].gone;
        a.probe.failing = cases[i].failing;
        a.place.owner = cases[i].kept;
        a.limiter.wait_until_ms = cases[i].waits ? 11 : 0;
        a.n_out = cases[i].n_out;
        a.n_reserved = cases[i].n_reserved;
        a.n_accepted = cases[i].n_accepted;
        assert_int_equal(application_taken(&a), cases[i].n_out + cases[i].n_reserved + cases[i].n_accepted);
        assert_int_equal(application_room(&a, 10), cases[i].room);
        assert_int_equal(application_may_send(&a, 10, 0), cases[i].may_first);
        assert_int_equal(application_may_send(&a, 10, 1), cases[i].may_more);
    }
}

/* First time at which a message may keep slots free beside a request in flight, checked each millisecond. */
static int64_t keeps_from_ms(struct application *a, int64_t now_ms)
{
    while (application_take_place(a, now_ms, 7, false) == PLACE_BESIDE)
        now_ms++;
    return now_ms;
}

static void test_the_credit_for_idle_slots_is_bounded(void **state)
{
    const int64_t hour_ms = 3600000;
    struct application a = reached();

    send(&a, false);
    assert_int_equal(keeps_from_ms(&a, hour_ms), hour_ms); /* 2 s have been saved, not 6 minutes */
    application_leave_place(&a, hour_ms + 2500, 7);
    assert_int_equal(keeps_from_ms(&a, hour_ms + 2500), hour_ms + 2500 + 10 * 500 + 10);
    application_leave_place(&a, 2 * hour_ms, 7); /* charged for a window, not an hour */
    assert_int_equal(keeps_from_ms(&a, 2 * hour_ms), 2 * hour_ms + 10 * 30000 + 10);
}

static void test_its_deadline_is_the_first_of_its_waits(void **state)
{
    static const struct {
        /* 0: none. since_ms: start of the wait for quarantine; until_ms: time from which others join it */
        int64_t probe_ms, limit_ms, since_ms, until_ms;
        bool probe_sent;
        int64_t deadline_ms;
    } cases[] = {
        {.deadline_ms = INT64_MAX},
        {.probe_ms = 5000, .deadline_ms = 5000},
        {.probe_ms = 5000, .probe_sent = true, .deadline_ms = INT64_MAX},
        {.probe_ms = 5000, .limit_ms = 4000, .deadline_ms = 4000},
        {.probe_ms = 3000, .limit_ms = 4000, .deadline_ms = 3000},
        {.since_ms = 900, .deadline_ms = 30900},
        {.since_ms = 900, .probe_ms = 30899, .deadline_ms = 30899},
        {.since_ms = 900, .probe_ms = 30901, .deadline_ms = 30900},
        {.since_ms = -29000, .deadline_ms = INT64_MAX}, /* has waited for a window */
        {.since_ms = -28999, .deadline_ms = 1001},
        {.since_ms = 900, .until_ms = 2000, .deadline_ms = 2000},
        {.since_ms = 900, .until_ms = 2000, .probe_ms = 1500, .deadline_ms = 1500},
        {.since_ms = 900, .until_ms = 1001, .deadline_ms = 1001},
        {.since_ms = 900, .until_ms = 1000, .deadline_ms = INT64_MAX},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct application a = reached();

        a.probe.at_ms = cases[i].probe_ms ? cases[i].probe_ms : INT64_MAX;
        a.probe.sent = cases[i].probe_sent;
        a.limiter.wait_until_ms = cases[i].limit_ms;
        a.place.owner = cases[i].since_ms != 0;
        a.place.since_ms = cases[i].since_ms;
        a.place.taken = cases[i].until_ms != 0;
        a.place.until_ms = cases[i].until_ms;
        assert_int_equal(application_deadline(&a, 1000), cases[i].deadline_ms);
    }
}

static void test_status_429_is_a_sign_of_life_and_503_is_not(void **state)
{
    static const int statuses[] = {429, 503};

    for (size_t i = 0; i < COUNT(statuses); i++) {
        struct application a = reached();
        struct application_request before = send(&a, false), r = send(&a, false);

        assert_int_equal(crash(&a, 10, &r), CRASH_QUARANTINED);
        application_returned(&a);
        application_refused_politely(&a, &before, 429); /* sent before the crash */
        assert_false(a.seen_alive);
        r = send(&a, false);
        application_returned(&a);
        application_refused_politely(&a, &r, statuses[i]);
        r = send(&a, true);
        assert_int_equal(crash(&a, 20, &r), statuses[i] == 429 ? CRASH_CHARGED : CRASH_UNPROVEN);
    }
}

static void test_all_messages_share_the_intervals_of_unproven_charges(void **state)
{
    struct application a = reached();
    struct application_request r;

    assert_true(application_charges_unproven(&a, 1000, 5000));
    assert_false(application_charges_unproven(&a, 5999, 5000));
    assert_true(application_charges_unproven(&a, 6000, 5000));
    assert_false(application_charges_unproven(&a, 15999, 5000));
    assert_true(application_charges_unproven(&a, 16000, 5000));
    assert_int_equal(a.unproven_step, 3);
    r = send(&a, false);
    answer(&a, 16001, &r); /* seen alive */
    assert_true(application_charges_unproven(&a, 16002, 5000));
    assert_false(application_charges_unproven(&a, 16003, 5000));
    application_unreachable(&a, 16004, true);
    application_probe_sent(&a);
    application_probed(&a, 16100, true, false, 0); /* refused before: the probe shows a recovery */
    assert_true(application_charges_unproven(&a, 16101, 5000));
}

static void test_failed_probes_are_repeated_with_backoff(void **state)
{
    static const struct application_rules rules[] = {
        {.concurrency = 16, .ready_interval_ms = 1000, .window_ms = 30000},
        {.concurrency = 16, .ready_interval_ms = 10, .window_ms = 30000},
    };

    for (size_t i = 0; i < COUNT(rules); i++) {
        struct application a;
        int64_t now_ms = 0, most_ms = 50, last_ms = i ? 50 : 1000;

        application_init(&a, &rules[i], 0);
        for (int k = 0; k < 8; k++) {
            assert_true(application_wants_probe(&a, now_ms));
            application_probe_sent(&a);
            assert_false(application_wants_probe(&a, now_ms)); /* a probe is in flight */
            application_probed(&a, now_ms, false, true, (uint64_t)(most_ms - most_ms / 10));
            assert_int_equal(a.probe.at_ms - now_ms, most_ms);
            assert_false(application_wants_probe(&a, a.probe.at_ms - 1));
            now_ms = a.probe.at_ms;
            most_ms = most_ms * 2 < last_ms ? most_ms * 2 : last_ms;
        }
    }
}

static void test_a_failing_ready_url_stops_requests_until_it_succeeds(void **state)
{
    static const struct application_rules rules = {
        .concurrency = 16, .has_ready_url = true, .ready_interval_ms = 300, .window_ms = 30000};
    struct application a;

    application_init(&a, &rules, 0);
    application_probe_sent(&a);
    application_probed(&a, 10, true, false, 0);
    assert_int_equal(a.back_ms, 10);
    assert_int_equal(a.probe.at_ms, 1010); /* once a second while all is well */
    application_probe_sent(&a);
    application_probed(&a, 1010, false, false, 45); /* ready_url answers an error */
    assert_false(a.gone);
    assert_true(a.probe.failing);
    assert_false(a.refused);
    assert_int_equal(a.limiter.limit, 1);
    assert_false(application_may_send(&a, 1010, 0));
    assert_int_equal(a.probe.at_ms, 1060);
    a.limiter.threshold = 3;
    application_probe_sent(&a);
    application_probed(&a, 1060, false, true, 0); /* the port is closed */
    assert_true(a.gone);
    assert_true(a.refused);
    assert_int_equal(a.probe.n_failures, 2);
    assert_int_equal(a.limiter.threshold, 3); /* only the first failure lowers it */
    application_probe_sent(&a);
    application_probed(&a, 1200, true, false, 0);
    assert_true(application_may_send(&a, 1200, 0));
    assert_int_equal(a.back_ms, 1200);
    assert_int_equal(a.probe.n_failures, 0);
    a.rules.ready_interval_ms = 4000;
    application_probe_sent(&a);
    application_probed(&a, 2200, true, false, 0);
    assert_int_equal(a.back_ms, 1200);
    assert_int_equal(a.probe.at_ms, 6200);
}

static void test_other_messages_go_first_until_shortly_after_a_recovery(void **state)
{
    struct application a = reached();
    struct application_request r;

    assert_int_equal(application_others_first_ms(&a), 0);
    r = send(&a, false);
    crash(&a, 20, &r);
    application_unreachable(&a, 30, true);
    application_probe_sent(&a);
    application_probed(&a, 500, true, false, 0);
    assert_int_equal(application_others_first_ms(&a), 600);
}

static void test_a_crash_asks_for_a_probe_at_once_and_counts_once(void **state)
{
    struct application a = reached();
    struct application_request r[3];

    for (int i = 0; i < 3; i++)
        r[i] = send(&a, false);
    assert_false(application_wants_probe(&a, 100000));
    crash(&a, 20, &r[0]);
    assert_true(application_wants_probe(&a, 20));
    assert_int_equal(a.probe.at_ms, 20);
    a.probe.at_ms = 15; /* due already */
    crash(&a, 30, &r[1]);
    assert_int_equal(a.n_crashes, 1);
    assert_int_equal(a.probe.at_ms, 15);
    application_returned(&a);
    application_answered(&a, 40, &r[2]); /* sent before the crash: no sign of life */
    assert_false(a.seen_alive);
    r[0] = send(&a, false);
    assert_int_equal(r[0].n_crashes, 1);
    crash(&a, 50, &r[0]);
    assert_int_equal(a.n_crashes, 2);
    assert_int_equal(a.probe.at_ms, 15);
}

static void test_a_closed_port_is_probed_soon_after_a_ready_url_that_failed(void **state)
{
    struct application a = reached();

    a.rules.has_ready_url = true;
    for (int i = 1; i <= 5; i++) {
        application_probe_sent(&a);
        application_probed(&a, i, false, false, 0);
    }
    assert_int_equal(a.probe.n_failures, 5);
    application_unreachable(&a, 10, true); /* a request was in flight */
    application_probe_sent(&a);
    application_probed(&a, 60, false, true, 45);
    assert_int_equal(a.probe.at_ms, 60 + 50);
}

static void test_no_slots_are_kept_free_while_nothing_can_be_sent(void **state)
{
    for (int i = 0; i < 5; i++) {
        struct application a = reached();

        send(&a, false);
        assert_int_equal(application_take_place(&a, 10, 7, false), PLACE_WAIT);
        assert_int_equal(a.place.owner, 7);
        a.gone = i == 1;
        a.probe.failing = i == 2;
        a.limiter.wait_until_ms = i == 3 ? 21 : 20;
        a.rules.has_ready_url = i == 4; /* ready_url has not answered since a crash */
        a.n_crashes = 1;
        assert_int_equal(application_take_place(&a, 20, 7, false), PLACE_WAIT);
        assert_int_equal(a.place.owner, i ? 0 : 7);
        assert_int_equal(a.place.rested_ms, i ? 30 : 0);
    }
}

static void test_a_crash_is_a_bad_answer_for_the_limiter(void **state)
{
    struct application a = reached();

    for (int i = 0; i < 100 && a.limiter.limit >= 2; i++) {
        struct application_request r = send(&a, false);

        crash(&a, 20, &r);
    }
    struct application_request r = send(&a, false);

    application_returned(&a);
    application_crashed(&a, 1000, &r, 700, 0);
    assert_string_equal(limiter_reason(&a.limiter), "the application crashed");
    assert_int_equal(a.limiter.wait_until_ms, 1700); /* Retry-After of a 502 */
}

static void test_only_the_owner_of_the_quarantine_shares_it(void **state)
{
    struct application a = reached();

    application_share_place(&a, 7, 500); /* no message is quarantined */
    assert_int_equal(a.place.until_ms, 0);
    assert_int_equal(application_take_place(&a, 0, 7, false), PLACE_TAKEN);
    application_share_place(&a, 8, 500);
    assert_true(a.place.until_ms == INT64_MAX);
    application_share_place(&a, 7, 500);
    assert_int_equal(a.place.until_ms, 500);
    a.place.taken = false; /* the message waits */
    application_share_place(&a, 7, 900);
    assert_int_equal(a.place.until_ms, 500);
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
        cmocka_unit_test(test_it_has_slots_only_while_it_is_available),
        cmocka_unit_test(test_the_credit_for_idle_slots_is_bounded),
        cmocka_unit_test(test_its_deadline_is_the_first_of_its_waits),
        cmocka_unit_test(test_status_429_is_a_sign_of_life_and_503_is_not),
        cmocka_unit_test(test_all_messages_share_the_intervals_of_unproven_charges),
        cmocka_unit_test(test_failed_probes_are_repeated_with_backoff),
        cmocka_unit_test(test_a_failing_ready_url_stops_requests_until_it_succeeds),
        cmocka_unit_test(test_other_messages_go_first_until_shortly_after_a_recovery),
        cmocka_unit_test(test_a_crash_asks_for_a_probe_at_once_and_counts_once),
        cmocka_unit_test(test_a_closed_port_is_probed_soon_after_a_ready_url_that_failed),
        cmocka_unit_test(test_no_slots_are_kept_free_while_nothing_can_be_sent),
        cmocka_unit_test(test_a_crash_is_a_bad_answer_for_the_limiter),
        cmocka_unit_test(test_only_the_owner_of_the_quarantine_shares_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
