#pragma once

#include "onceward/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The table of a subcommand. Its parser, help, usage errors, completion and manual page come from the table. */

/* The kind of an option, and the member that it fills. */
enum option_kind {
    OPTION_TEXT,    /* const char *; NULL: not given */
    OPTION_FILE,    /* a text; shells complete the names of files */
    OPTION_CONFIG,  /* a file; not given: the value of ONCEWARD_CONFIG */
    OPTION_TIME,    /* a text: a duration or a time */
    OPTION_OPERAND, /* a text: the first operand */
    OPTION_LAST_TEXT = OPTION_OPERAND,
    OPTION_OPERANDS, /* struct option_words: the other operands */
    OPTION_LIST,     /* struct option_words: an option that may be repeated, and takes the operands as well */
    OPTION_MAYBE,    /* struct option_maybe: an option whose value may be left out */
    OPTION_FLAG,     /* bool */
    OPTION_NUMBER,   /* int64_t; -1: not given */
    OPTION_RATE,     /* int64_t: microseconds between two; 0: not given */
};

/* Relations of an option to others; added up. */
enum {
    OPTION_REQUIRED = 1,
    OPTION_OR = 2,    /* an alternative to the row above */
    OPTION_WITH = 4,  /* only together with the row above */
    OPTION_ALONE = 8, /* without any other option or operand */
};

struct command_option {
    const char *name;  /* NULL: an operand */
    const char *value; /* "FILE"; in lower case the accepted words: "response|transaction" */
    const char *help;  /* NULL: the text above the options explains it */
    size_t at;         /* place of the member */
    enum option_kind kind;
    int rules;
    unsigned of; /* bit i: for word i of the first operand; 0: for all of them */
    char letter; /* 0: none */
};

struct option_maybe {
    bool given;
    const char *value;
};

struct option_words {
    const char **items;
    size_t n;
};

struct command {
    const char *name;
    const char *does;                     /* a line for the list of commands */
    const char *about;                    /* text above the options; a line feed ends a paragraph */
    const char *after;                    /* text below the options, or NULL */
    const struct command_option *options; /* the last one has neither name nor value; NULL: none */
    size_t size;                          /* of the struct that the options fill */
    int (*run)(void *options);            /* returns the exit status */
    void (*more)(struct buf *out);        /* adds lines between the options and `after`; NULL: none */
};

/* Place and kind of a row. OPTIONS is the struct of the command. */
#define OPTION(kind, member) offsetof(OPTIONS, member), OPTION_##kind

/* Rows that several commands have. */
#define CONFIG_OPTION(...)                                                                                   \
    {                                                                                                        \
        .name = "config", .value = "FILE",                                                                   \
        .help = "the configuration, or - for standard input. Default: the value of ONCEWARD_CONFIG",         \
        .letter = 'c', .at = OPTION(CONFIG, config), __VA_ARGS__                                             \
    }
#define JSON_OPTION(what)                                                                                    \
    {                                                                                                        \
        "json", NULL, "print " what, OPTION(FLAG, json)                                                      \
    }

/* Iterates over the rows of a command. */
#define options_each(row, command)                                                                           \
    for (const struct command_option *row = (command)->options; row && (row->name || row->value); row++)

/* Is the row for that word of the first operand? */
static inline bool option_is_of(const struct command_option *row, size_t form)
{
    return !row->of || row->of >> form & 1;
}

/* Parses the arguments, and runs the command. Returns the exit status. */
int command_call(const struct command *c, int argc, char **argv);

/* 0; 1: the text is no number. */
int option_number(const char *text, int64_t *ret);

/* Prints "onceward NAME: TEXT", and how to get the help, to standard error. Returns STATUS_USAGE. */
int command_wrong(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
