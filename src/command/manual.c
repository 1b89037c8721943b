/* The manual page, generated from the tables of the subcommands and the documentation. The build installs it. */

#include "command/common.h"
#include "command/help.h"
#include "onceward/base/buf.h"
#include "onceward/base/log.h"
#include "onceward/base/markdown.h"
#include "onceward/config/keys.h"
#include "onceward/core/codes.h"

#include <string.h>

/* Adds a non-ASCII character by groff's name for it, independent of the encoding. Returns its last byte. */
static const char *add_character(struct buf *out, const char *at)
{
    unsigned char first = (unsigned char)*at;
    int n = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    unsigned c = first & (0x3Fu >> n);

    for (; n && ((unsigned char)at[1] & 0xC0) == 0x80; n--)
        c = c << 6 | ((unsigned char)*++at & 0x3F);
    buf_printf(out, "\\[u%04X]", c);
    return at;
}

/* Adds text without roff's requests and escapes; text between backticks becomes bold. */
static void add_text(struct buf *out, const char *text, bool is_literal)
{
    bool line_starts = true, bold = false;

    for (; *text; text++) {
        if (line_starts && (*text == '.' || *text == '\''))
            buf_add_text(out, "\\&");
        line_starts = *text == '\n';
        if (*text == '\\')
            buf_add_text(out, "\\e");
        else if (*text == '-')
            buf_add_text(out, "\\-");
        else if ((unsigned char)*text >= 0x80)
            text = add_character(out, text);
        else if (*text == '`' && !is_literal)
            buf_add_text(out, (bold = !bold) ? "\\fB" : "\\fR");
        else
            buf_add_char(out, *text);
    }
}

static void add_entry(struct buf *out, const char *name, const char *first, const char *second)
{
    buf_add_text(out, ".TP\n.B ");
    add_text(out, name, true);
    buf_add_char(out, '\n');
    add_text(out, first, false);
    if (second && *second) {
        buf_add_char(out, '\n');
        add_text(out, second, false);
    }
    buf_add_char(out, '\n');
}

static void add_paragraphs(struct buf *out, const char *text)
{
    struct buf one = {0};

    while (*text) {
        size_t len = strcspn(text, "\n");

        buf_reset(&one);
        buf_add(&one, text, len);
        buf_add_text(out, ".PP\n");
        add_text(out, buf_text(&one), false);
        buf_add_char(out, '\n');
        text += len + (text[len] == '\n');
    }
    buf_deinit(&one);
}

static void add_lines(struct buf *out, struct buf *lines)
{
    buf_add_text(out, ".PP\n.nf\n");
    add_text(out, buf_text(lines), true);
    buf_add_text(out, ".fi\n");
    buf_reset(lines);
}

static void add_command(struct buf *out, const struct command *c)
{
    struct buf part = {0};

    buf_printf(out, ".SS %s\n", c->name);
    help_add_usage(&part, c);
    add_lines(out, &part);
    add_paragraphs(out, c->about);
    options_each (row, c)
        if (row->help) {
            help_add_option(&part, row);
            add_entry(out, buf_text(&part), row->help, NULL);
            buf_reset(&part);
        }
    if (c->more) {
        c->more(&part);
        add_lines(out, &part);
    }
    if (c->after)
        add_paragraphs(out, c->after);
    buf_deinit(&part);
}

static void add_key(void *ctx, const char *path, const char *fallback, const char *sentence)
{
    struct buf first = {0};

    buf_printf(&first, "%s. Default: %s.", sentence, fallback);
    add_entry(ctx, path, buf_text(&first), NULL);
    buf_deinit(&first);
}

void manual_add(struct buf *out)
{
    buf_printf(
        out,
        ".TH ONCEWARD 1 \"\" \"onceward %s\" \"User Commands\"\n"
        ".SH NAME\nonceward \\- lets each message of a RabbitMQ queue through to an application once\n"
        ".SH SYNOPSIS\n.B onceward\nCOMMAND [OPTIONS]\n"
        ".SH DESCRIPTION\n"
        "Onceward is a sidecar between a RabbitMQ queue and one application. It claims each message in "
        "an inbox table beside the application's own tables, sends it with POST, and acks it when its "
        "row is completed.\n"
        ".SH COMMANDS\n",
        ONCEWARD_VERSION);
    for (size_t i = 0; i < n_commands; i++)
        add_command(out, commands[i]);
    buf_add_text(out, ".SH CONFIGURATION\nA JSON file. See also \\fBonceward example\\fR and \\fBonceward "
                      "explain KEY\\fR.\n");
    config_keys_each(add_key, out);
    buf_add_text(out, ".SH EVENTS\nThe log is JSON, one object per line. Its events are:\n");
    for (int i = 0; i < N_EVENTS; i++)
        add_entry(out, event_info(i)->name, event_info(i)->sentence, event_info(i)->advice);
    buf_add_text(
        out,
        ".SH ERRORS\n\\fBonceward.complete\\fR and \\fBonceward.extend\\fR raise these in the application's "
        "transaction:\n");
    for (size_t i = 0; i < N_ERROR_CODES; i++) {
        struct buf sentence = {0};

        markdown_add_unlinked(&sentence, error_codes[i].sentence);
        add_entry(out, error_codes[i].name, buf_text(&sentence), error_codes[i].advice);
        buf_deinit(&sentence);
    }
    buf_add_text(out, ".SH EXIT STATUS\n0: done. 1: it failed. 2: usage or configuration.\n"
                      ".SH ENVIRONMENT\n");
    add_entry(out, "ONCEWARD_CONFIG", "The configuration file of commands without `--config`.", NULL);
}
