#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Numbers that depend only on their seed (splitmix64, https://prng.di.unimi.it/splitmix64.c): the same on every
 * machine and in every build. */

static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t random_next(uint64_t *state)
{
    return random_mix(*state += 0x9e3779b97f4a7c15u);
}

/* 0 to n - 1; 0 when n is 0. */
static inline uint64_t random_below(uint64_t *state, uint64_t n)
{
    return n ? random_next(state) % n : 0;
}

static inline int64_t random_between(uint64_t *state, int64_t from, int64_t to)
{
    return from + (int64_t)random_below(state, (uint64_t)(to - from + 1));
}

/* True in n of 10,000 cases. */
static inline bool random_chance(uint64_t *state, unsigned n)
{
    return random_below(state, 10000) < n;
}
