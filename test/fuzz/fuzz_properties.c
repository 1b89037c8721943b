/* Any bytes as the properties of a delivery: what the adapter makes of them can be forwarded, stored, and
 * published again as it was. An odd first byte: the rest is made into a well-formed table; even: it is the
 * payload itself. */

#include "field_maker.h"
#include "onceward/core/identity.h"
#include "wire_checks.h"

static void payload_make(struct buf *payload, struct byte_source *s)
{
    static const char before[PROPERTIES_AT] = {0, 60};
    struct fault f = {0};

    if (take_byte(s) & 1) {
        struct message *m = take_message(s);

        MUST(message_encode(payload, m, &f) == 0);
        message_free(m);
        return;
    }
    buf_add(payload, before, sizeof(before));
    buf_add(payload, s->at, (size_t)(s->end - s->at));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct buf payload = {0}, cut = {0}, again = {0};

    payload_make(&payload, &s);
    buf_add_slice(&cut, buf_slice(&payload));
    nesting_cut(cut.data, cut.len);
    buf_add_slice(&again, buf_slice(&cut));
    nesting_cut(again.data, again.len);
    MUST(slice_equal(buf_slice(&cut), buf_slice(&again)));
    struct message *whole = payload_decode(&payload), *m = payload_decode(&cut);
    if (whole) {
        MUST(m && properties_equal(whole, m) &&
             tables_equal(whole->headers, whole->n_headers, m->headers, m->n_headers));
        MUST(slice_equal(buf_slice(&payload), buf_slice(&cut)) || m->n_headers);
    }
    if (m) {
        message_must_be_forwarded(m);
        struct message *back = message_from_letter(m);
        message_must_be_published(back);
        message_free(back);
        (void)message_deaths(m);
        (void)message_delivery_count(m);
    }
    message_free(whole);
    message_free(m);
    buf_deinit(&payload);
    buf_deinit(&cut);
    buf_deinit(&again);
    return 0;
}
