#pragma once

#include "onceward/core/message.h"

#include <stdint.h>

/* Header tables from arbitrary bytes: every sequence of bytes leads to one. For fuzzing, and for tests with
 * random input. */

struct byte_source {
    const uint8_t *at, *end;
};

static inline uint8_t take_byte(struct byte_source *s)
{
    return s->at < s->end ? *s->at++ : 0;
}

static inline uint64_t take_number(struct byte_source *s, size_t n)
{
    uint64_t v = 0;

    while (n--)
        v = v << 8 | take_byte(s);
    return v;
}

/* At most 63 bytes; points into the source. */
static inline struct slice take_slice(struct byte_source *s)
{
    size_t len = take_byte(s) & 63;

    if (len > (size_t)(s->end - s->at))
        len = (size_t)(s->end - s->at);
    struct slice out = {(const char *)s->at, len};
    s->at += len;
    return out;
}

static inline double take_double(struct byte_source *s, enum field_kind kind)
{
    uint64_t bits = take_number(s, kind == FIELD_F32 ? 4 : 8);
    uint32_t single_bits = (uint32_t)bits;
    double d;
    float f;

    memcpy(&d, &bits, sizeof(d));
    memcpy(&f, &single_bits, sizeof(f));
    return kind == FIELD_F32 ? (double)f : d;
}

static inline struct field *take_fields(struct message *m, struct byte_source *s, int depth, size_t *n,
                                        bool named);

static inline void take_value(struct message *m, struct byte_source *s, int depth, struct field *f)
{
    static const char kinds[] = "tbBsuIilLfdDSxATFV";

    f->kind = (enum field_kind)kinds[take_byte(s) % (sizeof(kinds) - 1)];
    switch (f->kind) {
    case FIELD_BOOL:
        f->boolean = take_byte(s) & 1;
        break;
    case FIELD_I8:
        f->i = (int8_t)take_number(s, 1);
        break;
    case FIELD_I16:
        f->i = (int16_t)take_number(s, 2);
        break;
    case FIELD_I32:
        f->i = (int32_t)take_number(s, 4);
        break;
    case FIELD_I64:
        f->i = (int64_t)take_number(s, 8);
        break;
    case FIELD_U8:
        f->u = take_number(s, 1);
        break;
    case FIELD_U16:
        f->u = take_number(s, 2);
        break;
    case FIELD_U32:
        f->u = take_number(s, 4);
        break;
    case FIELD_U64:
    case FIELD_TIMESTAMP:
        f->u = take_number(s, 8);
        break;
    case FIELD_F32:
    case FIELD_F64:
        f->d = take_double(s, f->kind);
        break;
    case FIELD_DECIMAL:
        f->decimal.decimals = take_byte(s);
        f->decimal.value = (uint32_t)take_number(s, 4);
        break;
    case FIELD_STRING:
    case FIELD_BYTES:
        f->bytes = take_slice(s);
        break;
    case FIELD_ARRAY:
    case FIELD_TABLE:
        if (depth > 0)
            f->children.items = take_fields(m, s, depth - 1, &f->children.n, f->kind == FIELD_TABLE);
        break;
    case FIELD_VOID:
        break;
    }
}

static inline struct field *take_fields(struct message *m, struct byte_source *s, int depth, size_t *n,
                                        bool named)
{
    *n = take_byte(s) & 15;
    if (s->at == s->end)
        *n = 0;
    struct field *fields = message_alloc(m, (*n + 1) * sizeof(*fields));

    for (size_t i = 0; i < *n; i++) {
        if (named)
            fields[i].name = take_slice(s);
        take_value(m, s, depth, &fields[i]);
    }
    return fields;
}

/* A whole message, headers last. */
static inline struct message *take_message(struct byte_source *s)
{
    struct message *m = message_new();
    unsigned present = (unsigned)take_number(s, 2);

    for (int p = 0; p < N_PROPERTIES; p++) {
        struct slice value = present >> p & 1 ? take_slice(s) : (struct slice){0};

        if (present >> p & 1)
            m->properties[p] = message_keep(m, value.data, value.len);
    }
    m->has_timestamp = present >> 10 & 1;
    m->has_priority = present >> 11 & 1;
    m->has_delivery_mode = present >> 12 & 1;
    m->redelivered = present >> 13 & 1;
    if (m->has_timestamp)
        m->timestamp = take_number(s, 8);
    m->priority = m->has_priority ? take_byte(s) : 0;
    m->delivery_mode = m->has_delivery_mode ? take_byte(s) : 0;
    m->exchange = take_slice(s);
    m->routing_key = take_slice(s);
    m->headers = take_fields(m, s, 5, &m->n_headers, true);
    return m;
}
