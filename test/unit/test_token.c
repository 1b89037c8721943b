/* The transaction token: written, read back, and malformed ones. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"
#include "onceward/core/token.h"

static const uint8_t secret[TOKEN_SECRET] = {0, 1, 2, 0xFF, 0xFE, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xF3};

#define SECRET_TEXT "AAEC__4FBgcICQoLDA0O8w"

static char long_text[600];

static void assert_round_trip(struct slice consumer, struct slice id)
{
    struct buf text = {0}, key = {0};
    struct slice got_consumer, got_id;
    uint8_t got_secret[TOKEN_SECRET];

    buf_add_text(&text, "before ");
    token_write(&text, consumer, id, secret);
    struct slice token = {text.data + 7, text.len - 7};
    assert_true(token.len <= TOKEN_MAX);
    for (size_t i = 0; i < token.len; i++)
        assert_non_null(
            strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", token.data[i]));
    buf_add_text(&key, "kept");
    assert_int_equal(token_read(token, &key, &got_consumer, &got_id, got_secret), 0);
    assert_memory_equal(key.data, "kept", 4);
    assert_int_equal(key.len, 4 + consumer.len + 1 + id.len);
    assert_true(slice_equal(got_consumer, consumer));
    assert_true(slice_equal(got_id, id));
    assert_memory_equal(got_secret, secret, TOKEN_SECRET);
    buf_deinit(&text);
    buf_deinit(&key);
}

static void test_round_trip(void **state)
{
    static const struct slice texts[] = {
        TEXT("a"),
        TEXT("ab"),
        TEXT("abc"),
        TEXT("orders"),
        TEXT("0f8fad5b-d9cb-469f-a165-70867728950e"),
        TEXT("%"),
        TEXT("a.b.c"),
        TEXT("\"\\,{}"),
        TEXT(" "),
        TEXT("\xC3\xA4\xF0\x9F\x90\x87"),
        TEXT("\x01"),
        TEXT("\r\n\t"),
        TEXT("\xEF\xBF\xBF"),
        TEXT("ow1.AA.BB"),
    };
    (void)state;

    for (size_t i = 0; i < COUNT(texts); i++)
        for (size_t k = 0; k < COUNT(texts); k++)
            assert_round_trip(texts[i], texts[k]);
    for (size_t len = 1; len <= 255; len++)
        assert_round_trip((struct slice){long_text, 256 - len}, (struct slice){long_text, len});
    assert_round_trip((struct slice){long_text, 255}, (struct slice){long_text, 255});
}

static void test_known_text(void **state)
{
    struct buf text = {0};
    (void)state;

    token_write(&text, TEXT("orders"), TEXT("m-1"), secret);
    assert_string_equal(buf_text(&text), "ow1.b3JkZXJzAG0tMQ." SECRET_TEXT);
    buf_deinit(&text);
}

/* Reads a token with a key of raw bytes, well-formed or not. */
static int read_key(struct slice raw)
{
    struct buf text = {0}, key = {0};
    struct slice consumer = {0}, id = {0};
    uint8_t out[TOKEN_SECRET];

    buf_add_text(&text, "ow1.");
    buf_add_base64url(&text, raw.data, raw.len);
    buf_add_text(&text, "." SECRET_TEXT);
    int result = token_read(buf_slice(&text), &key, &consumer, &id, out);
    if (result)
        assert_int_equal(key.len, 0);
    buf_deinit(&text);
    buf_deinit(&key);
    return result;
}

static void test_bad_keys(void **state)
{
    static const struct {
        struct slice raw;
        int result;
    } cases[] = {
        {TEXT("c\0i"), 0},
        {TEXT("orders\0m-1"), 0},
        {TEXT(""), 1},
        {TEXT("orders"), 1}, /* no NUL */
        {TEXT("\0"), 1},
        {TEXT("c\0"), 1},    /* no id */
        {TEXT("\0i"), 1},    /* no consumer */
        {TEXT("c\0i\0"), 1}, /* two NULs */
        {TEXT("c\0\0i"), 1},
        {TEXT("c\0i\0j"), 1},
        {TEXT("\xFF\0i"), 1}, /* not UTF-8 */
        {TEXT("c\0\xC0\x80"), 1},
        {TEXT("c\0\xED\xA0\x80"), 1},
        {TEXT("c\0cut\xE2\x82"), 1},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(read_key(cases[i].raw), cases[i].result);
}

static void test_malformed(void **state)
{
    static const struct slice bad[] = {
        TEXT(""),
        TEXT("ow1"),
        TEXT("ow1."),
        TEXT("ow1.."),
        TEXT("ow1.." SECRET_TEXT),
        TEXT("ow1." SECRET_TEXT),
        TEXT("ow2.YwBp." SECRET_TEXT),
        TEXT("OW1.YwBp." SECRET_TEXT),
        TEXT("ow1YwBp." SECRET_TEXT),
        TEXT(" ow1.YwBp." SECRET_TEXT),
        TEXT("ow1.YwBp." SECRET_TEXT " "),
        TEXT("ow1.YwBp." SECRET_TEXT "\n"),
        TEXT("ow1.YwBp." SECRET_TEXT "\0"),
        TEXT("ow1.YwBp"),
        TEXT("ow1.YwBp."),
        TEXT("ow1.YwBp.AAEC__4FBgcICQoLDA0O8"),   /* 21 */
        TEXT("ow1.YwBp.AAEC__4FBgcICQoLDA0O8wA"), /* 23 */
        TEXT("ow1.YwBp.AAEC__4FBgcICQoLDA0O8x"),  /* padding bits of the secret: w is 110000, x is 110001 */
        TEXT("ow1.YwBp.AAEC__4FBgcICQoLDA0O8_"),
        TEXT("ow1.YwBp.AAEC//4FBgcICQoLDA0O8w"), /* the other alphabet */
        TEXT("ow1.YwBp.AAEC++4FBgcICQoLDA0O8w"),
        TEXT("ow1.YwBp.AAEC__4FBgcICQoLDA0O8w=="),
        TEXT("ow1.YwBpaQ==." SECRET_TEXT),
        TEXT("ow1.YwBpaQ=." SECRET_TEXT),
        TEXT("ow1.YwBpaR." SECRET_TEXT), /* padding bits of the key */
        TEXT("ow1.YwBpA." SECRET_TEXT),
        TEXT("ow1.YwBpa." SECRET_TEXT),   /* length 1 mod 4 */
        TEXT("ow1.YwBpaWn." SECRET_TEXT), /* padding bits, two bytes left */
        TEXT("ow1.Yw.Bp." SECRET_TEXT),
        TEXT("ow1.Yw Bp." SECRET_TEXT),
        TEXT("ow1.Yw\0p." SECRET_TEXT),
        TEXT("ow1.Yw\xC3\xA4." SECRET_TEXT),
    };
    static const struct slice good[] = {TEXT("ow1.YwBp." SECRET_TEXT), TEXT("ow1.YwBpaQ." SECRET_TEXT),
                                        TEXT("ow1.YwBpaWk." SECRET_TEXT)};
    struct buf key = {0};
    struct slice consumer = {0}, id = {0};
    uint8_t out[TOKEN_SECRET] = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(token_read(bad[i], &key, &consumer, &id, out), 1);
        assert_int_equal(key.len, 0);
        assert_null(consumer.data);
        assert_null(id.data);
    }
    for (size_t i = 0; i < COUNT(good); i++)
        assert_int_equal(token_read(good[i], &key, &consumer, &id, out), 0);
    buf_deinit(&key);
}

static void test_too_long(void **state)
{
    char raw[2 + 520] = "c";
    (void)state;

    memset(raw + 2, 'i', sizeof(raw) - 2);
    assert_int_equal(read_key((struct slice){raw, 519}), 0); /* 4 + 692 + 1 + 22 = 719 */
    assert_int_equal(read_key((struct slice){raw, 520}), 1); /* 721 */
    assert_int_equal(read_key((struct slice){raw, 522}), 1);
}

/* Changing any letter of a token makes it invalid, or another token. */
static void test_one_text_for_one_value(void **state)
{
    static const char good[] = "ow1.b3JkZXJzAG0tMQ." SECRET_TEXT;
    char text[sizeof(good)];
    struct buf key = {0};
    struct slice consumer, id;
    uint8_t out[TOKEN_SECRET];
    (void)state;

    for (size_t i = 0; i + 1 < sizeof(good); i++) {
        for (int c = 0; c < 256; c++) {
            memcpy(text, good, sizeof(good));
            text[i] = (char)c;
            buf_reset(&key);
            if (text[i] == good[i] ||
                token_read((struct slice){text, sizeof(good) - 1}, &key, &consumer, &id, out))
                continue;
            assert_false(slice_equal(consumer, TEXT("orders")) && slice_equal(id, TEXT("m-1")) &&
                         memcmp(out, secret, TOKEN_SECRET) == 0);
        }
    }
    buf_deinit(&key);
}

/* A token that names a previous message has its secret last, behind that message's key. */
static void test_a_token_behind_another_message(void **state)
{
    struct buf text = {0}, key = {0};
    struct slice consumer, id;
    uint8_t out[TOKEN_SECRET];
    (void)state;

    buf_add_text(&text, "before ");
    token_write_behind(&text, TEXT("orders"), TEXT("m-2"), TEXT("m-1"), secret);
    assert_string_equal(buf_text(&text), "before ow1.b3JkZXJzAG0tMg.b3JkZXJzAG0tMQ." SECRET_TEXT);
    assert_int_equal(token_read((struct slice){text.data + 7, text.len - 7}, &key, &consumer, &id, out), 1);
    buf_reset(&text);
    token_write_behind(&text, (struct slice){long_text, 255}, (struct slice){long_text, 255},
                       (struct slice){long_text, 255}, secret);
    assert_true(text.len <= TOKEN_BEHIND_MAX);
    buf_deinit(&text);
    buf_deinit(&key);
}

static void test_tokens_of_one_claim(void **state)
{
#define KEY    "ow1.b3JkZXJzAG0tMg."
#define BEFORE "b3JkZXJzAG0tMQ."
    static const struct {
        struct slice token, other;
        bool same;
    } cases[] = {
        {TEXT(KEY SECRET_TEXT), TEXT(KEY SECRET_TEXT), true},
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT(KEY SECRET_TEXT), true},
        {TEXT(KEY SECRET_TEXT), TEXT(KEY BEFORE SECRET_TEXT), false}, /* the claim's own token names none */
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT("ow1.b3JkZXJzAG0tMw." SECRET_TEXT), false},
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT("ow1." BEFORE SECRET_TEXT), false},
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT(KEY "BAEC__4FBgcICQoLDA0O8w"), false}, /* first character */
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT(KEY "AAEC__4FBgcICQoLDA0O8g"), false}, /* last character */
        {TEXT(KEY SECRET_TEXT), TEXT(KEY "AAEC__4FBgcICQoLDA0O8g"), false},
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT(KEY "AEC__4FBgcICQoLDA0O8w"), false}, /* a short secret */
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT(KEY "." SECRET_TEXT), false},         /* a long one */
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT("ow1"), false},
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT("ow1."), false},
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT("ow1.b3JkZXJzAG0tMg"), false},
        {TEXT(KEY BEFORE SECRET_TEXT), TEXT(""), false},
        {TEXT(""), TEXT(KEY SECRET_TEXT), false},
    };
#undef KEY
#undef BEFORE
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(token_is_same(cases[i].token, cases[i].other), cases[i].same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_token_behind_another_message),
        cmocka_unit_test(test_tokens_of_one_claim),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_known_text),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_one_text_for_one_value),
    };

    memset(long_text, 'x', sizeof(long_text));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
