/* Log lines with misleading content. */
#include "cmocka_all.h"

#include "onceward/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Value of "id" as in the line, between its quotes. */
static char *written(struct slice value)
{
    struct log_line l;
    char *text = NULL, *start, *end;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    log_begin(&l, EVENT_DUPLICATE, "q");
    log_slice(&l, "id", value);
    log_bool(&l, "last", true);
    log_print(&l, f);
    fclose(f);
    start = strstr(text, "\"id\":\"");
    end = strstr(text, "\",\"last\":true}\n");
    assert_non_null(start);
    assert_non_null(end);
    start += strlen("\"id\":\"");
    char *copy = strndup(start, (size_t)(end - start));
    free(text);
    return copy;
}

static void assert_written(const char *value, const char *expected)
{
    char *text = written(slice_of(value));

    assert_string_equal(text, expected);
    free(text);
}

static void test_what_acts_on_a_terminal_is_escaped(void **state)
{
    assert_written("\x1b[2J\a\r\n\t\x7f", "\\u001b[2J\\u0007\\u000d\\u000a\\u0009\\u007f");
    assert_written("\xC2\x9B"
                   "31mred\xC2\x85\xC2\x80",
                   "\\u009b31mred\\u0085\\u0080"); /* C1: CSI in one character */
    assert_written("a\xE2\x80\xAE"
                   "b\xE2\x80\xAA\xE2\x80\x8F\xE2\x81\xA6\xE2\x81\xA9",
                   "a\\u202eb\\u202a\\u200f\\u2066\\u2069");
    assert_written("\xE2\x80\xA8\xE2\x80\xA9\xEF\xBB\xBF\xD8\x9C", "\\u2028\\u2029\\ufeff\\u061c");
}

static void test_all_other_text_stays_as_it_is(void **state)
{
    assert_written("order-17 \"\\ \xC3\xBC\xC2\xA0\xD7\x90\xE2\x82\xAC\xF0\x9F\x98\x80",
                   "order-17 \\\"\\\\ \xC3\xBC\xC2\xA0\xD7\x90\xE2\x82\xAC\xF0\x9F\x98\x80");
    assert_written("a\xFF"
                   "b\xC2",
                   "a\xEF\xBF\xBD"
                   "b\xEF\xBF\xBD");
}

/* Each character becomes six, and the line keeps its bound and its end. */
static void test_a_line_of_nothing_else_keeps_its_bound(void **state)
{
    char value[4096];
    struct log_line l;

    for (size_t i = 0; i < sizeof(value); i += 2)
        memcpy(value + i, "\xC2\x9B", 2);
    log_begin(&l, EVENT_DUPLICATE, "q");
    for (int i = 0; i < 20; i++)
        log_slice(&l, "id", (struct slice){value, sizeof(value)});
    assert_true(l.len < LOG_LINE_MAX);
    for (size_t i = 0; i < l.len; i++)
        assert_int_in_range(l.data[i], 0x20, 0x7E);
}

/* Makes one complete line in a format. */
static char *line_in(enum log_format format)
{
    struct log_line l;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    log_set_format(format);
    log_begin(&l, EVENT_RETRY, "orders");
    log_text(&l, "message_id", "a b");
    log_text(&l, "trace_id", "0af7651916cd43dd8448eb211c80319c");
    log_text(&l, "error", "answered 503");
    log_text(&l, "why", NULL);
    log_int(&l, "attempt", 2);
    log_print(&l, f);
    fclose(f);
    log_set_format(LOG_ONCEWARD);
    return text;
}

/* Compares from the level on; the time precedes it. */
static void assert_line(enum log_format format, const char *time_key, const char *expected)
{
    char *text = line_in(format), start[32];

    snprintf(start, sizeof(start), "%s", time_key);
    assert_memory_equal(text, start, strlen(start));
    assert_string_equal(text + strlen(start) + strlen("2026-01-01T00:00:00.000Z"), expected);
    free(text);
}

#define MESSAGE  "attempt 2 failed: answered 503"
#define NAMED    "\"message\":\"" MESSAGE "\",\"queue\":\"orders\",\"message_id\":\"a b\","
#define TRACE_ID "\"0af7651916cd43dd8448eb211c80319c\""

static void test_each_format_names_what_collectors_look_for(void **state)
{
    assert_line(LOG_ONCEWARD, "{\"ts\":\"",
                "\",\"level\":\"warning\",\"event\":\"retry\"," NAMED "\"trace_id\":" TRACE_ID
                ",\"error\":\"answered 503\",\"why\":null,\"attempt\":2}\n");
    assert_line(LOG_ECS, "{\"@timestamp\":\"",
                "\",\"log.level\":\"warning\",\"event.action\":\"retry\"," NAMED "\"trace.id\":" TRACE_ID
                ",\"error.message\":\"answered 503\",\"why\":null,\"attempt\":2}\n");
    assert_line(LOG_GCP, "{\"time\":\"",
                "\",\"severity\":\"WARNING\",\"event\":\"retry\"," NAMED "\"trace_id\":" TRACE_ID
                ",\"error\":\"answered 503\",\"why\":null,\"attempt\":2}\n");
    assert_line(LOG_TEXT, "",
                " warning orders " MESSAGE
                " event=retry message_id=\"a b\" trace_id=0af7651916cd43dd8448eb211c80319c "
                "error=\"answered 503\" why=null attempt=2\n");
}

static void assert_holds(const struct log_line *l, const char *text)
{
    if (!memmem(l->data, l->len, text, strlen(text)))
        fail_msg("%.*s lacks %s", (int)l->len, l->data, text);
}

/* A queue's name, or a value, with misleading content. */
static void test_text_for_a_terminal_misleads_nobody(void **state)
{
    struct log_line l;

    log_set_format(LOG_TEXT);
    log_begin(&l, EVENT_DUPLICATE, "q\x1b[2J");
    assert_holds(&l, " info    \"q\\u001b[2J\"  event=duplicate");
    log_text(&l, "id", "1 reason=x\n");
    log_text(&l, "empty", "");
    log_set_format(LOG_ONCEWARD);
    assert_holds(&l, " id=\"1 reason=x\\u000a\" empty=\"\"");
}

/* Asserts the message of a line with one more field than its queue, unless `key` is NULL. */
static void assert_message(enum event e, const char *key, const char *value, const char *expected)
{
    struct log_line l;
    char *text = NULL, *start, *end;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    log_begin(&l, e, NULL);
    log_text(&l, "peer", "broker");
    if (key)
        log_text(&l, key, value);
    log_int(&l, "letter", 17);
    log_print(&l, f);
    fclose(f);
    start = strstr(text, "\"message\":\"");
    assert_non_null(start);
    start += strlen("\"message\":\"");
    end = strstr(start, "\",\"queue\":null,\"peer\":\"broker\"");
    assert_non_null(end);
    *end = '\0';
    assert_string_equal(start, expected);
    free(text);
}

static void test_a_message_is_made_of_the_lines_own_fields(void **state)
{
    assert_message(EVENT_DISCONNECTED, "reason", "connection refused",
                   "disconnected from the broker: connection refused");
    assert_message(EVENT_DISCONNECTED, NULL, NULL, "disconnected from the broker");
    assert_message(EVENT_DISCONNECTED, "reason", NULL, "disconnected from the broker");
    assert_message(EVENT_DISCONNECTED, "reason", "", "disconnected from the broker");
    assert_message(EVENT_DISCONNECTED, "reason", "no \"host\"\n",
                   "disconnected from the broker: no \\\"host\\\"\\u000a");
    assert_message(EVENT_LETTER_LEFT, "reason", "gone", "dead letter 17 kept: gone");
    assert_message(EVENT_DRAINED, "reason", "gone", "drained");
}

/* A long value is cut between characters and between escapes. */
static void test_a_long_value_is_cut_in_the_message(void **state)
{
    for (size_t shift = 0; shift < 6; shift++) {
        char value[600], expected[700], escape[8];
        size_t n = 0, out;

        for (; n < shift; n++)
            value[n] = 'a';
        memset(value + n, '\x1b', sizeof(value) - n - 1);
        value[sizeof(value) - 1] = '\0';
        out = (size_t)snprintf(expected, sizeof(expected), "disconnected from the broker: %.*s", (int)shift,
                               value);
        snprintf(escape, sizeof(escape), "\\u%04x", 0x1b);
        for (size_t i = 0; i < (240 - shift) / 6; i++)
            out += (size_t)snprintf(expected + out, sizeof(expected) - out, "%s", escape);
        snprintf(expected + out, sizeof(expected) - out, "\xE2\x80\xA6");
        assert_message(EVENT_DISCONNECTED, "reason", value, expected);
    }
}

/* Templates contain text that needs no escape, and one field in each pair of brackets. */
static void test_every_event_has_a_template(void **state)
{
    for (int e = 0; e < N_EVENTS; e++) {
        const char *template = event_info((enum event)e)->message;
        int n_fields = 0, fields_here = 0;

        assert_true(strlen(template) > 3);
        for (const char *c = template; *c; c++) {
            assert_true(*c >= ' ' && *c <= '~' && *c != '"' && *c != '\\');
            n_fields += *c == '{';
            fields_here += *c == '{';
            if (*c == '[')
                fields_here = 0;
            if (*c == ']' && fields_here != 1)
                fail_msg("%s: one field in each pair of brackets", template);
        }
        assert_int_in_range(n_fields, 0, LOG_MESSAGE_FIELDS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_acts_on_a_terminal_is_escaped),
        cmocka_unit_test(test_all_other_text_stays_as_it_is),
        cmocka_unit_test(test_a_line_of_nothing_else_keeps_its_bound),
        cmocka_unit_test(test_each_format_names_what_collectors_look_for),
        cmocka_unit_test(test_text_for_a_terminal_misleads_nobody),
        cmocka_unit_test(test_a_message_is_made_of_the_lines_own_fields),
        cmocka_unit_test(test_a_long_value_is_cut_in_the_message),
        cmocka_unit_test(test_every_event_has_a_template),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
