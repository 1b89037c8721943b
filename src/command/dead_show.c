/* onceward dead list and show, which only read. */

#include "command/common.h"
#include "command/dead.h"
#include "onceward/base/buf.h"
#include "onceward/base/table.h"

#include <inttypes.h>
#include <string.h>

enum { LIST_LIMIT = 50 };

/* list */

struct list {
    const struct dead_options *options;
    struct table table;
    int64_t n, limit; /* 0: no limit */
    bool more;
};

enum { LIST_COLUMNS = 8, LIST_PAGE = 200 };

static int list_one(void *ctx, const struct dead_letter *l)
{
    static const char *const heads[LIST_COLUMNS] = {"ID",       "DIED", "CONSUMER",   "REASON",
                                                    "ATTEMPTS", "BODY", "MESSAGE ID", "LAST ERROR"};
    struct list *list = ctx;
    struct buf text = {0};

    if (list->limit && list->n == list->limit) {
        list->more = true;
        return 1;
    }
    letter_seen(list->options, l);
    if (list->options->json) {
        list->n++;
        letter_print_json(l);
        return 0;
    }
    if (list->n % LIST_PAGE == 0) {
        table_print(&list->table, stdout, text_width(stdout));
        for (int i = 0; i < LIST_COLUMNS; i++)
            table_add_text(&list->table, heads[i]);
    }
    list->n++;
    table_add_int(&list->table, l->id);
    text_add_age(&text, l->age_ms);
    buf_add_text(&text, " ago");
    table_add(&list->table, buf_slice(&text));
    table_add_text(&list->table, l->consumer);
    table_add_text(&list->table, l->reason);
    table_add_int(&list->table, l->attempts);
    buf_reset(&text);
    text_add_size(&text, l->body_len);
    table_add(&list->table, buf_slice(&text));
    table_add_text(&list->table, l->message_id);
    table_add_text(&list->table, l->last_error);
    buf_deinit(&text);
    return 0;
}

/* Prints the lines below the table. */
static void list_end(const struct list *list, const struct dead_filter *filter, struct admin *a)
{
    const char *path = list->options->config;
    struct fault f = {0};
    int64_t total;

    if (list->n == 0) {
        printf("No dead letters%s.\n",
               filter->consumer || filter->reason || filter->since || filter->older || filter->n_ids
                   ? " that match"
                   : "");
        return;
    }
    if (list->more && admin_dead_count(a, filter, &total, &f) == 0)
        printf("… %" PRId64 " in all: --limit N shows more, --limit 0 all of them.\n", total);
    printf("\nNext:\n"
           "  onceward dead show --config %s ID       shows one dead letter with its body\n"
           "  onceward dead redrive --config %s ID    sends it again, once its cause is corrected\n",
           path, path);
}

int dead_list(const struct dead_options *o, const struct config *c, struct admin *a)
{
    struct list list = {
        .options = o, .table = {.n_columns = LIST_COLUMNS, .right = 0x31}, .limit = o->filter.limit};
    struct dead_filter filter = o->filter;
    struct fault f = {0};
    int answer;

    (void)c;
    if (list.limit < 0)
        list.limit = o->json || filter.n_ids ? 0 : LIST_LIMIT;
    filter.limit = list.limit ? list.limit + 1 : 0; /* a further letter shows whether there are more */
    answer = admin_dead_each(a, &filter, false, list_one, &list, &f);
    table_print(&list.table, stdout, text_width(stdout));
    table_deinit(&list.table);
    if (answer < 0)
        return command_fail(&f);
    if (!o->json)
        list_end(&list, &filter, a);
    return !list.more && letters_tell_missing(o) ? STATUS_FAILED : STATUS_DONE;
}

/* show */

struct show {
    const struct dead_options *options;
    struct admin *admin;
    int64_t n;
};

static void show_field(const char *name, const char *value)
{
    struct buf text = {0};

    if (!value || !*value)
        return;
    text_add_safe(&text, slice_of(value));
    printf("%-13s %s\n", name, buf_text(&text));
    buf_deinit(&text);
}

static void show_body(const struct dead_letter *l)
{
    struct slice body = {l->body, l->body_len};
    struct buf size = {0};

    text_add_size(&size, l->body_len);
    if (text_is_safe(body)) {
        printf("%-13s %s\n\n", "body", buf_text(&size));
        fwrite(body.data, 1, body.len, stdout);
        if (body.len && body.data[body.len - 1] != '\n')
            putchar('\n');
    } else {
        printf("%-13s %s that are not plain text; `--body raw` writes them. They begin with:\n\n", "body",
               buf_text(&size));
        for (size_t i = 0; i < body.len && i < 64; i++)
            printf("%02x%s", (uint8_t)body.data[i],
                   i % 16 == 15 || i + 1 == body.len || i == 63 ? "\n" : " ");
    }
    buf_deinit(&size);
}

/* Reports that the message was completed after its death, by its row or its history entry. Without the right to read
 * those, only the letter is shown. */
static void show_completed(const struct show *s, const struct dead_letter *l)
{
    enum redrive_answer answer;
    struct fault f = {0};

    if (!l->rowless && l->message_id && admin_redrive_look(s->admin, l, l->message_id, &answer, &f) == 0 &&
        answer == REDRIVE_COMPLETED)
        printf("%-13s completed since: `onceward dead redrive --config %s %" PRId64
               "` only deletes the dead letter\n",
               "row", s->options->config, l->id);
}

static int show_one(void *ctx, const struct dead_letter *l)
{
    struct show *s = ctx;
    struct buf text = {0};

    s->n++;
    letter_seen(s->options, l);
    if (s->options->json) {
        letter_print_json(l);
        return 0;
    }
    if (s->options->body)
        return fwrite(l->body, 1, l->body_len, stdout) == l->body_len ? 0 : 1;
    printf("%s%-13s %" PRId64 "\n", s->n > 1 ? "\n" : "", "letter", l->id);
    show_field("consumer", l->consumer);
    show_field("queue", l->queue);
    show_field("vhost", l->vhost);
    show_field("message id", l->message_id);
    show_field("id, in hex", l->raw_id_hex);
    show_field("trace id", l->trace_id);
    text_add_age(&text, l->age_ms);
    printf("%-13s %s, %s ago\n", "died", l->died_at, buf_text(&text));
    buf_deinit(&text);
    show_field("reason", l->reason);
    printf("%-13s %d\n", "attempts", l->attempts);
    if (l->http_status)
        printf("%-13s %d\n", "HTTP status", l->http_status);
    show_field("last error", l->last_error);
    if (l->rowless)
        printf("%-13s none of its own: `onceward dead redrive --config %s %" PRId64
               "` looks for its id with the current message_id; --new-id makes one if there is none\n",
               "row", s->options->config, l->id);
    show_completed(s, l);
    show_field("exchange", *l->exchange ? l->exchange : "(default)");
    show_field("routing key", l->routing_key);
    show_field("content type", l->content_type);
    show_field("properties", l->properties);
    show_field("headers", l->headers);
    show_field("fingerprint", l->fingerprint_hex);
    show_body(l);
    return 0;
}

int dead_show(const struct dead_options *o, const struct config *c, struct admin *a)
{
    struct show s = {.options = o, .admin = a};
    struct dead_filter filter = o->filter;
    struct fault f = {0};
    int answer;

    (void)c;
    filter.limit = filter.limit < 0 ? 0 : filter.limit;
    answer = admin_dead_each(a, &filter, true, show_one, &s, &f);
    if (answer < 0)
        return command_fail(&f);
    if (answer > 0)
        return STATUS_FAILED; /* standard output is closed, which command_main reports */
    return !filter.limit && letters_tell_missing(o) ? STATUS_FAILED : STATUS_DONE;
}
