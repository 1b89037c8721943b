/* The help of a subcommand, made from its table. */

#include "command/help.h"

#include <string.h>

enum { LINE_COLUMNS = 120, NAME_COLUMNS = 26 };

/* --- names --- */

struct slice help_word(const struct command_option *row, size_t i)
{
    const char *at = row->value;

    if (!at || *at < 'a' || *at > 'z')
        return (struct slice){0};
    for (; i && *at; i--) {
        at += strcspn(at, "|");
        at += *at == '|';
    }
    return (struct slice){at, strcspn(at, "|")};
}

static void add_name(struct buf *out, const struct command_option *row)
{
    if (!row->name)
        buf_add_text(out, row->value);
    else
        buf_printf(out, "--%s", row->name);
    if (row->name && row->value)
        buf_printf(out, row->kind == OPTION_MAYBE ? " [%s]" : " %s", row->value);
}

void help_add_option(struct buf *out, const struct command_option *row)
{
    if (row->letter)
        buf_printf(out, "-%c, ", row->letter);
    add_name(out, row);
}

/* --- layout --- */

static size_t count_columns(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static size_t column_of(const struct buf *out)
{
    size_t start = out->len;

    while (start && out->data[start - 1] != '\n')
        start--;
    return count_columns(out->data + start, out->len - start);
}

static void add_blanks(struct buf *out, size_t column)
{
    for (size_t at = column_of(out); at < column; at++)
        buf_add_char(out, ' ');
}

/* Adds a word behind a blank, or on the next line. */
static void add_word(struct buf *out, const char *word, size_t len, size_t indent)
{
    size_t column = column_of(out);

    if (column > indent && column + 1 + count_columns(word, len) > LINE_COLUMNS)
        buf_add_char(out, '\n');
    else if (column > indent)
        buf_add_char(out, ' ');
    add_blanks(out, indent);
    buf_add(out, word, len);
}

/* Adds paragraphs, each of them beginning at the column `indent`. */
static void add_text(struct buf *out, const char *text, size_t indent)
{
    while (*text) {
        size_t len = strcspn(text, " \n");

        add_word(out, text, len, indent);
        text += len;
        if (*text == '\n')
            buf_add_char(out, '\n');
        text += *text != '\0';
    }
    buf_add_char(out, '\n');
}

/* --- usage --- */

void help_add_alternatives(struct buf *out, const struct command_option *row, size_t form)
{
    add_name(out, row);
    while ((++row)->rules & (OPTION_OR | OPTION_WITH)) {
        if (!option_is_of(row, form))
            continue;
        buf_add_text(out, row->rules & OPTION_OR ? " | " : " [");
        add_name(out, row);
        buf_add_text(out, row->rules & OPTION_OR ? "" : "]");
    }
}

static void add_group(struct buf *out, const struct command_option *row, size_t form)
{
    bool is_required = row->rules & OPTION_REQUIRED;

    buf_add_text(out, is_required ? "" : "[");
    help_add_alternatives(out, row, form);
    buf_add_text(out, is_required ? "" : "]");
}

/* Begins a line; returns the column of the arguments. */
static size_t add_usage_head(struct buf *out, const struct command *c)
{
    buf_add_text(out, out->len ? "       " : "usage: ");
    buf_printf(out, "onceward %s", c->name);
    return column_of(out) + 1;
}

static void add_usage_of(struct buf *out, const struct command *c, size_t form, struct slice word)
{
    struct buf group = {0};
    size_t indent = add_usage_head(out, c);

    if (word.len)
        add_word(out, word.data, word.len, indent);
    options_each (row, c) {
        if (row->rules & (OPTION_OR | OPTION_WITH | OPTION_ALONE) || !option_is_of(row, form) ||
            (word.len && row->kind == OPTION_OPERAND))
            continue;
        buf_reset(&group);
        add_group(&group, row, form);
        add_word(out, group.data, group.len, indent);
    }
    buf_add_char(out, '\n');
    buf_deinit(&group);
}

void help_add_usage(struct buf *out, const struct command *c)
{
    const struct command_option *forms = NULL;
    bool differ = false;
    struct slice word;

    options_each (row, c) {
        forms = row->kind == OPTION_OPERAND ? row : forms;
        differ |= row->of != 0;
    }
    if (!differ)
        add_usage_of(out, c, 0, (struct slice){0});
    for (size_t i = 0; differ && (word = help_word(forms, i)).len; i++)
        add_usage_of(out, c, i, word);
    options_each (row, c)
        if (row->rules & OPTION_ALONE) {
            add_usage_head(out, c);
            buf_add_char(out, ' ');
            add_name(out, row);
            buf_add_char(out, '\n');
        }
}

void help_add_row(struct buf *out, const struct command *c)
{
    struct buf call = {0};

    buf_printf(&call, "onceward %s", c->name);
    options_each (row, c)
        if ((row->rules & OPTION_REQUIRED || row->kind == OPTION_CONFIG) && !row->of) {
            buf_add_char(&call, ' ');
            add_group(&call, row, 0);
        }
    buf_add_text(out, "| `");
    for (const char *at = buf_text(&call); *at; at++)
        buf_printf(out, *at == '|' ? "\\%c" : "%c", *at);
    buf_printf(out, "` | %s |\n", c->does);
    buf_deinit(&call);
}

/* --- the whole --- */

static void add_options(struct buf *out, const struct command *c)
{
    struct buf name = {0};
    size_t width = 0;

    for (int pass = 0; pass < 2; pass++)
        options_each (row, c) {
            if (!row->help)
                continue;
            buf_reset(&name);
            buf_add_text(&name, "  ");
            help_add_option(&name, row);
            size_t n = count_columns(name.data, name.len) + 2;
            if (!pass) {
                width = n > width && n <= NAME_COLUMNS ? n : width;
                continue;
            }
            buf_add_slice(out, buf_slice(&name));
            if (n > width)
                buf_add_char(out, '\n');
            add_blanks(out, width);
            add_text(out, row->help, width);
        }
    buf_deinit(&name);
}

void help_add(struct buf *out, const struct command *c)
{
    help_add_usage(out, c);
    add_text(out, c->about, 0);
    add_options(out, c);
    if (c->more)
        c->more(out);
    if (c->after)
        add_text(out, c->after, 0);
}
