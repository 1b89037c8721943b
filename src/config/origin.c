/* The origins of values, and the key at which a combination is reported. */

#include "config/origin.h"

#include "config/keys.h"
#include "config/report.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static size_t place(enum key_scope scope, const char *path)
{
    const struct key *k = key_find(scope, slice_of(path));

    assert(k);
    return (size_t)(k - keys);
}

uint8_t reading_origin(const struct reading *r, const char *path)
{
    return r->origins[place(r->scope, path)];
}

bool reading_is_set(const struct reading *r, const char *path)
{
    uint8_t from = reading_origin(r, path);

    return from == ORIGIN_GIVEN || from == ORIGIN_DEFAULTS;
}

void cross_report(const struct reading *r, bool warning, const char *a, const char *b, const char *format,
                  ...)
{
    uint8_t from_a = reading_origin(r, a), from_b = b ? reading_origin(r, b) : ORIGIN_NONE;
    const char *blamed = a;
    char path[512], *text = NULL;
    va_list args;

    if (from_a == ORIGIN_BAD || from_b == ORIGIN_BAD)
        return;
    if (from_b > from_a)
        blamed = b;
    const char *prefix = reading_origin(r, blamed) == ORIGIN_DEFAULTS ? "defaults" : r->prefix;
    snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix ? "." : "", blamed);
    va_start(args, format);
    int len = vasprintf(&text, format, args);
    va_end(args);
    if (len < 0)
        return;
    if (warning)
        report_warning(r->report, path, "%s", text);
    else
        report_error(r->report, path, "%s", text);
    free(text);
}
