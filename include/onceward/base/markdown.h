#pragma once

#include "onceward/base/buf.h"

/* Adds a paragraph, wrapped at MARKDOWN_WIDTH columns, and a newline. Code between backticks stays on one line. */
enum { MARKDOWN_WIDTH = 116 };
void markdown_add_paragraph(struct buf *out, const char *text);

/* Adds the text for a terminal: each link is only its words. */
void markdown_add_unlinked(struct buf *out, const char *text);

/* Adds the entry of a term: a heading, the meaning after its label, and the advice. */
struct markdown_entry {
    int level;           /* of the heading */
    const char *heading; /* Markdown */
    const char *label;
    const char *meaning;
    const char *advice; /* NULL: none */
};
void markdown_add_entry(struct buf *out, const struct markdown_entry *e);
