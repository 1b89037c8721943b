#pragma once

#include "onceward/core/mutant.h"

/* Selects the core's deliberate mistake for this run; 0: none. */
void mutant_set(int mutant);

int n_mutants(void); /* including 0 */
const char *mutant_name(int mutant);
int mutant_find(const char *name); /* ignores case; 0: unknown */
