#pragma once

#include "onceward/base/slice.h"

#include <stdint.h>

struct buf;

/* The transaction token: `ow1.` base64url(consumer, NUL, message id) `.` base64url(16 random bytes). It
 * contains the row's key, so that tokens need no index; the 16 bytes are the secret. */

enum { TOKEN_SECRET = 16, TOKEN_MAX = 720 };

/* Appends the text of a token. Neither part may be empty or contain a NUL; together at most 518 bytes (255
 * each always fit). */
void token_write(struct buf *out, struct slice consumer, struct slice message_id,
                 const uint8_t secret[TOKEN_SECRET]);

/* Takes a token apart: consumer and message_id are appended to *key with a NUL in between, and the slices
 * point into it. 0, or 1: not a token (wrong prefix, alphabet, length, padding bits, UTF-8, not exactly one
 * NUL, an empty part). For tests and tools: the database has its own reader, and both must agree. */
int token_read(struct slice token, struct buf *key, struct slice *consumer, struct slice *message_id,
               uint8_t secret[TOKEN_SECRET]);
