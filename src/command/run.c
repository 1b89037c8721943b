/* onceward run: loads the configuration, starts the log, runs the sidecar. */
#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/cgroup.h"
#include "onceward/base/fault.h"
#include "onceward/base/log.h"
#include "onceward/base/texts.h"
#include "onceward/command/command.h"
#include "onceward/config/config.h"
#include "onceward/config/memory.h"
#include "onceward/forward/forward.h"
#include "onceward/inbox/admin.h"
#include "onceward/sidecar/sidecar.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOG_STOP_MS = 2000 };

static void log_finding(const struct config_finding *finding)
{
    struct log_line l;

    log_begin(&l, finding->warning ? EVENT_LIMITS : EVENT_CONFIG_ERROR, NULL);
    log_text(&l, "path", finding->path);
    log_text(&l, "reason", finding->text);
    log_end(&l);
}

static void add_fault(struct texts *faults, const struct config_finding *finding)
{
    struct buf line = {0};

    buf_printf(&line, "%s%s%s", finding->path, *finding->path ? ": " : "", finding->text);
    texts_add(faults, buf_text(&line));
    buf_deinit(&line);
}

/* Adapts the bounds to the control group's limit. The kernel kills a process above that limit, again and again, and
 * each kill costs a delivery of every message that the process held. */
static void fit_memory(struct config *c)
{
    char path[] = "queues";
    struct config_finding finding = {.path = path, .warning = true};
    struct fault text = {0};
    uint64_t limit;

    if (!cgroup_memory_limit("", &limit) || !memory_fit(c, limit, &text))
        return;
    finding.text = text.text;
    log_finding(&finding);
}

/* Loads the configuration. NULL: the log has the reason, and so has faults if given. Warnings are logged only at a
 * start, which includes a reload. */
static struct config *load(const char *path, struct texts *faults)
{
    struct config_report report = {0};
    struct config *config = NULL;
    int failed = config_load(path, admin_check_url, &config, &report);

    if (!failed)
        log_set_format(config->log.format);
    for (size_t i = 0; i < report.n; i++) {
        const struct config_finding *finding = &report.findings[i];

        if (!faults || !finding->warning)
            log_finding(finding);
        if (faults && !finding->warning)
            add_fault(faults, finding);
    }
    config_report_deinit(&report);
    if (!failed)
        fit_memory(config);
    return failed ? NULL : config;
}

/* Tunes the allocator, since several threads allocate bodies of all sizes: large ones are returned to the system at
 * once, and all threads share one heap. */
static void memory_tune(void)
{
    mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    mallopt(M_TRIM_THRESHOLD, 256 * 1024);
    mallopt(M_ARENA_MAX, 1);
}

/* Blocks requests to reload or drain until they can be handled, since they would end the process. */
static void hold_wishes(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    if (getpid() == 1) /* the kernel has no default action for process 1: an unhandled signal would be lost */
        sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

struct run_options {
    const char *config;
};

static int run_run(void *options)
{
    const struct run_options *o = options;

    memory_tune();
    hold_wishes();
    log_start(STDOUT_FILENO);
    int status = STATUS_USAGE;
    struct config *config = load(o->config, NULL);
    if (config) {
        log_set_level(config->log.level);
        forward_global_init();
        status = sidecar_run(config, load, o->config, command_argv);
    }
    log_stop(LOG_STOP_MS);
    return status;
}

#define OPTIONS struct run_options

static const struct command_option run_options[] = {CONFIG_OPTION(.rules = OPTION_REQUIRED), {0}};

const struct command run_command = {
    .name = "run",
    .does = "run the sidecar",
    .about =
        "Runs the sidecar in the foreground. Its log goes to standard output, one JSON object per line.\n"
        "SIGTERM drains and ends it, and a second SIGTERM ends the grace period. SIGUSR1 drains it and leaves it running. "
        "SIGHUP reloads FILE.",
    .options = run_options,
    .size = sizeof(struct run_options),
    .run = run_run,
};
