#pragma once

#include "onceward/base/hash.h"
#include "onceward/base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lines of an ordered queue: the deliveries of each key that one channel has brought and whose messages have not
 * ended, in the order of their arrival. The first of a line may be claimed; the others wait for it. Bounded by the
 * prefetch of the channel. A value; zeroed, there are no lines. */

enum { KEY_BYTES = 16 }; /* of the digest that stands for a key of any length */

struct key_line {
    struct hash_link by_key;
    uint8_t key[KEY_BYTES];
    struct list places;
};

/* Place of a delivery in the line of its key. A value inside the delivery; zeroed, it is in no line. */
struct key_place {
    struct link in_line;
    struct key_line *line; /* NULL: no line */
};

struct keys {
    struct hash lines;
};

/* Adds a place at the end of the key's line. True: it is also the first. */
bool keys_join(struct keys *k, const uint8_t key[KEY_BYTES], struct key_place *p);

/* Removes a place from its line, if it is in one. Returns the place that becomes the first, or NULL. */
struct key_place *keys_leave(struct keys *k, struct key_place *p);

static inline bool key_place_is_first(const struct key_place *p)
{
    return p->line && p->line->places.head.next == &p->in_line;
}

/* Ends all lines after their channel is gone. Every place has left its line by then. */
void keys_deinit(struct keys *k);
