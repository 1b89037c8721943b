#include "onceward/base/sha256.h"

#include <assert.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stddef.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static EVP_MD *algorithm; /* looked up once: a lookup costs more than a short digest */

static void algorithm_fetch(void)
{
    algorithm = EVP_MD_fetch(NULL, "SHA256", NULL);
    assert(algorithm);
}

void sha256(const void *data, size_t len, uint8_t digest[32])
{
    int done;

    pthread_once(&once, algorithm_fetch);
    done = EVP_Digest(len ? data : (const void *)"", len, digest, NULL, algorithm, NULL);
    assert(done);
    (void)done;
}
