#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* The lines of a run, printed or only hashed. Equal hashes mean that the core made the same decisions. */

enum trace_mode { TRACE_NONE, TRACE_PRINT, TRACE_HASH };

struct trace {
    enum trace_mode mode;
    uint64_t hash;
};

/* Prints or hashes a line, with its virtual time in microseconds since the start. */
void trace_line(struct trace *t, int64_t at_us, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* FNV-1a of bytes (http://www.isthe.com/chongo/tech/comp/fnv/), continued from `hash`; 0: from the start. */
uint64_t trace_hash(uint64_t hash, const void *data, size_t len);
