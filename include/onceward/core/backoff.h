#pragma once

#include <stdint.h>

/* Exponential backoff with a ceiling and full jitter
 * (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). */

/* Wait after failure number n (the first is 1): random in [floor, min(max_ms, base_ms * 2^(n-1))], where floor is
 * 1/10 of that bound (a wait of 0 would be a busy loop). random: 64 random bits. Never overflows; n < 1 counts as 1. */
int64_t backoff_ms(int64_t base_ms, int64_t max_ms, int n, uint64_t random);
