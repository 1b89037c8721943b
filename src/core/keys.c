/* Lines of deliveries by their keys: see keys.h. */
#include "onceward/core/keys.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct key_line *line_find(const struct keys *k, const uint8_t key[KEY_BYTES], uint64_t hash)
{
    for (struct hash_link *l = hash_first(&k->lines, hash); l; l = hash_next(l)) {
        struct key_line *line = container_of(l, struct key_line, by_key);

        if (!memcmp(line->key, key, KEY_BYTES))
            return line;
    }
    return NULL;
}

static struct key_line *line_new(struct keys *k, const uint8_t key[KEY_BYTES], uint64_t hash)
{
    struct key_line *line = mem_zalloc(1, sizeof(*line));

    memcpy(line->key, key, KEY_BYTES);
    list_init(&line->places);
    hash_insert(&k->lines, &line->by_key, hash);
    return line;
}

bool keys_join(struct keys *k, const uint8_t key[KEY_BYTES], struct key_place *p)
{
    uint64_t hash = hash_bytes(key, KEY_BYTES);
    struct key_line *line = line_find(k, key, hash);

    assert(!p->line);
    if (!line)
        line = line_new(k, key, hash);
    list_push(&line->places, &p->in_line);
    p->line = line;
    return line->places.len == 1;
}

struct key_place *keys_leave(struct keys *k, struct key_place *p)
{
    struct key_line *line = p->line;

    if (!line)
        return NULL;
    assert(line->places.len > 0);
    bool was_first = key_place_is_first(p);

    assert(line->places.len > 1 || was_first);
    list_remove(&line->places, &p->in_line);
    p->line = NULL;
    if (!line->places.len) {
        hash_remove(&k->lines, &line->by_key);
        free(line);
        return NULL;
    }
    return was_first ? container_of(line->places.head.next, struct key_place, in_line) : NULL;
}

void keys_deinit(struct keys *k)
{
    for (size_t i = 0; i < k->lines.n_buckets; i++)
        while (k->lines.buckets[i]) {
            struct key_line *line = container_of(k->lines.buckets[i], struct key_line, by_key);
            struct link *l;

            while ((l = list_first(&line->places))) {
                list_remove(&line->places, l);
                container_of(l, struct key_place, in_line)->line = NULL;
            }
            hash_remove(&k->lines, &line->by_key);
            free(line);
        }
    hash_deinit(&k->lines);
    *k = (struct keys){0};
}
