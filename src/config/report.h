#pragma once

#include <stdbool.h>

struct config_report;

/* Adds a finding; one that is there already, word for word, is not repeated. */
void report_error(struct config_report *r, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void report_warning(struct config_report *r, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
