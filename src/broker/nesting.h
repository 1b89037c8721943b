#pragma once

#include <stddef.h>

/* Makes byte strings of the arrays and tables in a content header's payload that are nested deeper than any
 * sender means. Newer libraries refuse 100 levels and with them the connection, for ever, as the message
 * comes again; older ones recurse to any depth. Their length comes first either way, so it takes one byte. */
void nesting_cut(char *payload, size_t len);
