#include "onceward/base/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Replaces control characters: peers put line ends into their messages, but a fault is one line. */
static void flatten(char *text)
{
    size_t len = strlen(text);

    while (len && (unsigned char)text[len - 1] <= ' ')
        text[--len] = '\0';
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

int fault_set(struct fault *f, const char *format, ...)
{
    char text[sizeof(f->text)]; /* the arguments may point into f itself */
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    memcpy(f->text, text, sizeof(text));
    f->code[0] = '\0';
    flatten(f->text);
    return -1;
}

int fault_wrap(struct fault *f, const char *format, ...)
{
    char text[2 * sizeof(f->text) + 4];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(f->text), format, args);
    va_end(args);
    size_t len = strlen(text);
    snprintf(text + len, sizeof(text) - len, ": %s", f->text);
    text[sizeof(f->text) - 1] = '\0';
    memcpy(f->text, text, sizeof(f->text));
    flatten(f->text);
    return -1;
}
