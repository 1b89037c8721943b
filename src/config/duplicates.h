#pragma once

#include "onceward/base/slice.h"

struct config_report;

/* Reports every name that stands twice in one object, with its path and lines. text is well-formed JSON. */
void duplicates_report(struct config_report *report, struct slice text);
