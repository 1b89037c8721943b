#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>

/* A queue name with a range: "orders-{0..15}" stands for the 16 queues orders-0 to orders-15, the partitions
 * of one entry. Both ends are included. With leading zeros, "orders-{00..15}", all numbers have equally many
 * digits. */

enum { PARTITIONS_MAX = 256 };

struct pattern {
    struct slice before, after; /* the text before and after the range */
    int first, last;
    int width; /* digits of each number if there are leading zeros, else 0 */
};

/* Does the text have a range? Otherwise it is the name of one queue. *ret points into the text. *wrong: the expected
 * form, if a range is malformed; else NULL. */
bool pattern_read(const char *text, struct pattern *ret, const char **wrong);

size_t pattern_count(const struct pattern *p);

struct buf;
/* Appends the name of the partition with this number, from 0. */
void pattern_add_name(struct buf *out, const struct pattern *p, size_t at);

/* Is the queue one of the partitions? */
bool pattern_has(const struct pattern *p, const char *queue);
