/* The default folder of the state file: see runtime_folder.h. Stateless; any thread. */

#include "onceward/base/runtime_folder.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN_FOLDER "/run/onceward"

static char *join(const char *folder, const char *name)
{
    struct buf b = {0};

    buf_printf(&b, "%s/%s", folder, name);
    buf_text(&b);
    return b.data;
}

static bool is_own_folder(const char *path)
{
    struct stat st;

    return path && *path == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           access(path, W_OK | X_OK) == 0;
}

/* Can the folder be used? An existing one counts by its own rights, otherwise the parent's rights count. */
static bool has_run_folder(void)
{
    struct stat st;

    if (stat(RUN_FOLDER, &st) == 0)
        return S_ISDIR(st.st_mode) && access(RUN_FOLDER, W_OK | X_OK) == 0;
    return errno == ENOENT && access("/run", W_OK | X_OK) == 0;
}

static char *private_folder(void)
{
    struct buf b = {0};

    buf_printf(&b, "/tmp/onceward-%ld", (long)geteuid());
    buf_text(&b);
    return b.data;
}

/* Path of a place, in the order of preference; NULL: this one cannot be used. */
enum place { PLACE_ENVIRONMENT, PLACE_RUN, PLACE_PRIVATE, PLACE_SESSION, N_PLACES };

static char *place_path(enum place place)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    char *folder, *path;
    char session[64];

    switch (place) {
    case PLACE_ENVIRONMENT:
        return is_own_folder(xdg) ? join(xdg, "onceward/state") : NULL;
    case PLACE_RUN:
        return has_run_folder() ? join(RUN_FOLDER, "state") : NULL;
    case PLACE_SESSION: /* the usual XDG_RUNTIME_DIR, which this environment may lack */
        snprintf(session, sizeof(session), "/run/user/%ld", (long)geteuid());
        return is_own_folder(session) ? join(session, "onceward/state") : NULL;
    default:
        folder = private_folder();
        path = join(folder, "state");
        free(folder);
        return path;
    }
}

char *runtime_path(void)
{
    char *path = place_path(PLACE_ENVIRONMENT);

    if (!path)
        path = place_path(PLACE_RUN);
    return path ? path : place_path(PLACE_PRIVATE);
}

char *runtime_path_in_use(void)
{
    struct stat st;

    for (int i = 0; i < N_PLACES; i++) {
        char *path = place_path((enum place)i);

        if (path && lstat(path, &st) == 0)
            return path;
        free(path);
    }
    return runtime_path();
}

char *folder_of_path(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash != path ? mem_copy(path, (size_t)(slash - path)) : NULL;
}

static bool is_private(const char *folder)
{
    char *own = private_folder();
    bool is = folder && !strcmp(folder, own);

    free(own);
    return is;
}

bool runtime_folder_is_safe(const char *path, struct fault *f)
{
    char *folder = folder_of_path(path);
    struct stat st;
    bool safe = !is_private(folder) || lstat(folder, &st) != 0 ||
                (S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077));

    if (!safe)
        fault_set(f, "%s is not a folder that only this user may enter: remove it, or set `state_file`",
                  folder);
    free(folder);
    return safe;
}

bool runtime_folder_make(const char *path)
{
    char *folder = folder_of_path(path);
    bool made = folder && mkdir(folder, is_private(folder) ? 0700 : 0755) == 0;

    free(folder);
    return made;
}
