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

/* The parts of `onceward try`. A case sends messages, reads rows and effects, and records findings. */

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

/* The findings of a case. */
struct try_verdict {
    bool was_run;
    char skipped[200]; /* why it was not checked, or not completely */
    char note[200];    /* useful information without a required action */
};

struct try_options {
    const char *config, *queue, *effect, *effect_database, *message, *content_type;
    bool json, strict, discard_published, markdown;
};

/* A run of `onceward try`. One thread. */
struct try_run {
    const struct try_options *options;
    const struct config_queue *q;
    char consumer[TRIAL_PREFIX_LEN + 16 + 1];
    struct trial *inbox;
    struct effects *effects; /* NULL: not given */
    struct wait *wait;
    struct forward *forward;
    struct buf message; /* as given; {{id}} is the place of the message's id */
    const char *content_type;
    unsigned n_sent;
    struct shot *shots[512];
    int n_shots;

    int64_t end_ms;      /* clock_ms() at which the run ends in any state */
    bool is_late;        /* the run ended for that reason; the fault has no other */
    int64_t ordinary_us; /* duration of an ordinary answer */
    int64_t effect_of_one;
    bool works;      /* an ordinary message is completed; otherwise few cases make sense */
    bool in_batches; /* forward.batch: every request has the form for several messages */

    struct try_verdict verdicts[N_TRY_CASES];
    bool found[N_TRY_FINDINGS];
    char details[N_TRY_FINDINGS][400];
    int64_t rows_left;
    bool is_unreachable; /* no server listens at the application's address */
    struct trial_published published;
    int64_t took_ms;
    struct fault fault;
};

enum { TRY_BATCH_MAX = 8 };

/* A message, its request, and the answer to it. With forward.batch one shot can carry others: its request has the
 * messages of all its members, and each member gets its part of the answer. */
struct shot {
    struct trial_claim claim;
    struct buf body;
    struct buf token;
    struct message *message;
    struct shot *members[TRY_BATCH_MAX]; /* of the request that this shot carries, itself included */
    int n_members;
    struct buf envelope;
    bool named;   /* the answer names the message as failed; `status` is the named one */
    bool unclear; /* a 2xx without the outcomes of its messages */
    struct header_block headers;
    int64_t before; /* for --effect without $1: the count before the shot */
    uint64_t ref;
    bool answered;
    enum answer_kind kind;
    int status; /* 0: no answer */
    int64_t took_us;
    bool kept, reused;
    char error[320];
};

/* The properties of a shot; {0} is an ordinary one. */
struct shot_kind {
    bool wrong_body, no_type, many_headers, large_body, fresh;
    int64_t window_ms; /* of the row; 0: as configured for the queue */
};

/* Set by SIGINT and SIGTERM. */
extern volatile sig_atomic_t try_stop_asked;

/* --- try_send.c: each returns 0, or -1 with t->fault (also after a signal) --- */

/* Claims a message with an id of its own. t owns it. */
int shot_new(struct try_run *t, const struct shot_kind *kind, struct shot **ret);

/* Makes another request for the same message with the same token, without another claim. */
int shot_again(struct try_run *t, const struct shot *s, struct shot **ret);

/* Takes the row over with a new token; s keeps its old one, *ret has the new one. by: see trial.h. */
int shot_take_over(struct try_run *t, enum trial_by by, const struct shot *s, struct shot **ret);

void shot_send(struct try_run *t, struct shot *s, const struct shot_kind *kind, int64_t timeout_ms);

/* Sends n messages in one request, carried by the first; n is at most TRY_BATCH_MAX. */
void shots_send(struct try_run *t, struct shot *const *shots, int n, int64_t timeout_ms);
void shot_abandon(struct try_run *t, struct shot *s);

/* Handles events until one has happened, until until_ms at most. */
int try_turn(struct try_run *t, int64_t until_ms);
int try_pause(struct try_run *t, int64_t ms);

/* Waits for the answer; abandons the request after timeout_ms. */
int shot_wait(struct try_run *t, struct shot *s, int64_t timeout_ms);

/* Counts the committed effects of the message; *ret -1: unknown. */
int shot_effect(struct try_run *t, const struct shot *s, int64_t *ret);

/* The same, as soon as that many exist, or at until_ms. */
int shot_effect_by(struct try_run *t, const struct shot *s, int64_t wanted, int64_t until_ms, int64_t *ret);

/* Completes the row of an answered shot if the sidecar would, and waits for the commit if the answer allows that.
 * *ret: the row is completed. */
int shot_finish(struct try_run *t, struct shot *s, bool *ret);

/* The same, until until_ms at most. shot_commit_ms: time until which shot_finish would wait. */
int shot_finish_by(struct try_run *t, struct shot *s, int64_t until_ms, bool *ret);
int64_t shot_commit_ms(const struct try_run *t, const struct shot *s);

/* Sends the shot, waits for the answer, finishes it. */
int shot_run(struct try_run *t, struct shot *s, const struct shot_kind *kind, bool *ret_completed);

/* Does the answer report success for this message? */
bool shot_says_done(const struct shot *s);

/* Writes "answered 500: \"…\" after 3 ms". */
const char *shot_words(const struct shot *s, char *out, size_t size);

/* Sends shots while their rows are locked, and waits until `wanted` sessions wait for the locks, or the shots
 * are answered, or nothing changes any more. *ret_waiting: the number of waiting sessions. */
int try_meet(struct try_run *t, struct shot *const *shots, int n, int wanted, int *ret_waiting);

void try_shots_free(struct try_run *t);

/* --- try_tell.c --- */

void try_found(struct try_run *t, enum try_finding which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void try_skip(struct try_run *t, enum try_case which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void try_note(struct try_run *t, enum try_case which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Does the case apply? Cases about several messages belong to forward.batch. */
bool try_applies(const struct try_run *t, enum try_case which);
bool try_breaks(const struct try_run *t);
bool try_is_permanent(const struct try_run *t, int status); /* in permanent_status */
bool try_advises(const struct try_run *t);
void try_tell(const struct try_run *t, FILE *out);
void try_tell_json(const struct try_run *t, FILE *out);

/* Lists the possible findings, for --help and the documentation. */
void try_tell_cases(struct buf *out);
void try_tell_markdown(FILE *out);

/* --- the cases: try_cases.c, try_fences.c, try_http.c, try_batch.c --- */

int try_ordinary(struct try_run *t);
int try_duplicate(struct try_run *t);
int try_stale(struct try_run *t);
int try_taken(struct try_run *t);
int try_twice(struct try_run *t);
int try_early(struct try_run *t);
int try_wrong(struct try_run *t);
int try_window(struct try_run *t);
int try_many(struct try_run *t);
int try_kept(struct try_run *t);
int try_headers(struct try_run *t);
int try_body(struct try_run *t);
int try_type(struct try_run *t);
int try_several(struct try_run *t);
int try_poison(struct try_run *t);
int try_partial(struct try_run *t);
int try_stale_one(struct try_run *t);
int try_commit(struct try_run *t);
int try_cut(struct try_run *t);
