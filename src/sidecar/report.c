/* Log lines: the core's notes, with each event's own fields. */
#include "sidecar/sidecar.h"

#include "onceward/base/fault.h"
#include "onceward/base/log.h"
#include "onceward/core/headers.h"

static void begin(struct log_line *line, const struct sidecar_queue *sq, const struct note *n)
{
    const struct delivery *d = n->d;

    log_begin(line, n->event, sq->config->name);
    if (sq->config->pattern)
        log_text(line, "partition", sq->config->queue);
    if (!d)
        return;
    if (d->arrival->id_len)
        log_slice(line, "message_id", delivery_slice(d));
    else
        log_null(line, "message_id");
    struct slice trace = d->arrival->message ? trace_id(d->arrival->message) : (struct slice){0};
    if (trace.len)
        log_slice(line, "trace_id", trace);
    if (d->claim && d->claim->attempt)
        log_int(line, "attempt", d->claim->attempt + d->claim->takeovers);
    if (d->outcome.http_status)
        log_int(line, "http_status", d->outcome.http_status);
    if (d->outcome.error && *d->outcome.error && n->event != EVENT_COMPLETED && n->event != EVENT_DUPLICATE &&
        n->event != EVENT_TAKEN_OVER && n->event != EVENT_PARKED &&
        !(n->event == EVENT_DEAD_AGAIN && n->text))
        log_text(line, "error", d->outcome.error);
}

static bool is_wanted(struct sidecar_queue *sq, const struct note *n)
{
    struct sidecar *s = sq->sidecar;

    if (n->event != EVENT_COMPLETED)
        return true;
    histogram_add(&sq->first->end_to_end_us, n->ms * 1000);
    if (s->config->log.messages == MESSAGES_SAMPLED) { /* ten per second */
        int64_t second = s->now_ms / 1000;

        if (sq->sampled.second != second)
            sq->sampled.n = 0;
        sq->sampled.second = second;
        return sq->sampled.n++ < 10;
    }
    return s->config->log.messages == MESSAGES_ALL;
}

/* Field names for an event's numbers and texts. NULL: the event lacks it. */
static const struct note_fields {
    const char *reason, *text, *ms, *n, *flag;
} fields[N_EVENTS] = {
    [EVENT_PAUSED] = {.reason = "reason", .text = "detail"},
    [EVENT_RESUMED] = {.reason = "reason", .ms = "paused_for_ms"},
    [EVENT_COMMAND] = {.reason = "lever", .text = "by", .n = "n"},
    [EVENT_STANDBY] = {.text = "reason", .n = "depth", .ms = "nothing_for_ms"},
    [EVENT_HANDOVER] = {.n = "held"},
    [EVENT_STUCK] = {.text = "reason", .n = "depth", .ms = "nothing_for_ms"},
    [EVENT_COMPLETED] = {.ms = "held_ms"},
    [EVENT_PARKED] = {.reason = "why", .ms = "wait_ms", .text = "holder"},
    [EVENT_RETRY] = {.ms = "next_attempt_ms"},
    [EVENT_GIVEN_BACK] = {.ms = "next_attempt_ms"},
    [EVENT_DEAD] = {.reason = "reason", .n = "letter"},
    [EVENT_DEAD_AGAIN] = {.ms = "wait_ms", .text = "error"},
    [EVENT_ANSWERED_BEFORE_COMMIT] = {.flag = "completed"},
    [EVENT_ANSWER_CONTRADICTS_ROW] = {.text = "answer"},
    [EVENT_BODY_MISMATCH] = {.reason = "first", .text = "rows"},
    [EVENT_SHORT_WINDOW] = {.ms = "left_ms"},
    [EVENT_PARKED_FULL] = {.text = "reason", .n = "n"},
    [EVENT_ORDER_BLOCKED] = {.n = "waiting"},
    [EVENT_NOT_EXCLUSIVE] = {.text = "reason"},
    [EVENT_UNKEYED] = {.n = "n"},
    [EVENT_ORDER_PRIORITY] = {.n = "priority"},
    [EVENT_TOO_LARGE] = {.text = "reason"},
    [EVENT_LIMITS] = {.text = "reason"},
    [EVENT_DISCONNECTED] = {.reason = "peer", .text = "reason", .ms = "next_try_ms"},
    [EVENT_NO_QUEUE] = {.text = "reason", .ms = "next_try_ms"},
    [EVENT_CONSUMING] = {.n = "prefetch"},
    [EVENT_NOT_RENEWED] = {.text = "reason", .ms = "wait_ms"},
    [EVENT_BATCH_SIZE] = {.text = "reason", .n = "batch_size"},
    [EVENT_RETURNED] = {.text = "reason", .n = "n"},
    [EVENT_DATABASE_ERROR] = {.reason = "during", .text = "reason"},
    [EVENT_DRAINING] = {.n = "held", .ms = "grace_ms"},
};

void report_note(struct sidecar_queue *sq, const struct note *n)
{
    const struct note_fields *f = &fields[n->event];
    struct log_line line;

    if (!is_wanted(sq, n))
        return;
    begin(&line, sq, n);
    if (*n->code)
        log_text(&line, "sqlstate", n->code);
    if (f->reason && n->reason)
        log_text(&line, f->reason, n->reason);
    if (f->text && n->text && *n->text)
        log_text(&line, n->event == EVENT_PARKED && n->reason && !n->flag ? "last_error" : f->text, n->text);
    if (n->errors.n)
        log_texts(&line, "errors", &n->errors);
    if (f->ms && n->ms >= 0)
        log_int(&line, f->ms, n->ms);
    if (f->n && n->n >= 0)
        log_int(&line, f->n, n->n);
    if (f->flag)
        log_bool(&line, f->flag, n->flag);
    if (n->event == EVENT_UNKEYED) {
        struct fault no_key = {0};

        identify_no_key(sq, n->d->arrival->message, &no_key);
        log_text(&line, "reason", no_key.text);
    }
    if ((n->event == EVENT_PAUSED || n->event == EVENT_RESUMED) &&
        n->reason == pause_reasons[PAUSE_OPERATOR].name)
        log_text(&line, "by", sq->core.commands.by);
    if (n->event == EVENT_DEAD_AGAIN) {
        log_text(&line, "consumer", sq->config->consumer);
        log_text(&line, "advice", event_info(EVENT_DEAD_AGAIN)->advice);
    }
    log_end(&line);
}

/* Logs the owner of a row's lock: a session, a prepared transaction, or a session that this role may not see. */
void report_lock_holder(struct sidecar_queue *sq, uint64_t ref, const struct inbox_lock_holder *h)
{
    const struct delivery *d = queue_find(&sq->core, ref);
    bool knows_age = *h->state && (h->pid || *h->gid);
    struct note n = {.event = EVENT_ROW_LOCKED, .d = d, .ms = -1, .n = -1};
    struct log_line line;

    if (!d || delivery_has_ended(d) || !d->claim || !d->claim->locked_since_ms || (!h->pid && !*h->state))
        return;
    begin(&line, sq, &n);
    log_int(&line, "locked_ms", sq->sidecar->now_ms - d->claim->locked_since_ms);
    if (h->pid) {
        log_int(&line, "pid", h->pid);
        log_text(&line, "application", h->application);
    }
    if (*h->gid)
        log_text(&line, "gid", h->gid);
    log_text(&line, "state", *h->state ? h->state : NULL);
    log_int(&line, "age_ms", knows_age ? h->age_ms : sq->sidecar->now_ms - d->claim->locked_since_ms);
    if (h->pid && !knows_age)
        log_text(&line, "reason",
                 "state and age are shown to members of pg_read_all_stats only; age_ms counts from its first "
                 "sight here");
    log_end(&line);
}

void report_reason(const struct sidecar_queue *sq, enum event e, const char *reason)
{
    struct log_line line;

    log_begin(&line, e, sq->config ? sq->config->name : NULL); /* no queue: only an outbox */
    if (sq->config && sq->config->pattern)
        log_text(&line, "partition", sq->config->queue);
    log_text(&line, "reason", reason);
    log_end(&line);
}
