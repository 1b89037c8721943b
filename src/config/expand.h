#pragma once

#include "onceward/base/slice.h"

struct buf;
struct fault;

/* Texts from the environment and from files. */

enum {
    TEXT_FILE_MAX = 64 * 1024,
    CONFIG_FILE_MAX = 1024 * 1024,
    FAULT_PATH_MAX = 200 /* of a path in a fault */
};

/* Appends text with every ${VAR} replaced by that environment variable; $${ is a literal ${. A variable's
 * value is not expanded again. -1: f names the missing variable. */
int text_expand(struct buf *out, struct slice text, struct fault *f);

/* Appends a whole file of at most max bytes. -1: f says why not. */
int file_read(struct buf *out, const char *path, size_t max, struct fault *f);

/* The same for a text: NUL is refused, and one trailing line end is dropped. */
int text_file_read(struct buf *out, const char *path, struct fault *f);
