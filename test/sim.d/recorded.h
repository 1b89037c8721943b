#pragma once

/* Recorded traces: a hash for each of some runs. They say whether the core still makes the same decisions. */

/* Runs each seed of the file of recorded traces. 0: each trace is the recorded one; otherwise prints the first that is
 * not, or why the file cannot be read. */
int recorded_compare(const char *path);

/* Writes the file again. 0: written. */
int recorded_write(const char *path);
