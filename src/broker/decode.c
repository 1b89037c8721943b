/* Decodes encoded fields, and a content header to properties and headers, without rabbitmq-c. Depending on its version,
 * the library recurses into tables of any depth or closes the connection over them, and it needs memory of its own for
 * each channel. The bytes are copied once, as a whole; the message's texts point into that copy. Pure. */

#include "onceward/broker/decode.h"

#include "broker/cursor.h"
#include "broker/flags.h"

#include <string.h>

enum { DEPTH_MAX = 64 };

/* --- encoded fields --- */

bool number_take(struct cursor *c, size_t n, uint64_t *ret)
{
    uint64_t value = 0;

    if ((size_t)(c->end - c->at) < n)
        return false;
    for (size_t i = 0; i < n; i++)
        value = value << 8 | (unsigned char)*c->at++;
    *ret = value;
    return true;
}

bool bytes_take(struct cursor *c, size_t size, struct slice *ret)
{
    uint64_t len;

    if (!number_take(c, size, &len) || (uint64_t)(c->end - c->at) < len)
        return false;
    *ret = (struct slice){c->at, (size_t)len};
    c->at += len;
    return true;
}

/* Number of bytes of a value of fixed size; -1: the size varies, or AMQP has no such kind. */
static int fixed_size(char kind)
{
    switch ((enum field_kind)kind) {
    case FIELD_VOID:
        return 0;
    case FIELD_BOOL:
    case FIELD_I8:
    case FIELD_U8:
        return 1;
    case FIELD_I16:
    case FIELD_U16:
        return 2;
    case FIELD_I32:
    case FIELD_U32:
    case FIELD_F32:
        return 4;
    case FIELD_DECIMAL:
        return 5;
    case FIELD_I64:
    case FIELD_U64:
    case FIELD_F64:
    case FIELD_TIMESTAMP:
        return 8;
    default:
        return -1;
    }
}

static bool has_length(char kind)
{
    return kind == FIELD_STRING || kind == FIELD_BYTES || kind == FIELD_ARRAY || kind == FIELD_TABLE;
}

bool value_take(struct cursor *c, char *ret_kind, struct slice *ret_value)
{
    if (c->at == c->end)
        return false;
    *ret_kind = *c->at++;
    if (has_length(*ret_kind))
        return bytes_take(c, 4, ret_value);
    int size = fixed_size(*ret_kind);
    if (size < 0 || c->end - c->at < size)
        return false;
    *ret_value = (struct slice){c->at, (size_t)size};
    c->at += size;
    return true;
}

/* --- content headers --- */

static bool list_decode(struct message *m, struct slice list, bool has_names, int depth, struct field **ret,
                        size_t *ret_n);

static int64_t signed_of(uint64_t bits, size_t size)
{
    unsigned unused = 64 - 8 * (unsigned)size;

    return (int64_t)(bits << unused) >> unused;
}

static void fixed_decode(struct slice value, struct field *out)
{
    struct cursor c = {value.data, value.data + value.len};
    uint64_t bits = 0, rest = 0;
    float f32;

    number_take(&c, out->kind == FIELD_DECIMAL ? 1 : value.len, &bits);
    switch (out->kind) {
    case FIELD_BOOL:
        out->boolean = bits != 0;
        break;
    case FIELD_I8:
    case FIELD_I16:
    case FIELD_I32:
    case FIELD_I64:
        out->i = signed_of(bits, value.len);
        break;
    case FIELD_F32:
        memcpy(&f32, &(uint32_t){(uint32_t)bits}, sizeof(f32));
        out->d = (double)f32;
        break;
    case FIELD_F64:
        memcpy(&out->d, &bits, sizeof(out->d));
        break;
    case FIELD_DECIMAL:
        number_take(&c, 4, &rest);
        out->decimal.decimals = (uint8_t)bits;
        out->decimal.value = (uint32_t)rest;
        break;
    case FIELD_VOID:
        break;
    default:
        out->u = bits;
        break;
    }
}

/* Decodes a value. out is zeroed, except for its name. */
static bool value_decode(struct message *m, struct cursor *c, int depth, struct field *out)
{
    struct slice value;
    char kind;

    if (!value_take(c, &kind, &value)) {
        out->kind = FIELD_VOID;
        return false;
    }
    out->kind = (enum field_kind)kind;
    if (out->kind == FIELD_STRING || out->kind == FIELD_BYTES) {
        out->bytes = value;
    } else if (out->kind != FIELD_ARRAY && out->kind != FIELD_TABLE) {
        fixed_decode(value, out);
    } else if (depth >= DEPTH_MAX) {
        out->kind = FIELD_STRING;
        out->bytes = SLICE("(nested too deeply)");
    } else {
        return list_decode(m, value, out->kind == FIELD_TABLE, depth + 1, &out->children.items,
                           &out->children.n);
    }
    return true;
}

/* Counts the items before the first malformed one. */
static size_t list_count(struct slice list, bool has_names)
{
    struct cursor c = {list.data, list.data + list.len};
    struct slice ignored;
    size_t n = 0;
    char kind;

    while (c.at < c.end && (!has_names || bytes_take(&c, 1, &ignored)) && value_take(&c, &kind, &ignored))
        n++;
    return n;
}

/* Decodes the items of an array, or of a table. */
static bool list_decode(struct message *m, struct slice list, bool has_names, int depth, struct field **ret,
                        size_t *ret_n)
{
    struct cursor c = {list.data, list.data + list.len};
    size_t n = list_count(list, has_names);
    struct field *items = n ? message_alloc(m, n * sizeof(*items)) : NULL;
    bool ok = true;

    for (size_t i = 0; i < n; i++) {
        if (has_names)
            ok &= bytes_take(&c, 1, &items[i].name);
        ok &= value_decode(m, &c, depth, &items[i]);
    }
    *ret = items;
    *ret_n = n;
    return ok && c.at == c.end;
}

static bool property_decode(struct message *m, struct cursor *c, int bit)
{
    struct slice headers;
    uint64_t value = 0;

    switch (bit) {
    case BIT_HEADERS:
        return bytes_take(c, 4, &headers) && list_decode(m, headers, true, 0, &m->headers, &m->n_headers);
    case BIT_DELIVERY_MODE:
        m->has_delivery_mode = number_take(c, 1, &value);
        m->delivery_mode = (uint8_t)value;
        return m->has_delivery_mode;
    case BIT_PRIORITY:
        m->has_priority = number_take(c, 1, &value);
        m->priority = (uint8_t)value;
        return m->has_priority;
    case BIT_TIMESTAMP:
        m->has_timestamp = number_take(c, 8, &m->timestamp);
        return m->has_timestamp;
    default:
        return bytes_take(c, 1, &m->properties[property_of_bit[bit]]);
    }
}

int message_decode(struct message *m, struct slice properties)
{
    uint64_t flags;

    m->content_header = message_keep(m, properties.data, properties.len);
    struct cursor c = {m->content_header.data, m->content_header.data + m->content_header.len};
    if (!number_take(&c, 2, &flags) || flags >> BIT_MORE & 1)
        return -1;
    for (int bit = BIT_CONTENT_TYPE; bit >= BIT_LAST; bit--)
        if (flags >> bit & 1 && !property_decode(m, &c, bit))
            return -1;
    return c.at == c.end ? 0 : -1;
}
