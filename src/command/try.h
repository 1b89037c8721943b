#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/core/headers.h"
#include "onceward/core/outcome.h"
#include "onceward/inbox/trial.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What `onceward try` is made of. A case sends messages, looks at rows and effects, and notes findings. */

struct config;
struct config_queue;
struct forward;
struct wait;

enum try_case {
#define CASE(id, name, what, expected) TRY_##id,
#include "command/try.def"
    N_TRY_CASES
};

enum try_level { TRY_ADVICE, TRY_BREAKS };

enum try_finding {
#define FINDING(id, of, name, level, what, rule, mend) TRY_FOUND_##id,
#include "command/try.def"
    N_TRY_FINDINGS
};

struct try_case_info {
    const char *name, *what, *expected;
};

struct try_finding_info {
    enum try_case of;
    enum try_level level;
    const char *name, *what, *rule, *mend;
};

extern const struct try_case_info try_cases[N_TRY_CASES];
extern const struct try_finding_info try_findings[N_TRY_FINDINGS];

/* What was seen in a case. */
struct try_verdict {
    bool was_run;
    char skipped[200]; /* why it was not, or not wholly, looked at */
    char note[200];    /* nothing to mend: what is good to know */
};

struct try_options {
    const char *config, *queue, *effect, *effect_database, *message, *content_type;
    bool json, strict, discard_published;
};

/* A run. One thread. */
struct
try {
    const struct try_options *options;
    const struct config_queue *q;
    char consumer[TRIAL_PREFIX_LEN + 16 + 1];
    struct trial *inbox;
    struct effects *effects; /* NULL: not given */
    struct wait *wait;
    struct forward *forward;
    struct buf message; /* as given; {{id}} is the message's id */
    const char *content_type;
    unsigned n_sent;
    struct shot *shots[512];
    int n_shots;

    int64_t end_ms;      /* clock_ms() at which it ends, wherever it is */
    bool is_late;        /* that was so: the fault says nothing else */
    int64_t ordinary_us; /* how long an answer takes */
    int64_t effect_of_one;
    bool works; /* an ordinary message is completed: without that little else can be said */

    struct try_verdict verdicts[N_TRY_CASES];
    bool found[N_TRY_FINDINGS];
    char details[N_TRY_FINDINGS][400];
    int64_t rows_left;
    bool is_unreachable; /* no server listens there */
    struct trial_published published;
    int64_t took_ms;
    struct fault fault;
};

/* A request, and its answer. */
struct shot {
    struct trial_claim claim;
    struct buf body;
    struct header_block headers;
    int64_t before; /* --effect without $1: what it counted before */
    uint64_t ref;
    bool answered;
    enum answer_kind kind;
    int status; /* 0: no answer */
    int64_t took_us;
    bool kept, reused;
    char error[320];
};

/* What a shot is to be like; {0} is an ordinary one. */
struct shot_kind {
    bool wrong_body, no_type, many_headers, large_body, fresh;
    int64_t window_ms; /* of the row; 0: the queue's */
};

/* Set by SIGINT and SIGTERM. */
extern volatile sig_atomic_t try_stop_asked;

/* --- try_send.c: each answers 0, or -1 with t->fault (also when it is to stop) --- */

/* A message with an id of its own, claimed. It is t's. */
int shot_new(struct try *t, const struct shot_kind *kind, struct shot **ret);

/* Another request for the same message, with the same token; not claimed again. */
int shot_again(struct try *t, const struct shot *s, struct shot **ret);

/* Takes the row over with a new token; s keeps its old one, *ret has the new one. by: see trial.h. */
int shot_take_over(struct try *t, enum trial_by by, const struct shot *s, struct shot **ret);

void shot_send(struct try *t, struct shot *s, const struct shot_kind *kind, int64_t timeout_ms);
void shot_abandon(struct try *t, struct shot *s);

/* Lets time pass, at most to until_ms, until something happened. */
int try_turn(struct try *t, int64_t until_ms);
int try_pause(struct try *t, int64_t ms);

/* Until it is answered, or timeout_ms are over (then it is abandoned). */
int shot_wait(struct try *t, struct shot *s, int64_t timeout_ms);

/* The committed effects of its message; -1 in *ret: nobody can tell. */
int shot_effect(struct try *t, const struct shot *s, int64_t *ret);

/* The same as soon as there are so many, or at until_ms. */
int shot_effect_by(struct try *t, const struct shot *s, int64_t wanted, int64_t until_ms, int64_t *ret);

/* Answered: settles it where the sidecar would, waits for the commit where the answer allows it. *ret: the
 * row is completed. */
int shot_finish(struct try *t, struct shot *s, bool *ret);

/* Sends it, waits for the answer, finishes it. */
int shot_run(struct try *t, struct shot *s, const struct shot_kind *kind, bool *ret_completed);

/* Is that an answer that says done? */
bool shot_says_done(const struct shot *s);

/* "answered 500: \"…\" after 3 ms" */
const char *shot_words(const struct shot *s, char *out, size_t size);

/* With s's row locked: sends it, and waits until n sessions wait for the lock, or it is answered, or nothing
 * changes any more. *ret_waiting: how many do. */
int try_meet(struct try *t, struct shot *const *shots, int n, int wanted, int *ret_waiting);

void try_shots_free(struct try *t);

/* --- try_tell.c --- */

void try_found(struct try *t, enum try_finding which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void try_skip(struct try *t, enum try_case which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void try_note(struct try *t, enum try_case which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool try_breaks(const struct try *t);
bool try_advises(const struct try *t);
void try_tell(const struct try *t, FILE *out);
void try_tell_json(const struct try *t, FILE *out);

/* What there is to be found: for --help, and for the documentation. */
void try_tell_cases(FILE *out);
void try_tell_markdown(FILE *out);

/* --- the cases: try_cases.c, try_fences.c, try_http.c --- */

int try_ordinary(struct try *t);
int try_duplicate(struct try *t);
int try_stale(struct try *t);
int try_taken(struct try *t);
int try_twice(struct try *t);
int try_early(struct try *t);
int try_wrong(struct try *t);
int try_window(struct try *t);
int try_many(struct try *t);
int try_kept(struct try *t);
int try_headers(struct try *t);
int try_body(struct try *t);
int try_type(struct try *t);
