#include "onceward/base/sha256.h"

#include <openssl/sha.h>

void sha256(const void *data, size_t len, uint8_t digest[32])
{
    SHA256(len ? data : (const void *)"", len, digest);
}
