/* Runs each input of the given text files once through a fuzzer, so that a fuzzer's findings are tested
 * wherever the program can be built. corpus.py describes the files. Each input's place is printed to standard
 * error before its run: the last one is the one that failed. */

#include "fuzz.h"

#include <stdbool.h>
#include <string.h>

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The allocation has the exact size of the input, so that a sanitizer notices a read beyond its end. */
static uint8_t *line_decode(const char *line, size_t *ret_len)
{
    size_t len = 0;

    for (const char *c = line; *c; c += *c == '\\' ? 4 : 1, len++)
        MUST(*c != '\\' || (c[1] == 'x' && hex_digit(c[2]) >= 0 && hex_digit(c[3]) >= 0));
    uint8_t *content = malloc(len);
    MUST(content || !len);
    for (size_t i = 0; i < len; i++) {
        bool is_escape = *line == '\\';

        content[i] = is_escape ? (uint8_t)(hex_digit(line[2]) << 4 | hex_digit(line[3])) : (uint8_t)*line;
        line += is_escape ? 4 : 1;
    }
    *ret_len = len;
    return content;
}

static size_t file_replay(const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0, n = 0;

    MUST(file);
    while (getline(&line, &cap, file) >= 0) {
        size_t len;

        line[strcspn(line, "\n")] = '\0';
        fprintf(stderr, "# %s:%zu\n", path, ++n);
        uint8_t *content = line_decode(line, &len);
        LLVMFuzzerTestOneInput(content, len);
        free(content);
    }
    free(line);
    fclose(file);
    return n;
}

int main(int argc, char **argv)
{
    size_t n = 0;

    for (int i = 1; i < argc; i++)
        n += file_replay(argv[i]);
    printf("%s 1 - %zu inputs\n", n ? "ok" : "not ok", n);
    return n ? 0 : 1;
}
