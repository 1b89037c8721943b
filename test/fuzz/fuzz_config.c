/* A configuration from any bytes: either it is refused with reasons that repeat no secret, or every value is
 * in its range and the broker's adapter can parse its URL. The bytes behind a NUL are the content of the file
 * "/input". The environment is fixed, and no file of the machine is opened. */

#include "fuzz.h"

#include "broker/address.h"
#include "config/checks.h"
#include "config/keys.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

/* Stands in the environment and in a file, but must be in no report. */
#define SECRET "Zq7~hush"

/* --- files --- */

int open(const char *path, int flags, ...);

static struct slice input_file;

static int memory_file(struct slice content, off_t size)
{
    int fd = memfd_create("file", MFD_CLOEXEC);

    MUST(fd >= 0 && ftruncate(fd, size) == 0);
    MUST(!content.len || pwrite(fd, content.data, content.len, 0) == (ssize_t)content.len);
    return fd;
}

/* Replaces the C library's function. */
int open(const char *path, int flags, ...)
{
    if (!strcmp(path, "/input"))
        return memory_file(input_file, (off_t)input_file.len);
    if (!strcmp(path, "/secret"))
        return memory_file(SLICE(SECRET "\r\n"), sizeof(SECRET) + 1);
    if (!strcmp(path, "/large"))
        return memory_file(SLICE("x"), 1 << 20);
    if (!strcmp(path, "/dev/null"))
        return openat(AT_FDCWD, path, flags);
    errno = ENOENT;
    return -1;
}

static void environment_set(void)
{
    static bool done;

    if (done)
        return;
    done = true;
    const char *path = getenv("PATH");
    char *kept = strdup(path ? path : "");
    clearenv();
    setenv("PATH", kept, 1); /* a sanitizer looks for its helper there when it reports */
    setenv("S", SECRET, 1);
    setenv("E", "", 1);
    setenv("B", "\xFF", 1);
    setenv("U", "amqp://u:p@h/v", 1);
    free(kept);
}

/* --- conditions --- */

static void key_must_hold(const struct key *k, const void *target)
{
    const char *field = (const char *)target + k->offset;
    int64_t low = 0, high = INT64_MAX, value;

    switch (k->type) {
    case TYPE_INT:
    case TYPE_PORT:
        value = *(const int *)field;
        break;
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        value = *(const int64_t *)field;
        break;
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
        value = (int64_t) * (const size_t *)field;
        break;
    case TYPE_SECRET: {
        const char *text = ((const struct config_text *)field)->value;

        MUST(text || k->presence == KEY_MAY || k->presence == KEY_EITHER);
        MUST(!text || !k->check || !k->check(text));
        return;
    }
    case TYPE_TEXT:
    case TYPE_PATH: {
        const char *text = *(char *const *)field;

        MUST(text || k->presence == KEY_MAY || k->presence == KEY_EITHER);
        MUST(!text || (slice_is_text(slice_of(text)) && (!k->check || !k->check(text))));
        return;
    }
    default:
        return;
    }
    bool is_off = (k->type == TYPE_DURATION_OFF || k->type == TYPE_SIZE_NONE) && value == 0;
    bool is_absent = k->presence == KEY_MAY && value <= 0;
    key_bounds(k, &low, &high);
    MUST((value >= low && value <= high) || is_off || is_absent);
}

static void queue_must_hold(const struct config_queue *q)
{
    MUST(q->name && q->queue && q->consumer && q->forward.url && q->message_id.n);
    MUST(strlen(q->consumer) <= 255 && strlen(q->queue) <= 255);
    MUST(q->prefetch >= q->forward.concurrency && q->max_window_ms >= q->token_window_ms);
    MUST(q->token_window_ms + q->commit_grace_ms + 2000 <= q->max_hold_ms);
    MUST(q->max_backoff_ms >= q->backoff_ms && q->retention_ms >= q->max_window_ms + q->max_hold_ms);
    MUST(q->store_response_bytes <= q->forward.max_response_bytes);
    for (size_t i = 0; i < q->forward.n_headers; i++) {
        const struct config_header *h = &q->forward.headers[i];

        MUST(!check_field_name(h->name) && *h->value && !check_field_value(h->value));
        MUST(!strpbrk(h->value, "\r\n"));
        for (size_t k = 0; k < i; k++)
            MUST(strcasecmp(h->name, q->forward.headers[k].name) != 0);
    }
    for (size_t i = 0; i < q->n_permanent_status; i++)
        MUST(q->permanent_status[i] >= 300 && q->permanent_status[i] <= 599);
    for (size_t i = 0; i < q->message_id.n; i++)
        MUST((q->message_id.items[i].kind == IDENTITY_JOIN) == (q->message_id.items[i].n_parts > 0));
}

/* The adapter parses the URL too, and both must find the same vhost, by which two entries for one queue are
 * detected. */
static void url_must_be_read(const char *url)
{
    struct address a;
    struct fault f = {0};
    char vhost[256];

    MUST(address_parse(url, &a, &f) == 0);
    broker_url_vhost(url, vhost, sizeof(vhost));
    MUST(strlen(a.vhost) > 255 || !strcmp(a.vhost, vhost));
    address_deinit(&a);
}

static void text_must_be_read_again(const struct config_text *t)
{
    struct fault f = {0};
    char *again = NULL;

    MUST(config_text_read(t, &again, &f) == 0);
    MUST(t->value ? again && !strcmp(again, t->value) : !again);
    free(again);
}

static void config_must_hold(const struct config *c)
{
    MUST(c->n_queues && c->instance && *c->instance);
    for (size_t i = 0; i < n_keys; i++) {
        if (keys[i].scope == SCOPE_ROOT)
            key_must_hold(&keys[i], c);
        else
            for (size_t q = 0; q < c->n_queues; q++)
                key_must_hold(&keys[i], &c->queues[q]);
    }
    url_must_be_read(c->broker.url.value);
    text_must_be_read_again(&c->broker.url);
    text_must_be_read_again(&c->broker.password);
    text_must_be_read_again(&c->database.url);
    for (size_t i = 0; i < c->n_queues; i++) {
        queue_must_hold(&c->queues[i]);
        text_must_be_read_again(&c->queues[i].forward.authorization);
        for (size_t k = 0; k < i; k++)
            MUST(strcmp(c->queues[i].consumer, c->queues[k].consumer) != 0);
    }
}

static void report_must_hold(const struct config_report *report, bool refused, bool may_name_secret)
{
    MUST((report->n_errors > 0) == refused);
    MUST(!refused || report->n);
    for (size_t i = 0; i < report->n; i++) {
        const struct config_finding *finding = &report->findings[i];

        MUST(*finding->text);
        MUST(refused || finding->warning);
        MUST(may_name_secret || (!strstr(finding->path, SECRET) && !strstr(finding->text, SECRET)));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;
    struct config *const untouched = (struct config *)&input_file, *c = untouched;
    struct config_report report;

    environment_set();
    input_file = nul ? (struct slice){(const char *)nul + 1, size - len - 1} : SLICE("input\n");
    int error = config_parse((const char *)data, len, "fuzz.json", NULL, &c, &report);
    /* Names may be repeated, and a file may contain the secret's text elsewhere. */
    bool may_name_secret = size >= 4 && memmem(data, size, "Zq7~", 4);
    report_must_hold(&report, error != 0, may_name_secret);
    if (error) {
        MUST(c == untouched);
    } else {
        config_must_hold(c);
        config_free(c);
    }
    config_report_deinit(&report);
    return 0;
}
