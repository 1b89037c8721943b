#pragma once

#include "onceward/base/buf.h"
#include "onceward/core/message.h"

#include <stdint.h>

/* HTTP request fields from an AMQP delivery. */

/* Header lines, each "Name: value" and a NUL, concatenated in text. Values contain no CR, LF or NUL. */
struct header_block {
    struct buf text;
    size_t n;
};

void header_block_deinit(struct header_block *b);

struct request_facts {
    struct slice message_id, queue, consumer, token;
    struct slice content_type; /* for a message without one, valid; empty: application/octet-stream */
    int64_t window_ms;
    int attempt;
};

/* The facts of a request with several messages. */
struct batch_facts {
    struct slice consumer;
    size_t n; /* messages */
    int64_t window_ms;
};

/* Trace id of the header traceparent: 32 hex digits inside the message. Empty: absent or malformed. */
struct slice trace_id(const struct message *m);

enum { OPTIONAL_HEADERS_MAX = 32, OPTIONAL_BYTES_MAX = 4096 };

/* Writes the whole block: first the mandatory fields (Idempotency-Key, Onceward-*, Content-Type, Content-Encoding where
 * allowed), then the optional ones as far as they fit, and Onceward-Headers-Dropped when some did not. The HTTP adapter
 * adds Content-Length and Host. b is reset first. Decisions:
 *
 * - The order of the optional fields is their rank: traceparent, tracestate, ce-*, Amqp-* of the properties,
 *   Amqp-Header-*, Amqp-Headers. One that does not fit is left out and counted; smaller ones behind it may still go. A
 *   field takes its line with CR LF.
 * - Absent and empty values are not sent, as servers do not tell the two apart: no Amqp-Exchange is the default
 * exchange.
 * - traceparent and tracestate are sent when well-formed per W3C Trace Context, tracestate only beside a valid
 *   traceparent; else they are ordinary headers (Amqp-Header-traceparent).
 * - ce-*: names [a-z0-9]+; a timestamp becomes RFC 3339, bytes become base64, as CloudEvents writes them.
 *   cloudEvents:datacontenttype is the Content-Type where the property is absent or empty.
 * - A Content-Type that media_type_is_valid refuses becomes application/octet-stream, and the original goes into
 *   Amqp-Content-Type, percent-encoded, as far as there is room. Content-Encoding is matched without case and sent in
 *   lower case; a list of codings goes into Amqp-Content-Encoding.
 * - Of names that HTTP cannot tell apart (X-A and x-a) only the first is sent; the others are counted. */
void headers_write(struct header_block *b, const struct message *m, const struct request_facts *r);

/* Writes the block of a request with several messages; the facts of each message are in the body. b is reset first. */
void headers_write_batch(struct header_block *b, const struct batch_facts *r);
