/* Encodes properties and tables without rabbitmq-c, whose encoder silently cuts strings that are too long,
 * and needs a copy of every table. Pure. */

#include "broker/encode.h"

#include "broker/flags.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/core/message.h"

#include <string.h>

enum { SHORT_MAX = 255, CLASS_BASIC = 60 };

static int fields_encode(struct buf *out, const struct field *fields, size_t n, struct fault *f);

static void long_add(struct buf *out, struct slice s)
{
    buf_add_u32(out, (uint32_t)s.len);
    buf_add_slice(out, s);
}

static int short_add(struct buf *out, struct slice s, const char *what, struct fault *f)
{
    if (s.len > SHORT_MAX)
        return fault_set(f, "%s has %zu bytes; AMQP allows 255", what, s.len);
    buf_add_char(out, (char)s.len);
    buf_add_slice(out, s);
    return 0;
}

static int value_encode(struct buf *out, const struct field *v, struct fault *f);

static int array_encode(struct buf *out, const struct field *v, struct fault *f)
{
    size_t start = out->len;

    buf_add_u32(out, 0);
    for (size_t i = 0; i < v->children.n; i++)
        if (value_encode(out, &v->children.items[i], f))
            return -1;
    buf_set_length(out, start);
    return 0;
}

static uint64_t double_bits(double d)
{
    uint64_t bits;

    memcpy(&bits, &d, sizeof(bits));
    return bits;
}

static uint32_t float_bits(float d)
{
    uint32_t bits;

    memcpy(&bits, &d, sizeof(bits));
    return bits;
}

static int value_encode(struct buf *out, const struct field *v, struct fault *f)
{
    buf_add_char(out, (char)v->kind);
    switch (v->kind) {
    case FIELD_BOOL:
        buf_add_char(out, v->boolean);
        return 0;
    case FIELD_I8:
        buf_add_char(out, (char)v->i);
        return 0;
    case FIELD_U8:
        buf_add_char(out, (char)v->u);
        return 0;
    case FIELD_I16:
        buf_add_u16(out, (uint16_t)v->i);
        return 0;
    case FIELD_U16:
        buf_add_u16(out, (uint16_t)v->u);
        return 0;
    case FIELD_I32:
        buf_add_u32(out, (uint32_t)v->i);
        return 0;
    case FIELD_U32:
        buf_add_u32(out, (uint32_t)v->u);
        return 0;
    case FIELD_I64:
        buf_add_u64(out, (uint64_t)v->i);
        return 0;
    case FIELD_U64:
    case FIELD_TIMESTAMP:
        buf_add_u64(out, v->u);
        return 0;
    case FIELD_F32:
        buf_add_u32(out, float_bits((float)v->d));
        return 0;
    case FIELD_F64:
        buf_add_u64(out, double_bits(v->d));
        return 0;
    case FIELD_DECIMAL:
        buf_add_char(out, (char)v->decimal.decimals);
        buf_add_u32(out, v->decimal.value);
        return 0;
    case FIELD_STRING:
    case FIELD_BYTES:
        long_add(out, v->bytes);
        return 0;
    case FIELD_ARRAY:
        return array_encode(out, v, f);
    case FIELD_TABLE:
        return fields_encode(out, v->children.items, v->children.n, f);
    case FIELD_VOID:
        return 0;
    }
    return fault_set(f, "a header field has the unknown kind %d", (int)v->kind);
}

static int fields_encode(struct buf *out, const struct field *fields, size_t n, struct fault *f)
{
    size_t start = out->len;

    buf_add_u32(out, 0);
    for (size_t i = 0; i < n; i++)
        if (short_add(out, fields[i].name, "a header's name", f) || value_encode(out, &fields[i], f))
            return -1;
    buf_set_length(out, start);
    return 0;
}

static bool is_present(const struct message *m, int bit)
{
    switch (bit) {
    case BIT_HEADERS:
        return m->n_headers > 0;
    case BIT_DELIVERY_MODE:
        return m->has_delivery_mode;
    case BIT_PRIORITY:
        return m->has_priority;
    case BIT_TIMESTAMP:
        return m->has_timestamp;
    default:
        return m->properties[property_of_bit[bit]].data;
    }
}

static int property_encode(struct buf *out, const struct message *m, int bit, struct fault *f)
{
    switch (bit) {
    case BIT_HEADERS:
        return fields_encode(out, m->headers, m->n_headers, f);
    case BIT_DELIVERY_MODE:
        buf_add_char(out, (char)m->delivery_mode);
        return 0;
    case BIT_PRIORITY:
        buf_add_char(out, (char)m->priority);
        return 0;
    case BIT_TIMESTAMP:
        buf_add_u64(out, m->timestamp);
        return 0;
    default: {
        enum property p = property_of_bit[bit];
        return short_add(out, m->properties[p], property_name(p), f);
    }
    }
}

int message_encode(struct buf *out, const struct message *m, struct fault *f)
{
    unsigned flags = 0;

    for (int bit = BIT_CONTENT_TYPE; bit >= BIT_LAST; bit--)
        flags |= (unsigned)is_present(m, bit) << bit;
    buf_add_u16(out, CLASS_BASIC);
    buf_add_u16(out, 0); /* weight, unused */
    buf_add_u64(out, m->body_len);
    buf_add_u16(out, (uint16_t)flags);
    for (int bit = BIT_CONTENT_TYPE; bit >= BIT_LAST; bit--)
        if (flags >> bit & 1 && property_encode(out, m, bit, f))
            return -1;
    return 0;
}
