#pragma once

/* The subcommands. */

enum { STATUS_DONE = 0, STATUS_FAILED = 1, STATUS_USAGE = 2 };

/* Finds and runs the command of argv. */
int command_main(int argc, char **argv);
