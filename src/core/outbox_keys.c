/* Names of exchanges in the configuration, and the order of rows per routing key in the ordered ones. See outbox.h. */
#include "core/outbox.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>

bool outbox_allows(char *const *exchanges, size_t n, struct slice exchange)
{
    for (size_t i = 0; i < n; i++)
        if (slice_equal(slice_of(exchanges[i]), exchange))
            return true;
    return !n;
}

bool is_ordered(const struct outbox *o, struct slice exchange)
{
    return o->rules.n_ordered && outbox_allows(o->rules.ordered, o->rules.n_ordered, exchange);
}

static struct outbox_row *key_first(const struct outbox_key *key)
{
    return container_of(key->rows.head.next, struct outbox_row, in_key);
}

static uint64_t key_hash(const struct outbox_row *row)
{
    return hash_bytes(row->routing_key.data, row->routing_key.len) ^
           hash_bytes(row->exchange.data, row->exchange.len) ^ row->parked;
}

static struct outbox_key *key_find(const struct outbox *o, const struct outbox_row *row, uint64_t hash)
{
    struct hash_link *k = hash_first(&o->keys, hash);

    for (; k; k = hash_next(k)) {
        struct outbox_key *key = container_of(k, struct outbox_key, by_name);
        const struct outbox_row *first = key_first(key);

        if (first->parked == row->parked && slice_equal(first->routing_key, row->routing_key) &&
            slice_equal(first->exchange, row->exchange))
            return key;
    }
    return NULL;
}

bool key_enter(struct outbox *o, struct outbox_row *row)
{
    assert(!row->key);
    uint64_t hash = key_hash(row);
    struct outbox_key *key = key_find(o, row, hash);
    bool is_first = !key;

    if (!key) {
        key = mem_zalloc(1, sizeof(*key));
        list_init(&key->rows);
        hash_insert(&o->keys, &key->by_name, hash);
    }
    row->key = key;
    list_push(&key->rows, &row->in_key);
    return is_first;
}

struct outbox_row *key_leave(struct outbox *o, struct outbox_row *row)
{
    struct outbox_key *key = row->key;

    if (!key)
        return NULL;
    assert(key->rows.len > 0);
    bool was_first = key_first(key) == row;
    row->key = NULL;
    list_remove(&key->rows, &row->in_key);
    if (key->rows.len)
        return was_first ? key_first(key) : NULL;
    hash_remove(&o->keys, &key->by_name);
    free(key);
    return NULL;
}
