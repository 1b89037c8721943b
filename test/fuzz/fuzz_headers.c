/* For any message, the block of request headers is well-formed, bounded and reversible. */

#include "field_maker.h"
#include "message_checks.h"
#include "onceward/core/media_type.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct request_facts r = {.token = SLICE("ow1.YwBp.AAEC"), .window_ms = 30000, .attempt = 1};

    r.message_id = take_slice(&s);
    r.queue = take_slice(&s);
    r.consumer = take_slice(&s);
    if (media_type_is_valid(r.queue)) /* as the configuration checks it */
        r.content_type = r.queue;
    if (!r.message_id.len || !r.queue.len || !r.consumer.len)
        return 0;
    struct message *m = take_message(&s);
    request_must_be_good(m, &r);
    message_free(m);
    return 0;
}
