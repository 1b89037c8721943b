#pragma once

#include "onceward/base/slice.h"

#include <stdint.h>

/* A growing byte buffer. {0} is an empty one; buf_deinit frees it. Adding never fails: see mem.h. */
struct buf {
    char *data;
    size_t len;
    size_t cap;
};

void buf_deinit(struct buf *b);

/* Empties the buffer and keeps its memory. */
static inline void buf_reset(struct buf *b)
{
    b->len = 0;
}

/* Makes room for n more bytes and returns the address of the first. len does not change. */
char *buf_reserve(struct buf *b, size_t n);

void buf_add(struct buf *b, const void *data, size_t len);
void buf_add_char(struct buf *b, char c);
void buf_add_text(struct buf *b, const char *text);
void buf_add_slice(struct buf *b, struct slice s);
void buf_add_number(struct buf *b, uint64_t n); /* decimal */
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the content with a NUL behind it (not counted in len); valid until the next change. */
const char *buf_text(struct buf *b);

static inline struct slice buf_slice(const struct buf *b)
{
    return (struct slice){b->data, b->len};
}

/* Adds percent-encoded text: everything but A-Za-z0-9-._~ (RFC 3986, section 2.3) is encoded, in upper-case hex. */
void buf_add_percent(struct buf *b, struct slice s);

/* Adds base64url without padding (RFC 4648, section 5). */
void buf_add_base64url(struct buf *b, const void *data, size_t len);

/* Adds a JSON string with its quotes (RFC 8259). Malformed UTF-8 becomes U+FFFD. */
void buf_add_json(struct buf *b, struct slice s);

/* Lower-case hex. */
void buf_add_hex(struct buf *b, const void *data, size_t len);

/* Add big-endian integers, for wire formats. */
void buf_add_u16(struct buf *b, uint16_t v);
void buf_add_u32(struct buf *b, uint32_t v);

/* Overwrites the four bytes at `at` with the number of bytes behind them, big-endian: a length that was unknown when
 * they were added. */
void buf_set_length(struct buf *b, size_t at);
void buf_add_u64(struct buf *b, uint64_t v);
