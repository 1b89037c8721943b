/* The JSON of an edited dead letter: it is refused with a reason, or published, and the broker's delivery
 * then equals it. Headers and properties, with a NUL in between. */

#include "wire_checks.h"

static size_t depth_of(const struct field *fields, size_t n)
{
    size_t deepest = 0;

    for (size_t i = 0; i < n; i++) {
        if (fields[i].kind != FIELD_ARRAY && fields[i].kind != FIELD_TABLE)
            continue;
        size_t depth = 1 + depth_of(fields[i].children.items, fields[i].children.n);
        if (depth > deepest)
            deepest = depth;
    }
    return deepest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { DEPTH_KEPT = 60 };
    struct message *m = message_new();
    struct buf out = {0};
    struct fault f = {0};
    const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;

    int error = jsonread_fields((struct slice){(const char *)data, len}, m, &f);
    MUST(error ? m->n_headers == 0 && fault_is_set(&f) : !fault_is_set(&f));
    if (nul) {
        f.text[0] = '\0';
        error = jsonread_properties((struct slice){(const char *)nul + 1, size - len - 1}, m, &f);
        MUST(!error == !fault_is_set(&f));
    }
    f.text[0] = '\0';
    error = message_encode(&out, m, &f);
    MUST(!error == !fault_is_set(&f));
    if (!error && depth_of(m->headers, m->n_headers) <= DEPTH_KEPT) {
        message_must_be_published(m);
        message_must_be_forwarded(m);
        message_free(message_from_letter(m));
    }
    buf_deinit(&out);
    message_free(m);
    return 0;
}
