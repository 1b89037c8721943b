/* Control groups: the kernel kills a process that takes more memory than its group may have. */
#include "onceward/base/cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 4096 };

/* Version 1 reports "no limit" as a value at least this large. */
static const uint64_t UNLIMITED = UINT64_C(1) << 60;

static void file_limit(const char *path, uint64_t *least)
{
    FILE *f = fopen(path, "re");
    char text[32], *end;
    uint64_t limit;

    if (!f)
        return;
    if (fgets(text, sizeof(text), f)) {
        errno = 0;
        limit = strtoull(text, &end, 10); /* "max" is no number */
        if (end != text && !errno && limit < UNLIMITED && limit < *least)
            *least = limit;
    }
    fclose(f);
}

/* Reads the limits of the group and of its ancestors. In a container without a cgroup namespace the path is the
 * host's, and only the mount's root exists. */
static void group_limit(const char *root, const char *mount, const char *group, const char *file,
                        uint64_t *least)
{
    char at[PATH_SIZE], path[2 * PATH_SIZE];

    snprintf(at, sizeof(at), "%s", group);
    for (;;) {
        size_t len = strlen(at);

        while (len && at[len - 1] == '/')
            at[--len] = '\0';
        snprintf(path, sizeof(path), "%s%s%s/%s", root, mount, at, file);
        file_limit(path, least);
        char *last = strrchr(at, '/');

        if (!last)
            return;
        *last = '\0';
    }
}

static bool has_memory(const char *controllers, const char *end)
{
    static const char name[] = "memory";
    size_t len = sizeof(name) - 1;

    for (const char *c = controllers; c < end; c += strcspn(c, ",:") + 1)
        if (strcspn(c, ",:") == len && !memcmp(c, name, len))
            return true;
    return false;
}

bool cgroup_memory_limit(const char *root, uint64_t *ret)
{
    char line[PATH_SIZE], path[PATH_SIZE];
    uint64_t least = UINT64_MAX;
    FILE *f;

    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    if (!f)
        return false;
    while (fgets(line, sizeof(line), f)) { /* format: number:controllers:path */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        group[strcspn(group, "\n")] = '\0';
        if (!strncmp(line, "0::", 3))
            group_limit(root, "/sys/fs/cgroup", group + 1, "memory.max", &least);
        else if (has_memory(controllers + 1, group))
            group_limit(root, "/sys/fs/cgroup/memory", group + 1, "memory.limit_in_bytes", &least);
    }
    fclose(f);
    if (least == UINT64_MAX)
        return false;
    *ret = least;
    return true;
}
