#pragma once

#include "broker/library.h"
#include "onceward/core/message.h"

#include <stdlib.h>
#include <string.h>

/* Decodes a message's properties by rabbitmq-c, to compare with src/broker/decode.c. */

enum { LIBRARY_DEPTH = 64 /* the adapter's limit */ };

static inline void library_fields_decode(struct message *m, const amqp_table_t *t, int depth,
                                         struct field **ret_fields, size_t *ret_n);

static inline struct slice library_bytes_keep(struct message *m, amqp_bytes_t b)
{
    return message_keep(m, b.bytes, b.len);
}

static inline void library_value_decode(struct message *m, const amqp_field_value_t *v, int depth,
                                        struct field *out);

static inline void library_array_decode(struct message *m, const amqp_array_t *a, int depth,
                                        struct field *out)
{
    size_t n = a->num_entries > 0 ? (size_t)a->num_entries : 0;

    out->children.items = n ? message_alloc(m, n * sizeof(struct field)) : NULL;
    out->children.n = n;
    for (size_t i = 0; i < n; i++)
        library_value_decode(m, &a->entries[i], depth + 1, &out->children.items[i]);
}

/* out is zeroed, except for its name. */
static inline void library_value_decode(struct message *m, const amqp_field_value_t *v, int depth,
                                        struct field *out)
{
    out->kind = (enum field_kind)v->kind;
    switch (v->kind) {
    case AMQP_FIELD_KIND_BOOLEAN:
        out->boolean = v->value.boolean != 0;
        return;
    case AMQP_FIELD_KIND_I8:
        out->i = v->value.i8;
        return;
    case AMQP_FIELD_KIND_I16:
        out->i = v->value.i16;
        return;
    case AMQP_FIELD_KIND_I32:
        out->i = v->value.i32;
        return;
    case AMQP_FIELD_KIND_I64:
        out->i = v->value.i64;
        return;
    case AMQP_FIELD_KIND_U8:
        out->u = v->value.u8;
        return;
    case AMQP_FIELD_KIND_U16:
        out->u = v->value.u16;
        return;
    case AMQP_FIELD_KIND_U32:
        out->u = v->value.u32;
        return;
    case AMQP_FIELD_KIND_U64:
    case AMQP_FIELD_KIND_TIMESTAMP:
        out->u = v->value.u64;
        return;
    case AMQP_FIELD_KIND_F32:
        out->d = (double)v->value.f32;
        return;
    case AMQP_FIELD_KIND_F64:
        out->d = v->value.f64;
        return;
    case AMQP_FIELD_KIND_DECIMAL:
        out->decimal.decimals = v->value.decimal.decimals;
        out->decimal.value = v->value.decimal.value;
        return;
    case AMQP_FIELD_KIND_UTF8:
    case AMQP_FIELD_KIND_BYTES:
        out->bytes = library_bytes_keep(m, v->value.bytes);
        return;
    case AMQP_FIELD_KIND_ARRAY:
    case AMQP_FIELD_KIND_TABLE:
        if (depth >= LIBRARY_DEPTH) {
            out->kind = FIELD_STRING;
            out->bytes = SLICE("(nested too deeply)");
        } else if (v->kind == AMQP_FIELD_KIND_ARRAY) {
            library_array_decode(m, &v->value.array, depth, out);
        } else {
            library_fields_decode(m, &v->value.table, depth + 1, &out->children.items, &out->children.n);
        }
        return;
    default: /* void; the library refuses unknown kinds */
        out->kind = FIELD_VOID;
        return;
    }
}

static inline void library_fields_decode(struct message *m, const amqp_table_t *t, int depth,
                                         struct field **ret_fields, size_t *ret_n)
{
    size_t n = t->num_entries > 0 ? (size_t)t->num_entries : 0;
    struct field *fields = n ? message_alloc(m, n * sizeof(struct field)) : NULL;

    for (size_t i = 0; i < n; i++) {
        fields[i].name = library_bytes_keep(m, t->entries[i].key);
        library_value_decode(m, &t->entries[i].value, depth, &fields[i]);
    }
    *ret_fields = fields;
    *ret_n = n;
}

static inline void library_message(struct message *m, const amqp_basic_properties_t *p)
{
    const struct {
        amqp_flags_t flag;
        amqp_bytes_t value;
    } strings[N_PROPERTIES] = {
        [PROPERTY_CONTENT_TYPE] = {AMQP_BASIC_CONTENT_TYPE_FLAG, p->content_type},
        [PROPERTY_CONTENT_ENCODING] = {AMQP_BASIC_CONTENT_ENCODING_FLAG, p->content_encoding},
        [PROPERTY_CORRELATION_ID] = {AMQP_BASIC_CORRELATION_ID_FLAG, p->correlation_id},
        [PROPERTY_REPLY_TO] = {AMQP_BASIC_REPLY_TO_FLAG, p->reply_to},
        [PROPERTY_EXPIRATION] = {AMQP_BASIC_EXPIRATION_FLAG, p->expiration},
        [PROPERTY_MESSAGE_ID] = {AMQP_BASIC_MESSAGE_ID_FLAG, p->message_id},
        [PROPERTY_TYPE] = {AMQP_BASIC_TYPE_FLAG, p->type},
        [PROPERTY_USER_ID] = {AMQP_BASIC_USER_ID_FLAG, p->user_id},
        [PROPERTY_APP_ID] = {AMQP_BASIC_APP_ID_FLAG, p->app_id},
        [PROPERTY_CLUSTER_ID] = {AMQP_BASIC_CLUSTER_ID_FLAG, p->cluster_id},
    };

    for (int i = 0; i < N_PROPERTIES; i++)
        if (p->_flags & strings[i].flag)
            m->properties[i] = library_bytes_keep(m, strings[i].value);
    if (p->_flags & AMQP_BASIC_DELIVERY_MODE_FLAG) {
        m->has_delivery_mode = true;
        m->delivery_mode = p->delivery_mode;
    }
    if (p->_flags & AMQP_BASIC_PRIORITY_FLAG) {
        m->has_priority = true;
        m->priority = p->priority;
    }
    if (p->_flags & AMQP_BASIC_TIMESTAMP_FLAG) {
        m->has_timestamp = true;
        m->timestamp = p->timestamp;
    }
    if (p->_flags & AMQP_BASIC_HEADERS_FLAG)
        library_fields_decode(m, &p->headers, 0, &m->headers, &m->n_headers);
}

/* NULL: the library refuses them. */
static inline struct message *library_decode(struct slice properties)
{
    struct message *m = NULL;
    amqp_pool_t pool;
    void *decoded = NULL;
    /* Of the exact size, so that a sanitizer notices a read beyond the end. */
    char *exact = malloc(properties.len ? properties.len : 1);

    memcpy(exact, properties.data, properties.len);
    init_amqp_pool(&pool, 4096);
    if (amqp_decode_properties(AMQP_BASIC_CLASS, &pool, (amqp_bytes_t){properties.len, exact}, &decoded) ==
        0) {
        m = message_new();
        library_message(m, decoded);
    }
    empty_amqp_pool(&pool);
    free(exact);
    return m;
}
