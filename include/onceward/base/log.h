#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The log: one JSON object per line on standard output, at most LOG_LINE_MAX bytes. events.def has the events. Each
 * line has ts, level, event, message and queue before the event's own fields. The message is made from those fields
 * by the event's template.
 *
 * Any thread may log. The caller builds a line on its stack and passes it to one writer thread through a bounded
 * queue, so that a blocked standard output never blocks the caller. Each class of events has its own room in that
 * queue; lines that do not fit are dropped and counted (log_dropped). */

struct texts;

enum { LOG_LINE_MAX = 8192 };

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR, N_LOG_LEVELS };

/* The naming scheme of a line's fields. TEXT is not JSON but plain text for a terminal. */
enum log_format { LOG_ONCEWARD, LOG_ECS, LOG_GCP, LOG_TEXT, N_LOG_FORMATS };

enum event {
#define EVENT(id, name, level, class, message, sentence, advice) EVENT_##id,
#include "onceward/base/events.def"
#undef EVENT
    N_EVENTS
};

enum event_class { CLASS_FLOW, CLASS_LIFE, CLASS_FIGURES, N_EVENT_CLASSES };

struct event_info {
    const char *name;     /* as in the log */
    enum log_level level; /* the usual level */
    enum event_class class;
    const char *message;  /* template of the line's message: see events.def */
    const char *sentence; /* the general explanation */
    const char *advice;   /* the operator's remedy, with the command to type */
};

/* Row of an event in the table. */
const struct event_info *event_info(enum event e);

/* "debug", "info", "warning", "error". */
const char *log_level_name(enum log_level level);

/* Starts the writer thread. fd: where lines go (standard output). Lines logged before are kept. */
void log_start(int fd);

/* Writes the queued lines, for at most timeout_ms, and ends the thread. */
void log_stop(int timeout_ms);

/* Lines below this level are discarded. */
void log_set_level(enum log_level level);

/* The format of lines from now on, also for log_print; LOG_ONCEWARD until then. */
void log_set_format(enum log_format format);

/* Number of lines dropped since the start. */
uint64_t log_dropped(void);

enum { LOG_MESSAGE_FIELDS = 6 }; /* fields that a message may name */

/* Number of lines of an event at a level that went to the writer since the start. */
uint64_t log_lines(enum event e, enum log_level level);

/* A line under construction, on the caller's stack. log_begin starts it, log_end passes it on. Keys are literals, in
 * snake_case. */
struct log_line {
    enum event event;
    enum log_level level;
    enum log_format format;
    bool off;
    size_t len, message_at; /* message_at: where log_end inserts the message */
    struct {
        uint16_t at, len;
    } fields[LOG_MESSAGE_FIELDS]; /* values that the message names, as written */
    char data[LOG_LINE_MAX];
};

/* queue: NULL for a line that is not about one queue. */
void log_begin(struct log_line *l, enum event e, const char *queue);
void log_begin_at(struct log_line *l, enum event e, enum log_level level, const char *queue);
void log_slice(struct log_line *l, const char *key, struct slice value); /* cut at 1 KiB; malformed: U+FFFD */
void log_text(struct log_line *l, const char *key, const char *value);   /* NULL: null */
void log_int(struct log_line *l, const char *key, int64_t value);
void log_double(struct log_line *l, const char *key, double value);
void log_bool(struct log_line *l, const char *key, bool value);
void log_null(struct log_line *l, const char *key);
void log_texts(struct log_line *l, const char *key,
               const struct texts *value); /* a list, cut at 1 KiB; the last element marks a cut */
void log_end(struct log_line *l);

/* Writes the line to a stream at once, in place of log_end, for a command whose output is such lines. */
void log_print(struct log_line *l, FILE *out);
