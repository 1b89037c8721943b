#pragma once

#include "command/export_place.h"

#include "onceward/base/slice.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>
#include <stdio.h>

struct fault;

/* Where an export goes: standard output, or a file that an interrupted one goes on with. Beside what is
 * exported a file has a first line, which says what was asked for and the time that it is about, and a last
 * one, which says that all of that is there. */
struct export_file {
    FILE *out;
    const char *path; /* NULL: standard output */
    bool goes_on;     /* begun before: since and until are those of then */
    bool has_ended;   /* all is there */
    char since[MESSAGE_TIME_SIZE], until[MESSAGE_TIME_SIZE]; /* since: empty where none was asked for */
    struct export_place after;                               /* its last line */
};

/* asked: what was asked for, as a JSON object. What was written behind the last whole line is cut. -1: f:
 * also where the file is something else, was begun with something else, or somebody writes to it. */
int export_file_open(struct export_file *x, const char *path, struct slice asked, struct fault *f);

/* Writes the first line of a file that does not go on. */
int export_file_begin(struct export_file *x, struct slice asked, struct fault *f);

/* All is written: then the last line follows. The file is on the disk when this answers. */
int export_file_end(struct export_file *x, bool all, struct fault *f);

void export_file_deinit(struct export_file *x);
