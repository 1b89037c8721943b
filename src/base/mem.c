#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *memory_or_abort(void *p, size_t size)
{
    if (p)
        return p;
    fprintf(stderr, "onceward: out of memory, asked for %zu bytes\n", size);
    abort();
}

/* glibc before 2.41 serves small blocks from the thread's cache for malloc, and not for calloc. */
enum { CACHED_MAX = 1024 };

void *mem_zalloc(size_t n, size_t size)
{
    if (n == 1 && size > 0 && size <= CACHED_MAX)
        return memset(memory_or_abort(malloc(size), size), 0, size);
    return memory_or_abort(calloc(n ? n : 1, size ? size : 1), n * size);
}

void *mem_realloc(void *p, size_t size)
{
    return memory_or_abort(realloc(p, size ? size : 1), size);
}

char *mem_copy(const char *data, size_t len)
{
    char *copy = memory_or_abort(malloc(len + 1), len + 1);

    if (len)
        memcpy(copy, data, len);
    copy[len] = '\0';
    return copy;
}

char *mem_copy_text(const char *text)
{
    return text ? mem_copy(text, strlen(text)) : NULL;
}

void mem_free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}
