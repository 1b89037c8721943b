/* The actions at failpoints, and the times that a test has shortened. They are set once before there are threads;
 * afterwards only the counts change, atomically.
 *
 * A build without ONCEWARD_FAILPOINTS contains none of this. */
#include "onceward/base/failpoint.h"

#ifdef ONCEWARD_FAILPOINTS

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum action { ACTION_NONE, ACTION_KILL, ACTION_STOP, ACTION_DELAY };

static struct {
    enum action action;
    long n; /* first occurrence at which the action happens */
    long delay_ms;
    atomic_long count;
} points[N_FAILPOINTS];

static const char *const names[] = {
#undef FAILPOINT
#define OUTCOME(id, sentence)
#define TIME(id, name, ms, what)
#define FAILPOINT(id, name, where, transaction, response) name,
#include "onceward/base/failpoint.def"
#undef FAILPOINT
#undef TIME
};

static struct {
    const char *name;
    int ms;
} times[] = {
#define FAILPOINT(id, name, where, transaction, response)
#define TIME(id, name, ms, what) {name, ms},
#include "onceward/base/failpoint.def"
#undef TIME
#undef FAILPOINT
#undef OUTCOME
};

static void __attribute__((noreturn)) refuse(const char *text)
{
    fprintf(stderr, "ONCEWARD_FAILPOINT: \"%s\" is not name:kill|stop|delay=MS[:n] or name=MS\n", text);
    exit(2);
}

static long number(const char *text, const char *all)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (end == text || *end || n < 1)
        refuse(all);
    return n;
}

/* Both parsers overwrite item; all is the unchanged text, for error messages. */
static void set_time(char *item, const char *all)
{
    char *value = strchr(item, '=');
    int t = 0;

    if (!value)
        refuse(all);
    *value++ = '\0';
    while (t < N_TIMES && strcmp(times[t].name, item) != 0)
        t++;
    long ms = number(value, all);
    if (t == N_TIMES || ms > INT_MAX)
        refuse(all);
    times[t].ms = (int)ms;
}

static void set(char *item, const char *all)
{
    char *action = strchr(item, ':'), *n;
    int p = 0;

    if (!action) {
        set_time(item, all);
        return;
    }
    *action++ = '\0';
    n = strchr(action, ':');
    if (n)
        *n++ = '\0';
    while (p < N_FAILPOINTS && strcmp(names[p], item) != 0)
        p++;
    if (p == N_FAILPOINTS)
        refuse(all);
    points[p].n = n ? number(n, all) : 1;
    if (strcmp(action, "kill") == 0)
        points[p].action = ACTION_KILL;
    else if (strcmp(action, "stop") == 0)
        points[p].action = ACTION_STOP;
    else if (strncmp(action, "delay=", 6) == 0)
        points[p].action = ACTION_DELAY, points[p].delay_ms = number(action + 6, all);
    else
        refuse(all);
}

void failpoint_init(void)
{
    const char *given = getenv("ONCEWARD_FAILPOINT");
    char text[1024], *item = text;

    if (!given || !*given)
        return;
    if (snprintf(text, sizeof(text), "%s", given) >= (int)sizeof(text))
        refuse(given);
    while (item) {
        char *comma = strchr(item, ',');

        if (comma)
            *comma++ = '\0';
        set(item, given);
        item = comma;
    }
}

void failpoint_reached(enum failpoint p)
{
    if (points[p].action == ACTION_NONE)
        return;
    long count = atomic_fetch_add(&points[p].count, 1) + 1;

    if (points[p].action == ACTION_DELAY && count >= points[p].n)
        nanosleep(&(struct timespec){points[p].delay_ms / 1000, points[p].delay_ms % 1000 * 1000000}, NULL);
    else if (count == points[p].n)
        raise(points[p].action == ACTION_KILL ? SIGKILL : SIGSTOP);
}

int failpoint_time_ms(enum failpoint_time t)
{
    return times[t].ms;
}

#else

typedef int failpoint_none; /* a file must not be empty */

#endif
