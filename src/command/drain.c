/* onceward drain: not there yet. */

#include "onceward/command/command.h"

#include <stdio.h>

int command_drain(int argc, char **argv)
{
    (void)argc;
    fprintf(stderr, "onceward: %s is not available in this version\n", argv[0]);
    return STATUS_FAILED;
}
