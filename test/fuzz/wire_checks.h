#pragma once

#include "broker/edit.h"
#include "broker/encode.h"
#include "library_decode.h"
#include "message_checks.h"
#include "onceward/broker/decode.h"

/* Encoding to the wire and decoding, as in the broker's adapter. */

enum { PROPERTIES_AT = 12 /* behind class, weight and body size */ };

static inline struct slice properties_of_payload(const struct buf *payload)
{
    return (struct slice){payload->data + PROPERTIES_AT, payload->len - PROPERTIES_AT};
}

/* Decodes properties into memory that is freed afterwards. Returns the result of message_decode. */
static inline int properties_decode(struct slice properties, struct message **ret)
{
    /* Of the exact size, so that a sanitizer notices a read beyond the end. */
    char *exact = malloc(properties.len ? properties.len : 1);

    memcpy(exact, properties.data, properties.len);
    *ret = message_new();
    int r = message_decode(*ret, (struct slice){exact, properties.len});
    memset(exact, 0xAA, properties.len);
    free(exact);
    MUST(slice_equal((*ret)->content_header, properties));
    return r;
}

static inline void messages_must_be_equal(const struct message *a, const struct message *b)
{
    MUST(properties_equal(a, b));
    MUST(tables_equal(a->headers, a->n_headers, b->headers, b->n_headers));
}

/* Fields that are nested too deeply are not compared. */
static inline bool is_cut(const struct field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct field *f = &fields[i];

        if (f->kind == FIELD_STRING && slice_equal(f->bytes, SLICE("(nested too deeply)")))
            return true;
        if ((f->kind == FIELD_ARRAY || f->kind == FIELD_TABLE) && is_cut(f->children.items, f->children.n))
            return true;
    }
    return false;
}

/* The library must decode the same. */
static inline void library_must_agree(const struct message *m, int r)
{
    struct message *other = library_decode(m->content_header);

    MUST(other || r < 0 || is_cut(m->headers, m->n_headers));
    if (r == 0 && other)
        messages_must_be_equal(other, m);
    message_free(other);
}

/* Removes by hand the fields that must not be published again. */
static inline void publishable_make(struct message *m, struct slice user)
{
    size_t n = 0;

    m->has_delivery_mode = true;
    m->delivery_mode = 2;
    m->properties[PROPERTY_EXPIRATION] = (struct slice){0};
    if (!slice_equal(m->properties[PROPERTY_USER_ID], user))
        m->properties[PROPERTY_USER_ID] = (struct slice){0};
    for (size_t i = 0; i < m->n_headers; i++)
        if (!header_is_spent(m->headers[i].name))
            m->headers[n++] = m->headers[i];
    m->n_headers = n;
}

/* Published from its bytes it is the same message, without the removed fields and without further loss. */
static inline void bytes_must_be_published(struct slice properties, struct slice user)
{
    struct message *m, *back;
    struct buf out = {0}, again = {0};
    struct fault f = {0};
    int r = properties_decode(properties, &m);
    int edited = content_header_edit(&out, properties, 7, user, false, &f);

    MUST(r < 0 || edited == 0);
    MUST(edited == 0 || fault_is_set(&f));
    if (edited == 0) {
        MUST(!memcmp(out.data, "\0\x3C\0\0\0\0\0\0\0\0\0\7", PROPERTIES_AT));
        MUST(properties_decode(properties_of_payload(&out), &back) == r);
        if (r == 0) {
            publishable_make(m, user);
            messages_must_be_equal(m, back);
        }
        MUST(content_header_edit(&again, properties_of_payload(&out), 7, user, false, &f) == 0);
        MUST(slice_equal(buf_slice(&out), buf_slice(&again)));
        message_free(back);
    }
    message_free(m);
    buf_deinit(&out);
    buf_deinit(&again);
}

/* The published bytes are read back as the same message. */
static inline void message_must_be_published(const struct message *m)
{
    struct buf out = {0};
    struct message *back;
    struct fault f = {0};

    MUST(message_encode(&out, m, &f) == 0 && !fault_is_set(&f));
    MUST(properties_decode(properties_of_payload(&out), &back) == 0);
    messages_must_be_equal(m, back);
    bytes_must_be_published(back->content_header, SLICE("guest"));
    message_free(back);
    buf_deinit(&out);
}
