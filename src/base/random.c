#include "onceward/base/random.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

static __thread uint8_t pool[256];
static __thread size_t n_left;

void random_bytes(void *out, size_t len)
{
    uint8_t *p = out;

    while (len) {
        if (!n_left) {
            size_t got = 0;

            while (got < sizeof(pool)) {
                ssize_t n = getrandom(pool + got, sizeof(pool) - got, 0);

                assert(n > 0 || errno == EINTR); /* no other failure up to 256 bytes: random(7) */
                if (n > 0)
                    got += (size_t)n;
            }
            n_left = sizeof(pool);
        }
        size_t n = len < n_left ? len : n_left;

        memcpy(p, pool + sizeof(pool) - n_left, n);
        memset(pool + sizeof(pool) - n_left, 0, n);
        n_left -= n;
        p += n;
        len -= n;
    }
}

uint64_t random_below(uint64_t bound)
{
    uint64_t r;

    if (!bound)
        return 0;
    random_bytes(&r, sizeof(r));
    return r % bound; /* for jitter only: the bias is below 2^-30 for every bound in use */
}
