#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>

struct buf;

/* A strict reader of JSON text (RFC 8259) that builds nothing: it walks. It takes integers of any size and
 * leaves numbers as they are written, so what another program could publish can be read here. UTF-8 is
 * checked by the caller, once. */

enum { SCAN_DEPTH_MAX = 1000 };

struct scan {
    const char *at, *end;
    int depth;
};

enum scan_kind {
    SCAN_BAD,
    SCAN_OBJECT,
    SCAN_ARRAY,
    SCAN_STRING,
    SCAN_NUMBER,
    SCAN_TRUE,
    SCAN_FALSE,
    SCAN_NULL
};

/* Steps over white space and tells what kind of value starts there. */
enum scan_kind scan_peek(struct scan *s);

/* Reads a string; *raw is what stands between its quotes, escapes checked and not undone. */
bool scan_string(struct scan *s, struct slice *raw);

/* Appends a raw string with its escapes undone. A lone surrogate becomes U+FFFD. */
void scan_decode(struct buf *out, struct slice raw);

/* Is the raw string this text? */
bool scan_equal(struct slice raw, struct slice text);

/* Reads a number as it is written. *integer: it has neither a fraction nor an exponent. */
bool scan_number(struct scan *s, struct slice *raw, bool *integer);

/* Reads true, false or null. */
bool scan_literal(struct scan *s);

/* Steps over any one value. */
bool scan_skip(struct scan *s);

/* Walking an object or an array: open, then next until it answers something else than 1: 0 at its end, -1
 * when malformed. After 1 the caller reads exactly one value. */
bool scan_open(struct scan *s);
int scan_next_member(struct scan *s, bool first, struct slice *raw_key);
int scan_next_item(struct scan *s, bool first);

/* True when nothing but white space is left. */
bool scan_at_end(struct scan *s);
