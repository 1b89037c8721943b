/* Parses the arguments of a subcommand by its table, with getopt. */

#include "command/options.h"

#include "command/help.h"
#include "command/pace.h"
#include "command/since.h"
#include "onceward/base/mem.h"
#include "onceward/command/command.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 32 };

struct parsing {
    const struct command *command;
    char *options;      /* struct that the options fill */
    uint32_t given;     /* bit i: row i */
    const char *word;   /* the first operand */
    size_t form;        /* its place among the accepted words */
    const char **words; /* room for all arguments: of a list, or the operands */
    size_t n_words;
};

int command_wrong(const char *name, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "onceward %s: ", name);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nsee `onceward %s --help`\n", name);
    va_end(args);
    return STATUS_USAGE;
}

/* Reports a fault of a row and its alternatives. Returns STATUS_USAGE. */
static int refuse(const struct parsing *p, const struct command_option *row, const char *what)
{
    struct buf text = {0};
    int status;

    help_add_alternatives(&text, row, p->form);
    status = command_wrong(p->command->name, "%s%s", buf_text(&text), what);
    buf_deinit(&text);
    return status;
}

int option_number(const char *text, int64_t *ret)
{
    char *end;

    if (*text < '0' || *text > '9')
        return 1;
    errno = 0;
    *ret = strtoll(text, &end, 10);
    return errno || *end;
}

/* Place of the text among the words that the row accepts; 0 also if the row accepts any text. -1: not among them. */
static int find_word(const struct command_option *row, const char *text)
{
    struct slice word;

    for (int i = 0; (word = help_word(row, (size_t)i)).len; i++)
        if (slice_equal(word, slice_of(text)))
            return i;
    return help_word(row, 0).len ? -1 : 0;
}

/* 0, or STATUS_USAGE. */
static int set_value(struct parsing *p, const struct command_option *row, const char *text)
{
    void *member = p->options + row->at;
    const char *expected = NULL;

    p->given |= 1U << (row - p->command->options);
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)member = true;
        break;
    case OPTION_MAYBE:
        *(struct option_maybe *)member = (struct option_maybe){true, text};
        break;
    case OPTION_LIST:
    case OPTION_OPERANDS:
        p->words[p->n_words++] = text;
        *(struct option_words *)member = (struct option_words){p->words, p->n_words};
        break;
    case OPTION_NUMBER:
        expected = option_number(text, member) ? "a number" : NULL;
        break;
    case OPTION_RATE:
        expected = rate_read(text, member) ? "a rate (\"10/s\")" : NULL;
        break;
    default:
        memcpy(member, &text, sizeof text); /* the member may be a `char *` */
        if (row->kind == OPTION_OPERAND) {
            p->word = text;
            p->form = (size_t)find_word(row, text);
        }
        if (row->kind == OPTION_TIME && since_check(text))
            expected = "a duration (\"2h\") or a time (2026-01-31T03:00:00Z)";
        if (find_word(row, text) < 0)
            expected = row->value;
    }
    if (!expected)
        return 0;
    return command_wrong(p->command->name, "%s%s%s\"%s\" is not %s", row->name ? "--" : "",
                         row->name ? row->name : "", row->name ? " " : "", text, expected);
}

static void set_defaults(struct parsing *p)
{
    options_each (row, p->command) {
        void *member = p->options + row->at;
        const char *named = getenv("ONCEWARD_CONFIG");

        if (row->kind == OPTION_NUMBER)
            *(int64_t *)member = -1;
        if (row->kind == OPTION_CONFIG && named && *named)
            *(const char **)member = named;
    }
}

/* --- arguments --- */

enum { FIRST_ROW = 256 };

static const struct command_option *row_of(const struct parsing *p, int option)
{
    options_each (row, p->command)
        if (row->letter == option || row - p->command->options == option - FIRST_ROW)
            return row;
    return NULL;
}

static int print_help(const struct command *c)
{
    struct buf out = {0};

    help_add(&out, c);
    fputs(buf_text(&out), stdout);
    buf_deinit(&out);
    return STATUS_DONE;
}

/* -1: continue. */
static int read_options(struct parsing *p, int argc, char **argv)
{
    struct option longs[MAX_ROWS + 2] = {{"help", no_argument, NULL, 'h'}};
    char letters[2 * MAX_ROWS + 2] = "h";
    size_t n = 1;
    int option;

    options_each (row, p->command) {
        int argument = row->kind == OPTION_FLAG    ? no_argument
                       : row->kind == OPTION_MAYBE ? optional_argument
                                                   : required_argument;
        long i = row - p->command->options;

        assert(i < MAX_ROWS);
        if (row->name)
            longs[n++] = (struct option){row->name, argument, NULL, FIRST_ROW + (int)i};
        if (row->letter)
            snprintf(letters + strlen(letters), 3, argument == required_argument ? "%c:" : "%c", row->letter);
    }
    while ((option = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        const struct command_option *row = row_of(p, option);
        int status;

        if (option == 'h')
            return print_help(p->command);
        if (!row) { /* getopt has printed the reason */
            fprintf(stderr, "see `onceward %s --help`\n", p->command->name);
            return STATUS_USAGE;
        }
        if ((status = set_value(p, row, optarg)))
            return status;
    }
    return -1;
}

static bool was_given(const struct parsing *p, const struct command_option *row)
{
    return p->given >> (row - p->command->options) & 1;
}

/* Which row takes the next operand? */
static const struct command_option *row_of_operand(const struct parsing *p)
{
    options_each (row, p->command) {
        if (row->kind == OPTION_OPERAND && !was_given(p, row))
            return row;
        if (row->kind == OPTION_OPERANDS && option_is_of(row, p->form))
            return row;
        if (row->kind == OPTION_LIST && p->n_words)
            return row;
    }
    return NULL;
}

static int read_operands(struct parsing *p, int argc, char **argv)
{
    for (int i = optind; i < argc; i++) {
        const struct command_option *row = row_of_operand(p);
        int status;

        if (!row)
            return command_wrong(p->command->name, "\"%s\" is one argument too many", argv[i]);
        if ((status = set_value(p, row, argv[i])))
            return status;
    }
    return 0;
}

/* --- checks --- */

/* A text that is empty counts as missing. */
static bool has_value(const struct parsing *p, const struct command_option *row)
{
    const char *text;

    if (row->kind > OPTION_LAST_TEXT)
        return was_given(p, row);
    memcpy(&text, p->options + row->at, sizeof text);
    return text && *text;
}

/* Checks a row and its alternatives. */
static int check_group(const struct parsing *p, const struct command_option *first)
{
    const struct command_option *row = first;
    size_t n = 0;

    do
        n += option_is_of(row, p->form) && !(row->rules & OPTION_WITH) && has_value(p, row);
    while ((++row)->rules & (OPTION_OR | OPTION_WITH));
    if (n > 1)
        return refuse(p, first, ": give one of them");
    if (n || !(first->rules & OPTION_REQUIRED))
        return 0;
    return refuse(p, first,
                  first->kind == OPTION_CONFIG ? " is missing, and ONCEWARD_CONFIG is not set"
                                               : " is missing");
}

static int check(const struct parsing *p)
{
    options_each (row, p->command)
        if (row->rules & OPTION_ALONE && was_given(p, row))
            return p->given & (p->given - 1) ? refuse(p, row, ": expected nothing else with it") : 0;
    options_each (row, p->command) {
        int status = 0;

        if (!option_is_of(row, p->form))
            status = was_given(p, row)
                         ? command_wrong(p->command->name, "--%s is not for `%s`", row->name, p->word)
                         : 0;
        else if (row->rules & OPTION_WITH && was_given(p, row) && !was_given(p, row - 1))
            status = command_wrong(p->command->name, "--%s is for --%s", row->name, row[-1].name);
        else if (!(row->rules & (OPTION_OR | OPTION_WITH)))
            status = check_group(p, row);
        if (status)
            return status;
    }
    return 0;
}

int command_call(const struct command *c, int argc, char **argv)
{
    struct parsing p = {.command = c,
                        .options = mem_zalloc(1, c->size + 1),
                        .words = mem_zalloc((size_t)argc + 1, sizeof *p.words)};
    char name[32], *called = argv[0];
    int status;

    snprintf(name, sizeof name, "onceward %s", c->name);
    argv[0] = name; /* getopt begins its messages with it */
    set_defaults(&p);
    status = read_options(&p, argc, argv);
    argv[0] = called;
    if (status < 0)
        status = read_operands(&p, argc, argv) || check(&p) ? STATUS_USAGE : c->run(p.options);
    free(p.words);
    free(p.options);
    return status;
}
