#pragma once

#include "command/options.h"
#include "command/pace.h"
#include "onceward/base/log.h"
#include "onceward/config/config.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>

/* The options of `dead`. */

struct dead_options {
    const char *action, *config;
    struct dead_filter filter;
    struct option_words operands;
    int64_t *ids;
    bool *seen; /* marks the ids that were found */
    bool all, dry_run;
    const char *body;           /* "raw", or NULL */
    bool json;                  /* print a JSON object per letter */
    bool out_of_order;          /* --out-of-order */
    struct option_maybe new_id; /* without a value: generate one */
    int64_t interval_us;        /* --rate: between two letters; 0: unlimited */
};

/* Actions of the command. They return the exit status. */
int dead_list(const struct dead_options *o, const struct config *c, struct admin *a);
int dead_show(const struct dead_options *o, const struct config *c, struct admin *a);

/* Publishes the dead letters again. */
int dead_redrive(const struct dead_options *o, const struct config *c, struct admin *a);

/* The result for a dead letter. */
struct letter_news {
    enum event event;
    const char *queue; /* destination; NULL: the queue that it died in */
    const char *id;    /* new message id; NULL or empty: unchanged */
};

/* Prints "letter 12 (orders, message m1): TEXT", safe for a terminal; with --json a line in the form of the log, with
 * the text as the reason. Flushes at once, so that each completed step is printed even if the next one ends the
 * program. */
void letter_tell(const struct dead_options *o, const struct dead_letter *l, const struct letter_news *news,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));

/* letter_add_json adds a dead letter as one JSON object, with its body if present; letter_print_json prints that as a
 * line. */
void letter_add_json(struct buf *out, const struct dead_letter *l);
void letter_print_json(const struct dead_letter *l);

/* letter_seen marks a letter that was named by ID as found; letters_tell_missing prints the missing ones, and returns
 * their number. */
void letter_seen(const struct dead_options *o, const struct dead_letter *l);
size_t letters_tell_missing(const struct dead_options *o);

/* Limits `redrive` and `discard` without an ID or a consumer to the consumers of this configuration. *ret_others:
 * number of matching letters of other consumers, which stay untouched. */
int dead_narrow(struct admin *a, const struct config *c, struct dead_filter *filter, int64_t *ret_others,
                struct fault *f);
