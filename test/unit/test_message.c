/* The message: its arena, and values from its headers. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"
#include "onceward/core/message.h"

#include <stdio.h>
#include <stdlib.h>

static void test_arena_keeps_everything(void **state)
{
    enum { N = 2000 };
    struct message *m = message_new();
    static struct slice kept[N];
    static char *pieces[N];
    char text[64];
    (void)state;

    for (size_t i = 0; i < N; i++) {
        size_t size = i % 97 == 0 ? 20000 : i % 61;

        snprintf(text, sizeof(text), "text %zu", i);
        kept[i] = message_keep(m, text, strlen(text));
        pieces[i] = message_alloc(m, size);
        assert_int_equal((uintptr_t)pieces[i] % _Alignof(max_align_t), 0);
        for (size_t k = 0; k < size; k++)
            assert_int_equal(pieces[i][k], 0);
        memset(pieces[i], 0xEE, size);
    }
    for (size_t i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "text %zu", i);
        assert_int_equal(kept[i].len, strlen(text));
        assert_memory_equal(kept[i].data, text, kept[i].len);
    }
    m->body = malloc(10);
    m->body_len = 10;
    message_free(m);
    message_free(NULL);
}

static void test_empty_is_not_absent(void **state)
{
    struct message *m = message_new();
    (void)state;

    assert_null(m->properties[PROPERTY_MESSAGE_ID].data);
    assert_null(m->body);
    assert_int_equal(m->n_headers, 0);
    m->properties[PROPERTY_MESSAGE_ID] = message_keep(m, NULL, 0);
    assert_non_null(m->properties[PROPERTY_MESSAGE_ID].data);
    assert_int_equal(m->properties[PROPERTY_MESSAGE_ID].len, 0);
    message_free(m);
}

static void test_sizes_around_the_blocks(void **state)
{
    (void)state;
    for (size_t size = 0; size < 70000; size = size < 4200 ? size + 1 : size * 2) {
        struct message *m = message_new();

        memset(message_alloc(m, size), 1, size);
        memset(message_alloc(m, 1), 1, 1);
        memset(message_alloc(m, size), 1, size);
        message_free(m);
    }
}

static void test_properties_by_name(void **state)
{
    (void)state;
    for (int p = 0; p < N_PROPERTIES; p++)
        assert_int_equal(property_find(slice_of(property_name((enum property)p))), p);
    assert_int_equal(property_find(TEXT("message_id")), PROPERTY_MESSAGE_ID);
    assert_int_equal(property_find(TEXT("message-id")), -1);
    assert_int_equal(property_find(TEXT("message_i")), -1);
    assert_int_equal(property_find(TEXT("message_id\0")), -1);
    assert_int_equal(property_find(TEXT("")), -1);
}

static void test_header_lookup(void **state)
{
    struct field headers[] = {F_INT("a", FIELD_I32, 1), F_INT("b", FIELD_I32, 2), F_INT("a", FIELD_I32, 3)};
    struct message m = {.headers = headers, .n_headers = COUNT(headers)};
    (void)state;

    assert_ptr_equal(message_header(&m, TEXT("a")), &headers[0]);
    assert_ptr_equal(message_header(&m, TEXT("b")), &headers[1]);
    assert_null(message_header(&m, TEXT("A")));
    assert_null(message_header(&m, TEXT("")));
}

static void test_names_without_values(void **state)
{
    struct message *m = message_new();
    struct buf names = {0};

    message_add_names(m, 2, &names);
    assert_string_equal(buf_text(&names), "no properties and no headers");
    buf_reset(&names);
    m->properties[PROPERTY_TYPE] = TEXT("secret");
    m->properties[PROPERTY_APP_ID] = TEXT("");
    m->has_timestamp = true;
    struct field headers[] = {F_STRING("x-id", "secret"), F_STRING("a\x1b[2J", "secret"), F_VOID("third")};
    m->headers = headers;
    m->n_headers = COUNT(headers);
    message_add_names(m, 2, &names);
    assert_string_equal(buf_text(&names),
                        "the properties type, app_id, timestamp and the headers x-id, a\\x1b[2J and 1 more");
    buf_reset(&names);
    message_add_names(m, 3, &names);
    assert_non_null(strstr(buf_text(&names), " and the headers x-id, a\\x1b[2J, third"));
    assert_null(strstr(buf_text(&names), "more"));
    buf_reset(&names);
    message_add_names(m, 0, &names);
    assert_string_equal(buf_text(&names), "the properties type, app_id, timestamp and 3 more");
    buf_reset(&names);
    m->n_headers = 0;
    m->properties[PROPERTY_TYPE] = m->properties[PROPERTY_APP_ID] = (struct slice){0};
    m->has_delivery_mode = m->has_priority = true;
    message_add_names(m, 2, &names);
    assert_string_equal(buf_text(&names), "the properties delivery_mode, priority, timestamp and no headers");
    m->n_headers = COUNT(headers);
    buf_reset(&names);
    m->properties[PROPERTY_TYPE] = m->properties[PROPERTY_APP_ID] = TEXT("");
    m->has_delivery_mode = m->has_priority = false;
    char long_name[101] = {0};
    memset(long_name, 'n', 100);
    memcpy(long_name + 47, "\xC3\xA9", 2);
    headers[0].name = slice_of(long_name);
    message_add_names(m, 1, &names);

    assert_string_equal(buf_text(&names) + strlen("the properties type, app_id, timestamp and the headers ") +
                            47,
                        " and 2 more");
    buf_deinit(&names);
    message_free(m);
}

/* Headers that the broker adds, or acts on, are not part of the message. */
static void test_headers_of_the_broker_are_not_listed(void **state)
{
    static const struct {
        struct slice name;
        bool spent;
    } cases[] = {
        {TEXT("x-delivery-count"), true},
        {TEXT("x-acquired-count"), true},
        {TEXT("x-death"), true},
        {TEXT("CC"), true},
        {TEXT("BCC"), true},
        {TEXT("x-first-death-queue"), true},
        {TEXT("x-first-death-reason"), true},
        {TEXT("x-first-death-exchange"), true},
        {TEXT("x-last-death-queue"), true},
        {TEXT("x-last-death-reason"), true},
        {TEXT("x-last-death-exchange"), true},
        {TEXT("cc"), false},
        {TEXT("x-death-"), false},
        {TEXT(""), false},
    };
    struct field headers[COUNT(cases)];
    struct message m = {.headers = headers, .n_headers = COUNT(cases)};
    struct buf names = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        headers[i] = (struct field){.name = cases[i].name, .kind = FIELD_VOID};
        assert_int_equal(header_is_spent(cases[i].name), cases[i].spent);
    }
    message_add_names(&m, 2, &names);
    assert_string_equal(buf_text(&names), "no properties and the headers cc, x-death- and 1 more");
    buf_reset(&names);
    for (int p = 0; p < N_PROPERTIES; p++)
        m.properties[p] = TEXT("");
    m.n_headers = 0;
    message_add_names(&m, 2, &names);
    assert_string_equal(
        buf_text(&names),
        "the properties content_type, content_encoding, correlation_id, reply_to, expiration, "
        "message_id, type, user_id, app_id, cluster_id and no headers");
    buf_deinit(&names);
}

static void test_deaths(void **state)
{
    struct field first[] = {F_STRING("queue", "q"), F_INT("count", FIELD_I64, 3),
                            F_STRING("reason", "rejected")};
    struct field second[] = {F_UINT("count", FIELD_U32, 4)};
    struct field array[] = {F_STRING("queue", "array"), F_INT("count", FIELD_I64, 3)};
    struct field none[] = {F_STRING("count", "9")};
    struct field negative[] = {F_INT("count", FIELD_I64, -5)};
    struct field huge[] = {F_UINT("count", FIELD_U64, UINT64_MAX)};
    struct field entries[] = {
        F_CHILDREN("", FIELD_TABLE, first), F_CHILDREN("", FIELD_TABLE, second),
        F_CHILDREN("", FIELD_ARRAY, array), /* not a table */
        F_CHILDREN("", FIELD_TABLE, none),  F_CHILDREN("", FIELD_TABLE, negative),
        F_CHILDREN("", FIELD_TABLE, huge),  F_CHILDREN("", FIELD_TABLE, huge),
    };
    struct field header = F_CHILDREN("x-death", FIELD_ARRAY, entries);
    struct message m = {.headers = &header, .n_headers = 1};
    (void)state;

    assert_true(message_deaths(&m) == INT64_MAX);
    assert_false(message_was_in(&m, SLICE("array")));
    header.children.n = 5;
    assert_int_equal(message_deaths(&m), 7);
    assert_int_equal(message_rejections(&m, SLICE("q")), 3);
    assert_int_equal(message_rejections(&m, SLICE("other")), 0);
    first[2] = F_STRING("reason", "expired");
    assert_int_equal(message_rejections(&m, SLICE("q")), 0);
    assert_true(message_was_in(&m, SLICE("q")));
    assert_false(message_was_in(&m, SLICE("nowhere")));
    header.children.n = 1;
    assert_int_equal(message_deaths(&m), 3);
    header.children.n = 0;
    assert_int_equal(message_deaths(&m), 0);
    header = F_STRING("x-death", "none");
    assert_int_equal(message_deaths(&m), 0);
    assert_false(message_was_in(&m, SLICE("q")));
    m.n_headers = 0;
    assert_int_equal(message_deaths(&m), 0);
}

static void test_delivery_count(void **state)
{
    struct field header = F_INT("x-delivery-count", FIELD_I64, 19);
    struct message m = {.headers = &header, .n_headers = 1, .redelivered = true};
    (void)state;

    assert_int_equal(message_delivery_count(&m), 19);
    m.redelivered = false; /* a publisher's header alone */
    assert_int_equal(message_delivery_count(&m), 0);
    m.redelivered = true;
    header = F_UINT("x-delivery-count", FIELD_U8, 255);
    assert_int_equal(message_delivery_count(&m), 255);
    header = F_INT("x-delivery-count", FIELD_I32, -1);
    assert_int_equal(message_delivery_count(&m), 0);
    header = F_STRING("x-delivery-count", "7");
    assert_int_equal(message_delivery_count(&m), 0);
    header = F_UINT("x-delivery-count", FIELD_TIMESTAMP, 7);
    assert_int_equal(message_delivery_count(&m), 0);
    m.n_headers = 0;
    assert_int_equal(message_delivery_count(&m), 0);
}

static void test_bytes(void **state)
{
    struct message *m = message_new();
    (void)state;

    message_keep(m, "id", 2);
    assert_int_equal(message_bytes(m), 0);
    m->body = malloc(10);
    m->body_len = 10;
    assert_int_equal(message_bytes(m), 10);
    size_t before = message_bytes(m);
    message_alloc(m, 1000000);
    assert_int_in_range(message_bytes(m) - before, 1000000, 1000000 + 4096);
    before = message_bytes(m);
    for (size_t i = 0; i < 10000; i++)
        message_keep(m, "0123456789", 10);
    assert_int_in_range(message_bytes(m) - before, 100000 - 4096, 100000 + 40000);
    message_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_keeps_everything),
        cmocka_unit_test(test_empty_is_not_absent),
        cmocka_unit_test(test_sizes_around_the_blocks),
        cmocka_unit_test(test_properties_by_name),
        cmocka_unit_test(test_names_without_values),
        cmocka_unit_test(test_header_lookup),
        cmocka_unit_test(test_headers_of_the_broker_are_not_listed),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_delivery_count),
        cmocka_unit_test(test_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
