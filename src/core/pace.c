/* The pace of housekeeping. Pure. */

#include "onceward/core/pace.h"

enum { REST_MIN_MS = 10, REST_BEHIND_MS = 1, REST_MAX_MS = 5000 };

int64_t pace_rest_ms(struct pace *p, int64_t took_us, bool found, bool ended, bool behind, int64_t between_ms)
{
    int share = found || behind ? p->share * 2 : p->share / 2, most = behind ? PACE_BEHIND : PACE_MOST;
    int64_t least = behind ? REST_BEHIND_MS : REST_MIN_MS;

    p->share = share < PACE_LEAST ? PACE_LEAST : share > most ? most : share;
    int64_t rest = took_us > 0 ? took_us / p->share : 0; /* microseconds over thousandths are milliseconds */

    if (rest > REST_MAX_MS)
        rest = REST_MAX_MS;
    if (rest < least)
        rest = least;
    return ended && rest < between_ms ? between_ms : rest;
}

int64_t pace_pause_ms(int64_t took_us, bool behind)
{
    int64_t pause = took_us > 0 ? took_us / (behind ? PACE_BEHIND : PACE_MOST) : 0;

    return pause > REST_MAX_MS ? REST_MAX_MS : pause < REST_BEHIND_MS ? REST_BEHIND_MS : pause;
}

int64_t pace_goal_ms(int64_t compact_ms)
{
    return compact_ms / 10;
}

bool pace_is_behind(const struct pace_walk *w, int64_t now_ms, int64_t goal_ms)
{
    if (!goal_ms || !w->began_ms || w->n_pages <= 0)
        return false;
    return (double)(now_ms - w->began_ms) * (double)w->n_pages > (double)goal_ms * (double)w->page;
}

int64_t pace_lag_ms(const struct pace_walk *w, int64_t now_ms, int64_t goal_ms)
{
    int64_t lag = now_ms - w->began_ms - 2 * goal_ms;

    return goal_ms && w->began_ms && lag > 0 ? lag : 0;
}

int64_t pace_between_ms(int64_t retention_ms)
{
    int64_t ms = retention_ms / 100;

    return ms < 1000 ? 1000 : ms > 20000 ? 20000 : ms;
}
