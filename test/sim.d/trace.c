#include "trace.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t trace_hash(uint64_t hash, const void *data, size_t len)
{
    const uint8_t *bytes = data;

    hash = hash ? hash : 0xcbf29ce484222325;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

void trace_line(struct trace *t, int64_t at_us, const char *format, va_list args)
{
    char line[2048];
    int len;

    if (t->mode == TRACE_PRINT) {
        printf("%5" PRId64 ".%06" PRId64 "  ", at_us / 1000000, at_us % 1000000);
        vprintf(format, args);
        putchar('\n');
    } else if (t->mode == TRACE_HASH) {
        t->hash = trace_hash(t->hash, &at_us, sizeof(at_us));
        len = vsnprintf(line, sizeof(line), format, args);
        t->hash = trace_hash(t->hash, line, len < (int)sizeof(line) ? (size_t)len : sizeof(line) - 1);
    }
}
