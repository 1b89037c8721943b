#pragma once

#include "onceward/core/term.h"

/* The errors that the functions for applications raise: see codes.def. Constant table, any thread. */

enum error_code {
#define CODE(id, name, sentence, advice) CODE_##id,
#include "onceward/core/codes.def"
    N_ERROR_CODES
};

extern const struct term error_codes[N_ERROR_CODES];
