/* onceward dead: arguments, and discard. dead_show.c reads, redrive.c redrives. */

#include "command/dead.h"

#include "command/common.h"
#include "command/since.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/table.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: onceward dead list    --config FILE [FILTER] [--json] [ID…]\n"
    "       onceward dead show    --config FILE [--json | --body raw] ID…\n"
    "       onceward dead redrive --config FILE [FILTER] [--rate N/s] [--dry-run] [--json] [--new-id [NEWID]]\n"
    "                               [--out-of-order] [ID…]\n"
    "       onceward dead discard --config FILE [FILTER] [--rate N/s] [--dry-run] [--json] ID… | --all\n"
    "\n"
    "  list      list dead letters, oldest first (the first 50, or as many as --limit says; 0, IDs or --json: all)\n"
    "  show      show one dead letter with its body; --body raw writes the bytes of the body and nothing else\n"
    "  redrive   publish dead letters to their queues again, under the id that the current `message_id` finds in them, so that\n"
    "            a message that was completed meanwhile is not processed twice. Each dead letter is deleted when the broker has\n"
    "            confirmed it. Safe to interrupt and to repeat\n"
    "  discard   delete dead letters. Their messages stay dead in the inbox until the retention is over\n"
    "\n"
    "FILTER (without one, and without IDs: every dead letter of this configuration; discard then needs --all). Dead letters of\n"
    "other consumers are only taken when you name them by ID or --consumer: discard deletes them, redrive refuses them.\n"
    "  --consumer C   of this consumer       --reason R   with this reason (`onceward explain --reasons`)\n"
    "  --since T      written since then: \"2h\" ago, or 2026-01-31T03:00:00Z\n"
    "  --older T      written before then: \"30d\" ago, or a time\n"
    "  --limit N      at most N\n"
    "  --rate N/s     at most N per second\n"
    "  --dry-run      print what would be done\n"
    "  --json         print one JSON object per dead letter. redrive and discard print the events redriven, discarded and\n"
    "                 letter_left in the form of the log\n"
    "  --new-id       for a dead letter whose message has no usable id: publish it with NEWID (--new-id=NEWID for a number),\n"
    "                 or with an id made from the letter, which is the same each time. An existing id is never replaced\n"
    "  --out-of-order redrive also to ordered queues and exchanges, by the exchange and routing key of the messages;\n"
    "                 they stand behind their successors\n"
    "\n"
    "Exit status 1 also if an ID does not exist. For redrive that is 0: it may be repeated, and deletes the dead letters that it\n"
    "has published.\n";

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

static int read_number(const char *text, int64_t *ret)
{
    char *end;

    if (*text < '0' || *text > '9')
        return 1;
    errno = 0;
    *ret = strtoll(text, &end, 10);
    return errno || *end ? 1 : 0;
}

static int wrong(const char *option, const char *value, const char *expected)
{
    fprintf(stderr, "onceward dead: %s \"%s\" is not %s\n", option, value, expected);
    return 1;
}

enum {
    OPTION_CONSUMER = 256,
    OPTION_REASON,
    OPTION_SINCE,
    OPTION_OLDER,
    OPTION_LIMIT,
    OPTION_RATE,
    OPTION_DRY_RUN,
    OPTION_NEW_ID,
    OPTION_OUT_OF_ORDER,
    OPTION_ALL,
    OPTION_BODY,
    OPTION_JSON
};

static int read_option(struct dead_options *o, int option)
{
    switch (option) {
    case 'c':
        o->config = optarg;
        return 0;
    case OPTION_CONSUMER:
        o->filter.consumer = optarg;
        return 0;
    case OPTION_REASON:
        o->filter.reason = optarg;
        return 0;
    case OPTION_SINCE:
        o->filter.since = optarg;
        return since_check(optarg)
                   ? wrong("--since", optarg, "a duration (\"2h\") or a time (2026-01-31T03:00:00Z)")
                   : 0;
    case OPTION_OLDER:
        o->filter.older = optarg;
        return since_check(optarg)
                   ? wrong("--older", optarg, "a duration (\"30d\") or a time (2026-01-31T03:00:00Z)")
                   : 0;
    case OPTION_LIMIT:
        return read_number(optarg, &o->filter.limit) ? wrong("--limit", optarg, "a number") : 0;
    case OPTION_RATE:
        return rate_read(optarg, &o->interval_us) ? wrong("--rate", optarg, "a rate (\"10/s\")") : 0;
    case OPTION_DRY_RUN:
        o->dry_run = true;
        return 0;
    case OPTION_NEW_ID:
        o->new_id = true;
        o->given_id = optarg;
        return 0;
    case OPTION_OUT_OF_ORDER:
        o->out_of_order = true;
        return 0;
    case OPTION_ALL:
        o->all = true;
        return 0;
    case OPTION_JSON:
        o->json = true;
        return 0;
    case OPTION_BODY:
        o->body_raw = strcmp(optarg, "raw") == 0;
        return o->body_raw ? 0 : wrong("--body", optarg, "\"raw\"");
    default:
        return 1;
    }
}

/* Allows `--new-id NEWID` without an equals sign: letters' ids are numbers, so any other word is the new id. */
static int read_operands(struct dead_options *o, int argc, char **argv)
{
    size_t n = 0;

    o->ids = mem_zalloc((size_t)argc + 1, sizeof *o->ids);
    o->seen = mem_zalloc((size_t)argc + 1, sizeof *o->seen);
    for (int i = optind; i < argc; i++) {
        if (read_number(argv[i], &o->ids[n]) == 0)
            n++;
        else if (o->new_id && !o->given_id)
            o->given_id = argv[i];
        else
            return wrong("the letter", argv[i], "a number, as `onceward dead list` shows them");
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

    if (!o->config)
        complaint = "--config FILE is missing, and ONCEWARD_CONFIG is not set";
    else if (action->run == dead_discard && !named && !o->all)
        complaint =
            "name dead letters by ID, or by --consumer, --reason, --since or --older; --all means every "
            "dead letter of this configuration";
    else if (action->run == dead_show && !named)
        complaint = "name dead letters by ID";
    else if (o->body_raw && (action->run != dead_show || filter->n_ids != 1))
        complaint = "--body raw is for `show` and one ID";
    else if (o->body_raw && o->json)
        complaint = "--body raw writes the body alone; expected it without --json";
    else if (o->new_id && action->run != dead_redrive)
        complaint = "--new-id is for `redrive`";
    else if (o->out_of_order && action->run != dead_redrive)
        complaint = "--out-of-order is for `redrive`";
    else if (o->given_id && filter->n_ids != 1)
        complaint = "--new-id NEWID is for one ID";
    else if ((o->dry_run || o->interval_us || o->all) && !action->changes)
        complaint = "--dry-run, --rate and --all are for `redrive` and `discard`";
    if (complaint)
        fprintf(stderr, "onceward dead %s: %s\n", action->name, complaint);
    return complaint != NULL;
}

static const struct option long_options[] = {{"config", required_argument, NULL, 'c'},
                                             {"consumer", required_argument, NULL, OPTION_CONSUMER},
                                             {"reason", required_argument, NULL, OPTION_REASON},
                                             {"since", required_argument, NULL, OPTION_SINCE},
                                             {"older", required_argument, NULL, OPTION_OLDER},
                                             {"limit", required_argument, NULL, OPTION_LIMIT},
                                             {"rate", required_argument, NULL, OPTION_RATE},
                                             {"dry-run", no_argument, NULL, OPTION_DRY_RUN},
                                             {"new-id", optional_argument, NULL, OPTION_NEW_ID},
                                             {"out-of-order", no_argument, NULL, OPTION_OUT_OF_ORDER},
                                             {"all", no_argument, NULL, OPTION_ALL},
                                             {"body", required_argument, NULL, OPTION_BODY},
                                             {"json", no_argument, NULL, OPTION_JSON},
                                             {"help", no_argument, NULL, 'h'},
                                             {0}};

static int usage(FILE *to, int status)
{
    fputs(help, to);
    return status;
}

static int dead_run(const struct action *action, const struct dead_options *o)
{
    struct fault f = {0};
    struct config *c;
    struct admin *a;
    int status = command_open(o->config, action->changes ? ADMIN_WRITES : ADMIN_READS, &c, &a);

    if (status)
        return status;
    status = admin_check_schema(a, &f) ? command_fail(&f) : action->run(o, c, a);
    command_close(c, a);
    return status;
}

int command_dead(int argc, char **argv)
{
    struct dead_options o = {.filter.limit = -1};
    const struct action *action = NULL;
    int option, status;

    /* --help and --config may precede the word. */
    while ((option = getopt_long(argc, argv, "c:h", long_options, NULL)) != -1) {
        if (option == 'h')
            return usage(stdout, STATUS_DONE);
        if (read_option(&o, option))
            return option == '?' ? command_see_help(argv[0]) : STATUS_USAGE;
    }
    for (size_t i = 0; i < sizeof actions / sizeof *actions && optind < argc; i++)
        if (strcmp(argv[optind], actions[i].name) == 0)
            action = &actions[i];
    if (!action) {
        fprintf(stderr, "onceward dead: what? list, show, redrive or discard\n");
        return command_see_help(argv[0]);
    }
    optind++;
    o.config = command_config_default(o.config);
    if (read_operands(&o, argc, argv) || check_options(&o, action))
        status = STATUS_USAGE;
    else
        status = dead_run(action, &o);
    free(o.ids);
    free(o.seen);
    return status;
}
