#include "recorded.h"

#include "outbox_sim.h"
#include "plan.h"
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { N_PLANS = 300, N_OUTBOXES = 100 };

static uint64_t hash_of(bool outbox, uint64_t seed)
{
    struct outcome out;
    struct plan p;

    if (outbox) {
        outbox_run(seed, TRACE_HASH, &out);
    } else {
        plan_make(&p, seed);
        run_plan(&p, TRACE_HASH, &out, NULL, NULL);
        plan_deinit(&p);
    }
    return out.trace_hash;
}

static int report_difference(const char *path, bool outbox, uint64_t seed)
{
    printf("The decisions of the core differ from those recorded in %s, first in seed %" PRIu64 "%s.\n"
           "If this change is not meant to alter its behaviour, compare the output of\n"
           "    test/sim %s--seed %" PRIu64 " --trace --no-shrink\n"
           "before and after the change. Otherwise review the difference, record the new traces with\n"
           "    test/sim --record test/sim.d/traces\n"
           "and commit them together with the change.\n",
           path, seed, outbox ? " of the outbox" : "", outbox ? "--outbox " : "", seed);
    return 1;
}

/* Runs each seed of the file. *ret_n: the number of traces that are as recorded. */
static int compare_all(FILE *f, const char *path, int *ret_n)
{
    char kind[8], line[128];
    uint64_t seed, hash;

    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '#')
            continue;
        if (sscanf(line, "%7s %" SCNu64 " %" SCNx64, kind, &seed, &hash) != 3) {
            fprintf(stderr, "test/sim: %s: expected \"queues SEED HASH\" or \"outbox SEED HASH\", not: %s",
                    path, line);
            return 2;
        }
        bool outbox = strcmp(kind, "outbox") == 0;

        if (hash_of(outbox, seed) != hash)
            return report_difference(path, outbox, seed);
        ++*ret_n;
    }
    return 0;
}

int recorded_compare(const char *path)
{
    FILE *f = fopen(path, "r");
    int n = 0, ret;

    if (!f) {
        fprintf(stderr, "test/sim: %s: %s\n", path, strerror(errno));
        return 2;
    }
    ret = compare_all(f, path, &n);
    fclose(f);
    if (ret == 0 && n == 0) {
        fprintf(stderr, "test/sim: %s: contains no traces\n", path);
        return 2;
    }
    if (ret == 0)
        printf("%d traces are as recorded\n", n);
    return ret;
}

int recorded_write(const char *path)
{
    FILE *f = fopen(path, "w");

    if (!f) {
        fprintf(stderr, "test/sim: %s: %s\n", path, strerror(errno));
        return 2;
    }
    fputs(
        "# Hashes of the traces of runs of the simulator. A commit that only moves code does not change them.\n"
        "# Written by test/sim --record test/sim.d/traces\n",
        f);
    for (uint64_t seed = 1; seed <= N_PLANS; seed++)
        fprintf(f, "queues %" PRIu64 " %016" PRIx64 "\n", seed, hash_of(false, seed));
    for (uint64_t seed = 1; seed <= N_OUTBOXES; seed++)
        fprintf(f, "outbox %" PRIu64 " %016" PRIx64 "\n", seed, hash_of(true, seed));
    if (fclose(f) != 0) {
        fprintf(stderr, "test/sim: %s: %s\n", path, strerror(errno));
        return 2;
    }
    return 0;
}
