/* A reload: the file is checked, requests in flight may finish as at shutdown, and the program replaces itself by
 * execve, keeping the process id and the lock of the state file. So no part of the program needs to change its
 * settings while it runs.
 *
 * A file with errors changes nothing. It is read before anything is drained, and again before the program is replaced,
 * since it may have changed meanwhile. If it is refused then, the sidecar continues with its configuration, as after a
 * start. The new program reads it a third time, and that reading counts. A request for a reload during another one gets
 * the result of that one. */
#include "sidecar/sidecar.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Number of reloads, time at which the last one began, and digest of the configuration before it. */
#define RELOADS "ONCEWARD_RELOADS"

enum { OUTCOME_LINES = 50, LOG_STOP_MS = 2000 };

static void outcome_begin(struct sidecar *s, bool refused)
{
    texts_deinit(&s->reload.outcome);
    s->reload.ended = s->reload.begun;
    s->reload.refused = refused;
    s->state_at_ms = 0;
}

/* faults: lines for the requester, which are in the log already. */
static void refuse(struct sidecar *s, const char *reason, const struct texts *faults)
{
    struct log_line l;

    log_begin(&l, EVENT_RELOAD_REFUSED, NULL);
    log_text(&l, "reason", reason);
    log_text(&l, "advice", event_info(EVENT_RELOAD_REFUSED)->advice);
    log_end(&l);
    outcome_begin(s, true);
    for (size_t i = 0; i < faults->n && i < OUTCOME_LINES; i++)
        texts_add(&s->reload.outcome, faults->items[i]);
    texts_add(&s->reload.outcome, reason);
}

/* Tries the settings that only the libraries check, which make the connections. */
static bool can_start(const struct sidecar *s, const struct config *next, struct texts *faults)
{
    struct forward *trial = NULL;
    struct fault f = {0};
    size_t application;
    struct log_line l;

    if (forward_new(s->wait, &trial, &f)) {
        texts_add(faults, f.text);
        return false;
    }
    for (size_t i = 0; i < next->n_queues; i++) {
        const char *name = next->queues[i].name;

        if (!forward_add(trial, &next->queues[i], &application, &f))
            continue;
        log_begin(&l, EVENT_CONFIG_ERROR, name);
        log_text(&l, "reason", f.text);
        log_end(&l);
        fault_wrap(&f, "queues.%s", name);
        texts_add(faults, f.text);
    }
    forward_free(trial);
    return !faults->n;
}

/* The state file must keep its lock, and its path for the commands that read it. */
static bool keeps_state_file(const struct sidecar *s, const struct config *next, struct texts *faults)
{
    bool same = !strcmp(next->state_file, s->config->state_file);

    if (!same)
        texts_add(faults, "state_file: a reload cannot move it; restart the sidecar");
    return same;
}

/* Could the program start with the current file? Otherwise the reload is refused. */
static bool check(struct sidecar *s)
{
    struct texts faults = {0};
    struct config *next = s->load(s->path, &faults);
    bool good = next && keeps_state_file(s, next, &faults) && can_start(s, next, &faults);

    if (!good && next && faults.n == 1)
        refuse(s, faults.items[0], &(struct texts){0});
    else if (!good)
        refuse(s, "the file is not valid: see config_error; the old configuration stays in use", &faults);
    if (next)
        config_free(next);
    texts_deinit(&faults);
    return good;
}

bool reload_begins(struct sidecar *s)
{
    s->reload.begun++;
    s->state_at_ms = 0;
    if (s->ending == ENDING_DRAIN || s->ending == ENDING_STOP)
        reload_give_up(s);
    if (s->ending != ENDING_NO)
        return false;
    s->reload_began_ms = s->now_ms;
    return check(s);
}

void reload_give_up(struct sidecar *s)
{
    static const struct texts none = {0};

    if (s->reload.ended < s->reload.begun)
        refuse(s, "the sidecar is about to end, or was drained", &none);
}

/* Closes all descriptors but the lock's and the three standard ones: the libraries would leave theirs open to the
 * next program. */
static void keep_only(int lock)
{
    DIR *all = opendir("/proc/self/fd");
    const struct dirent *e;

    while (all && (e = readdir(all))) {
        int fd = (int)strtol(e->d_name, NULL, 10);

        if (fd > STDERR_FILENO && fd != lock)
            fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    if (all)
        closedir(all);
}

void reload_carry_out(struct sidecar *s, char **argv)
{
    struct texts faults = {0};
    char text[64];

    if (!check(s))
        return;
    snprintf(text, sizeof(text), "%lld:%lld:%s", (long long)s->reload.begun, (long long)s->reload_began_ms,
             s->config->digest);
    setenv(RELOADS, text, 1);
    keep_only(s->file.lock.fd);
    log_stop(LOG_STOP_MS);
    execv("/proc/self/exe", argv);
    snprintf(text, sizeof(text), "%s", strerror(errno));
    unsetenv(RELOADS);
    log_start(STDOUT_FILENO);
    texts_add(&faults, text);
    refuse(s, "the program could not be restarted; the old configuration stays in use", &faults);
    texts_deinit(&faults);
}

static bool names(const struct state_queue *before, const struct sidecar_queue *sq)
{
    return strcmp(before->name, sq->config->name) == 0;
}

/* A pod that was ready stays ready, even if its queues have to wait now. That includes new queues, except that a new
 * queue must be reached once before it counts as consumed. */
static void keep_ready(struct sidecar *s)
{
    struct state before = {0};
    struct fault none;
    bool all = true;

    if (!s->file.is_locked || state_read(s->file.path, &before, &none)) /* unlocked: another sidecar's */
        return;
    for (size_t i = 0; i < before.n_queues; i++)
        all &= before.queues[i].ready;
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        sq->was_ready = all;
        for (size_t k = 0; k < before.n_queues; k++) {
            sq->was_ready |= before.queues[k].ready && names(&before.queues[k], sq);
            sq->was_consuming |= before.queues[k].consumed && names(&before.queues[k], sq);
        }
    }
    state_deinit(&before);
}

static void report_reloaded(struct sidecar *s, int64_t took_ms, bool unchanged)
{
    const struct config *c = s->config;
    const char *digest = config_public_digest(c);
    struct texts names = {0};
    struct buf line = {0};
    struct log_line l;

    for (size_t i = 0; i < c->n_queues && c->queues[i].entry < OUTCOME_LINES; i++) {
        if (c->queues[i].partition)
            continue;
        texts_add(&names, c->queues[i].name);
        buf_printf(&line, "%s%s", i ? ", " : "queues: ", c->queues[i].name);
    }
    if (c->n_entries > OUTCOME_LINES)
        buf_printf(&line, ", and %zu more", c->n_entries - OUTCOME_LINES);
    log_begin(&l, EVENT_RELOADED, NULL);
    log_int(&l, "took_ms", took_ms);
    log_texts(&l, "queues", &names);
    if (digest)
        log_text(&l, "config", digest);
    log_bool(&l, "unchanged", unchanged);
    log_end(&l);
    outcome_begin(s, false);
    texts_add(&s->reload.outcome, buf_text(&line));
    buf_reset(&line);
    buf_printf(&line, "configuration %s%s%s", digest ? digest : "", digest ? ", " : "",
               unchanged ? "unchanged: the file is the same as before" : "changed");
    texts_add(&s->reload.outcome, buf_text(&line));
    texts_deinit(&names);
    buf_deinit(&line);
}

void reload_take_over(struct sidecar *s)
{
    const char *text = getenv(RELOADS);
    char *end;

    if (s->reload.begun || s->begins_again) /* the previous reload has failed to replace the program */
        keep_ready(s);
    if (!text)
        return;
    s->reload.begun = strtoll(text, &end, 10);
    s->reload_began_ms = *end == ':' ? strtoll(end + 1, &end, 10) : s->now_ms;
    bool unchanged = *end == ':' && !strcmp(end + 1, s->config->digest);
    unsetenv(RELOADS);
    keep_ready(s);
    report_reloaded(s, s->now_ms - s->reload_began_ms, unchanged);
}
