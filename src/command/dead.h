#pragma once

#include "command/pace.h"
#include "onceward/base/log.h"
#include "onceward/config/config.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>

/* What `dead` was asked to do. */

struct dead_options {
    const char *config;
    struct dead_filter filter;
    int64_t *ids;
    bool *seen; /* which of them were met */
    bool all, dry_run, body_raw;
    bool json;            /* a JSON object a letter instead of words */
    bool out_of_order;    /* --out-of-order */
    bool new_id;          /* --new-id */
    const char *given_id; /* its value, or NULL: make one */
    int64_t interval_us;  /* --rate: between two letters; 0: as fast as it goes */
};

/* Each answers the exit status. */
int dead_list(const struct dead_options *o, const struct config *c, struct admin *a);
int dead_show(const struct dead_options *o, const struct config *c, struct admin *a);

/* Publishes the letters again. */
int dead_redrive(const struct dead_options *o, const struct config *c, struct admin *a);

/* What became of a letter. */
struct letter_news {
    enum event event;
    const char *queue; /* where it went; NULL: the one it died in */
    const char *id;    /* a new message id; NULL or empty: its own */
};

/* "letter 12 (orders, message m1): WORDS" on standard output, safe for a terminal; with --json a line in the
 * form of the log, where the words are the reason. At once: what was done must be said, also when the next
 * step ends the program. */
void letter_tell(const struct dead_options *o, const struct dead_letter *l, const struct letter_news *news,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));

/* A letter as one JSON object, with its body where it has one; and that on a line of standard output. */
void letter_add_json(struct buf *out, const struct dead_letter *l);
void letter_print_json(const struct dead_letter *l);

/* Letters that are named by ID: notes that one was met; then says on standard error which were not. Answers
 * how many. */
void letter_seen(const struct dead_options *o, const struct dead_letter *l);
size_t letters_tell_missing(const struct dead_options *o);

/* Without an ID or a consumer, `redrive` and `discard` are about the consumers of this configuration.
 * *ret_others: how many letters of others the filter matches; those are left in peace. */
int dead_narrow(struct admin *a, const struct config *c, struct dead_filter *filter, int64_t *ret_others,
                struct fault *f);
