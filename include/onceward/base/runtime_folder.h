#pragma once

#include <stdbool.h>

/* The default folder of a process's state file. It depends only on the user and the environment. A shell and a
 * service of one user may differ in XDG_RUNTIME_DIR, so a command that looks for a running sidecar looks into each
 * folder. */

struct fault;

/* `onceward/state` in $XDG_RUNTIME_DIR when that is a folder of this user; /run/onceward/state when that
 * folder is writable or can be created; else /tmp/onceward-UID/state, in a folder that only this user may
 * enter. The caller owns the result. */
char *runtime_path(void);

/* Folder of a path; NULL: the path has none, or only the root. The caller owns it. */
char *folder_of_path(const char *path);

/* The same, but the first of these places, or /run/user/UID/onceward/state, that has a file. */
char *runtime_path_in_use(void);

/* False: the path lies in the folder under /tmp, and another user owns that folder or may enter it; f has the reason.
 * Its files are then neither read nor written. */
bool runtime_folder_is_safe(const char *path, struct fault *f);

/* Creates the path's folder. True: it did not exist before. A failure shows when a file is opened there. */
bool runtime_folder_make(const char *path);
