#pragma once

#include "command/export_place.h"

#include "onceward/base/slice.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>
#include <stdio.h>

struct fault;

/* The destination of an export: standard output, or a file in which an interrupted export continues. Such a
 * file also has a first line with the request and its time, and a last line that marks it as complete. */
struct export_file {
    FILE *out;
    const char *path; /* NULL: standard output */
    bool goes_on;     /* continues an earlier run, with its since and until */
    bool has_ended;   /* complete */
    char since[MESSAGE_TIME_SIZE], until[MESSAGE_TIME_SIZE]; /* since: empty if not requested */
    struct export_place after;                               /* position of its last line */
};

/* Opens the file, and removes a partial line at its end. asked: the request as a JSON object. -1: f, also when the
 * file has other contents, belongs to another request, or is being written by another process. */
int export_file_open(struct export_file *x, const char *path, struct slice asked, struct fault *f);

/* Writes the first line of a new file. */
int export_file_begin(struct export_file *x, struct slice asked, struct fault *f);

/* Writes the last line if everything is written. The file is on the disk when the call returns. */
int export_file_end(struct export_file *x, bool all, struct fault *f);

void export_file_deinit(struct export_file *x);
