/* Sources of message ids, and what is found by them: an id that was found can be stored. */

#include "field_maker.h"
#include "fuzz.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/json.h"
#include "onceward/core/identity.h"

static void find(const struct identity_source *sources, size_t n, const struct message *m)
{
    struct fault f = {0};
    struct buf id = {0};
    enum identity_result result = identity_find(sources, n, m, jsonread_pointer, &id, &f);

    MUST((result == IDENTITY_FOUND) == !fault_is_set(&f));
    MUST((result == IDENTITY_MISSING || result == IDENTITY_EMPTY) == (id.len == 0));
    if (result == IDENTITY_FOUND)
        MUST(id.len <= MESSAGE_ID_MAX && slice_is_text(buf_slice(&id)));
    if (result == IDENTITY_BINARY)
        MUST(!slice_is_text(buf_slice(&id)));
    buf_deinit(&id);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct identity_source sources[4] = {0}, join = {.kind = IDENTITY_JOIN, .parts = sources};
    struct fault f = {0};
    size_t n = 0;

    for (int i = 0; i < 4; i++)
        n += identity_parse(take_slice(&s), &sources[n], &f) == 0;
    struct message *m = take_message(&s);

    m->body_len = (size_t)(s.end - s.at);
    m->body = m->body_len ? malloc(m->body_len) : NULL;
    if (m->body)
        memcpy(m->body, s.at, m->body_len);
    join.n_parts = n;
    find(sources, n, m);
    find(&join, 1, m);
    (void)message_deaths(m);
    (void)message_delivery_count(m);
    message_free(m);
    return 0;
}
