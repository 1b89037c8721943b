/* Whether the database works: causes of down and doubtful, and the tries. */
#include "cmocka_all.h"
#include "onceward/core/database.h"

#define DISK_FULL  "53100"
#define CONSTRAINT "23514"

static struct database linked(void)
{
    struct database b;

    database_init(&b, 1);
    database_linked(&b);
    return b;
}

static bool tried(struct database *b, int64_t now_ms, bool works)
{
    if (!database_wants_try(b, now_ms))
        return false;
    database_try_sent(b);
    database_tried(b, now_ms, works, "why", 0);
    return true;
}

static void test_a_full_disk_makes_it_down_until_a_try_works(void **state)
{
    struct database b = linked();

    database_refused(&b, 1000, DISK_FULL, "full", false);
    assert_false(database_is_up(&b));
    assert_false(database_wants_try(&b, 1000 + DATABASE_TRY_FIRST_MS - 1));
    assert_true(tried(&b, 1000 + DATABASE_TRY_FIRST_MS, true));
    assert_true(database_is_up(&b));
}

static void test_what_may_be_one_items_fault_is_doubted_first(void **state)
{
    struct database b = linked();

    database_refused(&b, 1000, CONSTRAINT, "theirs", false);
    assert_true(database_is_up(&b));
    assert_int_equal(database_deadline(&b), 0);
    assert_true(tried(&b, 1000, true));
    assert_true(database_is_up(&b));
    database_refused(&b, 1001, CONSTRAINT, "theirs", false);
    assert_false(database_wants_try(&b, 1001)); /* a statement has just worked */
    database_refused(&b, 3000, CONSTRAINT, "theirs", false);
    assert_true(tried(&b, 3000, false));
    assert_false(database_is_up(&b));
    assert_string_equal(b.reason, "why");
}

static void test_only_what_says_that_others_will_be_refused_makes_it_down_at_once(void **state)
{
    static const char *const down[] = {DISK_FULL, "57P03", "08006", "25006", "28000"};
    static const char *const doubted[] = {"XX001", "XX000", "58030", "53200", "42501",
                                          "42P01", "55P03", "57014", "40001", ""};

    for (size_t i = 0; i < sizeof(down) / sizeof(down[0]); i++) {
        struct database b = linked();

        database_refused(&b, 1000, down[i], "", false);
        assert_false(database_is_up(&b));
    }
    for (size_t i = 0; i < sizeof(doubted) / sizeof(doubted[0]); i++) {
        struct database b = linked();

        database_refused(&b, 1000, doubted[i], "", false);
        assert_true(database_is_up(&b) && database_wants_try(&b, 1000));
    }
}

static void test_a_letter_that_is_too_large_for_it_stops_nobody(void **state)
{
    struct database b = linked();

    database_refused(&b, 1000, DISK_FULL, "full", true);
    assert_true(database_is_up(&b));
    assert_true(tried(&b, 1000, true));
    assert_true(database_is_up(&b));
}

static void test_a_disk_with_room_for_a_row_now_and_then_is_tried_ever_more_rarely(void **state)
{
    struct database b = linked();
    int64_t now_ms = 1000, waited_ms = 0;

    for (int i = 0; i < 6; i++) {
        database_refused(&b, now_ms, DISK_FULL, "full", false);
        assert_true(database_deadline(&b) - now_ms >= waited_ms);
        waited_ms = database_deadline(&b) - now_ms;
        now_ms = database_deadline(&b);
        assert_true(tried(&b, now_ms, true));
    }
    assert_int_equal(waited_ms, DATABASE_TRY_LAST_MS);
    now_ms += 2 * DATABASE_TRY_LAST_MS; /* long enough to reset the backoff */
    database_refused(&b, now_ms, DISK_FULL, "full", false);
    assert_int_equal(database_deadline(&b) - now_ms, DATABASE_TRY_FIRST_MS);
}

static void test_a_lost_connection_forgets_what_was_doubted(void **state)
{
    struct database b = linked();

    database_refused(&b, 1000, CONSTRAINT, "theirs", false);
    database_lost(&b, 1000, "gone");
    assert_false(database_wants_try(&b, 1000));
    database_linked(&b);
    assert_true(database_is_up(&b));
    assert_false(database_wants_try(&b, 2000));
}

/* 0 stands for "up", so a loss at time 0 counts as one at 1. */
static void test_it_knows_since_when_and_why_it_is_down(void **state)
{
    struct database b;

    database_init(&b, 0);
    assert_false(database_is_up(&b));
    assert_int_equal(b.down_since_ms, 1);
    assert_string_equal(b.reason, "not connected yet");
    assert_int_equal(database_deadline(&b), INT64_MAX);
    database_lost(&b, 700, "connection refused"); /* an attempt to connect failed */
    assert_int_equal(b.down_since_ms, 1);
    assert_string_equal(b.reason, "connection refused");

    database_linked(&b);
    assert_int_equal(b.down_since_ms, 0);
    assert_int_equal(database_deadline(&b), INT64_MAX);
    database_lost(&b, 0, "closed");
    assert_int_equal(b.down_since_ms, 1);
    assert_string_equal(b.reason, "closed");

    database_linked(&b);
    database_refused(&b, 900, DISK_FULL, "full", false);
    assert_int_equal(b.down_since_ms, 900);
    assert_string_equal(b.reason, "full");
    database_lost(&b, 1000, "closed");
    assert_int_equal(b.down_since_ms, 900);
    assert_string_equal(b.reason, "closed");

    database_linked(&b);
    database_unlinked(&b, "not needed");
    assert_false(database_is_up(&b));
    assert_int_equal(b.down_since_ms, 0); /* not a loss */
    assert_string_equal(b.reason, "not needed");

    database_linked(&b);
    database_refused(&b, 0, DISK_FULL, "full", false);
    assert_int_equal(b.down_since_ms, 1);
    database_hurry(&b, 0, 0);
    assert_true(tried(&b, 0, true));
    assert_int_equal(b.up_since_ms, 1);
}

static void test_a_closed_connection_forgets_the_refusal(void **state)
{
    struct database b = linked();

    database_refused(&b, 1000, DISK_FULL, "full", false);
    database_try_sent(&b);
    database_unlinked(&b, "not needed");
    database_linked(&b);
    assert_true(database_is_up(&b));
    database_refused(&b, 1100, CONSTRAINT, "theirs", false);
    assert_true(database_wants_try(&b, 1100));
}

static void test_each_connection_and_each_loss_begins_an_epoch(void **state)
{
    struct database b = linked();
    uint32_t epoch = b.epoch;

    database_lost(&b, 1, "closed");
    assert_int_equal(b.epoch, epoch + 1);
    database_linked(&b);
    assert_int_equal(b.epoch, epoch + 2);
    database_unlinked(&b, "not needed");
    assert_int_equal(b.epoch, epoch + 3);
}

static void test_failed_tries_are_repeated_with_backoff(void **state)
{
    struct database b = linked();
    int64_t now_ms = 1000, most_ms = DATABASE_TRY_FIRST_MS;

    database_refused(&b, now_ms, DISK_FULL, "full", false);
    for (int i = 0; i < 8; i++) {
        now_ms = database_deadline(&b);
        most_ms = most_ms * 2 < DATABASE_TRY_LAST_MS ? most_ms * 2 : DATABASE_TRY_LAST_MS;
        assert_false(database_wants_try(&b, now_ms - 1));
        assert_true(database_wants_try(&b, now_ms));
        database_try_sent(&b);
        assert_false(database_wants_try(&b, now_ms)); /* a try is in flight */
        assert_int_equal(database_deadline(&b), INT64_MAX);
        database_tried(&b, now_ms, false, "still full", (uint64_t)(most_ms - most_ms / 10));
        assert_int_equal(database_deadline(&b), now_ms + most_ms);
    }
    assert_string_equal(b.reason, "still full");
    assert_int_equal(b.down_since_ms, 1000);
    now_ms = database_deadline(&b);
    assert_true(tried(&b, now_ms, true));
    assert_int_equal(b.down_since_ms, 0);
    assert_int_equal(b.up_since_ms, now_ms);
    assert_int_equal(database_deadline(&b), INT64_MAX);
    database_tried(&b, now_ms, false, "late", 0); /* no try is in flight */
    assert_true(database_is_up(&b));
}

static void test_a_refusal_continues_the_backoff_within_15_s_of_a_successful_try(void **state)
{
    for (int late = 0; late < 2; late++) {
        struct database b = linked();
        int64_t now_ms;

        database_refused(&b, 1000, DISK_FULL, "full", false);
        assert_int_equal(database_deadline(&b), 1000 + DATABASE_TRY_FIRST_MS);
        assert_true(tried(&b, 2000, true));
        now_ms = 2000 + DATABASE_TRY_LAST_MS + late;
        database_refused(&b, now_ms, DISK_FULL, "full", false);
        assert_int_equal(database_deadline(&b) - now_ms, (2 - late) * DATABASE_TRY_FIRST_MS);
    }
}

static void test_a_refusal_while_it_is_down_or_lost_changes_nothing(void **state)
{
    struct database b = linked();

    database_refused(&b, 1000, DISK_FULL, "full", false);
    database_refused(&b, 1500, DISK_FULL, "again", false);
    database_refused(&b, 1500, CONSTRAINT, "again", false);
    assert_int_equal(database_deadline(&b), 1000 + DATABASE_TRY_FIRST_MS);
    assert_string_equal(b.reason, "full");
    database_lost(&b, 1600, "closed");
    database_refused(&b, 1700, DISK_FULL, "again", false);
    assert_false(b.refuses);
    assert_string_equal(b.reason, "closed");
}

static void test_a_successful_try_ends_doubt_for_a_second(void **state)
{
    struct database b = linked();

    database_refused(&b, 1000, CONSTRAINT, "theirs", false);
    assert_true(tried(&b, 1000, true));
    database_refused(&b, 1999, CONSTRAINT, "theirs", false);
    assert_false(database_wants_try(&b, 1999));
    database_refused(&b, 2000, NULL, "without a code", false);
    assert_true(database_wants_try(&b, 2000));
    assert_int_equal(b.down_since_ms, 0);
    assert_true(tried(&b, 2000, false)); /* down, as after a refusal */
    assert_int_equal(database_deadline(&b), 2000 + DATABASE_TRY_FIRST_MS);
    assert_int_equal(b.down_since_ms, 2000);
}

static void test_an_urgent_operation_brings_the_next_try_forward(void **state)
{
    struct database b = linked();

    database_hurry(&b, 1000, 50); /* the database is up */
    assert_int_equal(database_deadline(&b), INT64_MAX);
    database_refused(&b, 1000, DISK_FULL, "full", false);
    database_hurry(&b, 1100, 1000); /* later than the try */
    assert_int_equal(database_deadline(&b), 2000);
    database_hurry(&b, 1100, 50);
    assert_int_equal(database_deadline(&b), 1150);
    database_try_sent(&b);
    b.try_at_ms = 9000;
    database_hurry(&b, 1200, 50); /* a try is in flight */
    assert_int_equal(b.try_at_ms, 9000);
    database_lost(&b, 1300, "closed");
    database_hurry(&b, 1300, 50);
    assert_int_equal(database_deadline(&b), INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_full_disk_makes_it_down_until_a_try_works),
        cmocka_unit_test(test_what_may_be_one_items_fault_is_doubted_first),
        cmocka_unit_test(test_only_what_says_that_others_will_be_refused_makes_it_down_at_once),
        cmocka_unit_test(test_a_letter_that_is_too_large_for_it_stops_nobody),
        cmocka_unit_test(test_a_disk_with_room_for_a_row_now_and_then_is_tried_ever_more_rarely),
        cmocka_unit_test(test_a_lost_connection_forgets_what_was_doubted),
        cmocka_unit_test(test_it_knows_since_when_and_why_it_is_down),
        cmocka_unit_test(test_a_closed_connection_forgets_the_refusal),
        cmocka_unit_test(test_each_connection_and_each_loss_begins_an_epoch),
        cmocka_unit_test(test_failed_tries_are_repeated_with_backoff),
        cmocka_unit_test(test_a_refusal_continues_the_backoff_within_15_s_of_a_successful_try),
        cmocka_unit_test(test_a_refusal_while_it_is_down_or_lost_changes_nothing),
        cmocka_unit_test(test_a_successful_try_ends_doubt_for_a_second),
        cmocka_unit_test(test_an_urgent_operation_brings_the_next_try_forward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
