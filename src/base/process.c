/* Process information from /proc. Read-only; any thread. */

#include "onceward/base/process.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

int64_t process_started(int64_t pid)
{
    char path[40], text[1024];
    int64_t started;
    char state;

    if (kill((pid_t)pid, 0) && errno == ESRCH)
        return 0;
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1; /* this system has no /proc */
    size_t len = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[len] = '\0';
    /* The second field is the program's name in parentheses, which may contain anything. */
    const char *rest = strrchr(text, ')');
    if (!rest ||
        sscanf(rest, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNd64,
               &state, &started) != 2)
        return -1;
    return state == 'Z' || state == 'X' ? 0 : started;
}
