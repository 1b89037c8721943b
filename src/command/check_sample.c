/* `check --sample`: reports the id that the configuration finds in a message, or the sources that would find one. The
 * output has only names from the message, and the id. */

#include "command/check.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/table.h"
#include "onceward/base/texts.h"
#include "onceward/config/config.h"
#include "onceward/config/json.h"
#include "onceward/core/identity.h"

#include <string.h>
#include <strings.h>

enum { NAMES_MAX = 30, NAME_BYTES_MAX = 48 };

/* Adds this source, in the configuration's form, if it would find an id. */
static size_t propose(const struct message *m, struct slice text, size_t n, struct buf *out)
{
    struct identity_source source;
    struct buf id = {0};
    struct fault ignored = {0};

    if (!slice_is_text(text) || identity_parse(text, &source, &ignored) ||
        identity_find(&source, 1, m, jsonread_id, &id, &ignored) != IDENTITY_FOUND) {
        buf_deinit(&id);
        return n;
    }
    buf_add_text(out, n ? ", [" : "[");
    buf_add_json(out, text);
    buf_add_char(out, ']');
    buf_deinit(&id);
    return n + 1;
}

/* Does the header's name look like that of an id? */
static bool is_id_like(struct slice name)
{
    static const char *const ends[] = {"id", "key", "uuid", "guid"};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        size_t len = strlen(ends[i]);

        if (name.len >= len && !strncasecmp(name.data + name.len - len, ends[i], len))
            return true;
    }
    return false;
}

/* Adds the sources that would find an id, the likeliest first. */
static size_t add_proposals(const struct message *m, struct buf *out)
{
    static const char *const first[] = {"property:message_id", "cloudevents"};
    static const char *const last[] = {
        "json:/id",   "json:/message_id", "json:/messageId", "json:/event_id",    "json:/eventId",
        "json:/uuid", "json:/data/id",    "json:/meta/id",   "json:/metadata/id", "property:correlation_id"};
    struct buf text = {0};
    size_t n = 0;

    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        n = propose(m, slice_of(first[i]), n, out);
    for (size_t i = 0; i < m->n_headers && n < NAMES_MAX; i++) {
        if (!is_id_like(m->headers[i].name))
            continue;
        buf_reset(&text);
        buf_add_text(&text, "header:");
        buf_add_slice(&text, m->headers[i].name);
        n = propose(m, buf_slice(&text), n, out);
    }
    for (size_t i = 0; i < sizeof(last) / sizeof(last[0]); i++)
        n = propose(m, slice_of(last[i]), n, out);
    buf_deinit(&text);
    return n;
}

/* Adds the source that found the id. */
static void add_source(const struct config_queue *q, const struct message *m, struct buf *out)
{
    struct buf id = {0}, name = {0};
    struct fault ignored = {0};

    for (size_t i = 0; i < q->message_id.n && !name.len; i++)
        if (identity_find(&q->message_id.items[i], 1, m, jsonread_id, &id, &ignored) == IDENTITY_FOUND)
            identity_source_add(&name, &q->message_id.items[i]);
    text_add_safe(out, buf_slice(&name));
    buf_deinit(&id);
    buf_deinit(&name);
}

/* Adds the part of a JSON pointer that exists in this body, and the names that could follow it. */
static void add_level(const struct identity_source *s, const struct message *m, struct buf *out)
{
    struct texts names = {0};
    size_t len = 0;

    if (jsonread_reached((struct slice){m->body, m->body_len}, s->name, &len, &names)) {
        buf_add_text(out, ". Its body is not JSON, or has more than 256 KiB");
        return;
    }
    buf_add_text(out, ". Its body ");
    if (len) {
        buf_add_text(out, "has at ");
        text_add_safe(out, (struct slice){s->name.data, len});
    } else {
        buf_add_text(out, "has");
    }
    buf_add_text(out, names.n ? " the members " : " no object, and no string or integer for an id");
    for (size_t i = 0; i < names.n && i < NAMES_MAX; i++) {
        buf_add_text(out, i ? ", " : "");
        text_add_safe(out, slice_cut(slice_of(names.items[i]), NAME_BYTES_MAX));
    }
    if (names.n > NAMES_MAX)
        buf_printf(out, " and %zu more", names.n - NAMES_MAX);
    texts_deinit(&names);
}

static void add_levels(const struct identity_source *sources, size_t n, const struct message *m,
                       struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if (sources[i].kind == IDENTITY_JSON)
            add_level(&sources[i], m, out);
        else if (sources[i].kind == IDENTITY_JOIN)
            add_levels(sources[i].parts, sources[i].n_parts, m, out);
    }
}

bool sample_describe(const struct config_queue *q, const struct message *m, struct buf *out)
{
    struct buf id = {0}, fits = {0};
    struct fault f = {0};
    bool found =
        identity_find(q->message_id.items, q->message_id.n, m, jsonread_id, &id, &f) == IDENTITY_FOUND;

    if (found) {
        buf_add_text(out, "a message has the id \"");
        text_add_safe(out, buf_slice(&id));
        buf_add_text(out, "\", from ");
        add_source(q, m, out);
    } else {
        text_add_safe(out, slice_of(f.text));
        buf_add_text(out, ". It has ");
        message_add_names(m, NAMES_MAX, out);
        add_levels(q->message_id.items, q->message_id.n, m, out);
        if (add_proposals(m, &fits)) {
            buf_add_text(out, ". This would find an id, for message_id: ");
            text_add_safe(out, buf_slice(&fits));
        } else {
            buf_add_text(
                out, ". None of them looks like an id: let the publisher set message_id; [\"body-sha256\"] "
                     "treats equal bodies as one message");
        }
    }
    buf_deinit(&id);
    buf_deinit(&fits);
    return found;
}
