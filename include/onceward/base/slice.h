#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A borrowed run of bytes. It may contain NUL and is not terminated by one. */
struct slice {
    const char *data;
    size_t len;
};

#define SLICE(literal) ((struct slice){(literal), sizeof(literal) - 1})

static inline struct slice slice_of(const char *text)
{
    return (struct slice){text, text ? strlen(text) : 0};
}

static inline bool slice_equal(struct slice a, struct slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static inline bool slice_starts_with(struct slice s, struct slice start)
{
    return s.len >= start.len && (!start.len || !memcmp(s.data, start.data, start.len));
}

/* Compares in byte order, like PostgreSQL's COLLATE "C": <0, 0, >0. */
int slice_compare(struct slice a, struct slice b);

/* Is the slice well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF)? NUL is allowed. */
bool slice_is_utf8(struct slice s);

/* Can PostgreSQL's type text hold the slice: well-formed UTF-8 without NUL? */
bool slice_is_text(struct slice s);

/* Returns at most that many of the first bytes, ending at a character boundary. */
struct slice slice_cut(struct slice s, size_t most);

/* Length of the well-formed UTF-8 sequence at byte `at` (< len), or 0. */
size_t slice_utf8_step(struct slice s, size_t at);

/* Code point there; step is the result of slice_utf8_step (above 0). */
uint32_t slice_code_point(struct slice s, size_t at, size_t step);

/* Does the character act on a terminal or change the text direction instead of being displayed? C0, DEL, C1,
 * line separators, directional marks, embeddings, overrides and isolates, the byte order mark. All are below
 * U+10000. */
bool code_point_acts(uint32_t c);
