/* check: prints one line per finding. */

#include "command/check.h"

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stdio.h>

static const char *const results[] = {"ok", "warn", "fail", "hint"};

void check_tell_json(enum finding kind, const char *where, const char *path, const char *text)
{
    struct buf line = {0};

    buf_printf(&line, "{\"result\":\"%s\",\"where\":", results[kind]);
    buf_add_json(&line, slice_of(where));
    if (path) {
        buf_add_text(&line, ",\"path\":");
        buf_add_json(&line, slice_of(path));
    }
    buf_add_text(&line, ",\"text\":");
    buf_add_json(&line, slice_of(text));
    printf("%s}\n", buf_text(&line));
    buf_deinit(&line);
}

void check_tell(void *ctx, enum finding kind, const char *text)
{
    static const char *const marks[] = {"ok  ", "warn", "FAIL", "hint"};
    struct findings *s = ctx;

    if (s->json)
        check_tell_json(kind, s->where, NULL, text);
    else
        printf("%s %s: %s\n", marks[kind], s->where, text);
    fflush(stdout); /* the next server may take a while */
    s->n_failed += kind == FINDING_FAILED;
    s->n_warnings += kind == FINDING_WARNING;
}
