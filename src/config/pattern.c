/* Queue names with a range: see pattern.h. Pure. */
#include "onceward/config/pattern.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 9 };

/* Reads the digits at the start of the text; 0: none, or too many for an int. */
static size_t digits_read(struct slice text, int *ret)
{
    size_t n = 0;
    int value = 0;

    while (n < text.len && text.data[n] >= '0' && text.data[n] <= '9' && n <= DIGITS_MAX)
        n++;
    if (n > DIGITS_MAX)
        return 0;
    for (size_t i = 0; i < n; i++)
        value = value * 10 + (text.data[i] - '0');
    *ret = value;
    return n;
}

/* Reads the text between the braces. NULL: a range; else the expected form. */
static const char *range_read(struct slice text, struct pattern *ret)
{
    static const char numbers[] = "a range of two whole numbers in the braces, such as {0..15}";
    size_t n = digits_read(text, &ret->first), m;

    if (!n || text.len < n + 2 || memcmp(text.data + n, "..", 2) != 0)
        return numbers;
    m = digits_read((struct slice){text.data + n + 2, text.len - n - 2}, &ret->last);
    if (!m || n + 2 + m != text.len)
        return numbers;
    bool has_zeros = (n > 1 && text.data[0] == '0') || (m > 1 && text.data[n + 2] == '0');
    if (has_zeros && n != m)
        return "as many digits in both numbers of a range with leading zeros, such as {00..15}";
    ret->width = has_zeros ? (int)n : 0;
    if (ret->first > ret->last)
        return "a range whose first number is not above its last one";
    return ret->last - ret->first < PARTITIONS_MAX ? NULL : "a range of at most 256 queues";
}

/* Finds the range. Braces without two dots between them belong to the name. */
static bool range_find(const char *text, struct slice *ret)
{
    for (const char *open = strchr(text, '{'); open; open = strchr(open + 1, '{')) {
        size_t len = strcspn(open + 1, "{}");

        *ret = (struct slice){open + 1, len};
        if (open[1 + len] == '}' && memmem(ret->data, len, "..", 2))
            return true;
    }
    return false;
}

bool pattern_read(const char *text, struct pattern *ret, const char **wrong)
{
    struct slice range;

    *wrong = NULL;
    if (!range_find(text, &range))
        return false;
    const char *end = range.data + range.len + 1;

    ret->before = (struct slice){text, (size_t)(range.data - 1 - text)};
    ret->after = slice_of(end);
    if (strcspn(text, "{}") < ret->before.len || strpbrk(end, "{}"))
        *wrong = "one range, and no other braces in the name";
    else
        *wrong = range_read(range, ret);
    return true;
}

size_t pattern_count(const struct pattern *p)
{
    return (size_t)(p->last - p->first) + 1;
}

void pattern_add_name(struct buf *out, const struct pattern *p, size_t at)
{
    buf_add_slice(out, p->before);
    buf_printf(out, "%0*d", p->width, p->first + (int)at);
    buf_add_slice(out, p->after);
}

bool pattern_has(const struct pattern *p, const char *queue)
{
    size_t len = strlen(queue), fixed = p->before.len + p->after.len, n;
    struct slice number;
    int value;

    if (len <= fixed || memcmp(queue, p->before.data, p->before.len) != 0 ||
        memcmp(queue + len - p->after.len, p->after.data, p->after.len) != 0)
        return false;
    number = (struct slice){queue + p->before.len, len - fixed};
    n = digits_read(number, &value);
    if (n != number.len || value < p->first || value > p->last)
        return false;
    return p->width ? n == (size_t)p->width : n == 1 || number.data[0] != '0';
}
