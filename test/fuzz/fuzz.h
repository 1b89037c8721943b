#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Prints more about the failed condition than assert(). */
#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: must be: %s\n", __FILE__, __LINE__, #condition);                         \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)
