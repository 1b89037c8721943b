/* Reads one key of a file that may have any other errors. */

#include "config/expand.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/scan.h"
#include "onceward/config/config.h"

#include <stdlib.h>

/* Finds the last member of that name in the root, over the whole file. False: the file is not JSON. */
static bool find_member(struct slice text, struct slice name, struct buf *out, bool *found)
{
    struct scan s = {.at = text.data, .end = text.data + text.len};
    struct slice key, raw;
    int more;

    if (!slice_is_utf8(text) || scan_peek(&s) != SCAN_OBJECT || !scan_open(&s))
        return false;
    for (bool first = true; (more = scan_next_member(&s, first, &key)) == 1; first = false) {
        if (!scan_equal(key, name) || scan_peek(&s) != SCAN_STRING) {
            if (!scan_skip(&s))
                return false;
            continue;
        }
        if (!scan_string(&s, &raw))
            return false;
        buf_reset(out);
        scan_decode(out, raw);
        *found = true;
    }
    return more == 0 && scan_at_end(&s);
}

int config_state_file(const char *path, char **ret, struct fault *f)
{
    struct buf text = {0}, value = {0}, expanded = {0};
    bool found = false;
    int answer = file_read(&text, path, CONFIG_FILE_MAX, f);

    if (!answer && !find_member(buf_slice(&text), SLICE("state_file"), &value, &found))
        answer = fault_set(f, "%.200s is not JSON, so it does not say which state file is meant: use --state",
                           path);
    if (!answer && found)
        answer = text_expand(&expanded, buf_slice(&value), f);
    if (!answer)
        *ret = expanded.len ? mem_copy(expanded.data, expanded.len) : NULL;
    buf_deinit(&text);
    buf_deinit(&value);
    buf_deinit(&expanded);
    return answer;
}
