#pragma once

#include <stddef.h>
#include <stdint.h>

/* SHA-256 (FIPS 180-4) of a body, by OpenSSL's libcrypto, which the other libraries load anyway. */
void sha256(const void *data, size_t len, uint8_t digest[32]);
