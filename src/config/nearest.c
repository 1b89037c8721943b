/* Suggestions for unknown names and invalid values. Pure. */

#include "config/keys.h"
#include "onceward/base/buf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>

/* Number of letters to add, drop, change or swap with a neighbour (optimal string alignment). */
static size_t edit_distance(struct slice a, struct slice b)
{
    enum { MAX = 40 };
    uint8_t d[MAX + 1][MAX + 1];

    if (a.len > MAX || b.len > MAX)
        return SIZE_MAX;
    for (size_t i = 0; i <= a.len; i++)
        d[i][0] = (uint8_t)i;
    for (size_t k = 0; k <= b.len; k++)
        d[0][k] = (uint8_t)k;
    for (size_t i = 1; i <= a.len; i++) {
        for (size_t k = 1; k <= b.len; k++) {
            char x = a.data[i - 1] | 0x20, y = b.data[k - 1] | 0x20;
            unsigned best = d[i - 1][k - 1] + (x != y);

            if (d[i - 1][k] + 1u < best)
                best = d[i - 1][k] + 1u;
            if (d[i][k - 1] + 1u < best)
                best = d[i][k - 1] + 1u;
            if (i > 1 && k > 1 && x == (b.data[k - 2] | 0x20) && (a.data[i - 2] | 0x20) == y &&
                d[i - 2][k - 2] + 1u < best)
                best = d[i - 2][k - 2] + 1u;
            d[i][k] = (uint8_t)best;
        }
    }
    return d[a.len][b.len];
}

struct nearest {
    struct slice name;
    size_t distance;
    struct buf *out;
};

static void consider(struct nearest *n, struct slice candidate, size_t penalty, const char *prefix,
                     struct slice shown)
{
    size_t limit = n->name.len < 6 ? 1 : n->name.len / 3;
    size_t distance = edit_distance(n->name, candidate);

    if (distance > limit || distance + penalty >= n->distance)
        return;
    n->distance = distance + penalty;
    buf_reset(n->out);
    buf_add_text(n->out, prefix);
    buf_add_slice(n->out, shown);
}

static void consider_groups(struct nearest *n, const struct key *k, struct slice prefix)
{
    if (!slice_starts_with(slice_of(k->path), prefix))
        return;
    const char *start = k->path + prefix.len;
    struct slice child = {start, strcspn(start, ".")};

    consider(n, child, 0, "", child);
}

bool key_nearest(struct buf *out, enum key_scope scope, struct slice prefix, struct slice name)
{
    struct nearest n = {name, SIZE_MAX, out};

    if (scope == SCOPE_ROOT && !prefix.len) {
        consider(&n, SLICE("queues"), 0, "", SLICE("queues"));
        consider(&n, SLICE("defaults"), 0, "", SLICE("defaults"));
    }
    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];
        const char *dot = strrchr(k->path, '.');
        struct slice last = slice_of(dot ? dot + 1 : k->path);
        bool elsewhere = k->scope == SCOPE_ROOT;

        if (k->scope == scope)
            consider_groups(&n, k, prefix);
        if (k->scope == scope)
            consider(&n, last, 1, scope == SCOPE_QUEUE ? "queues.<name>." : "", slice_of(k->path));
        else
            consider(&n, last, 2, elsewhere ? "" : "queues.<name>.", slice_of(k->path));
    }
    return n.distance != SIZE_MAX;
}

/* --- values --- */

struct unit {
    const char *word, *unit;
};

static const struct unit durations[] = {
    {"", "s"},    {"ms", "ms"},  {"msec", "ms"},  {"msecs", "ms"},  {"millis", "ms"}, {"milliseconds", "ms"},
    {"s", "s"},   {"sec", "s"},  {"secs", "s"},   {"second", "s"},  {"seconds", "s"}, {"m", "m"},
    {"min", "m"}, {"mins", "m"}, {"minute", "m"}, {"minutes", "m"}, {"h", "h"},       {"hr", "h"},
    {"hrs", "h"}, {"hour", "h"}, {"hours", "h"},  {"d", "d"},       {"day", "d"},     {"days", "d"},
};
static const struct unit sizes[] = {
    {"b", "B"},     {"byte", "B"},  {"bytes", "B"}, {"k", "KiB"},  {"kb", "KiB"},
    {"ki", "KiB"},  {"kib", "KiB"}, {"m", "MiB"},   {"mb", "MiB"}, {"mi", "MiB"},
    {"mib", "MiB"}, {"g", "GiB"},   {"gb", "GiB"},  {"gi", "GiB"}, {"gib", "GiB"},
};

/* Recognises a number with a unit in another spelling. */
static bool quantity_nearest(struct buf *out, const char *text, const struct unit *units, size_t n)
{
    size_t start = strspn(text, " "), digits = strspn(text + start, "0123456789");
    const char *word = text + start + digits;

    word += strspn(word, " ");
    size_t len = strcspn(word, " ");
    if (!digits || digits > 9 || word[len + strspn(word + len, " ")])
        return false;
    for (size_t i = 0; i < n; i++) {
        if (strlen(units[i].word) != len || strncasecmp(units[i].word, word, len) != 0)
            continue;
        buf_printf(out, "%ld%s", strtol(text + start, NULL, 10), units[i].unit);
        return true;
    }
    return false;
}

static bool word_nearest(struct buf *out, const char *words, const char *text)
{
    struct nearest n = {slice_of(text), SIZE_MAX, out};
    struct slice word;

    for (size_t i = 0; (word = key_word(words, i)).len; i++) {
        if (n.name.len >= 3 && n.name.len < word.len && !strncasecmp(word.data, text, n.name.len)) {
            buf_reset(out);
            buf_add_slice(out, word);
            return true;
        }
        consider(&n, word, 0, "", word);
    }
    return n.distance != SIZE_MAX;
}

bool value_nearest(struct buf *out, const struct key *k, const char *text)
{
    switch (k->type) {
    case TYPE_CHOICE:
    case TYPE_FLAG:
        return word_nearest(out, k->range, text);
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        return quantity_nearest(out, text, durations, sizeof(durations) / sizeof(durations[0]));
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
        return quantity_nearest(out, text, sizes, sizeof(sizes) / sizeof(sizes[0]));
    default:
        return false;
    }
}
