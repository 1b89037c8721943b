/* Errors and warnings of a configuration. */

#include "config/report.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/base/slice.h"
#include "onceward/config/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINDINGS_MAX = 200 }; /* keeps the output readable and the search for repetitions short */

static void __attribute__((format(printf, 4, 0)))
add(struct config_report *r, bool warning, const char *path, const char *format, va_list args)
{
    char *text = NULL;

    if (r->n >= FINDINGS_MAX) {
        r->n_errors += !warning;
        return;
    }
    if (r->n == FINDINGS_MAX - 1) {
        path = "";
        format = "there is more; correct these first";
    }
    int len = vasprintf(&text, format, args);

    if (len < 0)
        text = mem_copy("out of memory", 13);
    for (size_t i = 0; i < r->n; i++) {
        if (!strcmp(r->findings[i].path, path) && !strcmp(r->findings[i].text, text)) {
            free(text);
            return;
        }
    }
    r->findings = mem_realloc(r->findings, (r->n + 1) * sizeof(*r->findings));
    r->findings[r->n++] = (struct config_finding){mem_copy(path, strlen(path)), text, warning, false};
    r->n_errors += !warning;
}

void report_error(struct config_report *r, const char *path, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add(r, false, path, format, args);
    va_end(args);
}

void report_warning(struct config_report *r, const char *path, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add(r, true, path, format, args);
    va_end(args);
}

void report_fails_check(struct config_report *r)
{
    if (r->n > 0)
        r->findings[r->n - 1].fails_check = r->findings[r->n - 1].warning;
}

void config_report_deinit(struct config_report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->findings[i].path);
        free(r->findings[i].text);
    }
    free(r->findings);
    *r = (struct config_report){0};
}

void path_add(struct buf *out, const char *name)
{
    enum { SHOWN_MAX = 80 };
    struct slice s = slice_of(name);

    if (out->len)
        buf_add_char(out, '.');
    if (s.len && s.len <= SHOWN_MAX &&
        !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.$")]) {
        buf_add_text(out, name);
        return;
    }
    if (s.len > SHOWN_MAX)
        for (s.len = SHOWN_MAX; s.len && ((unsigned char)s.data[s.len] & 0xC0) == 0x80;)
            s.len--;
    buf_add_json(out, s);
}
