#pragma once

#include <stdbool.h>

/* Deliberate mistakes in the core, each of which test/sim must catch: terms/mutants.def. `if (MUTANT(NAME))`
 * compiles to nothing in ordinary builds. The simulator's build sets ONCEWARD_MUTANTS and can switch one of
 * them on. */

enum mutant {
    MUTANT_NONE,
#define MUTATION(name, what) MUTANT_##name,
#include "onceward/core/terms/mutants.def"
    N_MUTANTS
};

#ifdef ONCEWARD_MUTANTS
extern int mutant_on; /* defined in test/sim */
#define MUTANT(name) (mutant_on == MUTANT_##name)
#else
#define MUTANT(name) (false)
#endif
