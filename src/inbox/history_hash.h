#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

/* The hash of a message id in onceward.history, the same as that of history_hash() in the schema: the first 16 bytes of
 * the SHA-256 of the consumer, a zero byte and the id. id: in UTF-8, as the database gets it. False: the texts are
 * longer than a consumer and an id may be, and *ret is unchanged. */
enum { HISTORY_HASH_BYTES = 16 };
bool history_hash(const char *consumer, struct slice id, uint8_t ret[HISTORY_HASH_BYTES]);
