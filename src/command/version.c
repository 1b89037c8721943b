/* onceward version */

#include "command/common.h"
#include "onceward/inbox/admin.h"

static int version_run(void *options)
{
    (void)options;
    printf("onceward %s (schema %d)\n", ONCEWARD_VERSION, admin_schema_newest());
    return STATUS_DONE;
}

const struct command version_command = {
    .name = "version",
    .does = "print the version",
    .about = "Prints the version of the program, and of the database schema that it creates.",
    .run = version_run,
};
