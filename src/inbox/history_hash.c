/* The hash of a message id in the compact history. Pure. */
#include "history_hash.h"

#include "onceward/base/sha256.h"

#include <string.h>

enum { TEXT_MAX_BYTES = 1024, DIGEST_BYTES = 32 };

bool history_hash(const char *consumer, struct slice id, uint8_t ret[HISTORY_HASH_BYTES])
{
    char text[TEXT_MAX_BYTES];
    uint8_t digest[DIGEST_BYTES];
    size_t len = strlen(consumer) + 1; /* with its zero byte */

    if (len > sizeof(text) || id.len > sizeof(text) - len)
        return false;
    memcpy(text, consumer, len);
    memcpy(text + len, id.data, id.len);
    sha256(text, len + id.len, digest);
    memcpy(ret, digest, HISTORY_HASH_BYTES);
    return true;
}
