#pragma once

#include "onceward/core/mutant.h"

/* Which of the core's deliberate mistakes is made in this run; 0: none. */
void mutant_set(int mutant);

int n_mutants(void); /* with 0 */
const char *mutant_name(int mutant);
int mutant_find(const char *name); /* in any case; 0: there is none */
