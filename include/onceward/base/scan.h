#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>

struct buf;

/* A strict reader of JSON text (RFC 8259) that walks the text and builds nothing. It takes integers of any
 * size and keeps numbers as written, so that it can read everything another program can publish. The caller
 * checks UTF-8, once. */

enum { SCAN_DEPTH_MAX = 1000 };

struct scan {
    const char *at, *end;
    int depth;
    size_t most_digits; /* of a number, with its exponent written out; 0: any */
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

/* Skips white space and returns the kind of the next value. */
enum scan_kind scan_peek(struct scan *s);

/* Reads a string; *raw is the text between its quotes, with escapes checked but not decoded. */
bool scan_string(struct scan *s, struct slice *raw);

/* Appends a raw string with its escapes decoded. A lone surrogate becomes U+FFFD. */
void scan_decode(struct buf *out, struct slice raw);

/* Does the raw string equal this text? */
bool scan_equal(struct slice raw, struct slice text);

/* Reads a number as written. *integer: it has neither a fraction nor an exponent. */
bool scan_number(struct scan *s, struct slice *raw, bool *integer);

/* Reads true, false or null. */
bool scan_literal(struct scan *s);

/* Skips any one value. */
bool scan_skip(struct scan *s);

/* Walks an object or an array: open, then next until it returns something other than 1 (0: end; -1:
 * malformed). After each 1 the caller reads exactly one value. */
bool scan_open(struct scan *s);
int scan_next_member(struct scan *s, bool first, struct slice *raw_key);
int scan_next_item(struct scan *s, bool first);

/* True when only white space is left. */
bool scan_at_end(struct scan *s);
