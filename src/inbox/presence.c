/* Presence and operator commands: one call of sidecar_presence, and its answer. One thread, the connection's.
 *
 * An answer is copied out of its rows: its texts into one block, and pointers into that block. */
#include "presence.h"

#include "call.h"
#include "pipeline.h"
#include "question.h"
#include "queues.h"
#include "text.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIND, ORD, NAME, NUMBER, COUNTER, YES, TEXT, PRIORITY, ACTIVE, N_FIELDS };

void presence_deinit(struct presence *p)
{
    mem_clear(&p->owners);
    mem_clear(&p->controls);
    mem_clear(&p->texts);
    mem_clear(&p->n_others);
    mem_clear(&p->give_up);
    mem_clear(&p->peers);
    mem_clear(&p->stops);
    p->n_owners = p->n_controls = p->n_peers = p->n_stops = 0;
    p->n_counted = 0;
}

void inbox_ask_presence(struct inbox *i, const struct inbox_shown *shown)
{
    static const Oid types[] = {25, 20, 20, 25, 25, 114, 1009, 1009, 16, 16};
    const char *params[10] = {i->scalars.value[SCALAR_INSTANCE], i->scalars.value[SCALAR_NUMBER]};
    struct buf states = {0}, names = {0}, owners = {0};
    char counter[24];

    if (!pipeline_may_ask(i, QUESTION_PRESENCE))
        return;
    queues_consumers(&i->queues, &names);
    text_array_add(&owners, shown->owners, shown->n_owners);
    buf_add_slice(&states, shown->queues_json);
    snprintf(counter, sizeof(counter), "%" PRId64, i->presence.counter);
    params[2] = i->presence.counter ? counter : NULL;
    params[3] = shown->version;
    params[4] = shown->host;
    params[5] = buf_text(&states);
    params[6] = buf_text(&names);
    params[7] = buf_text(&owners);
    params[8] = shown->count ? "t" : "f";
    params[9] = queues_are_ordered(&i->queues) ? "t" : "f";
    i->presence.asked_count = shown->count;
    pipeline_ask(i, QUESTION_PRESENCE, 10, types, params);
    buf_deinit(&owners);
    buf_deinit(&states);
    buf_deinit(&names);
}

/* --- the answer --- */

struct reading {
    const PGresult *rows;
    char *text; /* the place of the next text */
    size_t n_queues, n_give_up;
};

static bool is_kind(const PGresult *rows, int at, const char *kind)
{
    return strcmp(PQgetvalue(rows, at, KIND), kind) == 0;
}

static struct slice text_keep(struct reading *r, int at, int field)
{
    struct slice s = {r->text, (size_t)PQgetlength(r->rows, at, field)};

    memcpy(r->text, PQgetvalue(r->rows, at, field), s.len + 1); /* libpq terminates every value with a NUL */
    r->text += s.len + 1;
    return s;
}

static void owner_read(struct reading *r, int at, struct inbox_owner_seen *ret)
{
    *ret = (struct inbox_owner_seen){.instance = text_keep(r, at, NAME).data};
    call_int8(r->rows, at, COUNTER, &ret->counter);
}

/* Index of the row's queue; -1: none. */
static int64_t queue_of(const struct reading *r, int at)
{
    int ord = 0;

    call_int4(r->rows, at, ORD, &ord);
    return ord >= 1 && (size_t)ord <= r->n_queues ? ord - 1 : -1;
}

static void others_read(const struct reading *r, int at, struct presence *p)
{
    int64_t queue = queue_of(r, at), n = 0;

    call_int8(r->rows, at, NUMBER, &n);
    p->n_counted += n;
    if (queue >= 0)
        p->n_others[queue] = n < INT_MAX ? (int)n : INT_MAX;
}

static void control_read(struct reading *r, int at, struct inbox_control *ret)
{
    *ret = (struct inbox_control){.queue = (size_t)queue_of(r, at),
                                  .paused = call_bool(r->rows, at, YES),
                                  .give_up_by = "",
                                  .retry.by = "",
                                  .held.by = ""};
    ret->by = text_keep(r, at, NAME).data;
    ret->reason = text_keep(r, at, TEXT).data;
    call_int8(r->rows, at, NUMBER, &ret->since_ms);
}

static void peer_read(struct reading *r, int at, struct inbox_peer *ret)
{
    *ret = (struct inbox_peer){.entry = (size_t)queue_of(r, at), .instance = text_keep(r, at, NAME).data};
    ret->queue = text_keep(r, at, TEXT).data;
    call_int8(r->rows, at, NUMBER, &ret->subscription);
    call_int8(r->rows, at, COUNTER, &ret->received);
    ret->may_consume = call_bool(r->rows, at, YES);
    ret->is_active = call_bool(r->rows, at, ACTIVE);
}

static void stop_read(struct reading *r, int at, struct inbox_stop *ret)
{
    *ret = (struct inbox_stop){.entry = (size_t)queue_of(r, at), .queue = text_keep(r, at, TEXT).data};
    ret->why = text_keep(r, at, NAME).data;
    call_int8(r->rows, at, COUNTER, &ret->count);
    call_int8(r->rows, at, NUMBER, &ret->accepted);
    call_int8(r->rows, at, PRIORITY, &ret->retry);
}

/* Finds the control that a row belongs to, which an earlier row has created. NULL: none. */
static struct inbox_control *control_of(const struct reading *r, int at, struct presence *p)
{
    for (size_t k = 0; k < p->n_controls; k++)
        if ((int64_t)p->controls[k].queue == queue_of(r, at))
            return &p->controls[k];
    return NULL;
}

static void once_read(struct reading *r, int at, struct inbox_once *ret)
{
    ret->by = text_keep(r, at, NAME).data;
    call_int8(r->rows, at, NUMBER, &ret->number);
    call_int8(r->rows, at, COUNTER, &ret->ago_ms);
}

/* Reads an id to give up. The rows of a queue are adjacent. */
static void give_up_read(struct reading *r, int at, struct inbox_control *c, struct presence *p)
{
    if (!c->n_give_up) {
        c->give_up = &p->give_up[r->n_give_up];
        c->give_up_by = text_keep(r, at, NAME).data;
    }
    p->give_up[r->n_give_up++] = text_keep(r, at, TEXT);
    c->n_give_up++;
}

static void command_read(struct reading *r, int at, struct presence *p)
{
    struct inbox_control *c = control_of(r, at, p);

    if (!c)
        return;
    if (is_kind(r->rows, at, "retry"))
        once_read(r, at, &c->retry);
    else if (is_kind(r->rows, at, "held"))
        once_read(r, at, &c->held);
    else if (is_kind(r->rows, at, "give_up"))
        give_up_read(r, at, c, p);
}

static void presence_reserve(struct presence *p, const PGresult *rows, size_t n_queues)
{
    size_t n_owners = 0, n_controls = 0, n_give_up = 0, n_peers = 0, n_stops = 0, n_bytes = 0;

    for (int at = 0; at < PQntuples(rows); at++) {
        n_owners += is_kind(rows, at, "holder");
        n_controls += is_kind(rows, at, "control");
        n_peers += is_kind(rows, at, "peer");
        n_stops += is_kind(rows, at, "stop");
        n_give_up += is_kind(rows, at, "give_up");
        for (int field = 0; field < N_FIELDS; field++)
            n_bytes += (size_t)PQgetlength(rows, at, field) + 1;
    }
    p->owners = mem_zalloc(n_owners + 1, sizeof(*p->owners));
    p->n_others = mem_zalloc(n_queues + 1, sizeof(*p->n_others));
    p->controls = mem_zalloc(n_controls + 1, sizeof(*p->controls));
    p->give_up = mem_zalloc(n_give_up + 1, sizeof(*p->give_up));
    p->peers = mem_zalloc(n_peers + 1, sizeof(*p->peers));
    p->stops = mem_zalloc(n_stops + 1, sizeof(*p->stops));
    p->texts = mem_zalloc(n_bytes + 1, 1);
}

static void presence_fill(struct presence *p, const PGresult *rows, size_t n_queues)
{
    struct reading r = {.rows = rows, .n_queues = n_queues};

    presence_deinit(p);
    presence_reserve(p, rows, n_queues);
    r.text = p->texts;
    for (int at = 0; at < PQntuples(rows); at++) {
        if (is_kind(rows, at, "self")) {
            call_int8(rows, at, NUMBER, &p->counter);
            p->namesake = call_bool(rows, at, YES);
        } else if (is_kind(rows, at, "others")) {
            others_read(&r, at, p);
        } else if (is_kind(rows, at, "holder")) {
            owner_read(&r, at, &p->owners[p->n_owners++]);
        } else if (is_kind(rows, at, "peer") && queue_of(&r, at) >= 0) {
            peer_read(&r, at, &p->peers[p->n_peers++]);
        } else if (is_kind(rows, at, "stop") && queue_of(&r, at) >= 0) {
            stop_read(&r, at, &p->stops[p->n_stops++]);
        } else if (is_kind(rows, at, "control") && queue_of(&r, at) >= 0) {
            control_read(&r, at, &p->controls[p->n_controls++]);
        } else {
            command_read(&r, at, p);
        }
    }
}

int inbox_presence(struct inbox *i, struct inbox_presence *ret, struct fault *f)
{
    struct presence *p = &i->presence;
    PGresult *rows;
    int got = question_read(&i->answers[QUESTION_PRESENCE], -1, N_FIELDS, &rows, f);

    if (got <= 0)
        return got;
    presence_fill(p, rows, i->queues.n);
    PQclear(rows);
    *ret = (struct inbox_presence){.n_others = p->asked_count ? p->n_others : NULL,
                                   .n_counted = p->n_counted,
                                   .owners = p->owners,
                                   .n_owners = p->n_owners,
                                   .peers = p->peers,
                                   .n_peers = p->n_peers,
                                   .stops = p->stops,
                                   .n_stops = p->n_stops,
                                   .controls = p->controls,
                                   .n_controls = p->n_controls,
                                   .namesake = p->namesake};
    return 1;
}
