#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A list of copied texts. {0}: an empty one. */
struct texts {
    char **items;
    size_t n;
};

void texts_add(struct texts *t, const char *text);
bool texts_has(const struct texts *t, const char *text);
void texts_deinit(struct texts *t);
