/* A request with several messages: its envelope, the meaning of an answer for each member, and the learned
 * size. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"
#include "onceward/core/batch_answer.h"
#include "onceward/core/batch_envelope.h"
#include "onceward/core/batch_size.h"
#include "onceward/core/message.h"

#include <stdio.h>
#include <stdlib.h>

/* --- the envelope --- */

static struct message *message_of(struct slice type, struct slice body)
{
    struct message *m = message_new();

    m->properties[PROPERTY_CONTENT_TYPE] = type;
    m->body = body.len ? malloc(body.len) : NULL;
    if (body.len)
        memcpy(m->body, body.data, body.len);
    m->body_len = body.len;
    return m;
}

static bool takes(struct slice type, struct slice body)
{
    struct message *m = message_of(type, body);
    bool yes = envelope_takes_body(m, (struct slice){0});

    message_free(m);
    return yes;
}

static bool takes_json(struct slice body)
{
    return takes(SLICE("application/json"), body);
}

static void bodies_that_stand_in_it_as_they_are(void **state)
{
    assert_true(takes_json(SLICE("{\"id\": \"order-1\", \"cents\": 250}")));
    assert_true(takes_json(SLICE(" [1, -2.5e10, true, null, \"\\u00e4\\ud834\\udd1e\\\\ud834\"]\n")));
    assert_true(takes_json(SLICE("17")));
    assert_true(takes_json(SLICE("\"\xc3\xa4\"")));
    assert_true(takes(SLICE("application/problem+JSON ; charset=utf-8"), SLICE("{}")));
    assert_true(takes(SLICE("text/json"), SLICE("{}")));
}

static void bodies_that_are_encoded(void **state)
{
    static const struct slice bad[] = {
        SLICE(""),
        SLICE(" "),
        SLICE("{"),
        SLICE("{}{}"),
        SLICE("{\"a\":1,}"),
        SLICE("[01]"),
        SLICE("NaN"),
        SLICE("'a'"),
        SLICE("\xef\xbb\xbf{}"), /* a byte order mark */
        SLICE("\"\xff\""),
        SLICE("\"\xed\xa0\x80\""),
        SLICE("\"a\0b\""),
        SLICE("\"\n\""),
        SLICE("\"\\ud834\""),
        SLICE("\"\\udd1e\""),
        SLICE("\"\\ud834\\u0041\""),
        SLICE("\"\\ud834x\""),
        SLICE("\"\\ud834\\ud834\""),
        SLICE("\"\\x\""),
    };

    for (size_t i = 0; i < COUNT(bad); i++)
        if (takes_json(bad[i]))
            fail_msg("number %zu is taken", i);
    assert_false(takes(SLICE("text/plain"), SLICE("{}")));
    assert_false(takes(SLICE("application/jsonl"), SLICE("{}")));
    assert_false(takes(SLICE("json"), SLICE("{}")));
    assert_false(takes((struct slice){0}, SLICE("{}")));
    struct message *m = message_of(SLICE("application/json"), SLICE("{}"));

    m->properties[PROPERTY_CONTENT_ENCODING] = SLICE("gzip");
    assert_false(envelope_takes_body(m, (struct slice){0}));
    message_free(m);
}

static bool takes_depth(int depth)
{
    struct buf body = {0};

    for (int i = 0; i < depth; i++)
        buf_add_char(&body, '[');
    for (int i = 0; i < depth; i++)
        buf_add_char(&body, ']');
    bool yes = takes_json(buf_slice(&body));
    buf_deinit(&body);
    return yes;
}

static void depth_is_bounded(void **state)
{
    assert_true(takes_depth(ENVELOPE_DEPTH_MAX));
    assert_false(takes_depth(ENVELOPE_DEPTH_MAX + 1));
    assert_false(takes_depth(100000));
}

static bool takes_number(const char *head, int n_digits, const char *tail)
{
    struct buf body = {0};

    buf_printf(&body, "{\"a\": [1, %s", head);
    for (int i = 0; i < n_digits; i++)
        buf_add_char(&body, '7');
    buf_printf(&body, "%s]}", tail);
    bool yes = takes_json(buf_slice(&body));
    buf_deinit(&body);
    return yes;
}

/* Python refuses integers of more than 4300 digits, Jackson numbers of more than 1000 characters, and several readers
 * those above a double. */
static void the_length_of_numbers_is_bounded(void **state)
{
    static const struct {
        const char *head, *tail;
        int most;
    } cases[] = {{"", "", ENVELOPE_DIGITS_MAX},
                 {"-", "", ENVELOPE_DIGITS_MAX - 1},
                 {"0.", "", ENVELOPE_DIGITS_MAX - 2},
                 {"", "e200", ENVELOPE_DIGITS_MAX - 204},
                 {"", "E+0090", ENVELOPE_DIGITS_MAX - 96},
                 {"", "e-200", ENVELOPE_DIGITS_MAX - 5}};

    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_true(takes_number(cases[i].head, cases[i].most, cases[i].tail));
        assert_false(takes_number(cases[i].head, cases[i].most + 1, cases[i].tail));
    }
    assert_false(takes_json(SLICE("1e309")));
    assert_false(takes_json(SLICE("[1e99999999999999999999999999]")));
    assert_true(takes_json(SLICE("1e-99999")));
    assert_false(takes_number("", 100000, ""));
}

static void the_configured_content_type_counts_where_a_message_has_none(void **state)
{
    struct message *m = message_of((struct slice){0}, SLICE("{}"));

    assert_true(envelope_takes_body(m, SLICE("application/json")));
    m->properties[PROPERTY_CONTENT_TYPE] = SLICE("text/plain");
    assert_false(envelope_takes_body(m, SLICE("application/json")));
    message_free(m);
}

static void an_envelope(void **state)
{
    struct field headers[] = {F_STRING("x-\"id", "\xc3\xa4")};
    struct message *a = message_of(SLICE("application/json"), SLICE("{\"cents\": 250}")),
                   *b = message_of(SLICE("image/png"), SLICE("\x89P\0"));
    struct envelope_member first = {.token = SLICE("ow1.a.b"),
                                    .id = SLICE("o\"1\n"),
                                    .queue = SLICE("orders"),
                                    .attempt = 1,
                                    .body_is_json = true,
                                    .message = a},
                           second = {.token = SLICE("ow1.c.d"),
                                     .id = SLICE("2"),
                                     .queue = SLICE("orders"),
                                     .attempt = 3,
                                     .redelivered = true,
                                     .message = b};
    struct buf out = {0};

    a->properties[PROPERTY_TYPE] = SLICE("created");
    a->properties[PROPERTY_MESSAGE_ID] = SLICE("o\"1\n");
    a->headers = headers;
    a->n_headers = 1;
    b->properties[PROPERTY_APP_ID] = SLICE("\xff");
    b->has_priority = b->has_timestamp = true;
    b->priority = 4;
    b->timestamp = 1700000000;
    b->exchange = SLICE("events");
    envelope_begin(&out);
    envelope_add(&out, &first);
    envelope_add(&out, &second);
    envelope_end(&out);
    assert_int_equal(ENVELOPE_ENDS + envelope_size(&first) + envelope_size(&second), out.len);
    assert_string_equal(
        buf_text(&out),
        "{\"messages\":[{\"token\":\"ow1.a.b\",\"id\":\"o\\\"1\\u000a\",\"queue\":\"orders\",\"attempt\":1,\"redelivered\":false,"
        "\"content_type\":\"application/json\",\"type\":\"created\",\"headers\":{\"x-\\\"id\":\"\xc3\xa4\"},\"body\":{\"cents\": 250}},"
        "{\"token\":\"ow1.c.d\",\"id\":\"2\",\"queue\":\"orders\",\"attempt\":3,\"redelivered\":true,\"content_type\":\"image/png\","
        "\"app_id\":{\"!S\":\"/w==\"},\"priority\":4,\"timestamp\":1700000000,\"exchange\":\"events\",\"body_base64\":\"iVAA\"}]}");
    a->headers = NULL;
    a->n_headers = 0;
    message_free(a);
    message_free(b);
    buf_deinit(&out);
}

/* --- the answer --- */

static struct batch_member members[3];
static struct batch_reading reading;

static const struct batch_rules in_response = {.outcome = {.transaction = false}, .knows_batches = true},
                                in_transaction = {.outcome = {.transaction = true}, .knows_batches = true};

static enum batch_verdict read_answer_of(const struct batch_rules *rules, int status, int64_t echo,
                                         struct slice body)
{
    struct batch_reply a = {.kind = ANSWER_STATUS, .status = status, .n_sent = 3, .echo = echo, .body = body};

    memset(members, 0xA5, sizeof members);
    members[0].id = SLICE("a");
    members[1].id = SLICE("\xc3\xa4\"");
    members[2].id = SLICE("17");
    members[0].token = SLICE("ow1.a");
    members[1].token = SLICE("ow1.b");
    members[2].token = SLICE("ow1.c");
    batch_answer_read(&a, rules, members, COUNT(members), &reading);
    return reading.verdict;
}

static enum batch_verdict read_answer(const struct batch_rules *rules, int status, int64_t echo,
                                      const char *body)
{
    return read_answer_of(rules, status, echo, slice_of(body));
}

static void assert_named(const struct batch_rules *rules, const char *body, int a, int b, int c)
{
    enum batch_verdict v = read_answer(rules, 200, 3, body);

    if (v != BATCH_ANSWERED)
        fail_msg("%s: verdict %d, %s", body, v, reading.why ? reading.why : "");
    const int expected[] = {a, b, c};

    for (size_t i = 0; i < COUNT(members); i++) {
        if (members[i].failed != (expected[i] != 0) ||
            (members[i].failed && members[i].status != expected[i]))
            fail_msg("%s: member %zu: %d", body, i, members[i].failed ? members[i].status : 0);
    }
}

static void answers_without_failures(void **state)
{
    static const char *const bodies[] = {"",
                                         "null",
                                         "[]",
                                         "{}",
                                         " {} ",
                                         "OK",
                                         "\"done\"",
                                         "{\"failures\": []}",
                                         "{\"failures\": null}",
                                         "{\"batchItemFailures\": []}",
                                         "{\"warnings\": []}",
                                         "{\"fail\": 1}",
                                         "{\"ok\": [1, {\"a\": 2}]}"};

    for (size_t i = 0; i < COUNT(bodies); i++) {
        assert_named(&in_response, bodies[i], 0, 0, 0);
        assert_named(&in_transaction, bodies[i], 0, 0, 0);
    }
}

static void answers_with_failures(void **state)
{
    assert_named(
        &in_response,
        "{\"failures\": [{\"id\": \"a\", \"status\": 503, \"retry_after\": 5, \"error\": \"n\\n\"}]}", 503, 0,
        0);
    assert_int_equal(members[0].retry_after_ms, 5000);
    assert_int_equal(members[0].error.len, 3);
    assert_named(&in_response, "{\"failures\": [{\"token\": \"ow1.b\", \"status\": 400}, {\"id\": \"17\"}]}",
                 0, 400, 500);
    assert_int_equal(members[1].retry_after_ms, -1);
    assert_named(&in_response, "{\"failures\": [{\"id\": \"\\u00e4\\\"\", \"status\": 409}]}", 0, 409, 0);
    assert_named(&in_response,
                 "{\"batchItemFailures\": [{\"itemIdentifier\": \"17\"}, {\"itemIdentifier\": \"a\"}]}", 500,
                 0, 500);
    assert_named(&in_response,
                 "{\"failures\":[{\"id\":\"a\",\"status\":502},{\"id\":\"17\",\"status\":504}]}", 500, 0,
                 500);
    assert_named(&in_response,
                 "{\"failures\":[{\"id\":\"a\",\"status\":200},{\"id\":\"17\",\"status\":null}]}", 500, 0,
                 500);
    assert_named(&in_response, "{\"failures\":[{\"id\":\"a\",\"status\":422},{\"id\":\"a\",\"status\":500}]}",
                 422, 0, 0);
    assert_named(&in_response, "{\"failures\":[{\"id\":\"a\",\"retry_after\":1e9,\"more\":[{}]}]}", 500, 0,
                 0);
    assert_int_equal(members[0].retry_after_ms, 3600 * 1000);
    assert_named(&in_response, "{\"failures\":[{\"id\":\"a\",\"retry_after\":0.5,\"error\":null}]}", 500, 0,
                 0);
    assert_int_equal(members[0].retry_after_ms, 500);
    /* The token decides, whatever the id beside it. */
    assert_named(&in_response, "{\"failures\":[{\"id\":\"x\",\"token\":\"ow1.a\"}]}", 500, 0, 0);
}

static void an_entry_that_matches_nothing(void **state)
{
    static const char *const bodies[] = {"{\"failures\":[{\"id\":\"A\"}]}",
                                         "{\"failures\":[{\"id\":17}]}",
                                         "{\"failures\":[{\"token\":null}]}",
                                         "{\"failures\":[{\"id\":\"17\"},{\"id\":\"x\"}]}",
                                         "{\"failures\":[{\"id\":17,\"token\":\"ow1.a\"}]}",
                                         "{\"failures\":[{\"id\":\"\"}]}"};

    for (size_t i = 0; i < COUNT(bodies); i++) {
        assert_int_equal(read_answer(&in_response, 200, 3, bodies[i]), BATCH_BAD);
        assert_non_null(reading.why);
        assert_false(members[2].failed);
        assert_int_equal(read_answer(&in_transaction, 200, 3, bodies[i]), BATCH_ANSWERED);
    }
}

static void answers_that_cannot_be_read(void **state)
{
    static const char *const bodies[] = {"{",
                                         "{\"failures\":",
                                         "{\"failures\":[{\"id\":\"a\"}]",
                                         "{\"failures\":[{\"id\":\"a\"}]} x",
                                         "{\"failures\":{}}",
                                         "{\"failures\":\"a\"}",
                                         "{\"failures\":[\"a\"]}",
                                         "{\"failures\":[{}]}",
                                         "{\"failures\":[{\"status\":500}]}",
                                         "{\"failures\":[{\"id\":\"a\",\"status\":\"500\"}]}",
                                         "{\"failures\":[{\"id\":\"a\",\"status\":5}]}",
                                         "{\"failures\":[{\"id\":\"a\",\"retry_after\":-1}]}",
                                         "{\"failures\":[null]}",
                                         "{\"failures\":[{},\"x\":1}",
                                         "{\"failures\":[{\"id\":\"a\",\"status\":5]}",
                                         "[{\"id\":\"a\"}]",
                                         "[",
                                         "{\"a\":\"\xff\"}",
                                         "{\"batchItemFailures\":[{\"itemIdentifier\":\"\\x\"}]}"};

    for (size_t i = 0; i < COUNT(bodies); i++)
        for (int t = 0; t < 2; t++)
            if (read_answer(t ? &in_transaction : &in_response, 200, 3, bodies[i]) != BATCH_BAD ||
                members[0].failed)
                fail_msg("%s is taken", bodies[i]);
}

/* Closed behind its head: an application that dies there has named no failure yet. */
static void an_empty_answer_without_a_length(void **state)
{
    struct batch_reply a = {.kind = ANSWER_STATUS,
                            .status = 200,
                            .n_sent = 3,
                            .echo = 3,
                            .is_to_close = true,
                            .body = SLICE(" \n")};

    read_answer(&in_response, 200, 3, ""); /* sets the members */
    assert_int_equal(reading.verdict, BATCH_ANSWERED);
    batch_answer_read(&a, &in_response, members, COUNT(members), &reading);
    assert_int_equal(reading.verdict, BATCH_BAD);
    assert_non_null(strstr(reading.why, "length"));
    batch_answer_read(&a, &in_transaction, members, COUNT(members), &reading);
    assert_int_equal(reading.verdict, BATCH_ANSWERED);
    a.body = SLICE("{\"failures\": []}");
    batch_answer_read(&a, &in_response, members, COUNT(members), &reading);
    assert_int_equal(reading.verdict, BATCH_ANSWERED);
}

/* In `response` all messages would be done, the failed ones too. */
static void failures_that_are_hidden_are_not_passed_over(void **state)
{
    static const struct slice bodies[] = {
        SLICE("\xef\xbb\xbf{\"failures\":[{\"id\":\"a\"}]}"), /* a byte order mark */
        SLICE("\xff\xfe{\0\"\0f\0a\0i\0l\0"),                 /* UTF-16 */
        SLICE("o\0k\0"),
        SLICE("\x1f\x8b\x08\0\0\0\0\0\0\x03\xab"),                /* gzip */
        SLICE("\"{\\\"failures\\\":[{\\\"id\\\":\\\"a\\\"}]}\""), /* JSON in a string */
        SLICE(")]}',\n{\"failures\":[{\"id\":\"a\"}]}"),
        SLICE("failures: [{id: a}]"),
        SLICE("{\"Failures\":[{\"id\":\"a\"}]}"),
        SLICE("{\"BatchItemFailures\":[]}")};

    for (size_t i = 0; i < COUNT(bodies); i++)
        for (int t = 0; t < 2; t++)
            if (read_answer_of(t ? &in_transaction : &in_response, 200, 3, bodies[i]) != BATCH_BAD)
                fail_msg("number %zu is taken", i);
}

static void success_needs_the_echo(void **state)
{
    static const int64_t bad[] = {-1, 0, 2, 4};

    for (size_t i = 0; i < COUNT(bad); i++)
        for (int t = 0; t < 2; t++)
            assert_int_equal(read_answer(t ? &in_transaction : &in_response, 200, bad[i], ""), BATCH_BAD);
    assert_int_equal(read_answer(&in_response, 204, 3, ""), BATCH_ANSWERED);
    assert_int_equal(read_answer(&in_response, 500, -1, ""), BATCH_FAILED);
}

static void accepted(void **state)
{
    assert_int_equal(read_answer(&in_transaction, 202, 3, "{\"failures\":[{\"id\":\"a\"}]}"), BATCH_ACCEPTED);
    assert_true(members[0].failed && !members[1].failed);
    assert_int_equal(read_answer(&in_response, 202, 3, ""), BATCH_ANSWERED);
    assert_int_equal(read_answer(&in_transaction, 202, -1, ""), BATCH_BAD);
}

static void results_by_id(void **state)
{
    assert_named(
        &in_response,
        "{\"results\": {\"17\": {\"invoice\": 3} , \"x\": 1, \"\\u00e4\\\"\":\"y\"}, \"failures\":[{\"id\":\"a\"}]}",
        500, 0, 0);
    assert_int_equal(members[2].result.len, 14);
    assert_memory_equal(members[2].result.data, "{\"invoice\": 3}", 14);
    assert_memory_equal(members[1].result.data, "\"y\"", 3);
    assert_int_equal(members[0].result.len, 0);
    assert_named(&in_response, "{\"results\": [1, 2]}", 0, 0, 0);
    assert_int_equal(members[0].result.len, 0);
}

static void other_statuses(void **state)
{
    static const struct {
        int status;
        enum batch_verdict first, later; /* before an echo, and after one */
    } rows[] = {
        {429, BATCH_NOT_NOW, BATCH_NOT_NOW},
        {503, BATCH_NOT_NOW, BATCH_NOT_NOW},
        {408, BATCH_NOT_NOW_FOR_ONE, BATCH_NOT_NOW_FOR_ONE},
        {409, BATCH_NOT_NOW_FOR_ONE, BATCH_NOT_NOW_FOR_ONE},
        {423, BATCH_NOT_NOW_FOR_ONE, BATCH_NOT_NOW_FOR_ONE},
        {425, BATCH_NOT_NOW_FOR_ONE, BATCH_NOT_NOW_FOR_ONE},
        {400, BATCH_UNKNOWN, BATCH_FAILED},
        {404, BATCH_UNKNOWN, BATCH_FAILED},
        {405, BATCH_UNKNOWN, BATCH_FAILED},
        {413, BATCH_UNKNOWN, BATCH_TOO_LARGE},
        {415, BATCH_UNKNOWN, BATCH_FAILED},
        {422, BATCH_UNKNOWN, BATCH_FAILED},
        {401, BATCH_FAILED, BATCH_FAILED},
        {410, BATCH_FAILED, BATCH_FAILED},
        {424, BATCH_FAILED, BATCH_FAILED},
        {500, BATCH_FAILED, BATCH_FAILED},
        {301, BATCH_FAILED, BATCH_FAILED},
        {502, BATCH_CRASHED, BATCH_CRASHED},
        {504, BATCH_CRASHED, BATCH_CRASHED},
        {101, BATCH_CRASHED, BATCH_CRASHED},
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        for (int t = 0; t < 2; t++) {
            struct batch_rules rules = t ? in_transaction : in_response;

            rules.knows_batches = false;
            assert_int_equal(read_answer(&rules, rows[i].status, -1, "{\"failures\":[{\"id\":\"a\"}]}"),
                             rows[i].first);
            assert_false(members[0].failed);
            /* An error with the count comes from an application that has read the request. */
            assert_int_equal(read_answer(&rules, rows[i].status, 3, ""), rows[i].later);
            rules.knows_batches = true;
            assert_int_equal(read_answer(&rules, rows[i].status, 3, ""), rows[i].later);
        }
}

static void no_answer(void **state)
{
    static const struct {
        enum answer_kind kind;
        enum batch_verdict verdict;
    } rows[] = {{ANSWER_UNREACHABLE, BATCH_NOT_NOW},
                {ANSWER_ABANDONED, BATCH_NOT_NOW},
                {ANSWER_DIED, BATCH_CRASHED},
                {ANSWER_TIMEOUT, BATCH_TIMEOUT}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct batch_reply a = {.kind = rows[i].kind, .echo = -1};

        batch_answer_read(&a, &in_response, members, COUNT(members), &reading);
        assert_int_equal(reading.verdict, rows[i].verdict);
    }
}

static void a_named_member_is_answered_as_if_alone(void **state)
{
    static const int permanent[] = {400, 410};
    const struct outcome_rules rules = {.transaction = true, .permanent_status = permanent, .n_permanent = 2};
    static const struct {
        int status;
        enum verdict verdict;
    } rows[] = {{500, VERDICT_FAILED},  {400, VERDICT_PERMANENT},   {409, VERDICT_NOT_NOW},
                {429, VERDICT_NOT_NOW}, {503, VERDICT_UNAVAILABLE}, {424, VERDICT_NOT_NOW},
                {404, VERDICT_FAILED}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct batch_member m = {.failed = true, .status = rows[i].status};

        assert_int_equal(batch_member_verdict(&m, &rules), rows[i].verdict);
    }
}

/* --- the learned size --- */

static void the_size_is_halved_and_grows_by_a_tenth(void **state)
{
    struct batch_size s;

    batch_size_init(&s, 100, 1000);
    assert_int_equal(batch_size_messages(&s), 100);
    batch_size_good(&s, true, 0);
    assert_int_equal(batch_size_messages(&s), 100);
    assert_true(batch_size_window_over(&s, 100, 0));
    assert_int_equal(batch_size_messages(&s), 50);
    assert_int_equal(batch_size_bytes(&s), 1000);
    assert_false(batch_size_window_over(&s, 100, 0)); /* sent before the halving */
    assert_int_equal(batch_size_messages(&s), 50);
    assert_true(batch_size_too_large(&s, 50, 1));
    assert_int_equal(batch_size_messages(&s), 25);
    assert_int_equal(batch_size_bytes(&s), 500);
    batch_size_good(&s, true, 1); /* sent before the halving */
    batch_size_good(&s, false, 2);
    assert_int_equal(batch_size_messages(&s), 25);
    batch_size_good(&s, true, 2);
    assert_int_equal(batch_size_messages(&s), 27);
    assert_int_equal(batch_size_bytes(&s), 550);
    for (int i = 0; i < 20; i++)
        batch_size_good(&s, true, 2);
    assert_int_equal(batch_size_messages(&s), 100);
    assert_int_equal(batch_size_bytes(&s), 1000);
}

static void one_message_teaches_nothing_and_the_size_is_never_below_one(void **state)
{
    struct batch_size s;

    batch_size_init(&s, 3, 1000);
    assert_false(batch_size_window_over(&s, 1, 0));
    assert_false(batch_size_too_large(&s, 1, 0));
    assert_true(batch_size_window_over(&s, 2, 0));
    assert_int_equal(batch_size_messages(&s), 1);
    for (uint64_t i = 1; i < 2000; i++)
        batch_size_too_large(&s, 2, i);
    assert_int_equal(batch_size_messages(&s), 1);
    assert_int_equal(batch_size_bytes(&s), 1);
}

static void the_reason_of_a_bad_answer(void **state)
{
    static const struct {
        int64_t echo;
        bool is_cut, is_to_close, transaction;
        const char *body, *why;
    } cases[] = {
        {.echo = 3, .body = ""},
        {.echo = -1, .body = "", .why = "its answer has no field Onceward-Batch"},
        {.echo = 0, .body = "", .why = "its answer has another count in Onceward-Batch than the request"},
        {.echo = 4, .body = "", .why = "its answer has another count in Onceward-Batch than the request"},
        {.echo = 3,
         .is_cut = true,
         .body = "{}",
         .why = "its answer is incomplete: it is larger than forward.max_response, or broke off"},
        {.echo = 3,
         .is_to_close = true,
         .body = " ",
         .why = "its answer has neither a body nor a length, as if the application had died before the body"},
        {.echo = 3, .is_to_close = true, .body = "null"},
        {.echo = 3, .is_to_close = true, .transaction = true, .body = " "},
        {.echo = 3, .body = "{", .why = "its answer is not JSON, or has no list of failures"},
        {.echo = 3,
         .body = "{\"failures\":[{\"id\":\"x\"}]}",
         .why = "its answer names a failure that matches no message of the request"},
        {.echo = 3, .transaction = true, .body = "{\"failures\":[{\"id\":\"x\"}]}"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct batch_reply a = {.kind = ANSWER_STATUS,
                                      .status = 200,
                                      .n_sent = 3,
                                      .echo = cases[i].echo,
                                      .is_cut = cases[i].is_cut,
                                      .is_to_close = cases[i].is_to_close,
                                      .body = slice_of(cases[i].body)};

        read_answer(&in_response, 200, 3, ""); /* sets the members */
        batch_answer_read(&a, cases[i].transaction ? &in_transaction : &in_response, members, COUNT(members),
                          &reading);
        assert_int_equal(reading.verdict, cases[i].why ? BATCH_BAD : BATCH_ANSWERED);
        if (cases[i].why)
            assert_string_equal(reading.why, cases[i].why);
        else
            assert_null(reading.why);
    }
}

static void the_bounds_of_numbers(void **state)
{
    static const struct {
        const char *field;
        int status; /* 0: the answer is bad */
        int64_t retry_after_ms;
    } cases[] = {
        {"\"status\":99", 0, 0},
        {"\"status\":100", 500, -1},
        {"\"status\":299", 500, -1},
        {"\"status\":300", 300, -1},
        {"\"status\":999", 999, -1},
        {"\"status\":999.5", 0, 0},
        {"\"status\":409.0", 409, -1},
        {"\"retry_after\":-0.001", 0, 0},
        {"\"retry_after\":0", 500, 0},
        {"\"retry_after\":null", 500, -1},
        {"\"retry_after\":\"5\"", 0, 0},
        {"\"retry_after\":3599.5", 500, 3599500},
        {"\"retry_after\":3600", 500, 3600000},
        {"\"retry_after\":3601", 500, 3600000},
        {"\"retry_after\":1.00000000000000000000000000000", 500, 1000}, /* 31 characters */
        {"\"retry_after\":1.000000000000000000000000000000", 0, 0},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        char body[128];
        enum batch_verdict v;

        snprintf(body, sizeof(body), "{\"failures\":[{\"id\":\"a\",%s}]}", cases[i].field);
        v = read_answer(&in_response, 200, 3, body);
        if (v != (cases[i].status ? BATCH_ANSWERED : BATCH_BAD) ||
            (cases[i].status &&
             (members[0].status != cases[i].status || members[0].retry_after_ms != cases[i].retry_after_ms)))
            fail_msg("%s: verdict %d, status %d, %lld ms", body, v, members[0].status,
                     (long long)members[0].retry_after_ms);
    }
}

/* If entries name a member twice, the first entry counts. */
static void entries_in_any_order(void **state)
{
    assert_named(&in_response,
                 "{\"failures\":[{\"id\":\"17\",\"status\":401},{\"id\":\"a\",\"status\":402},"
                 "{\"id\":\"\\u00e4\\\"\",\"status\":403},{\"id\":\"a\",\"status\":404}]}",
                 402, 403, 401);
    assert_named(&in_response,
                 "{\"results\":{\"17\":1,\"a\":2},\"failures\":[{\"id\":\"17\"},{\"token\":\"ow1.a\"}]}", 500,
                 0, 500);
    assert_memory_equal(members[2].result.data, "1", 1);
    assert_memory_equal(members[0].result.data, "2", 1);
    assert_int_equal(members[0].result.len, 1);
}

static void only_a_change_of_the_size_is_reported(void **state)
{
    struct batch_size s;

    batch_size_init(&s, 4, 1000);
    assert_false(batch_size_good(&s, true, 0));     /* the size is the configured one already */
    assert_false(batch_size_window_over(&s, 4, 1)); /* sent before another cut */
    assert_false(batch_size_window_over(&s, 1, 0));
    assert_true(batch_size_window_over(&s, 4, 0));
    assert_int_equal(batch_size_messages(&s), 2);
    assert_int_equal(batch_size_bytes(&s), 1000);
    assert_false(batch_size_window_over(&s, 4, 0));
    assert_false(batch_size_too_large(&s, 1, 1));
    assert_false(batch_size_too_large(&s, 2, 0));
    assert_true(batch_size_window_over(&s, 2, 1));
    assert_false(batch_size_window_over(&s, 2, 2)); /* the size is 1 */
    assert_true(batch_size_too_large(&s, 2, 2));
    assert_int_equal(batch_size_messages(&s), 1);
    assert_int_equal(batch_size_bytes(&s), 500);
    assert_false(batch_size_good(&s, false, 3));
    assert_false(batch_size_good(&s, true, 2));
    assert_int_equal(batch_size_bytes(&s), 500);
    for (int i = 1; i < 15; i++)
        assert_false(batch_size_good(&s, true, 3));
    assert_int_equal(batch_size_messages(&s), 3);
    assert_true(batch_size_good(&s, true, 3)); /* 1.1 to the power of 15 is above 4 */
    assert_int_equal(batch_size_messages(&s), 4);
    assert_int_equal(batch_size_bytes(&s), 1000);
    assert_false(batch_size_good(&s, true, 3));
}

/* Half of 3 is 1.5, which grows to 2 in four steps of a tenth. */
static void the_size_keeps_its_fraction(void **state)
{
    struct batch_size s;
    int n = 0;

    batch_size_init(&s, 3, 1000);
    assert_true(batch_size_window_over(&s, 3, 0));
    for (; batch_size_messages(&s) < 2; n++)
        batch_size_good(&s, true, 1);
    assert_int_equal(n, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_that_stand_in_it_as_they_are),
        cmocka_unit_test(bodies_that_are_encoded),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(the_length_of_numbers_is_bounded),
        cmocka_unit_test(the_configured_content_type_counts_where_a_message_has_none),
        cmocka_unit_test(an_envelope),
        cmocka_unit_test(answers_without_failures),
        cmocka_unit_test(answers_with_failures),
        cmocka_unit_test(an_entry_that_matches_nothing),
        cmocka_unit_test(answers_that_cannot_be_read),
        cmocka_unit_test(an_empty_answer_without_a_length),
        cmocka_unit_test(failures_that_are_hidden_are_not_passed_over),
        cmocka_unit_test(success_needs_the_echo),
        cmocka_unit_test(accepted),
        cmocka_unit_test(results_by_id),
        cmocka_unit_test(other_statuses),
        cmocka_unit_test(no_answer),
        cmocka_unit_test(a_named_member_is_answered_as_if_alone),
        cmocka_unit_test(the_size_is_halved_and_grows_by_a_tenth),
        cmocka_unit_test(one_message_teaches_nothing_and_the_size_is_never_below_one),
        cmocka_unit_test(the_reason_of_a_bad_answer),
        cmocka_unit_test(the_bounds_of_numbers),
        cmocka_unit_test(entries_in_any_order),
        cmocka_unit_test(only_a_change_of_the_size_is_reported),
        cmocka_unit_test(the_size_keeps_its_fraction),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
