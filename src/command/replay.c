/* onceward replay: publishes stored messages again, in the order of their first claims, to a queue with another
 * consumer.
 *
 * Up to PUBLISHER_WINDOW messages are in flight. The position in the database follows the confirmed ones, in order,
 * so an interrupted replay continues where it stopped. A replay ended by a signal waits for its confirms. After a
 * kill at most one window of messages is published again, with the same ids: the inbox of their new consumer lets one
 * copy through. */

#include "command/common.h"
#include "command/dead.h"
#include "command/progress.h"
#include "command/since.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/table.h"
#include "onceward/broker/broker.h"
#include "onceward/broker/publisher.h"
#include "onceward/core/identity.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SAVE_MS = 1000 };

struct options {
    const char *config, *consumer, *to, *since, *until, *type, *name;
    struct option_words ids;
    int64_t interval_us;
    bool dry_run, json, out_of_order;
};

/* Positions of the messages in flight, and of the one before them. */
enum { N_PLACES = PUBLISHER_WINDOW + 1 };

struct replay {
    const struct options *options;
    struct admin *admin;
    struct publisher *publisher;
    char *vhost; /* NULL: the broker's */
    struct buf what, name;
    struct message_filter filter;
    struct replay_position position;
    struct message_place places[N_PLACES]; /* of the latest published messages, by number */
    uint64_t n_pushed, n_saved;
    int64_t saved_ms;
    struct pace pace;
    struct progress progress;
    struct fault fault;
};

/* --- checks --- */

struct owners {
    const struct options *options;
    bool is_own, is_known;
};

static int look_at_owner(void *ctx, const char *consumer, const char *queue)
{
    struct owners *o = ctx;

    if (strcmp(consumer, o->options->consumer) == 0) {
        o->is_known = true;
        o->is_own |= strcmp(queue, o->options->to) == 0;
    }
    return 0;
}

/* 0, or the exit status. */
static int check_queue(const struct options *o, const struct config *c, struct admin *a, struct fault *f)
{
    struct owners owners = {.options = o};

    if (admin_consumers(a, look_at_owner, &owners, f))
        return command_fail(f);
    for (size_t i = 0; i < c->n_queues; i++) {
        owners.is_known |= strcmp(c->queues[i].consumer, o->consumer) == 0;
        owners.is_own |=
            strcmp(c->queues[i].consumer, o->consumer) == 0 && strcmp(c->queues[i].queue, o->to) == 0;
    }
    if (!owners.is_known)
        return command_no_consumer("replay", o->config, o->consumer);
    if (!owners.is_own)
        return STATUS_DONE;
    fprintf(
        stderr,
        "onceward replay: queue \"%s\" belongs to consumer \"%s\" itself: its rows show these messages as "
        "completed, so each would be acked without a request. Expected a queue of another consumer\n",
        o->to, o->consumer);
    return STATUS_USAGE;
}

/* 0, or the exit status. */
static int check_order(const struct options *o, const struct config *c)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (strcmp(c->queues[i].queue, o->to) == 0 && c->queues[i].order.key.n && !o->out_of_order) {
            fprintf(
                stderr,
                "onceward replay: queue \"%s\" is ordered, and the messages would go behind those that it "
                "has; replay with --out-of-order if that is acceptable\n",
                o->to);
            return STATUS_USAGE;
        }
    return STATUS_DONE;
}

/* --- settings --- */

static int find_vhost(struct replay *r, const struct config *c)
{
    const struct config_queue unknown = {0};

    for (size_t i = 0; i < c->n_queues; i++)
        if (strcmp(c->queues[i].queue, r->options->to) == 0)
            return broker_vhost(&c->broker, &c->queues[i], &r->vhost, &r->fault);
    return broker_vhost(&c->broker, &unknown, &r->vhost, &r->fault);
}

/* Quotes the id, so that different lists of ids have different texts. */
static void add_id(struct buf *out, const char *id)
{
    buf_add_char(out, '"');
    for (; *id; id++) {
        if (*id == '"')
            buf_add_char(out, '"');
        buf_add_char(out, *id);
    }
    buf_add_char(out, '"');
}

/* Names the replay. Without --name its name describes it; a long one is shortened by a digest, since it is a key of
 * the database. */
static void name_it(struct replay *r)
{
    enum { LONG_BYTES = 255 };
    const struct options *o = r->options;
    uint8_t digest[16];

    buf_printf(&r->what, "%s to %s", o->consumer, o->to);
    if (strcmp(r->vhost, "/") != 0)
        buf_printf(&r->what, " of virtual host %s", r->vhost);
    if (o->since)
        buf_printf(&r->what, " since %s", o->since);
    if (o->until)
        buf_printf(&r->what, " until %s", o->until);
    if (o->type)
        buf_printf(&r->what, " of type %s", o->type);
    for (size_t i = 0; i < o->ids.n; i++) {
        buf_add_text(&r->what, i ? ", " : " with id ");
        add_id(&r->what, o->ids.items[i]);
    }
    if (o->name || r->what.len <= LONG_BYTES) {
        buf_add_text(&r->name, o->name ? o->name : buf_text(&r->what));
        return;
    }
    fingerprint_make(r->what.data, r->what.len, digest);
    buf_printf(&r->name, "%s to %s ", o->consumer, o->to);
    buf_add_hex(&r->name, digest, sizeof digest);
}

/* Finds the position to continue from, and the range of messages. */
static int find_place(struct replay *r)
{
    const struct options *o = r->options;
    const char *name = buf_text(&r->name);

    r->filter = (struct message_filter){
        .consumer = o->consumer, .type = o->type, .ids = o->ids.items, .n_ids = o->ids.n};
    if (o->dry_run ? admin_replay_look(r->admin, name, &r->position, &r->fault)
                   : admin_replay_begin(r->admin, name, buf_text(&r->what), &r->position, &r->fault))
        return -1;
    /* "2h" meant another time when the replay began. With a name, the replay publishes newer messages. */
    bool goes_on = strcmp(r->position.place.received_at, "-infinity") != 0;
    const char *from = goes_on && !o->name ? r->position.began_at : NULL;

    if (o->since && !goes_on && admin_time(r->admin, o->since, NULL, r->filter.since, &r->fault))
        return -1;
    if (o->until && admin_time(r->admin, o->until, from, r->filter.until, &r->fault))
        return -1;
    return admin_messages_horizon(r->admin, r->filter.horizon, &r->fault);
}

/* --- publishing --- */

/* Moves the position to the last confirmed message. */
static int save(struct replay *r)
{
    uint64_t n = publisher_confirmed(r->publisher);

    r->saved_ms = clock_ms();
    if (n == r->n_saved)
        return 0;
    if (admin_replay_move(r->admin, buf_text(&r->name), &r->position, &r->places[n % N_PLACES],
                          (int64_t)(n - r->n_saved), &r->fault))
        return -1;
    r->n_saved = n;
    return 0;
}

static int no_queue(struct replay *r)
{
    return fault_set(&r->fault, "there is no queue \"%s\" in vhost \"%s\"", r->options->to, r->vhost);
}

static int publish(void *ctx, const struct stored_message *m)
{
    struct replay *r = ctx;
    /* A content header without flags has no properties. */
    struct slice header = m->content_header.len ? m->content_header : (struct slice){"\0\0", 2};
    int answer;

    if (pace_wait(&r->pace))
        return 1;
    answer = publisher_push(r->publisher, r->options->to, header, m->body, &r->fault);
    if (answer)
        return answer > 0 ? no_queue(r) : -1;
    r->places[++r->n_pushed % N_PLACES] = m->place;
    progress_show(&r->progress, (int64_t)publisher_confirmed(r->publisher));
    if (r->n_pushed - r->n_saved >= PUBLISHER_WINDOW - 1 || clock_ms() - r->saved_ms >= SAVE_MS)
        return save(r);
    return 0;
}

/* Waits for messages in flight, whatever ended the replay. */
static int finish(struct replay *r, int answer)
{
    struct fault f = {0};
    int settled = publisher_settle(r->publisher, 0, &f);

    if (answer >= 0 && settled) {
        answer = settled > 0 ? no_queue(r) : -1;
        if (settled < 0)
            r->fault = f;
    }
    f = r->fault;
    if (save(r) && answer >= 0)
        return -1;
    if (answer < 0)
        r->fault = f;
    return answer;
}

static void tell_end(const struct replay *r, int answer)
{
    const struct options *o = r->options;
    struct buf out = {0};

    if (o->json) {
        buf_add_text(&out, "{\"consumer\":");
        buf_add_json(&out, slice_of(o->consumer));
        buf_add_text(&out, ",\"to\":");
        buf_add_json(&out, slice_of(o->to));
        buf_printf(&out, ",\"replayed\":%" PRIu64 ",\"in_all\":%" PRId64 ",\"ended\":%s}\n", r->n_saved,
                   r->position.n, answer ? "false" : "true");
    } else {
        text_add_safe(&out, slice_of(o->to));
        printf("%" PRIu64 " replayed to %s", r->n_saved, buf_text(&out));
        buf_reset(&out);
        if (r->position.n > (int64_t)r->n_saved)
            printf(", %" PRId64 " in all", r->position.n);
        printf("%s", answer ? "; ended early: run this again to continue\n" : ".\n");
    }
    if (o->json)
        fputs(buf_text(&out), stdout);
    buf_deinit(&out);
}

static int replay_all(struct replay *r, const struct config *c)
{
    struct message_count count;
    int answer;

    if (admin_messages_count(r->admin, &r->filter, &r->position.place, &count, &r->fault) ||
        publisher_open(&c->broker, r->vhost, c->instance, &r->publisher, &r->fault))
        return command_fail(&r->fault);
    progress_begin(&r->progress, stdout, count.n, !r->options->json);
    pace_catch_signals();
    answer = admin_messages_each(r->admin, &r->filter, &r->position.place, publish, r, &r->fault);
    answer = finish(r, answer);
    progress_end(&r->progress);
    publisher_close(r->publisher);
    if (answer < 0)
        command_fail(&r->fault);
    tell_end(r, answer);
    if (answer == 0 && !r->options->name && admin_replay_end(r->admin, buf_text(&r->name), &r->fault))
        return command_fail(&r->fault);
    return answer ? STATUS_FAILED : STATUS_DONE;
}

static int dry_run(struct replay *r)
{
    struct message_count count;
    struct buf to = {0};

    if (admin_messages_count(r->admin, &r->filter, &r->position.place, &count, &r->fault))
        return command_fail(&r->fault);
    text_add_safe(&to, slice_of(r->options->to));
    if (r->options->json)
        printf("{\"would_replay\":%" PRId64 "}\n", count.n);
    else if (count.n)
        printf("%" PRId64 " would be replayed to %s: arrived from %s to %s.\n", count.n, buf_text(&to),
               count.first, count.last);
    else
        printf("No stored messages match.\n");
    buf_deinit(&to);
    return STATUS_DONE;
}

static int replay(struct options *o)
{
    struct replay r = {.options = o, .pace = {o->interval_us, 0}};
    struct config *c;
    int status = command_open(o->config, ADMIN_WRITES, &c, &r.admin);

    if (status)
        return status;
    if (admin_check_schema(r.admin, &r.fault) || command_use_formers(c, r.admin, &o->consumer, &r.fault))
        status = command_fail(&r.fault);
    else
        status = check_queue(o, c, r.admin, &r.fault);
    if (!status)
        status = check_order(o, c);
    if (!status && (find_vhost(&r, c) || (name_it(&r), find_place(&r))))
        status = command_fail(&r.fault);
    if (!status)
        status = o->dry_run ? dry_run(&r) : replay_all(&r, c);
    buf_deinit(&r.what);
    buf_deinit(&r.name);
    free(r.vhost);
    command_close(c, r.admin);
    return status;
}

/* --- arguments --- */

static int check(const struct options *o)
{
    if (strlen(o->to) > 255)
        return command_wrong("replay", "--to: a queue's name has at most 255 bytes");
    if (o->name && (!*o->name || strlen(o->name) > 255 || !text_is_safe(slice_of(o->name))))
        return command_wrong("replay", "--name: expected 1 to 255 bytes of text");
    for (size_t i = 0; i < o->ids.n; i++)
        if (!*o->ids.items[i] || !slice_is_text(slice_of(o->ids.items[i])))
            return command_wrong("replay", "--id: expected message ids that are not empty");
    return STATUS_DONE;
}

static int replay_run(void *options)
{
    int status = check(options);

    return status ? status : replay(options);
}

#define OPTIONS struct options

static const struct command_option replay_options[] = {
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"consumer", "C", "the consumer whose messages are published", OPTION(TEXT, consumer), OPTION_REQUIRED},
    {"to", "QUEUE",
     "the queue that gets them, in the virtual host that the configuration has for it, or else the broker's",
     OPTION(TEXT, to), OPTION_REQUIRED},
    {"since", "T", "arrived since then: \"2h\" ago, or 2026-01-31T03:00:00Z; ignored when a replay continues",
     OPTION(TIME, since)},
    {"until", "T",
     "arrived before then; a duration counts back from the start of the replay, with --name from now",
     OPTION(TIME, until)},
    {"type", "T", "with this AMQP type", OPTION(TEXT, type)},
    {"id", "ID…", "with these ids", OPTION(LIST, ids)},
    {"rate", "N/s", "at most N per second", OPTION(RATE, interval_us)},
    {"dry-run", NULL, "print how many messages it would publish", OPTION(FLAG, dry_run)},
    {"name", "N",
     "the name of its position in the database. A named replay keeps its position at the end: run again, "
     "it publishes the messages that have "
     "arrived since. Without a name, an interrupted replay continues when it is run with the same "
     "options, and a finished one starts at the "
     "beginning",
     OPTION(TEXT, name)},
    {"out-of-order", NULL, "also to an ordered queue, where the messages go behind those that it has",
     OPTION(FLAG, out_of_order)},
    JSON_OPTION("one JSON object at the end"),
    {0},
};

const struct command replay_command = {
    .name = "replay",
    .does = "publish stored messages again, for another consumer",
    .about = "Publishes the stored messages of a consumer (`store.retention`) again, unchanged and in the "
             "order of their first claims, to a queue "
             "with another consumer: for example to rebuild a projection. The broker confirms each one. An "
             "interrupted replay continues where it "
             "stopped when you run it again.",
    .options = replay_options,
    .size = sizeof(struct options),
    .run = replay_run,
};
