#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/base/wait.h"
#include "onceward/broker/broker.h"
#include "onceward/config/config.h"
#include "onceward/core/headers.h"
#include "onceward/core/pace.h"
#include "onceward/core/queue.h"
#include "onceward/core/waiting.h"
#include "onceward/forward/forward.h"
#include "onceward/inbox/inbox.h"
#include "onceward/sidecar/sidecar.h"
#include "onceward/sidecar/state.h"
#include "onceward/sidecar/state_file.h"
#include "sidecar/database.h"
#include "sidecar/figures.h"
#include "sidecar/links.h"
#include "sidecar/replicas.h"
#include "sidecar/sidecar_queue.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

/* The shell around the core: one thread, one place where it waits. It turns events of broker, database,
 * applications and clock into facts for the cores of the queues, and carries out their actions. It decides
 * nothing about a message.
 *
 *   sidecar.c          beginning and end, signals, the turn
 *   dial.c             a connection that is restored indefinitely
 *   brokers.c          one connection per virtual host, and its deliveries
 *   arguments.c        the arguments of the queues
 *   renewals.c         copies of messages near their delivery limit, on connections that publish
 *   database.c         the connection, its answers, whether it works
 *   batches.c          operations of all queues, as batches
 *   side_connection.c  a second connection to the database, for slow work
 *   letters.c          large letters, on a connection of their own
 *   requests.c         requests to the applications, their answers, probes
 *   actions.c          carries out the actions of a queue's core
 *   report.c           lines of the log
 *   figures.c          the stats line
 *   metrics.c          the metrics page for Prometheus; metrics_page.c, prometheus.c: its text
 *   replicas.c         presence: the other replicas
 *   handovers.c        the active replica of an ordered queue
 *   controls.c         operator commands
 *   queue_states.c     the states of the queues, for presence
 *   housekeeping.c     the purge and the sweep
 *   store.c            the partitions of stored messages
 *   days.c             partitions past their retention, dropped on a connection of their own
 *   partitions.c       ranges of queue names that change
 *   outbox.c           the relay of the outbox; outbox_answers.c, outbox_figures.c: its answers and its figures
 *   first_start.c      peers that are missing before a queue's first start
 *   state_writer.c     the state file
 *   reload.c           the program, restarted in its own place
 *
 * Calls go down this list's order of layers only: sidecar → brokers, database, actions, … → batches, requests
 * → report. */

/* ENDING_RANGES: to restart in the same process, with more partitions. */
enum ending { ENDING_NO, ENDING_DRAIN, ENDING_STOP, ENDING_RELOAD, ENDING_RANGES };

struct sidecar {
    struct config *config;
    sidecar_load *load;
    const char *path;
    struct wait *wait;
    struct forward *forward;
    struct sidecar_database database;
    struct sidecar_letters letters;
    struct sidecar_store store;
    struct broker_link *links;
    size_t n_links;
    struct application *applications;
    size_t n_applications;
    struct sidecar_queue *queues;
    size_t n_queues, first; /* first: the queue that is served first */
    struct sidecar_presence presence;
    struct sidecar_outbox *outbox; /* NULL: none is configured */
    struct metrics *metrics;       /* NULL: no address is configured */
    struct state_file file;
    bool state_failed;
    int64_t state_at_ms;
    int64_t started_ms; /* wall clock */
    int signals;
    struct watch signals_watch;
    enum ending ending;
    int n_asked;           /* requests to end */
    int64_t grace_ends_ms; /* during a drain */
    bool begins_again;     /* replaces a sidecar that was drained */
    bool is_idle;          /* drained, but not ended: only its presence is written */
    struct state_reload reload;
    int64_t reload_began_ms;
    int64_t now_ms;
    struct header_block headers;
    struct buf token, id;
};

/* --- requests.c --- */

int requests_init(struct sidecar *s, struct fault *f);
void requests_send(struct sidecar *s, struct sidecar_queue *sq, const struct request *sent);
void requests_step(struct sidecar *s);
void requests_probe(struct sidecar *s);

/* --- actions.c --- */

void actions_run(struct sidecar *s);
int64_t actions_due_ms(const struct sidecar *s);

/* --- first_start.c --- */

void first_start_step(struct sidecar *s);

/* --- outbox.c --- */

int outbox_begin(struct sidecar *s, struct fault *f);
void outbox_step(struct sidecar *s);
int64_t outbox_next_ms(const struct sidecar *s); /* time of the next step */
void outbox_database_is(struct sidecar *s, bool there, const char *why);
void outbox_answered(struct sidecar *s);       /* an application has answered; only with an outbox */
void outbox_ends(struct sidecar *s, bool now); /* begins a drain; now: without waiting */
bool outbox_has_ended(const struct sidecar *s);
bool outbox_is_ready(const struct sidecar *s); /* has reached broker and database */
bool outbox_is_quiet(const struct sidecar *s); /* holds nothing */
void outbox_close(struct sidecar *s);
void outbox_free(struct sidecar *s);

/* --- state_writer.c --- */

int state_open(struct sidecar *s);
void state_step(struct sidecar *s);
void state_end(struct sidecar *s, int status);

/* --- reload.c --- */

/* Handles a request for a reload. True: no reload is in progress, and the program can start with the current file.
 * Otherwise the request is refused and logged. */
bool reload_begins(struct sidecar *s);
void reload_give_up(struct sidecar *s); /* the program ends or drains instead: tells the waiting command */
/* Restarts the program in place of this one; argv is its whole command. Returns only if that fails, which is logged.
 * All connections of s must be closed. */
void reload_carry_out(struct sidecar *s, char **argv);
/* Logs the reload, if the program was started by one. Before the first turn. */
void reload_take_over(struct sidecar *s);
