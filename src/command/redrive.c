/* onceward dead redrive: one letter at a time; first its row, then the broker, then the letter.
 *
 * A redrive may be interrupted at any point and run again. A row that was reset stays so. A message that was published
 * but not confirmed is published again with the same id, and the inbox lets one copy through. A letter is deleted only
 * after the broker's confirm. A letter's new id is derived from the letter, so that the same holds for it.
 *
 * The id is looked for in the stored message with the present configuration, as the sidecar will do. A message with
 * an id is published unchanged, and the row of that id decides; an existing id is never replaced. */

#include "command/common.h"
#include "command/dead.h"

#include "onceward/base/buf.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/mem.h"
#include "onceward/base/sha256.h"
#include "onceward/broker/broker.h"
#include "onceward/broker/decode.h"
#include "onceward/broker/publisher.h"
#include "onceward/config/json.h"
#include "onceward/core/identity.h"
#include "onceward/core/message.h"
#include "onceward/core/outbox.h"
#include "onceward/core/reasons.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOCKED_TRIES = 25, LOCKED_PAUSE_MS = 200 };

struct outlet {
    char *vhost;
    struct publisher *publisher;
};

struct redrive {
    const struct dead_options *options;
    const struct config *config;
    struct admin *admin;
    struct pace pace;
    struct outlet *outlets; /* a connection for each vhost so far */
    size_t n_outlets;
    struct fault fault;
    int64_t n_seen, n_done, n_completed, n_left;
};

/* Destination of a letter, with the sources of its queue for message ids, and the id that the queue will find. */
struct target {
    const struct config_queue *q;
    const char *queue;
    const char *exchange, *routing_key; /* "" and the queue; for an ordered queue, as the message arrived */
    struct buf words;                   /* the destination, for a person */
    char *vhost;
    struct buf id;
    bool is_new; /* the id was added here */
};

static void target_address(struct target *t, const struct dead_letter *l)
{
    t->exchange = "";
    t->routing_key = t->queue;
    if (t->q->order.key.n && l->exchange && *l->exchange) {
        t->exchange = l->exchange;
        t->routing_key = l->routing_key ? l->routing_key : "";
        buf_printf(&t->words, "exchange \"%s\" with routing key \"%s\"", t->exchange, t->routing_key);
    } else {
        buf_add_text(&t->words, t->queue);
    }
}

/* Sets the destination. A message of an ordered queue goes to its former exchange and routing key, which lead to the
 * partition of its key. */
static int target_init(struct target *t, const struct config *c, const struct config_queue *q,
                       const struct dead_letter *l, struct fault *f)
{
    *t = (struct target){.q = q, .queue = l->queue};
    /* The queue that the letter died in was renamed or rebuilt since. */
    if (t->q->takes_over && strcmp(t->q->takes_over, l->queue) == 0) {
        t->queue = t->q->queue;
        if (broker_vhost(&c->broker, t->q, &t->vhost, f))
            return -1;
    } else {
        t->vhost = mem_copy(l->vhost, strlen(l->vhost));
    }
    target_address(t, l);
    return 0;
}

/* Makes the message as published, without the headers of its first journey, from the original bytes. A letter of an
 * older program has only their JSON. */
static struct message *make_message(const struct dead_letter *l, struct fault *f)
{
    struct message *m = message_new();
    size_t n = 0;

    if (l->content_header) {
        if (message_decode(m, (struct slice){l->content_header, l->content_header_len})) {
            fault_set(f, "the stored content header does not have the form that AMQP gives it");
            message_free(m);
            return NULL;
        }
    } else if ((l->headers && jsonread_fields(slice_of(l->headers), m, f)) ||
               (l->properties && jsonread_properties(slice_of(l->properties), m, f))) {
        fault_wrap(f, "the stored properties or headers cannot be read");
        message_free(m);
        return NULL;
    }
    for (size_t i = 0; i < m->n_headers; i++)
        if (!header_is_spent(m->headers[i].name))
            m->headers[n++] = m->headers[i];
    m->n_headers = n;
    /* The broker would drop the message again, or refuse another user's name. */
    m->properties[PROPERTY_EXPIRATION] = (struct slice){0};
    m->properties[PROPERTY_USER_ID] = (struct slice){0};
    m->body_len = l->body_len;
    m->body = l->body_len ? mem_copy(l->body, l->body_len) : NULL;
    return m;
}

/* Finds the id that the sidecar will find. -1: no usable one, f says why. */
static int find_id(const struct message *m, const struct config_queue *q, struct buf *found, struct fault *f)
{
    return identity_find(q->message_id.items, q->message_id.n, m, jsonread_id, found, f) == IDENTITY_FOUND
               ? 0
               : -1;
}

static void set_header(struct message *m, struct slice name, struct slice value)
{
    struct field *headers = message_alloc(m, (m->n_headers + 1) * sizeof *headers);
    size_t n = 0;

    for (size_t i = 0; i < m->n_headers; i++)
        if (!slice_equal(m->headers[i].name, name))
            headers[n++] = m->headers[i];
    headers[n++] = (struct field){.name = name, .kind = FIELD_STRING, .bytes = value};
    m->headers = headers;
    m->n_headers = n;
}

/* Writes the id where the queue looks for it. An id inside the body cannot be set, since the body is the
 * publisher's. */
static int set_id(struct message *m, const struct config_queue *q, const char *id, struct fault *f)
{
    struct slice value = message_keep(m, id, strlen(id));
    struct buf found = {0};
    struct fault ignored;
    bool ok = false;

    for (size_t i = 0; i < q->message_id.n && !ok; i++) {
        const struct identity_source *source = &q->message_id.items[i];
        int property = source->kind == IDENTITY_PROPERTY ? property_find(source->name) : -1;
        struct message before = *m;

        if (property >= 0)
            m->properties[property] = value;
        else if (source->kind == IDENTITY_HEADER)
            set_header(m, source->name, value);
        else
            continue;
        ok = find_id(m, q, &found, &ignored) == 0 && slice_equal(buf_slice(&found), slice_of(id));
        if (!ok) {
            memcpy(m->properties, before.properties, sizeof m->properties);
            m->headers = before.headers;
            m->n_headers = before.n_headers;
        }
    }
    buf_deinit(&found);
    return ok ? 0
              : fault_set(f,
                          "queues.%s.message_id does not look in a property or header for it first, so it "
                          "cannot be given a new id; "
                          "`onceward dead show --body raw` writes the body",
                          q->name);
}

/* A UUID (RFC 9562, version 8) derived from the letter's identity. */
static void make_id(const struct dead_letter *l, char out[37])
{
    struct buf text = {0};
    uint8_t digest[32];

    buf_printf(&text, "onceward redrive\n%s\n%" PRId64 "\n%s\n%s", l->consumer, l->id, l->died_at,
               l->fingerprint_hex ? l->fingerprint_hex : "");
    sha256(text.data, text.len, digest);
    digest[6] = (uint8_t)((digest[6] & 0x0F) | 0x80);
    digest[8] = (uint8_t)((digest[8] & 0x3F) | 0x80);
    buf_reset(&text);
    buf_add_hex(&text, digest, 16);
    snprintf(out, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", text.data, text.data + 8, text.data + 12, text.data + 16,
             text.data + 20);
    buf_deinit(&text);
}

/* Adds an id to a message without a usable one: the id of its row if the present configuration does not find
 * that, or one derived from the letter. 0, or -1: the letter must stay, f says why. */
static int add_id(const struct redrive *r, struct target *t, const struct dead_letter *l, struct message *m,
                  struct fault *f)
{
    char made[37];

    if (!r->options->new_id.given)
        return fault_wrap(f, "correct queues.%s.message_id, or redrive it with --new-id", t->q->name);
    make_id(l, made);
    buf_reset(&t->id);
    buf_add_text(&t->id, r->options->new_id.value       ? r->options->new_id.value
                         : !l->rowless && l->message_id ? l->message_id
                                                        : made);
    t->is_new = true;
    return set_id(m, t->q, buf_text(&t->id), f);
}

/* Makes the message with its final id. NULL: the letter must stay, f says why. */
static struct message *prepare(const struct redrive *r, struct target *t, const struct dead_letter *l,
                               struct fault *f)
{
    if (t->q->order.key.n && !r->options->out_of_order) {
        fault_set(f, "its queue is ordered, and the message would go behind its successors; redrive it "
                     "with --out-of-order if that is acceptable");
        return NULL;
    }
    struct message *m = make_message(l, f);
    int failed;

    if (!m)
        return NULL;
    if (find_id(m, t->q, &t->id, f))
        failed = add_id(r, t, l, m, f);
    else
        failed =
            r->options->new_id.value
                ? fault_set(f, "it has the id \"%s\", which is not replaced: redrive it without --new-id",
                            buf_text(&t->id))
                : 0;
    if (!failed)
        return m;
    message_free(m);
    return NULL;
}

static int open_outlet(struct redrive *r, const char *vhost, struct publisher **ret)
{
    struct publisher *p;

    for (size_t i = 0; i < r->n_outlets; i++) {
        if (strcmp(r->outlets[i].vhost, vhost) == 0) {
            *ret = r->outlets[i].publisher;
            return 0;
        }
    }
    if (publisher_open(&r->config->broker, vhost, r->config->instance, &p, &r->fault))
        return -1;
    r->outlets = mem_realloc(r->outlets, (r->n_outlets + 1) * sizeof *r->outlets);
    r->outlets[r->n_outlets++] = (struct outlet){mem_copy(vhost, strlen(vhost)), p};
    *ret = p;
    return 0;
}

static void drop_outlet(struct redrive *r, struct publisher *p)
{
    for (size_t i = 0; i < r->n_outlets; i++) {
        if (r->outlets[i].publisher != p)
            continue;
        free(r->outlets[i].vhost);
        r->outlets[i] = r->outlets[--r->n_outlets];
    }
    publisher_close(p);
}

/* The dead letter stays. */
#define LEFT (&(struct letter_news){.event = EVENT_LETTER_LEFT})

static int leave(struct redrive *r, const struct dead_letter *l, const char *reason)
{
    letter_tell(r->options, l, LEFT, "%s", reason);
    r->n_left++;
    return 1;
}

/* Handles a missing confirm. 0: the broker has refused this message, or it cannot be sent, and the next one may
 * follow; -1: unknown outcome. */
static int not_confirmed(struct redrive *r, struct publisher *p, const struct dead_letter *l)
{
    static const char connection_forced[] = "320"; /* an operator stops the broker, or its virtual host */
    bool is_answer = r->fault.code[0] && strcmp(r->fault.code, connection_forced) != 0;

    if (publisher_is_lost(p) && !is_answer) {
        leave(r, l, "not confirmed by the broker; run this again");
        return -1;
    }
    leave(r, l, r->fault.text);
    if (publisher_is_lost(p))
        drop_outlet(r, p);
    return 0;
}

/* Acts on the row's answer, except for "try again". 0: publish; 1: nothing more to do. */
static int obey_row(struct redrive *r, const struct dead_letter *l, enum redrive_answer answer)
{
    switch (answer) {
    case REDRIVE_RESET:
    case REDRIVE_OTHER: /* reset before, or claimed for another copy: the inbox lets one of them through */
        return 0;
    case REDRIVE_COMPLETED:
        letter_tell(r->options, l, &(struct letter_news){.event = EVENT_DISCARDED},
                    r->options->dry_run ? "was completed meanwhile: the dead letter would be deleted"
                                        : "was completed meanwhile; the dead letter is deleted");
        r->n_completed++;
        return 1;
    case REDRIVE_GONE:
        letter_tell(r->options, l, LEFT, "gone meanwhile");
        return 1;
    case REDRIVE_LOCKED:
        return leave(
            r, l,
            "an application holds the lock of its row; `onceward status` shows which. Run this again later");
    case REDRIVE_HELD:
        return leave(r, l, "it is being processed under the id that it died under. Run this again later");
    case REDRIVE_MISMATCH:
        return leave(
            r, l,
            "the row of its id belongs to another body. To keep both messages, let message_id use a field "
            "that differs");
    }
    return 0;
}

/* Resets the row. 0: publish; 1: nothing more to do; -1. */
static int ready_row(struct redrive *r, struct target *t, const struct dead_letter *l)
{
    enum redrive_answer answer = REDRIVE_LOCKED;

    for (int i = 0; i < LOCKED_TRIES && answer == REDRIVE_LOCKED; i++) {
        if (i)
            nanosleep(&(struct timespec){.tv_nsec = LOCKED_PAUSE_MS * 1000000L}, NULL);
        if (admin_redrive_begin(r->admin, l, buf_text(&t->id), &answer, &r->fault))
            return -1;
    }
    return obey_row(r, l, answer);
}

/* Reports a redriven letter (or one that would be), with a new or additional id. */
static void tell_redriven(struct redrive *r, struct target *t, const struct dead_letter *l, const char *words)
{
    const char *id = buf_text(&t->id);
    bool is_other = t->is_new || !l->message_id || strcmp(l->message_id, id) != 0;

    letter_tell(r->options, l, &(struct letter_news){EVENT_REDRIVEN, t->queue, id}, "%s %s%s%s", words,
                buf_text(&t->words),
                !is_other   ? ""
                : t->is_new ? " with the new id "
                            : " with its id ",
                is_other ? id : "");
    r->n_done++;
}

/* Publishes, then deletes the letter. */
static int publish(struct redrive *r, struct target *t, const struct dead_letter *l, const struct message *m)
{
    struct publisher *p;
    int answer;

    if (open_outlet(r, t->vhost, &p))
        return -1;
    FAILPOINT(REDRIVE_BEFORE);
    answer = ready_row(r, t, l);
    if (answer)
        return answer < 0 ? -1 : 0;
    FAILPOINT(REDRIVE_RESET);
    answer = t->is_new || !m->content_header.data
                 ? publisher_send(p, t->exchange, t->routing_key, m, &r->fault)
                 : publisher_send_raw(p, t->exchange, t->routing_key, m->content_header,
                                      (struct slice){m->body, m->body_len}, &r->fault);
    if (answer > 0) {
        letter_tell(r->options, l, LEFT, "there is no queue %s%s in vhost %s", *t->exchange ? "for " : "",
                    buf_text(&t->words), t->vhost);
        r->n_left++;
        return 0;
    }
    if (answer < 0)
        return not_confirmed(r, p, l);
    FAILPOINT(REDRIVE_CONFIRMED);
    if (admin_dead_delete(r->admin, l->id, &r->fault) < 0) {
        letter_tell(
            r->options, l, LEFT,
            "published to %s, but the dead letter could not be deleted; run this again: a second copy "
            "does no "
            "harm",
            buf_text(&t->words));
        return -1;
    }
    FAILPOINT(REDRIVE_DELETED);
    tell_redriven(r, t, l, "redriven to");
    return 0;
}

static int dry_run(struct redrive *r, struct target *t, const struct dead_letter *l)
{
    enum redrive_answer answer;

    if (admin_redrive_look(r->admin, l, buf_text(&t->id), &answer, &r->fault))
        return -1;
    if (obey_row(r, l, answer) == 0)
        tell_redriven(r, t, l,
                      answer == REDRIVE_OTHER
                          ? "would be redriven (its row is being processed, and stays as it is) to"
                          : "would be redriven to");
    return 0;
}

/* --- letters of the outbox --- */

/* Makes the message as published, which was never in a queue. */
static struct message *outbox_message(const struct dead_letter *l, struct fault *f)
{
    struct message *m = message_new();

    if ((l->headers && jsonread_fields(slice_of(l->headers), m, f)) ||
        (l->properties && jsonread_properties(slice_of(l->properties), m, f))) {
        fault_wrap(f, "the stored properties or headers cannot be read");
        message_free(m);
        return NULL;
    }
    if (l->message_id)
        m->properties[PROPERTY_MESSAGE_ID] = slice_of(l->message_id);
    m->body_len = l->body_len;
    m->body = l->body_len ? mem_copy(l->body, l->body_len) : NULL;
    return m;
}

/* Publishes, then deletes the letter. */
static int outbox_publish(struct redrive *r, const struct dead_letter *l, const struct message *m)
{
    const char *exchange = l->exchange ? l->exchange : "", *key = l->routing_key ? l->routing_key : "";
    struct publisher *p;
    int answer;

    if (open_outlet(r, l->vhost, &p))
        return -1;
    FAILPOINT(REDRIVE_BEFORE);
    answer = publisher_send_to(p, slice_of(exchange), slice_of(key), m, &r->fault);
    if (answer > 0) {
        leave(r, l, "the exchange still has no queue for its routing key");
        return 0;
    }
    if (answer < 0)
        return not_confirmed(r, p, l);
    FAILPOINT(REDRIVE_CONFIRMED);
    if (admin_dead_delete(r->admin, l->id, &r->fault) < 0)
        return -1;
    FAILPOINT(REDRIVE_DELETED);
    letter_tell(r->options, l, &(struct letter_news){EVENT_REDRIVEN, key, l->message_id},
                "redriven to exchange \"%s\" with routing key \"%s\"", exchange, key);
    r->n_done++;
    return 0;
}

static bool is_ordered(const struct config *c, const struct dead_letter *l)
{
    for (size_t i = 0; i < c->outbox.ordered.n; i++)
        if (slice_equal(slice_of(c->outbox.ordered.items[i]), slice_of(l->exchange)))
            return true;
    return false;
}

static int outbox_redrive(struct redrive *r, const struct dead_letter *l)
{
    const struct config_names *allowed = &r->config->outbox.exchanges;
    struct fault f = {0};
    struct message *m;
    int answer = 0;

    if (!r->config->outbox.is_there) {
        leave(r, l, "this configuration has no outbox: use the one that does");
        return 0;
    }
    if (!outbox_allows(allowed->items, allowed->n, slice_of(l->exchange))) {
        leave(r, l, "the exchange is not in outbox.exchanges");
        return 0;
    }
    if (outbox_is_direct_reply(slice_of(l->exchange), slice_of(l->routing_key))) {
        leave(r, l, OUTBOX_DIRECT_REPLY);
        return 0;
    }
    if (is_ordered(r->config, l) && !r->options->out_of_order) {
        leave(r, l,
              "its exchange is in outbox.ordered, and the message would go behind its successors; redrive "
              "it with --out-of-order if that is acceptable");
        return 0;
    }
    if (r->options->dry_run) {
        letter_tell(r->options, l, &(struct letter_news){EVENT_REDRIVEN, l->routing_key, l->message_id},
                    "would be redriven to exchange \"%s\"", l->exchange ? l->exchange : "");
        r->n_done++;
        return 0;
    }
    m = outbox_message(l, &f);
    if (!m)
        leave(r, l, f.text);
    else
        answer = outbox_publish(r, l, m);
    message_free(m);
    return answer;
}

/* Finds the first queue with this consumer name. NULL: the configuration lacks it. */
static const struct config_queue *consumer_find(const struct config *c, const char *consumer)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (strcmp(c->queues[i].consumer, consumer) == 0)
            return &c->queues[i];
    return NULL;
}

static int redrive_one(void *ctx, const struct dead_letter *l)
{
    struct redrive *r = ctx;
    const struct config_queue *q = consumer_find(r->config, l->consumer);
    struct fault f = {0};
    struct target t;
    struct message *m;
    int answer = 0;

    r->n_seen++;
    if (pace_wait(&r->pace))
        return 1;
    letter_seen(r->options, l);
    if (strcmp(l->consumer, DEAD_OUTBOX) == 0 && !*l->queue)
        return outbox_redrive(r, l);
    /* Another configuration may use another broker, where a queue of that name would swallow the message. */
    if (!q) {
        leave(r, l, "this configuration does not have its consumer: use the one that does");
        return 0;
    }
    if (target_init(&t, r->config, q, l, &r->fault))
        return -1;
    m = prepare(r, &t, l, &f);
    if (!m)
        leave(r, l, f.text);
    else if (r->options->dry_run)
        answer = dry_run(r, &t, l);
    else
        answer = publish(r, &t, l, m);
    message_free(m);
    buf_deinit(&t.id);
    buf_deinit(&t.words);
    free(t.vhost);
    return answer;
}

static void summarize(const struct redrive *r, int answer, int64_t n_others)
{
    if (r->n_seen == 0 && !r->options->filter.n_ids)
        printf("No dead letters match.\n");
    else
        printf("\n%" PRId64 " %s, %" PRId64 " completed meanwhile, %" PRId64 " left%s.\n", r->n_done,
               r->options->dry_run ? "would be redriven" : "redriven", r->n_completed, r->n_left,
               answer ? "; ended early, the others are untouched" : "");
    if (n_others)
        printf("%" PRId64 " of consumers that this configuration does not have were left alone.\n", n_others);
}

int dead_redrive(const struct dead_options *o, const struct config *c, struct admin *a)
{
    struct redrive r = {.options = o, .config = c, .admin = a, .pace = {o->interval_us, 0}};
    struct dead_filter filter = o->filter;
    int64_t n_others;
    int answer;

    if (o->new_id.value && (!*o->new_id.value || strlen(o->new_id.value) > MESSAGE_ID_MAX ||
                            !slice_is_text(slice_of(o->new_id.value)))) {
        fprintf(stderr, "onceward dead redrive: an id has 1 to %d bytes of UTF-8\n", MESSAGE_ID_MAX);
        return STATUS_USAGE;
    }
    filter.limit = filter.limit < 0 ? 0 : filter.limit;
    if (dead_narrow(a, c, &filter, &n_others, &r.fault))
        return command_fail(&r.fault);
    pace_catch_signals();
    answer = admin_dead_each(a, &filter, true, redrive_one, &r, &r.fault);
    if (answer < 0)
        command_fail(&r.fault);
    if (!o->json)
        summarize(&r, answer, n_others);
    if (answer == 0 && !filter.limit)
        letters_tell_missing(o); /* not a failure: an earlier run may have redriven them */
    for (size_t i = 0; i < r.n_outlets; i++) {
        publisher_close(r.outlets[i].publisher);
        free(r.outlets[i].vhost);
    }
    free(r.outlets);
    return answer || r.n_left ? STATUS_FAILED : STATUS_DONE;
}
