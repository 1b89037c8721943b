/* onceward status */

#include "command/common.h"
#include "onceward/inbox/admin.h"

#include <getopt.h>
#include <stdbool.h>

static const char help[] =
    "usage: onceward status --config FILE [--id ID] [--json]\n"
    "Shows the live replicas with the state of each queue, at most five seconds old; the pauses and give-ups of\n"
    "operators; the number of rows per consumer and state; the ten oldest unfinished messages (state, attempt, next\n"
    "attempt, claim owner, last error, holder of the row's lock); the number of ids in the compact history; and the\n"
    "dead letters by reason. Changes nothing.\n"
    "Of a queue, OUT: requests in flight; LIMIT: how many may be in flight now; ACCEPTED: messages answered 202, not\n"
    "completed yet; BATCH: how many messages a request may have now; HELD: deliveries that have not ended.\n"
    "Of rows, HOLDER: the claim owner, the replica whose token the row has; LETTERS: dead letters.\n"
    "  --id ID  show everything that is kept of one message id instead: its row, its entry in the compact history and\n"
    "           its dead letters, for each consumer\n"
    "  --json   print one JSON object\n";

struct status_options {
    const char *config, *id;
    int json;
};

/* -1: continue; else the exit status. */
static int read_options(int argc, char **argv, struct status_options *o)
{
    const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                     {"id", required_argument, NULL, 'i'},
                                     {"json", no_argument, &o->json, 1},
                                     {"help", no_argument, NULL, 'h'},
                                     {0}};
    int option;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        if (option == 'c') {
            o->config = optarg;
        } else if (option == 'i') {
            o->id = optarg;
        } else if (option == 'h') {
            fputs(help, stdout);
            return STATUS_DONE;
        } else if (option) {
            return command_see_help(argv[0]);
        }
    }
    return command_config_named(argc, argv, &o->config) ? command_see_help(argv[0]) : -1;
}

static int show(struct admin *a, const struct config *c, const struct status_options *o, struct fault *f)
{
    return o->id ? admin_status_id(a, o->id, o->json, stdout, f) : admin_status(a, c, o->json, stdout, f);
}

int command_status(int argc, char **argv)
{
    struct status_options o = {0};
    int status = read_options(argc, argv, &o);
    struct fault f = {0};
    struct config *c;
    struct admin *a;

    if (status >= 0)
        return status;
    status = command_open(o.config, ADMIN_READS, &c, &a);
    if (status)
        return status;
    if (show(a, c, &o, &f))
        status = command_fail(&f);
    else if (!o.json && !o.id)
        printf("\nNext:\n"
               "  onceward status --config %s --id ID     everything about one message\n"
               "  onceward dead list --config %s          the dead letters\n"
               "  onceward check --config %s --connect    does everything answer?\n",
               o.config, o.config, o.config);
    command_close(c, a);
    return status;
}
