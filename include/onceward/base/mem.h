#pragma once

#include <stddef.h>

/* Memory. The process ends when memory is exhausted: every promise holds across a crash, and no half-made state can
 * be kept without memory. These functions print one line to standard error and abort. */

/* calloc; aborts when memory is exhausted. The caller owns the result and frees it with free(). */
void *mem_zalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull));

/* realloc; aborts when memory is exhausted. A size of 0 keeps one byte. */
void *mem_realloc(void *p, size_t size) __attribute__((returns_nonnull));

/* Copies len bytes and adds a NUL. The caller owns the result. */
char *mem_copy(const char *data, size_t len) __attribute__((malloc, returns_nonnull));

/* Copies a text; NULL: NULL. The caller owns the result. */
char *mem_copy_text(const char *text);

/* Overwrites a text with zeros and frees it. NULL: does nothing. */
void mem_free_secret(char *text);

/* Frees *p and sets it to NULL. */
#define mem_clear(p)                                                                                         \
    do {                                                                                                     \
        free(*(p));                                                                                          \
        *(p) = NULL;                                                                                         \
    } while (0)
