/* The names of the inbox's answers, from the one table. */

#include "onceward/core/row.h"

#include <assert.h>
#include <string.h>

static const char *const names[N_ROW_ANSWERS] = {
#define ROW(id, name) [ROW_##id] = name,
    ROW_ANSWERS(ROW)
#undef ROW
};

const char *row_answer_name(enum row_answer a)
{
    assert((unsigned)a < N_ROW_ANSWERS);
    return names[a];
}

int row_answer_find(const char *name)
{
    for (int a = 0; a < N_ROW_ANSWERS; a++)
        if (strcmp(name, names[a]) == 0)
            return a;
    return -1;
}
