/* Measured scenarios of a fresh start. */
#include "measured_rig.h"

#include <stdio.h>

/* Long jobs without an answer, as many as may be in flight: the limit grows without answers. */
void long_jobs(struct report *r)
{
    static const struct {
        int concurrency, job_s, window_s, within_ms;
    } cases[] = {{16, 20, 30, 1000}, {64, 60, 120, 2000}};
    char name[80], text[120];
    struct plan p;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct figures f = {0};
        int n = cases[i].concurrency;

        plan_plain(&p, 28);
        p.queues[0].rules.concurrency = n;
        p.queues[0].rules.token_window_ms = cases[i].window_s * 1000;
        p.application.service_us = cases[i].job_s * (int64_t)SECOND;
        plan_add(&p, 0, CHARACTER_GOOD, (size_t)n, 0, 0);
        p.stop_us = 100 * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(name, sizeof(name), "%d jobs of %d s at once after a fresh start", n, cases[i].job_s);
        snprintf(text, sizeof(text), "all in flight after %.2f s, at most %.2f s",
                 (double)f.last_sent_us / SECOND, cases[i].within_ms / 1000.0);
        verdict(r, &f, f.n_done[CHARACTER_GOOD] == (size_t)n && f.last_sent_us <= cases[i].within_ms * 1000ll,
                name, text);
    }
}
