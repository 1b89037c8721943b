#pragma once

#include "onceward/base/hash.h"
#include "onceward/base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lines of an ordered queue: the deliveries of each key that one channel has brought and whose messages have not
 * ended, in the order of their arrival. The first of a line may be claimed; the others wait for it. A value; zeroed
 * it is empty. Bounded by the prefetch of the channel. */

enum { KEY_BYTES = 16 }; /* of the digest that stands for a key of any length */

struct key_line {
    struct hash_link by_key;
    uint8_t key[KEY_BYTES];
    struct list places;
};

/* Place of a delivery in the line of its key. A value inside the delivery; zeroed it is in no line. */
struct key_place {
    struct link in_line;
    struct key_line *line; /* NULL: in none */
};

struct keys {
    struct hash lines;
};

/* The last of the line of that key. true: it is the first as well. */
bool keys_join(struct keys *k, const uint8_t key[KEY_BYTES], struct key_place *p);

/* Leaves its line. Returns the place that is first because of that, or NULL. A place in no line is left alone. */
struct key_place *keys_leave(struct keys *k, struct key_place *p);

static inline bool key_place_is_first(const struct key_place *p)
{
    return p->line && p->line->places.head.next == &p->in_line;
}

/* Ends all lines: their channel is gone. Every place has left its line then. */
void keys_deinit(struct keys *k);
