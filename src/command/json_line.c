/* JSON output of the commands. */

#include "command/json_line.h"

void json_add_text(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, ",\"%s\":", key);
    if (value)
        buf_add_json(out, slice_of(value));
    else
        buf_add_text(out, "null");
}

void json_add_body(struct buf *out, struct slice body)
{
    if (slice_is_text(body)) {
        buf_add_text(out, ",\"body\":");
        buf_add_json(out, body);
    } else {
        buf_add_text(out, ",\"body_base64url\":\"");
        buf_add_base64url(out, body.data, body.len);
        buf_add_char(out, '"');
    }
}
