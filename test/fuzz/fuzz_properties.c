/* Any bytes as the properties of a delivery: the adapter decodes them like the library, and the message can
 * be forwarded, stored, and published again unchanged, also from its bytes. With an odd first byte, a
 * well-formed table is made of the rest; with an even one, the rest is the payload itself. */

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
    struct buf payload = {0};
    struct message *m;

    payload_make(&payload, &s);
    int r = properties_decode(properties_of_payload(&payload), &m);
    library_must_agree(m, r);
    bytes_must_be_published(m->content_header, SLICE("guest"));
    bytes_must_be_published(m->content_header, (struct slice){0});
    message_must_be_forwarded(m); /* also the part that was decoded before the fault */
    struct message *back = message_from_letter(m);
    message_must_be_published(back);
    message_free(back);
    (void)message_deaths(m);
    (void)message_delivery_count(m);
    message_free(m);
    buf_deinit(&payload);
    return 0;
}
