#pragma once

#include "onceward/base/slice.h"

struct buf;

/* Adds s as text that PostgreSQL accepts: without NUL, malformed UTF-8 as U+FFFD, at most max bytes, cut
 * between characters. */
void text_add(struct buf *b, struct slice s, size_t max);

/* Adds the literal of an array of texts: {"a","b\\"c",NULL}. */
void text_array_add(struct buf *b, const char *const *texts, size_t n);
