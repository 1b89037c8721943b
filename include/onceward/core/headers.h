#pragma once

#include "onceward/base/buf.h"
#include "onceward/core/message.h"

#include <stdint.h>

/* From an AMQP delivery to HTTP request header fields (design section 4). */

/* Header lines, "Name: value" each ended by a NUL, one behind the other in text. Values hold no CR, LF or NUL. */
struct header_block {
    struct buf text;
    size_t n;
};

void header_block_deinit(struct header_block *b);

struct request_facts {
    struct slice message_id, queue, consumer, token;
    int64_t window_ms;
    int attempt;
};

enum { OPTIONAL_HEADERS_MAX = 32, OPTIONAL_BYTES_MAX = 4096 };

/* Writes the whole block: first the mandatory fields (Idempotency-Key, Onceward-*, Content-Type, Content-Encoding where allowed),
 * then the optional ones (traceparent and tracestate when well-formed per W3C Trace Context, ce-*, Amqp-*, Amqp-Header-*,
 * Amqp-Headers) as far as they fit, and Onceward-Headers-Dropped when some did not. Content-Length and Host are the HTTP
 * library's. A Content-Type with bytes that a field value may not hold (RFC 9110, 5.5) becomes application/octet-stream, and the
 * original goes into Amqp-Content-Type, percent-encoded. b is reset first. */
void headers_write(struct header_block *b, const struct message *m, const struct request_facts *r);
