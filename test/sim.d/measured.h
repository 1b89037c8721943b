#pragma once

#include "run.h"

/* Scenarios with a figure: each says what it measured in virtual time, and what it asks for. */

/* All, or the one of that name (NULL: all). 0: each gave what it asks for. */
int measured_run(const char *name);

/* Does one of them fail, as it should with a mutant? */
bool measured_catches(struct outcome *ret);
