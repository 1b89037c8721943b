/* ${VAR} and K_file. No error repeats a value, which may be a secret. */

#include "config/expand.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Length of an environment variable's name at the start of text. */
static size_t name_length(struct slice text)
{
    size_t n = 0;

    while (n < text.len) {
        char c = text.data[n];
        bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';

        if (!letter && !(n && c >= '0' && c <= '9'))
            break;
        n++;
    }
    return n;
}

/* Expands a variable. text begins behind "${". *used: the number of bytes read. */
static int expand_variable(struct buf *out, struct slice text, size_t *used, struct fault *f)
{
    size_t len = name_length(text);

    if (!len || len == text.len || text.data[len] != '}')
        return fault_set(
            f, "expected ${NAME}, where NAME has letters, digits and _ (a literal ${ is written $${)");
    char *name = mem_copy(text.data, len);
    const char *value = getenv(name);
    int error = 0;

    if (!value)
        error = fault_set(f, "the environment variable %.200s is not set", name);
    else if (!slice_is_text(slice_of(value)))
        error = fault_set(f, "the environment variable %.200s does not hold UTF-8", name);
    else
        buf_add_text(out, value);
    free(name);
    *used = len + 1;
    return error;
}

int text_expand(struct buf *out, struct slice text, struct fault *f)
{
    for (size_t i = 0; i < text.len;) {
        struct slice rest = {text.data + i, text.len - i};
        size_t used = 0;

        if (rest.len >= 3 && !memcmp(rest.data, "$${", 3)) {
            buf_add_text(out, "${");
            i += 3;
        } else if (rest.len >= 2 && !memcmp(rest.data, "${", 2)) {
            if (expand_variable(out, (struct slice){rest.data + 2, rest.len - 2}, &used, f) < 0)
                return -1;
            i += 2 + used;
        } else {
            buf_add_char(out, rest.data[0]);
            i++;
        }
    }
    return 0;
}

static int read_all(struct buf *out, int fd, const char *path, size_t max, struct fault *f)
{
    size_t start = out->len;

    for (;;) {
        ssize_t n = read(fd, buf_reserve(out, 4096), 4096);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fault_set(f, "cannot read %.200s: %s", path, strerror(errno));
        if (n == 0)
            return 0;
        out->len += (size_t)n;
        if (out->len - start > max)
            return fault_set(f, "%.200s is larger than %zu KiB", path, max / 1024);
    }
}

int file_read(struct buf *out, const char *path, size_t max, struct fault *f)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hang */

    if (fd < 0)
        return fault_set(f, "cannot open %.200s: %s", path, strerror(errno));
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        fcntl(fd, F_SETFL, 0);
    int error = read_all(out, fd, path, max, f);
    close(fd);
    return error;
}

int text_file_read(struct buf *out, const char *path, struct fault *f)
{
    size_t start = out->len;

    if (file_read(out, path, TEXT_FILE_MAX, f) < 0)
        return -1;
    if (out->len > start && memchr(out->data + start, '\0', out->len - start))
        return fault_set(f, "%.200s holds a NUL byte; expected text", path);
    if (out->len > start && out->data[out->len - 1] == '\n') {
        out->len--;
        if (out->len > start && out->data[out->len - 1] == '\r')
            out->len--;
    }
    return 0;
}

int config_text_read(const struct config_text *t, char **out, struct fault *f)
{
    struct buf text = {0};

    if (!t->file) {
        *out = t->value ? mem_copy(t->value, strlen(t->value)) : NULL;
        return 0;
    }
    if (text_file_read(&text, t->file, f) < 0) {
        buf_deinit(&text);
        return -1;
    }
    *out = mem_copy(text.data, text.len);
    buf_deinit(&text);
    return 0;
}

void config_text_clear(struct config_text *t)
{
    mem_free_secret(t->value);
    t->value = NULL;
    mem_clear(&t->file);
}
