/* onceward status */

#include "command/common.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>

struct status_options {
    const char *config, *id;
    bool json;
};

static int show(struct admin *a, struct config *c, const struct status_options *o, struct fault *f)
{
    if (o->id)
        return admin_status_id(a, o->id, o->json, stdout, f);
    return command_use_formers(c, a, NULL, f) || admin_status(a, c, o->json, stdout, f);
}

static int status_run(void *options)
{
    const struct status_options *o = options;
    struct fault f = {0};
    struct config *c;
    struct admin *a;
    int status;

    status = command_open(o->config, ADMIN_READS, &c, &a);
    if (status)
        return status;
    if (show(a, c, o, &f))
        status = command_fail(&f);
    else if (!o->json && !o->id)
        printf("\nNext:\n"
               "  onceward status --config %s --id ID     everything about one message\n"
               "  onceward dead list --config %s          the dead letters\n"
               "  onceward check --config %s --connect    does everything answer?\n",
               o->config, o->config, o->config);
    command_close(c, a);
    return status;
}

#define OPTIONS struct status_options

static const struct command_option status_options[] = {
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"id", "ID",
     "show everything that is stored about one message id instead: its row, its entry in the compact "
     "history and its dead "
     "letters, for each consumer",
     OPTION(TEXT, id)},
    JSON_OPTION("one JSON object"),
    {0},
};

const struct command status_command = {
    .name = "status",
    .does = "show replicas, counts, dead letters and unfinished messages, or one message",
    .about =
        "Shows the live replicas with the state of each queue, at most five seconds old; the pauses and "
        "give-ups of operators; "
        "the number of rows per consumer and state; the ten oldest unfinished messages (state, attempt, "
        "next attempt, claim "
        "owner, last error, holder of the row's lock); the number of ids in the compact history; and the "
        "dead letters by "
        "reason. Changes nothing.\n"
        "Columns of a queue: OUT: requests in flight; LIMIT: how many may be in flight now; ACCEPTED: "
        "messages answered 202, not "
        "completed yet; BATCH: how many messages a request may have now; HELD: deliveries that have not "
        "ended.\n"
        "Columns of rows: HOLDER: the claim owner, the replica whose token the row has; LETTERS: dead "
        "letters.",
    .options = status_options,
    .size = sizeof(struct status_options),
    .run = status_run,
};
