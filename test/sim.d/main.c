/* The simulator's command: see usage. */
#include "differential.h"
#include "measured.h"
#include "outbox_sim.h"
#include "recorded.h"
#include "run.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char usage_text[] =
    "usage: test/sim [--mutant NAME] [--seeds A..B | --seed N] [--seconds S] [--trace] [--no-shrink] [--jobs N]\n"
    "       test/sim --outbox [--seeds A..B | --seed N [--trace]]\n"
    "       test/sim --measured [NAME | list]\n"
    "       test/sim --traces FILE | --record FILE\n"
    "       test/sim --mutants [NAME...] | --save-mutant NAME WHAT\n"
    "       test/sim --differential DRIVER CONNECTION\n"
    "\n"
    "The simulator runs the real core (src/core) in virtual time against a simulated broker, inbox and "
    "applications, which break in every way that\n"
    "is foreseen. One seed is one run, and the same run each time. An oracle that knows the truth checks the "
    "promises after each step.\n"
    "\n"
    "  --seeds A..B   runs these seeds; without any option 1..500. Ends at the first that breaks a promise\n"
    "  --seed N       runs one\n"
    "  --seconds S    ends after so much time, wherever it is then\n"
    "  --trace        tells what happens in it, line by line, with virtual time: deliveries, facts, actions, "
    "faults, and the lines of the log in []\n"
    "  --no-shrink    does not look for the shortest plan that breaks the same promise\n"
    "  --mutant NAME  with that deliberate mistake in the core: test/sim.d/mutants/NAME.patch\n"
    "  --jobs N       so many processes at once\n"
    "  --outbox       runs the outbox alone: relays, a database and a broker of their own. Without it each "
    "seed runs both\n"
    "  --measured     runs the measured scenarios (throughput beside bad answers, crashes, outages, …), or "
    "one; each says what it measured, and what it asks for\n"
    "  --traces FILE  compares 300 runs, and 100 of the outbox, with the hashes in that file "
    "(test/sim.d/traces)\n"
    "  --record FILE  rewrites that file, after a change of behaviour\n"
    "  --mutants      builds and runs each mutant: the oracle must catch it within 4,000 seeds\n"
    "  --save-mutant  writes the changes that are not staged as a mutant, and undoes them\n"
    "  --differential asks the simulated inbox and the real functions the same, at random: DRIVER is the "
    "program test/system/inbox_calls of a build,\n"
    "                 CONNECTION a migrated database, whose inbox is emptied (test/system/test_sim.py does "
    "it all)\n"
    "\n"
    "What to do with a seed that failed:\n"
    "  1. test/sim --seed N            prints the promise that broke, and the shortest plan that still "
    "breaks it: its servers, messages and faults;\n"
    "  2. test/sim --seed N --trace    tells the whole story of that shortest plan. Its last line is the "
    "promise that broke. Read it upwards: find the first\n"
    "                                  action that you would not have done;\n"
    "  3. mend src/core, or the simulated server where it is not what the real one does (say where that "
    "stands: documentation, source, a test\n"
    "     against the real server), or the oracle where it asks for more than README.md promises;\n"
    "  4. run the seed again, then --seeds 1..2000 and --measured. A seed says something about one revision "
    "only: a test of the core in test/unit\n"
    "     keeps what was learnt.\n";

enum { OUTBOX_EVERY = 20 }; /* runs of the outbox take longer */

struct options {
    uint64_t from, to;
    double seconds;
    bool trace, shrink;
    int jobs;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void report(const struct options *o, struct plan *p, struct outcome *out)
{
    printf("seed %llu: BROKEN %s at %.6f s: %s\n", (unsigned long long)p->seed, out->check,
           (double)out->at_us / 1e6, out->text);
    if (o->shrink) {
        shrink_plan(p, out, 600);
        printf("the shortest plan found: %s at %.6f s: %s\n", out->check, (double)out->at_us / 1e6,
               out->text);
    }
    plan_print(p);
    if (o->trace)
        run_plan(p, TRACE_PRINT, out, NULL, NULL);
    else
        printf("Its story: test/sim --seed %llu --trace\n", (unsigned long long)p->seed);
}

/* Runs the outbox with a seed. True: a promise was broken, and printed. */
static bool outbox_breaks(uint64_t seed, bool trace)
{
    struct outcome out;

    outbox_run(seed, trace ? TRACE_PRINT : TRACE_NONE, &out);
    if (out.broken)
        printf(
            "seed %llu: BROKEN outbox, %s at %.3f s: %s\nIts story: test/sim --outbox --seed %llu --trace\n",
            (unsigned long long)seed, out.check, (double)out.at_us / 1e6, out.text, (unsigned long long)seed);
    return out.broken;
}

static int run_outbox(const struct options *o)
{
    double began = now_s();
    uint64_t n = 0;

    for (uint64_t seed = o->from; seed <= o->to && (!o->seconds || now_s() - began < o->seconds); seed++, n++)
        if (outbox_breaks(seed, o->trace))
            return 1;
    printf("%llu runs of the outbox: no promise broken\n", (unsigned long long)n);
    return 0;
}

/* Runs every step-th seed. 0: all were good. */
static int run_seeds(const struct options *o, uint64_t from, uint64_t step)
{
    double began = now_s();
    uint64_t n_runs = 0, n_deliveries = 0, n_posts = 0;

    for (uint64_t seed = from; seed <= o->to && (!o->seconds || now_s() - began < o->seconds); seed += step) {
        struct plan p;
        struct outcome out;

        plan_make(&p, seed);
        run_plan(&p, o->trace && o->from == o->to && !o->shrink ? TRACE_PRINT : TRACE_NONE, &out, NULL, NULL);
        n_runs++;
        n_deliveries += out.counts.n_deliveries;
        n_posts += out.counts.n_posts;
        if (out.broken) {
            report(o, &p, &out);
            plan_deinit(&p);
            return 1;
        }
        if (seed % OUTBOX_EVERY == 0 && outbox_breaks(seed, false)) {
            plan_deinit(&p);
            return 1;
        }
        if (o->trace && o->from == o->to && o->shrink)
            run_plan(&p, TRACE_PRINT, &out, NULL, NULL);
        plan_deinit(&p);
    }
    printf("%llu runs, %llu deliveries, %llu requests: no promise broken; %.0f deliveries a second of CPU "
           "time\n",
           (unsigned long long)n_runs, (unsigned long long)n_deliveries, (unsigned long long)n_posts,
           (double)n_deliveries / cpu_s());
    return 0;
}

static int run_jobs(const struct options *o)
{
    int bad = 0, status;

    if (o->jobs <= 1)
        return run_seeds(o, o->from, 1);
    for (int i = 0; i < o->jobs; i++) {
        fflush(stdout);
        if (fork() == 0) {
            status = run_seeds(o, o->from + (uint64_t)i, (uint64_t)o->jobs);
            fflush(stdout);
            _exit(status);
        }
    }
    while (wait(&status) > 0)
        bad |= !WIFEXITED(status) || WEXITSTATUS(status);
    return bad;
}

static bool read_range(const char *text, struct options *o)
{
    char *end;

    o->from = strtoull(text, &end, 10);
    if (!*end) {
        o->to = o->from;
        return end != text;
    }
    if (strncmp(end, "..", 2) != 0)
        return false;
    text = end + 2;
    o->to = strtoull(text, &end, 10);
    return end != text && !*end && o->to >= o->from;
}

/* --- mutants --- */

enum { MUTANT_SEEDS = 4000, OUTBOX_MUTANT_SEEDS = 400, MUTANT_S = 600 };

/* Prints the first seed or measured scenario in which a promise breaks. Returns 1: one broke, 0: none did. */
static int hunt(bool outbox)
{
    struct outcome out;

    alarm(MUTANT_S); /* a mistake may also loop */
    for (uint64_t seed = 1; seed <= (outbox ? OUTBOX_MUTANT_SEEDS : MUTANT_SEEDS); seed++) {
        if (outbox) {
            outbox_run(seed, TRACE_NONE, &out);
        } else {
            struct plan p;

            plan_make(&p, seed);
            run_plan(&p, TRACE_NONE, &out, NULL, NULL);
            plan_deinit(&p);
        }
        if (out.broken) {
            printf("caught by seed %llu: %s: %s\n", (unsigned long long)seed, out.check, out.text);
            return 1;
        }
    }
    if (!outbox && measured_catches(&out)) {
        printf("caught by a measured scenario: %s: %s\n", out.check, out.text);
        return 1;
    }
    printf("NOT CAUGHT within %d seeds\n", outbox ? OUTBOX_MUTANT_SEEDS : MUTANT_SEEDS);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"seeds", 1, NULL, 's'},        {"seed", 1, NULL, 's'},      {"seconds", 1, NULL, 't'},
        {"trace", 0, NULL, 'v'},        {"no-shrink", 0, NULL, 'n'}, {"measured", 0, NULL, 'P'},
        {"hunt", 0, NULL, 'H'},         {"outbox", 0, NULL, 'O'},    {"jobs", 1, NULL, 'j'},
        {"differential", 0, NULL, 'D'}, {"traces", 1, NULL, 'T'},    {"record", 1, NULL, 'R'},
        {"help", 0, NULL, 'h'},         {NULL, 0, NULL, 0}};
    struct options o = {.from = 1, .to = 500, .shrink = true, .jobs = 1};
    bool outbox = false, hunts = false;
    int c, what = 's';

    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1)
        switch (c) {
        case 's':
            if (!read_range(optarg, &o)) {
                fprintf(stderr, "test/sim: --seeds A..B\n");
                return 2;
            }
            break;
        case 't':
            o.seconds = strtod(optarg, NULL);
            if (o.to == 500)
                o.to = UINT64_MAX / 2;
            break;
        case 'v':
            o.trace = true;
            break;
        case 'n':
            o.shrink = false;
            break;
        case 'j':
            o.jobs = (int)strtol(optarg, NULL, 10);
            break;
        case 'H':
            hunts = true;
            break;
        case 'O':
            outbox = true;
            break;
        case 'T':
            return recorded_compare(optarg);
        case 'R':
            return recorded_write(optarg);
        case 'P':
        case 'D':
            what = c;
            break;
        case 'h':
            fputs(usage_text, stdout);
            return 0;
        default:
            fputs(usage_text, stderr);
            return 2;
        }
    if (hunts)
        return hunt(outbox);
    if (what == 'D' && argc - optind != 2) {
        fputs(usage_text, stderr);
        return 2;
    }
    if (what == 'D')
        return differential_run(argv[optind], argv[optind + 1], o.from, o.seconds > 0 ? o.seconds : 20);
    if (outbox)
        return run_outbox(&o);
    if (what == 'P')
        return measured_run(argv[optind]);
    return run_jobs(&o);
}
