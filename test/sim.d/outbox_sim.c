/* The relays of the outbox in virtual time. They are killed between any two actions, and frozen while another takes the
 * lease over. The database answers late or never, fails statements (also after their effect), and is restored from a
 * dump. The broker drops connections with confirms in them, nacks, blocks, takes a body in pieces, and closes channels
 * over a bad exchange, and the connection over a message or over nothing. Then the faults end, and everything must
 * settle.
 *
 * Some rows have the exchange, routing key, id and length of their neighbour, and another fate.
 *
 * The oracle: no row is lost; none that could be sent becomes a letter; each letter has its reason; the position
 * never passes a row that is neither at the broker nor in a letter; and rows reach the broker in order until it
 * nacks. Nothing is sent to a broker that blocks, or into a body; rows in flight at a nack are sent again one by one.
 *
 * An exchange comes and goes. Its rows arrive in order, too, and none but the first few of a relay's life become
 * letters. Rows of an exchange that never exists are parked, but for as many; parked rows are deleted only when they
 * are at the broker or in a letter.
 *
 * An ordered exchange loses its bindings or itself for a while, and refuses some rows each time. The oracle: each row
 * of a routing key reaches the broker after all earlier ones of that key, also after a nack, and none but those
 * refused each time becomes a letter. A broker that drops a connection keeps any of its rows in flight. */
#include "outbox_sim.h"

#include "random.h"

#include "onceward/base/mem.h"
#include "onceward/core/outbox.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_RELAYS_MAX = 3,
    N_ROWS_MAX = 2000,
    N_OUT_MAX = 4096,
    FAULTS_MS = 120000,
    CALM_MS = 90000,
    ACTIONS_MAX = 20000, /* of a relay per millisecond */
    LEASE_MS = OUTBOX_LEASE_MS,
    SILENT_MS = 30000, /* including the time of its questions */
    INTERNAL_ERROR = 541,
    CLOSED_MAX = 2, /* fewer than lead to a letter */
};

/* Outcome of a row at the broker. */
enum fate { GOOD, UNROUTABLE, MISSING, FORBIDDEN, REFUSED, CRASHES, FLAKY, KEYED, KEYED_REFUSED, N_FATES };

/* State of the ordered exchange. */
enum keyed { KEYED_TAKES, KEYED_RETURNS, KEYED_MISSING };

struct sim_row {
    enum fate fate;
    size_t id;                      /* message id: its own number, or that of the previous row */
    char key[4];                    /* routing key */
    bool stored;                    /* the broker has it */
    int letter;                     /* enum dead_reason + 1; 0: none */
    bool parked;                    /* parked now */
    bool refused;                   /* on its way to a letter, which a relay may lose before it is written */
    uint64_t careful[N_RELAYS_MAX]; /* number of the relay's row in flight at a nack; 0: none */
};

/* An entry of the table of parked rows; its number is its index + 1. */
struct sim_parked {
    size_t row;
    bool deleted;
};

/* A publish that the broker has received and not answered. */
struct publish {
    size_t row;
    uint64_t number, tag;
    int64_t at_ms;
};

/* An answer of the database in transit. */
struct reply {
    bool is_out;
    int64_t at_ms;
    struct outbox_action a; /* the question */
    size_t from, to;        /* the rows of a read or a bury */
    int64_t lease;
    char batch[48], exchange[16];
};

struct relay {
    bool alive;
    struct outbox o;
    int64_t frozen_until_ms, linked_at_ms, database_at_ms;
    bool linked, database, open, doomed; /* doomed: the channel is closed, and the relay does not know yet */
    int doomed_code;
    uint64_t tag;
    struct publish out[OUTBOX_OUT_MAX + 8];
    size_t n_out;
    struct reply replies[OUTBOX_TELL];
    int64_t doomed_at_ms, open_at_ms, unlinked_ms, busy_ms; /* busy: not frozen since then */
    bool blocked;
    int64_t unblocked_ms, body_ms; /* body: a body is being sent until then */
};

struct sim {
    uint64_t random;
    int64_t now_ms;
    struct trace trace;
    bool calm;
    struct sim_row rows[N_ROWS_MAX];
    size_t n_rows;
    size_t position; /* rows before it are done, according to the database */
    int64_t lease, lease_until_ms;
    size_t holder; /* index of a relay; N_RELAYS_MAX: none */
    bool restored;
    struct relay relays[N_RELAYS_MAX];
    size_t n_relays, n_lives;
    struct sim_parked *parked;
    size_t n_parked;
    size_t n_letters[N_FATES];
    bool flaky_off;
    int64_t flaky_at_ms;
    enum keyed keyed;
    int64_t keyed_at_ms;
    char keyed_key[4]; /* RETURNS: of this routing key alone; empty: of all keys */
    bool nacked;
    unsigned n_closed; /* connections closed with a code, for a reason other than a row */
    size_t latest;     /* the highest row + 1 that reached the broker first in its order */
    struct outcome *out;
    unsigned fault_chance, publish_chance, keyed_chance;
};

static const char *const exchanges[] = {
    [GOOD] = "good",           [UNROUTABLE] = "good", [MISSING] = "missing",
    [FORBIDDEN] = "forbidden", [REFUSED] = "good",    [CRASHES] = "good",
    [FLAKY] = "flaky",         [KEYED] = "keyed",     [KEYED_REFUSED] = "keyed"};

/* Will the row reach a queue sooner or later? */
static bool is_sound(enum fate fate)
{
    return fate == GOOD || fate == FLAKY || fate == KEYED;
}

static void broken(struct sim *s, const char *check, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void broken(struct sim *s, const char *check, const char *format, ...)
{
    va_list args;

    if (s->out->broken)
        return;
    s->out->broken = true;
    snprintf(s->out->check, sizeof(s->out->check), "%s", check);
    va_start(args, format);
    vsnprintf(s->out->text, sizeof(s->out->text), format, args);
    va_end(args);
    s->out->at_us = s->now_ms * 1000;
}

static void tell(struct sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void tell(struct sim *s, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    trace_line(&s->trace, s->now_ms * 1000, format, args);
    va_end(args);
}

static void say(struct sim *s, size_t relay, const char *what, int64_t a, int64_t b)
{
    if (s->trace.mode)
        tell(s, "relay %zu  %s %lld %lld", relay, what, (long long)a, (long long)b);
}

static bool chance(struct sim *s, unsigned n)
{
    return !s->calm && random_chance(&s->random, n);
}

static bool is_settled(const struct sim *s, size_t row)
{
    return s->rows[row].stored || s->rows[row].letter || s->rows[row].parked;
}

/* --- the database --- */

/* A batch is the rows from one number to another: "from-to". */
static bool batch_read(const char *batch, size_t *from, size_t *to)
{
    unsigned long long a, b;

    if (sscanf(batch, "%llu-%llu", &a, &b) != 2)
        return false;
    *from = (size_t)a;
    *to = (size_t)b;
    return true;
}

static enum outbox_answer position_write(struct sim *s, size_t r, const struct reply *p)
{
    size_t from, to, upto;

    if (p->lease != s->lease || s->holder != r)
        return OUTBOX_LOST;
    if (!batch_read(p->batch, &from, &to))
        return OUTBOX_RESTART;
    upto = p->a.seq < 0 ? to : (size_t)p->a.seq + 1;
    for (size_t i = s->position; i < upto; i++)
        if (!is_settled(s, i))
            broken(s, "lost", "the position goes past row %zu, which is nowhere", i);
    if (upto > s->position)
        s->position = upto;
    return OUTBOX_DONE;
}

static void lease_answer(struct sim *s, size_t r, struct reply *p)
{
    struct relay *k = &s->relays[r];
    bool mine = s->holder == r && s->lease == p->lease && p->lease;

    if (p->a.kind == OUTBOX_GIVE_UP) {
        if (mine)
            s->holder = N_RELAYS_MAX;
        outbox_leased(&k->o, s->now_ms, OUTBOX_DONE, 0, 0, false);
        return;
    }
    if (!mine && s->holder != N_RELAYS_MAX && s->now_ms < s->lease_until_ms) {
        outbox_leased(&k->o, s->now_ms, OUTBOX_LOST, 0, 0, false);
        return;
    }
    if (!mine) {
        s->lease++;
        s->holder = r;
    }
    s->lease_until_ms = s->now_ms + LEASE_MS;
    outbox_leased(&k->o, s->now_ms, OUTBOX_DONE, s->lease, LEASE_MS, s->restored);
}

static void rows_answer(struct sim *s, size_t r, struct reply *p)
{
    struct relay *k = &s->relays[r];
    size_t from = s->position, to = s->n_rows, start;
    char text[48], id[24];

    if (s->restored) {
        outbox_read_ends(&k->o, s->now_ms, OUTBOX_RESTART);
        return;
    }
    if (*p->batch && !batch_read(p->batch, &from, &to)) {
        outbox_read_ends(&k->o, s->now_ms, OUTBOX_RESTART);
        return;
    }
    if (*p->batch && p->a.seq < 0) {
        from = to;
        to = s->n_rows;
    }
    start = *p->batch && p->a.seq >= 0 ? (size_t)p->a.seq + 1 : from;
    size_t end = start + (size_t)p->a.n < to ? start + (size_t)p->a.n : to;

    snprintf(text, sizeof(text), "%zu-%zu", from, to);
    outbox_batch_came(&k->o, s->now_ms, slice_of(text), end == to);
    for (size_t i = start; i < end; i++) {
        snprintf(id, sizeof(id), "%zu", s->rows[i].id);
        outbox_row_came(&k->o, s->now_ms,
                        &(struct outbox_new){.seq = (int64_t)i,
                                             .exchange = slice_of(exchanges[s->rows[i].fate]),
                                             .routing_key = slice_of(s->rows[i].key),
                                             .message_id = slice_of(id),
                                             .body = SLICE("b"),
                                             .body_len = 1});
    }
    outbox_read_ends(&k->o, s->now_ms, OUTBOX_DONE);
}

static void park(struct sim *s, size_t row)
{
    if (s->rows[row].parked)
        return;
    if (!(s->n_parked & (s->n_parked - 1)))
        s->parked = mem_realloc(s->parked, 2 * (s->n_parked ? s->n_parked : 1) * sizeof(*s->parked));
    s->parked[s->n_parked++] = (struct sim_parked){.row = row};
    s->rows[row].parked = true;
    say(s, s->holder, "parks row, as number", (int64_t)row, (int64_t)s->n_parked);
}

static void parked_delete(struct sim *s, size_t number)
{
    struct sim_parked *p = &s->parked[number - 1];

    if (p->deleted)
        return;
    p->deleted = true;
    say(s, s->holder, "deletes parked row, of number", (int64_t)p->row, (int64_t)number);
    s->rows[p->row].parked = false;
    if (!is_settled(s, p->row))
        broken(s, "lost", "parked row %zu is deleted, and is nowhere", p->row);
}

static void letter_write(struct sim *s, const struct outbox_row *row)
{
    size_t at = row->parked ? s->parked[row->seq - 1].row : (size_t)row->seq;
    struct sim_row *truth = &s->rows[at];

    if (row->parking) {
        park(s, at);
        return;
    }
    if (truth->fate == GOOD || truth->fate == KEYED)
        broken(s, "letter", "row %zu could be sent, and becomes a letter: %s", at,
               dead_reasons[row->reason].name);
    s->n_letters[truth->fate] += !truth->letter;
    truth->letter = (int)row->reason + 1;
    if (row->parked)
        parked_delete(s, (size_t)row->seq);
    if (truth->fate == FORBIDDEN)
        broken(s, "stopped", "row %zu for an exchange that may not be written to is a letter", at);
    if ((truth->fate == FLAKY || truth->fate == MISSING) &&
        s->n_letters[truth->fate] > s->n_lives * (OUTBOX_REFUSALS - 1))
        broken(s, "stopped", "%zu rows for exchange %s are letters, after %zu lives",
               s->n_letters[truth->fate], exchanges[truth->fate], s->n_lives);
}

/* Answers a request for letters, by their ids at that time, which the reply's rows have. */
static void bury_answer(struct sim *s, size_t r, struct reply *p)
{
    struct relay *k = &s->relays[r];
    enum outbox_answer all = p->lease == s->lease && s->holder == r ? OUTBOX_DONE : OUTBOX_LOST;
    size_t at = 0;

    if (all == OUTBOX_DONE && k->o.letter == OUTBOX_ASKED) {
        list_each(&k->o.dead_lettering, l)
        {
            letter_write(s, container_of(l, struct outbox_row, in_phase));
            outbox_dead_lettered(&k->o, s->now_ms, at++, OUTBOX_DONE);
        }
    }
    outbox_dead_letters_end(&k->o, s->now_ms, all);
}

static void parked_list(struct sim *s, size_t r)
{
    struct outbox *o = &s->relays[r].o;

    for (size_t i = 0; i < s->n_parked; i++)
        if (!s->parked[i].deleted)
            outbox_parked_exchange(o, s->now_ms, slice_of(exchanges[s->rows[s->parked[i].row].fate]));
    outbox_parked_listed(o, s->now_ms, OUTBOX_DONE);
}

static void parked_read(struct sim *s, size_t r, const struct reply *p)
{
    struct outbox *o = &s->relays[r].o;
    int n = 0;
    char id[24];

    for (size_t i = (size_t)p->a.seq; i < s->n_parked && n < p->a.n; i++) {
        size_t row = s->parked[i].row;

        if (s->parked[i].deleted || strcmp(exchanges[s->rows[row].fate], p->exchange) != 0)
            continue;
        n++;
        snprintf(id, sizeof(id), "%zu", s->rows[row].id);
        outbox_parked_came(o, s->now_ms,
                           &(struct outbox_new){.seq = (int64_t)i + 1,
                                                .exchange = slice_of(p->exchange),
                                                .routing_key = slice_of(s->rows[row].key),
                                                .message_id = slice_of(id),
                                                .body = SLICE("b"),
                                                .body_len = 1,
                                                .parked = true});
    }
    outbox_parked_read_ends(o, s->now_ms, OUTBOX_DONE, n < p->a.n);
}

static void unpark(struct sim *s, size_t r, enum outbox_answer word)
{
    struct outbox *o = &s->relays[r].o;

    if (word == OUTBOX_DONE && o->parked.delete == OUTBOX_ASKED) {
        list_each(&o->unparking, l)
        {
            parked_delete(s, (size_t)container_of(l, struct outbox_row, in_phase)->seq);
        }
    }
    outbox_unparked(o, s->now_ms, word);
}

/* Fails a statement. Its effect may stay, with the answer lost. */
static void answer_failed(struct sim *s, size_t r, struct reply *p)
{
    struct outbox *o = &s->relays[r].o;

    say(s, r, "a statement fails, of kind", p->a.kind, 0);
    switch (p->a.kind) {
    case OUTBOX_REGISTER:
        outbox_registered(o, s->now_ms, OUTBOX_AGAIN, "");
        break;
    case OUTBOX_LEASE:
    case OUTBOX_GIVE_UP:
        outbox_leased(o, s->now_ms, OUTBOX_AGAIN, 0, 0, false);
        break;
    case OUTBOX_RESTORE:
        outbox_restored(o, s->now_ms, OUTBOX_AGAIN);
        break;
    case OUTBOX_LOOK:
        outbox_looked(o, s->now_ms, OUTBOX_AGAIN);
        break;
    case OUTBOX_READ:
        outbox_read_ends(o, s->now_ms, OUTBOX_AGAIN);
        break;
    case OUTBOX_DEAD_LETTERS:
        if (p->lease == s->lease && s->holder == r && o->letter == OUTBOX_ASKED &&
            random_chance(&s->random, 5000)) {
            list_each(&o->dead_lettering, l)
            {
                letter_write(s, container_of(l, struct outbox_row, in_phase));
            }
        }
        outbox_dead_letters_end(o, s->now_ms, OUTBOX_AGAIN);
        break;
    case OUTBOX_PARKED_LIST:
        outbox_parked_listed(o, s->now_ms, OUTBOX_AGAIN);
        break;
    case OUTBOX_PARKED_READ:
        outbox_parked_read_ends(o, s->now_ms, OUTBOX_AGAIN, false);
        break;
    case OUTBOX_UNPARK:
        unpark(s, r, OUTBOX_AGAIN);
        break;
    case OUTBOX_WRITE:
        if (random_chance(&s->random, 5000))
            position_write(s, r, p);
        outbox_written(o, s->now_ms, OUTBOX_AGAIN);
        break;
    case OUTBOX_TURN:
        outbox_turned(o, s->now_ms, OUTBOX_AGAIN, false);
        break;
    default:
        break;
    }
}

/* Has a transaction ended since the batch was read? Other sessions' transactions end, too. */
static enum outbox_answer look_answer(struct sim *s, const struct reply *p)
{
    size_t from, to;

    if (s->restored || !batch_read(p->batch, &from, &to) || to != s->n_rows)
        return OUTBOX_RESTART;
    return random_chance(&s->random, 5000) ? OUTBOX_RESTART : OUTBOX_DONE;
}

static void answer(struct sim *s, size_t r, struct reply *p)
{
    struct relay *k = &s->relays[r];
    enum outbox_answer word = p->lease == s->lease && s->holder == r ? OUTBOX_DONE : OUTBOX_LOST;

    p->is_out = false;
    if (chance(s, 20)) {
        answer_failed(s, r, p);
        return;
    }
    switch (p->a.kind) {
    case OUTBOX_REGISTER:
        outbox_registered(&k->o, s->now_ms, OUTBOX_DONE, "");
        break;
    case OUTBOX_LEASE:
    case OUTBOX_GIVE_UP:
        lease_answer(s, r, p);
        break;
    case OUTBOX_RESTORE:
        if (word == OUTBOX_DONE)
            s->restored = false;
        outbox_restored(&k->o, s->now_ms, word);
        break;
    case OUTBOX_LOOK:
        outbox_looked(&k->o, s->now_ms, look_answer(s, p));
        break;
    case OUTBOX_READ:
        rows_answer(s, r, p);
        break;
    case OUTBOX_DEAD_LETTERS:
        bury_answer(s, r, p);
        break;
    case OUTBOX_PARKED_LIST:
        parked_list(s, r);
        break;
    case OUTBOX_PARKED_READ:
        parked_read(s, r, p);
        break;
    case OUTBOX_UNPARK:
        unpark(s, r, word);
        break;
    case OUTBOX_WRITE:
        outbox_written(&k->o, s->now_ms, position_write(s, r, p));
        break;
    case OUTBOX_TURN:
        outbox_turned(&k->o, s->now_ms, word, false);
        break;
    default:
        break;
    }
}

static void question(struct sim *s, size_t r, const struct outbox_action *a)
{
    struct relay *k = &s->relays[r];
    struct reply *p = &k->replies[a->kind];

    if (p->is_out) {
        broken(s, "twice", "a question of kind %d is asked while it is out", a->kind);
        return;
    }
    *p = (struct reply){.is_out = true, .a = *a, .lease = k->o.lease.number};
    p->at_ms = s->now_ms + random_between(&s->random, 1, chance(s, 100) ? 5000 : 4);
    if (a->exchange)
        snprintf(p->exchange, sizeof(p->exchange), "%.*s", (int)a->exchange->name.len,
                 a->exchange->name.data);
    if (a->batch)
        snprintf(p->batch, sizeof(p->batch), "%s", a->batch->text);
}

/* --- the broker --- */

/* Checks that each row of a routing key arrives after all earlier ones that the broker takes. */
static void keyed_stored(struct sim *s, size_t row)
{
    for (size_t i = 0; i < row && !s->rows[row].stored; i++)
        if (s->rows[i].fate == KEYED && !s->rows[i].stored && strcmp(s->rows[i].key, s->rows[row].key) == 0)
            broken(s, "key", "row %zu overtakes row %zu of the same routing key", row, i);
}

static bool is_returned(const struct sim *s, const struct sim_row *row)
{
    if (row->fate == KEYED && s->keyed == KEYED_RETURNS)
        return !*s->keyed_key || strcmp(s->keyed_key, row->key) == 0;
    return row->fate == UNROUTABLE;
}

static void stored(struct sim *s, size_t row)
{
    if (s->rows[row].fate == KEYED)
        keyed_stored(s, row);
    else if (!s->rows[row].stored && !s->rows[row].letter && !s->rows[row].refused && !s->nacked &&
             is_sound(s->rows[row].fate)) {
        for (size_t i = row + 1; i < s->latest; i++)
            if (s->rows[i].stored && s->rows[i].fate == s->rows[row].fate) {
                broken(s, "order", "row %zu comes behind row %zu", row, i);
                break;
            }
    }
    if (!s->rows[row].stored && s->rows[row].fate == FLAKY)
        say(s, s->holder, "has stored row", (int64_t)row, 0);
    s->rows[row].stored = true;
    if (row + 1 > s->latest)
        s->latest = row + 1;
}

static void send(struct sim *s, size_t r, const struct outbox_action *a)
{
    struct relay *k = &s->relays[r];
    size_t row = a->row->parked ? s->parked[a->row->seq - 1].row : (size_t)a->row->seq;
    enum fate fate = s->rows[row].fate;

    if (k->blocked || s->now_ms < k->body_ms)
        broken(s, "blocked", "row %zu is sent to a broker that takes none", row);
    outbox_sent(&k->o, s->now_ms, a->row, ++k->tag);
    if (k->o.sent.len > OUTBOX_OUT_MAX)
        broken(s, "bound", "%zu are out", k->o.sent.len);
    if (a->row->number == s->rows[row].careful[r] && k->o.sent.len > 1)
        broken(s, "nack", "row %zu, which was out beside a nack, goes again beside others", row);
    if (chance(s, 20))
        k->body_ms = s->now_ms + random_between(&s->random, 1, 300);
    if (k->doomed)
        return; /* the broker ignores the channel from now on */
    if (fate == MISSING || fate == FORBIDDEN || fate == REFUSED || fate == CRASHES || fate == KEYED_REFUSED ||
        (fate == FLAKY && s->flaky_off) || (fate == KEYED && s->keyed == KEYED_MISSING)) {
        k->doomed = s->rows[row].refused = true;
        k->doomed_code = fate == MISSING     ? 404
                         : fate == FLAKY     ? 404
                         : fate == KEYED     ? 404
                         : fate == FORBIDDEN ? 403
                         : fate == CRASHES   ? INTERNAL_ERROR
                                             : 406;
        k->doomed_at_ms = s->now_ms + random_between(&s->random, 1, 5);
        /* Rows that the relay has dropped meanwhile, as over a restored dump, may still be in flight. */
        if ((fate == MISSING || fate == FORBIDDEN) && k->n_out && k->o.sent.len > 1)
            broken(s, "company", "row %zu closes the channel over %zu others", row, k->n_out);
        return;
    }
    int64_t whole_ms = s->now_ms < k->body_ms ? k->body_ms : s->now_ms;

    k->out[k->n_out++] =
        (struct publish){row, a->row->number, k->tag, whole_ms + random_between(&s->random, 1, 8)};
}

/* Confirms due rows, one or many at once. */
static void confirm(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];
    size_t n = 0;

    while (n < k->n_out && k->out[n].at_ms <= s->now_ms)
        n++;
    if (!n)
        return;
    bool multiple = random_chance(&s->random, 5000);
    for (size_t i = 0; i < n; i++) {
        const struct publish *p = &k->out[i];
        bool no = chance(s, 5);
        char id[24];

        if (is_returned(s, &s->rows[p->row])) {
            snprintf(id, sizeof(id), "%zu", s->rows[p->row].id);
            outbox_returned(&k->o, slice_of(exchanges[s->rows[p->row].fate]), slice_of(s->rows[p->row].key),
                            slice_of(id), 1);
            no = false;
        } else if (no) {
            s->nacked = true;
            for (size_t j = 0; j < k->n_out; j++)
                s->rows[k->out[j].row].careful[r] = k->out[j].number;
        } else {
            stored(s, p->row);
        }
        if (no || !multiple || i + 1 == n)
            outbox_confirmed(&k->o, s->now_ms, p->tag, multiple && !no, no);
    }
    memmove(k->out, k->out + n, (k->n_out - n) * sizeof(*k->out));
    k->n_out -= n;
}

/* Drops a connection. Rows that the broker received may be stored although their confirms are lost: in order, but any
 * of those to the ordered exchange, as by a broker that crashes between its writes of small and large bodies. */
static void out_dropped(struct sim *s, struct relay *k)
{
    size_t n = (size_t)random_below(&s->random, k->n_out + 1);

    for (size_t i = 0; i < k->n_out; i++) {
        enum fate fate = s->rows[k->out[i].row].fate;

        if (fate == KEYED ? !is_returned(s, &s->rows[k->out[i].row]) && random_chance(&s->random, 5000)
                          : i < n && is_sound(fate))
            stored(s, k->out[i].row);
    }
    k->n_out = 0;
    k->doomed = false;
}

/* Makes the broker short of memory for a while. */
static void block_step(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];

    if (s->calm && k->unblocked_ms > s->now_ms + 1000)
        k->unblocked_ms = s->now_ms + 1000;
    if (!k->blocked && chance(s, s->fault_chance / 2)) {
        k->blocked = true;
        k->unlinked_ms = s->now_ms;
        k->unblocked_ms =
            s->now_ms + random_between(&s->random, 1, random_chance(&s->random, 500) ? 60000 : 2000);
        say(s, r, "is blocked until", k->unblocked_ms, 0);
        outbox_blocked(&k->o, true);
    } else if (k->blocked && s->now_ms >= k->unblocked_ms) {
        k->blocked = false;
        outbox_blocked(&k->o, false);
    }
}

static void unlink_broker(struct sim *s, size_t r, int code, int64_t most_ms)
{
    struct relay *k = &s->relays[r];

    say(s, r, "loses the broker", (int64_t)k->n_out, code);
    out_dropped(s, k);
    k->linked = k->open = false;
    k->unlinked_ms = s->now_ms;
    k->linked_at_ms = s->now_ms + random_between(&s->random, 1, most_ms);
    outbox_unlinked(&k->o, s->now_ms, code, "the connection was closed");
}

static void broker_step(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];

    if (!k->linked && s->now_ms >= k->linked_at_ms) {
        k->linked = k->open = true;
        k->blocked = false;
        k->body_ms = 0;
        k->tag = 0;
        outbox_linked(&k->o, s->now_ms);
    } else if (k->linked && chance(s, s->fault_chance)) {
        bool closed = s->n_closed < CLOSED_MAX && k->n_out && random_chance(&s->random, 500);

        s->n_closed += closed;
        unlink_broker(s, r, closed ? INTERNAL_ERROR : 0, random_chance(&s->random, 500) ? 60000 : 2000);
    }
    if (k->linked && k->doomed && k->doomed_code == INTERNAL_ERROR && s->now_ms >= k->doomed_at_ms)
        unlink_broker(s, r, INTERNAL_ERROR, 500);
    if (!k->linked)
        return;
    if (k->doomed && s->now_ms >= k->doomed_at_ms) {
        say(s, r, "channel closed", k->doomed_code, (int64_t)k->o.sent.len);
        if (k->doomed_code != 403) /* earlier rows were accepted; their confirms may be lost */
            for (size_t i = 0; i < k->n_out; i++)
                if (is_sound(s->rows[k->out[i].row].fate) && !is_returned(s, &s->rows[k->out[i].row]))
                    stored(s, k->out[i].row);
        k->n_out = 0;
        k->doomed = k->open = false;
        k->body_ms = 0;
        k->tag = 0;
        k->open_at_ms = s->now_ms + 1;
        outbox_channel_lost(&k->o, s->now_ms, k->doomed_code, "the channel was closed");
    } else if (!k->open && s->now_ms >= k->open_at_ms) {
        k->open = true;
        outbox_channel_open(&k->o, s->now_ms);
    }
    block_step(s, r);
    confirm(s, r);
}

/* --- a relay --- */

static void relay_start(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];
    static char keyed[] = "keyed";
    static char *const ordered[] = {keyed};
    struct outbox_rules rules = {
        .poll_ms = 50, .max_message_bytes = 1000, .ordered = ordered, .n_ordered = 1};

    s->n_lives++;
    *k = (struct relay){.alive = true, .linked_at_ms = s->now_ms + random_between(&s->random, 1, 500)};
    outbox_init(&k->o, &rules, s->now_ms);
    for (size_t i = 0; i < s->n_rows; i++)
        s->rows[i].careful[r] = 0;
    k->database_at_ms = s->now_ms + random_between(&s->random, 1, 500);
}

static void relay_kill(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];

    say(s, r, "is killed", (int64_t)k->n_out, 0);
    out_dropped(s, k);
    outbox_deinit(&k->o);
    k->alive = false;
    k->frozen_until_ms = s->now_ms + random_between(&s->random, 1, 20000); /* until its restart */
}

static void database_step(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];

    if (!k->database && s->now_ms >= k->database_at_ms) {
        k->database = true;
        k->busy_ms = s->now_ms;
        outbox_database(&k->o, s->now_ms, true, NULL);
    } else if (k->database && chance(s, s->fault_chance / 2)) {
        say(s, r, "loses the database", 0, 0);
        for (size_t i = 0; i < OUTBOX_TELL; i++) {
            struct reply *p = &k->replies[i];

            if (p->is_out && p->a.kind == OUTBOX_WRITE && random_chance(&s->random, 5000))
                position_write(s, r, p); /* written, but the answer is lost */
            p->is_out = false;
        }
        k->database = false;
        k->database_at_ms = s->now_ms + random_between(&s->random, 1, 3000);
        outbox_database(&k->o, s->now_ms, false, "lost");
    }
    for (size_t i = 0; i < OUTBOX_TELL; i++)
        if (k->replies[i].is_out && s->now_ms >= k->replies[i].at_ms)
            answer(s, r, &k->replies[i]);
}

static void tell_action(struct sim *s, size_t r, const struct outbox_action *a)
{
    static const char *const kinds[] = {
        [OUTBOX_REGISTER] = "registers",
        [OUTBOX_LEASE] = "asks for the lease",
        [OUTBOX_GIVE_UP] = "gives the lease up",
        [OUTBOX_RESTORE] = "restores",
        [OUTBOX_LOOK] = "looks up",
        [OUTBOX_READ] = "reads",
        [OUTBOX_SEND] = "sends",
        [OUTBOX_DEAD_LETTERS] = "writes dead letters",
        [OUTBOX_WRITE] = "writes the position",
        [OUTBOX_PARKED_LIST] = "lists parked rows",
        [OUTBOX_PARKED_READ] = "reads parked rows",
        [OUTBOX_UNPARK] = "deletes parked rows",
        [OUTBOX_TURN] = "turns",
        [OUTBOX_TELL] = "tells",
    };
    const struct outbox *o = &s->relays[r].o;

    if (s->trace.mode)
        tell(
            s,
            "relay %zu  %s row %lld batch %s seq %lld n %d told %d %s; %zu rows, %zu parked, %zu bytes, lag %lld ms",
            r, kinds[a->kind], a->row ? (long long)a->row->seq : -1, a->batch ? a->batch->text : "",
            (long long)a->seq, a->n, (int)a->told, a->text ? a->text : "", o->rows.len, o->parked_rows.len,
            o->n_bytes, (long long)o->lag_ms);
}

static void relay_act(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];
    struct outbox_action a;

    for (int n = 0; outbox_next(&k->o, s->now_ms, k->linked && k->open && s->now_ms >= k->body_ms, &a); n++) {
        if (n > ACTIONS_MAX) {
            broken(s, "busy", "more than %d actions in a millisecond", ACTIONS_MAX);
            return;
        }
        tell_action(s, r, &a);
        if (a.kind == OUTBOX_SEND)
            send(s, r, &a);
        else if (a.kind != OUTBOX_TELL)
            question(s, r, &a);
        if (chance(s, 2)) {
            relay_kill(s, r);
            return;
        }
    }
    if (k->o.rows.len > OUTBOX_HELD_MAX)
        broken(s, "bound", "%zu rows in memory", k->o.rows.len);
}

static void relay_step(struct sim *s, size_t r)
{
    struct relay *k = &s->relays[r];

    if (s->calm && k->frozen_until_ms > s->now_ms + 1000)
        k->frozen_until_ms = s->now_ms + 1000;
    if (s->now_ms < k->frozen_until_ms)
        return;
    if (!k->alive) {
        relay_start(s, r);
        return;
    }
    if (chance(s, s->fault_chance / 4)) {
        k->frozen_until_ms = s->now_ms + random_between(&s->random, 10, 30000); /* SIGSTOP */
        k->busy_ms = k->frozen_until_ms;
        say(s, r, "is frozen until", k->frozen_until_ms, 0);
        return;
    }
    broker_step(s, r);
    database_step(s, r);
    relay_act(s, r);
    if (k->alive && s->holder == r && k->database && (!k->linked || k->blocked) &&
        (k->o.rows.len || k->o.parked_rows.len) && s->now_ms - k->unlinked_ms > SILENT_MS &&
        s->now_ms - k->busy_ms > SILENT_MS)
        broken(s, "silent", "it holds the lease, and the broker has taken nothing for %d s",
               SILENT_MS / 1000);
}

/* --- the world --- */

static void publish_some(struct sim *s)
{
    size_t n = random_chance(&s->random, s->publish_chance) ? (size_t)random_below(&s->random, 60) : 0;

    for (size_t i = 0; i < n && s->n_rows < N_ROWS_MAX; i++) {
        uint64_t kind = random_below(&s->random, 1000);
        struct sim_row *row = &s->rows[s->n_rows];
        bool is_twin = s->n_rows && random_chance(&s->random, 500);

        /* As with a headers exchange: a return cannot tell the two apart. */
        row->id = is_twin ? row[-1].id : s->n_rows;
        s->n_rows++;
        snprintf(row->key, sizeof(row->key), "k");
        if (random_chance(&s->random, s->keyed_chance)) {
            row->fate = kind < 980 ? KEYED : KEYED_REFUSED;
            snprintf(row->key, sizeof(row->key), "k%u", (unsigned)random_below(&s->random, 4));
            continue;
        }
        row->fate = kind < 700   ? GOOD
                    : kind < 900 ? FLAKY
                    : kind < 940 ? UNROUTABLE
                    : kind < 960 ? MISSING
                    : kind < 980 ? FORBIDDEN
                    : kind < 997 ? REFUSED
                                 : CRASHES;
    }
}

/* Deletes an exchange, and declares it again. */
static void flaky_step(struct sim *s)
{
    if (s->calm)
        s->flaky_off = false;
    if (s->calm || s->now_ms < s->flaky_at_ms)
        return;
    s->flaky_off = !s->flaky_off;
    s->flaky_at_ms = s->now_ms + random_between(&s->random, 1, random_chance(&s->random, 5000) ? 500 : 20000);
}

/* Takes a binding of the ordered exchange away, all of them, or the exchange. */
static void keyed_step(struct sim *s)
{
    if (s->calm)
        s->keyed = KEYED_TAKES;
    if (s->calm || s->now_ms < s->keyed_at_ms)
        return;
    s->keyed = s->keyed != KEYED_TAKES ? KEYED_TAKES : 1 + (enum keyed)random_below(&s->random, 2);
    s->keyed_key[0] = '\0';
    if (random_chance(&s->random, 5000))
        snprintf(s->keyed_key, sizeof(s->keyed_key), "k%u", (unsigned)random_below(&s->random, 4));
    s->keyed_at_ms = s->now_ms + random_between(&s->random, 1, random_chance(&s->random, 5000) ? 500 : 20000);
}

static bool has_parked(const struct sim *s)
{
    for (size_t i = 0; i < s->n_parked; i++)
        if (!s->parked[i].deleted && strcmp(exchanges[s->rows[s->parked[i].row].fate], "missing") != 0 &&
            strcmp(exchanges[s->rows[s->parked[i].row].fate], "forbidden") != 0)
            return true;
    return false;
}

/* Restores an earlier dump: the position goes back, and later rows are gone from the database. */
static void restore(struct sim *s)
{
    size_t back = (size_t)random_below(&s->random, s->position + 1);

    say(s, 0, "a dump is restored: position", (int64_t)s->position, (int64_t)back);
    s->position = back;
    for (size_t i = 0; i < s->n_parked; i++)
        if (s->parked[i].row >= back && !s->parked[i].deleted)
            s->parked[i].deleted = !(s->rows[s->parked[i].row].parked = false);
    s->restored = true;
    s->holder = N_RELAYS_MAX;
    s->lease += 5;
    for (size_t r = 0; r < s->n_relays; r++)
        if (s->relays[r].alive && s->relays[r].database) {
            s->relays[r].database = false;
            s->relays[r].database_at_ms = s->now_ms + 100;
            for (size_t i = 0; i < OUTBOX_TELL; i++)
                s->relays[r].replies[i].is_out = false;
            outbox_database(&s->relays[r].o, s->now_ms, false, "lost");
        }
}

static void look(struct sim *s)
{
    static const enum dead_reason reasons[] = {
        [UNROUTABLE] = DEAD_UNROUTABLE,          [MISSING] = DEAD_NO_EXCHANGE,
        [FORBIDDEN] = DEAD_REFUSED_BY_BROKER,    [REFUSED] = DEAD_REFUSED_BY_BROKER,
        [CRASHES] = DEAD_REFUSED_BY_BROKER,      [FLAKY] = DEAD_NO_EXCHANGE,
        [KEYED_REFUSED] = DEAD_REFUSED_BY_BROKER};

    for (size_t i = 0; i < s->n_rows; i++) {
        const struct sim_row *row = &s->rows[i];

        if ((row->fate == GOOD || row->fate == KEYED) && !row->stored)
            broken(s, "lost", "row %zu of %zu never came to the broker", i, s->n_rows);
        if (row->fate == FLAKY && (row->stored || row->letter))
            continue;
        if ((row->fate == MISSING || row->fate == FORBIDDEN) && row->parked)
            continue;
        if (row->fate != GOOD && row->fate != KEYED && row->letter != (int)reasons[row->fate] + 1)
            broken(s, "letter", "row %zu has not the letter that it should have, but %d", i, row->letter);
    }
    if (s->position < s->n_rows)
        broken(s, "stuck", "the position is %zu of %zu rows", s->position, s->n_rows);
}

void outbox_run(uint64_t seed, enum trace_mode trace, struct outcome *out)
{
    struct sim *s = mem_zalloc(1, sizeof(*s));

    *out = (struct outcome){0};
    s->random = seed * 0x9e3779b97f4a7c15u + 7;
    s->out = out;
    s->trace.mode = trace;
    s->now_ms = 1000;
    s->holder = N_RELAYS_MAX;
    s->n_relays = 1 + (size_t)random_below(&s->random, N_RELAYS_MAX);
    s->fault_chance = random_chance(&s->random, 3000) ? 1 : (unsigned)random_below(&s->random, 20);
    /* Either all rows within some seconds, most of them waiting, or some now and then during the faults. */
    s->publish_chance = random_chance(&s->random, 5000) ? 100 : 5;
    s->keyed_chance = random_chance(&s->random, 5000) ? 0 : (unsigned)random_below(&s->random, 10000);
    for (size_t r = 0; r < s->n_relays; r++)
        relay_start(s, r);
    while (!out->broken && s->now_ms < FAULTS_MS + CALM_MS) {
        s->now_ms++;
        s->calm = s->now_ms > FAULTS_MS;
        if (!s->calm)
            publish_some(s);
        flaky_step(s);
        keyed_step(s);
        if (chance(s, 1) && random_chance(&s->random, 2000))
            restore(s);
        for (size_t r = 0; r < s->n_relays && !out->broken; r++)
            relay_step(s, r);
        if (s->calm && s->position == s->n_rows && !has_parked(s))
            break;
    }
    if (!out->broken)
        look(s);
    for (size_t r = 0; r < s->n_relays; r++)
        if (s->relays[r].alive)
            outbox_deinit(&s->relays[r].o);
    out->trace_hash = s->trace.hash;
    free(s->parked);
    free(s);
}
