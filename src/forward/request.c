/* The header lines of a request, as a list for libcurl whose nodes and texts are the exchange's own: one
 * block for the texts, one for the nodes, both kept from request to request. Behind them hangs the list that
 * all requests share: what is configured, and the fields that libcurl would add and must not. libcurl reads
 * the list and never changes it. */

#include "forward/exchange.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <stdlib.h>
#include <strings.h>

enum { AUTHORIZATION_LOOK_MS = 1000 };

/* Kept out: libcurl would add them. */
static const char *const suppressed[] = {"Accept:", "Expect:"};

static bool is_field_value(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if ((*p < ' ' && *p != '\t') || *p == 0x7F)
            return false;
    return true;
}

/* libcurl takes "Name:" as the wish not to send that field; an empty one is written "Name;". */
static void line_fix(char *line)
{
    char *colon = strchr(line, ':');

    if (colon && colon[1 + strspn(colon + 1, " \t")] == '\0') {
        colon[0] = ';';
        colon[1] = '\0';
    }
}

static int authorization_read(struct forward *w, struct fault *f)
{
    const struct config_text *t = &w->q->forward.authorization;
    char *value = NULL;
    int r = 0;

    if (config_text_read(t, &value, f) < 0)
        return fault_wrap(f, "Authorization");
    if (value && !is_field_value(value)) {
        r = fault_set(f, "Authorization: %s holds control characters", t->file ? t->file : "the value");
    } else {
        buf_reset(&w->authorization);
        if (value && value[0])
            buf_printf(&w->authorization, "Authorization: %s", value);
    }
    free(value);
    return r;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ino == b->st_ino && a->st_size == b->st_size;
}

/* Reads the mounted secret again when it was replaced. While it cannot be read, as in the middle of a
 * rotation, what is known stays. */
void request_refresh(struct forward *w)
{
    const char *file = w->q->forward.authorization.file;
    struct fault ignored;
    struct stat now;
    int64_t now_ms;

    if (!file)
        return;
    now_ms = clock_ms();
    if (now_ms - w->authorization_looked_ms < AUTHORIZATION_LOOK_MS)
        return;
    w->authorization_looked_ms = now_ms;
    if (stat(file, &now) < 0 || same_file(&now, &w->authorization_stat))
        return;
    if (authorization_read(w, &ignored) == 0)
        w->authorization_stat = now;
}

/* The shared end of the list. Two passes: texts first, since they move while they grow. */
static void fixed_make(struct forward *w)
{
    const struct config_forward *c = &w->q->forward;
    size_t n_suppressed = sizeof(suppressed) / sizeof(suppressed[0]);
    char *line;

    for (size_t i = 0; i < c->n_headers; i++) {
        buf_printf(&w->fixed_lines, "%s: %s", c->headers[i].name, c->headers[i].value);
        buf_add_char(&w->fixed_lines, '\0');
    }
    w->fixed = mem_zalloc(n_suppressed + c->n_headers, sizeof(*w->fixed));
    w->replaced = mem_zalloc(c->n_headers, sizeof(*w->replaced));
    for (size_t i = 0; i < n_suppressed; i++)
        w->fixed[i] = (struct curl_slist){(char *)suppressed[i], &w->fixed[i + 1]};
    line = w->fixed_lines.data;
    for (size_t i = 0; i < c->n_headers; i++) {
        size_t len = strlen(line);

        line_fix(line);
        w->fixed[n_suppressed + i] = (struct curl_slist){line, &w->fixed[n_suppressed + i + 1]};
        line += len + 1;
        w->replaced[w->n_replaced++] = slice_of(c->headers[i].name);
        if (strcasecmp(c->headers[i].name, "Content-Type") == 0)
            w->type_is_fixed = true;
    }
    w->fixed[n_suppressed + c->n_headers - 1].next = NULL;
}

int request_init(struct forward *w, struct fault *f)
{
    const struct config_forward *c = &w->q->forward;

    for (size_t i = 0; i < c->n_headers; i++)
        if (!is_field_value(c->headers[i].name) || !is_field_value(c->headers[i].value))
            return fault_set(f, "configured header %zu holds control characters", i);
    if (c->authorization.file && stat(c->authorization.file, &w->authorization_stat) < 0)
        memset(&w->authorization_stat, 0, sizeof(w->authorization_stat));
    w->authorization_looked_ms = clock_ms();
    if (authorization_read(w, f) < 0)
        return -1;
    fixed_make(w);
    return 0;
}

void request_deinit(struct forward *w)
{
    mem_clear(&w->fixed);
    mem_clear(&w->replaced);
    buf_deinit(&w->fixed_lines);
    buf_deinit(&w->authorization);
}

static bool name_is(const char *line, struct slice name)
{
    return strncasecmp(line, name.data, name.len) == 0 && line[name.len] == ':';
}

static bool is_replaced(const struct forward *w, const char *line)
{
    for (size_t i = 0; i < w->n_replaced; i++)
        if (name_is(line, w->replaced[i]))
            return true;
    return false;
}

struct curl_slist *request_lines(struct exchange *x, const struct header_block *b)
{
    struct forward *w = x->w;
    size_t n = 0, text_len = b->text.len;
    bool has_type = w->type_is_fixed;
    char *line;

    if (b->n + 2 > x->n_nodes) {
        x->n_nodes = b->n + 16;
        x->nodes = mem_realloc(x->nodes, x->n_nodes * sizeof(*x->nodes));
    }
    buf_reset(&x->lines);
    buf_reserve(&x->lines, text_len + w->authorization.len + 1); /* nothing moves behind this */
    buf_add_slice(&x->lines, buf_slice(&b->text));
    line = x->lines.data;
    for (size_t i = 0; i < b->n; i++) {
        size_t len = strlen(line);

        if (!is_replaced(w, line)) {
            has_type = has_type || name_is(line, SLICE("Content-Type"));
            line_fix(line);
            x->nodes[n++].data = line;
        }
        line += len + 1;
    }
    if (w->authorization.len) {
        x->nodes[n++].data = x->lines.data + x->lines.len;
        buf_add_slice(&x->lines, buf_slice(&w->authorization));
        buf_add_char(&x->lines, '\0');
    }
    if (!has_type)
        x->nodes[n++].data = (char *)"Content-Type:";
    for (size_t i = 0; i < n; i++)
        x->nodes[i].next = i + 1 < n ? &x->nodes[i + 1] : w->fixed;
    return n ? x->nodes : w->fixed;
}
