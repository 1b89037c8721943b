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
    char *options;      /* the struct that they fill */
    uint32_t given;     /* bit i: row i */
    size_t form;        /* the first operand, as the number of its word */
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

/* Adds "A", "A and B", "A, B and C" one by one. */
static void add_separator(struct buf *out, size_t i, size_t n, const char *last)
{
    buf_add_text(out, !i ? "" : i + 1 < n ? ", " : last);
}

/* --- values --- */

int option_number(const char *text, int64_t *ret)
{
    char *end;

    if (*text < '0' || *text > '9')
        return 1;
    errno = 0;
    *ret = strtoll(text, &end, 10);
    return errno || *end;
}

/* The number of words that the row accepts; *ret: the place of the text among them. 0: any text. */
static size_t find_word(const struct command_option *row, const char *text, size_t *ret)
{
    struct slice word;
    size_t n = 0;

    for (*ret = SIZE_MAX; (word = help_word(row, n)).len; n++)
        if (slice_equal(word, slice_of(text)))
            *ret = n;
    return n;
}

/* Reports that the text is none of the words, or, NULL, that there is none. */
static int refuse_word(const struct parsing *p, const struct command_option *row, const char *text)
{
    struct buf out = {0};
    size_t n, found;
    int status;

    if (row->name)
        buf_printf(&out, "--%s ", row->name);
    if (text)
        buf_printf(&out, "\"%s\" is not ", text);
    n = find_word(row, "", &found);
    for (size_t i = 0; i < n; i++) {
        add_separator(&out, i, n, " or ");
        buf_add_slice(&out, help_word(row, i));
    }
    status = command_wrong(p->command->name, text ? "%s" : "expected %s", buf_text(&out));
    buf_deinit(&out);
    return status;
}

/* 0, or STATUS_USAGE. */
static int set_value(struct parsing *p, const struct command_option *row, const char *text)
{
    static const char *const expected[] = {[OPTION_TIME] =
                                               "a duration (\"2h\") or a time (2026-01-31T03:00:00Z)",
                                           [OPTION_NUMBER] = "a number",
                                           [OPTION_RATE] = "a rate (\"10/s\")"};
    void *member = p->options + row->at;
    size_t found;
    int failed = 0;

    p->given |= 1U << (row - p->command->options);
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)member = true;
        return 0;
    case OPTION_MAYBE:
        *(struct option_maybe *)member = (struct option_maybe){true, text};
        return 0;
    case OPTION_LIST:
    case OPERANDS:
        p->words[p->n_words++] = text;
        *(struct option_words *)member = (struct option_words){p->words, p->n_words};
        return 0;
    case OPTION_NUMBER:
        failed = option_number(text, member);
        break;
    case OPTION_RATE:
        failed = rate_read(text, member);
        break;
    default:
        memcpy(member, &text, sizeof text); /* the member may be a `char *` */
        if (find_word(row, text, &found) && found == SIZE_MAX)
            return refuse_word(p, row, text);
        p->form = row->kind == OPERAND ? found : p->form;
        failed = row->kind == OPTION_TIME && since_check(text);
    }
    return failed ? command_wrong(p->command->name, "--%s \"%s\" is not %s", row->name, text,
                                  expected[row->kind])
                  : 0;
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
        if (row->kind == OPERAND && !was_given(p, row))
            return row;
        if (row->kind == OPERANDS && option_is_of(row, p->form))
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
    const void *member = p->options + row->at;

    switch (row->kind) {
    case OPTION_TEXT:
    case OPTION_FILE:
    case OPTION_CONFIG:
    case OPERAND: {
        const char *text = *(const char *const *)member;

        return text && *text;
    }
    default:
        return was_given(p, row);
    }
}

static int refuse_form(const struct parsing *p, const struct command_option *row)
{
    struct buf out = {0};
    unsigned of = row->of;
    size_t n = (size_t)__builtin_popcount(of), i = 0;
    int status;

    buf_printf(&out, "--%s is for ", row->name);
    options_each (form, p->command)
        for (size_t k = 0; form->kind == OPERAND && help_word(form, k).len; k++)
            if (of >> k & 1) {
                add_separator(&out, i++, n, " and ");
                buf_printf(&out, "`%.*s`", (int)help_word(form, k).len, help_word(form, k).data);
            }
    status = command_wrong(p->command->name, "%s", buf_text(&out));
    buf_deinit(&out);
    return status;
}

static int refuse_missing(const struct parsing *p, const struct command_option *row)
{
    struct buf name = {0};
    int status;

    if (help_word(row, 0).len)
        return refuse_word(p, row, NULL);
    help_add_name(&name, row, true);
    status = command_wrong(p->command->name, "%s is missing%s", buf_text(&name),
                           row->kind == OPTION_CONFIG ? ", and ONCEWARD_CONFIG is not set" : "");
    buf_deinit(&name);
    return status;
}

/* Reports that one of several alternatives is needed. */
static int refuse_group(const struct parsing *p, const struct command_option *row, size_t n)
{
    struct buf out = {0};
    int status;

    for (size_t i = 0; i < n; row++) {
        if (!option_is_of(row, p->form) || row->rules & OPTION_WITH)
            continue;
        add_separator(&out, i++, n, " and ");
        help_add_name(&out, row, false);
    }
    status = command_wrong(p->command->name, "give one of %s", buf_text(&out));
    buf_deinit(&out);
    return status;
}

/* Checks a row and its alternatives. */
static int check_group(const struct parsing *p, const struct command_option *first)
{
    const struct command_option *row = first;
    size_t n = 0, n_given = 0;

    do {
        if (!option_is_of(row, p->form) || row->rules & OPTION_WITH)
            continue;
        n++;
        n_given += has_value(p, row);
    } while ((++row)->rules & (OPTION_OR | OPTION_WITH));
    if (n_given == 1 || (!n_given && !(first->rules & OPTION_REQUIRED)))
        return 0;
    return n > 1 ? refuse_group(p, first, n) : refuse_missing(p, first);
}

static int refuse_company(const struct parsing *p, const struct command_option *row)
{
    struct buf name = {0};
    int status;

    help_add_name(&name, row, false);
    status = command_wrong(p->command->name, "%s stands alone: expected it without other arguments",
                           buf_text(&name));
    buf_deinit(&name);
    return status;
}

static int check(const struct parsing *p)
{
    options_each (row, p->command)
        if (row->rules & OPTION_ALONE && was_given(p, row))
            return p->given & (p->given - 1) ? refuse_company(p, row) : 0;
    options_each (row, p->command) {
        int status = 0;

        if (!option_is_of(row, p->form))
            status = was_given(p, row) ? refuse_form(p, row) : 0;
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
