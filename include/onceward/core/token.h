#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;

/* The transaction token: `ow1.` base64url(consumer, NUL, message id) `.` base64url(16 random bytes). It
 * contains the row's key, so that tokens need no index; the 16 bytes are the secret. */

enum { TOKEN_SECRET = 16, TOKEN_MAX = 720, TOKEN_BEHIND_MAX = 1404 };

/* Appends the text of a token. Neither part may be empty or contain a NUL; together at most 518 bytes (255
 * each always fit). */
void token_write(struct buf *out, struct slice consumer, struct slice message_id,
                 const uint8_t secret[TOKEN_SECRET]);

/* The same for a message in one request with the previous message of its key: between its own two parts stands the
 * first part of that one's token. At most TOKEN_BEHIND_MAX bytes. */
void token_write_behind(struct buf *out, struct slice consumer, struct slice message_id, struct slice before,
                        const uint8_t secret[TOKEN_SECRET]);

/* Does the token belong to the same claim as the other one, which token_write has written? It may name a previous
 * message. */
bool token_is_same(struct slice token, struct slice other);

/* Takes a token apart: consumer and message_id are appended to *key with a NUL in between, and the slices point into
 * it. 0, or 1: not a token (wrong prefix, alphabet, length, padding bits, UTF-8, not exactly one NUL, an empty part;
 * or one that names a previous message). For tests and tools: the database has its own reader, and both must agree. */
int token_read(struct slice token, struct buf *key, struct slice *consumer, struct slice *message_id,
               uint8_t secret[TOKEN_SECRET]);
