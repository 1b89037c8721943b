#pragma once

#include "run.h"

/* Scenarios with a figure, measured in virtual time and compared with a required value. */

/* Runs all scenarios, or the one with that name (NULL: all). 0: every figure was good. */
int measured_run(const char *name);

/* Does a scenario fail, as it should with a mutant? */
bool measured_catches(struct outcome *ret);
