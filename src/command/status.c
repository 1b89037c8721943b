/* onceward status */

#include "command/common.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>

static const char help[] =
    "usage: onceward status --config FILE [--json]\n"
    "Shows the replicas that are alive and what each of their queues does, as they wrote it within the last "
    "five seconds; what\n"
    "operators want (pause, give-up); how many rows each consumer has in each state, the ten oldest "
    "unfinished messages (state, "
    "attempt, when it goes on,\n"
    "who holds it, the last error, who locks the row), how many ids each consumer has in the compact history, and the\n"
    "dead letters by reason. Changes nothing.\n"
    "  --json   one JSON object instead\n";

int command_status(int argc, char **argv)
{
    const char *path = NULL;
    int json = 0, status = command_parse(argc, argv, help, "json", &path, &json);
    struct fault f = {0};
    struct config *c;
    struct admin *a;

    if (status >= 0)
        return status;
    status = command_open(path, ADMIN_READS, &c, &a);
    if (status)
        return status;
    if (admin_status(a, c, json, stdout, &f))
        status = command_fail(&f);
    else if (!json)
        printf("\nNext:\n"
               "  onceward dead list --config %s          the letters\n"
               "  onceward check --config %s --connect    does everything answer?\n",
               path, path);
    command_close(c, a);
    return status;
}
