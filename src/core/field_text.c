/* AMQP field values as text. Pure functions; any thread. The locale is C throughout the program, so a decimal
 * point is a point. */

#include "core/field_text.h"

#include "onceward/base/buf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool field_integer(const struct field *f, int64_t *value)
{
    switch (f->kind) {
    case FIELD_I8:
    case FIELD_I16:
    case FIELD_I32:
    case FIELD_I64:
        *value = f->i;
        return true;
    case FIELD_U8:
    case FIELD_U16:
    case FIELD_U32:
    case FIELD_U64:
        *value = f->u > INT64_MAX ? INT64_MAX : (int64_t)f->u;
        return true;
    default:
        return false;
    }
}

bool field_add_text(struct buf *out, const struct field *f)
{
    switch (f->kind) {
    case FIELD_BOOL:
        buf_add_text(out, f->boolean ? "true" : "false");
        return true;
    case FIELD_I8:
    case FIELD_I16:
    case FIELD_I32:
    case FIELD_I64:
        buf_printf(out, "%" PRId64, f->i);
        return true;
    case FIELD_U8:
    case FIELD_U16:
    case FIELD_U32:
    case FIELD_U64:
    case FIELD_TIMESTAMP:
        buf_printf(out, "%" PRIu64, f->u);
        return true;
    case FIELD_F32:
    case FIELD_F64:
        add_double(out, f->d, f->kind == FIELD_F32);
        return true;
    case FIELD_DECIMAL:
        add_decimal(out, f->decimal.value, f->decimal.decimals);
        return true;
    case FIELD_STRING:
    case FIELD_BYTES:
        buf_add_slice(out, f->bytes);
        return true;
    case FIELD_ARRAY:
    case FIELD_TABLE:
    case FIELD_VOID:
        break;
    }
    return false;
}

void add_double(struct buf *out, double value, bool single)
{
    char text[40];

    if (isnan(value)) {
        buf_add_text(out, "NaN");
        return;
    }
    if (isinf(value)) {
        buf_add_text(out, value < 0 ? "-Infinity" : "Infinity");
        return;
    }
    int enough = single ? 9 : 17; /* digits that always read back exactly */
    for (int digits = single ? 6 : 15; digits <= enough; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    buf_add_text(out, text);
    if (!strpbrk(text, ".e"))
        buf_add_text(out, ".0");
}

void add_decimal(struct buf *out, uint32_t value, uint8_t decimals)
{
    char digits[300];
    int n = snprintf(digits, sizeof(digits), "%0*" PRIu32, decimals + 1, value);
    size_t whole = (size_t)n - decimals;

    buf_add(out, digits, whole);
    if (decimals) {
        buf_add_char(out, '.');
        buf_add(out, digits + whole, decimals);
    }
}

void add_base64(struct buf *out, struct slice s)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *in = (const uint8_t *)s.data;
    char *p = buf_reserve(out, s.len / 3 * 4 + 4);

    for (size_t i = 0; i < s.len; i += 3) {
        size_t left = s.len - i;
        uint32_t group = (uint32_t)in[i] << 16;

        if (left > 1)
            group |= (uint32_t)in[i + 1] << 8;
        if (left > 2)
            group |= in[i + 2];
        *p++ = alphabet[group >> 18];
        *p++ = alphabet[group >> 12 & 63];
        *p++ = left > 1 ? alphabet[group >> 6 & 63] : '=';
        *p++ = left > 2 ? alphabet[group & 63] : '=';
    }
    out->len += (s.len + 2) / 3 * 4;
}
