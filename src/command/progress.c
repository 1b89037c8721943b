/* A progress bar: a line that is overwritten. Main thread. */

#include "command/progress.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/table.h"

#include <inttypes.h>

enum { SHOW_MS = 200, BAR_MAX = 40, FIGURES_MAX = 60 };

void progress_begin(struct progress *p, FILE *to, int64_t total, bool wanted)
{
    *p = (struct progress){
        .to = wanted && text_width(to) > 0 ? to : NULL, .total = total, .began_ms = clock_ms()};
}

void progress_write(struct buf *out, int64_t n, int64_t total, int64_t took_ms, int width)
{
    int bar = width - FIGURES_MAX < BAR_MAX ? width - FIGURES_MAX : BAR_MAX;
    int64_t rate = took_ms > 0 ? n * 1000 / took_ms : 0;

    if (n > total)
        total = n; /* more than were counted before */
    if (bar > 4 && total) {
        buf_add_char(out, '[');
        for (int i = 0; i < bar; i++)
            buf_add_char(out, i * total < n * bar ? '#' : '-');
        buf_add_text(out, "] ");
    }
    buf_printf(out, "%" PRId64 " of %" PRId64 ", %" PRId64 "/s", n, total, rate);
    if (rate && n < total) {
        buf_add_text(out, ", ");
        text_add_age(out, (total - n) * 1000 / rate);
        buf_add_text(out, " left");
    }
}

void progress_show(struct progress *p, int64_t n)
{
    int64_t now = clock_ms();
    struct buf line = {0};

    if (!p->to || (now - p->shown_ms < SHOW_MS && n < p->total))
        return;
    p->shown_ms = now;
    progress_write(&line, n, p->total, now - p->began_ms, text_width(p->to));
    fprintf(p->to, "\r%s\x1b[K", buf_text(&line));
    fflush(p->to);
    buf_deinit(&line);
}

void progress_end(struct progress *p)
{
    if (p->to && p->shown_ms)
        fputs("\r\x1b[K", p->to);
}
