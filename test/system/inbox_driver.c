/* Drives the inbox adapter against a real PostgreSQL: batches, faults, lost connections.
 *
 * ONCEWARD_TEST_PG names a server as a connection string of a superuser (unset: skipped). Each test gets a
 * database of its own, copied from one that was migrated. ONCEWARD_TEST_POOLER, when set, names a PgBouncer
 * in front of it that passes every database on. */
#include "inbox_bed.h"

#include "onceward/base/clock.h"
#include "onceward/base/job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void count_is(const struct answers *a, enum row_answer answer, size_t n)
{
    size_t found = 0;

    for (size_t k = 0; k < a->n; k++)
        found += a->rows[k].row.answer == answer;
    if (found == n)
        return;
    for (size_t k = 0; k < a->n; k++)
        if (a->rows[k].row.answer != answer)
            print_error("ref %d: %s %s %s\n", (int)a->rows[k].ref, row_answer_name(a->rows[k].row.answer),
                        a->rows[k].row.sqlstate, a->details[k]);
    print_error("%zu of %zu are %s, expected %zu\n", found, a->n, row_answer_name(answer), n);
    fail();
}

static void claim_all(struct bed *b, size_t n)
{
    items_make(b, n);
    bed_submit(b, INBOX_CLAIM);
    count_is(bed_collect(b, n), ROW_CLAIMED, n);
}

/* --- without faults --- */

static void test_claims_and_settles(void **state)
{
    struct bed *b = *state;
    const struct answers *a;

    bed_connect(b);
    items_make(b, 256);
    bed_submit(b, INBOX_CLAIM);
    assert_false(inbox_is_free(b->inbox, INBOX_CLAIM));
    assert_true(inbox_is_free(b->inbox, INBOX_SETTLE));
    a = bed_collect(b, 256);
    count_is(a, ROW_CLAIMED, 256);
    assert_true(inbox_is_free(b->inbox, INBOX_CLAIM));
    for (size_t k = 0; k < a->n; k++)
        assert_int_equal(a->rows[k].row.attempt, 1);
    /* The refs are not mixed up: each row has the token of its own item. */
    for (size_t k = 0; k < 256; k += 17)
        assert_string_equal(
            bed_text(b, "SELECT replace(token::text, '-', '') FROM onceward.inbox WHERE message_id = '%s'",
                     b->ids[k]),
            token_hex(&b->items[k]));

    bed_submit(b, INBOX_LOOK);
    a = bed_collect(b, 256);
    count_is(a, ROW_CLAIMED, 256);
    assert_int_in_range(a->rows[0].row.wait_ms, 20000, 30000);

    b->items[3].token[0] ^= 1; /* another token */
    for (size_t k = 0; k < 256; k++) {
        b->items[k].http_status = 200;
        b->items[k].result = slice_of(k == 5 ? "not \xFF text" : "done");
    }
    bed_submit(b, INBOX_SETTLE);
    a = bed_collect(b, 256);
    count_is(a, ROW_COMPLETED, 255);
    assert_int_equal(bed_row(b, 3)->row.answer, ROW_LOST);
    assert_string_equal(
        bed_text(b, "SELECT count(*) FROM onceward.inbox WHERE status = 'completed' AND http_status = 200"),
        "255");
    assert_string_equal(bed_text(b, "SELECT count(*) FROM onceward.inbox WHERE result = 'done'"), "254");

    bed_submit(b, INBOX_CLAIM);
    bed_collect(b, 256);
    assert_int_equal(bed_row(b, 0)->row.answer, ROW_COMPLETED);
    assert_int_equal(bed_row(b, 3)->row.answer, ROW_HELD);
    assert_string_equal(bed_detail(b, 3), "driver/1");
}

static void test_one_and_many(void **state)
{
    static const size_t sizes[] = {1, 2, 255, 1024, 1};
    struct bed *b = *state;

    bed_connect(b);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        bed_sql(b, "TRUNCATE onceward.inbox");
        claim_all(b, sizes[k]);
    }
}

static void test_fails_and_releases(void **state)
{
    struct bed *b = *state;
    char error[4000];

    bed_connect(b);
    claim_all(b, 4);
    for (size_t k = 0; k < sizeof(error); k += 2)
        memcpy(error + k, "\xC3\xA4", 2);
    error[1] = 0;
    for (size_t k = 0; k < 4; k++) {
        b->items[k].error = (struct slice){error, sizeof(error)};
        b->items[k].delay_ms = 60000;
        b->items[k].http_status = 500;
    }
    b->items[1].only_expired = true;
    bed_submit(b, INBOX_FAIL);
    bed_collect(b, 4);
    assert_int_equal(bed_row(b, 0)->row.answer, ROW_FAILED);
    assert_int_equal(bed_row(b, 1)->row.answer, ROW_EXTENDED);
    assert_int_in_range(bed_row(b, 1)->row.wait_ms, 20000, 30000);
    /* U+FFFD for the half character, no NUL, at most 1,024 bytes, no character cut */
    assert_string_equal(
        bed_text(
            b,
            "SELECT octet_length(last_error) || ' ' || (last_error LIKE U&'\\FFFDä%%') FROM onceward.inbox "
            "WHERE message_id = '%s'",
            b->ids[0]),
        "1023 true");
    assert_string_equal(
        bed_text(b, "SELECT http_status FROM onceward.inbox WHERE message_id = '%s'", b->ids[0]), "500");

    b->items[1].delay_ms = 0;
    bed_submit(b, INBOX_RELEASE);
    bed_collect(b, 4);
    assert_int_equal(bed_row(b, 0)->row.answer, ROW_LOST);
    assert_int_equal(bed_row(b, 1)->row.answer, ROW_RELEASED);
    assert_string_equal(bed_text(b, "SELECT attempt FROM onceward.inbox WHERE message_id = '%s'", b->ids[1]),
                        "0");

    items_make(b, 4);
    bed_submit(b, INBOX_CLAIM);
    bed_collect(b, 4);
    assert_int_equal(bed_row(b, 0)->row.answer, ROW_NOT_DUE);
    assert_int_in_range(bed_row(b, 0)->row.wait_ms, 50000, 60000);
    assert_int_equal(strlen(bed_detail(b, 0)), 1023);
    assert_int_equal(bed_row(b, 1)->row.answer, ROW_CLAIMED);
    assert_int_equal(bed_row(b, 1)->row.attempt, 1);
}

static void test_kinds_share_the_pipeline(void **state)
{
    struct bed *b = *state;
    struct inbox_figures figures;
    size_t n = 0;

    bed_connect(b);
    claim_all(b, 100);
    for (int round = 0; round < 20; round++) {
        static const enum inbox_op ops[] = {INBOX_LOOK, INBOX_CLAIM, INBOX_RELEASE, INBOX_FAIL, INBOX_SETTLE};

        for (size_t k = 0; k < 5; k++)
            bed_submit(b, ops[k]);
        inbox_ask_figures(b->inbox);
        inbox_ask_figures(b->inbox);
        n = bed_collect(b, 500)->n;
    }
    assert_int_equal(n, 500);
    assert_int_equal(bed_row(b, 7)->op, INBOX_SETTLE);
    for (int64_t end = clock_ms() + 5000; !inbox_figures(b->inbox, &figures);) {
        assert_true(clock_ms() < end);
        assert_int_equal(bed_wait(b), 0);
    }
    assert_int_equal(*figures.dead_letters, 0);
    assert_false(inbox_figures(b->inbox, &figures));
}

/* Each item buries its own message; bodies of 5 MiB, so that a call takes one or two. */
static void test_letters(void **state)
{
    struct bed *b = *state;
    size_t size = 5 << 20;
    char *body = malloc(size);
    struct inbox_letter letters[6];

    bed_connect(b);
    claim_all(b, 6);
    for (size_t k = 0; k < size; k++)
        body[k] = (char)(k * 31 >> 3);
    for (size_t k = 0; k < 6; k++) {
        letters[k] = (struct inbox_letter){.reason = "permanent",
                                           .attempts = 1,
                                           .body = {body, k % 2 ? size : k},
                                           .routing_key = SLICE("q"),
                                           .headers_json = SLICE("{\"a\":\"\\u0000\"}"),
                                           .content_type = SLICE("text/\xFFplain")};
        b->items[k].letter = &letters[k];
        b->items[k].error = SLICE("no");
    }
    letters[4].rowless = letters[5].rowless = true;
    b->items[4].message_id = (struct slice){0};
    b->items[5].message_id = SLICE("\xFF\0raw");
    bed_submit(b, INBOX_DEAD_LETTER);
    count_is(bed_collect(b, 6), ROW_DEAD_LETTERED, 6);
    assert_true(
        inbox_is_swollen(b->inbox)); /* large letters go one by one, so not before the first is in flight */
    for (size_t k = 0; k < 6; k++) {
        char expected[24];

        snprintf(expected, sizeof(expected), "%zu", letters[b->answers.rows[k].ref].body.len);
        assert_string_equal(bed_text(b, "SELECT octet_length(body) FROM onceward.dead_letter WHERE id = %s",
                                     b->answers.ids[k]),
                            expected);
    }
    assert_string_equal(
        bed_text(b,
                 "SELECT count(DISTINCT md5(body)) FROM onceward.dead_letter WHERE octet_length(body) > 100"),
        "1");
    assert_string_equal(
        bed_text(b, "SELECT encode(raw_id, 'hex') FROM onceward.dead_letter WHERE raw_id IS NOT NULL"),
        "ff00726177");
    assert_string_equal(bed_text(b, "SELECT count(*) FROM onceward.dead_letter WHERE message_id IS NULL"),
                        "2");
    assert_string_equal(bed_text(b, "SELECT DISTINCT content_type FROM onceward.dead_letter"),
                        "text/\xEF\xBF\xBDplain");

    letters[4].looked_for = letters[5].looked_for = true;
    bed_submit(b, INBOX_DEAD_LETTER);
    count_is(bed_collect(b, 6), ROW_DEAD_LETTERED, 6);
    assert_string_equal(bed_text(b, "SELECT count(*) FROM onceward.dead_letter"), "6");
    free(body);
}

/* --- faulty items --- */

static void test_bad_data_is_found(void **state)
{
    struct bed *b = *state;
    char longest[4000];
    uint64_t x = 88172645463325252ULL;

    bed_connect(b);
    for (size_t k = 0; k < sizeof(longest); k++) { /* must be incompressible: the index accepts 2,704 bytes */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        longest[k] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"[x >> 58];
    }
    for (int round = 0; round < 2; round++) {
        bed_sql(b, "TRUNCATE onceward.inbox");
        items_make(b, 500);
        b->items[0].message_id = SLICE("\xFF");
        b->items[17].message_id = SLICE("id\0nul");
        b->items[18].message_id = SLICE("half\xC3");
        b->items[499].message_id = (struct slice){longest, sizeof(longest)};
        bed_submit(b, INBOX_CLAIM);
        const struct answers *a = bed_collect(b, 500);
        count_is(a, ROW_CLAIMED, 496);
        count_is(a, ROW_INVALID, 4);
        assert_string_equal(bed_row(b, 17)->row.sqlstate, "22021");
        assert_non_null(strstr(bed_detail(b, 17), "invalid byte sequence"));
        assert_string_equal(bed_row(b, 499)->row.sqlstate, "54000");
        assert_string_equal(bed_text(b, "SELECT count(*) FROM onceward.inbox"), "496");
    }
    items_make(b, 3); /* only faulty items */
    for (size_t k = 0; k < 3; k++)
        b->items[k].message_id = (struct slice){"\xFF\xFE\xFD", k + 1};
    bed_submit(b, INBOX_CLAIM);
    count_is(bed_collect(b, 3), ROW_INVALID, 3);
}

/* Rows do not count before the commit. */
static void test_errors_at_commit(void **state)
{
    struct bed *b = *state;

    bed_sql(b, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.message_id = "
               "''id-0005'' THEN "
               "RAISE invalid_parameter_value USING MESSAGE = ''refused''; END IF; RETURN NULL; END'");
    bed_sql(b, "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON onceward.inbox DEFERRABLE INITIALLY DEFERRED "
               "FOR EACH ROW EXECUTE FUNCTION refuse()");
    bed_connect(b);
    for (int round = 0; round < 3; round++) {
        bed_sql(b, "TRUNCATE onceward.inbox");
        items_make(b, 8);
        bed_submit(b, INBOX_CLAIM);
        bed_submit(b, INBOX_LOOK);
        const struct answers *a = bed_collect(b, 16);
        count_is(a, ROW_INVALID, 1);
        assert_int_equal(bed_row_of(b, 5, INBOX_CLAIM)->row.answer, ROW_INVALID);
        assert_string_equal(bed_row_of(b, 5, INBOX_CLAIM)->row.sqlstate, "22023");
        assert_string_equal(bed_text(b, "SELECT count(*) FROM onceward.inbox"), "7");
    }
}

/* The function's parameters and result, with that type of text. */
static const char *look_head(const char *text)
{
    static char head[900];

    snprintf(head, sizeof(head),
             "onceward.sidecar_look_many(p_instance text, p_number bigint, p_own boolean, p_gone text[], "
             "p_grace_ms bigint, p_consumers text[], p_transactions boolean[], p_windows interval[], "
             "p_max_windows interval[], p_queues integer[], p_ids text[], p_tokens uuid[], p_fingerprints "
             "bytea[]) RETURNS TABLE (ord integer, answer %s, attempt integer, takeovers integer, crashes "
             "integer, unproven_ms bigint, unproven_step integer, wait_ms bigint, namesake boolean, detail "
             "%s)",
             text, text);
    return head;
}

/* body returns rows of ord, answer, wait_ms and detail. */
static void look_becomes(struct bed *b, const char *body)
{
    bed_sql(b,
            "CREATE OR REPLACE FUNCTION onceward.driver_look(p_ids text[]) RETURNS TABLE (ord integer, "
            "answer text, wait_ms bigint, detail text) LANGUAGE plpgsql AS $f$ BEGIN %s END $f$",
            body);
    bed_sql(b,
            "CREATE OR REPLACE FUNCTION %s LANGUAGE plpgsql AS $f$ BEGIN RETURN QUERY SELECT l.ord, "
            "l.answer, 0, 0, 0, NULL::bigint, 0, l.wait_ms, false, l.detail FROM onceward.driver_look(p_ids) "
            "l; END $f$",
            look_head("text"));
}

static void test_errors_by_kind(void **state)
{
    static const struct {
        const char *code;
        enum row_answer answer; /* ROW_UNKNOWN: lost */
    } cases[] = {
        {"40001", ROW_RETRY},   {"40P01", ROW_RETRY},   {"55P03", ROW_RETRY},   {"57014", ROW_RETRY},
        {"42501", ROW_RETRY},   {"53100", ROW_RETRY},   {"58030", ROW_RETRY},   {"XX000", ROW_RETRY},
        {"22P03", ROW_RETRY},   {"99999", ROW_RETRY},   {"23502", ROW_RETRY},   {"23505", ROW_RETRY},
        {"23514", ROW_RETRY},   {"22021", ROW_INVALID}, {"21000", ROW_INVALID}, {"54000", ROW_INVALID},
        {"25006", ROW_UNKNOWN}, {"57P01", ROW_UNKNOWN}, {"57P05", ROW_UNKNOWN}, {"08006", ROW_UNKNOWN},
        {"53300", ROW_UNKNOWN},
    };
    struct bed *b = *state;
    struct fault f;
    char body[200];

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        if (!b->inbox)
            bed_connect(b);
        snprintf(body, sizeof(body), "RAISE EXCEPTION USING ERRCODE = '%s', MESSAGE = 'the case';",
                 cases[k].code);
        look_becomes(b, body);
        items_make(b, 5);
        bed_submit(b, INBOX_LOOK);
        const struct answers *a = bed_collect(b, 5);
        count_is(a, cases[k].answer, 5);
        assert_non_null(strstr(bed_detail(b, 4), "the case"));
        if (cases[k].answer != ROW_UNKNOWN) {
            assert_string_equal(a->rows[0].row.sqlstate, cases[k].code);
            assert_true(inbox_is_free(b->inbox, INBOX_LOOK));
            continue;
        }
        assert_int_equal(inbox_next(b->inbox, &(struct inbox_row){0}, &f), -1);
        assert_string_equal(f.code, cases[k].code);
        bed_disconnect(b);
    }
}

/* The ref of the item at that place of the sorted batch. */
static uint64_t place(const struct bed *b, size_t at)
{
    char id[24];

    snprintf(id, sizeof(id), "id-%04zu", at);
    for (size_t k = 0; k < b->n; k++)
        if (strcmp(b->ids[k], id) == 0)
            return k;
    fail();
    return 0;
}

static void test_odd_answers(void **state)
{
    struct bed *b = *state;

    look_becomes(b,
                 "RETURN QUERY VALUES (3, 'completed', 7::bigint, NULL), (1, 'dancing', NULL, NULL), (3, "
                 "'dead', NULL, 'twice'), "
                 "(-7, 'dead', NULL, NULL), (0, 'dead', NULL, NULL), (99, 'dead', NULL, NULL), (NULL, "
                 "'dead', NULL, NULL), "
                 "(4, NULL, NULL, NULL), (5, 'unknown', NULL, NULL), (2, 'not_due', 12345678901, 'Grüße');");
    bed_connect(b);
    items_make(b, 6);
    bed_submit(b, INBOX_LOOK);
    bed_collect(b, 6);
    const uint64_t *refs =
        (uint64_t[]){place(b, 0), place(b, 1), place(b, 2), place(b, 3), place(b, 4), place(b, 5)};
    assert_int_equal(bed_row(b, refs[2])->row.answer, ROW_COMPLETED);
    assert_int_equal(bed_row(b, refs[2])->row.wait_ms, 7);
    assert_int_equal(bed_row(b, refs[1])->row.answer, ROW_NOT_DUE);
    assert_true(bed_row(b, refs[1])->row.wait_ms == 12345678901);
    assert_string_equal(bed_detail(b, refs[1]), "Grüße");
    for (size_t k = 0; k < 6; k++)
        if (k != 1 && k != 2)
            assert_int_equal(bed_row(b, refs[k])->row.answer, ROW_RETRY);
    assert_non_null(strstr(bed_detail(b, refs[0]), "\"dancing\""));
    assert_string_equal(bed_detail(b, refs[5]), "the database did not answer for this message");
}

/* A single row answers all items that the others leave out, at any position. */
static void test_answer_for_the_rest(void **state)
{
    struct bed *b = *state;

    look_becomes(b, "RETURN QUERY VALUES (-3, 'dead', NULL::bigint, 'worn'), (2, 'not_due', 7, NULL);");
    bed_connect(b);
    items_make(b, 4);
    bed_submit(b, INBOX_LOOK);
    bed_collect(b, 4);
    for (size_t k = 0; k < 4; k++) {
        assert_int_equal(bed_row(b, place(b, k))->row.answer, k == 1 ? ROW_NOT_DUE : ROW_DEAD);
        assert_string_equal(bed_detail(b, place(b, k)), k == 1 ? "" : "worn");
    }
    /* A count that does not match the rest answers no item. */
    for (int n = 2; n <= 4; n += 2) {
        char body[100];

        snprintf(body, sizeof(body),
                 "RETURN QUERY VALUES (%d, 'completed', 0::bigint, ''), (2, 'due', 0, '');", -n);
        look_becomes(b, body);
        bed_submit(b, INBOX_LOOK);
        bed_collect(b, 4);
        for (size_t k = 0; k < 4; k++)
            assert_int_equal(bed_row(b, place(b, k))->row.answer, k == 1 ? ROW_DUE : ROW_RETRY);
    }
}

/* Another session has inserted the id without a commit: the claim waits for it, up to its lock_timeout. */
static void insert_uncommitted(struct bed *b, const char *id)
{
    bed_sql(b, "BEGIN");
    bed_sql(b,
            "INSERT INTO onceward.inbox (consumer, message_id, status, attempt, token, fingerprint, "
            "received_at, alive_since, "
            "token_expires_at, max_expires_at, claimed_by) VALUES ('driver', '%s', 'processing', 1, "
            "gen_random_uuid(), '', now(), now(), "
            "now(), now(), 'x')",
            id);
}

static void test_lock_timeout(void **state)
{
    struct bed *b = *state;

    bed_connect(b);
    items_make(b, 50);
    insert_uncommitted(b, b->ids[25]);
    bed_submit(b, INBOX_CLAIM);
    count_is(bed_collect(b, 50), ROW_RETRY, 50);
    assert_string_equal(bed_row(b, 0)->row.sqlstate, "55P03");
    bed_sql(b, "ROLLBACK");
    bed_submit(b, INBOX_CLAIM);
    count_is(bed_collect(b, 50), ROW_CLAIMED, 50);
}

static void test_statement_timeout(void **state)
{
    struct bed *b = *state;

    look_becomes(b, "PERFORM pg_sleep(60);");
    bed_connect(b);
    items_make(b, 2);
    bed_submit(b, INBOX_LOOK);
    count_is(bed_collect(b, 2), ROW_RETRY, 2);
    assert_string_equal(bed_row(b, 0)->row.sqlstate, "57014");
}

/* --- lost prepared statements --- */

static void test_prepared_is_given_up(void **state)
{
    struct bed *b = *state;

    look_becomes(b, "DEALLOCATE ALL; RETURN QUERY SELECT g, 'due', NULL::bigint, NULL::text FROM "
                    "generate_series(1, cardinality(p_ids)) g;");
    bed_connect(b);
    claim_all(b, 10);
    assert_int_not_equal(atoi(bed_text(b, "SELECT 1 + count(*) FROM pg_prepared_statements")), 0);
    bed_submit(b, INBOX_LOOK);
    count_is(bed_collect(b, 10), ROW_DUE, 10);
    assert_false(inbox_gave_up_prepared(b->inbox));
    bed_sql(b, "TRUNCATE onceward.inbox");
    claim_all(b, 10);
    assert_true(inbox_gave_up_prepared(b->inbox));
    bed_submit(b, INBOX_SETTLE);
    count_is(bed_collect(b, 10), ROW_COMPLETED, 10);
}

static void test_prepared_plans_that_changed(void **state)
{
    struct bed *b = *state;

    bed_connect(b);
    claim_all(b, 10);
    bed_submit(b, INBOX_LOOK);
    count_is(bed_collect(b, 10), ROW_CLAIMED, 10);
    bed_sql(b, "DROP FUNCTION onceward.sidecar_look_many");
    bed_sql(b,
            "CREATE FUNCTION %s LANGUAGE sql AS $f$ SELECT g, 'due'::varchar, 0, 0, 0, NULL::bigint, 0, "
            "1::bigint, false, 'changed'::varchar FROM generate_series(1, cardinality(p_ids)) g $f$",
            look_head("varchar"));
    bed_submit(b, INBOX_LOOK);
    count_is(bed_collect(b, 10), ROW_DUE, 10);
    assert_string_equal(bed_detail(b, 0), "changed");
    assert_true(inbox_gave_up_prepared(b->inbox));
}

static void test_prepared_is_insisted_on(void **state)
{
    struct bed *b = *state;

    b->database.prepared = PREPARED_ON;
    look_becomes(b, "DEALLOCATE ALL; RETURN QUERY SELECT g, 'due', NULL::bigint, NULL::text FROM "
                    "generate_series(1, cardinality(p_ids)) g;");
    bed_connect(b);
    claim_all(b, 10);
    bed_submit(b, INBOX_LOOK);
    bed_collect(b, 10);
    bed_submit(b, INBOX_CLAIM);
    count_is(bed_collect(b, 10), ROW_UNKNOWN, 10);
    bed_disconnect(b);
    bed_connect(b);
    bed_submit(b, INBOX_CLAIM);
    count_is(bed_collect(b, 10), ROW_CLAIMED, 10);
}

static void test_prepared_off(void **state)
{
    struct bed *b = *state;

    b->database.prepared = PREPARED_OFF;
    look_becomes(b, "RETURN QUERY SELECT g, 'due', (SELECT count(*) FROM pg_prepared_statements), NULL::text "
                    "FROM generate_series(1, cardinality(p_ids)) g;");
    bed_connect(b);
    claim_all(b, 10);
    bed_submit(b, INBOX_LOOK);
    count_is(bed_collect(b, 10), ROW_DUE, 10);
    assert_int_equal(bed_row(b, 0)->row.wait_ms, 0);
}

/* --- lost connections --- */

static void lost_is(struct bed *b, const char *words)
{
    struct inbox_row row;
    struct fault f = {0};

    assert_int_equal(inbox_next(b->inbox, &row, &f), -1);
    if (!strstr(f.text, words)) {
        print_error("\"%s\" is not in: %s\n", words, f.text);
        fail();
    }
    for (int op = 0; op < N_INBOX_OPS; op++)
        assert_false(inbox_is_free(b->inbox, (enum inbox_op)op));
}

static void test_killed_in_a_batch(void **state)
{
    struct bed *b = *state;
    struct fault f = {0};

    bed_connect(b);
    items_make(b, 256);
    insert_uncommitted(b, b->ids[200]);
    bed_submit(b, INBOX_CLAIM);
    bed_submit(b, INBOX_LOOK);
    bed_submit(b, INBOX_FAIL);
    inbox_ask_figures(b->inbox);
    bed_until(b, "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND "
                 "application_name = 'onceward' "
                 "AND wait_event_type = 'Lock'");
    bed_sql(b, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
               "AND application_name = 'onceward'");
    count_is(bed_collect(b, 768), ROW_UNKNOWN, 768);
    for (size_t k = 0; k < 256; k++) {
        bed_row_of(b, k, INBOX_CLAIM);
        bed_row_of(b, k, INBOX_LOOK);
        bed_row_of(b, k, INBOX_FAIL);
    }
    lost_is(b, "terminating connection");
    assert_string_equal(b->fault.code, "57P01");
    /* Items submitted after the loss are answered too. */
    items_make(b, 3);
    b->answers.n = 0;
    assert_int_equal(inbox_submit(b->inbox, INBOX_RELEASE, b->items, 3, &f), -1);
    assert_true(fault_is_set(&f));
    count_is(bed_collect(b, 3), ROW_UNKNOWN, 3);
    lost_is(b, "terminating connection");
    bed_sql(b, "ROLLBACK");

    bed_disconnect(b);
    bed_connect(b);
    claim_all(b, 256);
}

static void test_killed_while_idle(void **state)
{
    struct bed *b = *state;

    bed_connect(b);
    claim_all(b, 1);
    bed_sql(b, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
               "AND application_name = 'onceward'");
    for (int64_t end = clock_ms() + 5000; bed_wait(b) != -1;)
        assert_true(clock_ms() < end);
    lost_is(b, "terminating connection");
}

/* A send finds the loss and closes the socket, so no event will come from it. */
static void test_lost_when_it_sends(void **state)
{
    struct bed *b = *state;
    struct fault f = {0};

    bed_connect(b);
    claim_all(b, 1);
    assert_false(inbox_is_lost(b->inbox));
    assert_int_equal(shutdown(inbox_fd(b->inbox), SHUT_RDWR), 0);
    bed_submit(b, INBOX_LOOK);
    /* libpq reports a failed write at the next write. */
    assert_int_equal(inbox_submit(b->inbox, INBOX_FAIL, b->items, 1, &f), -1);
    assert_true(inbox_is_lost(b->inbox));
    assert_int_equal(inbox_waiting_ms(b->inbox), 0);
    count_is(bed_collect(b, 2), ROW_UNKNOWN, 2);
}

/* A split batch whose connection is lost half-way: each item has one answer, known or unknown. */
static void test_killed_between_ranges(void **state)
{
    struct bed *b = *state;

    bed_connect(b);
    items_make(b, 64);
    /* Behind the faulty one: the first half is answered, the second waits. */
    insert_uncommitted(b, b->ids[place(b, 60)]);
    b->items[place(b, 50)].message_id = SLICE("id-0050\xFF");
    bed_submit(b, INBOX_CLAIM);
    for (int64_t end = clock_ms() + 5000; b->answers.n < 32 && clock_ms() < end;)
        assert_int_equal(bed_wait(b), 0);
    bed_sql(b, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
               "AND application_name = 'onceward'");
    const struct answers *a = bed_collect(b, 64);
    size_t n_claimed = 0, n_unknown = 0;
    for (size_t k = 0; k < a->n; k++) {
        n_claimed += a->rows[k].row.answer == ROW_CLAIMED;
        n_unknown += a->rows[k].row.answer == ROW_UNKNOWN;
    }
    assert_true(n_claimed >= 32 && n_unknown >= 1);
    lost_is(b, "terminating connection");
}

/* The server's process is stopped: nothing blocks, and after a while the connection counts as lost. */
static void test_stopped_server(void **state)
{
    struct bed *b = *state;
    size_t size = 24 << 20;
    char *body = calloc(1, size);
    struct inbox_letter letter = {.reason = "permanent", .body = {body, size}, .rowless = true};

    b->database.statement_timeout_ms = 4000; /* a large letter takes long on a busy machine */
    bed_connect(b);
    claim_all(b, 1);
    pid_t pid = (pid_t)atoi(bed_text(b, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                                        "AND application_name = 'onceward'"));
    if (kill(pid, SIGSTOP)) {
        free(body);
        assert_true(errno == EPERM || errno == ESRCH); /* the process is not on this machine */
        skip();
    }
    int64_t start_ms = clock_ms();
    b->items[0].letter = &letter;
    bed_submit(b, INBOX_DEAD_LETTER);
    assert_true(inbox_wants_write(b->inbox));
    bed_submit(b, INBOX_LOOK);
    assert_true(clock_ms() - start_ms < 3000);
    kill(pid, SIGCONT);
    bed_collect(b, 2);
    assert_int_equal(bed_row_of(b, 0, INBOX_DEAD_LETTER)->row.answer, ROW_DEAD_LETTERED);
    assert_false(inbox_wants_write(b->inbox));
    free(body);

    assert_int_equal(kill(pid, SIGSTOP), 0);
    start_ms = clock_ms();
    bed_submit(b, INBOX_LOOK);
    count_is(bed_collect(b, 1), ROW_UNKNOWN, 1);
    assert_int_in_range(clock_ms() - start_ms, 8500, 14000);
    lost_is(b, "no answer in time");
    bed_disconnect(b);
    kill(pid, SIGCONT);
}

/* --- connecting --- */

static void connect_is(struct bed *b, int code, const char *words)
{
    assert_int_equal(bed_try(b), code);
    if (strstr(b->fault.text, words))
        return;
    print_error("\"%s\" is not in: %s\n", words, b->fault.text);
    fail();
}

static void test_connecting(void **state)
{
    struct bed *b = *state;
    char url[1200], *good = b->database.url.value;

    b->database.url.value = url;
    snprintf(url, sizeof(url), "host=127.0.0.1 port=1 connect_timeout=2 dbname=x user=x");
    connect_is(b, -1, "cannot connect");
    snprintf(url, sizeof(url), "postgres//x:secret-word@h/d");
    connect_is(b, -1, "not a PostgreSQL URI");
    assert_null(strstr(b->fault.text, "secret"));
    snprintf(url, sizeof(url), "%s options='-c work_mem=1MB'", good);
    assert_int_equal(bed_try(b), INBOX_CONNECTED);
    bed_disconnect(b);
    b->database.url.value = good;

    bed_sql(b, "UPDATE onceward.schema_version SET version = version + 5, oldest_compatible = version + 5");
    connect_is(b, INBOX_SCHEMA, "update onceward");
    bed_sql(b, "UPDATE onceward.schema_version SET oldest_compatible = 1");
    assert_int_equal(bed_try(b), INBOX_CONNECTED);
    bed_disconnect(b);
    bed_sql(b, "UPDATE onceward.schema_version SET version = version - 100, oldest_compatible = -200");
    connect_is(b, -1, "onceward migrate");
    bed_sql(b, "DROP SCHEMA onceward CASCADE");
    connect_is(b, -1, "onceward migrate");
}

/* Of several hosts one refuses, one accepts and stays silent, one works: it is found in bounded time. */
static void test_several_hosts(void **state)
{
    struct bed *b = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int silent = socket(AF_INET, SOCK_STREAM, 0);
    char url[1200], *good = b->database.url.value;

    assert_int_equal(bind(silent, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(silent, 5), 0);
    assert_int_equal(getsockname(silent, (struct sockaddr *)&address, &len), 0);
    snprintf(url, sizeof(url), "host=127.0.0.1,127.0.0.1,%s port=1,%d,%s user=%s dbname=%s", PQhost(b->sql),
             ntohs(address.sin_port), PQport(b->sql), PQuser(b->sql), b->name);
    b->database.url.value = url;
    int64_t start_ms = clock_ms();
    bed_connect(b);
    assert_int_in_range(clock_ms() - start_ms, 1000, 6000);
    claim_all(b, 3);
    b->database.url.value = good;
    close(silent);
}

static void refused_is(struct bed *b, const char *words)
{
    bed_connect(b);
    assert_int_equal(inbox_registration(b->inbox, 0, &b->fault), INBOX_REFUSED);
    assert_non_null(strstr(b->fault.text, words));
    bed_disconnect(b);
}

static void test_consumers(void **state)
{
    struct bed *b = *state;

    bed_connect(b);
    assert_int_equal(inbox_registration(b->inbox, 0, NULL), INBOX_REGISTERED);
    bed_disconnect(b);
    b->queues[0].queue = "other";
    refused_is(b, "belongs to queue \"driver\"");
    b->queues[0].takes_over = "driver";
    assert_int_equal(bed_try(b), INBOX_CONNECTED);
    bed_disconnect(b);
    b->queues[0].takes_over = NULL;
    b->queues[0].queue = "driver";
    refused_is(b, "belongs to queue \"other\"");
}

/* A session has our settings whatever the database's defaults are; a read-only one is refused. */
static void test_sessions(void **state)
{
    struct bed *b = *state;

    look_becomes(b, "RETURN QUERY VALUES (1, 'due', NULL::bigint, "
                    "pg_catalog.current_setting('transaction_isolation') || ' ' || "
                    "pg_catalog.current_setting('statement_timeout') || ' ' || "
                    "pg_catalog.current_setting('client_encoding'));");
    bed_sql(b, "ALTER DATABASE %s SET default_transaction_isolation = 'serializable'", b->name);
    bed_sql(b, "ALTER DATABASE %s SET client_encoding = 'LATIN1'", b->name);
    bed_connect(b);
    items_make(b, 1);
    bed_submit(b, INBOX_LOOK);
    bed_collect(b, 1);
    assert_string_equal(bed_detail(b, 0), "read committed 3s UTF8");
    bed_disconnect(b);
    bed_sql(b, "ALTER DATABASE %s SET default_transaction_read_only = on", b->name);
    connect_is(b, -1, "read-only");
}

static void test_abandoned(void **state)
{
    struct bed *b = *state;

    for (int k = 0; k < 3; k++)
        job_abandon(bed_job(b));
    bed_connect(b); /* longer than they take */
    bed_until(b, "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND "
                 "application_name = 'onceward'");
}

/* --- behind a pooler --- */

static void test_pooler(void **state)
{
    struct bed *b = *state;
    char url[1200];
    const char *pooler = getenv("ONCEWARD_TEST_POOLER");

    if (!pooler)
        skip();
    snprintf(url, sizeof(url), "%s dbname=%s", pooler, b->name);
    free(b->database.url.value);
    b->database.url.value = strdup(url);
    bed_connect(b);
    for (int round = 0; round < 5; round++) {
        bed_sql(b, "TRUNCATE onceward.inbox");
        claim_all(b, 100);
        bed_submit(b, INBOX_SETTLE);
        count_is(bed_collect(b, 100), ROW_COMPLETED, 100);
        bed_sql(b, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                   "current_database() AND pid <> pg_backend_pid()");
        bed_until(b, "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()");
    }
    print_message("gave up prepared statements: %d\n", inbox_gave_up_prepared(b->inbox));
    bed_disconnect(b);
    bed_sql(b, "ALTER DATABASE %s SET default_transaction_isolation = 'repeatable read'", b->name);
    connect_is(b, INBOX_SCHEMA, "repeatable read");
}

/* --- memory --- */

static void test_memory(void **state)
{
    struct bed *b = *state;
    size_t before = 0;

    bed_connect(b);
    for (int round = 0; round < 400; round++) {
        items_make(b, round % 40 ? 1 : 256);
        bed_submit(b, INBOX_CLAIM);
        bed_submit(b, INBOX_SETTLE);
        inbox_ask_figures(b->inbox);
        bed_collect(b, b->n * 2);
        if (round == 100)
            before = mallinfo2().uordblks;
    }
    size_t after = mallinfo2().uordblks;
    if (after > before + 65536) { /* both are 0 with sanitizers */
        print_error("%zu bytes grew to %zu\n", before, after);
        fail();
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_claims_and_settles),
        TEST(test_one_and_many),
        TEST(test_fails_and_releases),
        TEST(test_kinds_share_the_pipeline),
        TEST(test_letters),
        TEST(test_bad_data_is_found),
        TEST(test_errors_at_commit),
        TEST(test_errors_by_kind),
        TEST(test_odd_answers),
        TEST(test_answer_for_the_rest),
        TEST(test_lock_timeout),
        TEST(test_statement_timeout),
        TEST(test_prepared_is_given_up),
        TEST(test_prepared_plans_that_changed),
        TEST(test_prepared_is_insisted_on),
        TEST(test_prepared_off),
        TEST(test_killed_in_a_batch),
        TEST(test_lost_when_it_sends),
        TEST(test_killed_while_idle),
        TEST(test_killed_between_ranges),
        TEST(test_stopped_server),
        TEST(test_connecting),
        TEST(test_several_hosts),
        TEST(test_consumers),
        TEST(test_sessions),
        TEST(test_abandoned),
        TEST(test_pooler),
        TEST(test_memory),
    };

    if (!getenv("ONCEWARD_TEST_PG")) {
        fputs("ONCEWARD_TEST_PG is not set: skipped\n", stderr);
        return 77;
    }
    if (argc > 1) /* a pattern of tests */
        cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests(tests, bed_group_setup, bed_group_teardown);

    return job_wait_all(20000) ? failed : 1;
}
