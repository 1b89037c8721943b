/* A log line is JSON of at most LOG_LINE_MAX bytes for any values, and contains nothing that acts on a
 * terminal. Of a stored error it contains only the beginning, without the application's own text. */

#include "fuzz.h"
#include "onceward/base/log.h"
#include "onceward/base/texts.h"
#include "onceward/core/outcome.h"

#include <jansson.h>
#include <string.h>

static void must_be_harmless(const char *line, size_t len)
{
    struct slice s = {line, len - 1}; /* without its line end */

    MUST(len && line[len - 1] == '\n');
    for (size_t i = 0, step; i < s.len; i += step) {
        step = slice_utf8_step(s, i);
        MUST(step);
        MUST(!code_point_acts(slice_code_point(s, i, step)));
    }
}

/* The characters are equal unless one was replaced or cut. */
static void must_tell(json_t *root, struct slice value)
{
    json_t *told = json_object_get(root, "value");

    if (!told || value.len > 512 || !slice_is_text(value))
        return;
    MUST(json_string_length(told) == value.len && !memcmp(json_string_value(told), value.data, value.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice value = {(const char *)data, size};
    char *text = NULL, *copy = strndup(value.data, value.len);
    struct texts list = {0};
    struct log_line l;
    json_error_t e;
    size_t len, brief = outcome_brief(value.data, value.len);
    FILE *f = open_memstream(&text, &len);

    MUST(brief <= value.len && (brief == value.len || value.data[brief] == ':'));
    MUST(outcome_brief(value.data, brief) == brief);
    for (size_t i = 0; i < size % 8; i++)
        texts_add(&list, copy);
    log_begin(&l, EVENT_DUPLICATE, copy);
    log_slice(&l, "value", value);
    log_texts(&l, "list", &list);
    for (size_t i = 0; i < size % 16; i++)
        log_slice(&l, "again", value);
    log_print(&l, f);
    fclose(f);
    MUST(len <= LOG_LINE_MAX);
    must_be_harmless(text, len);
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, &e);
    MUST(root);
    must_tell(root, value);
    json_decref(root);
    texts_deinit(&list);
    free(text);
    free(copy);
    return 0;
}
