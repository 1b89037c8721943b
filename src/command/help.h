#pragma once

#include "command/options.h"
#include "onceward/base/slice.h"

/* Text from the table of a subcommand. */

/* The words that the row accepts, in order. Empty: there are no more, or the row accepts any text. */
struct slice help_word(const struct command_option *row, size_t i);

/* "--queue NAME"; without its value: "--queue". */
void help_add_name(struct buf *out, const struct command_option *row, bool with_value);

/* "usage: onceward check --config FILE [--connect [--sample]]", in one line or several. */
void help_add_usage(struct buf *out, const struct command *c);

/* The whole help of a subcommand. */
void help_add(struct buf *out, const struct command *c);
