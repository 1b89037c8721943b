/* The file of an export. Its first line has a fixed form and is compared with the present request. "2h" meant another
 * time when the export began, so its time is read from that line. */

#include "command/export_file.h"

#include "onceward/base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { BLOCK = 64 * 1024, LINE_HEAD = 8 * 1024 };

static const char head_begin[] = "{\"kind\":\"export\",\"position\":\"start\",\"since\":";
static const char head_until[] = ",\"until\":\"";
static const char head_asked[] = "\",\"asked\":";
static const char end_line[] = "{\"kind\":\"end\",\"position\":\"end\"}\n";

/* --- reading --- */

/* Offset behind the last line end before `before`; 0: none. -1: the file cannot be read. */
static off_t line_end_before(FILE *file, off_t before)
{
    char block[BLOCK];

    while (before > 0) {
        off_t start = before > BLOCK ? before - BLOCK : 0;
        size_t len = (size_t)(before - start);

        if (fseeko(file, start, SEEK_SET) || fread(block, 1, len, file) != len)
            return -1;
        for (size_t i = len; i > 0; i--)
            if (block[i - 1] == '\n')
                return start + (off_t)i;
        before = start;
    }
    return 0;
}

static int no_export(const struct export_file *x, struct fault *f)
{
    return fault_set(
        f, "%s was not written by `onceward export --output`: expected such a file, or a new one", x->path);
}

static struct slice behind(struct slice text, size_t n)
{
    return (struct slice){(char *)text.data + n, text.len - n};
}

/* Reads "TIME" at the start of a text into ret. Returns its length with the quotes; 0: none. */
static size_t time_read(struct slice text, char ret[MESSAGE_TIME_SIZE])
{
    const char *end = text.len > 1 && *text.data == '"' ? memchr(text.data + 1, '"', text.len - 1) : NULL;
    size_t len = end ? (size_t)(end - text.data) - 1 : 0;

    if (!end || len >= MESSAGE_TIME_SIZE)
        return 0;
    memcpy(ret, text.data + 1, len);
    ret[len] = '\0';
    return len + 2;
}

/* Reads the first line, given without its line end. */
static int head_read(struct export_file *x, struct slice line, struct slice asked, struct fault *f)
{
    size_t len;

    if (!slice_starts_with(line, slice_of(head_begin)))
        return no_export(x, f);
    line = behind(line, sizeof head_begin - 1);
    len = slice_starts_with(line, slice_of("null")) ? 4 : time_read(line, x->since);
    line = behind(line, len);
    if (!len || !slice_starts_with(line, slice_of(head_until)))
        return no_export(x, f);
    line = behind(line, sizeof head_until - 2);
    len = time_read(line, x->until);
    if (!len || !slice_starts_with(behind(line, len - 1), slice_of(head_asked)))
        return no_export(x, f);
    line = behind(line, len - 1 + sizeof head_asked - 1);
    if (line.len != asked.len + 1 || memcmp(line.data, asked.data, asked.len) != 0)
        return fault_set(
            f, "%s was begun with other options: %.*s. Run that again, or give this one another --output",
            x->path, (int)(line.len ? line.len - 1 : 0), line.data);
    x->goes_on = true;
    return 0;
}

/* Parses the beginning of the last line. */
static int last_read(struct export_file *x, struct slice line, struct fault *f)
{
    static const char key[] = "\",\"position\":\"";
    const char *at = memmem(line.data, line.len, key, sizeof key - 1);
    const char *start = at ? at + sizeof key - 1 : NULL;
    const char *end = start ? memchr(start, '"', line.len - (size_t)(start - line.data)) : NULL;

    x->has_ended = slice_starts_with(line, slice_of(end_line));
    if (x->has_ended)
        return 0;
    if (!slice_starts_with(line, slice_of("{\"kind\":\"")) || !end)
        return no_export(x, f);
    return export_place_read(&x->after, (struct slice){(char *)start, (size_t)(end - start)}, f)
               ? fault_wrap(f, "%s", x->path)
               : 0;
}

/* Handles a file without a complete line: nothing was written yet, or part of the first line. */
static int partial_read(const struct export_file *x, off_t size, struct fault *f)
{
    char text[sizeof head_begin];
    size_t len = size < (off_t)sizeof text - 1 ? (size_t)size : sizeof text - 1;

    if (fseeko(x->out, 0, SEEK_SET) || fread(text, 1, len, x->out) != len)
        return fault_set(f, "%s cannot be read: %s", x->path, strerror(errno));
    return memcmp(text, head_begin, len) == 0 ? 0 : no_export(x, f);
}

/* Reads the line between two offsets, at most that many bytes. */
static int part_read(const struct export_file *x, off_t from, off_t to, size_t most, struct buf *ret,
                     struct fault *f)
{
    size_t len = to - from < (off_t)most ? (size_t)(to - from) : most;

    if (fseeko(x->out, from, SEEK_SET) || fread(buf_reserve(ret, len), 1, len, x->out) != len)
        return fault_set(f, "%s cannot be read: %s", x->path, strerror(errno));
    ret->len = len;
    return 0;
}

static int lines_read(struct export_file *x, off_t end, struct slice asked, struct fault *f)
{
    struct buf first = {0}, last = {0};
    off_t start = line_end_before(x->out, end - 1);
    const char *line_end;
    int answer = start < 0 ? fault_set(f, "%s cannot be read: %s", x->path, strerror(errno))
                           : part_read(x, 0, end, BLOCK, &first, f);

    if (!answer) {
        line_end = memchr(first.data, '\n', first.len);
        answer = line_end
                     ? head_read(x, (struct slice){first.data, (size_t)(line_end - first.data)}, asked, f)
                     : no_export(x, f);
    }
    if (!answer && start > 0 && !part_read(x, start, end, LINE_HEAD, &last, f))
        answer = last_read(x, buf_slice(&last), f);
    buf_deinit(&first);
    buf_deinit(&last);
    return answer;
}

static int file_read(struct export_file *x, struct slice asked, struct fault *f)
{
    off_t size = ftello(x->out), end = line_end_before(x->out, size);

    if (size < 0 || end < 0)
        return fault_set(f, "%s cannot be read: %s", x->path, strerror(errno));
    if (end > 0 ? lines_read(x, end, asked, f) : partial_read(x, size, f))
        return -1;
    if (end < size && ftruncate(fileno(x->out), end))
        return fault_set(f, "%s cannot be cut after its last whole line: %s", x->path, strerror(errno));
    return fseeko(x->out, 0, SEEK_END) ? fault_set(f, "%s: %s", x->path, strerror(errno)) : 0;
}

int export_file_open(struct export_file *x, const char *path, struct slice asked, struct fault *f)
{
    /* Only the owner may read the bodies. */
    int fd = path ? open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;

    x->path = path;
    x->out = !path ? stdout : fd < 0 ? NULL : fdopen(fd, "a+");
    if (!x->out)
        return fault_set(f, "%s: %s", path, strerror(errno));
    if (!path)
        return 0;
    if (flock(fileno(x->out), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return fault_set(f, "%s: another export is writing to it", path);
    if (fseeko(x->out, 0, SEEK_END))
        return 0; /* a pipe: it has no earlier lines */
    return file_read(x, asked, f);
}

/* --- writing --- */

static int failed(const struct export_file *x, struct fault *f)
{
    return fault_set(f, "cannot write to %s: %s", x->path ? x->path : "standard output",
                     errno ? strerror(errno) : "it takes no more");
}

int export_file_begin(struct export_file *x, struct slice asked, struct fault *f)
{
    struct buf line = {0};
    int answer = 0;

    if (!x->path || x->goes_on)
        return 0;
    buf_add_text(&line, head_begin);
    if (*x->since)
        buf_printf(&line, "\"%s\"", x->since);
    else
        buf_add_text(&line, "null");
    buf_printf(&line, "%s%s%s", head_until, x->until, head_asked);
    buf_add_slice(&line, asked);
    buf_add_text(&line, "}\n");
    errno = 0;
    if (fwrite(line.data, 1, line.len, x->out) != line.len || fflush(x->out))
        answer = failed(x, f);
    buf_deinit(&line);
    return answer;
}

static int sync_out(const struct export_file *x, struct fault *f)
{
    errno = 0;
    if (fflush(x->out))
        return failed(x, f);
    return x->path && fsync(fileno(x->out)) && errno != EINVAL ? failed(x, f) : 0; /* a pipe or terminal */
}

/* Ends the file. The data must be on the disk before the last line, which marks them as complete. */
int export_file_end(struct export_file *x, bool all, struct fault *f)
{
    if (sync_out(x, f))
        return -1;
    if (!all || !x->path)
        return 0;
    errno = 0;
    return fputs(end_line, x->out) < 0 ? failed(x, f) : sync_out(x, f);
}

void export_file_deinit(struct export_file *x)
{
    if (x->path && x->out)
        fclose(x->out);
    x->out = NULL;
    export_place_deinit(&x->after);
}
