/* Waiting before the first `ready`: which line is due. Pure; any thread. */

#include "onceward/core/waiting.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { CHANGED_MS = 1000 };

static bool is_warning(const struct waiting_one *one, bool is_refused, int64_t now_ms, int64_t patience_ms)
{
    if (!is_refused && now_ms - one->since_ms < patience_ms)
        return false;
    return one->warned_ms == INT64_MIN || now_ms - one->warned_ms >= patience_ms;
}

enum waiting_line waiting_for(struct waiting *w, enum waiting_for what, const char *text, bool is_refused,
                              int64_t now_ms, int64_t patience_ms)
{
    struct waiting_one *one = &w->one[what];
    bool is_new = !one->on;

    if (is_new)
        *one = (struct waiting_one){.on = true, .since_ms = now_ms, .warned_ms = INT64_MIN};
    bool is_other = !is_new && strncmp(one->text, text, sizeof(one->text) - 1) != 0;
    bool warns = is_warning(one, is_refused, now_ms, patience_ms);
    if (!is_new && !warns && !(is_other && now_ms - one->told_ms >= CHANGED_MS))
        return WAITING_NO_LINE;
    one->told_ms = now_ms;
    snprintf(one->text, sizeof(one->text), "%s", text);
    if (warns)
        one->warned_ms = now_ms;
    return warns ? WAITING_WARNING : WAITING_LINE;
}

void waiting_over(struct waiting *w, enum waiting_for what)
{
    w->one[what].on = false;
}

const char *waiting_reason(enum waiting_for what)
{
    static const char *const names[N_WAITING_FOR] = {
        [WAITING_BROKER] = "disconnected",
        [WAITING_DATABASE] = "database_down",
        [WAITING_APPLICATION] = "application_down",
    };

    assert((unsigned)what < N_WAITING_FOR);
    return names[what];
}
