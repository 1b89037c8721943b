/* The meaning of every answer, and the time of the next try. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/core/outcome.h"
#include "onceward/core/row.h"

#include <stdlib.h>
#include <string.h>

static const int usual_permanent[] = {400, 410, 413, 415, 422};

static const struct outcome_rules response = {false, usual_permanent, COUNT(usual_permanent)};
static const struct outcome_rules transaction = {true, usual_permanent, COUNT(usual_permanent)};

static void assert_verdict(int status, enum verdict by_response, enum verdict by_transaction)
{
    assert_string_equal(verdict_name(outcome_of(ANSWER_STATUS, status, &response)),
                        verdict_name(by_response));
    assert_string_equal(verdict_name(outcome_of(ANSWER_STATUS, status, &transaction)),
                        verdict_name(by_transaction));
}

static void test_named_statuses(void **state)
{
    static const struct {
        int status;
        enum verdict response, transaction;
    } cases[] = {
        {200, VERDICT_COMPLETE, VERDICT_CHECK},
        {201, VERDICT_COMPLETE, VERDICT_CHECK},
        {202, VERDICT_COMPLETE, VERDICT_ACCEPTED},
        {203, VERDICT_COMPLETE, VERDICT_CHECK},
        {204, VERDICT_COMPLETE, VERDICT_CHECK},
        {299, VERDICT_COMPLETE, VERDICT_CHECK},
        {300, VERDICT_FAILED, VERDICT_FAILED},
        {301, VERDICT_FAILED, VERDICT_FAILED},
        {304, VERDICT_FAILED, VERDICT_FAILED},
        {307, VERDICT_FAILED, VERDICT_FAILED},
        {400, VERDICT_PERMANENT, VERDICT_PERMANENT},
        {401, VERDICT_FAILED, VERDICT_FAILED},
        {403, VERDICT_FAILED, VERDICT_FAILED},
        {404, VERDICT_FAILED, VERDICT_FAILED},
        {408, VERDICT_NOT_NOW, VERDICT_NOT_NOW},
        {409, VERDICT_NOT_NOW, VERDICT_NOT_NOW},
        {410, VERDICT_PERMANENT, VERDICT_PERMANENT},
        {413, VERDICT_PERMANENT, VERDICT_PERMANENT},
        {415, VERDICT_PERMANENT, VERDICT_PERMANENT},
        {418, VERDICT_FAILED, VERDICT_FAILED},
        {422, VERDICT_PERMANENT, VERDICT_PERMANENT},
        {423, VERDICT_NOT_NOW, VERDICT_NOT_NOW},
        {424, VERDICT_FAILED, VERDICT_FAILED},
        {425, VERDICT_NOT_NOW, VERDICT_NOT_NOW},
        {426, VERDICT_FAILED, VERDICT_FAILED},
        {429, VERDICT_NOT_NOW, VERDICT_NOT_NOW},
        {500, VERDICT_FAILED, VERDICT_FAILED},
        {501, VERDICT_FAILED, VERDICT_FAILED},
        {502, VERDICT_DIED, VERDICT_DIED},
        {503, VERDICT_UNAVAILABLE, VERDICT_UNAVAILABLE},
        {504, VERDICT_DIED, VERDICT_DIED},
        {505, VERDICT_FAILED, VERDICT_FAILED},
        {0, VERDICT_DIED, VERDICT_DIED},
        {99, VERDICT_DIED, VERDICT_DIED},
        {100, VERDICT_DIED, VERDICT_DIED},
        {101, VERDICT_DIED, VERDICT_DIED},
        {199, VERDICT_DIED, VERDICT_DIED},
        {600, VERDICT_FAILED, VERDICT_FAILED},
        {999, VERDICT_FAILED, VERDICT_FAILED},
        {-1, VERDICT_DIED, VERDICT_DIED},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++)
        assert_verdict(cases[i].status, cases[i].response, cases[i].transaction);
}

static bool is_one_of(int status, const int *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == status)
            return true;
    return false;
}

static void test_every_status(void **state)
{
    static const int not_now[] = {408, 409, 423, 425, 429};
    (void)state;

    for (int status = 100; status <= 599; status++) {
        if (status < 200 || status == 502 || status == 504)
            assert_verdict(status, VERDICT_DIED, VERDICT_DIED);
        else if (status < 300)
            assert_verdict(status, VERDICT_COMPLETE, status == 202 ? VERDICT_ACCEPTED : VERDICT_CHECK);
        else if (is_one_of(status, usual_permanent, COUNT(usual_permanent)))
            assert_verdict(status, VERDICT_PERMANENT, VERDICT_PERMANENT);
        else if (is_one_of(status, not_now, COUNT(not_now)))
            assert_verdict(status, VERDICT_NOT_NOW, VERDICT_NOT_NOW);
        else if (status == 503)
            assert_verdict(status, VERDICT_UNAVAILABLE, VERDICT_UNAVAILABLE);
        else
            assert_verdict(status, VERDICT_FAILED, VERDICT_FAILED);
    }
}

static void test_permanent_wins(void **state)
{
    (void)state;
    for (int status = 100; status <= 599; status++) {
        struct outcome_rules only = {status % 2, &status, 1}, none = {status % 2, NULL, 0};

        assert_int_equal(outcome_of(ANSWER_STATUS, status, &only), VERDICT_PERMANENT);
        assert_int_not_equal(outcome_of(ANSWER_STATUS, status, &none), VERDICT_PERMANENT);
        assert_int_not_equal(outcome_of(ANSWER_DIED, status, &only), VERDICT_PERMANENT);
    }
}

static void test_other_kinds_ignore_the_status(void **state)
{
    static const struct {
        enum answer_kind kind;
        enum verdict verdict;
    } cases[] = {
        {ANSWER_UNREACHABLE, VERDICT_UNAVAILABLE},
        {ANSWER_DIED, VERDICT_DIED},
        {ANSWER_TIMEOUT, VERDICT_REVOKE},
        {ANSWER_ABANDONED, VERDICT_NOT_NOW},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int status = 0; status <= 599; status++) {
            assert_int_equal(outcome_of(cases[i].kind, status, &response), cases[i].verdict);
            assert_int_equal(outcome_of(cases[i].kind, status, &transaction), cases[i].verdict);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int v = 0; v < N_VERDICTS; v++) {
        assert_non_null(verdict_name((enum verdict)v));
        for (int w = 0; w < v; w++)
            assert_string_not_equal(verdict_name((enum verdict)v), verdict_name((enum verdict)w));
    }
    for (int a = 0; a < N_ROW_ANSWERS; a++)
        assert_int_equal(row_answer_find(row_answer_name((enum row_answer)a)), a);
    assert_int_equal(row_answer_find("nonsense"), -1);
    assert_int_equal(row_answer_find(""), -1);
}

static void test_what_the_application_wrote_is_not_brief(void **state)
{
    static const struct {
        const char *error, *brief;
    } cases[] = {
        {"answered 500", "answered 500"},
        {"answered 500: \"no such card\"", "answered 500"},
        {"older than max_age; last: answered 422: \"answered 500: x\"",
         "older than max_age; last: answered 422"},
        {"answered 500 without completing the token", "answered 500 without completing the token"},
        {"the answer of 127.0.0.1:80 is not HTTP: no status line",
         "the answer of 127.0.0.1:80 is not HTTP: no status line"},
        {"token expired without an answer", "token expired without an answer"},
        {"answered 50", "answered 50"},
        {"answered 500", "answered 500"},
        {"answered 500:", "answered 500"},
        {"answered answered 500: x", "answered answered 500"},
        {"", ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t whole = strlen(cases[i].error);
        char *error = memcpy(malloc(whole + !whole), cases[i].error, whole); /* without a NUL */
        size_t len = outcome_brief(error, whole);

        assert_int_equal(len, strlen(cases[i].brief));
        assert_memory_equal(error, cases[i].brief, len);
        free(error);
    }
}

/* Only a 2xx leads to a verdict that completes a message. No error does, nor a zeroed struct. */
static void test_nothing_but_2xx_is_done(void **state)
{
    static const enum answer_kind kinds[] = {ANSWER_STATUS, ANSWER_UNREACHABLE, ANSWER_DIED, ANSWER_TIMEOUT,
                                             ANSWER_ABANDONED};
    (void)state;

    for (size_t i = 0; i < COUNT(kinds); i++) {
        for (int status = 0; status < 1000; status++) {
            bool is_good = kinds[i] == ANSWER_STATUS && status >= 200 && status < 300;
            enum verdict a = outcome_of(kinds[i], status, &response),
                         b = outcome_of(kinds[i], status, &transaction);

            assert_int_equal(a == VERDICT_COMPLETE || a == VERDICT_CHECK || a == VERDICT_ACCEPTED, is_good);
            assert_int_equal(b == VERDICT_COMPLETE || b == VERDICT_CHECK || b == VERDICT_ACCEPTED, is_good);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_application_wrote_is_not_brief),
        cmocka_unit_test(test_named_statuses),
        cmocka_unit_test(test_every_status),
        cmocka_unit_test(test_permanent_wins),
        cmocka_unit_test(test_other_kinds_ignore_the_status),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_nothing_but_2xx_is_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
