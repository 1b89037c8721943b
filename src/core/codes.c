/* The table of codes.def. */

#include "onceward/core/codes.h"

const struct term error_codes[N_ERROR_CODES] = {
#define CODE(id, name, sentence, advice) {name, sentence, advice},
#include "onceward/core/codes.def"
};
