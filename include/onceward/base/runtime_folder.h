#pragma once

#include <stdbool.h>

/* The folder of a process's state file where the configuration names none. It depends on the user and on the
 * environment alone, so each command of one user finds the same. */

struct fault;

/* `onceward/state` in $XDG_RUNTIME_DIR when that is a folder of this user; /run/onceward/state when that
 * folder can be written, or made; else /tmp/onceward-UID/state, in a folder that this user alone may enter.
 * The caller owns it. */
char *runtime_path(void);

/* False: the path lies in the folder under /tmp, and another user made that, or may enter it; f has the reason. What
 * is there then is neither written nor believed. */
bool runtime_folder_is_safe(const char *path, struct fault *f);

/* Makes the path's folder; true: it was not there before. A failure shows when a file is opened in it. */
bool runtime_folder_make(const char *path);
