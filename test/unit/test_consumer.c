/* The consumer: its prefetch, when its credit is renewed, and the remedies when nothing is delivered. */
#include "cmocka_all.h"
#include "fields.h"
#include "onceward/core/consumer.h"

enum { MB = 1 << 20, STUCK_MS = 60000, AGAIN_MS = 600000 };

static void test_the_prefetch_stays_within_its_bounds(void **state)
{
    static const struct {
        struct consumer_load load;
        size_t seen, before;
        int prefetch;
    } cases[] = {
        {{.prefetch = 100, .max_parked = 50, .max_bytes = MB}, 0, 0, 100},
        /* half of the bytes for messages of the largest size */
        {{.prefetch = 10, .max_parked = 50, .max_bytes = 2000, .n_bytes = 1900}, 100, 0, 10},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = 2000, .n_bytes = 1800}, 101, 0, 1},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = 2000, .n_bytes = 1800}, 50, 101, 1},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = 2000, .n_bytes = 1100}, 300, 101, 3},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = 2000}, 101, 0, 10},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = 2000, .n_bytes = 1990}, 300, 0, 1},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = 2000, .n_bytes = 2100}, 300, 0, 1},
        /* room beside the waiting messages */
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .n_waiting = 40}, 0, 0, 10},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .n_waiting = 41}, 0, 0, 9},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .n_waiting = 49}, 0, 0, 1},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .n_waiting = 50}, 0, 0, 1},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .n_waiting = 51}, 0, 0, 1},
        {{.prefetch = 10, .max_parked = 5, .max_bytes = MB, .n_waiting = 3}, 0, 0, 7},
        /* an upper bound, a cautious start, a fixed prefetch */
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .most = 3}, 0, 0, 3},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .most = 20}, 0, 0, 10},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .n_waiting = 48, .most = 3}, 0, 0, 2},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .cautious = true}, 0, 0, 1},
        {{.prefetch = 10, .max_parked = 50, .max_bytes = MB, .n_waiting = 50, .fixed = true}, 0, 0, 10},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct consumer c = {.largest = {.seen = cases[i].seen, .before = cases[i].before}};
        int n = consumer_prefetch(&c, &cases[i].load);

        if (n != cases[i].prefetch)
            fail_msg("case %zu: %d instead of %d", i, n, cases[i].prefetch);
    }
}

static void test_the_largest_size_is_forgotten_after_a_minute_without_it(void **state)
{
    static const struct consumer_load load = {
        .prefetch = 10, .max_parked = 50, .max_bytes = 10, .n_bytes = 8};
    struct consumer c = {.largest.since_ms = 1000};

    consumer_saw_size(&c, 1000, 900);
    consumer_saw_size(&c, 1001, 7);
    assert_int_equal(c.largest.seen, 900);
    consumer_saw_size(&c, 61000, 5);
    assert_int_equal(c.largest.seen, 900);
    consumer_saw_size(&c, 61001, 5); /* the next minute */
    assert_int_equal(c.largest.seen, 5);
    assert_int_equal(c.largest.before, 900);
    consumer_saw_size(&c, 121001, 3);
    assert_int_equal(c.largest.before, 900);
    consumer_saw_size(&c, 121002, 0);
    assert_int_equal(c.largest.before, 5);
    consumer_saw_size(&c, 181003, 0);
    assert_int_equal(consumer_prefetch(&c, &load), 10); /* empty messages take no bytes */
}

static void test_credit_is_renewed_when_it_is_used_up_or_too_large(void **state)
{
    static const struct consumer_load load = {.prefetch = 16, .max_parked = 50, .max_bytes = 16000};
    static const struct {
        struct consumer c;
        bool fixed, yields, cautious;
        int most;
        bool renewed;
    } cases[] = {
        {.c = {.prefetch = 16}},
        /* parked deliveries may use a quarter of it */
        {.c = {.prefetch = 16, .n_parked = 4}},
        {.c = {.prefetch = 16, .n_parked = 5}, .renewed = true},
        {.c = {.prefetch = 1, .n_parked = 1}, .renewed = true},
        {.c = {.prefetch = 16, .n_parked = 5}, .fixed = true},
        /* another replica may take the queue */
        {.c = {.prefetch = 16}, .yields = true, .fixed = true, .renewed = true},
        {.c = {.prefetch = 16, .yielded = true}, .yields = true},
        {.c = {.prefetch = 16, .yielded = true}, .yields = true, .fixed = true},
        /* a pause, or a probe message */
        {.c = {.prefetch = 2, .n_parked = 1}, .most = 2},
        {.c = {.prefetch = 3}, .most = 2, .renewed = true},
        {.c = {.prefetch = 1, .bounded = true, .n_parked = 1}, .most = 1},
        /* a cautious start */
        {.c = {.prefetch = 2}, .cautious = true, .renewed = true},
        {.c = {.prefetch = 1}, .cautious = true},
        {.c = {.prefetch = 1, .bounded = true}, .cautious = true},
        {.c = {.prefetch = 1, .bounded = true}, .renewed = true},
        /* larger messages than before */
        {.c = {.prefetch = 16, .largest.seen = 1000}},
        {.c = {.prefetch = 16, .largest.seen = 1001}, .renewed = true},
        {.c = {.prefetch = 1, .largest.seen = 16001}},
        /* a reduced prefetch that is used grows back after a second */
        {.c = {.prefetch = 4, .n_used = 2, .started_ms = 9000}, .renewed = true},
        {.c = {.prefetch = 4, .n_used = 2, .started_ms = 9001}},
        {.c = {.prefetch = 4, .n_used = 1, .started_ms = 9000}},
        {.c = {.prefetch = 7, .n_used = 3, .started_ms = 9000}},
        {.c = {.prefetch = 16, .n_used = 16, .started_ms = 9000}},
        {.c = {.prefetch = 8, .n_used = 8, .started_ms = 9000}, .renewed = true},
        {.c = {.prefetch = 9, .n_used = 9, .started_ms = 9000}}, /* less than twice as much fits */
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct consumer_load l = load;

        l.fixed = cases[i].fixed;
        l.yields = cases[i].yields;
        l.cautious = cases[i].cautious;
        l.most = cases[i].most;
        if (consumer_needs_renewal(&cases[i].c, &l, 10000) != cases[i].renewed)
            fail_msg("case %zu", i);
    }
}

/* --- remedies --- */

static struct consumer active(int64_t now_ms)
{
    struct consumer c = {.state = CONSUMER_ACTIVE, .prefetch = 10};

    c.watch.since_ms = now_ms;
    c.watch.depth = -1;
    return c;
}

static enum consumer_remedy watched(struct consumer *c, int64_t now_ms)
{
    return consumer_watch(c, now_ms, STUCK_MS, AGAIN_MS);
}

/* Time until the next remedy, with `depth` messages in the queue; -1: none within a day. */
static int64_t remedy_after_ms(struct consumer *c, int64_t now_ms, int64_t depth, enum consumer_remedy *ret)
{
    for (int64_t at = now_ms; at < now_ms + 86400000; at += 1000) {
        *ret = watched(c, at);
        if (*ret == REMEDY_ASK_DEPTH) {
            c->watch.asked_ms = at;
            consumer_depth(c, depth, false);
        } else if (*ret != REMEDY_NONE) {
            return at - now_ms;
        }
    }
    return -1;
}

static void test_the_depth_is_asked_for_once_after_half_of_stuck_ms(void **state)
{
    struct consumer c = active(5000);

    assert_int_equal(watched(&c, 5000), REMEDY_NONE);
    assert_int_equal(watched(&c, 5000 + STUCK_MS / 2 - 1), REMEDY_NONE);
    assert_int_equal(watched(&c, 5000 + STUCK_MS / 2), REMEDY_ASK_DEPTH);
    c.watch.asked_ms = 40000;
    assert_int_equal(watched(&c, 41000), REMEDY_NONE); /* the broker has not answered */
    consumer_depth(&c, 0, true);
    assert_int_equal(c.watch.depth, 0);
    assert_int_equal(c.watch.depth_of_ms, 40000);
    assert_int_equal(c.watch.asked_ms, 0);
    assert_true(c.watch.no_queue);
    assert_int_equal(watched(&c, 50000), REMEDY_NONE);
}

static void test_an_empty_queue_or_used_up_credit_needs_no_remedy(void **state)
{
    enum consumer_remedy remedy;
    struct consumer c = active(1000);

    assert_int_equal(remedy_after_ms(&c, 1000, 0, &remedy), -1);
    c = active(1000);
    c.n_used = 10;
    c.watch.depth = 7;
    assert_int_equal(remedy_after_ms(&c, 1000, 7, &remedy), -1);
    c = active(1000);
    c.state = CONSUMER_NONE;
    c.former = 3;
    assert_int_equal(remedy_after_ms(&c, 1000, 7, &remedy), -1);
}

static void test_remedies_are_two_new_channels_and_then_standby_at_growing_intervals(void **state)
{
    enum consumer_remedy remedy;
    struct consumer c = active(1000);
    int64_t now_ms = 1000 + STUCK_MS / 2 + 1000; /* when the depth is known */

    assert_int_equal(remedy_after_ms(&c, 1000, 7, &remedy), STUCK_MS / 2 + 1000 + STUCK_MS);
    assert_string_equal(c.watch.stuck_for, "nothing was delivered, though the queue is not empty");
    now_ms += STUCK_MS;
    for (int i = 1; i <= 9; i++) {
        int64_t wait_ms = (int64_t)AGAIN_MS << (i < 7 ? i - 1 : 6);

        assert_int_equal(remedy, i < 3 ? REMEDY_REOPEN : REMEDY_STANDBY);
        assert_int_equal(c.watch.standby, i >= 3);
        assert_int_equal(c.watch.n_remedies, i);
        assert_int_equal(watched(&c, now_ms + wait_ms - 1), REMEDY_NONE);
        remedy = watched(&c, now_ms + wait_ms);
        now_ms += wait_ms;
    }
}

static void test_a_broker_that_does_not_answer_gets_a_new_channel(void **state)
{
    static const struct {
        enum consumer_state state;
        uint32_t former;
        size_t n_used;
        const char *reason;
    } cases[] = {
        {CONSUMER_STARTING, 0, 0, "the broker does not answer the subscription"},
        {CONSUMER_STOPPING, 0, 0, "the broker does not answer the cancel"},
        {CONSUMER_ACTIVE, 3, 10, "the broker does not answer the cancel"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct consumer c = active(0);

        c.state = cases[i].state;
        c.former = cases[i].former;
        c.n_used = cases[i].n_used;
        c.watch.n_remedies = 1;
        assert_int_equal(watched(&c, 1000), REMEDY_NONE);
        assert_string_equal(c.watch.stuck_for, cases[i].reason);
        assert_int_equal(watched(&c, 1000 + STUCK_MS - 1), REMEDY_NONE);
        assert_int_equal(watched(&c, 1000 + STUCK_MS), REMEDY_REOPEN);
        assert_int_equal(c.watch.not_before_ms, 1000 + STUCK_MS + 2 * AGAIN_MS);
        c.watch.n_remedies = 2; /* only an active consumer can be a standby */
        assert_int_equal(watched(&c, c.watch.not_before_ms),
                         c.state == CONSUMER_ACTIVE ? REMEDY_STANDBY : REMEDY_REOPEN);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_prefetch_stays_within_its_bounds),
        cmocka_unit_test(test_the_largest_size_is_forgotten_after_a_minute_without_it),
        cmocka_unit_test(test_credit_is_renewed_when_it_is_used_up_or_too_large),
        cmocka_unit_test(test_the_depth_is_asked_for_once_after_half_of_stuck_ms),
        cmocka_unit_test(test_an_empty_queue_or_used_up_credit_needs_no_remedy),
        cmocka_unit_test(test_remedies_are_two_new_channels_and_then_standby_at_growing_intervals),
        cmocka_unit_test(test_a_broker_that_does_not_answer_gets_a_new_channel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
