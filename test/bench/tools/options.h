/* Command lines of the bench's programs: --name VALUE pairs, nothing else. And how they give up. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define fail(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

static inline const char *option(int argc, char **argv, const char *name, const char *fallback)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, name))
            return argv[i + 1];
    return fallback;
}

static inline long option_number(int argc, char **argv, const char *name, long fallback)
{
    const char *text = option(argc, argv, name, NULL);

    return text ? strtol(text, NULL, 10) : fallback;
}

#endif
