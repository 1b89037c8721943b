/* The circuit breaker: its counts, when it switches on and off, its attempts, and its text. */
#include "cmocka_all.h"
#include "fields.h"
#include "onceward/core/brake.h"

#include <string.h>

static struct brake brake_of(int threshold)
{
    struct brake b;

    brake_init(&b, threshold);
    return b;
}

/* Counts the failure of a message. */
static bool failed(struct brake *b, uint64_t id, const char *text)
{
    return brake_failed(b, 1000, &(struct brake_failure){.id = id, .text = text});
}

static const char *told(const struct brake *b)
{
    static char text[400];

    brake_tell(b, text, sizeof(text));
    return text;
}

static void test_a_small_prefetch_lowers_the_threshold_but_not_below_5(void **state)
{
    static const int cases[][3] = {{20, 128, 20}, {20, 20, 20}, {20, 19, 19}, {20, 6, 6}, {20, 5, 5},
                                   {20, 4, 5},    {20, 1, 5},   {3, 1, 3},    {0, 128, 0}};

    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(brake_threshold(cases[i][0], cases[i][1]), cases[i][2]);
}

static void test_enough_different_messages_in_a_row_switch_it_on(void **state)
{
    struct brake b = brake_of(3);

    assert_false(failed(&b, 1, "a"));
    assert_false(failed(&b, 1, "a")); /* the same message */
    assert_false(failed(&b, 2, "a"));
    assert_false(brake_succeeded(&b));
    assert_false(failed(&b, 1, "a"));
    assert_false(failed(&b, 2, "a"));
    assert_false(b.on);
    assert_true(failed(&b, 3, "a"));
    assert_true(b.on);
    assert_int_equal(b.since_ms, 1000);
    assert_int_equal(b.tried_ms, 1000);
    assert_false(failed(&b, 4, "a")); /* on already */
    assert_int_equal(b.n, 4);
    assert_true(brake_succeeded(&b));
    assert_false(b.on);
    assert_int_equal(b.n, 0);
    assert_int_equal(b.threshold, 3);
}

static void test_without_a_threshold_it_stays_off(void **state)
{
    struct brake b = brake_of(0);

    for (uint64_t id = 1; id < 100; id++)
        assert_false(failed(&b, id, "a"));
    assert_false(brake_may_set(&b, 100));
}

static void test_a_request_counts_with_its_weight(void **state)
{
    struct brake b = brake_of(5);

    assert_false(brake_failed(&b, 1, &(struct brake_failure){.id = 1, .weight = 2, .text = "a"}));
    assert_false(brake_failed(&b, 1, &(struct brake_failure){.id = 2, .weight = 2, .text = "a"}));
    assert_int_equal(b.sum, 4);
    assert_int_equal(b.n, 2);
    assert_string_equal(told(&b), "2 different requests or messages in a row failed; most often, 2 times: a");
    assert_true(failed(&b, 3, "b"));
    assert_int_equal(b.sum, 5);
}

/* A message without an id has a new identity with each delivery, so its content identifies it. */
static void test_a_redelivered_message_without_an_id_counts_once(void **state)
{
    static const struct {
        uint64_t content;
        bool ended, again, counts;
    } cases[] = {
        {70, true, true, false},  {71, true, true, true}, /* different content */
        {70, false, true, true},                          /* its delivery has not ended: another message */
        {70, true, false, true},                          /* never delivered before */
        {70, false, false, true},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct brake b = brake_of(10);
        struct brake_failure f = {.id = 1, .content = 70, .no_id = true, .text = "a"};

        failed(&b, 5, "a");
        brake_failed(&b, 1, &f);
        brake_ended(&b, 5); /* has an id, so a redelivery keeps its identity */
        if (cases[i].ended)
            brake_ended(&b, 1);
        brake_ended(&b, 99); /* unknown */
        f = (struct brake_failure){
            .id = 2, .content = cases[i].content, .again = cases[i].again, .text = "a"};
        assert_false(brake_failed(&b, 1, &f));
        assert_int_equal(b.n, 2 + cases[i].counts);
        assert_false(brake_failed(&b, 1, &f)); /* known by its identity now */
        assert_int_equal(b.n, 2 + cases[i].counts);
    }
}

static void test_the_latest_delivery_stands_for_a_message_without_an_id(void **state)
{
    struct brake b = brake_of(10);
    struct brake_failure f = {.content = 70, .again = true, .no_id = true, .text = "a"};

    for (f.id = 1; f.id <= 2; f.id++) {
        brake_ended(&b, f.id - 1);
        brake_failed(&b, 1, &f);
        assert_int_equal(b.n, 1);
    }
    brake_failed(&b, 1, &f); /* the second delivery has not ended: another message */
    assert_int_equal(b.n, 2);
}

static void test_messages_with_ids_are_not_identified_by_their_content(void **state)
{
    struct brake b = brake_of(10);

    failed(&b, 1, "a");
    brake_ended(&b, 1);
    assert_false(brake_failed(&b, 1, &(struct brake_failure){.id = 2, .again = true, .text = "a"}));
    assert_int_equal(b.n, 2);
}

static void test_it_knows_whether_any_message_had_an_id(void **state)
{
    struct brake b = brake_of(10);

    assert_true(b.no_ids);
    brake_failed(&b, 1, &(struct brake_failure){.id = 1, .no_id = true, .text = "a"});
    assert_true(b.no_ids);
    failed(&b, 2, "a");
    assert_false(b.no_ids);
    brake_failed(&b, 1, &(struct brake_failure){.id = 3, .no_id = true, .text = "a"});
    assert_false(b.no_ids);
    brake_succeeded(&b);
    brake_force(&b, 1, "a");
    assert_false(b.no_ids);
}

static void test_more_messages_than_it_remembers_are_counted(void **state)
{
    struct brake b = brake_of(BRAKE_IDS + 10);

    for (uint64_t id = 1; id < BRAKE_IDS + 10; id++)
        assert_false(failed(&b, id, "a"));
    assert_false(failed(&b, BRAKE_IDS, "a")); /* the last that is remembered */
    assert_int_equal(b.n, BRAKE_IDS + 9);
    assert_int_equal(b.texts[0].n, BRAKE_IDS + 9);
    assert_true(failed(&b, 1000, "a"));
}

static void test_open_outcomes_may_still_switch_it_on(void **state)
{
    static const struct {
        int threshold, n_failed;
        size_t n_open;
        bool may;
    } cases[] = {
        {5, 2, 3, true},  {5, 2, 2, false}, {5, 2, 4, true},  {5, 2, 0, false},
        {5, 0, 9, false}, {5, 5, 9, false}, {0, 2, 9, false}, {5, 4, 1, true},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct brake b = brake_of(cases[i].threshold);

        for (int k = 1; k <= cases[i].n_failed; k++)
            failed(&b, (uint64_t)k, "a");
        if (brake_may_set(&b, cases[i].n_open) != cases[i].may)
            fail_msg("case %zu", i);
    }
}

static void test_attempts_per_second_are_bounded(void **state)
{
    struct brake b = brake_of(5);

    assert_int_equal(brake_deadline(&b, 4500, 2), INT64_MAX);
    assert_true(brake_force(&b, 4500, "all fails"));
    assert_int_equal(b.since_ms, 4500);
    assert_int_equal(b.tried_ms, 4500);
    assert_int_equal(brake_deadline(&b, 4500, 2), 4500);
    assert_true(brake_try(&b, 4600, 2));
    assert_int_equal(b.tried_ms, 4600);
    assert_int_equal(brake_deadline(&b, 4600, 2), 4600);
    assert_true(brake_try(&b, 4700, 2));
    assert_false(brake_try(&b, 4999, 2));
    assert_int_equal(b.tried_ms, 4700);
    assert_int_equal(brake_deadline(&b, 4999, 2), 5000);
    assert_int_equal(brake_deadline(&b, 5000, 2), 5000);
    assert_true(brake_try(&b, 5000, 2));
    assert_true(brake_try(&b, 5001, 2));
    assert_false(brake_try(&b, 5002, 2));
    assert_int_equal(brake_deadline(&b, 5002, 2), 6000);
}

static void test_it_can_be_forced_on_without_a_count(void **state)
{
    struct brake b = brake_of(5);

    failed(&b, 1, "a");
    assert_true(brake_force(&b, 7, "the application does not know batches"));
    assert_string_equal(told(&b), "the application does not know batches");
    assert_int_equal(b.threshold, 5);
    assert_false(brake_force(&b, 8, "another reason"));
    assert_int_equal(b.since_ms, 7);
    assert_string_equal(told(&b), "the application does not know batches");
    assert_true(brake_succeeded(&b));
}

static void test_its_text_names_the_most_frequent_error(void **state)
{
    static const char *const texts[BRAKE_TEXTS] = {"a", "b", "c", "d", "e", "f"};
    struct brake b = brake_of(100);
    uint64_t id = 0;

    for (size_t i = 0; i < BRAKE_TEXTS; i++) /* each text once, then the last one again */
        failed(&b, ++id, texts[i]);
    failed(&b, ++id, "f");
    for (int i = 0; i < 5; i++) /* the table is full */
        failed(&b, ++id, "g");
    assert_string_equal(told(&b), "12 different messages in a row failed; most often, 2 times: f");
    failed(&b, ++id, "a");
    failed(&b, ++id, "a");
    assert_string_equal(told(&b), "14 different messages in a row failed; most often, 3 times: a");
}

static void test_equal_long_errors_are_cut_and_counted_together(void **state)
{
    struct brake b = brake_of(100);
    char text[300];

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    failed(&b, 1, text);
    failed(&b, 2, text);
    assert_int_equal(strlen(b.texts[0].text), sizeof(b.texts[0].text) - 1);
    assert_int_equal(b.texts[0].n, 2);
}

static void test_counts_of_failures_do_not_overflow(void **state)
{
    struct brake b;

    brake_init(&b, 0);
    for (uint64_t id = 1; id <= 100; id++) {
        brake_failed(&b, 0, &(struct brake_failure){.id = id, .text = "a"});
        if (id == 80)
            b.n = b.sum = b.texts[0].n = INT32_MAX - 1;
    }
    assert_int_equal(b.n, INT32_MAX - 1);
    assert_int_equal(b.sum, INT32_MAX - 1);
    assert_int_equal(b.texts[0].n, INT32_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_small_prefetch_lowers_the_threshold_but_not_below_5),
        cmocka_unit_test(test_enough_different_messages_in_a_row_switch_it_on),
        cmocka_unit_test(test_without_a_threshold_it_stays_off),
        cmocka_unit_test(test_a_request_counts_with_its_weight),
        cmocka_unit_test(test_a_redelivered_message_without_an_id_counts_once),
        cmocka_unit_test(test_the_latest_delivery_stands_for_a_message_without_an_id),
        cmocka_unit_test(test_messages_with_ids_are_not_identified_by_their_content),
        cmocka_unit_test(test_it_knows_whether_any_message_had_an_id),
        cmocka_unit_test(test_more_messages_than_it_remembers_are_counted),
        cmocka_unit_test(test_open_outcomes_may_still_switch_it_on),
        cmocka_unit_test(test_attempts_per_second_are_bounded),
        cmocka_unit_test(test_it_can_be_forced_on_without_a_count),
        cmocka_unit_test(test_its_text_names_the_most_frequent_error),
        cmocka_unit_test(test_equal_long_errors_are_cut_and_counted_together),
        cmocka_unit_test(test_counts_of_failures_do_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
