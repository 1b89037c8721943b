/* The drawing of `top`: totals, operator commands, and one line per queue and replica. A narrow screen lacks the
 * least important columns. */
#include "command/top_view.h"

#include "onceward/base/mem.h"
#include "onceward/base/table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_CHARS = 24, REPLICA_CHARS = 24, FEWEST_CHARS = 6 };

enum column {
    COLUMN_QUEUE,
    COLUMN_REPLICA,
    COLUMN_STATE,
    COLUMN_IN,
    COLUMN_DONE,
    COLUMN_FAILED,
    COLUMN_OUT,
    COLUMN_ACCEPTED,
    COLUMN_HELD,
    COLUMN_DEPTH,
    COLUMN_FORWARD,
    COLUMN_END_TO_END,
    COLUMN_DEAD,
    COLUMN_SEEN,
    N_TOP_COLUMNS
};

static const struct {
    const char *head;
    bool right;
    int rank; /* the most important has the smallest */
} columns[N_TOP_COLUMNS] = {
    [COLUMN_QUEUE] = {"QUEUE", false, 0},
    [COLUMN_REPLICA] = {"REPLICA", false, 4},
    [COLUMN_STATE] = {"STATE", false, 1},
    [COLUMN_IN] = {"IN/S", true, 8},
    [COLUMN_DONE] = {"DONE/S", true, 2},
    [COLUMN_FAILED] = {"FAILED/S", true, 5},
    [COLUMN_OUT] = {"OUT/LIMIT", true, 3},
    [COLUMN_ACCEPTED] = {"ACCEPTED", true, 11},
    [COLUMN_HELD] = {"HELD", true, 7},
    [COLUMN_DEPTH] = {"DEPTH", true, 6},
    [COLUMN_FORWARD] = {"FORWARD P50/P99", true, 9},
    [COLUMN_END_TO_END] = {"TOTAL P50/P99", true, 10},
    [COLUMN_DEAD] = {"DEAD", true, 12},
    [COLUMN_SEEN] = {"SEEN", true, 13},
};

#define BOLD   "1"
#define RED    "31"
#define GREEN  "32"
#define YELLOW "33"

/* --- cells --- */

struct cells {
    struct buf *texts; /* N_TOP_COLUMNS per row */
    size_t n_rows;
};

static size_t n_chars(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* Cuts to a number of characters, and marks the cut with the last one. */
static void cut_chars(struct buf *b, size_t from, size_t most)
{
    size_t n = 0, last = from;

    if (n_chars(buf_text(b) + from) <= most)
        return;
    for (size_t i = from; i < b->len && n < most; i++) {
        if (((unsigned char)b->data[i] & 0xC0) == 0x80)
            continue;
        n++;
        last = i;
    }
    b->len = last;
    buf_add_text(b, "…");
}

static void cell_name(struct buf *cell, const char *text, size_t most)
{
    text_add_safe(cell, slice_of(*text ? text : "-"));
    cut_chars(cell, 0, most);
}

/* Adds "950", "12.3k" or "4.5M": never wider than five characters. */
static void add_short(struct buf *b, double d, bool fine)
{
    if (d < 0)
        buf_add_char(b, '-');
    else if (fine && d < 99.95)
        buf_printf(b, "%.1f", d);
    else if (d < 9999.5)
        buf_printf(b, "%.0f", d);
    else if (d < 999950)
        buf_printf(b, "%.1fk", d / 1000);
    else
        buf_printf(b, "%.1fM", d / 1e6);
}

static void cell_pair(struct buf *cell, double a, double b, bool fine, const char *unit)
{
    add_short(cell, a, fine);
    buf_add_char(cell, '/');
    add_short(cell, b, fine);
    buf_add_text(cell, a < 0 && b < 0 ? "" : unit);
}

/* Name of the replica: the host name, which people know, unless several instances share it. */
static const char *replica_name(const struct fleet *f, const struct fleet_queue *q)
{
    if (!q->host || !*q->host)
        return q->instance;
    for (size_t i = 0; i < f->n_queues; i++)
        if (f->queues[i].host && !strcmp(f->queues[i].host, q->host) &&
            strcmp(f->queues[i].instance, q->instance) != 0)
            return q->instance;
    return q->host;
}

static void cells_fill(struct buf *row, const struct fleet *f, const struct fleet_queue *q)
{
    cell_name(&row[COLUMN_QUEUE], q->queue, NAME_CHARS);
    buf_add_text(&row[COLUMN_QUEUE], q->is_foreign ? " *" : "");
    cell_name(&row[COLUMN_REPLICA], replica_name(f, q), REPLICA_CHARS);
    cell_name(&row[COLUMN_STATE], q->state, NAME_CHARS);
    add_short(&row[COLUMN_IN], q->received_per_s, true);
    add_short(&row[COLUMN_DONE], q->completed_per_s, true);
    add_short(&row[COLUMN_FAILED], q->failed_per_s, true);
    cell_pair(&row[COLUMN_OUT], (double)q->in_flight, (double)q->limit, false, "");
    add_short(&row[COLUMN_ACCEPTED], (double)q->accepted, false);
    add_short(&row[COLUMN_HELD], (double)q->held, false);
    add_short(&row[COLUMN_DEPTH], (double)q->depth, false);
    cell_pair(&row[COLUMN_FORWARD], q->forward_ms_p50, q->forward_ms_p99, true, " ms");
    cell_pair(&row[COLUMN_END_TO_END], q->end_to_end_ms_p50, q->end_to_end_ms_p99, true, " ms");
    add_short(&row[COLUMN_DEAD], q->dead < 0 ? 0 : (double)q->dead, false);
    buf_printf(&row[COLUMN_SEEN], "%" PRId64 " s", q->seen_ms / 1000);
}

static void cells_make(struct cells *c, const struct fleet *f)
{
    c->n_rows = f->n_queues + 1;
    c->texts = mem_zalloc(c->n_rows * N_TOP_COLUMNS, sizeof(*c->texts));
    for (int k = 0; k < N_TOP_COLUMNS; k++)
        buf_add_text(&c->texts[k], columns[k].head);
    for (size_t i = 0; i < f->n_queues; i++)
        cells_fill(&c->texts[(i + 1) * N_TOP_COLUMNS], f, &f->queues[i]);
}

static void cells_deinit(struct cells *c)
{
    for (size_t i = 0; i < c->n_rows * N_TOP_COLUMNS; i++)
        buf_deinit(&c->texts[i]);
    free(c->texts);
}

/* --- columns --- */

struct layout {
    int widths[N_TOP_COLUMNS]; /* 0: left out */
};

static int width_of(const struct cells *c, int column)
{
    size_t widest = 0;

    for (size_t row = 0; row < c->n_rows; row++) {
        size_t n = n_chars(buf_text(&c->texts[row * N_TOP_COLUMNS + (size_t)column]));

        widest = n > widest ? n : widest;
    }
    return (int)widest;
}

/* Takes as many columns as fit, by rank; the first two always, with names cut if needed. */
static void layout_make(struct layout *l, const struct cells *c, int width)
{
    int taken = 0;

    memset(l, 0, sizeof(*l));
    for (int rank = 0; rank < N_TOP_COLUMNS; rank++) {
        for (int k = 0; k < N_TOP_COLUMNS; k++) {
            int w = columns[k].rank == rank ? width_of(c, k) : 0;

            if (!w || (width && rank > 1 && taken + w + 2 > width))
                continue;
            l->widths[k] = w;
            taken += w + 2;
        }
    }
    int state = l->widths[COLUMN_STATE];

    if (!width || taken - 2 <= width)
        return;
    if (state + 2 + FEWEST_CHARS > width)
        l->widths[COLUMN_STATE] = 0;
    l->widths[COLUMN_QUEUE] = l->widths[COLUMN_STATE] ? width - state - 2 : width;
}

/* --- lines --- */

struct lines {
    struct buf *out;
    const struct top_screen *screen;
    int n, n_most; /* 0: unlimited */
    size_t start;
};

static bool line_begin(struct lines *l)
{
    if (l->n_most && l->n >= l->n_most)
        return false;
    l->n++;
    l->start = l->out->len;
    return true;
}

static void line_end(struct lines *l)
{
    while (l->out->len > l->start && l->out->data[l->out->len - 1] == ' ')
        l->out->len--;
    buf_add_char(l->out, '\n');
}

/* Adds a line of plain text, cut at the screen's width. */
static void line_add(struct lines *l, const char *style, const char *text)
{
    bool styled = l->screen->colour && style;

    if (!line_begin(l))
        return;
    if (styled)
        buf_printf(l->out, "\x1b[%sm", style);
    size_t from = l->out->len;
    buf_add_text(l->out, text);
    if (l->screen->width)
        cut_chars(l->out, from, (size_t)l->screen->width);
    if (styled)
        buf_add_text(l->out, "\x1b[0m");
    line_end(l);
}

static const char *style_of(const struct fleet_queue *q)
{
    static const char *const bad[] = {"disconnected", "no_queue", "stuck"};

    if (!strcmp(q->state, "consuming"))
        return GREEN;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (!strcmp(q->state, bad[i]))
            return RED;
    return YELLOW;
}

static void row_add(struct lines *l, const struct layout *layout, struct buf *row, const char *style)
{
    bool colour = l->screen->colour, first = true;

    if (!line_begin(l))
        return;
    for (int k = 0; k < N_TOP_COLUMNS; k++) {
        bool styled = colour && (k == COLUMN_STATE || !strcmp(style, BOLD));

        if (!layout->widths[k])
            continue;
        cut_chars(&row[k], 0, (size_t)layout->widths[k]);
        const char *text = buf_text(&row[k]);
        int pad = layout->widths[k] - (int)n_chars(text);

        buf_add_text(l->out, first ? "" : "  ");
        first = false;
        if (columns[k].right)
            buf_printf(l->out, "%*s", pad, "");
        if (styled)
            buf_printf(l->out, "\x1b[%sm", style);
        buf_add_text(l->out, text);
        if (styled)
            buf_add_text(l->out, "\x1b[0m");
        if (!columns[k].right)
            buf_printf(l->out, "%*s", pad, "");
    }
    line_end(l);
}

/* Adds the reason of a pause, below the queue's line. */
static void pause_add(struct lines *l, const struct fleet_queue *q)
{
    struct buf text = {0};

    if (!*q->reason)
        return;
    buf_add_text(&text, "  └ ");
    text_add_safe(&text, slice_of(q->reason));
    buf_add_text(&text, " for ");
    text_add_age(&text, q->paused_for_ms);
    buf_add_text(&text, *q->detail ? ": " : "");
    text_add_safe(&text, slice_of(q->detail));
    line_add(l, YELLOW, buf_text(&text));
    buf_deinit(&text);
}

static void limit_reason_add(struct lines *l, const struct fleet_queue *q)
{
    struct buf text = {0};

    if (!*q->limit_reason || *q->reason)
        return;
    buf_printf(&text, "  └ limit %" PRId64 ": ", q->limit);
    text_add_safe(&text, slice_of(q->limit_reason));
    line_add(l, YELLOW, buf_text(&text));
    buf_deinit(&text);
}

static void heading_add(struct lines *l, const struct fleet *f)
{
    const struct top_screen *s = l->screen;
    struct buf text = {0};

    buf_printf(&text, "onceward top%s  %s  %zu replica%s  %s", s->height ? " (q: quit)" : "", s->clock,
               f->n_replicas, f->n_replicas == 1 ? "" : "s", s->where);
    line_add(l, BOLD, buf_text(&text));
    buf_deinit(&text);
}

static double known(double d)
{
    return d > 0 ? d : 0;
}

static void totals_add(struct lines *l, const struct fleet *f)
{
    double in = 0, done = 0, failed = 0, out = 0, held = 0;
    struct buf text = {0};

    for (size_t i = 0; i < f->n_queues; i++) {
        const struct fleet_queue *q = &f->queues[i];

        in += known(q->received_per_s);
        done += known(q->completed_per_s);
        failed += known(q->failed_per_s);
        out += known((double)q->in_flight);
        held += known((double)q->held);
    }
    buf_printf(&text, "in %.1f/s  done %.1f/s  failed %.1f/s  out %.0f  held %.0f", in, done, failed, out,
               held);
    line_add(l, NULL, buf_text(&text));
    buf_deinit(&text);
}

static void fleet_commands_add(struct lines *l, const struct fleet *f)
{
    for (size_t i = 0; i < f->n_commands; i++) {
        struct buf text = {0};

        fleet_add_command(&text, &f->commands[i]);
        line_add(l, YELLOW, buf_text(&text));
        buf_deinit(&text);
    }
}

static void outbox_add(struct lines *l, const struct fleet_outbox *x)
{
    struct buf text = {0};

    if (!x->is_used)
        return;
    fleet_add_outbox(&text, x);
    line_add(l, x->waiting && !*x->holder ? YELLOW : NULL, buf_text(&text));
    buf_deinit(&text);
}

static void queues_add(struct lines *l, const struct fleet *f)
{
    struct cells cells;
    struct layout layout;

    cells_make(&cells, f);
    layout_make(&layout, &cells, l->screen->width);
    row_add(l, &layout, cells.texts, BOLD);
    for (size_t i = 0; i < f->n_queues; i++) {
        size_t left = f->n_queues - i;
        char more[48];

        if (l->n_most && left > 1 && l->n + 1 >= l->n_most) {
            snprintf(more, sizeof(more), "… and %zu more", left);
            line_add(l, NULL, more);
            break;
        }
        row_add(l, &layout, &cells.texts[(i + 1) * N_TOP_COLUMNS], style_of(&f->queues[i]));
        if (!l->n_most || l->n + 1 < l->n_most || left == 1) {
            pause_add(l, &f->queues[i]);
            limit_reason_add(l, &f->queues[i]);
        }
    }
    cells_deinit(&cells);
}

void top_draw(struct buf *out, const struct top_screen *s, const struct fleet *f)
{
    struct lines l = {.out = out, .screen = s, .n_most = s->height};

    heading_add(&l, f);
    if (s->fault)
        line_add(&l, RED, s->fault);
    totals_add(&l, f);
    fleet_commands_add(&l, f);
    outbox_add(&l, &f->outbox);
    line_add(&l, NULL, "");
    if (f->n_queues)
        queues_add(&l, f);
    else
        line_add(&l, NULL, "No replica has been seen for 15 s.");
}
