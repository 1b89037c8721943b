#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/message.h"

struct buf;
struct fault;
struct texts;

/* JSON reading for the few users outside the configuration. */

enum { JSON_BODY_MAX = 256 * 1024 };

/* Finds the scalar at a JSON pointer (RFC 6901) and appends it as text: a string unchanged, an integer in decimal,
 * true or false. 0. 1: not JSON, larger than JSON_BODY_MAX, no such place, or another kind of value. */
int jsonread_pointer(struct slice body, struct slice pointer, struct buf *out);

/* The same for a message id: a string or an integer, but not true or false. Fits identity_json_fn. */
int jsonread_id(struct slice body, struct slice pointer, struct buf *out);

/* Finds the existing part of a pointer in a body: *ret_len of its bytes lead to a value with these members (none: not
 * an object). 1: the body is not JSON. The caller frees names. */
int jsonread_reached(struct slice body, struct slice pointer, size_t *ret_len, struct texts *names);

/* The inverse of fields_to_json(exact) and properties_to_json: fills m's headers and properties from a dead
 * letter. -1: malformed. */
int jsonread_fields(struct slice headers_json, struct message *m, struct fault *f);
int jsonread_properties(struct slice properties_json, struct message *m, struct fault *f);
