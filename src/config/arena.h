#pragma once

#include <stddef.h>

/* The memory of one configuration: all allocations are freed together. */

struct config_arena;

struct config_arena *arena_new(void);
void arena_free(struct config_arena *a);

/* Allocates zeroed memory. */
void *arena_alloc(struct config_arena *a, size_t n, size_t size);
char *arena_copy(struct config_arena *a, const char *data, size_t len);
