/* The arguments of a queue, learnt from refused declares: see arguments.h. Everything here blocks, with the connect
 * timeout as its deadline, and runs on a helper thread with its own connection. */
#include "onceward/broker/arguments.h"

#include "broker/connect.h"
#include "broker/library.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/core/returns.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHANNEL = 1,
    N_KNOWN_MAX = 24,
    N_TRIES_MAX = 32,
    NAME_MAX_LEN = 48,
    VALUE_MAX_LEN = 160,
    UNLIMITED_SINCE = 4, /* RabbitMQ with a delivery limit of -1 */
};

/* A known argument of the queue. */
struct known {
    char name[NAME_MAX_LEN], value[VALUE_MAX_LEN], type[16];
};

struct asked {
    bool durable, auto_delete;
    struct known known[N_KNOWN_MAX];
    size_t n;
};

/* --- refusals --- */

/* Parses "… inequivalent arg 'x-expires' for queue 'q' in vhost '/': received none but current is the value
 * '5' of type 'long'", or "… but current is none", or "… but current is 'true'" for the queue's own flags and,
 * from RabbitMQ 4.0 on, for its type.
 * False: cut off. */
static bool refusal_read(char *text, struct known *ret, bool *ret_absent)
{
    static const char arg[] = "inequivalent arg '", current[] = " but current is ", value[] = "the value '",
                      type[] = "' of type '";
    char *name = strstr(text, arg), *end = name ? strchr(name + sizeof(arg) - 1, '\'') : NULL, *is = NULL;

    for (char *at = end; at && (at = strstr(at, current)); at++)
        is = at + sizeof(current) - 1; /* the last match, since a queue's name may contain anything */
    if (!is)
        return false;
    *ret = (struct known){0};
    snprintf(ret->name, sizeof(ret->name), "%.*s", (int)(end - name) - (int)sizeof(arg) + 1,
             name + sizeof(arg) - 1);
    *ret_absent = strncmp(is, "none", 4) == 0;
    if (*ret_absent)
        return true;
    bool typed = strncmp(is, value, sizeof(value) - 1) == 0;
    char *of = typed ? strstr(is, type) : NULL;
    is += typed ? sizeof(value) - 1 : 1;
    end = typed ? of : strchr(is, '\'');
    if (!end || (size_t)(end - is) >= sizeof(ret->value))
        return false;
    snprintf(ret->value, sizeof(ret->value), "%.*s", (int)(end - is), is);
    if (!typed) {
        snprintf(ret->type, sizeof(ret->type), "longstr");
        return true;
    }
    is = of + sizeof(type) - 1;
    end = strchr(is, '\'');
    if (!end || (size_t)(end - is) >= sizeof(ret->type))
        return false;
    snprintf(ret->type, sizeof(ret->type), "%.*s", (int)(end - is), is);
    return true;
}

static void known_remove(struct asked *a, const char *name)
{
    for (size_t i = 0; i < a->n; i++)
        if (!strcmp(a->known[i].name, name))
            a->known[i--] = a->known[--a->n];
}

/* Learns one argument. False: nothing new. */
static bool learn(struct asked *a, const struct known *k, bool absent)
{
    bool *flag = !strcmp(k->name, "durable")       ? &a->durable
                 : !strcmp(k->name, "auto_delete") ? &a->auto_delete
                                                   : NULL;

    if (flag) {
        bool is = !strcmp(k->value, "true"), new = *flag != is;

        *flag = is;
        return new;
    }
    known_remove(a, k->name);
    if (absent)
        return true;
    if (a->n == N_KNOWN_MAX || !*k->type)
        return false;
    a->known[a->n++] = *k;
    return true;
}

/* --- asking --- */

static amqp_field_value_t value_of(const struct known *k)
{
    if (!strcmp(k->type, "longstr"))
        return (amqp_field_value_t){.kind = AMQP_FIELD_KIND_UTF8,
                                    .value.bytes = amqp_cstring_bytes(k->value)};
    if (!strcmp(k->type, "bool"))
        return (amqp_field_value_t){.kind = AMQP_FIELD_KIND_BOOLEAN,
                                    .value.boolean = !strcmp(k->value, "true")};
    return (amqp_field_value_t){.kind = AMQP_FIELD_KIND_I64, .value.i64 = strtoll(k->value, NULL, 10)};
}

static amqp_rpc_reply_t declare(amqp_connection_state_t c, const char *queue, const struct asked *a)
{
    amqp_table_entry_t entries[N_KNOWN_MAX + 1] = {
        {amqp_cstring_bytes("x-max-age"),
         {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes("?")}}};
    amqp_table_t table = {1, entries};

    for (size_t i = 0; i < a->n; i++)
        entries[table.num_entries++] =
            (amqp_table_entry_t){amqp_cstring_bytes(a->known[i].name), value_of(&a->known[i])};
    amqp_queue_declare(c, CHANNEL, amqp_cstring_bytes(queue), 0, a->durable, 0, a->auto_delete, table);
    return amqp_get_rpc_reply(c);
}

/* Opens the channel again, which a refusal closes. */
static int reopen_channel(amqp_connection_state_t c, struct fault *f)
{
    if (amqp_send_method(c, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &(amqp_channel_close_ok_t){0}) < 0 ||
        !amqp_channel_open(c, CHANNEL))
        return fault_set(f, "the broker does not open a channel again");
    return 0;
}

static const char *find(const struct asked *a, const char *name)
{
    for (size_t i = 0; i < a->n; i++)
        if (!strcmp(a->known[i].name, name))
            return a->known[i].value;
    return NULL;
}

static int64_t number(const struct asked *a, const char *name)
{
    const char *value = find(a, name);

    return value ? strtoll(value, NULL, 10) : ARGUMENT_ABSENT;
}

static void fill(const struct asked *a, struct broker_arguments *ret)
{
    const char *type = find(a, "x-queue-type"), *overflow = find(a, "x-overflow"),
               *single = find(a, "x-single-active-consumer"), *retry = find(a, "x-delayed-retry-type");

    *ret = (struct broker_arguments){
        .kind = !type || !strcmp(type, "classic") ? BROKER_KIND_CLASSIC
                : !strcmp(type, "quorum")         ? BROKER_KIND_QUORUM
                : !strcmp(type, "stream")         ? BROKER_KIND_STREAM
                                                  : BROKER_KIND_OTHER,
        .durable = a->durable,
        .has_dead_letter_exchange = find(a, "x-dead-letter-exchange") != NULL,
        .auto_delete = a->auto_delete,
        .single_active_consumer = single && !strcmp(single, "true"),
        .rejects_publish = overflow && !strncmp(overflow, "reject-publish", strlen("reject-publish")),
        .has_delivery_limit = find(a, "x-delivery-limit") != NULL,
        .delivery_limit = number(a, "x-delivery-limit"),
        .max_length = number(a, "x-max-length"),
        .max_bytes = number(a, "x-max-length-bytes"),
        .max_priority = number(a, "x-max-priority"),
        .expires_ms = number(a, "x-expires"),
    };
    snprintf(ret->delayed_retry, sizeof(ret->delayed_retry), "%.15s", retry ? retry : "");
}

/* 1: continue; 0: *answer; -1: the connection is lost. */
static int refused(amqp_connection_state_t c, struct asked *a, const amqp_channel_close_t *m,
                   struct arguments_found *ret, struct fault *f)
{
    char text[256];
    struct known k;
    bool absent;

    snprintf(text, sizeof(text), "%.*s", (int)m->reply_text.len, (const char *)m->reply_text.bytes);
    snprintf(ret->why, sizeof(ret->why), "%s", text);
    int code = m->reply_code;
    if (reopen_channel(c, f))
        return -1;
    if (code == AMQP_RESOURCE_LOCKED) {
        ret->answer = ARGUMENTS_READ;
        ret->arguments = (struct broker_arguments){.kind = BROKER_KIND_CLASSIC, .exclusive = true};
        return 0;
    }
    ret->answer = code == AMQP_ACCESS_REFUSED                             ? ARGUMENTS_FORBIDDEN
                  : strstr(text, "invalid arg") || code == AMQP_NOT_FOUND ? ARGUMENTS_NO_QUEUE
                                                                          : ARGUMENTS_UNREADABLE;
    if (code != AMQP_PRECONDITION_FAILED || !strstr(text, "inequivalent arg"))
        return 0;
    return refusal_read(text, &k, &absent) && learn(a, &k, absent);
}

/* Asks for one queue. Most queues today are quorum queues, so that type is tried first. */
static int ask(amqp_connection_state_t c, const char *queue, struct arguments_found *ret, struct fault *f)
{
    struct asked a = {.durable = true, .known = {{"x-queue-type", "quorum", "longstr"}}, .n = 1};

    ret->answer = ARGUMENTS_UNREADABLE;
    for (int i = 0; i < N_TRIES_MAX; i++) {
        amqp_rpc_reply_t reply = declare(c, queue, &a);
        int r;

        if (reply.reply_type == AMQP_RESPONSE_NORMAL) {
            ret->answer = ARGUMENTS_READ;
            fill(&a, &ret->arguments);
            return 0;
        }
        if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION ||
            reply.reply.id != AMQP_CHANNEL_CLOSE_METHOD) {
            fault_set_reply(f, "asking for a queue's arguments", reply);
            return -1;
        }
        r = refused(c, &a, reply.reply.decoded, ret, f);
        if (r <= 0)
            return r;
    }
    return 0;
}

static int ask_all(amqp_connection_state_t c, const struct queue_list *queues, int64_t deadline_ms,
                   struct arguments_found *ret, struct fault *f)
{
    for (size_t i = 0; i < queues->n; i++) {
        int64_t left = deadline_ms - clock_ms();
        struct timeval patience = {.tv_sec = left > 0 ? left / 1000 : 0,
                                   .tv_usec = left > 0 ? left % 1000 * 1000 : 1};

        amqp_set_rpc_timeout(c, &patience);
        ret[i].number = queues->items[i].number;
        if (ask(c, queues->items[i].name, &ret[i], f))
            return -1;
    }
    return 0;
}

void broker_arguments_limits(const struct broker_arguments *a, struct queue_limits *ret)
{
    bool bounded = a->max_length != ARGUMENT_ABSENT || a->max_bytes != ARGUMENT_ABSENT;
    /* Before RabbitMQ 4 a negative limit is exceeded by the first return, like 0. */
    bool is_unlimited =
        a->delivery_limit < 0 ? a->server_major >= UNLIMITED_SINCE : a->delivery_limit >= LIMIT_NONE;

    *ret = (struct queue_limits){.read = true,
                                 .delivery_limit = !a->has_delivery_limit  ? LIMIT_UNKNOWN
                                                   : is_unlimited          ? LIMIT_NONE
                                                   : a->delivery_limit < 0 ? 0
                                                                           : (int)a->delivery_limit,
                                 .drops_head = bounded && !a->rejects_publish,
                                 .needs_consumer = a->auto_delete || a->expires_ms != ARGUMENT_ABSENT,
                                 .single_active = a->single_active_consumer};
}

const char *broker_arguments_drop_warning(const struct broker_arguments *a, int limit)
{
    if (a->kind != BROKER_KIND_QUORUM || a->has_dead_letter_exchange || limit == LIMIT_UNKNOWN ||
        limit == LIMIT_NONE)
        return NULL;
    return "the queue has a delivery limit and no x-dead-letter-exchange: a message that reaches the "
           "limit is "
           "lost, unless a policy sets a dead-letter exchange";
}

const char *broker_arguments_limit_warning(int limit)
{
    if (limit == LIMIT_UNKNOWN || limit >= LIMIT_LEAST)
        return NULL;
    return "the delivery limit of the queue is below 5, so a few crashes in a row lose messages: declare "
           "it with a higher limit (-1 is none from RabbitMQ 4 on, and like 0 before)";
}

/* --- order per key --- */

static const char *limit_refusal(int limit, bool holds_dead)
{
    if (limit == LIMIT_UNKNOWN || limit == LIMIT_NONE)
        return NULL;
    if (holds_dead)
        return "order.on_dead hold needs a queue without a delivery limit: a held message is delivered "
               "again after "
               "each max_hold";
    if (limit >= CONFIG_ORDERED_LIMIT_MIN)
        return NULL;
    return "order per key needs a queue without a delivery limit (x-delivery-limit -1; none before RabbitMQ 4, where "
           "-1 is like 0), or with one of at least 20: after that many restarts the broker drops all held messages";
}

const char *broker_arguments_order_refusal(const struct broker_arguments *a, int limit, bool holds_dead)
{
    if (!a->single_active_consumer)
        return "order per key needs a single active consumer: declare the queue with "
               "x-single-active-consumer true";
    if (a->max_priority > 0)
        return "order per key cannot hold on a queue with x-max-priority: declare it without that argument";
    if (*a->delayed_retry && strcmp(a->delayed_retry, "disabled") != 0)
        return "order per key cannot hold on a queue with delayed retry: declare it without "
               "x-delayed-retry-type";
    return limit_refusal(limit, holds_dead);
}

const char *broker_arguments_order_unread(int limit, bool holds_dead)
{
    if (limit == LIMIT_UNKNOWN)
        return "order per key needs to know the delivery limit: set delivery_limit (0: none), or give the "
               "user "
               "configure permission on the queue, so that its arguments can be read";
    return limit_refusal(limit, holds_dead);
}

/* --- connections --- */

struct job *arguments_start(const struct config_broker *c, const char *vhost,
                            const struct broker_queue *queues, size_t n, const char *instance,
                            struct fault *f)
{
    struct target *t = target_new(TO_ASK, c, vhost, queues, n, instance, f);
    struct job *job;

    if (!t)
        return NULL;
    t->ask = ask_all;
    job = job_start(attempt_run, attempt_drop, t);

    if (!job) {
        fault_set(f, "no thread could be started to connect to the broker: %s", strerror(errno));
        target_free(t);
    }
    return job;
}

/* Takes the attempt's result. The connection carried only questions, and ends with the attempt. */
static int take(struct attempt *a, struct arguments_found **ret, size_t *ret_n, struct fault *f)
{
    int r = 0;

    if (!a->found) {
        *f = a->fault;
        r = -1;
    } else {
        char *rest;
        int major = (int)strtol(a->version, &rest, 10);

        for (size_t i = 0; i < a->queues.n; i++) {
            a->found[i].arguments.server_major = major;
            a->found[i].arguments.server_minor = *rest == '.' ? (int)strtol(rest + 1, NULL, 10) : 0;
        }
        *ret = a->found;
        *ret_n = a->queues.n;
        a->found = NULL;
    }
    attempt_free(a);
    return r;
}

int arguments_attempt_take(void *result, struct arguments_found **ret, size_t *ret_n, struct fault *f)
{
    return take(result, ret, ret_n, f);
}

int broker_arguments(const struct config_broker *c, const char *vhost, const char *queue,
                     struct broker_arguments *ret, enum arguments_answer *answer, struct fault *f)
{
    const struct broker_queue one = {.name = queue};
    struct target *t = target_new(TO_ASK, c, vhost, &one, 1, "check", f);
    struct arguments_found *found;
    struct attempt *a;
    size_t n;

    if (!t)
        return -1;
    t->ask = ask_all;
    a = attempt_wait(t, clock_ms() + c->connect_timeout_ms, f);
    if (!a || take(a, &found, &n, f))
        return -1;
    *ret = found->arguments;
    *answer = found->answer;
    if (found->answer != ARGUMENTS_READ)
        fault_set(f, "%s", found->why);
    free(found);
    return 0;
}
