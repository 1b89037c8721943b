#pragma once

/* The subcommands. */

enum { STATUS_DONE = 0, STATUS_FAILED = 1, STATUS_USAGE = 2 };

/* argv to command. */
int command_main(int argc, char **argv);
