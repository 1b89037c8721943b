#pragma once

#include <stddef.h>
#include <stdint.h>

/* An intrusive chained hash table. It grows and never shrinks. The caller compares keys, since different keys
 * may have equal hashes. */
struct hash_link {
    struct hash_link *next;
    uint64_t hash;
};

struct hash {
    struct hash_link **buckets;
    size_t n_buckets; /* a power of two, or 0 */
    size_t len;
};

void hash_deinit(struct hash *h);
void hash_insert(struct hash *h, struct hash_link *k, uint64_t hash);
void hash_remove(struct hash *h, struct hash_link *k);

/* hash_first: the first link with this hash, or NULL. hash_next: the next link with the same hash. */
struct hash_link *hash_first(const struct hash *h, uint64_t hash);
struct hash_link *hash_next(const struct hash_link *k);

/* Hash of any bytes: FNV-1a with a per-process seed and a final mixer, since publishers choose the keys. */
uint64_t hash_bytes(const void *data, size_t len);

/* Hash of consecutive numbers. */
uint64_t hash_number(uint64_t n);
