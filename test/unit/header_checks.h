#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/headers.h"

#include <stdbool.h>
#include <stddef.h>

/* Properties of every block of request headers. For the unit test and the fuzzer. */

static inline bool header_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

/* Is the field mandatory, or the count of dropped fields? */
static inline bool header_is_mandatory(const char *line)
{
    return strncmp(line, "Idempotency-Key:", 16) == 0 || strncmp(line, "Onceward-", 9) == 0 ||
           strncmp(line, "Content-", 8) == 0;
}

/* Returns NULL, or the fault. */
static inline const char *header_block_fault(const struct header_block *b)
{
    size_t lines = 0, optional = 0, optional_bytes = 0;

    for (size_t at = 0; at < b->text.len;) {
        const char *line = b->text.data + at;
        const char *end = memchr(line, '\0', b->text.len - at);
        size_t i = 0;

        if (!end)
            return "the last line has no end";
        size_t len = (size_t)(end - line);
        while (header_name_byte(line[i]))
            i++;
        if (i == 0 || strncmp(line + i, ": ", 2) != 0 || len <= i + 2)
            return "not of the form \"Name: value\"";
        for (i += 2; i < len; i++)
            if (line[i] != '\t' && (line[i] < ' ' || line[i] > '~'))
                return "a value holds what it must not";
        if (line[len - 1] == ' ' || line[len - 1] == '\t')
            return "a value ends in a blank";
        if (!header_is_mandatory(line)) {
            optional++;
            optional_bytes += len + 2;
        }
        lines++;
        at += len + 1;
    }
    if (lines != b->n)
        return "n is not the number of lines";
    if (optional > OPTIONAL_HEADERS_MAX)
        return "too many optional fields";
    if (optional_bytes > OPTIONAL_BYTES_MAX)
        return "too many bytes of optional fields";
    return NULL;
}
