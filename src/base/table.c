/* Tables and other text for people. For commands only; one thread. */

#include "onceward/base/table.h"

#include "onceward/base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { CELL_MAX = 200 };

/* Adds one character; returns its number of bytes. */
static size_t add_safe_one(struct buf *out, struct slice s, size_t at)
{
    size_t step = slice_utf8_step(s, at);

    if (step == 0) {
        buf_printf(out, "\\x%02x", (unsigned)(uint8_t)s.data[at]);
        return 1;
    }
    uint32_t c = slice_code_point(s, at, step);

    if (c == '\n')
        buf_add_text(out, "\\n");
    else if (code_point_acts(c))
        buf_printf(out, c < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)c);
    else
        buf_add(out, s.data + at, step);
    return step;
}

void text_add_safe(struct buf *out, struct slice s)
{
    for (size_t i = 0; i < s.len;)
        i += add_safe_one(out, s, i);
}

static bool is_layout(struct slice s, size_t i)
{
    return s.data[i] == '\n' || s.data[i] == '\t' ||
           (s.data[i] == '\r' && i + 1 < s.len && s.data[i + 1] == '\n');
}

bool text_is_safe(struct slice s)
{
    for (size_t i = 0, step; i < s.len; i += step) {
        step = slice_utf8_step(s, i);
        if (step == 0 || (code_point_acts(slice_code_point(s, i, step)) && !is_layout(s, i)))
            return false;
    }
    return true;
}

void text_add_age(struct buf *out, int64_t ms)
{
    int64_t s = ms / 1000;

    if (ms < 0)
        ms = s = 0;
    if (ms < 1000)
        buf_printf(out, "%" PRId64 " ms", ms);
    else if (s < 60)
        buf_printf(out, "%" PRId64 " s", s);
    else if (s < 600 && s % 60)
        buf_printf(out, "%" PRId64 " min %" PRId64 " s", s / 60, s % 60);
    else if (s < 3600)
        buf_printf(out, "%" PRId64 " min", s / 60);
    else if (s < 86400)
        buf_printf(out, "%" PRId64 " h %" PRId64 " min", s / 3600, s % 3600 / 60);
    else
        buf_printf(out, "%" PRId64 " d %" PRId64 " h", s / 86400, s % 86400 / 3600);
}

void text_add_size(struct buf *out, uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double d = (double)bytes / 1024;
    size_t i = 0;

    if (bytes < 1024) {
        buf_printf(out, "%" PRIu64 " B", bytes);
        return;
    }
    while (d >= 1024 && i < 3) {
        d /= 1024;
        i++;
    }
    buf_printf(out, "%.1f %s", d, units[i]);
}

int text_width(FILE *stream)
{
    struct winsize w;
    int fd = fileno(stream);

    if (fd < 0 || !isatty(fd) || ioctl(fd, TIOCGWINSZ, &w) || w.ws_col < 40)
        return 0;
    return w.ws_col;
}

static void end_cell(struct table *t)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->ends = mem_realloc(t->ends, t->cap * sizeof *t->ends);
    }
    t->ends[t->n++] = t->text.len;
}

void table_add(struct table *t, struct slice cell)
{
    size_t n = 0;

    for (size_t i = 0; i < cell.len; n++) {
        if (n == CELL_MAX) {
            buf_add_text(&t->text, "…");
            break;
        }
        i += add_safe_one(&t->text, cell, i);
    }
    if (cell.len == 0)
        buf_add_char(&t->text, '-');
    end_cell(t);
}

void table_add_text(struct table *t, const char *cell)
{
    table_add(t, slice_of(cell));
}

void table_add_int(struct table *t, int64_t value)
{
    buf_printf(&t->text, "%" PRId64, value);
    end_cell(t);
}

void table_add_age(struct table *t, int64_t ms)
{
    text_add_age(&t->text, ms);
    end_cell(t);
}

static struct slice cell_at(const struct table *t, size_t i)
{
    size_t start = i ? t->ends[i - 1] : 0;

    return (struct slice){t->text.data + start, t->ends[i] - start};
}

/* Counts characters, not bytes. Wide and combining characters count as ordinary ones. */
static size_t width_of(struct slice s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += ((uint8_t)s.data[i] & 0xC0) != 0x80;
    return n;
}

static void add_row(struct buf *line, const struct table *t, size_t row, const size_t *widths)
{
    for (size_t i = 0; i < t->n_columns; i++) {
        struct slice cell = cell_at(t, row * t->n_columns + i);
        size_t pad = widths[i] - width_of(cell);
        bool right = t->right >> i & 1;

        if (i)
            buf_add_text(line, "  ");
        for (size_t p = 0; right && p < pad; p++)
            buf_add_char(line, ' ');
        buf_add_slice(line, cell);
        for (size_t p = 0; !right && p < pad && i + 1 < t->n_columns; p++)
            buf_add_char(line, ' ');
    }
}

/* Cuts to a number of characters; the last one becomes an ellipsis. */
static void cut_line(struct buf *line, size_t width)
{
    size_t n = 0, at = 0;

    if (width == 0 || width_of(buf_slice(line)) <= width)
        return;
    for (size_t i = 0; i < line->len && n < width; i++) {
        if (((uint8_t)line->data[i] & 0xC0) == 0x80)
            continue;
        n++;
        at = i;
    }
    line->len = at;
    buf_add_text(line, "…");
}

void table_print(struct table *t, FILE *out, int width)
{
    size_t rows = t->n / t->n_columns;
    size_t *widths = mem_zalloc(t->n_columns, sizeof *widths);
    struct buf line = {0};

    for (size_t i = 0; i < rows * t->n_columns; i++) {
        size_t w = width_of(cell_at(t, i));

        if (w > widths[i % t->n_columns])
            widths[i % t->n_columns] = w;
    }
    for (size_t row = 0; row < rows; row++) {
        buf_reset(&line);
        add_row(&line, t, row, widths);
        while (line.len && line.data[line.len - 1] == ' ')
            line.len--;
        cut_line(&line, (size_t)width);
        fprintf(out, "%s\n", buf_text(&line));
    }
    buf_deinit(&line);
    free(widths);
    buf_reset(&t->text);
    t->n = 0;
}

void table_deinit(struct table *t)
{
    buf_deinit(&t->text);
    mem_clear(&t->ends);
    t->n = t->cap = 0;
}
