#pragma once

#include <stdbool.h>

struct buf;
struct config_report;

/* Adds a finding, unless the same text was added before. */
void report_error(struct config_report *r, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void report_warning(struct config_report *r, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes the newest finding, a warning, fail `check`; a running sidecar continues with it. */
void report_fails_check(struct config_report *r);

/* Appends a name from the file to a path: quoted unless plain, and cut. */
void path_add(struct buf *out, const char *name);
