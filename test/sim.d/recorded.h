#pragma once

/* Recorded traces: a hash per run, for a list of seeds. They show whether the core still makes the same decisions. */

/* Runs each seed in the file. 0: all traces are as recorded; otherwise prints the first difference, or why the file
 * cannot be read. */
int recorded_compare(const char *path);

/* Rewrites the file; otherwise prints why it cannot. 0: written. */
int recorded_write(const char *path);
