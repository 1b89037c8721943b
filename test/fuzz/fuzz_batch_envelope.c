/* The envelope of any messages is one JSON text of bounded depth in UTF-8. */

#include "field_maker.h"
#include "fuzz.h"
#include "onceward/base/buf.h"
#include "onceward/base/scan.h"
#include "onceward/core/batch_envelope.h"

#include <stdlib.h>
#include <string.h>

static void take_body(struct byte_source *s, struct message *m)
{
    struct slice body = take_slice(s);

    free(m->body);
    m->body = body.len ? malloc(body.len) : NULL;
    if (body.len)
        memcpy(m->body, body.data, body.len);
    m->body_len = body.len;
}

/* Neither a long number nor many levels, which some readers refuse. */
static void check_body(const struct message *m)
{
    int depth = 0;

    for (size_t i = 0, digits = 0; i < m->body_len; i++) {
        char c = m->body[i];

        if (c == '"') /* strings may have anything */
            while (++i < m->body_len && m->body[i] != '"')
                i += m->body[i] == '\\';
        digits = c >= '0' && c <= '9' ? digits + 1 : 0;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        MUST(digits <= ENVELOPE_DIGITS_MAX && depth <= ENVELOPE_DEPTH_MAX);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct buf out = {0};
    size_t len = ENVELOPE_ENDS;

    envelope_begin(&out);
    for (int i = 0; i < 2; i++) {
        struct envelope_member e = {
            .token = SLICE("ow1.YwBp.AAEC"), .attempt = 1, .content_type = SLICE("application/json")};

        e.id = take_slice(&s);
        e.queue = take_slice(&s);
        struct message *m = take_message(&s);

        take_body(&s, m);
        e.message = m;
        e.body_is_json = envelope_takes_body(m, e.content_type);
        if (e.body_is_json)
            check_body(m);
        MUST(!e.body_is_json || envelope_takes_type(m, e.content_type));
        envelope_add(&out, &e);
        len += envelope_size(&e);
        message_free(m);
    }
    envelope_end(&out);
    struct scan walk = {.at = out.data, .end = out.data + out.len};

    MUST(len == out.len);
    MUST(slice_is_utf8(buf_slice(&out)));
    MUST(scan_skip(&walk) && scan_at_end(&walk));
    buf_deinit(&out);
    return 0;
}
