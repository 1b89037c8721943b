/* Messages of `onceward try`: claimed and sent as by a sidecar.
 *
 * Database calls block for a moment; meanwhile the kernel handles requests in flight, whose answers are read in the
 * next turn. */

#include "command/try.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "onceward/base/scan.h"
#include "onceward/base/sha256.h"
#include "onceward/base/wait.h"
#include "onceward/config/config.h"
#include "onceward/core/batch_answer.h"
#include "onceward/core/batch_envelope.h"
#include "onceward/core/token.h"
#include "onceward/forward/forward.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANSWER_MS = 10000, /* for an answer, when nothing is locked */
    MEET_MS = 5000,
    COMMIT_MS = 1500, /* minimum wait for a commit after the answer */
    TURN_MS = 20,     /* maximum delay of a signal */
    STILL_MS = 700,   /* without a change for this long, no more sessions are expected at the lock */
    LOOK_MS = 5,      /* between two checks of the waiting sessions */
    LARGE_BYTES = 1024 * 1024,
    N_HEADERS = 7,
    HEADER_BYTES = 530, /* of a value: with the names and the routing key, almost 4 KiB */
};

volatile sig_atomic_t try_stop_asked;

/* ---- creation ---- */

/* Writes the message with its id, or unchanged if it has no place for one. */
static void body_write(const struct try_run *t, struct shot *s, const struct shot_kind *kind)
{
    static const char mark[] = "{{id}}";
    const char *at = t->message.data, *end = at + t->message.len, *found;

    while (at < end && (found = memmem(at, (size_t)(end - at), mark, sizeof mark - 1))) {
        buf_add(&s->body, at, (size_t)(found - at));
        buf_add_text(&s->body, s->claim.message_id);
        at = found + sizeof mark - 1;
    }
    buf_add(&s->body, at, (size_t)(end - at));
    if (kind->wrong_body)
        s->body.len = s->body.len / 2;
    while (kind->large_body && s->body.len < LARGE_BYTES) {
        size_t n = LARGE_BYTES - s->body.len;

        memset(buf_reserve(&s->body, n), ' ', n); /* JSON, XML and most other formats allow trailing blanks */
        s->body.len += n;
    }
}

/* Adds headers that fill the space of optional ones. */
static void headers_add(struct message *m)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    char value[HEADER_BYTES];

    m->headers = message_alloc(m, N_HEADERS * sizeof *m->headers);
    m->n_headers = N_HEADERS;
    for (size_t i = 0; i < m->n_headers; i++) {
        char name[24];
        int n = snprintf(name, sizeof name, "x-onceward-try-%zu", i);

        for (size_t k = 0; k < sizeof value; k++)
            value[k] = letters[(i + k) % (sizeof letters - 1)];
        m->headers[i] = (struct field){.name = message_keep(m, name, (size_t)n),
                                       .kind = FIELD_STRING,
                                       .bytes = message_keep(m, value, sizeof value)};
    }
}

/* Makes the message as it would arrive from a broker. Its body is a copy: the message owns what it points to. */
static void message_write(const struct try_run *t, struct shot *s, const struct shot_kind *kind)
{
    struct message *m = s->message = message_new();

    m->properties[PROPERTY_MESSAGE_ID] = slice_of(s->claim.message_id);
    if (t->content_type && !kind->no_type)
        m->properties[PROPERTY_CONTENT_TYPE] = slice_of(t->content_type);
    m->routing_key = slice_of(t->q->queue);
    if (kind->many_headers)
        headers_add(m);
    if (t->in_batches) {
        m->body = mem_copy(s->body.data, s->body.len);
        m->body_len = s->body.len;
    }
}

static void head_write(const struct try_run *t, struct shot *s, const struct shot_kind *kind)
{
    token_write(&s->token, slice_of(t->consumer), slice_of(s->claim.message_id), s->claim.token);
    message_write(t, s, kind);
    if (t->in_batches)
        return;
    headers_write(&s->headers, s->message,
                  &(struct request_facts){.message_id = slice_of(s->claim.message_id),
                                          .queue = slice_of(t->q->queue),
                                          .consumer = slice_of(t->consumer),
                                          .token = buf_slice(&s->token),
                                          .content_type = slice_of(t->q->forward.content_type),
                                          .window_ms = t->q->token_window_ms,
                                          .attempt = 1});
}

static struct shot *shot_make(struct try_run *t)
{
    struct shot *s;

    if (t->n_shots == (int)(sizeof t->shots / sizeof *t->shots)) {
        fault_set(&t->fault, "too many requests");
        return NULL;
    }
    s = mem_zalloc(1, sizeof *s);
    s->ref = (uint64_t)t->n_shots;
    s->answered = true; /* until it is sent */
    t->shots[t->n_shots++] = s;
    return s;
}

int shot_new(struct try_run *t, const struct shot_kind *kind, struct shot **ret)
{
    struct shot *s = shot_make(t);
    uint8_t digest[32];
    enum row_answer answer;

    if (!s)
        return -1;
    snprintf(s->claim.message_id, sizeof s->claim.message_id, "%s.%u", t->consumer, ++t->n_sent);
    body_write(t, s, kind);
    sha256(s->body.data, s->body.len, digest);
    memcpy(s->claim.fingerprint, digest, sizeof s->claim.fingerprint);
    if (trial_claim(t->inbox, TRIAL_ASKER, &s->claim,
                    kind->window_ms ? kind->window_ms : t->q->token_window_ms, &answer, &t->fault))
        return -1;
    if (answer != ROW_CLAIMED)
        return fault_set(&t->fault, "a new message's row is %s", row_answer_name(answer));
    if (t->effects && !effects_by_id(t->effects) &&
        effects_count(t->effects, s->claim.message_id, &s->before, &t->fault))
        return -1;
    head_write(t, s, kind);
    *ret = s;
    return 0;
}

static struct shot *shot_copy(struct try_run *t, const struct shot *s)
{
    struct shot *copy = shot_make(t);

    if (!copy)
        return NULL;
    copy->claim = s->claim;
    copy->before = s->before;
    buf_add_slice(&copy->body, buf_slice(&s->body));
    return copy;
}

int shot_again(struct try_run *t, const struct shot *s, struct shot **ret)
{
    struct shot *copy = shot_copy(t, s);

    if (!copy)
        return -1;
    head_write(t, copy, &(struct shot_kind){0});
    *ret = copy;
    return 0;
}

int shot_take_over(struct try_run *t, enum trial_by by, const struct shot *s, struct shot **ret)
{
    struct shot *copy = shot_copy(t, s);
    enum row_answer answer;

    if (!copy || trial_claim(t->inbox, by, &copy->claim, t->q->token_window_ms, &answer, &t->fault))
        return -1;
    if (answer != ROW_CLAIMED)
        return fault_set(&t->fault, "a row that was to be taken over is %s", row_answer_name(answer));
    head_write(t, copy, &(struct shot_kind){0});
    *ret = copy;
    return 0;
}

void try_shots_free(struct try_run *t)
{
    for (int i = 0; i < t->n_shots; i++) {
        buf_deinit(&t->shots[i]->body);
        buf_deinit(&t->shots[i]->token);
        buf_deinit(&t->shots[i]->envelope);
        header_block_deinit(&t->shots[i]->headers);
        message_free(t->shots[i]->message);
        free(t->shots[i]);
    }
}

/* ---- sending ---- */

static void post(struct try_run *t, const struct shot *s, struct slice body, bool fresh, int64_t timeout_ms)
{
    forward_send(t->forward, &(struct forward_request){.queue = 0,
                                                       .ref = s->ref,
                                                       .headers = &s->headers,
                                                       .body = body,
                                                       .timeout_ms = timeout_ms,
                                                       .fresh = fresh});
}

static void envelope_write(const struct try_run *t, struct shot *carrier)
{
    struct slice content_type = slice_of(t->q->forward.content_type);

    buf_reset(&carrier->envelope);
    envelope_begin(&carrier->envelope);
    for (int i = 0; i < carrier->n_members; i++) {
        const struct shot *s = carrier->members[i];

        envelope_add(&carrier->envelope,
                     &(struct envelope_member){.token = buf_slice(&s->token),
                                               .id = slice_of(s->claim.message_id),
                                               .queue = slice_of(t->q->queue),
                                               .content_type = content_type,
                                               .attempt = 1,
                                               .body_is_json = envelope_takes_body(s->message, content_type),
                                               .message = s->message});
    }
    envelope_end(&carrier->envelope);
}

static void envelope_post(struct try_run *t, struct shot *const *shots, int n, bool fresh, int64_t timeout_ms)
{
    struct shot *carrier = shots[0];

    carrier->n_members = n;
    for (int i = 0; i < n; i++) {
        carrier->members[i] = shots[i];
        shots[i]->answered = false;
    }
    envelope_write(t, carrier);
    headers_write_batch(&carrier->headers, &(struct batch_facts){.consumer = slice_of(t->consumer),
                                                                 .n = (size_t)n,
                                                                 .window_ms = t->q->token_window_ms});
    post(t, carrier, buf_slice(&carrier->envelope), fresh, timeout_ms);
}

void shots_send(struct try_run *t, struct shot *const *shots, int n, int64_t timeout_ms)
{
    envelope_post(t, shots, n, false, timeout_ms);
}

void shot_send(struct try_run *t, struct shot *s, const struct shot_kind *kind, int64_t timeout_ms)
{
    if (t->in_batches) {
        envelope_post(t, &s, 1, kind->fresh, timeout_ms);
        return;
    }
    s->answered = false;
    post(t, s, buf_slice(&s->body), kind->fresh, timeout_ms);
}

static void no_answer(struct shot *s)
{
    s->answered = true;
    s->kind = ANSWER_TIMEOUT;
    snprintf(s->error, sizeof s->error, "no answer in time");
}

void shot_abandon(struct try_run *t, struct shot *s)
{
    if (s->answered)
        return;
    forward_abandon(t->forward, 0, s->ref);
    no_answer(s);
    for (int i = 1; i < s->n_members; i++)
        no_answer(s->members[i]);
}

static void take_answer(struct shot *s, const struct answer *a)
{
    s->answered = true;
    s->kind = a->kind;
    s->status = a->status;
    s->took_us = a->took_us;
    s->kept = a->kept;
    s->reused = a->reused;
    s->named = s->unclear = false;
    snprintf(s->error, sizeof s->error, "%s", a->error);
}

/* Takes the part of the answer that concerns one of several messages. */
static void take_reading(struct shot *s, const struct answer *a, const struct batch_reading *reading,
                         const struct batch_member *m)
{
    struct buf error = {0};

    s->unclear = reading->verdict == BATCH_BAD;
    s->named = m->failed;
    if (s->unclear)
        snprintf(s->error, sizeof s->error, "answered %d, but %s", a->status, reading->why);
    if (m->failed) {
        scan_decode(&error, m->error);
        s->status = m->status;
        snprintf(s->error, sizeof s->error, "answered %d, and named it as failed with %d%s%.200s", a->status,
                 m->status, error.len ? ": " : "", buf_text(&error));
    }
    buf_deinit(&error);
}

static void answered_several(const struct try_run *t, struct shot *carrier, const struct answer *a)
{
    const struct batch_reply reply = {.kind = a->kind,
                                      .status = a->status,
                                      .n_sent = (size_t)carrier->n_members,
                                      .echo = a->batch,
                                      .is_cut = a->cut,
                                      .is_to_close = a->to_close,
                                      .body = a->body};
    const struct batch_rules rules = {.outcome = {.transaction = t->q->transaction}, .knows_batches = true};
    struct batch_member members[TRY_BATCH_MAX] = {0};
    struct batch_reading reading;

    for (int i = 0; i < carrier->n_members; i++) {
        members[i].id = slice_of(carrier->members[i]->claim.message_id);
        members[i].token = buf_slice(&carrier->members[i]->token);
    }
    batch_answer_read(&reply, &rules, members, (size_t)carrier->n_members, &reading);
    for (int i = 0; i < carrier->n_members; i++) {
        take_answer(carrier->members[i], a);
        take_reading(carrier->members[i], a, &reading, &members[i]);
    }
}

static void answered(struct try_run *t, const struct answer *a)
{
    struct shot *s = t->shots[a->ref];

    if (t->in_batches)
        answered_several(t, s, a);
    else
        take_answer(s, a);
}

int try_turn(struct try_run *t, int64_t until_ms)
{
    int64_t due_ms = forward_due_ms(t->forward), now_ms = clock_ms();
    struct forward_event e;

    if (try_stop_asked)
        return fault_set(&t->fault, "interrupted");
    if (now_ms >= t->end_ms) {
        t->is_late = true;
        return fault_set(&t->fault, "no time was left");
    }
    until_ms = until_ms < now_ms + TURN_MS ? until_ms : now_ms + TURN_MS;
    wait_turn(t->wait, due_ms < until_ms ? due_ms : until_ms);
    while (forward_step(t->forward, &e) != FORWARD_NOTHING)
        if (e.kind == FORWARD_ANSWER)
            answered(t, &e.answer);
    return 0;
}

int try_pause(struct try_run *t, int64_t ms)
{
    int64_t until_ms = clock_ms() + ms;

    while (clock_ms() < until_ms)
        if (try_turn(t, until_ms))
            return -1;
    return 0;
}

int shot_wait(struct try_run *t, struct shot *s, int64_t timeout_ms)
{
    int64_t until_ms = clock_ms() + timeout_ms;

    while (!s->answered && clock_ms() < until_ms)
        if (try_turn(t, until_ms))
            return -1;
    shot_abandon(t, s);
    return 0;
}

/* ---- results ---- */

int shot_effect(struct try_run *t, const struct shot *s, int64_t *ret)
{
    int64_t n;

    *ret = -1;
    if (!t->effects)
        return 0;
    if (effects_count(t->effects, s->claim.message_id, &n, &t->fault))
        return -1;
    *ret = n - s->before;
    return 0;
}

int shot_effect_by(struct try_run *t, const struct shot *s, int64_t wanted, int64_t until_ms, int64_t *ret)
{
    while (shot_effect(t, s, ret) == 0) {
        if (*ret < 0 || *ret >= wanted || clock_ms() >= until_ms)
            return 0;
        if (try_pause(t, LOOK_MS))
            break;
    }
    return -1;
}

bool shot_says_done(const struct shot *s)
{
    return s->answered && s->kind == ANSWER_STATUS && s->status >= 200 && s->status < 300 && !s->unclear;
}

int64_t shot_commit_ms(const struct try_run *t, const struct shot *s)
{
    int64_t wait_ms = t->q->commit_grace_ms > COMMIT_MS ? t->q->commit_grace_ms : COMMIT_MS;

    return clock_ms() + (!shot_says_done(s) ? 0 : s->status == 202 ? ANSWER_MS : wait_ms);
}

int shot_finish(struct try_run *t, struct shot *s, bool *ret)
{
    return shot_finish_by(t, s, shot_commit_ms(t, s), ret);
}

int shot_finish_by(struct try_run *t, struct shot *s, int64_t until_ms, bool *ret)
{
    struct trial_row row;

    if (!t->q->transaction && shot_says_done(s) && trial_settle(t->inbox, &s->claim, s->status, &t->fault))
        return -1;
    for (;;) {
        if (trial_look(t->inbox, &s->claim, false, &row, &t->fault))
            return -1;
        *ret = row.completed;
        if (row.completed || clock_ms() >= until_ms)
            return 0;
        if (try_pause(t, LOOK_MS))
            return -1;
    }
}

int shot_run(struct try_run *t, struct shot *s, const struct shot_kind *kind, bool *ret_completed)
{
    shot_send(t, s, kind, ANSWER_MS);
    return shot_wait(t, s, ANSWER_MS) || shot_finish(t, s, ret_completed) ? -1 : 0;
}

/* Removes the tags of an error page, and repeated blanks. */
static void tags_strip(char *text)
{
    char *to = text;

    for (const char *at = text; *at; at++) {
        bool is_tag = *at == '<' && (at[1] == '/' || at[1] == '!' || isalpha((unsigned char)at[1]));
        bool is_blank = is_tag || isspace((unsigned char)*at) || (at[0] == '\\' && at[1] == 'n');

        if (is_tag) {
            const char *end = strchr(at, '>');

            at = end ? end : at + strlen(at) - 1;
        } else if (is_blank && *at == '\\')
            at++;
        if (!is_blank)
            *to++ = *at;
        else if (to > text && to[-1] != ' ' && to[-1] != '"')
            *to++ = ' ';
    }
    *to = '\0';
}

const char *shot_words(const struct shot *s, char *out, size_t size)
{
    if (shot_says_done(s))
        snprintf(out, size, "answered %d", s->status);
    else
        snprintf(out, size, "%.300s", s->error);
    tags_strip(out);
    return out;
}

/* ---- stop at the lock ---- */

static int count_answered(struct shot *const *shots, int n)
{
    int n_answered = 0;

    for (int i = 0; i < n; i++)
        n_answered += shots[i]->answered;
    return n_answered;
}

int try_meet(struct try_run *t, struct shot *const *shots, int n, int wanted, int *ret_waiting)
{
    int64_t changed_ms = clock_ms(), since_ms = changed_ms;
    /* The application's work may precede complete, so the first shot gets more time. */
    int64_t work_ms = STILL_MS + t->ordinary_us / 500;
    int last = -1, seen;

    *ret_waiting = 0;
    for (;;) {
        if (try_pause(t, LOOK_MS) || trial_waiting(t->inbox, ret_waiting, &t->fault))
            return -1;
        seen = *ret_waiting + count_answered(shots, n);
        if (*ret_waiting >= wanted || count_answered(shots, n) == n)
            return 0;
        if (seen != last)
            changed_ms = clock_ms();
        last = seen;
        if (clock_ms() - changed_ms > (seen ? work_ms : 2 * work_ms) || clock_ms() - since_ms > MEET_MS)
            return 0;
    }
}
