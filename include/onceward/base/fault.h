#pragma once

#include <stdbool.h>

/* An error for a person: what was attempted, on what, and what the other side answered. A function that fills a fault
 * does not log it. The caller that decides what happens next logs, once.
 *
 * Results everywhere: 0 is success; a negative value is a failure described by the fault (passed up); a positive
 * value is a named result that the caller must handle. Outputs are untouched on failure. */
struct fault {
    char text[768];
    char code[8]; /* SQLSTATE or AMQP reply code; may be empty */
};

/* Sets the text, cut to fit; control characters become spaces. Always returns -1, for `return
 * fault_set(...)`. */
int fault_set(struct fault *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "<context>: " before the text. Returns -1. */
int fault_wrap(struct fault *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline bool fault_is_set(const struct fault *f)
{
    return f->text[0] != '\0';
}
