/* Arrays as binary parameters. Pure; see array.h for the model. */
#include "array.h"

#include "text.h"

#include <assert.h>
#include <endian.h>
#include <limits.h>
#include <string.h>

const struct array_oids array_oids[N_ARRAY_TYPES] = {
    [ARRAY_BOOL] = {16, 1000},   [ARRAY_BYTEA] = {17, 1001}, [ARRAY_INT8] = {20, 1016},
    [ARRAY_INT4] = {23, 1007},   [ARRAY_TEXT] = {25, 1009},  [ARRAY_INTERVAL] = {1186, 1187},
    [ARRAY_UUID] = {2950, 2951},
};

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
    assert(a->buf.len - start - 4 <= INT_MAX);
    buf_set_length(&a->buf, start);
}

/* Finds the end of the next n elements. */
static size_t array_end(const struct array *a, size_t n)
{
    size_t end = a->at;

    for (; n; n--) {
        uint32_t len;

        assert(end + 4 <= a->buf.len);
        memcpy(&len, a->buf.data + end, sizeof(len));
        len = be32toh(len);
        end += 4 + (len == UINT32_MAX ? 0 : (size_t)len);
    }
    assert(end <= a->buf.len);
    return end;
}

struct slice array_slice(struct array *a, size_t n)
{
    const uint32_t header[] = {htobe32(1), htobe32(a->has_null), htobe32(array_oids[a->type].element),
                               htobe32((uint32_t)n), htobe32(1)};
    size_t start = a->at - ARRAY_HEADER;

    /* The bytes before an element belong to the first header or to skipped elements, so there is room for a header. */
    static_assert(sizeof(header) == ARRAY_HEADER, "dimensions, flags, element type, elements, lower bound");
    memcpy(a->buf.data + start, header, sizeof(header));
    return (struct slice){a->buf.data + start, array_end(a, n) - start};
}

void array_skip(struct array *a, size_t n)
{
    a->at = array_end(a, n);
}
