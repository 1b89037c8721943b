/* Sources of message ids: a found id can be stored, and is the value of its source. */

#include "field_maker.h"
#include "message_checks.h"
#include "onceward/core/identity.h"

static enum identity_result find(const struct identity_source *sources, size_t n, const struct message *m,
                                 struct buf *id)
{
    struct fault f = {0};
    enum identity_result result = identity_find(sources, n, m, jsonread_id, id, &f);

    MUST((result == IDENTITY_FOUND) == !fault_is_set(&f));
    MUST((result == IDENTITY_MISSING || result == IDENTITY_EMPTY) == (id->len == 0));
    if (result == IDENTITY_FOUND)
        MUST(id->len <= MESSAGE_ID_MAX && slice_is_text(buf_slice(id)));
    if (result == IDENTITY_LONG)
        MUST(id->len > MESSAGE_ID_MAX);
    if (result == IDENTITY_BINARY)
        MUST(!slice_is_text(buf_slice(id)));
    return result;
}

/* The source's value must be in the message. */
static void must_be_there(const struct identity_source *source, const struct message *m, struct slice id)
{
    switch (source->kind) {
    case IDENTITY_PROPERTY:
        MUST(slice_equal(id, m->properties[property_find(source->name)]));
        return;
    case IDENTITY_HEADER:
        MUST(header_has_text(m, source->name, id));
        return;
    case IDENTITY_JSON:
        MUST(m->body_len > 0 && m->body_len <= JSON_BODY_MAX);
        return;
    case IDENTITY_CLOUDEVENTS:
        MUST(memchr(id.data, '/', id.len) != NULL);
        return;
    case IDENTITY_BODY_SHA256:
        MUST(id.len == 64 && strspn(id.data, "0123456789abcdef") >= 64);
        return;
    case IDENTITY_JOIN:
        return;
    case IDENTITY_ROUTING_KEY:
        MUST(slice_equal(id, m->routing_key));
        return;
    }
}

/* A joined id consists of its parts' ids, each complete. */
static void join_must_be_parts(const struct identity_source *join, const struct message *m, struct slice id)
{
    struct buf part = {0}, text = {0};

    for (size_t i = 0; i < join->n_parts; i++) {
        const char *end = i + 1 < join->n_parts ? memchr(id.data, '/', id.len) : id.data + id.len;

        MUST(end);
        MUST(find(&join->parts[i], 1, m, &part) != IDENTITY_MISSING && part.len);
        percent_undo(&text, (struct slice){id.data, (size_t)(end - id.data)});
        MUST(slice_equal(buf_slice(&text), buf_slice(&part)));
        id.len -= (size_t)(end - id.data);
        id.data = end;
        if (id.len) {
            id.data++;
            id.len--;
        }
    }
    buf_deinit(&part);
    buf_deinit(&text);
}

/* The first source that the message has decides. */
static void first_must_decide(const struct identity_source *sources, size_t n, const struct message *m)
{
    struct buf all = {0}, one = {0};
    enum identity_result result = find(sources, n, m, &all), alone = IDENTITY_MISSING;

    for (size_t i = 0; i < n && alone == IDENTITY_MISSING; i++) {
        alone = find(&sources[i], 1, m, &one);
        if (alone == IDENTITY_FOUND) {
            buf_text(&one);
            must_be_there(&sources[i], m, buf_slice(&one));
        }
    }
    MUST(result == alone && slice_equal(buf_slice(&all), buf_slice(&one)));
    buf_deinit(&all);
    buf_deinit(&one);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct identity_source sources[4] = {0}, join = {.kind = IDENTITY_JOIN, .parts = sources};
    struct fault f = {0};
    struct buf id = {0};
    size_t n = 0;

    for (int i = 0; i < 4; i++)
        n += identity_parse(take_slice(&s), &sources[n], &f) == 0;
    struct message *m = take_message(&s);

    m->body_len = (size_t)(s.end - s.at);
    m->body = m->body_len ? malloc(m->body_len) : NULL;
    if (m->body)
        memcpy(m->body, s.at, m->body_len);
    join.n_parts = n;
    first_must_decide(sources, n, m);
    if (find(&join, 1, m, &id) == IDENTITY_FOUND)
        join_must_be_parts(&join, m, buf_slice(&id));
    (void)message_deaths(m);
    (void)message_delivery_count(m);
    message_free(m);
    buf_deinit(&id);
    return 0;
}
