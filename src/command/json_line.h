#pragma once

#include "onceward/base/buf.h"

/* Adds members to a JSON object that has some already. */

/* Adds ,"KEY":"VALUE"; NULL: null. */
void json_add_text(struct buf *out, const char *key, const char *value);

/* Adds ,"body":"TEXT"; for other bytes ,"body_base64url". */
void json_add_body(struct buf *out, struct slice body);
