#pragma once

#include "command/options.h"
#include "onceward/base/slice.h"

/* Text from the table of a subcommand. */

/* Words that the row accepts, in order. Empty: there are no more, or the row accepts any text. */
struct slice help_word(const struct command_option *row, size_t i);

/* The row and its alternatives as "A | B", and the options that need it as "A [B]", as far as that word of the first
 * operand has them. */
void help_add_alternatives(struct buf *out, const struct command_option *row, size_t form);

/* "-q, --queue NAME", as the list of options has it. */
void help_add_option(struct buf *out, const struct command_option *row);

/* Adds "usage: onceward check --config FILE [--connect [--sample]]", in one line or several. */
void help_add_usage(struct buf *out, const struct command *c);

/* A row of the table in deploy/oncall/commands.md. */
void help_add_row(struct buf *out, const struct command *c);

/* The whole help of a subcommand. */
void help_add(struct buf *out, const struct command *c);
