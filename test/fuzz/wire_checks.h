#pragma once

#include "broker/decode.h"
#include "broker/encode.h"
#include "broker/library.h"
#include "broker/nesting.h"
#include "message_checks.h"

/* The way to the wire and back, as the broker's adapter has it. */

enum { PROPERTIES_AT = 12 /* behind class, weight and size of the body */ };

/* What the library makes of the payload of a content header, copied. NULL: it refuses it. */
static inline struct message *payload_decode(const struct buf *payload)
{
    struct message *m = NULL;
    amqp_pool_t pool;
    void *decoded = NULL;
    /* Exactly as long, so that a sanitizer sees a read behind the end. */
    size_t len = payload->len - PROPERTIES_AT;
    char *exact = malloc(len ? len : 1);

    memcpy(exact, payload->data + PROPERTIES_AT, len);
    init_amqp_pool(&pool, 4096);
    if (amqp_decode_properties(AMQP_BASIC_CLASS, &pool, (amqp_bytes_t){len, exact}, &decoded) == 0) {
        m = message_new();
        message_decode(m, decoded);
    }
    empty_amqp_pool(&pool);
    memset(exact, 0xAA, len); /* nothing may point into it any more */
    free(exact);
    return m;
}

/* What goes out is read back as the same. */
static inline void message_must_be_published(const struct message *m)
{
    struct buf out = {0}, cut = {0};
    struct fault f = {0};

    MUST(message_encode(&out, m, &f) == 0 && !fault_is_set(&f));
    buf_add_slice(&cut, buf_slice(&out));
    nesting_cut(cut.data, cut.len);
    MUST(slice_equal(buf_slice(&out), buf_slice(&cut)));
    struct message *back = payload_decode(&out);
    MUST(back);
    MUST(properties_equal(m, back));
    MUST(tables_equal(m->headers, m->n_headers, back->headers, back->n_headers));
    message_free(back);
    buf_deinit(&out);
    buf_deinit(&cut);
}
