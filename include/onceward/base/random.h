#pragma once

#include <stddef.h>
#include <stdint.h>

/* Makes unguessable bytes by the kernel (getrandom), buffered per thread. For tokens. */
void random_bytes(void *out, size_t len);

/* Makes a number in [0, bound); 0 when bound is 0. For jitter. */
uint64_t random_below(uint64_t bound);
