#pragma once

#include "onceward/base/buf.h"

/* Members of a JSON object, behind others. */

/* ,"KEY":"VALUE"; NULL: null. */
void json_add_text(struct buf *out, const char *key, const char *value);

/* ,"body":"TEXT"; what is no text is ,"body_base64url". */
void json_add_body(struct buf *out, struct slice body);
