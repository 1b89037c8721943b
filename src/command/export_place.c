/* Places in an export, as the lines say them and as a file's last line has them. */

#include "command/export_place.h"

#include "onceward/base/fault.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 64 * 1024, HEAD_MAX = 8 * 1024 };

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

/* NUL is in no consumer, id, time or number. */
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
    return fault_set(
        f, "\"%.*s\" is no position: expected what a line of `onceward export` has as its \"position\"",
        (int)(text.len < 80 ? text.len : 80), text.data);
}

/* The offset behind the last line end before `before`; 0: there is none. -1: it cannot be read. */
static off_t line_end_before(FILE *file, off_t before)
{
    char block[BLOCK];

    while (before > 0) {
        off_t start = before > BLOCK ? before - BLOCK : 0;
        size_t len = (size_t)(before - start);

        if (fseeko(file, start, SEEK_SET) || fread(block, 1, len, file) != len)
            return -1;
        for (size_t i = len; i > 0; i--)
            if (block[i - 1] == '\n')
                return start + (off_t)i;
        before = start;
    }
    return 0;
}

/* Its beginning is always the same, see export.c. */
static int head_read(struct export_place *p, struct slice head, const char *path, struct fault *f)
{
    static const char key[] = "\",\"position\":\"";
    const char *at = memmem(head.data, head.len, key, sizeof key - 1);
    const char *start = at ? at + sizeof key - 1 : NULL;
    const char *end = start ? memchr(start, '"', head.len - (size_t)(start - head.data)) : NULL;

    if (head.len < 9 || memcmp(head.data, "{\"kind\":\"", 9) != 0 || !end)
        return fault_set(f, "%s: its last line is none of `onceward export`: expected a file of its own",
                         path);
    return export_place_read(p, (struct slice){(char *)start, (size_t)(end - start)}, f)
               ? fault_wrap(f, "%s", path)
               : 0;
}

int export_place_of_file(struct export_place *p, FILE *file, const char *path, struct fault *f)
{
    char head[HEAD_MAX];
    off_t size, end, start;
    size_t len;

    if (fseeko(file, 0, SEEK_END))
        return 0; /* a pipe: nothing was written before */
    size = ftello(file);
    end = line_end_before(file, size);
    start = end > 0 ? line_end_before(file, end - 1) : 0;
    if (size < 0 || end < 0 || start < 0)
        return fault_set(f, "%s cannot be read: %s", path, strerror(errno));
    if (end > 0) {
        if (fseeko(file, start, SEEK_SET))
            return fault_set(f, "%s: %s", path, strerror(errno));
        len = fread(head, 1, (size_t)(end - start) < sizeof head ? (size_t)(end - start) : sizeof head, file);
        if (head_read(p, (struct slice){head, len}, path, f))
            return -1;
    }
    if (end < size && ftruncate(fileno(file), end))
        return fault_set(f, "%s cannot be cut behind its last whole line: %s", path, strerror(errno));
    return fseeko(file, 0, SEEK_END) ? fault_set(f, "%s: %s", path, strerror(errno)) : 0;
}

void export_place_deinit(struct export_place *p)
{
    buf_deinit(&p->first);
    buf_deinit(&p->second);
    buf_deinit(&p->third);
}
