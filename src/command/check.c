/* onceward check: the configuration, and with --connect everything that it names. */

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/wait.h"
#include "onceward/broker/broker.h"
#include "onceward/config/config.h"
#include "onceward/forward/forward.h"
#include "onceward/inbox/admin.h"
#include "onceward/sidecar/state_file.h"

#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: onceward check --config FILE [--connect]\n"
    "Validates the configuration, and lists everything that is wrong with it at once.\n"
    "  --connect   also tries the state file, the database (roles, schema, consumers), the broker with each "
    "queue, and each "
    "application\n";

/* A GET that hangs is ended by the probe itself; this is for what must not happen. */
enum { PROBE_DEADLINE_MS = 30000 };

struct findings {
    int n_failed, n_warnings;
    const char *where; /* what the lines are about */
};

static void tell(void *ctx, enum finding kind, const char *text)
{
    static const char *const marks[] = {"ok  ", "warn", "FAIL"};
    struct findings *s = ctx;

    printf("%s %s: %s\n", marks[kind], s->where, text);
    fflush(stdout); /* the next server may take its time */
    s->n_failed += kind == FINDING_FAILED;
    s->n_warnings += kind == FINDING_WARNING;
}

static void say(struct findings *s, bool ok, const char *text)
{
    tell(s, ok ? FINDING_OK : FINDING_FAILED, text);
}

static void check_database(const struct config *c, struct findings *s)
{
    const char **vhosts = mem_zalloc(c->n_queues + 1, sizeof *vhosts);
    char where[320];
    struct fault f = {0};
    struct admin *a;

    s->where = "database";
    for (size_t i = 0; i < c->n_queues; i++) {
        char *vhost = NULL;

        if (broker_vhost(&c->broker, &c->queues[i], &vhost, &f) == 0)
            vhosts[i] = vhost;
    }
    if (admin_open(&c->database, ADMIN_READS, &a, &f)) {
        say(s, false, f.text);
    } else {
        snprintf(where, sizeof where, "database %s", admin_where(a));
        s->where = where;
        if (admin_check(a, c, vhosts, tell, s, &f))
            say(s, false, f.text);
        admin_close(a);
    }
    for (size_t i = 0; i < c->n_queues; i++)
        free((char *)vhosts[i]);
    free(vhosts);
}

/* "amqp://host:5672": the URL without user, password, vhost and query. */
static void add_server(struct buf *out, const struct config_broker *c)
{
    char *url = NULL, *start, *end, *at;
    struct fault f = {0};

    if (config_text_read(&c->url, &url, &f) || !url || !(start = strstr(url, "://"))) {
        buf_add_text(out, "of broker.url");
        free(url);
        return;
    }
    start += 3;
    end = start + strcspn(start, "/?#");
    at = memrchr(start, '@', (size_t)(end - start));
    buf_add(out, url, (size_t)(start - url));
    buf_add(out, at ? at + 1 : start, (size_t)(end - (at ? at + 1 : start)));
    free(url);
}

static void check_broker(const struct config *c, const struct config_queue *q, struct findings *s)
{
    struct buf where = {0};
    char text[1200];
    char *vhost = NULL;
    struct fault f = {0};
    bool ok = broker_vhost(&c->broker, q, &vhost, &f) == 0 && broker_check(&c->broker, q, &f) == 0;

    buf_add_text(&where, "broker ");
    add_server(&where, &c->broker);
    buf_printf(&where, ", vhost %s", vhost ? vhost : "?");
    if (ok)
        snprintf(text, sizeof text, "queue %s exists", q->queue);
    else
        snprintf(text, sizeof text, "queue %s: %s", q->queue, f.text);
    s->where = buf_text(&where);
    say(s, ok, text);
    buf_deinit(&where);
    free(vhost);
}

/* Until the probe has an end, or its time has. */
static int probe_wait(struct wait *wait, struct forward *w, struct fault *f)
{
    int64_t until = clock_ms() + PROBE_DEADLINE_MS;
    struct forward_event e;

    while (clock_ms() < until) {
        int64_t due = forward_due_ms(w);

        wait_turn(wait, due < until ? due : until);
        while (forward_step(w, &e))
            if (e.kind == FORWARD_PROBE)
                return e.probe.result == PROBE_READY ? 0 : fault_set(f, "%s", e.probe.error);
    }
    return fault_set(f, "no answer to the probe within %d s", PROBE_DEADLINE_MS / 1000);
}

/* The same question that the sidecar asks before it consumes. */
static int probe(const struct config_queue *q, struct fault *f)
{
    struct wait *wait = NULL;
    struct forward *w = NULL;
    size_t application;
    int r = wait_new(&wait, f) || forward_new(wait, &w, f) || forward_add(w, q, &application, f) ? -1 : 0;

    if (r == 0) {
        forward_probe(w, application);
        r = probe_wait(wait, w, f);
    }
    forward_free(w);
    wait_free(wait);
    return r;
}

static void check_application(const struct config_queue *q, struct findings *s)
{
    const char *url = q->ready_url ? q->ready_url : q->forward.url;
    char where[320], text[1200];
    struct fault f = {0};
    bool ok = probe(q, &f) == 0;

    snprintf(where, sizeof where, "application of %s", q->name);
    if (ok)
        snprintf(text, sizeof text, "%s %s", url,
                 q->ready_url ? "answers that it is ready" : "takes connections");
    else
        snprintf(text, sizeof text, "%s: %s", url, f.text);
    s->where = where;
    say(s, ok, text);
}

/* Could a sidecar lock and write it here, or does one already? */
static void check_state_file(const struct config *c, struct findings *s)
{
    struct fault f = {0};
    int64_t pid = 0;
    char text[64] = "can be written";

    s->where = "state file";
    int answer = state_file_try(c->state_file, &pid, &f);
    if (answer == STATE_FILE_TAKEN && pid)
        snprintf(text, sizeof text, "a sidecar runs with it, process %lld", (long long)pid);
    else if (answer == STATE_FILE_TAKEN)
        snprintf(text, sizeof text, "a sidecar in another container runs with it");
    if (answer < 0)
        fault_wrap(&f, "%s: health, drain and reload would not work", c->state_file);
    else
        fault_set(&f, "%s: %s", c->state_file, text);
    say(s, answer >= 0, f.text);
}

static int check_connections(const struct config *c)
{
    struct findings s = {0};

    check_state_file(c, &s);
    check_database(c, &s);
    for (size_t i = 0; i < c->n_queues; i++)
        check_broker(c, &c->queues[i], &s);
    forward_global_init();
    for (size_t i = 0; i < c->n_queues; i++)
        check_application(&c->queues[i], &s);
    printf("\n");
    if (s.n_warnings)
        printf("%d of these %s.\n", s.n_warnings, s.n_warnings == 1 ? "is a warning" : "are warnings");
    if (s.n_failed)
        printf("%d of these must be mended.\n", s.n_failed);
    else
        printf("Everything answers.\n");
    return s.n_failed ? STATUS_FAILED : STATUS_DONE;
}

/* NULL: it has faults; they were listed. */
static struct config *load(const char *path)
{
    struct config_report report = {0};
    struct config *c = NULL;
    int failed = config_load(path, admin_check_url, &c, &report);

    for (size_t i = 0; i < report.n; i++) {
        const struct config_finding *finding = &report.findings[i];

        fprintf(stderr, "%s%s%s%s\n", finding->warning ? "warning: " : "", finding->path,
                *finding->path ? ": " : "", finding->text);
    }
    config_report_deinit(&report);
    return failed ? NULL : c;
}

int command_check(int argc, char **argv)
{
    const char *path = NULL;
    int connect = 0, status = command_parse(argc, argv, help, "connect", &path, &connect);
    struct config *c;

    if (status >= 0)
        return status;
    c = load(path);
    if (!c)
        return STATUS_USAGE;
    printf("ok   configuration %s: %zu queue%s\n", path, c->n_queues, c->n_queues == 1 ? "" : "s");
    fflush(stdout);
    status = connect ? check_connections(c) : STATUS_DONE;
    config_free(c);
    return status;
}
