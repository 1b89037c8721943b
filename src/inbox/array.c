/* Arrays as binary parameters. Pure; see array.h for the model. */
#include "array.h"

#include "text.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

void array_deinit(struct array *a)
{
    buf_deinit(&a->buf);
    a->at = 0;
}

void array_start(struct array *a, enum array_type type, size_t n, size_t bytes)
{
    static const char header[ARRAY_HEADER];

    buf_reset(&a->buf);
    buf_reserve(&a->buf, ARRAY_HEADER + n * 4 + bytes);
    buf_add(&a->buf, header, sizeof(header));
    a->at = ARRAY_HEADER;
    a->type = type;
    a->has_null = false;
    a->has_value = false;
}

void array_add(struct array *a, const void *data, size_t len)
{
    assert(len <= INT_MAX);
    buf_add_u32(&a->buf, (uint32_t)len);
    buf_add(&a->buf, data, len);
    a->has_value = true;
}

void array_add_null(struct array *a)
{
    buf_add_u32(&a->buf, UINT32_MAX);
    a->has_null = true;
}

void array_add_slice(struct array *a, struct slice s)
{
    if (s.data)
        array_add(a, s.data, s.len);
    else
        array_add_null(a);
}

void array_add_int4(struct array *a, int32_t v)
{
    buf_add_u32(&a->buf, sizeof(v));
    buf_add_u32(&a->buf, (uint32_t)v);
    a->has_value = true;
}

void array_add_int8(struct array *a, int64_t v)
{
    buf_add_u32(&a->buf, sizeof(v));
    buf_add_u64(&a->buf, (uint64_t)v);
    a->has_value = true;
}

void array_add_bool(struct array *a, bool v)
{
    array_add(a, v ? "\1" : "", 1);
}

/* Format: microseconds, days, months. */
void array_add_interval(struct array *a, int64_t ms)
{
    buf_add_u32(&a->buf, 16);
    buf_add_u64(&a->buf, (uint64_t)ms * 1000);
    buf_add_u64(&a->buf, 0);
    a->has_value = true;
}

static void put_u32(char *p, size_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (char)(v >> (24 - 8 * i));
}

static size_t get_u32(const char *p)
{
    size_t v = 0;

    for (int i = 0; i < 4; i++)
        v = v << 8 | (uint8_t)p[i];
    return v;
}

void array_add_text(struct array *a, struct slice s, size_t max)
{
    if (!s.data) {
        array_add_null(a);
        return;
    }
    size_t start = a->buf.len;

    a->has_value = true;
    buf_add_u32(&a->buf, 0);
    text_add(&a->buf, s, max);
    size_t len = a->buf.len - start - 4;
    assert(len <= INT_MAX);
    put_u32(a->buf.data + start, len);
}

/* Finds the end of the next n elements. */
static size_t array_end(const struct array *a, size_t n)
{
    size_t end = a->at;

    for (; n; n--) {
        assert(end + 4 <= a->buf.len);
        size_t len = get_u32(a->buf.data + end);

        end += 4 + (len == UINT32_MAX ? 0 : len);
    }
    assert(end <= a->buf.len);
    return end;
}

struct slice array_slice(struct array *a, size_t n)
{
    /* The bytes before an element belong to the first header or to skipped elements, so there is room for a header. */
    char *header = a->buf.data + a->at - ARRAY_HEADER;

    put_u32(header, 1);
    put_u32(header + 4, a->has_null);
    put_u32(header + 8, a->type);
    put_u32(header + 12, n);
    put_u32(header + 16, 1);
    return (struct slice){header, array_end(a, n) - (size_t)(header - a->buf.data)};
}

void array_skip(struct array *a, size_t n)
{
    a->at = array_end(a, n);
}
