#pragma once

#include "onceward/base/log.h"
#include "onceward/base/texts.h"
#include "onceward/core/identity.h"
#include "onceward/core/outcome.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The configuration, immutable once read. Every string lives until config_free. One table (keys.def) has keys, types,
 * ranges, defaults and one sentence of documentation each; see keys.h. */

struct fault;
struct buf;

/* A text that may come from a mounted file (K_file), which is read again at every connect. Both NULL: not set. */
struct config_text {
    char *value; /* given, or read from the file at the start */
    char *file;
};

/* Reads the current text: from the file (one trailing newline dropped), or the value. The caller owns *out (NULL when
 * not set). -1: the file cannot be read, f says why. */
int config_text_read(const struct config_text *t, char **out, struct fault *f);

/* Frees an owned copy; its value is overwritten first. */
void config_text_clear(struct config_text *t);

struct config_tls {
    char *ca_file, *cert_file, *key_file; /* NULL: the system's store, none, none */
    bool verify;
};

enum { CONFIG_CONSUMER_TIMEOUT_MS = 30 * 60 * 1000 }; /* RabbitMQ's own */

/* The smallest delivery limits: of a quorum queue, and of an ordered one, all of whose deliveries count together. A
 * message is renewed two deliveries before its limit, and two crashes before that cost every prefetched delivery two
 * more. */
enum { CONFIG_DELIVERY_LIMIT_MIN = 5, CONFIG_ORDERED_LIMIT_MIN = 20 };

enum { CONFIG_DIGEST_LEN = 12 };

struct config_broker {
    struct config_text url; /* the broker's address: given, or made of host, port and vhost */
    struct config_text given_url;
    char *host, *vhost; /* NULL: not given */
    int port;           /* 0: not given */
    struct config_text user, password;
    int64_t heartbeat_ms, connect_timeout_ms;
    int delivery_limit; /* -1: by server version */
    struct config_tls tls;
};

enum config_prepared { PREPARED_AUTO, PREPARED_ON, PREPARED_OFF };

struct config_database {
    struct config_text url, password;
    enum config_prepared prepared;
    int64_t statement_timeout_ms, connect_timeout_ms;
};

enum config_messages { MESSAGES_NONE, MESSAGES_SAMPLED, MESSAGES_ALL };

struct config_log {
    enum log_level level;
    enum log_format format;
    enum config_messages messages;
    int64_t stats_interval_ms;
};

struct config_metrics {
    char *listen; /* NULL: no metrics page */
};

struct config_header {
    char *name, *value;
    bool is_secret; /* secret by its name, or because it came from a file or the environment */
};

/* Requests with several messages. */
struct config_batch {
    int max_messages; /* 0: each request has one message */
    size_t max_bytes; /* of the request's body */
};

struct config_forward {
    char *url;
    char *unix_socket; /* NULL: TCP */
    struct config_header *headers;
    size_t n_headers;
    struct config_text authorization; /* the value of the Authorization header */
    struct config_tls tls;
    int64_t connect_timeout_ms;
    size_t max_response_bytes;
    int concurrency;
    struct config_batch batch;
    char *content_type; /* NULL: application/octet-stream */
    bool error_body;    /* the text of error answers is logged and kept */
};

/* Places to look for a value in a message, in order. */
struct config_sources {
    struct identity_source *items;
    size_t n;
};

/* Order per key. */
struct config_order {
    struct config_sources key; /* n 0: the queue is not ordered */
    bool unkeyed_is_dead;      /* unkeyed: dead */
    bool holds_dead;           /* on_dead: hold */
};

struct config_queue {
    char *name;    /* the entry's name, for the log */
    char *queue;   /* the queue's name at the broker */
    char *pattern; /* `queue` of the entry, if it has a range; NULL: the entry is one queue */
    size_t entry;  /* number of the entry; the queues of one entry are adjacent */
    char *range;   /* wider range that was given to config_widen; or NULL */
    bool leaving;  /* a partition outside the range, behind the others, read until it is empty */
    size_t partition, n_partitions; /* place in the entry, and number of its partitions; without a range 0 of
                                       1 */
    char *vhost;                    /* NULL: the URL's */
    char *consumer, *takes_over;
    struct config_forward forward;
    bool transaction; /* completion */
    int64_t token_window_ms, max_window_ms, commit_grace_ms;
    int prefetch, max_parked;
    size_t max_bytes, max_message_bytes;
    int64_t consumer_timeout_ms, max_hold_ms, pause_hold_ms;
    int delivery_limit; /* -1: the broker's */
    struct config_sources message_id;
    struct config_order order;
    int max_attempts;
    int64_t backoff_ms, max_backoff_ms, max_age_ms; /* max_age_ms 0: off */
    int *permanent_status;
    size_t n_permanent_status;
    int brake;
    bool mismatch_is_duplicate; /* on_body_mismatch: duplicate */
    bool too_large_is_reject;   /* on_too_large: reject */
    int revive;
    char *ready_url; /* NULL: a TCP connect */
    int64_t ready_interval_ms;
    size_t store_response_bytes; /* 0: not stored */
    int64_t store_ms;            /* how long messages are stored; 0: not at all */
    int64_t retention_ms;
    int64_t compact_ms; /* time after which completed rows become history entries; 0: never */
};

/* Largest answer to a batch without the members' results, and the bytes of these results with their ids, if they are
 * stored. */
enum { BATCH_ANSWER_BYTES = 64 << 10, BATCH_ID_BYTES = 64 };

static inline size_t config_batch_results(const struct config_queue *q)
{
    if (q->transaction || !q->store_response_bytes)
        return 0;
    return (size_t)q->forward.batch.max_messages * (q->store_response_bytes + BATCH_ID_BYTES);
}

/* A list of names. */
struct config_names {
    char **items;
    size_t n;
};

/* The relay of the outbox. */
struct config_outbox {
    bool is_there;                 /* without it, no relay runs */
    char *vhost;                   /* NULL: the URL's */
    struct config_names exchanges; /* n 0: all */
    struct config_names not_mandatory, ordered;
    int64_t poll_ms;
    size_t max_message_bytes;
};

struct config {
    char digest[CONFIG_DIGEST_LEN + 1]; /* hex: the first digits of the file's SHA-256 */
    char *instance;
    bool instance_is_set; /* given in the file, so a restart has the same name */
    bool holds_secrets;   /* the file itself has passwords; other files and the environment do not count */
    struct config_broker broker;
    struct config_database database;
    struct config_log log;
    struct config_metrics metrics;
    char *state_file;
    bool state_file_is_set; /* given in the file; the default is shared by the sidecars of one user */
    int64_t shutdown_grace_ms;
    struct config_outbox outbox;
    struct config_queue *queues; /* an entry per partition; may be empty if there is an outbox */
    size_t n_queues, n_entries;
    struct config_arena *arena;
};

/* All errors and warnings of a file. */
struct config_report {
    struct config_finding {
        char *path; /* "queues.payments.forward.url"; empty: the whole file */
        char *text; /* the fault, and the expected value */
        bool warning;
        bool fails_check; /* for a warning: `run` continues, `check` fails */
    } * findings;
    size_t n;
    size_t n_errors;
};

void config_report_deinit(struct config_report *r);

/* Checks database.url by a library that this module does not use. -1: f says why not, without any part that may be
 * secret. 1: valid, but the certificate of a server on another machine is not checked. */
typedef int config_database_check(const char *url, struct fault *f);

/* Reads, expands and validates a file; "-" is standard input. check may be NULL. 0: *ret_config is the
 * caller's (config_free); the report may hold warnings. -1: the report holds all errors; *ret_config is
 * untouched. A report never contains a secret's value. */
int config_load(const char *path, config_database_check *check, struct config **ret_config,
                struct config_report *report);

/* Effective values: every key of the file and of each queue, in the order of the table. Secrets are masked. */
struct config_values {
    struct config_value {
        char *path;       /* "queues.orders.prefetch" */
        char *value;      /* as written in the file; in parentheses: not given, and the consequence */
        const char *from; /* "given", "defaults" or "default", and ", by file" or ", environment" */
    } * items;
    size_t n;
};

void config_values_deinit(struct config_values *v);

/* Like config_load; *values, empty before, is the caller's (config_values_deinit), also after errors. */
int config_load_values(const char *path, config_database_check *check, struct config **ret_config,
                       struct config_report *report, struct config_values *values);

/* The same from memory; name is used in messages. */
int config_parse(const char *text, size_t len, const char *name, config_database_check *check,
                 struct config **ret_config, struct config_report *report);

/* Defaults alone, for a command that needs no file. The caller frees it with config_free. */
struct config *config_defaults(void);

void config_free(struct config *c);

/* Adds the partitions of a wider range, with the same fixed parts, that are outside the entry's own range: they are
 * `leaving`. Those of an earlier call are removed. Earlier queues stay valid. */
void config_widen(struct config *c, size_t entry, const char *range);

/* Digest for logs and status. NULL: the file itself holds passwords, which a digest would help to guess. */
const char *config_public_digest(const struct config *c);

/* Sets the sidecar's name when the file gives none. To be called before the configuration is used. */
void config_set_instance(struct config *c, const char *name);

/* Reads `state_file` of a configuration, for commands that ask a running sidecar. The file may have errors elsewhere,
 * since the sidecar keeps running with its earlier configuration. *ret is the caller's, NULL if the file does not set
 * it. -1: f. */
int config_state_file(const char *path, char **ret, struct fault *f);

/* Does the host stand for this machine: localhost, 127.0.0.0/8 or ::1 (without brackets)? */
bool config_host_is_local(const char *host);

/* Parses "30s", "1500ms", "5m", "2h", "7d" to milliseconds; "64KiB", "64MiB", "512B" to bytes. 0, or 1: malformed or
 * too large. */
int config_duration(const char *text, int64_t *ret_ms);
int config_size(const char *text, size_t *ret_bytes);
