/* onceward forget: removes the data of a consumer that no sidecar uses any more, in slices. */

#include "command/common.h"
#include "onceward/base/buf.h"

#include <inttypes.h>
#include <string.h>

struct forget_options {
    const char *config, *consumer;
    bool letters, json;
};

/* Removes slices until the answer is not `more`. */
static int forget(struct admin *a, const struct forget_options *o, struct forgotten *ret, struct fault *f)
{
    do {
        if (admin_forget(a, o->consumer, o->letters, ret, f))
            return -1;
    } while (ret->answer == FORGET_MORE);
    return 0;
}

static void say_json(const struct forget_options *o, const struct forgotten *done)
{
    struct buf out = {0};

    buf_add_text(&out, "{\"consumer\":");
    buf_add_json(&out, slice_of(o->consumer));
    buf_printf(&out, ",\"rows\":%" PRId64 ",\"dead_letters\":%" PRId64 ",\"left\":%" PRId64 "}\n",
               done->n_rows, done->n_letters, done->n_held);
    fputs(buf_text(&out), stdout);
    buf_deinit(&out);
}

static int say(const struct forget_options *o, const struct forgotten *done)
{
    if (done->answer == FORGET_IN_USE) {
        fprintf(stderr,
                "onceward forget: the replica %s ran with consumer %s within the last 10 minutes: stop it, "
                "and try again after that time\n",
                done->next, o->consumer);
        return STATUS_FAILED;
    }
    if (o->json)
        say_json(o, done);
    else
        printf("%" PRId64 " row%s and %" PRId64 " dead letter%s of %s removed.\n", done->n_rows,
               done->n_rows == 1 ? "" : "s", done->n_letters, done->n_letters == 1 ? "" : "s", o->consumer);
    if (!done->n_held)
        return STATUS_DONE;
    fprintf(stderr,
            "onceward forget: %" PRId64
            " row%s of %s kept: a token is alive, or a transaction has locked them; try again "
            "later\n",
            done->n_held, done->n_held == 1 ? "" : "s", o->consumer);
    return STATUS_FAILED;
}

/* Does the configuration have the consumer? takes_over may be the consumer name of a queue's rows. */
static bool is_configured(const struct config *c, const char *consumer)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (!strcmp(c->queues[i].consumer, consumer) ||
            (c->queues[i].takes_over && !strcmp(c->queues[i].takes_over, consumer)))
            return true;
    return false;
}

static int forget_run(void *options)
{
    const struct forget_options *o = options;
    struct forgotten done = {0};
    struct fault f = {0};
    struct config *c;
    struct admin *a;

    if (!strcmp(o->consumer, DEAD_OUTBOX))
        return command_wrong("forget",
                             "this name is the outbox's: `onceward dead discard` removes its dead letters");
    int status = command_open(o->config, ADMIN_WRITES, &c, &a);
    if (status)
        return status;
    if (is_configured(c, o->consumer)) {
        fprintf(stderr, "onceward forget: %s is a consumer, or a takes_over, of %s: remove it there first\n",
                o->consumer, o->config);
        status = STATUS_FAILED;
    } else {
        status = admin_check_schema(a, &f) || forget(a, o, &done, &f) ? command_fail(&f) : say(o, &done);
    }
    forgotten_deinit(&done);
    command_close(c, a);
    return status;
}

#define OPTIONS struct forget_options

static const struct command_option forget_options[] = {
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"consumer", "C", "the consumer; refused if this configuration has it, also as `takes_over`",
     OPTION(TEXT, consumer), OPTION_REQUIRED},
    {"dead-letters", NULL, "remove its dead letters, too; without it they stay, for `onceward dead`",
     OPTION(FLAG, letters)},
    JSON_OPTION("one JSON object"),
    {0},
};

const struct command forget_command = {
    .name = "forget",
    .does = "remove the data of a consumer that is no longer used",
    .about = "Removes the data of a consumer that no configuration names any more: its rows, its pauses, and "
             "the record of the queue that belongs to its name. `onceward status` lists such consumers. A "
             "message that still arrives for it is processed again, even if it was completed before. The "
             "command is refused while a replica runs with this "
             "consumer, and for 10 "
             "minutes after that.",
    .options = forget_options,
    .size = sizeof(struct forget_options),
    .run = forget_run,
};
