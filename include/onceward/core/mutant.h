#pragma once

#include <stdbool.h>

/* Deliberate mistakes in the core, each of which test/sim must catch: terms/mutants.def. `if (MUTANT(NAME))`
 * is nothing in ordinary builds; in the simulator's, which sets ONCEWARD_MUTANTS, one of them can be switched
 * on. */

enum mutant {
    MUTANT_NONE,
#define MUTATION(name, what) MUTANT_##name,
#include "onceward/core/terms/mutants.def"
    N_MUTANTS
};

#ifdef ONCEWARD_MUTANTS
extern int mutant_on; /* of test/sim */
#define MUTANT(name) (mutant_on == MUTANT_##name)
#else
#define MUTANT(name) (false)
#endif
