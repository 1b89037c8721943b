/* Answers of the inbox's functions, as they are read: the counts of a row that was edited by hand. */

#include "cmocka_all.h"
#include "inbox/call.h"
#include "onceward/base/buf.h"

#include <libpq-fe.h>
#include <limits.h>
#include <stdio.h>

enum { N_COLUMNS = 13, ATTEMPT = 2, TAKEOVERS = 3, CRASHES = 4, UNPROVEN_STEP = 6, BATCH_CAP = 7 };

static void set_int4(PGresult *result, int column, int value)
{
    char bytes[4];

    for (int i = 0; i < 4; i++)
        bytes[i] = (char)((unsigned)value >> (24 - 8 * i) & 255);
    assert_true(PQsetvalue(result, 0, column, bytes, sizeof(bytes)));
}

/* A claimed row with this value in each count. */
static struct row read_counts(int value)
{
    static const int counts[] = {ATTEMPT, TAKEOVERS, CRASHES, UNPROVEN_STEP, BATCH_CAP};
    PGresult *result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    PGresAttDesc columns[N_COLUMNS] = {0};
    struct inbox_row row = {0};
    struct buf why = {0};
    char claimed[] = "claimed";
    int ord;

    for (int i = 0; i < N_COLUMNS; i++)
        columns[i].name = claimed;
    assert_true(PQsetResultAttrs(result, N_COLUMNS, columns));
    set_int4(result, 0, 1);
    assert_true(PQsetvalue(result, 0, 1, claimed, (int)sizeof(claimed) - 1));
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        set_int4(result, counts[i], value);
    assert_true(call_row(INBOX_CLAIM, result, 0, &row, &ord, &why));
    assert_int_equal(ord, 1);
    buf_deinit(&why);
    PQclear(result);
    return row.row;
}

static void the_counts_of_a_row(void **state)
{
    struct row row = read_counts(7);

    assert_int_equal(row.answer, ROW_CLAIMED);
    assert_int_equal(row.attempt, 7);
    assert_int_equal(row.takeovers, 7);
    assert_int_equal(row.crashes, 7);
    assert_int_equal(row.unproven_step, 7);
    assert_int_equal(row.batch_cap, 7);
}

/* attempt + takeovers is the number of an attempt, and each failure adds one to a count. */
static void counts_that_are_too_large_to_be_added(void **state)
{
    struct row row = read_counts(INT_MAX);

    assert_true((int64_t)row.attempt + row.takeovers + 1 <= INT_MAX);
    assert_true(row.attempt > 0 && row.takeovers > 0);
    assert_true((int64_t)row.crashes + row.unproven_step + 1 <= INT_MAX);
    assert_true(row.batch_cap < INT_MAX);
}

static void counts_below_zero(void **state)
{
    struct row row = read_counts(INT_MIN);

    assert_int_equal(row.attempt, 0);
    assert_int_equal(row.takeovers, 0);
    assert_int_equal(row.crashes, 0);
    assert_int_equal(row.unproven_step, 0);
    assert_int_equal(row.batch_cap, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counts_of_a_row),
        cmocka_unit_test(counts_that_are_too_large_to_be_added),
        cmocka_unit_test(counts_below_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
