#pragma once

#include "config/read.h"

/* Records the value and origin of every key of a reading, if that was requested. */
void values_note(const struct reading *r);
