/* The body of a request with several messages: see batch_envelope.h. */
#include "onceward/core/batch_envelope.h"

#include "core/field_text.h"
#include "onceward/base/buf.h"
#include "onceward/base/scan.h"
#include "onceward/core/message.h"

#include <assert.h>
#include <inttypes.h>
#include <strings.h>

static const char HEAD[] = "{\"messages\":[";
static const char TAIL[] = "]}";

static_assert(sizeof(HEAD) - 1 + sizeof(TAIL) - 1 == ENVELOPE_ENDS + 1, "the first member has no comma");

/* --- bodies --- */

static struct slice media_subtype(struct slice type)
{
    const char *end = memchr(type.data, ';', type.len), *slash;

    if (end)
        type.len = (size_t)(end - type.data);
    while (type.len && (type.data[type.len - 1] == ' ' || type.data[type.len - 1] == '\t'))
        type.len--;
    slash = type.len ? memchr(type.data, '/', type.len) : NULL;
    if (!slash)
        return (struct slice){0};
    return (struct slice){slash + 1, (size_t)(type.data + type.len - slash - 1)};
}

static bool is_json_type(struct slice type)
{
    struct slice subtype = type.len ? media_subtype(type) : type;

    if (subtype.len == 4 && !strncasecmp(subtype.data, "json", 4))
        return true;
    return subtype.len > 5 && !strncasecmp(subtype.data + subtype.len - 5, "+json", 5);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return (c | 0x20) - 'a' + 10;
}

static uint32_t unit_at(const char *p)
{
    uint32_t unit = 0;

    for (int i = 0; i < 4; i++)
        unit = unit << 4 | (uint32_t)hex_value(p[i]);
    return unit;
}

/* Requires valid JSON text, whose escapes are complete. */
static bool has_lone_surrogate(struct slice text)
{
    const char *at = text.data, *end = text.data + text.len;

    while (at < end && (at = memchr(at, '\\', (size_t)(end - at)))) {
        if (at[1] != 'u') {
            at += 2;
            continue;
        }
        uint32_t unit = unit_at(at + 2);

        at += 6;
        if (unit < 0xD800 || unit > 0xDFFF)
            continue;
        if (unit > 0xDBFF || end - at < 6 || at[0] != '\\' || at[1] != 'u')
            return true;
        unit = unit_at(at + 2);
        if (unit < 0xDC00 || unit > 0xDFFF)
            return true;
        at += 6;
    }
    return false;
}

static struct slice type_of(const struct message *m, struct slice content_type)
{
    struct slice own = m->properties[PROPERTY_CONTENT_TYPE];

    return own.len ? own : content_type;
}

bool envelope_takes_type(const struct message *m, struct slice content_type)
{
    return m->body_len && !m->properties[PROPERTY_CONTENT_ENCODING].len &&
           is_json_type(type_of(m, content_type));
}

bool envelope_takes_body(const struct message *m, struct slice content_type)
{
    struct slice body = {m->body, m->body_len};
    struct scan s = {.at = m->body,
                     .end = m->body + m->body_len,
                     .depth = SCAN_DEPTH_MAX - ENVELOPE_DEPTH_MAX,
                     .most_digits = ENVELOPE_DIGITS_MAX};

    return envelope_takes_type(m, content_type) && slice_is_utf8(body) && scan_skip(&s) && scan_at_end(&s) &&
           !has_lone_surrogate(body);
}

/* --- writing --- */

void envelope_begin(struct buf *out)
{
    assert(!out->len);
    buf_add_text(out, HEAD);
}

void envelope_end(struct buf *out)
{
    buf_add_text(out, TAIL);
}

static void add_text(struct buf *out, const char *name, struct slice value)
{
    if (!value.len)
        return;
    buf_printf(out, ",\"%s\":", name);
    if (slice_is_text(value)) {
        buf_add_json(out, value);
        return;
    }
    buf_add_text(out, "{\"!S\":\"");
    add_base64(out, value);
    buf_add_text(out, "\"}");
}

/* The id comes first, under its own name. */
static void add_properties(struct buf *out, const struct envelope_member *e)
{
    const struct message *m = e->message;

    add_text(out, "content_type", type_of(m, e->content_type));
    for (int p = 0; p < N_PROPERTIES; p++)
        if (p != PROPERTY_CONTENT_TYPE && p != PROPERTY_MESSAGE_ID)
            add_text(out, property_name((enum property)p), m->properties[p]);
    if (m->has_priority)
        buf_printf(out, ",\"priority\":%u", m->priority);
    if (m->has_timestamp)
        buf_printf(out,
                   m->timestamp > INT64_MAX ? ",\"timestamp\":\"%" PRIu64 "\"" : ",\"timestamp\":%" PRIu64,
                   m->timestamp);
    add_text(out, "exchange", m->exchange);
    add_text(out, "routing_key", m->routing_key);
    if (m->n_headers) {
        buf_add_text(out, ",\"headers\":");
        fields_to_json(out, m->headers, m->n_headers, false);
    }
}

static void add_head(struct buf *out, const struct envelope_member *e)
{
    buf_add_text(out, "{\"token\":");
    buf_add_json(out, e->token);
    add_text(out, "id", e->id);
    add_text(out, "queue", e->queue);
    buf_printf(out, ",\"attempt\":%d,\"redelivered\":%s", e->attempt, e->redelivered ? "true" : "false");
    add_properties(out, e);
    buf_add_text(out, e->body_is_json ? ",\"body\":" : ",\"body_base64\":\"");
}

void envelope_add(struct buf *out, const struct envelope_member *e)
{
    struct slice body = {e->message->body, e->message->body_len};

    assert(out->len >= sizeof(HEAD) - 1);
    if (out->data[out->len - 1] == '}')
        buf_add_char(out, ',');
    add_head(out, e);
    if (e->body_is_json)
        buf_add_slice(out, body);
    else
        add_base64(out, body);
    buf_add_text(out, e->body_is_json ? "}" : "\"}");
}

size_t envelope_size(const struct envelope_member *e)
{
    size_t len = e->message->body_len;
    struct buf head = {0};

    add_head(&head, e);
    len = e->body_is_json ? len + 1 : (len + 2) / 3 * 4 + 2;
    len += head.len + 1; /* with its comma */
    buf_deinit(&head);
    return len;
}
