/* The rate of commands that change letters or publish one by one, and their end by a signal. */

#include "command/pace.h"

#include "onceward/base/clock.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t stop_asked;

static void on_signal(int number)
{
    (void)number;
    stop_asked = 1;
}

void pace_catch_signals(void)
{
    /* Handled once: a second signal ends the program at once, which is safe too. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int pace_wait(struct pace *p)
{
    int64_t now = clock_us();

    if (p->next_us < now)
        p->next_us = now; /* no burst makes up for lost time */
    while (!stop_asked && now < p->next_us) {
        int64_t us = p->next_us - now;

        nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
        now = clock_us();
    }
    p->next_us += p->interval_us;
    return stop_asked;
}

/* Reads "20", "20/s" or "30/m". */
int rate_read(const char *text, int64_t *ret_interval_us)
{
    int64_t per_us = 1000000;
    double rate;
    char *end;

    if (*text < '0' || *text > '9')
        return 1;
    rate = strtod(text, &end);
    if (strcmp(end, "/m") == 0 || strcmp(end, "/min") == 0)
        per_us *= 60;
    else if (*end && strcmp(end, "/s") != 0)
        return 1;
    if (!(rate > 0.0001) || rate > 1e6)
        return 1;
    *ret_interval_us = (int64_t)((double)per_us / rate);
    return 0;
}
