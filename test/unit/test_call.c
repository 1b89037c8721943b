/* Calls of the inbox's functions: the hashes that a claim sends, and the counts of a row that was edited by hand. */

#include "cmocka_all.h"
#include "inbox/call.h"
#include "inbox/history_hash.h"
#include "onceward/base/buf.h"

#include <libpq-fe.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

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

/* The same bytes as in test_history.py. Entries outlive the program, so the hash must never change. */
static void the_hash_of_an_id(void **state)
{
    static const uint8_t expected[] = {0x37, 0xbf, 0x7f, 0x76, 0x97, 0xde, 0xe6, 0x27,
                                       0xc0, 0x20, 0x74, 0xc8, 0xb1, 0x39, 0xb6, 0x49};
    static const char longest[256], longer[2000];
    uint8_t hash[HISTORY_HASH_BYTES];
    char consumer[256];

    assert_true(history_hash("orders", SLICE("m\u20AC1"), hash));
    assert_memory_equal(hash, expected, sizeof(expected));
    memset(consumer, 'c', sizeof(consumer) - 1);
    consumer[sizeof(consumer) - 1] = 0;
    assert_true(history_hash(consumer, (struct slice){longest, 255}, hash));
    assert_false(history_hash(consumer, (struct slice){longer, sizeof(longer)}, hash));
}

enum { CLAIM_HASHES = 18 }; /* place among the parameters */

/* Claims of two items of queue 0 and one of queue 1, in two pieces. */
static void encode_claims(struct call_data *d, bool compacts)
{
    struct inbox_queue queues[] = {{.consumer = "a"}, {.consumer = "orders", .compacts = compacts}};
    struct inbox_item items[] = {{.message_id = SLICE("1")},
                                 {.message_id = SLICE("2")},
                                 {.message_id = SLICE("m\u20AC1"), .queue = 1}};
    const struct inbox_item *sorted[] = {&items[0], &items[1], &items[2]};

    call_encode(INBOX_CLAIM, d, queues, sorted, 3);
}

static void hashes_are_sent_for_queues_that_compact(void **state)
{
    static const char last[] =
        "\0\0\0\1\0\0\0\1\0\0\13\206\0\0\0\2\0\0\0\1\377\377\377\377\0\0\0\20\x37\xbf\x7f";
    struct call_scalars scalars = {0};
    struct call_params params;
    struct call_data d = {0};

    encode_claims(&d, true);
    call_params(INBOX_CLAIM, &scalars, &d, 1, &params);
    call_skip(INBOX_CLAIM, &d, 1);
    call_params(INBOX_CLAIM, &scalars, &d, 2, &params);
    assert_int_equal(params.n, CLAIM_HASHES + 1);
    assert_int_equal(params.lengths[CLAIM_HASHES], 20 + 4 + 4 + HISTORY_HASH_BYTES);
    assert_memory_equal(params.values[CLAIM_HASHES], last, sizeof(last) - 1);
    call_data_deinit(&d, 0);
}

static void nothing_is_sent_for_queues_that_do_not(void **state)
{
    struct call_scalars scalars = {0};
    struct call_params params;
    struct call_data d = {0};

    encode_claims(&d, false);
    for (size_t n = 3; n; n--) {
        call_params(INBOX_CLAIM, &scalars, &d, n, &params);
        assert_null(params.values[CLAIM_HASHES]);
        assert_int_equal(params.lengths[CLAIM_HASHES], 0);
        assert_non_null(params.values[CLAIM_HASHES - 3]); /* the deaths */
        call_skip(INBOX_CLAIM, &d, 1);
    }
    call_data_deinit(&d, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counts_of_a_row),
        cmocka_unit_test(counts_that_are_too_large_to_be_added),
        cmocka_unit_test(counts_below_zero),
        cmocka_unit_test(the_hash_of_an_id),
        cmocka_unit_test(hashes_are_sent_for_queues_that_compact),
        cmocka_unit_test(nothing_is_sent_for_queues_that_do_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
