/* onceward forget: removes the data of a consumer that no sidecar uses any more, in slices. */

#include "command/common.h"
#include "onceward/base/buf.h"

#include <getopt.h>
#include <inttypes.h>
#include <string.h>

static const char help[] =
    "usage: onceward forget --config FILE --consumer C [--dead-letters] [--json]\n"
    "Removes what the database keeps of a consumer that no configuration names any more: its rows, its pauses, and the\n"
    "queue that its name belongs to. `onceward status` lists such consumers. A message for it that still arrives\n"
    "is processed again, even if it was completed before. The command is refused while a replica runs with this\n"
    "consumer, and for 10 minutes after that.\n"
    "  --consumer C     the consumer; refused if this configuration has it, also as `takes_over`\n"
    "  --dead-letters   remove its dead letters, too; without it they stay, for `onceward dead`\n"
    "  --json           print one JSON object\n";

struct forget_options {
    const char *config, *consumer;
    int letters, json;
};

static int wrong(const char *what)
{
    fprintf(stderr, "onceward forget: %s\n%s", what, help);
    return STATUS_USAGE;
}

/* -1: continue; else the exit status. */
static int read_options(int argc, char **argv, struct forget_options *o)
{
    const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                     {"consumer", required_argument, NULL, 'C'},
                                     {"dead-letters", no_argument, &o->letters, 1},
                                     {"json", no_argument, &o->json, 1},
                                     {"help", no_argument, NULL, 'h'},
                                     {0}};
    int option;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        if (option == 'c') {
            o->config = optarg;
        } else if (option == 'C') {
            o->consumer = optarg;
        } else if (option) {
            fputs(help, option == 'h' ? stdout : stderr);
            return option == 'h' ? STATUS_DONE : STATUS_USAGE;
        }
    }
    if (command_config_named(argc, argv, &o->config)) {
        fputs(help, stderr);
        return STATUS_USAGE;
    }
    if (!o->consumer || !*o->consumer)
        return wrong("--consumer C is missing");
    if (!strcmp(o->consumer, DEAD_OUTBOX))
        return wrong("this name is the outbox's: `onceward dead discard` removes its dead letters");
    return -1;
}

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
        fprintf(
            stderr,
            "onceward forget: the replica %s ran with consumer %s within the last 10 minutes: stop it, and try again then\n",
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

/* takes_over may be the consumer name of a queue's rows. */
static bool is_configured(const struct config *c, const char *consumer)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (!strcmp(c->queues[i].consumer, consumer) ||
            (c->queues[i].takes_over && !strcmp(c->queues[i].takes_over, consumer)))
            return true;
    return false;
}

int command_forget(int argc, char **argv)
{
    struct forget_options o = {0};
    struct forgotten done = {0};
    struct fault f = {0};
    struct config *c;
    struct admin *a;
    int status = read_options(argc, argv, &o);

    if (status < 0)
        status = command_open(o.config, ADMIN_WRITES, &c, &a);
    else
        return status;
    if (status)
        return status;
    if (is_configured(c, o.consumer)) {
        fprintf(stderr, "onceward forget: %s is a consumer, or a takes_over, of %s: remove it there first\n",
                o.consumer, o.config);
        status = STATUS_FAILED;
    } else {
        status = admin_check_schema(a, &f) || forget(a, &o, &done, &f) ? command_fail(&f) : say(&o, &done);
    }
    forgotten_deinit(&done);
    command_close(c, a);
    return status;
}
