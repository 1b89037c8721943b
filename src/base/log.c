/* The log. Callers build lines on their stacks and queue each as one block for a single writer thread.
 *
 * Bounds: each class of lines has room for a fixed number of bytes in the queue; lines that do not fit are dropped and
 * counted. The lock is held for pointer work only, never during a write. */
#include "onceward/base/log.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/texts.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    VALUE_MAX = 1024,
    MESSAGE_MAX = 640,       /* escapes included */
    MESSAGE_VALUE_MAX = 240, /* per value in the message; the field has more of it */
    TAIL_ROOM = MESSAGE_MAX + 48,
};

static const size_t room[N_EVENT_CLASSES] = {
    [CLASS_FLOW] = 256 << 10,
    [CLASS_LIFE] = 256 << 10,
    [CLASS_FIGURES] = 64 << 10,
};

struct queued {
    struct queued *next;
    size_t len;
    enum event_class class;
    char data[];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    struct queued *first, **end;
    size_t n_bytes[N_EVENT_CLASSES];
    bool running, stopping, torn; /* torn: the last byte written is not the end of a line */
    int64_t stop_at_ms;
    int fd;
    atomic_int level, format;
    _Atomic uint64_t dropped, lines[N_EVENTS][N_LOG_LEVELS];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .level = LOG_INFO, .fd = -1};

/* Fields that log collectors expect under other names. In ECS `error` and `trace` are objects: Elasticsearch
 * refuses a line with a text in their place. */
static const struct {
    const char *name, *as[N_LOG_FORMATS]; /* NULL: unchanged */
} renamed[] = {
    {"ts", {[LOG_ECS] = "@timestamp", [LOG_GCP] = "time"}},
    {"level", {[LOG_ECS] = "log.level", [LOG_GCP] = "severity"}},
    {"event", {[LOG_ECS] = "event.action"}},
    {"error", {[LOG_ECS] = "error.message"}},
    {"trace_id", {[LOG_ECS] = "trace.id"}},
};

static const char *const severities[N_LOG_LEVELS] = {"DEBUG", "INFO", "WARNING", "ERROR"};

void log_set_level(enum log_level level)
{
    atomic_store(&state.level, (int)level);
}

void log_set_format(enum log_format format)
{
    atomic_store(&state.format, (int)format);
}

static const char *name_of(const char *key, enum log_format format)
{
    for (size_t i = 0; i < sizeof(renamed) / sizeof(*renamed); i++)
        if (renamed[i].as[format] && !strcmp(renamed[i].name, key))
            return renamed[i].as[format];
    return key;
}

uint64_t log_dropped(void)
{
    return atomic_load(&state.dropped);
}

uint64_t log_lines(enum event e, enum log_level level)
{
    return atomic_load(&state.lines[e][level]);
}

/* Appends bytes while there is room. TAIL_ROOM is reserved for the end of the line. */
static void line_add(struct log_line *l, const char *data, size_t len)
{
    size_t left = LOG_LINE_MAX - TAIL_ROOM - l->len;

    if (len > left)
        len = left;
    memcpy(l->data + l->len, data, len);
    l->len += len;
}

/* Is there room for a value of that many bytes with key, quotes and comma? Otherwise the field is left out. */
static bool line_has_room(const struct log_line *l, size_t need)
{
    return l->len + need + TAIL_ROOM + 8 < LOG_LINE_MAX;
}

static bool line_key(struct log_line *l, const char *key, size_t value_need)
{
    const char *name = l->format == LOG_ONCEWARD ? key : name_of(key, l->format);
    size_t len = strlen(name);

    if (l->off || !line_has_room(l, len + 4 + value_need))
        return false;
    if (l->format == LOG_TEXT) {
        line_add(l, " ", 1);
        line_add(l, name, len);
        line_add(l, "=", 1);
        return true;
    }
    if (l->len > 1)
        line_add(l, ",", 1);
    line_add(l, "\"", 1);
    line_add(l, name, len);
    line_add(l, "\":", 2);
    return true;
}

/* Adds a string. Characters that act on a terminal are written as escapes, since operators read the log there. */
static void line_string(struct log_line *l, struct slice s)
{
    char escaped[8];

    line_add(l, "\"", 1);
    for (size_t i = 0, step; i < s.len; i += step) {
        uint8_t c = (uint8_t)s.data[i];

        if (!line_has_room(l, 8))
            break;
        step = slice_utf8_step(s, i);
        if (!step) {
            line_add(l, "\xEF\xBF\xBD", 3);
            step = 1;
        } else if (c == '"' || c == '\\') {
            escaped[0] = '\\';
            escaped[1] = (char)c;
            line_add(l, escaped, 2);
        } else if (code_point_acts(slice_code_point(s, i, step))) {
            uint16_t point = (uint16_t)slice_code_point(s, i, step);

            line_add(l, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", point));
        } else {
            line_add(l, s.data + i, step);
        }
    }
    line_add(l, "\"", 1);
}

static bool is_plain(struct slice s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] <= ' ' || s.data[i] > '~' || strchr("\"\\=[]", s.data[i]))
            return false;
    return s.len > 0;
}

/* Adds a value. In LOG_TEXT, quotes are written only around values that would be misread without them. */
static void line_value(struct log_line *l, struct slice s)
{
    if (l->format == LOG_TEXT && is_plain(s) && line_has_room(l, s.len))
        line_add(l, s.data, s.len);
    else
        line_string(l, s);
}

/* --- the message --- */

/* A piece of an event's template: text, then a field. An optional piece, in brackets, also has text after the
 * field. */
struct message_part {
    struct slice before, key, after;
    bool optional;
};

static struct slice until(const char **at, const char *stops)
{
    size_t n = strcspn(*at, stops);
    struct slice s = {*at, n};

    *at += n;
    return s;
}

/* False at the template's end. */
static bool message_next(const char **at, struct message_part *ret)
{
    *ret = (struct message_part){0};
    if (!**at)
        return false;
    if (**at == '[') {
        ret->optional = true;
        ++*at;
    }
    ret->before = until(at, ret->optional ? "{]" : "{[");
    if (**at == '{') {
        ++*at;
        ret->key = until(at, "}");
        *at += **at == '}';
    }
    if (ret->optional) {
        ret->after = until(at, "]");
        *at += **at == ']';
    }
    return true;
}

/* Records the place of a value that the message names, without its quotes. */
static void message_keep(struct log_line *l, const char *key, size_t start)
{
    const char *template = event_info(l->event)->message;
    struct message_part part;
    size_t at = start, end = l->len;

    for (size_t i = 0; message_next(&template, &part);) {
        if (!part.key.len)
            continue;
        if (slice_equal(part.key, slice_of(key)) && i < LOG_MESSAGE_FIELDS) {
            if (end > at + 1 && l->data[at] == '"') {
                at++;
                end--;
            }
            l->fields[i].at = (uint16_t)at;
            l->fields[i].len = (uint16_t)(end - at);
            return;
        }
        i++;
    }
}

/* Number of bytes that fit without cutting an escape or a character. */
static size_t message_value_len(const char *data, size_t len, size_t most)
{
    size_t n = 0;

    if (len <= most)
        return len;
    for (size_t step; n < most; n += step) {
        step = data[n] != '\\' ? slice_utf8_step((struct slice){data, len}, n) : data[n + 1] == 'u' ? 6 : 2;
        if (!step || n + step > most)
            break;
    }
    return n;
}

static void message_add(char message[MESSAGE_MAX], size_t *len, struct slice s)
{
    struct slice more = slice_of("\xE2\x80\xA6"); /* an ellipsis */
    size_t left = MESSAGE_MAX - *len;

    if (!s.len || left <= more.len)
        return;
    left -= more.len;
    size_t n = message_value_len(s.data, s.len, left < MESSAGE_VALUE_MAX ? left : MESSAGE_VALUE_MAX);

    memcpy(message + *len, s.data, n);
    *len += n;
    if (n == s.len)
        return;
    memcpy(message + *len, more.data, more.len);
    *len += more.len;
}

static size_t message_make(const struct log_line *l, char message[MESSAGE_MAX])
{
    const char *template = event_info(l->event)->message;
    struct message_part part;
    size_t len = 0;

    for (size_t i = 0; message_next(&template, &part);) {
        struct slice value = {0};

        if (part.key.len && i < LOG_MESSAGE_FIELDS)
            value = (struct slice){l->data + l->fields[i].at, l->fields[i].len};
        i += part.key.len > 0;
        if (part.optional && !value.len)
            continue;
        message_add(message, &len, part.before);
        message_add(message, &len, value);
        message_add(message, &len, part.after);
    }
    return len;
}

/* Inserts the message. This comes last, because the message is made from the fields. */
static void message_insert(struct log_line *l)
{
    char message[MESSAGE_MAX], text[MESSAGE_MAX + 24];
    size_t len = message_make(l, message);
    const char *head = l->format == LOG_TEXT ? "" : ",\"message\":\"",
               *tail = l->format == LOG_TEXT ? "" : "\"";
    int n = snprintf(text, sizeof(text), "%s%.*s%s", head, (int)len, message, tail);

    memmove(l->data + l->message_at + n, l->data + l->message_at, l->len - l->message_at);
    memcpy(l->data + l->message_at, text, (size_t)n);
    l->len += (size_t)n;
}

enum { TIME_MAX = 48 };

static void time_now(char text[TIME_MAX])
{
    int64_t now = clock_wall_ms();
    time_t seconds = (time_t)(now / 1000);
    struct tm tm;

    gmtime_r(&seconds, &tm);
    size_t n = strftime(text, TIME_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, TIME_MAX - n, ".%03dZ", (int)(now % 1000));
}

/* Begins "TIME LEVEL QUEUE MESSAGE event=NAME". */
static void begin_text(struct log_line *l, enum log_level level, const char *queue)
{
    char time[TIME_MAX], head[TIME_MAX + 16];

    time_now(time);
    snprintf(head, sizeof(head), "%s %-7s ", time, log_level_name(level));
    line_add(l, head, strlen(head));
    if (queue) {
        line_value(l, slice_of(queue));
        line_add(l, " ", 1);
    }
    l->message_at = l->len;
    log_text(l, "event", event_info(l->event)->name);
}

static void begin_json(struct log_line *l, enum log_level level, const char *queue)
{
    char ts[TIME_MAX];

    time_now(ts);
    line_add(l, "{", 1);
    log_text(l, "ts", ts);
    log_text(l, "level", l->format == LOG_GCP ? severities[level] : log_level_name(level));
    log_text(l, "event", event_info(l->event)->name);
    l->message_at = l->len;
    log_text(l, "queue", queue);
}

void log_begin_at(struct log_line *l, enum event e, enum log_level level, const char *queue)
{
    l->event = e;
    l->level = level;
    l->len = 0;
    memset(l->fields, 0, sizeof(l->fields));
    l->format = (enum log_format)atomic_load(&state.format);
    l->off = (int)level < atomic_load(&state.level);
    if (l->off)
        return;
    if (l->format == LOG_TEXT)
        begin_text(l, level, queue);
    else
        begin_json(l, level, queue);
}

void log_begin(struct log_line *l, enum event e, const char *queue)
{
    log_begin_at(l, e, event_info(e)->level, queue);
}

void log_slice(struct log_line *l, const char *key, struct slice value)
{
    size_t len = value.len < VALUE_MAX ? value.len : VALUE_MAX;

    /* Cut only at a character boundary: half a character would read as U+FFFD. */
    while (len < value.len && len && ((uint8_t)value.data[len] & 0xC0) == 0x80)
        len--;
    if (!line_key(l, key, 16))
        return;
    size_t at = l->len;
    line_value(l, (struct slice){value.data, len});
    message_keep(l, key, at);
}

void log_text(struct log_line *l, const char *key, const char *value)
{
    if (value)
        log_slice(l, key, slice_of(value));
    else
        log_null(l, key);
}

static void line_raw(struct log_line *l, const char *key, const char *text)
{
    if (!line_key(l, key, 32))
        return;
    size_t at = l->len;
    line_add(l, text, strlen(text));
    message_keep(l, key, at);
}

void log_int(struct log_line *l, const char *key, int64_t value)
{
    char text[32];

    snprintf(text, sizeof(text), "%lld", (long long)value);
    line_raw(l, key, text);
}

void log_double(struct log_line *l, const char *key, double value)
{
    char text[32];

    if (!isfinite(value)) {
        log_null(l, key);
        return;
    }
    snprintf(text, sizeof(text), "%.3f", value);
    line_raw(l, key, text);
}

void log_bool(struct log_line *l, const char *key, bool value)
{
    line_raw(l, key, value ? "true" : "false");
}

void log_null(struct log_line *l, const char *key)
{
    if (line_key(l, key, 32))
        line_add(l, "null", 4);
}

void log_texts(struct log_line *l, const char *key, const struct texts *value)
{
    char rest[48];
    size_t start;

    if (!line_key(l, key, VALUE_MAX + sizeof(rest)))
        return;
    line_add(l, "[", 1);
    start = l->len;
    for (size_t i = 0; i < value->n; i++) {
        size_t before = l->len;

        if (i)
            line_add(l, ",", 1);
        line_string(l, slice_of(value->items[i]));
        if (l->len - start <= VALUE_MAX)
            continue;
        l->len = before;
        snprintf(rest, sizeof(rest), "%s\"and %zu more\"", i ? "," : "", value->n - i);
        line_add(l, rest, strlen(rest));
        break;
    }
    line_add(l, "]", 1);
}

/* Ends the line, with the room that TAIL_ROOM has reserved. */
static void line_close(struct log_line *l)
{
    message_insert(l);
    if (l->format != LOG_TEXT)
        l->data[l->len++] = '}';
    l->data[l->len++] = '\n';
}

void log_end(struct log_line *l)
{
    enum event_class class = event_info(l->event)->class;

    if (l->off)
        return;
    line_close(l);

    struct queued *q = malloc(sizeof(*q) + l->len);
    if (!q) {
        atomic_fetch_add(&state.dropped, 1);
        return;
    }
    q->next = NULL;
    q->len = l->len;
    q->class = class;
    memcpy(q->data, l->data, l->len);

    pthread_mutex_lock(&state.lock);
    if (state.n_bytes[class] + q->len > room[class]) {
        pthread_mutex_unlock(&state.lock);
        atomic_fetch_add(&state.dropped, 1);
        free(q);
        return;
    }
    state.n_bytes[class] += q->len;
    if (!state.end)
        state.end = &state.first;
    *state.end = q;
    state.end = &q->next;
    pthread_cond_signal(&state.wake);
    pthread_mutex_unlock(&state.lock);
    atomic_fetch_add(&state.lines[l->event][l->level], 1);
}

void log_print(struct log_line *l, FILE *out)
{
    if (l->off)
        return;
    line_close(l);
    fwrite(l->data, 1, l->len, out);
}

static uint64_t n_lines(const char *data, size_t len)
{
    uint64_t n = 0;

    for (const char *end = data + len; (data = memchr(data, '\n', (size_t)(end - data))); data++)
        n++;
    return n;
}

/* Writes everything, or less if the descriptor is broken or the time limit of log_stop has passed. Returns the number
 * of bytes written. */
static size_t write_all(const char *data, size_t len)
{
    size_t done = 0;

    while (done < len) {
        ssize_t n = write(state.fd, data + done, len - done);

        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0 || errno != EAGAIN)
            break;
        struct pollfd p = {state.fd, POLLOUT, 0};

        poll(&p, 1, 100);
        pthread_mutex_lock(&state.lock);
        bool over = state.stopping && clock_ms() >= state.stop_at_ms;
        pthread_mutex_unlock(&state.lock);
        if (over)
            break;
    }
    return done;
}

/* Writes whole lines. After a line that was torn, as on a full disk, the next one starts on a new line. */
static void write_lines(const char *data, size_t len)
{
    size_t done;

    if (state.torn)
        state.torn = write_all("\n", 1) == 0;
    done = state.torn ? 0 : write_all(data, len);
    if (done == len)
        return;
    if (done)
        state.torn = data[done - 1] != '\n';
    atomic_fetch_add(&state.dropped, n_lines(data + done, len - done));
}

/* Writes the queued lines. Lines are joined up to a good write size: under load one write carries many. */
static void *writer(void *unused)
{
    static char block[64 * 1024];

    (void)unused;
    pthread_mutex_lock(&state.lock);
    for (;;) {
        while (!state.first && !state.stopping)
            pthread_cond_wait(&state.wake, &state.lock);
        if (!state.first)
            break;
        size_t len = 0;
        while (state.first && len + state.first->len <= sizeof(block)) {
            struct queued *q = state.first;

            state.first = q->next;
            if (!state.first)
                state.end = &state.first;
            state.n_bytes[q->class] -= q->len;
            memcpy(block + len, q->data, q->len);
            len += q->len;
            free(q);
        }
        pthread_mutex_unlock(&state.lock);
        write_lines(block, len);
        pthread_mutex_lock(&state.lock);
    }
    state.running = false;
    pthread_cond_broadcast(&state.wake);
    pthread_mutex_unlock(&state.lock);
    return NULL;
}

void log_start(int fd)
{
    sigset_t all, old;

    pthread_mutex_lock(&state.lock);
    state.fd = fd;
    state.stopping = false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    state.running = pthread_create(&state.thread, NULL, writer, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_mutex_unlock(&state.lock);
}

void log_stop(int timeout_ms)
{
    struct timespec until = clock_until(timeout_ms);

    pthread_mutex_lock(&state.lock);
    state.stopping = true;
    state.stop_at_ms = clock_ms() + timeout_ms;
    pthread_cond_broadcast(&state.wake);
    while (state.running)
        if (pthread_cond_clockwait(&state.wake, &state.lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT)
            break;
    bool ended = !state.running;
    pthread_mutex_unlock(&state.lock);
    if (ended)
        pthread_join(state.thread, NULL);
    else
        pthread_detach(
            state.thread); /* standard output is blocked: the process ends without its last lines */
}
