/* Shared by the readers of values: names and kinds in messages, and strings. */

#include "config/read.h"

#include "config/duplicates.h"
#include "config/expand.h"
#include "config/read_lists.h"
#include "config/report.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"

#include <stdlib.h>
#include <string.h>

const char *kind_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a number";
    case JSON_REAL:
        if (json_real_value(value) == strtod(NUMBER_TOO_LARGE, NULL))
            return "a number too large";
        return "a number with a fraction or an exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    default:
        return "null";
    }
}

bool is_variable(const char *raw)
{
    return strstr(raw, "${");
}

int read_string(struct reading *r, const char *path, json_t *value, struct buf *out)
{
    struct slice raw = {json_string_value(value), json_string_length(value)};
    struct fault f = {0};

    if (memchr(raw.data, '\0', raw.len)) {
        report_error(r->report, path, "expected a string without NUL");
        return -1;
    }
    if (text_expand(out, raw, &f) < 0) {
        report_error(r->report, path, "%s", f.text);
        return -1;
    }
    return 0;
}

void report_unread(struct reading *r, const char *path, json_t *value, const char *file,
                   const struct fault *f)
{
    const char *raw = json_string_value(value);
    size_t len = strlen(file) < FAULT_PATH_MAX ? strlen(file) : FAULT_PATH_MAX;
    char shown[FAULT_PATH_MAX + 1];

    snprintf(shown, sizeof(shown), "%.*s", (int)len, file);
    const char *at = strstr(f->text, shown);
    if (!is_variable(raw))
        report_error(r->report, path, "%s", f->text);
    else if (at)
        report_error(r->report, path, "%.*s%s%s", (int)(at - f->text), f->text, raw, at + len);
    else
        report_error(r->report, path, "%s cannot be read", raw);
}

const char *plain_name(const struct reading *r, const char *name)
{
    return r->is_marked ? duplicates_plain(name) : name;
}
