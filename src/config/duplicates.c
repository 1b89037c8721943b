/* Names that occur twice in one object. The JSON library stops at the first one without its position; this file finds
 * all of them, with their paths, so that they are listed with the other errors.
 *
 * The library would keep a name's last value, and errors in the earlier ones would be reported only after a correction.
 * So the earlier ones get unique names, by a mark that duplicates_plain removes, and are read like the rest. */

#include "config/duplicates.h"

#include "config/read.h"
#include "config/report.h"
#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/base/scan.h"

#include <stdlib.h>

struct search {
    struct scan scan;
    const char *start;
    struct config_report *report;
    const char **hidden; /* names hidden by a later one: the places behind their quotes */
    size_t n_hidden, cap_hidden;
};

struct name {
    struct slice raw;
    const char *at;
};

static void hide(struct search *w, const char *at)
{
    if (w->n_hidden == w->cap_hidden) {
        w->cap_hidden = w->cap_hidden ? w->cap_hidden * 2 : 16;
        w->hidden = mem_realloc(w->hidden, w->cap_hidden * sizeof(*w->hidden));
    }
    w->hidden[w->n_hidden++] = at;
}

static size_t line_of(const struct search *w, const char *at)
{
    size_t line = 1;

    for (const char *p = w->start; p < at; p++)
        line += *p == '\n';
    return line;
}

enum { NAMES_MAX = 2000 }; /* per object, since each is compared with each */

static void search_value(struct search *w, const char *path);

static void report_if_known(struct search *w, const char *path, const struct name *names, size_t n,
                            struct slice decoded)
{
    const struct name *first = NULL, *last = NULL;

    for (size_t i = 0; i < n && n < NAMES_MAX; i++) {
        if (!scan_equal(names[i].raw, decoded))
            continue;
        first = first ? first : &names[i];
        last = &names[i];
    }
    if (!first)
        return;
    report_error(w->report, path, "given twice, in lines %zu and %zu", line_of(w, first->at),
                 line_of(w, names[n].at));
    hide(w, last->at); /* the earlier ones are hidden already */
}

static void search_object(struct search *w, const char *path)
{
    struct name *names = NULL;
    struct buf below = {0}, decoded = {0};
    struct slice key;
    size_t n = 0, cap = 0;

    if (!scan_open(&w->scan))
        return;
    for (bool first = true; scan_next_member(&w->scan, first, &key) == 1; first = false) {
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            names = mem_realloc(names, cap * sizeof(*names));
        }
        names[n] = (struct name){key, key.data};
        buf_reset(&decoded);
        scan_decode(&decoded, key);
        buf_reset(&below);
        buf_add_text(&below, path);
        path_add(&below, buf_text(&decoded));
        report_if_known(w, buf_text(&below), names, n, buf_slice(&decoded));
        n++;
        search_value(w, buf_text(&below));
    }
    free(names);
    buf_deinit(&below);
    buf_deinit(&decoded);
}

static void search_array(struct search *w, const char *path)
{
    struct buf below = {0};

    if (!scan_open(&w->scan))
        return;
    for (size_t i = 0; scan_next_item(&w->scan, i == 0) == 1; i++) {
        buf_reset(&below);
        buf_printf(&below, "%s[%zu]", path, i);
        search_value(w, buf_text(&below));
    }
    buf_deinit(&below);
}

static void search_value(struct search *w, const char *path)
{
    switch (scan_peek(&w->scan)) {
    case SCAN_OBJECT:
        search_object(w, path);
        return;
    case SCAN_ARRAY:
        search_array(w, path);
        return;
    default:
        scan_skip(&w->scan);
    }
}

static int compare(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;

    return x < y ? -1 : x > y;
}

void duplicates_report(struct config_report *report, struct slice text, struct buf *marked)
{
    struct search w = {
        .scan = {.at = text.data, .end = text.data + text.len}, .start = text.data, .report = report};
    const char *at = text.data;

    search_value(&w, "");
    if (w.n_hidden)
        qsort(w.hidden, w.n_hidden, sizeof(*w.hidden), compare);
    for (size_t i = 0; i < w.n_hidden; i++) {
        buf_add(marked, at, (size_t)(w.hidden[i] - at));
        buf_printf(marked, "\\u0001%zu\\u0001", i);
        at = w.hidden[i];
    }
    buf_add(marked, at, (size_t)(text.data + text.len - at));
    free(w.hidden);
}

const char *duplicates_plain(const char *name)
{
    const char *end = name + 1;

    if (*name != '\x01')
        return name;
    while (*end >= '0' && *end <= '9')
        end++;
    return *end == '\x01' ? end + 1 : name;
}
