#include "onceward/base/hash.h"

#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <stdlib.h>

void hash_deinit(struct hash *h)
{
    free(h->buckets);
    *h = (struct hash){0};
}

static void hash_grow(struct hash *h)
{
    size_t n = h->n_buckets ? h->n_buckets * 2 : 64;
    struct hash_link **buckets = mem_zalloc(n, sizeof(*buckets));

    for (size_t i = 0; i < h->n_buckets; i++) {
        for (struct hash_link *k = h->buckets[i], *next; k; k = next) {
            next = k->next;
            k->next = buckets[k->hash & (n - 1)];
            buckets[k->hash & (n - 1)] = k;
        }
    }
    free(h->buckets);
    h->buckets = buckets;
    h->n_buckets = n;
}

void hash_insert(struct hash *h, struct hash_link *k, uint64_t hash)
{
    if (h->len >= h->n_buckets)
        hash_grow(h);
    k->hash = hash;
    k->next = h->buckets[hash & (h->n_buckets - 1)];
    h->buckets[hash & (h->n_buckets - 1)] = k;
    h->len++;
}

void hash_remove(struct hash *h, struct hash_link *k)
{
    struct hash_link **at = &h->buckets[k->hash & (h->n_buckets - 1)];

    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    k->next = NULL;
    h->len--;
}

struct hash_link *hash_first(const struct hash *h, uint64_t hash)
{
    struct hash_link *k = h->n_buckets ? h->buckets[hash & (h->n_buckets - 1)] : NULL;

    while (k && k->hash != hash)
        k = k->next;
    return k;
}

struct hash_link *hash_next(const struct hash_link *k)
{
    struct hash_link *next = k->next;

    while (next && next->hash != k->hash)
        next = next->next;
    return next;
}

uint64_t hash_number(uint64_t n)
{
    n ^= n >> 33;
    n *= 0xff51afd7ed558ccdULL;
    n ^= n >> 33;
    n *= 0xc4ceb9fe1a85ec53ULL;
    return n ^ n >> 33;
}

uint64_t hash_bytes(const void *data, size_t len)
{
    static __thread uint64_t seed; /* a table belongs to one thread */
    const uint8_t *p = data;

    while (!seed)
        random_bytes(&seed, sizeof(seed));
    uint64_t h = seed ^ 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * 0x100000001b3ULL;
    return hash_number(h);
}
