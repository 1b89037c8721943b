/* The exact JSON of a header table and of properties is read back as the same; the natural one is UTF-8. */

#include "field_compare.h"
#include "field_maker.h"
#include "fuzz.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct message *m = take_message(&s), *back = message_new();
    struct buf out = {0};
    struct fault f = {0};

    fields_to_json(&out, m->headers, m->n_headers, false);
    MUST(slice_is_utf8(buf_slice(&out)));
    buf_reset(&out);
    fields_to_json(&out, m->headers, m->n_headers, true);
    MUST(slice_is_text(buf_slice(&out)));
    MUST(jsonread_fields(buf_slice(&out), back, &f) == 0);
    MUST(tables_equal(m->headers, m->n_headers, back->headers, back->n_headers));
    buf_reset(&out);
    properties_to_json(&out, m);
    MUST(slice_is_text(buf_slice(&out)));
    MUST(jsonread_properties(buf_slice(&out), back, &f) == 0);
    MUST(properties_equal(m, back));
    buf_deinit(&out);
    message_free(m);
    message_free(back);
    return 0;
}
