/* onceward pause, resume, retry, give-up: writes an operator command for a consumer to the database, where
 * each replica reads it within five seconds. */

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/table.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct order {
    const char *command, *config, *consumer, *reason, *by;
    bool json, held, is_outbox;
    struct option_words ids;
    int n_replicas; /* replicas that will read it */
};

/* --- arguments --- */

/* Makes the operator's name: "ann@laptop"; in an image without a list of users: "65532@pod". */
static void name_self(char *ret, size_t size)
{
    const struct passwd *user = getpwuid(geteuid());
    const char *name = user ? user->pw_name : getenv("USER");
    char host[65] = "";

    gethostname(host, sizeof(host) - 1);
    if (name && *name)
        snprintf(ret, size, "%s@%s", name, host);
    else
        snprintf(ret, size, "%u@%s", (unsigned)geteuid(), host);
}

static bool is_text(const char *text)
{
    return text_is_safe(slice_of(text)) && !strpbrk(text, "\n\t\r");
}

static int check(const struct order *o)
{
    if (!is_text(o->by) || (o->reason && !is_text(o->reason)))
        return command_wrong(o->command, "a name or a reason is a line of text");
    if (o->reason && strlen(o->reason) > 200)
        return command_wrong(o->command, "a reason has at most 200 bytes");
    for (size_t i = 0; i < o->ids.n; i++)
        if (!*o->ids.items[i])
            return command_wrong(o->command, "an ID is empty");
    return STATUS_DONE;
}

/* Finds the consumer. An unknown one is a typing error: no replica would ever read the command. */
static int find(struct order *o, struct config *c, struct admin *a, struct fault *f)
{
    bool is_pause = !strcmp(o->command, "pause") || !strcmp(o->command, "resume");

    if (!strcmp(o->consumer, DEAD_OUTBOX) && is_pause && c->outbox.is_there) {
        o->is_outbox = true;
        return admin_check_schema(a, f) ? command_fail(f) : STATUS_DONE;
    }
    int known = command_use_formers(c, a, &o->consumer, f);

    if (!known)
        known = admin_find_consumer(a, o->consumer, NULL, &o->n_replicas, f);
    if (known < 0)
        return command_fail(f);
    if (known || command_is_configured(c, o->consumer))
        return STATUS_DONE;
    return command_no_consumer(o->command, o->config, o->consumer);
}

/* --- output --- */

static void say_json(const struct order *o, const char *key, int64_t value)
{
    struct buf out = {0};

    buf_add_text(&out, "{\"consumer\":");
    buf_add_json(&out, slice_of(o->consumer));
    buf_add_text(&out, ",\"by\":");
    buf_add_json(&out, slice_of(o->by));
    if (key)
        buf_printf(&out, ",\"%s\":%" PRId64, key, value);
    buf_printf(&out, ",\"replicas\":%d}\n", o->n_replicas);
    fputs(buf_text(&out), stdout);
    buf_deinit(&out);
}

static void say_replicas(const struct order *o)
{
    if (o->is_outbox)
        printf("The relay will read this within 5 s; `onceward status` then shows whether one relays.\n");
    else if (!o->n_replicas)
        printf("No replica of %s runs now; replicas that start later will read this.\n", o->consumer);
    else
        printf("%d replica%s of %s will read this within 5 s.\n", o->n_replicas,
               o->n_replicas == 1 ? "" : "s", o->consumer);
}

/* --- the commands --- */

static int pull_pause(struct order *o, struct admin *a, bool paused, struct fault *f)
{
    bool changed;

    if (admin_pause(a, o->consumer, paused, o->reason, o->by, &changed, f))
        return command_fail(f);
    if (o->json) {
        say_json(o, "changed", changed);
        return STATUS_DONE;
    }
    printf("%s %s.\n", o->consumer,
           paused    ? changed ? "is paused" : "was paused already"
           : changed ? "is not paused any more"
                     : "was not paused");
    if (changed || paused)
        say_replicas(o);
    return STATUS_DONE;
}

static int pull_pause_on(struct order *o, struct admin *a, struct fault *f)
{
    return pull_pause(o, a, true, f);
}

static int pull_pause_off(struct order *o, struct admin *a, struct fault *f)
{
    return pull_pause(o, a, false, f);
}

static int pull_retry(struct order *o, struct admin *a, struct fault *f)
{
    int64_t n;

    if (admin_retry(a, o->consumer, o->ids.items, o->ids.n, o->by, &n, f))
        return command_fail(f);
    if (o->json) {
        say_json(o, "rows", n);
        return STATUS_DONE;
    }
    printf("%" PRId64 " waiting message%s of %s %s due now.\n", n, n == 1 ? "" : "s", o->consumer,
           n == 1 ? "is" : "are");
    say_replicas(o);
    return STATUS_DONE;
}

struct given_up {
    struct table table;
    struct buf json;
    int n, n_refused;
};

static void tell_given_up(void *ctx, const char *id, const char *answer)
{
    static const struct {
        const char *answer, *words;
        bool refused;
    } all[] = {
        {"at_hand", "becomes a dead letter at its next delivery", false},
        {"unseen", "was not seen yet: becomes a dead letter when it arrives", false},
        {"completed", "is completed: nothing to give up", true},
        {"dead", "is dead already: `onceward dead list`", true},
        {"full", "refused: 1,000 messages are pending already", true},
    };
    struct given_up *g = ctx;
    const char *words = answer;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(all[i].answer, answer)) {
            words = all[i].words;
            g->n_refused += all[i].refused;
        }
    table_add_text(&g->table, id);
    table_add_text(&g->table, words);
    buf_add_text(&g->json, g->n++ ? "," : "");
    buf_add_text(&g->json, "{\"message_id\":");
    buf_add_json(&g->json, slice_of(id));
    buf_printf(&g->json, ",\"answer\":\"%s\"}", answer);
}

static int pull_give_up(struct order *o, struct admin *a, struct fault *f)
{
    struct given_up g = {.table = {.n_columns = 2}};
    int failed;

    if (o->held) {
        if (admin_give_up_held(a, o->consumer, o->by, f))
            return command_fail(f);
        if (o->json) {
            say_json(o, NULL, 0);
        } else {
            printf("The messages of %s that are held because everything fails become dead letters.\n",
                   o->consumer);
            say_replicas(o);
        }
        return STATUS_DONE;
    }
    table_add_text(&g.table, "MESSAGE ID");
    table_add_text(&g.table, "WHAT BECOMES OF IT");
    failed = admin_give_up(a, o->consumer, o->ids.items, o->ids.n, o->by, tell_given_up, &g, f);
    if (failed) {
        failed = command_fail(f);
    } else if (o->json) {
        printf("{\"messages\":[%s]}\n", buf_text(&g.json));
    } else {
        table_print(&g.table, stdout, text_width(stdout));
        if (g.n > g.n_refused)
            say_replicas(o);
    }
    table_deinit(&g.table);
    buf_deinit(&g.json);
    return failed ? failed : g.n_refused ? STATUS_FAILED : STATUS_DONE;
}

static int pull(struct order *o, const char *command,
                int (*carry_out)(struct order *, struct admin *, struct fault *))
{
    struct fault f = {0};
    struct config *c;
    struct admin *a;
    char self[128];

    name_self(self, sizeof self);
    o->command = command;
    o->by = o->by ? o->by : self;
    int status = check(o);
    if (!status)
        status = command_open(o->config, ADMIN_WRITES, &c, &a);
    if (status)
        return status;
    status = find(o, c, a, &f);
    if (!status)
        status = carry_out(o, a, &f);
    command_close(c, a);
    return status;
}

static int pause_run(void *options)
{
    return pull(options, "pause", pull_pause_on);
}

static int resume_run(void *options)
{
    return pull(options, "resume", pull_pause_off);
}

static int retry_run(void *options)
{
    return pull(options, "retry", pull_retry);
}

static int give_up_run(void *options)
{
    return pull(options, "give-up", pull_give_up);
}

#define OPTIONS struct order
#define COMMON                                                                                               \
    CONFIG_OPTION(.rules = OPTION_REQUIRED),                                                                 \
        {"consumer", "C", "the consumer: the queue's name, unless the configuration says otherwise",         \
         OPTION(TEXT, consumer), OPTION_REQUIRED},                                                           \
        {"by", "NAME", "the name in the log (default: your login and the name of this machine)",             \
         OPTION(TEXT, by)},                                                                                  \
        JSON_OPTION("one JSON object")

static const struct command_option pause_options[] = {
    COMMON,
    {"reason", "TEXT", "the reason, for the log and `onceward status`", OPTION(TEXT, reason)},
    {0},
};

static const struct command_option resume_options[] = {COMMON, {0}};

static const struct command_option retry_options[] = {
    COMMON, {NULL, "ID…", NULL, OPTION(OPERANDS, ids)}, {0}};

static const struct command_option give_up_options[] = {
    COMMON,
    {NULL, "ID…", NULL, OPTION(OPERANDS, ids), OPTION_REQUIRED},
    {"held", NULL, "the messages that the replicas hold now because everything fails, and no later ones",
     OPTION(FLAG, held), OPTION_OR},
    {0},
};

const struct command pause_command = {
    .name = "pause",
    .does = "stop taking messages of a consumer on all replicas",
    .about = "Every replica stops taking messages of this consumer within five seconds. Replicas that start "
             "later do not begin. Requests in "
             "flight may finish, held messages stay held, and no attempt is counted. The pause outlives "
             "restarts and ends with `onceward "
             "resume`. The consumer `onceward-outbox` is the outbox: its messages then wait in the database.",
    .options = pause_options,
    .size = sizeof(struct order),
    .run = pause_run,
};

const struct command resume_command = {
    .name = "resume",
    .does = "end a pause on all replicas",
    .about = "Ends a pause on every replica within five seconds.",
    .options = resume_options,
    .size = sizeof(struct order),
    .run = resume_run,
};

const struct command retry_command = {
    .name = "retry",
    .does = "try failed and waiting messages now",
    .about =
        "Makes failed and waiting messages due now: those with the given IDs, or all. Every replica "
        "retries the ones that it holds within "
        "five seconds. Attempt counts stay as they are; held messages (`order.on_dead` hold) begin again. "
        "A message that is named here "
        "is no longer given up. For dead messages use `onceward dead redrive`.",
    .options = retry_options,
    .size = sizeof(struct order),
    .run = retry_run,
};

const struct command give_up_command = {
    .name = "give-up",
    .does = "make dead letters of messages that keep failing",
    .about = "Makes dead letters, with the reason `operator`, of messages that keep failing: of held ones "
             "within five seconds, of those in "
             "flight once their attempt has failed, of those in the queue when they arrive. A message that "
             "succeeds first is completed. "
             "Nothing is lost: `onceward dead redrive` publishes it again. `onceward retry` with its ID "
             "cancels a pending give-up.",
    .options = give_up_options,
    .size = sizeof(struct order),
    .run = give_up_run,
};
