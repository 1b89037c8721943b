/* The message id and the fingerprint. Pure except for the given JSON reader; any thread. */

#include "onceward/core/identity.h"

#include "core/field_text.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/sha256.h"

#include <assert.h>

enum { HEADER_NAME_MAX = 255 /* a short string on the wire */, JSON_BODY_LARGEST = 256 * 1024 };

static bool cut_prefix(struct slice *text, struct slice prefix)
{
    if (text->len < prefix.len || memcmp(text->data, prefix.data, prefix.len) != 0)
        return false;
    text->data += prefix.len;
    text->len -= prefix.len;
    return true;
}

/* RFC 6901: empty, or "/" and tokens in which "~" is followed by 0 or 1. */
static bool is_pointer(struct slice p)
{
    if (p.len && p.data[0] != '/')
        return false;
    for (size_t i = 0; i < p.len; i++)
        if (p.data[i] == '~' && (i + 1 == p.len || (p.data[i + 1] != '0' && p.data[i + 1] != '1')))
            return false;
    return slice_is_text(p);
}

static int parse_property(struct slice name, struct fault *f)
{
    if (property_find(name) >= 0)
        return 0;
    char known[160] = "";
    size_t at = 0;

    for (int p = 0; p < N_PROPERTIES; p++) {
        const char *known_name = property_name((enum property)p);

        if (p) {
            known[at++] = ',';
            known[at++] = ' ';
        }
        memcpy(known + at, known_name, strlen(known_name) + 1);
        at += strlen(known_name);
    }
    return fault_set(f, "\"property:%.*s\": there is no such property; expected one of %s",
                     (int)(name.len < 60 ? name.len : 60), name.data, known);
}

int identity_parse(struct slice text, struct identity_source *out, struct fault *f)
{
    struct slice rest = text;
    struct identity_source s = {0};

    if (cut_prefix(&rest, SLICE("property:"))) {
        if (parse_property(rest, f))
            return -1;
        s.kind = IDENTITY_PROPERTY;
    } else if (cut_prefix(&rest, SLICE("header:"))) {
        if (!rest.len || rest.len > HEADER_NAME_MAX)
            return fault_set(f, "\"header:\" must be followed by a header's name of 1 to %d bytes",
                             HEADER_NAME_MAX);
        s.kind = IDENTITY_HEADER;
    } else if (cut_prefix(&rest, SLICE("json:"))) {
        if (!is_pointer(rest))
            return fault_set(f, "\"json:%.*s\": expected a JSON pointer, like json:/order/id",
                             (int)(rest.len < 60 ? rest.len : 60), rest.data);
        s.kind = IDENTITY_JSON;
    } else if (slice_equal(text, SLICE("cloudevents"))) {
        s.kind = IDENTITY_CLOUDEVENTS;
        rest.len = 0;
    } else if (slice_equal(text, SLICE("body-sha256"))) {
        s.kind = IDENTITY_BODY_SHA256;
        rest.len = 0;
    } else {
        return fault_set(f,
                         "\"%.*s\" is no source of a message id; expected property:<name>, header:<name>, "
                         "json:<pointer>, cloudevents or body-sha256",
                         (int)(text.len < 60 ? text.len : 60), text.len ? text.data : "");
    }
    s.name = rest;
    *out = s;
    return 0;
}

/* Appends one source's value to *id. False: absent. */
static bool source_read(const struct identity_source *s, const struct message *m, identity_json_fn *json,
                        struct buf *id);

/* Adds a value of a joined id. All values are required. Each is percent-encoded, so that different lists of values
 * have different texts. empty: set if one was. */
static void join_add(struct buf *id, struct slice value, bool first, bool *empty)
{
    if (!first)
        buf_add_char(id, '/');
    buf_add_percent(id, value);
    *empty |= !value.len;
}

static bool join_read(const struct identity_source *s, const struct message *m, identity_json_fn *json,
                      struct buf *id)
{
    struct buf value = {0};
    bool found = s->n_parts > 0, empty = false;

    for (size_t i = 0; found && i < s->n_parts; i++) {
        buf_reset(&value);
        found = source_read(&s->parts[i], m, json, &value);
        join_add(id, buf_slice(&value), i == 0, &empty);
    }
    if (empty)
        buf_reset(id);
    buf_deinit(&value);
    return found;
}

static bool cloudevents_attribute(const struct message *m, struct slice colon, struct slice underscore,
                                  struct buf *out)
{
    const struct field *f = message_header(m, colon);

    if (!f)
        f = message_header(m, underscore);
    return f && field_add_text(out, f);
}

static bool cloudevents_read(const struct message *m, struct buf *id)
{
    struct buf source = {0}, event = {0};
    bool found =
        cloudevents_attribute(m, SLICE("cloudEvents:source"), SLICE("cloudEvents_source"), &source) &&
        cloudevents_attribute(m, SLICE("cloudEvents:id"), SLICE("cloudEvents_id"), &event);

    if (found && source.len && event.len) {
        buf_add_percent(id, buf_slice(&source));
        buf_add_char(id, '/');
        buf_add_percent(id, buf_slice(&event));
    }
    buf_deinit(&source);
    buf_deinit(&event);
    return found;
}

static void body_digest_add(const struct message *m, struct buf *id)
{
    uint8_t digest[32];

    sha256(m->body, m->body_len, digest);
    buf_add_hex(id, digest, sizeof(digest));
}

static bool source_read(const struct identity_source *s, const struct message *m, identity_json_fn *json,
                        struct buf *id)
{
    const struct field *header;
    int p;

    switch (s->kind) {
    case IDENTITY_PROPERTY:
        p = property_find(s->name);
        if (p < 0 || !m->properties[p].data)
            return false;
        buf_add_slice(id, m->properties[p]);
        return true;
    case IDENTITY_HEADER:
        header = message_header(m, s->name);
        return header && field_add_text(id, header);
    case IDENTITY_JSON:
        assert(json);
        return m->body_len && m->body_len <= JSON_BODY_LARGEST &&
               json((struct slice){m->body, m->body_len}, s->name, id) == 0;
    case IDENTITY_CLOUDEVENTS:
        return cloudevents_read(m, id);
    case IDENTITY_BODY_SHA256:
        body_digest_add(m, id);
        return true;
    case IDENTITY_JOIN:
        return join_read(s, m, json, id);
    case IDENTITY_ROUTING_KEY:
        buf_add_slice(id, m->routing_key);
        return true;
    }
    return false;
}

void identity_source_add(struct buf *out, const struct identity_source *s)
{
    static const char *const prefixes[] = {
        [IDENTITY_PROPERTY] = "property:",
        [IDENTITY_HEADER] = "header:",
        [IDENTITY_JSON] = "json:",
        [IDENTITY_CLOUDEVENTS] = "cloudevents",
        [IDENTITY_BODY_SHA256] = "body-sha256",
        [IDENTITY_JOIN] = "",
        [IDENTITY_ROUTING_KEY] = "routing_key",
    };

    buf_add_text(out, prefixes[s->kind]);
    buf_add_slice(out, s->name);
    for (size_t i = 0; s->kind == IDENTITY_JOIN && i < s->n_parts; i++) {
        if (i)
            buf_add_text(out, " + ");
        identity_source_add(out, &s->parts[i]);
    }
}

char *identity_sources_text(const struct identity_source *sources, size_t n)
{
    struct buf text = {0};

    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_add_text(&text, ", ");
        identity_source_add(&text, &sources[i]);
    }
    char *ret = mem_copy_text(buf_text(&text));

    buf_deinit(&text);
    return ret;
}

bool key_make(const struct identity_source *sources, size_t n, const struct message *m,
              identity_json_fn *json, struct buf *room, uint8_t out[16])
{
    bool found = false;

    for (size_t i = 0; !found && i < n; i++) {
        buf_reset(room);
        found = source_read(&sources[i], m, json, room) && room->len;
    }
    if (found)
        fingerprint_make(room->data, room->len, out);
    return found;
}

static void fault_missing(const struct identity_source *sources, size_t n, const char *what, struct fault *f)
{
    struct buf names = {0};

    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_add_text(&names, ", ");
        identity_source_add(&names, &sources[i]);
    }
    fault_set(f, "the message has no %s: looked for %s", what, buf_text(&names));
    buf_deinit(&names);
}

void key_missing(const struct identity_source *sources, size_t n, struct fault *f)
{
    fault_missing(sources, n, "key", f);
}

static enum identity_result judge(const struct identity_source *s, const struct buf *id, struct fault *f)
{
    struct slice found = buf_slice(id);
    struct buf name = {0};
    enum identity_result result = IDENTITY_FOUND;

    if (found.len && found.len <= MESSAGE_ID_MAX && slice_is_text(found))
        return IDENTITY_FOUND;
    identity_source_add(&name, s);
    if (!found.len) {
        fault_set(f, "the message id in %s is empty", buf_text(&name));
        result = IDENTITY_EMPTY;
    } else if (found.len > MESSAGE_ID_MAX) {
        fault_set(f, "the message id in %s has %zu bytes, at most %d are allowed", buf_text(&name), found.len,
                  MESSAGE_ID_MAX);
        result = IDENTITY_LONG;
    } else {
        fault_set(f, "the message id in %s %s", buf_text(&name),
                  memchr(found.data, '\0', found.len) ? "holds a NUL byte" : "is not UTF-8");
        result = IDENTITY_BINARY;
    }
    buf_deinit(&name);
    return result;
}

enum identity_result identity_find(const struct identity_source *sources, size_t n, const struct message *m,
                                   identity_json_fn *json, struct buf *id, struct fault *f)
{
    for (size_t i = 0; i < n; i++) {
        buf_reset(id);
        if (source_read(&sources[i], m, json, id))
            return judge(&sources[i], id, f);
    }
    buf_reset(id);
    fault_missing(sources, n, "id", f);
    return IDENTITY_MISSING;
}

void fingerprint_make(const void *body, size_t len, uint8_t out[16])
{
    uint8_t digest[32];

    sha256(body, len, digest);
    memcpy(out, digest, 16);
}
