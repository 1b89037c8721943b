/* A JSON pointer finds the same value in a body as another JSON reader. */

#include "field_maker.h"
#include "fuzz.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/json.h"
#include "onceward/core/identity.h"

#include <jansson.h>

/* Takes the token behind the pointer's first "/", and advances *pointer. */
static void take_token(struct slice *pointer, struct buf *token)
{
    buf_reset(token);
    for (pointer->data++, pointer->len--; pointer->len && *pointer->data != '/';
         pointer->data++, pointer->len--) {
        char c = *pointer->data;

        if (c == '~') {
            pointer->data++, pointer->len--;
            c = *pointer->data == '0' ? '~' : '/';
        }
        buf_add_char(token, c);
    }
}

static json_t *item_at(json_t *array, const char *token)
{
    size_t len = strlen(token);

    if (!len || len > 9 || strspn(token, "0123456789") != len || (len > 1 && *token == '0'))
        return NULL;
    return json_array_get(array, strtoul(token, NULL, 10));
}

static json_t *walk(json_t *at, struct slice pointer)
{
    struct buf token = {0};

    while (at && pointer.len) {
        take_token(&pointer, &token);
        const char *text = buf_text(&token);
        at = json_is_object(at)  ? json_object_getn(at, text, token.len)
             : json_is_array(at) ? item_at(at, text)
                                 : NULL;
    }
    buf_deinit(&token);
    return at;
}

static bool scalar_add(struct buf *out, json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_STRING:
        buf_add(out, json_string_value(value), json_string_length(value));
        return true;
    case JSON_INTEGER:
        buf_printf(out, "%lld", (long long)json_integer_value(value));
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        buf_add_text(out, json_is_true(value) ? "true" : "false");
        return true;
    default:
        return false;
    }
}

/* The other reader refuses some bodies that this one accepts: numbers of any size, halves of surrogate pairs,
 * NUL in names. */
static bool is_known_difference(const json_error_t *e)
{
    return json_error_code(e) == json_error_numeric_overflow ||
           json_error_code(e) == json_error_null_byte_in_key || strstr(e->text, "invalid Unicode");
}

static bool is_deep(struct slice body)
{
    size_t n_open = 0;

    for (size_t i = 0; i < body.len; i++)
        n_open += body.data[i] == '{' || body.data[i] == '[';
    return n_open >= 1000;
}

static void compare(struct slice body, struct slice pointer, const struct slice *found)
{
    struct buf expected = {0};
    json_error_t e;

    if (body.len && memchr(body.data, '\0', body.len)) { /* the other reader skips a NUL behind a number */
        MUST(!found);
        return;
    }
    if (body.len >= 3 && !memcmp(body.data, "\xEF\xBB\xBF", 3))
        body.data += 3, body.len -= 3;
    json_t *root = json_loadb(body.data ? body.data : "", body.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (root) {
        bool is_there = scalar_add(&expected, walk(root, pointer));

        if (found)
            MUST(is_there && slice_equal(*found, buf_slice(&expected)));
        else
            MUST(!is_there || is_deep(body));
    } else if (found) {
        MUST(is_known_difference(&e));
    }
    json_decref(root);
    buf_deinit(&expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct slice pointer = take_slice(&s), body = {(const char *)s.at, (size_t)(s.end - s.at)}, found;
    struct identity_source source;
    struct buf out = {0}, expression = {0};
    struct fault f = {0};

    buf_add_text(&out, "before");
    int error = jsonread_pointer(body, pointer, &out);
    MUST(out.len >= 6 && memcmp(out.data, "before", 6) == 0);
    MUST(!error || out.len == 6);
    found = (struct slice){out.data + 6, out.len - 6};
    buf_add_text(&expression, "json:");
    buf_add_slice(&expression, pointer);
    if (identity_parse(buf_slice(&expression), &source, &f) == 0)
        compare(body, pointer, error ? NULL : &found);
    buf_deinit(&out);
    buf_deinit(&expression);
    return 0;
}
