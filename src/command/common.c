/* Shared by the subcommands. */

#include "command/common.h"

#include "onceward/config/config.h"
#include "onceward/inbox/admin.h"

#include <stdlib.h>
#include <string.h>

struct config *command_config(const char *path)
{
    struct config_report report = {0};
    struct config *c = NULL;
    int failed = config_load(path, admin_check_url, &c, &report);

    /* Warnings are left to `check` and the log of `run`. */
    for (size_t i = 0; i < report.n; i++)
        if (!report.findings[i].warning)
            fprintf(stderr, "%s%s%s\n", report.findings[i].path, *report.findings[i].path ? ": " : "",
                    report.findings[i].text);
    config_report_deinit(&report);
    return failed ? NULL : c;
}

int command_fail(const struct fault *f)
{
    fprintf(stderr, "onceward: %s\n", f->text);
    return STATUS_FAILED;
}

int command_open(const char *path, enum admin_use use, struct config **ret_config, struct admin **ret_admin)
{
    struct fault f = {0};
    struct config *c = command_config(path);

    if (!c)
        return STATUS_USAGE;
    if (admin_open(&c->database, use, ret_admin, &f)) {
        config_free(c);
        return command_fail(&f);
    }
    *ret_config = c;
    return STATUS_DONE;
}

/* 1: the rows of the queue are under the consumer name that takes_over names; 0: they are not; -1: f. */
static int has_former(struct admin *a, const struct config_queue *q, struct fault *f)
{
    int n_replicas, known = q->takes_over ? admin_find_consumer(a, q->consumer, NULL, &n_replicas, f) : 1;

    if (known)
        return known < 0 ? -1 : 0;
    return admin_find_consumer(a, q->takes_over, q->pattern ? q->pattern : q->queue, &n_replicas, f);
}

int command_use_formers(struct config *c, struct admin *a, const char **io_consumer, struct fault *f)
{
    for (size_t i = 0; i < c->n_queues; i++) {
        struct config_queue *q = &c->queues[i];
        int answer = q->partition ? 0 : has_former(a, q, f);

        if (answer < 0)
            return -1;
        if (answer && io_consumer && *io_consumer && !strcmp(*io_consumer, q->consumer))
            *io_consumer = q->takes_over;
        if (answer || q->partition)
            q->consumer = answer ? q->takes_over : c->queues[i - 1].consumer;
    }
    return 0;
}

bool command_is_configured(const struct config *c, const char *consumer)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (!strcmp(c->queues[i].consumer, consumer))
            return true;
    return false;
}

int command_no_consumer(const char *command, const char *path, const char *consumer)
{
    fprintf(stderr, "onceward %s: there is no consumer \"%s\"; `onceward status --config %s` lists them\n",
            command, consumer, path);
    return STATUS_FAILED;
}

int command_check_consumer(const char *command, const char *path, const struct config *c, struct admin *a,
                           const char *consumer)
{
    struct fault f = {0};
    bool is_own = !consumer || command_is_configured(c, consumer) ||
                  (c->outbox.is_there && !strcmp(consumer, DEAD_OUTBOX));
    int known = is_own ? 1 : admin_knows_consumer(a, consumer, &f);

    if (known < 0)
        return command_fail(&f);
    return known ? STATUS_DONE : command_no_consumer(command, path, consumer);
}

void command_close(struct config *c, struct admin *a)
{
    admin_close(a);
    config_free(c);
}

const char *command_config_default(const char *given)
{
    const char *named = getenv("ONCEWARD_CONFIG");

    return given ? given : named && *named ? named : NULL;
}
