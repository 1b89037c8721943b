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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_full_disk_makes_it_down_until_a_try_works),
        cmocka_unit_test(test_what_may_be_one_items_fault_is_doubted_first),
        cmocka_unit_test(test_only_what_says_that_others_will_be_refused_makes_it_down_at_once),
        cmocka_unit_test(test_a_letter_that_is_too_large_for_it_stops_nobody),
        cmocka_unit_test(test_a_disk_with_room_for_a_row_now_and_then_is_tried_ever_more_rarely),
        cmocka_unit_test(test_a_lost_connection_forgets_what_was_doubted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
