/* onceward try: checks within seconds that an application fulfils its part of the contract, without a broker.
 *
 * The program claims messages of its own under its own consumer name, and sends them like a sidecar; rows and effects
 * show the result. Its rows are deleted at the end in every case. */

#include "command/try.h"

#include "command/common.h"
#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "onceward/base/wait.h"
#include "onceward/config/config.h"
#include "onceward/forward/forward.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLEAN_MS = 3000, /* for an application that still works on a row */
    CLEAN_AGAIN_MS = 50,
    MESSAGE_MAX = 1024 * 1024,
};

static int (*const runs[N_TRY_CASES])(struct try_run *t) = {
    [TRY_ORDINARY] = try_ordinary, [TRY_DUPLICATE] = try_duplicate, [TRY_STALE] = try_stale,
    [TRY_TAKEN] = try_taken,       [TRY_TWICE] = try_twice,         [TRY_EARLY] = try_early,
    [TRY_WRONG] = try_wrong,       [TRY_WINDOW] = try_window,       [TRY_MANY] = try_many,
    [TRY_KEPT] = try_kept,         [TRY_HEADERS] = try_headers,     [TRY_BODY] = try_body,
    [TRY_TYPE] = try_type,         [TRY_SEVERAL] = try_several,     [TRY_POISON] = try_poison,
    [TRY_PARTIAL] = try_partial,   [TRY_STALE_ONE] = try_stale_one, [TRY_COMMIT] = try_commit,
    [TRY_CUT] = try_cut,
};

static void on_signal(int number)
{
    (void)number;
    try_stop_asked = 1;
}

static void catch_signals(void)
{
    /* Handled once: a second signal ends the program at once, and leaves its rows to the next run. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* ---- preparation ---- */

static int read_message(struct try_run *t)
{
    static const char usual[] = "{\"id\": \"{{id}}\"}";
    const char *path = t->options->message;
    FILE *file;

    if (!path) {
        buf_add_text(&t->message, usual);
        return 0;
    }
    file = fopen(path, "re");
    if (!file)
        return fault_set(&t->fault, "cannot read %s: %s", path, strerror(errno));
    t->message.len = fread(buf_reserve(&t->message, MESSAGE_MAX + 1), 1, MESSAGE_MAX + 1, file);
    if (ferror(file))
        fault_set(&t->fault, "cannot read %s: %s", path, strerror(errno));
    else if (!t->message.len || t->message.len > MESSAGE_MAX)
        fault_set(&t->fault, "%s: expected 1 byte to 1 MiB", path);
    fclose(file);
    return fault_is_set(&t->fault) ? -1 : 0;
}

static int open_effects(struct try_run *t, const struct config *c)
{
    struct config_database database = c->database;

    if (!t->options->effect)
        return 0;
    if (t->options->effect_database) {
        database.url = (struct config_text){.value = (char *)t->options->effect_database};
        database.password = (struct config_text){0};
    }
    return effects_open(&database, t->options->effect, &t->effects, &t->fault);
}

static int try_open(struct try_run *t, const struct config *c)
{
    uint8_t tag[8];
    size_t application;

    random_bytes(tag, sizeof tag);
    snprintf(t->consumer, sizeof t->consumer, TRIAL_PREFIX "%02x%02x%02x%02x", tag[0], tag[1], tag[2],
             tag[3]);
    t->content_type = t->options->content_type ? t->options->content_type : "application/json";
    return read_message(t) ||
                   trial_open(&c->database, t->consumer, t->q->transaction, &t->inbox, &t->fault) ||
                   open_effects(t, c) || wait_new(&t->wait, &t->fault) ||
                   forward_new(t->wait, &t->forward, &t->fault) ||
                   forward_add(t->forward, t->q, &application, &t->fault)
               ? -1
               : 0;
}

static void try_close(struct try_run *t)
{
    forward_free(t->forward);
    wait_free(t->wait);
    effects_close(t->effects);
    trial_close(t->inbox);
    try_shots_free(t);
    buf_deinit(&t->message);
}

/* ---- the run ---- */

static int run_cases(struct try_run *t)
{
    for (int i = 0; i < N_TRY_CASES; i++) {
        if (!try_applies(t, (enum try_case)i))
            continue;
        if (i != TRY_ORDINARY && !t->works) {
            try_skip(t, (enum try_case)i, "an ordinary message is not completed");
            continue;
        }
        if (!t->is_late) {
            t->verdicts[i].was_run = true;
            if (runs[i](t) && !t->is_late)
                return fault_wrap(&t->fault, "%s", try_cases[i].name);
        }
        if (t->is_late)
            try_skip(t, (enum try_case)i, "no time was left");
    }
    return 0;
}

/* Deletes the rows in every case. An application that still works may keep one locked for a moment. */
static int clean_up(struct try_run *t, struct fault *f)
{
    int64_t until_ms = clock_ms() + CLEAN_MS;
    struct fault ignored = {0};

    if (!t->inbox)
        return 0;
    forward_free(t->forward); /* ends requests in flight */
    t->forward = NULL;
    trial_let_go(t->inbox, &ignored);
    int status = trial_published(t->inbox, t->options->discard_published, &t->published, f);

    if (status)
        fault_wrap(f, "the messages that the application published are neither counted nor deleted");
    for (;;) {
        struct fault why = {0};

        if (trial_remove(t->inbox, &t->rows_left, &why)) {
            *f = why;
            return fault_wrap(f, "the rows of %s are left; a run after an hour removes them", t->consumer);
        }
        if (!t->rows_left || clock_ms() >= until_ms)
            return status;
        wait_turn(t->wait, clock_ms() + CLEAN_AGAIN_MS);
    }
}

static int try_run(struct try_run *t, const struct config *c)
{
    int64_t start_ms = clock_ms();
    struct fault f = {0};
    int status = STATUS_DONE;

    t->end_ms = start_ms + FAILPOINT_MS(TRY);
    catch_signals();
    if (try_open(t, c) || run_cases(t))
        status = command_fail(&t->fault);
    if (clean_up(t, &f))
        status = command_fail(&f);
    t->took_ms = clock_ms() - start_ms;
    if (status == STATUS_DONE) {
        (t->options->json ? try_tell_json : try_tell)(t, stdout);
        status = try_breaks(t) || (t->options->strict && try_advises(t)) ? STATUS_FAILED : STATUS_DONE;
    }
    try_close(t);
    return status;
}

static const struct config_queue *queue_find(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (strcmp(c->queues[i].name, name) == 0)
            return &c->queues[i];
    fprintf(stderr, "onceward try: there is no queue \"%s\" in the configuration; there is", name);
    for (size_t i = 0; i < c->n_queues; i++)
        fprintf(stderr, "%s %s", i ? "," : "", c->queues[i].name);
    fputc('\n', stderr);
    return NULL;
}

/* ---- arguments ---- */

static int check(const struct try_options *o)
{
    struct fault f = {0};

    if (o->effect_database && admin_check_url(o->effect_database, &f) < 0)
        return command_wrong("try", "%s", f.text);
    if (o->content_type && (!*o->content_type || strlen(o->content_type) > 255))
        return command_wrong("try", "--content-type: expected type/subtype");
    return STATUS_DONE;
}

static int try_command_run(void *options)
{
    struct try_run t = {.options = options, .effect_of_one = -1};
    struct config *c;
    int status = check(t.options);

    if (status)
        return status;
    if (t.options->markdown) {
        try_tell_markdown(stdout);
        return STATUS_DONE;
    }
    c = command_config(t.options->config);
    if (!c)
        return STATUS_USAGE;
    t.q = queue_find(c, t.options->queue);
    if (t.q) {
        t.in_batches = t.q->forward.batch.max_messages > 0;
        forward_global_init();
        status = try_run(&t, c);
    } else {
        status = STATUS_USAGE;
    }
    config_free(c);
    return status;
}

#define OPTIONS struct try_options

static const struct command_option try_options[] = {
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"queue", "NAME", "the queue of the configuration", OPTION(TEXT, queue), OPTION_REQUIRED, .letter = 'q'},
    {"effect", "SQL",
     "a query that counts what the application wrote for one message; $1 is the message id: 'SELECT "
     "count(*) FROM charges WHERE order_id = $1'. "
     "Many findings need it",
     OPTION(TEXT, effect)},
    {"effect-database", "URL",
     "the database for --effect; default: the sidecar's own login, which may need GRANT SELECT",
     OPTION(TEXT, effect_database), OPTION_WITH},
    {"message", "FILE",
     "a message that the application accepts, at most 1 MiB; {{id}} stands for the message id. Default: "
     "{\"id\": \"{{id}}\"}",
     OPTION(FILE, message)},
    {"content-type", "TYPE", "the content type of the message; default: application/json",
     OPTION(TEXT, content_type)},
    {"strict", NULL, "exit with status 1 for advice as well", OPTION(FLAG, strict)},
    {"discard-published", NULL,
     "delete the messages that the application published during the run, if no relay has sent them; with "
     "completion response: all messages "
     "published during the run",
     OPTION(FLAG, discard_published)},
    JSON_OPTION("one JSON object"),
    {"markdown", NULL, "print the tables of the documentation: the cases and the findings",
     OPTION(FLAG, markdown), OPTION_ALONE},
    {0},
};

const struct command try_command = {
    .name = "try",
    .does = "test whether an application keeps its side of the contract",
    .about =
        "Sends test messages to the application of a queue, as the sidecar would, and reports whether the "
        "application fulfils the contract. It "
        "needs no broker and runs beside sidecars. Writes of the application stay, so use a test "
        "database. A run takes about five seconds, with a slow application up to half a minute.",
    .more = try_tell_cases,
    .after =
        "Exit status 1 means that a promise would break. With --strict, advice has the same effect. The rows "
        "of the test messages are deleted, even after an interruption.",
    .options = try_options,
    .size = sizeof(struct try_options),
    .run = try_command_run,
};
