#pragma once

#include "onceward/base/slice.h"

struct buf;
struct config_report;

/* Reports each name that occurs twice in one object of the text, which is otherwise well-formed. *marked
 * receives the text with a mark on all but the last of them, so that none hides another. */
void duplicates_report(struct config_report *report, struct slice text, struct buf *marked);

/* Name without its mark. Only for names of a marked text. */
const char *duplicates_plain(const char *name);
