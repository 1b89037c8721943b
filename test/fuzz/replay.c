/* Runs every file of the folders given once through a fuzzer, so that what was learned is a test wherever the
 * program can be built. The names go to standard error before each, so that the last one is the one that
 * failed. */

#include "fuzz.h"

#include <dirent.h>
#include <string.h>

/* Exactly as long as the file, so that a sanitizer sees a read behind its end. */
static uint8_t *file_content(const char *path, size_t *ret_len)
{
    FILE *file = fopen(path, "rb");

    MUST(file && fseek(file, 0, SEEK_END) == 0);
    long len = ftell(file);
    MUST(len >= 0 && fseek(file, 0, SEEK_SET) == 0);
    uint8_t *content = malloc((size_t)len);
    MUST(!len || (content && fread(content, 1, (size_t)len, file) == (size_t)len));
    fclose(file);
    *ret_len = (size_t)len;
    return content;
}

static size_t folder_replay(const char *folder)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort);
    size_t n_files = 0;

    MUST(n >= 0);
    for (int i = 0; i < n; i++) {
        char path[4096];
        size_t len;

        if (entries[i]->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
            fprintf(stderr, "# %s\n", path);
            uint8_t *content = file_content(path, &len);
            LLVMFuzzerTestOneInput(content, len);
            free(content);
            n_files++;
        }
        free(entries[i]);
    }
    free(entries);
    return n_files;
}

int main(int argc, char **argv)
{
    size_t n = 0;

    for (int i = 1; i < argc; i++)
        n += folder_replay(argv[i]);
    printf("%s 1 - %zu files\n", n ? "ok" : "not ok", n);
    return n ? 0 : 1;
}
