#pragma once

#include "config/read.h"

/* Notes the value of every key of a reading, and where it came from, where somebody asked for that. */
void values_note(const struct reading *r);
