#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct message;

/* The body of a request with several messages: a JSON object whose "messages" are an array. Pure.
 *
 * A message's own body stands in the envelope unchanged if every JSON reader takes it there: its content type is
 * JSON, it has no content encoding, and it is one JSON text in UTF-8 of at most ENVELOPE_DEPTH_MAX levels without
 * lone surrogates, whose numbers have at most ENVELOPE_DIGITS_MAX digits. Any other body is base64, so that it cannot
 * spoil the messages beside it. */

enum {
    ENVELOPE_DEPTH_MAX = 60, /* .NET reads 64 levels, of which the envelope has 3 */
    ENVELOPE_DIGITS_MAX =
        300, /* a double overflows at 309, an error in Rust; Jackson reads 1000, Python 4300 */
};

struct envelope_member {
    struct slice token, id, queue;
    struct slice content_type; /* for a message without one; empty: left out */
    int attempt;
    bool redelivered;
    bool body_is_json; /* the result of envelope_takes_body */
    const struct message *message;
};

/* May the body stand in the envelope unchanged? content_type: as in struct envelope_member. */
bool envelope_takes_body(const struct message *m, struct slice content_type);

/* The same by its type alone: a body of a JSON type is taken for valid JSON. */
bool envelope_takes_type(const struct message *m, struct slice content_type);

void envelope_begin(struct buf *out);

/* Members are separated by the writer. Absent properties are left out. A property that is not text is
 * {"!S": base64}, as in a dead letter. */
void envelope_add(struct buf *out, const struct envelope_member *e);
void envelope_end(struct buf *out);

/* Bytes of an envelope are ENVELOPE_ENDS and those of each member. */
enum { ENVELOPE_ENDS = 14 };
size_t envelope_size(const struct envelope_member *e);
