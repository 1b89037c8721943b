/* The mutants by their names: see onceward/core/mutant.h. */
#include "mutants.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

int mutant_on;

static const char *const names[N_MUTANTS] = {
    "",
#define MUTATION(name, what) #name,
#include "onceward/core/terms/mutants.def"
};

void mutant_set(int mutant)
{
    mutant_on = mutant;
}

int n_mutants(void)
{
    return N_MUTANTS;
}

const char *mutant_name(int mutant)
{
    return names[mutant];
}

int mutant_find(const char *name)
{
    for (int m = 1; m < N_MUTANTS; m++)
        if (!strcasecmp(names[m], name))
            return m;
    return 0;
}
