/* Parses and writes durations and sizes. Pure. */

#include "config/keys.h"
#include "onceward/base/buf.h"
#include "onceward/config/config.h"

#include <inttypes.h>

struct unit {
    const char *name;
    int64_t factor;
};

static const struct unit duration_units[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
static const struct unit size_units[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}};

/* Parses digits followed by one of the units. */
static int read_quantity(const char *text, const struct unit *units, size_t n, int64_t *ret)
{
    int64_t value = 0;
    const char *p = text;

    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p - '0', &value))
            return 1;
    if (p == text)
        return 1;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(p, units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(value, units[i].factor, &value))
            return 1;
        *ret = value;
        return 0;
    }
    return 1;
}

static void write_quantity(struct buf *out, const struct unit *units, size_t n, int64_t value)
{
    size_t i = value ? 0 : n - 1;

    if (!value && n == sizeof(duration_units) / sizeof(duration_units[0]))
        i = n - 2; /* 0s reads better than 0ms */
    while (value % units[i].factor)
        i++;
    buf_printf(out, "%" PRId64 "%s", value / units[i].factor, units[i].name);
}

int config_duration(const char *text, int64_t *ret_ms)
{
    return read_quantity(text, duration_units, sizeof(duration_units) / sizeof(duration_units[0]), ret_ms);
}

int config_size(const char *text, size_t *ret_bytes)
{
    int64_t bytes;

    if (read_quantity(text, size_units, sizeof(size_units) / sizeof(size_units[0]), &bytes) ||
        (uint64_t)bytes > SIZE_MAX)
        return 1;
    *ret_bytes = (size_t)bytes;
    return 0;
}

void duration_write(struct buf *out, int64_t ms)
{
    write_quantity(out, duration_units, sizeof(duration_units) / sizeof(duration_units[0]), ms);
}

void size_write(struct buf *out, uint64_t bytes)
{
    write_quantity(out, size_units, sizeof(size_units) / sizeof(size_units[0]), (int64_t)bytes);
}
