/* onceward version */

#include "onceward/command/command.h"
#include "onceward/inbox/admin.h"

#include <stdio.h>
#include <string.h>

int command_version(int argc, char **argv)
{
    if (argc > 1) {
        int help = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;

        fputs("usage: onceward version\nPrints the version of the program, and of the database schema that "
              "it creates.\n",
              help ? stdout : stderr);
        return help ? STATUS_DONE : STATUS_USAGE;
    }
    printf("onceward %s (schema %d)\n", ONCEWARD_VERSION, admin_schema_newest());
    return STATUS_DONE;
}
