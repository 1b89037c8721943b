/* Markdown of the documentation that the program generates from its tables. */

#include "onceward/base/markdown.h"

#include <string.h>

/* Length of the next word. A space between backticks does not end it. */
static size_t word_len(const char *p)
{
    bool is_code = false;
    size_t n = 0;

    for (; p[n] && (is_code || p[n] != ' '); n++)
        is_code ^= p[n] == '`';
    return n;
}

/* Number of columns of a text in UTF-8. */
static size_t columns(const char *p, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)p[i] & 0xc0) != 0x80;
    return n;
}

void markdown_add_paragraph(struct buf *out, const char *text)
{
    size_t column = 0;

    while (*text) {
        size_t len = word_len(text), width = columns(text, len);

        if (column && column + 1 + width > MARKDOWN_WIDTH) {
            buf_add_char(out, '\n');
            column = 0;
        } else if (column) {
            buf_add_char(out, ' ');
            column++;
        }
        buf_add(out, text, len);
        column += width;
        text += len;
        text += strspn(text, " ");
    }
    buf_add_char(out, '\n');
}

void markdown_add_unlinked(struct buf *out, const char *text)
{
    while (*text) {
        size_t plain = strcspn(text, "[");
        const char *words = text + plain;

        buf_add(out, text, plain);
        if (!*words++)
            return;
        size_t len = strcspn(words, "[]");
        bool is_link = words[len] == ']' && words[len + 1] == '(' && strchr(words + len, ')');

        if (!is_link)
            buf_add_char(out, '[');
        buf_add(out, words, len);
        text = is_link ? strchr(words + len, ')') + 1 : words + len;
    }
}

/* Adds a paragraph that begins with a label. */
static void add_labelled(struct buf *out, const char *label, const char *text)
{
    struct buf whole = {0};

    buf_printf(&whole, "%s%s", label, text);
    buf_add_char(out, '\n');
    markdown_add_paragraph(out, buf_text(&whole));
    buf_deinit(&whole);
}

void markdown_add_entry(struct buf *out, const struct markdown_entry *e)
{
    static const char nothing[] = "Nothing to do";

    buf_printf(out, "%.*s %s\n", e->level, "######", e->heading);
    add_labelled(out, e->label, e->meaning);
    if (e->advice && !strncmp(e->advice, nothing, strlen(nothing)))
        add_labelled(out, "**What to do:** nothing", e->advice + strlen(nothing));
    else if (e->advice)
        add_labelled(out, "**What to do:** ", e->advice);
    buf_add_char(out, '\n');
}
