/* Valid text for PostgreSQL from arbitrary bytes. Pure. */
#include "text.h"

#include "onceward/base/buf.h"

void text_add(struct buf *b, struct slice s, size_t max)
{
    size_t start = b->len;

    if (s.len <= max && slice_is_text(s)) {
        buf_add_slice(b, s);
        return;
    }
    for (size_t i = 0; i < s.len;) {
        size_t step = slice_utf8_step(s, i);
        struct slice piece = step ? (struct slice){s.data + i, step} : SLICE("\xEF\xBF\xBD");

        i += step ? step : 1;
        if (piece.len == 1 && piece.data[0] == '\0')
            continue;
        if (b->len - start + piece.len > max)
            return;
        buf_add_slice(b, piece);
    }
}

void text_array_add(struct buf *b, const char *const *texts, size_t n)
{
    buf_add_char(b, '{');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_add_char(b, ',');
        if (!texts[i]) {
            buf_add_text(b, "NULL");
            continue;
        }
        buf_add_char(b, '"');
        for (const char *p = texts[i]; *p; p++) {
            if (*p == '"' || *p == '\\')
                buf_add_char(b, '\\');
            buf_add_char(b, *p);
        }
        buf_add_char(b, '"');
    }
    buf_add_char(b, '}');
}
