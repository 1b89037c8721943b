/* onceward dead: arguments, and discard. dead_show.c reads, redrive.c redrives. */

#include "command/dead.h"

#include "command/common.h"
#include "command/since.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/table.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* discard */

struct discard {
    const struct dead_options *options;
    struct admin *a;
    struct pace pace;
    struct fault fault;
    int64_t n, n_gone;
};

static int discard_one(void *ctx, const struct dead_letter *l)
{
    struct discard *d = ctx;
    const struct dead_options *o = d->options;
    int answer = 0;

    if (pace_wait(&d->pace))
        return 1;
    letter_seen(o, l);
    if (!o->dry_run)
        answer = admin_dead_delete(d->a, l->id, &d->fault);
    if (answer == 0)
        letter_tell(o, l, &(struct letter_news){.event = EVENT_DISCARDED}, "%s",
                    o->dry_run ? "would be discarded" : "discarded");
    else if (answer > 0)
        letter_tell(o, l, &(struct letter_news){.event = EVENT_LETTER_LEFT}, "gone meanwhile");
    d->n += answer == 0;
    d->n_gone += answer > 0;
    return answer < 0 ? -1 : 0;
}

static int dead_discard(const struct dead_options *o, const struct config *c, struct admin *a)
{
    struct discard d = {.options = o, .a = a, .pace = {o->interval_us, 0}};
    struct dead_filter filter = o->filter;
    int64_t n_others;
    int answer;

    filter.limit = filter.limit < 0 ? 0 : filter.limit;
    if (dead_narrow(a, c, &filter, &n_others, &d.fault))
        return command_fail(&d.fault);
    pace_catch_signals();
    answer = admin_dead_each(a, &filter, false, discard_one, &d, &d.fault);
    if (answer < 0)
        command_fail(&d.fault);
    if (!o->json) {
        printf("\n%" PRId64 " %s, %" PRId64 " gone before%s.\n", d.n,
               o->dry_run ? "would be discarded" : "discarded", d.n_gone,
               answer ? "; ended early, the others are untouched" : "");
        if (n_others)
            printf("%" PRId64 " of consumers that this configuration does not have were left alone.\n",
                   n_others);
    }
    if (answer)
        return STATUS_FAILED;
    return !filter.limit && letters_tell_missing(o) ? STATUS_FAILED : STATUS_DONE;
}

/* arguments */

static const struct action {
    const char *name;
    int (*run)(const struct dead_options *o, const struct config *c, struct admin *a);
    bool changes;
} actions[] = {
    {"list", dead_list, false},
    {"show", dead_show, false},
    {"redrive", dead_redrive, true},
    {"discard", dead_discard, true},
};

/* Reads the operands. `--new-id NEWID` needs no equals sign: the ids of dead letters are numbers, so any other word
 * is the new id. */
static int read_operands(struct dead_options *o)
{
    size_t n = 0;

    o->ids = mem_zalloc(o->operands.n + 1, sizeof *o->ids);
    o->seen = mem_zalloc(o->operands.n + 1, sizeof *o->seen);
    for (size_t i = 0; i < o->operands.n; i++) {
        const char *word = o->operands.items[i];

        if (option_number(word, &o->ids[n]) == 0)
            n++;
        else if (o->new_id.given && !o->new_id.value)
            o->new_id.value = word;
        else
            return command_wrong(
                "dead", "the letter \"%s\" is not a number, as `onceward dead list` shows them", word);
    }
    o->filter.ids = o->ids;
    o->filter.n_ids = n;
    return 0;
}

/* Refuses conflicting options. */
static int check_options(const struct dead_options *o, const struct action *action)
{
    const struct dead_filter *filter = &o->filter;
    bool named = filter->n_ids || filter->consumer || filter->reason || filter->since || filter->older;
    const char *complaint = NULL;

    if (action->run == dead_discard && !named && !o->all)
        complaint =
            "name dead letters by ID, or by --consumer, --reason, --since or --older; --all means every "
            "dead letter of this configuration";
    else if (action->run == dead_show && !named)
        complaint = "name dead letters by ID";
    else if (o->body && filter->n_ids != 1)
        complaint = "--body raw is for one ID";
    else if (o->new_id.value && filter->n_ids != 1)
        complaint = "--new-id NEWID is for one ID";
    return complaint ? command_wrong("dead", "%s", complaint) : 0;
}

static int dead_act(const struct action *action, struct dead_options *o)
{
    struct fault f = {0};
    struct config *c;
    struct admin *a;
    int status = command_open(o->config, action->changes ? ADMIN_WRITES : ADMIN_READS, &c, &a);

    if (status)
        return status;
    if (admin_check_schema(a, &f) || command_use_formers(c, a, &o->filter.consumer, &f))
        status = command_fail(&f);
    else if (!(status = command_check_consumer("dead", o->config, c, a, o->filter.consumer)))
        status = action->run(o, c, a);
    command_close(c, a);
    return status;
}

static int dead_run(void *options)
{
    struct dead_options *o = options;
    const struct action *action = actions;
    int status = STATUS_USAGE;

    while (strcmp(o->action, action->name) != 0)
        action++;
    if (!read_operands(o) && !check_options(o, action))
        status = dead_act(action, o);
    free(o->ids);
    free(o->seen);
    return status;
}

enum { LIST = 1, SHOW = 2, REDRIVE = 4, DISCARD = 8 };

#define OPTIONS struct dead_options

static const struct command_option dead_options[] = {
    {NULL, "list|show|redrive|discard", NULL, OPTION(OPERAND, action), OPTION_REQUIRED},
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"consumer", "C", "of this consumer", OPTION(TEXT, filter.consumer)},
    {"reason", "R", "with this reason (`onceward explain --reasons`)", OPTION(TEXT, filter.reason)},
    {"since", "T", "written since then: \"2h\" ago, or 2026-01-31T03:00:00Z", OPTION(TIME, filter.since)},
    {"older", "T", "written before then: \"30d\" ago, or a time", OPTION(TIME, filter.older)},
    {"limit", "N", "at most N", OPTION(NUMBER, filter.limit)},
    {"rate", "N/s", "at most N per second", OPTION(RATE, interval_us), .of = REDRIVE | DISCARD},
    {"dry-run", NULL, "print what would be done", OPTION(FLAG, dry_run), .of = REDRIVE | DISCARD},
    {"new-id", "NEWID",
     "for a dead letter whose message has no usable id: publish it with NEWID (--new-id=NEWID for a "
     "number), or with an id made from "
     "the letter, which is the same each time. An existing id is never replaced",
     OPTION(MAYBE, new_id), .of = REDRIVE},
    {"out-of-order", NULL,
     "redrive also to ordered queues and exchanges, by the exchange and routing key of the messages; they "
     "go behind their successors",
     OPTION(FLAG, out_of_order), .of = REDRIVE},
    JSON_OPTION(
        "one JSON object per dead letter. redrive and discard print the events redriven, discarded and "
        "letter_left in the form of the log"),
    {"body", "raw", "write the bytes of the body and nothing else", OPTION(TEXT, body), OPTION_OR, SHOW},
    {"all", NULL, "every dead letter of this configuration", OPTION(FLAG, all), .of = REDRIVE | DISCARD},
    {NULL, "ID…", NULL, OPTION(OPERANDS, operands)},
    {0},
};

const struct command dead_command = {
    .name = "dead",
    .does = "list, show, redrive or discard dead letters",
    .about =
        "list: list dead letters, oldest first (the first 50, or as many as --limit says; all of "
        "them with --limit 0, IDs or --json).\n"
        "show: show one dead letter with its body.\n"
        "redrive: publish dead letters to their queues again, under the id that the current `message_id` "
        "finds in them, so that a message "
        "that was completed meanwhile is not processed twice. Each dead letter is deleted when the broker "
        "has confirmed it. Safe to "
        "interrupt and to repeat.\n"
        "discard: delete dead letters. Their messages stay dead in the inbox until the retention is over.\n"
        "Without an ID, --consumer, --reason, --since or --older a command applies to every dead letter of "
        "this configuration; discard then needs --all. Dead letters of other consumers are only taken when "
        "you name them by ID or --consumer: discard deletes them, redrive refuses them.",
    .after =
        "The exit status is also 1 if an ID does not exist, except for redrive: it deletes the dead letters "
        "that it has published, so you may repeat it.",
    .options = dead_options,
    .size = sizeof(struct dead_options),
    .run = dead_run,
};
