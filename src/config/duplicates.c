/* Names that stand twice in one object. The JSON library stops at the first one and does not say where it
 * lies; here all are found, with their paths, so that they can be listed with the other faults. */

#include "config/duplicates.h"

#include "config/read.h"
#include "config/report.h"
#include "config/scan.h"
#include "onceward/base/buf.h"
#include "onceward/base/mem.h"

#include <stdlib.h>

struct search {
    struct scan scan;
    const char *start;
    struct config_report *report;
};

struct name {
    struct slice raw;
    const char *at;
};

static size_t line_of(const struct search *w, const char *at)
{
    size_t line = 1;

    for (const char *p = w->start; p < at; p++)
        line += *p == '\n';
    return line;
}

enum { NAMES_MAX = 2000 }; /* in one object; comparing each with each stays short */

static void search_value(struct search *w, const char *path);

static void report_if_known(struct search *w, const char *path, const struct name *names, size_t n,
                            struct slice decoded)
{
    for (size_t i = 0; i < n && n < NAMES_MAX; i++) {
        if (!scan_equal(names[i].raw, decoded))
            continue;
        report_error(w->report, path, "given twice, in lines %zu and %zu", line_of(w, names[i].at),
                     line_of(w, names[n].at));
        return;
    }
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

void duplicates_report(struct config_report *report, struct slice text)
{
    struct search w = {
        .scan = {.at = text.data, .end = text.data + text.len}, .start = text.data, .report = report};

    search_value(&w, "");
}
