#pragma once

#include "../unit/header_checks.h"
#include "core/field_text.h"
#include "field_compare.h"
#include "fuzz.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/scan.h"
#include "onceward/config/json.h"
#include "onceward/core/headers.h"

#include <string.h>
#include <strings.h>

/* Properties of every message that can arrive, on its way to the application and through a dead letter. */

static inline int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Undoes percent-encoding; it must be the one that is promised, letter by letter. */
static inline void percent_undo(struct buf *out, struct slice s)
{
    buf_reset(out);
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];

        if (c == '%') {
            MUST(i + 2 < s.len && hex_value(s.data[i + 1]) >= 0 && hex_value(s.data[i + 2]) >= 0);
            buf_add_char(out, (char)(hex_value(s.data[i + 1]) << 4 | hex_value(s.data[i + 2])));
            i += 2;
        } else {
            MUST((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 strchr("-._~", c));
            buf_add_char(out, c);
        }
    }
}

static inline void base64url_undo(struct buf *out, struct slice s)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    unsigned bits = 0, n_bits = 0;

    buf_reset(out);
    for (size_t i = 0; i < s.len; i++) {
        const char *at = memchr(alphabet, s.data[i], 64);

        MUST(at);
        bits = (bits << 6 | (unsigned)(at - alphabet)) & 0xFFFFF;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            buf_add_char(out, (char)(bits >> n_bits & 0xFF));
        }
    }
    MUST(n_bits < 6 && !(bits & ((1u << n_bits) - 1)));
}

static inline bool is_json(struct slice s)
{
    struct scan scan = {.at = s.data, .end = s.data + s.len};

    return slice_is_utf8(s) && scan_skip(&scan) && scan_at_end(&scan);
}

/* Is there a header of that name with that text? */
static inline bool header_has_text(const struct message *m, struct slice name, struct slice text)
{
    struct buf own = {0};
    bool found = false;

    for (size_t i = 0; i < m->n_headers && !found; i++) {
        buf_reset(&own);
        found = slice_equal(m->headers[i].name, name) && field_add_text(&own, &m->headers[i]) &&
                slice_equal(buf_slice(&own), text);
    }
    buf_deinit(&own);
    return found;
}

static inline bool cut_start(struct slice *s, struct slice start)
{
    if (s->len < start.len || memcmp(s->data, start.data, start.len) != 0)
        return false;
    s->data += start.len;
    s->len -= start.len;
    return true;
}

static inline void value_must_mean(struct slice value, struct slice original)
{
    struct buf text = {0};

    percent_undo(&text, value);
    MUST(slice_equal(buf_slice(&text), original));
    buf_deinit(&text);
}

/* A property whose value goes into a field of its own, or NULL. */
static inline const struct slice *property_of_field(const struct message *m, struct slice name)
{
    const struct {
        struct slice name;
        const struct slice *value;
    } rows[] = {
        {SLICE("Amqp-Exchange"), &m->exchange},
        {SLICE("Amqp-Routing-Key"), &m->routing_key},
        {SLICE("Amqp-Content-Encoding"), &m->properties[PROPERTY_CONTENT_ENCODING]},
        {SLICE("Amqp-Type"), &m->properties[PROPERTY_TYPE]},
        {SLICE("Amqp-App-Id"), &m->properties[PROPERTY_APP_ID]},
        {SLICE("Amqp-User-Id"), &m->properties[PROPERTY_USER_ID]},
        {SLICE("Amqp-Correlation-Id"), &m->properties[PROPERTY_CORRELATION_ID]},
        {SLICE("Amqp-Reply-To"), &m->properties[PROPERTY_REPLY_TO]},
        {SLICE("Amqp-Expiration"), &m->properties[PROPERTY_EXPIRATION]},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (slice_equal(rows[i].name, name))
            return rows[i].value;
    return NULL;
}

static inline void field_must_mean(const struct message *m, const struct request_facts *r, struct slice name,
                                   struct slice value)
{
    const struct slice *property = property_of_field(m, name);
    struct slice rest = name;
    struct buf text = {0};

    if (property) {
        value_must_mean(value, *property);
    } else if (slice_equal(name, SLICE("Idempotency-Key"))) {
        MUST(value.len > 2 && value.data[0] == '"' && value.data[value.len - 1] == '"');
        value_must_mean((struct slice){value.data + 1, value.len - 2}, r->message_id);
    } else if (slice_equal(name, SLICE("Onceward-Message-Id"))) {
        value_must_mean(value, r->message_id);
    } else if (slice_equal(name, SLICE("Onceward-Queue"))) {
        value_must_mean(value, r->queue);
    } else if (slice_equal(name, SLICE("Onceward-Consumer"))) {
        value_must_mean(value, r->consumer);
    } else if (slice_equal(name, SLICE("Amqp-Headers"))) {
        struct buf json = {0};

        base64url_undo(&text, value);
        MUST(is_json(buf_slice(&text)));
        fields_to_json(&json, m->headers, m->n_headers, false);
        MUST(slice_equal(buf_slice(&text), buf_slice(&json)));
        buf_deinit(&json);
    } else if (cut_start(&rest, SLICE("Amqp-Header-"))) {
        percent_undo(&text, value);
        MUST(header_has_text(m, rest, buf_slice(&text)));
    } else if (cut_start(&rest, SLICE("ce-")) || cut_start(&rest, SLICE("Amqp-"))) {
        percent_undo(&text, value);
    }
    buf_deinit(&text);
}

static inline void request_must_be_good(const struct message *m, const struct request_facts *r)
{
    static struct header_block block;
    size_t n_seen = 0;

    headers_write(&block, m, r);
    const char *wrong = header_block_fault(&block);
    if (wrong) {
        fprintf(stderr, "%s\n", wrong);
        abort();
    }
    for (const char *line = block.text.data; n_seen < block.n; line += strlen(line) + 1, n_seen++) {
        const char *colon = strchr(line, ':');

        field_must_mean(m, r, (struct slice){line, (size_t)(colon - line)}, slice_of(colon + 2));
        /* Servers join fields of one name, or use one of them. */
        for (const char *other = block.text.data; other != line; other += strlen(other) + 1)
            MUST(strncasecmp(other, line, (size_t)(colon - line) + 1) != 0);
    }
}

static inline void message_must_be_forwarded(const struct message *m)
{
    const struct request_facts r = {.message_id = SLICE("a\xC3\xA9/1"),
                                    .queue = SLICE("q w"),
                                    .consumer = SLICE("c%"),
                                    .token = SLICE("ow1.YwBp.AAEC"),
                                    .window_ms = 30000,
                                    .attempt = 1};

    request_must_be_good(m, &r);
}

/* The JSON of a dead letter is complete: it is read back unchanged. The caller frees the result. */
static inline struct message *message_from_letter(const struct message *m)
{
    struct message *back = message_new();
    struct buf out = {0};
    struct fault f = {0};

    fields_to_json(&out, m->headers, m->n_headers, false);
    MUST(is_json(buf_slice(&out)));
    buf_reset(&out);
    fields_to_json(&out, m->headers, m->n_headers, true);
    MUST(slice_is_text(buf_slice(&out)) && is_json(buf_slice(&out)));
    MUST(jsonread_fields(buf_slice(&out), back, &f) == 0);
    buf_reset(&out);
    properties_to_json(&out, m);
    MUST(slice_is_text(buf_slice(&out)) && is_json(buf_slice(&out)));
    MUST(jsonread_properties(buf_slice(&out), back, &f) == 0);
    MUST(!fault_is_set(&f));
    MUST(tables_equal(m->headers, m->n_headers, back->headers, back->n_headers));
    MUST(properties_equal(m, back));
    buf_deinit(&out);
    return back;
}
