/* Output of `dead`: text or JSON. Main thread. */

#include "command/dead.h"
#include "command/json_line.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

static void add_title(struct buf *out, const struct dead_letter *l)
{
    buf_printf(out, "letter %" PRId64 " (", l->id);
    text_add_safe(out, slice_of(l->consumer));
    if (l->message_id) {
        buf_add_text(out, ", message ");
        text_add_safe(out, slice_of(l->message_id));
    } else {
        buf_add_text(out, ", no usable message id");
    }
    buf_add_char(out, ')');
}

static void tell_json(const struct dead_options *o, const struct dead_letter *l,
                      const struct letter_news *news, const char *words)
{
    struct log_line line;

    log_begin(&line, news->event, news->queue ? news->queue : l->queue);
    log_text(&line, "consumer", l->consumer);
    log_int(&line, "letter", l->id);
    log_text(&line, "message_id", news->id && *news->id ? news->id : l->message_id);
    if (l->trace_id)
        log_text(&line, "trace_id", l->trace_id);
    if (news->event != EVENT_REDRIVEN)
        log_text(&line, "reason", words);
    if (o->dry_run)
        log_bool(&line, "dry_run", true);
    log_print(&line, stdout);
}

void letter_tell(const struct dead_options *o, const struct dead_letter *l, const struct letter_news *news,
                 const char *format, ...)
{
    struct buf line = {0};
    char words[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    if (o->json) {
        tell_json(o, l, news, words);
    } else {
        add_title(&line, l);
        buf_add_text(&line, news->event == EVENT_LETTER_LEFT ? ": left: " : ": ");
        text_add_safe(&line, slice_of(words));
        printf("%s\n", buf_text(&line));
    }
    fflush(stdout);
    buf_deinit(&line);
}

/* JSON text from the database. */
static void add_raw(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, ",\"%s\":", key);
    buf_add_text(out, value ? value : "null");
}

void letter_add_json(struct buf *out, const struct dead_letter *l)
{
    buf_printf(out, "{\"letter\":%" PRId64, l->id);
    json_add_text(out, "died_at", l->died_at);
    json_add_text(out, "consumer", l->consumer);
    json_add_text(out, "queue", l->queue);
    json_add_text(out, "vhost", l->vhost);
    json_add_text(out, "message_id", l->message_id);
    json_add_text(out, "raw_id_hex", l->raw_id_hex);
    json_add_text(out, "trace_id", l->trace_id);
    json_add_text(out, "reason", l->reason);
    buf_printf(out, ",\"attempts\":%d,\"http_status\":", l->attempts);
    if (l->http_status)
        buf_printf(out, "%d", l->http_status);
    else
        buf_add_text(out, "null");
    json_add_text(out, "last_error", l->last_error);
    buf_printf(out, ",\"rowless\":%s", l->rowless ? "true" : "false");
    json_add_text(out, "exchange", l->exchange);
    json_add_text(out, "routing_key", l->routing_key);
    json_add_text(out, "content_type", l->content_type);
    json_add_text(out, "fingerprint", l->fingerprint_hex);
    add_raw(out, "properties", l->properties);
    add_raw(out, "headers", l->headers);
    buf_printf(out, ",\"body_bytes\":%zu", l->body_len);
    if (l->body)
        json_add_body(out, (struct slice){l->body, l->body_len});
    buf_add_char(out, '}');
}

void letter_print_json(const struct dead_letter *l)
{
    struct buf out = {0};

    letter_add_json(&out, l);
    buf_add_char(&out, '\n');
    fwrite(out.data, 1, out.len, stdout);
    buf_deinit(&out);
}

void letter_seen(const struct dead_options *o, const struct dead_letter *l)
{
    for (size_t i = 0; i < o->filter.n_ids; i++)
        if (o->filter.ids[i] == l->id)
            o->seen[i] = true;
}

size_t letters_tell_missing(const struct dead_options *o)
{
    const struct dead_filter *filter = &o->filter;
    bool more = filter->consumer || filter->reason || filter->since || filter->older;
    size_t n = 0;

    for (size_t i = 0; i < filter->n_ids; i++) {
        if (o->seen[i])
            continue;
        fprintf(stderr,
                "onceward: there is no dead letter %" PRId64
                "%s: it never existed, or was redriven or discarded\n",
                filter->ids[i], more ? " that matches" : "");
        n++;
    }
    return n;
}

int dead_narrow(struct admin *a, const struct config *c, struct dead_filter *filter, int64_t *ret_others,
                struct fault *f)
{
    int64_t all, own;

    *ret_others = 0;
    if (filter->n_ids || filter->consumer)
        return 0;
    if (admin_dead_count(a, filter, &all, f))
        return -1;
    filter->of = c;
    if (admin_dead_count(a, filter, &own, f))
        return -1;
    *ret_others = all > own ? all - own : 0;
    return 0;
}
