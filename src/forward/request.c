/* The head of a request: one run of bytes, whose beginning and end are the same for every request of a queue. */

#include "forward/request.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"
#include "onceward/core/headers.h"

#include <stdlib.h>
#include <strings.h>

enum { AUTHORIZATION_LOOK_MS = 1000 };

static bool is_field_value(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if ((*p < ' ' && *p != '\t') || *p == 0x7F)
            return false;
    return true;
}

static int authorization_read(struct request_form *form, struct fault *f)
{
    const struct config_text *t = &form->q->forward.authorization;
    char *value = NULL;
    int r = 0;

    if (config_text_read(t, &value, f) < 0)
        return fault_wrap(f, "Authorization");
    if (value && !is_field_value(value)) {
        r = fault_set(f, "Authorization: %s holds control characters", t->file ? t->file : "the value");
    } else {
        buf_reset(&form->authorization);
        if (value && value[0])
            buf_printf(&form->authorization, "Authorization: %s\r\n", value);
    }
    free(value);
    return r;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ino == b->st_ino && a->st_size == b->st_size;
}

/* Reads a replaced secret file again. While the file cannot be read, as during a rotation, the previous value stays. */
void request_form_refresh(struct request_form *form)
{
    const char *file = form->q->forward.authorization.file;
    struct fault ignored;
    struct stat now;
    int64_t now_ms = clock_ms();

    if (now_ms - form->authorization_looked_ms < AUTHORIZATION_LOOK_MS)
        return;
    form->authorization_looked_ms = now_ms;
    if (stat(file, &now) < 0 || same_file(&now, &form->authorization_stat))
        return;
    if (authorization_read(form, &ignored) == 0)
        form->authorization_stat = now;
}

static bool is_configured(const struct config_forward *c, const char *name)
{
    for (size_t i = 0; i < c->n_headers; i++)
        if (strcasecmp(c->headers[i].name, name) == 0)
            return true;
    return false;
}

static void ends_write(struct request_form *form, const char *path, const char *host)
{
    const struct config_forward *c = &form->q->forward;

    buf_printf(&form->prefix, "POST %s HTTP/1.1\r\nHost: %s\r\n", path, host);
    if (!is_configured(c, "User-Agent"))
        buf_add_text(&form->prefix, "User-Agent: onceward/" ONCEWARD_VERSION "\r\n");
    form->replaced = mem_zalloc(c->n_headers + 1, sizeof(*form->replaced));
    for (size_t i = 0; i < c->n_headers; i++) {
        const char *value = c->headers[i].value;

        buf_printf(&form->suffix, "%s:%s%s\r\n", c->headers[i].name, *value ? " " : "", value);
        form->replaced[form->n_replaced++] = slice_of(c->headers[i].name);
    }
}

int request_form_init(struct request_form *form, const struct config_queue *q, const char *path,
                      const char *host, struct fault *f)
{
    const struct config_forward *c = &q->forward;

    form->q = q;
    for (size_t i = 0; i < c->n_headers; i++)
        if (!is_field_value(c->headers[i].name) || !is_field_value(c->headers[i].value))
            return fault_set(f, "configured header %zu holds control characters", i);
    if (c->authorization.file && stat(c->authorization.file, &form->authorization_stat) < 0)
        memset(&form->authorization_stat, 0, sizeof(form->authorization_stat));
    form->authorization_looked_ms = clock_ms();
    if (authorization_read(form, f) < 0)
        return -1;
    ends_write(form, path, host);
    return 0;
}

void request_form_deinit(struct request_form *form)
{
    mem_clear(&form->replaced);
    buf_deinit(&form->prefix);
    buf_deinit(&form->suffix);
    buf_deinit(&form->authorization);
}

static bool is_replaced(const struct request_form *form, const char *line)
{
    for (size_t i = 0; i < form->n_replaced; i++)
        if (strncasecmp(line, form->replaced[i].data, form->replaced[i].len) == 0 &&
            line[form->replaced[i].len] == ':')
            return true;
    return false;
}

void request_write(const struct request_form *form, struct buf *out, const struct header_block *b,
                   size_t body_len)
{
    const char *line = b->text.data;

    buf_reset(out);
    buf_reserve(out, form->prefix.len + b->text.len + b->n + form->authorization.len + form->suffix.len + 64);
    buf_add_slice(out, buf_slice(&form->prefix));
    for (size_t i = 0; i < b->n; i++) {
        size_t len = strlen(line);

        if (!form->n_replaced || !is_replaced(form, line)) {
            buf_add(out, line, len);
            buf_add(out, "\r\n", 2);
        }
        line += len + 1;
    }
    buf_add_slice(out, buf_slice(&form->authorization));
    buf_add_slice(out, buf_slice(&form->suffix));
    buf_add_slice(out, SLICE("Content-Length: "));
    buf_add_number(out, body_len);
    buf_add_slice(out, SLICE("\r\n\r\n"));
}
