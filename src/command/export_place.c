/* Positions in an export, as its lines contain them. */

#include "command/export_place.h"

#include "onceward/base/fault.h"

#include <string.h>

static const struct {
    const char *name;
    int n_fields;
} kinds[N_EXPORT_KINDS] = {{"row", 2}, {"letter", 1}, {"message", 3}};

const char *export_kind_name(enum export_kind kind)
{
    return kinds[kind].name;
}

void export_place_write(struct buf *out, enum export_kind kind, struct slice first, struct slice second,
                        struct slice third)
{
    const struct slice fields[] = {first, second, third};

    buf_add_text(out, kinds[kind].name);
    for (int i = 0; i < kinds[kind].n_fields; i++) {
        buf_add_char(out, '.');
        if (kind == EXPORT_LETTER)
            buf_add_slice(out, fields[i]);
        else
            buf_add_hex(out, fields[i].data, fields[i].len);
    }
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* No consumer, id, time or number contains NUL. */
static bool field_read(struct buf *out, enum export_kind kind, struct slice text)
{
    buf_reset(out);
    if (kind == EXPORT_LETTER) {
        for (size_t i = 0; i < text.len; i++)
            if (text.data[i] < '0' || text.data[i] > '9')
                return false;
        buf_add_slice(out, text);
        return text.len > 0 && text.len < 19;
    }
    for (size_t i = 0; i + 1 < text.len; i += 2) {
        int high = digit(text.data[i]), low = digit(text.data[i + 1]);

        if (high < 0 || low < 0 || (high == 0 && low == 0))
            return false;
        buf_add_char(out, (char)(high << 4 | low));
    }
    return text.len > 0 && text.len % 2 == 0;
}

static bool fields_read(struct export_place *p, struct slice text)
{
    struct buf *const fields[] = {&p->first, &p->second, &p->third};

    for (int i = 0; i < kinds[p->kind].n_fields; i++) {
        bool is_last = i + 1 == kinds[p->kind].n_fields;
        const char *end = is_last ? text.data + text.len : memchr(text.data, '.', text.len);

        if (!end || !field_read(fields[i], p->kind, (struct slice){text.data, (size_t)(end - text.data)}))
            return false;
        if (!is_last)
            text = (struct slice){(char *)end + 1, text.len - (size_t)(end + 1 - text.data)};
    }
    return true;
}

int export_place_read(struct export_place *p, struct slice text, struct fault *f)
{
    for (int k = 0; k < N_EXPORT_KINDS; k++) {
        size_t len = strlen(kinds[k].name);

        if (text.len <= len || memcmp(text.data, kinds[k].name, len) != 0 || text.data[len] != '.')
            continue;
        p->kind = (enum export_kind)k;
        p->is_set = fields_read(p, (struct slice){text.data + len + 1, text.len - len - 1});
        if (p->is_set)
            return 0;
    }
    return fault_set(f,
                     "\"%.*s\" is not a position: expected the \"position\" of a line of `onceward export`",
                     (int)(text.len < 80 ? text.len : 80), text.data);
}

void export_place_deinit(struct export_place *p)
{
    buf_deinit(&p->first);
    buf_deinit(&p->second);
    buf_deinit(&p->third);
}
