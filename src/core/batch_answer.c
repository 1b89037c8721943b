/* The answer to a request with several messages: see batch_answer.h.
 *
 *     {"failures": [{"id": "order-1", "status": 503, "retry_after": 5, "error": "…"}],
 *      "results": {"order-2": …}}
 *
 * `token` may stand in place of `id`. The form of AWS is understood too: {"batchItemFailures": [{"itemIdentifier":
 * "order-1"}]}. An entry that matches no member may mean one under another spelling. In `response`, where only the
 * answer decides, such an entry makes the whole answer bad. */
#include "onceward/core/batch_answer.h"

#include "onceward/base/buf.h"
#include "onceward/base/scan.h"
#include "onceward/core/token.h"

#include <stdlib.h>
#include <strings.h>

enum { RETRY_AFTER_MOST_S = 3600 };

struct batch_reader {
    struct scan scan;
    struct batch_member *members;
    size_t n, next; /* next: where the search begins, since entries usually have the order of the members */
    bool unknown;   /* an entry matches no member */
    struct buf text;
};

static struct batch_member *find_member(struct batch_reader *r, struct slice raw, bool by_token)
{
    buf_reset(&r->text);
    scan_decode(&r->text, raw);
    for (size_t i = 0; i < r->n; i++) {
        struct batch_member *m = &r->members[(r->next + i) % r->n];

        if (by_token ? token_is_same(buf_slice(&r->text), m->token)
                     : slice_equal(buf_slice(&r->text), m->id)) {
            r->next = (r->next + i + 1) % r->n;
            return m;
        }
    }
    return NULL;
}

/* --- numbers --- */

static bool read_number(struct batch_reader *r, double *ret)
{
    struct slice raw;
    bool integer;
    char text[32];

    if (scan_peek(&r->scan) != SCAN_NUMBER || !scan_number(&r->scan, &raw, &integer) ||
        raw.len >= sizeof text)
        return false;
    memcpy(text, raw.data, raw.len);
    text[raw.len] = 0;
    *ret = strtod(text, NULL);
    return true;
}

static bool read_status(struct batch_reader *r, int *ret)
{
    double value;

    if (scan_peek(&r->scan) == SCAN_NULL)
        return scan_skip(&r->scan);
    if (!read_number(r, &value) || !(value >= 100 && value <= 999))
        return false;
    *ret = (int)value;
    return true;
}

static bool read_retry_after(struct batch_reader *r, int64_t *ret)
{
    double value;

    if (scan_peek(&r->scan) == SCAN_NULL)
        return scan_skip(&r->scan);
    if (!read_number(r, &value) || !(value >= 0))
        return false;
    *ret = (int64_t)(value < RETRY_AFTER_MOST_S ? value * 1000 : RETRY_AFTER_MOST_S * 1000.0);
    return true;
}

/* --- entries --- */

struct entry {
    struct slice id, token, error;
    bool has_id, has_token, is_strange; /* strange: an id that is not a string */
    int status;
    int64_t retry_after_ms;
};

static bool read_name(struct batch_reader *r, struct slice *ret, bool *has, bool *is_strange)
{
    *has = true;
    if (scan_peek(&r->scan) == SCAN_STRING)
        return scan_string(&r->scan, ret);
    *is_strange = true;
    return scan_skip(&r->scan);
}

static bool read_field(struct batch_reader *r, struct slice key, struct entry *e)
{
    if (scan_equal(key, SLICE("id")) || scan_equal(key, SLICE("itemIdentifier")))
        return read_name(r, &e->id, &e->has_id, &e->is_strange);
    if (scan_equal(key, SLICE("token")))
        return read_name(r, &e->token, &e->has_token, &e->is_strange);
    if (scan_equal(key, SLICE("status")))
        return read_status(r, &e->status);
    if (scan_equal(key, SLICE("retry_after")))
        return read_retry_after(r, &e->retry_after_ms);
    if (scan_equal(key, SLICE("error")) && scan_peek(&r->scan) == SCAN_STRING)
        return scan_string(&r->scan, &e->error);
    return scan_skip(&r->scan);
}

static int status_of_entry(int status)
{
    return status < 300 || status == 502 || status == 504 ? 500 : status;
}

static bool read_entry(struct batch_reader *r)
{
    struct entry e = {.retry_after_ms = -1};
    struct batch_member *m = NULL;
    struct slice key;
    int more = -1;

    if (scan_peek(&r->scan) != SCAN_OBJECT || !scan_open(&r->scan))
        return false;
    for (bool first = true; (more = scan_next_member(&r->scan, first, &key)) == 1; first = false)
        if (!read_field(r, key, &e))
            return false;
    if (more || (!e.has_id && !e.has_token))
        return false;
    if (!e.is_strange)
        m = e.has_token ? find_member(r, e.token, true) : find_member(r, e.id, false);
    if (!m) {
        r->unknown = true;
        return true;
    }
    if (m->failed)
        return true;
    m->failed = true;
    m->status = status_of_entry(e.status);
    m->retry_after_ms = e.retry_after_ms;
    m->error = e.error;
    return true;
}

static bool read_failures(struct batch_reader *r)
{
    int more;

    if (scan_peek(&r->scan) == SCAN_NULL)
        return scan_skip(&r->scan);
    if (scan_peek(&r->scan) != SCAN_ARRAY || !scan_open(&r->scan))
        return false;
    for (bool first = true; (more = scan_next_item(&r->scan, first)) == 1; first = false)
        if (!read_entry(r))
            return false;
    return !more;
}

static bool read_results(struct batch_reader *r)
{
    struct slice key;
    int more;

    if (scan_peek(&r->scan) != SCAN_OBJECT)
        return scan_skip(&r->scan);
    if (!scan_open(&r->scan))
        return false;
    for (bool first = true; (more = scan_next_member(&r->scan, first, &key)) == 1; first = false) {
        struct batch_member *m = find_member(r, key, false);
        scan_peek(&r->scan); /* skip the blanks before it */
        const char *start = r->scan.at;

        if (!scan_skip(&r->scan))
            return false;
        if (m)
            m->result = (struct slice){start, (size_t)(r->scan.at - start)};
    }
    return !more;
}

/* Frameworks may write the names of members with a capital. An application that names its failures so must not lose
 * them. */
static bool is_misspelt(struct slice key)
{
    static const char *const names[] = {"failures", "batchItemFailures"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (key.len == strlen(names[i]) && !strncasecmp(key.data, names[i], key.len))
            return true;
    return false;
}

static bool read_object(struct batch_reader *r)
{
    struct slice key;
    int more;

    if (!scan_open(&r->scan))
        return false;
    for (bool first = true; (more = scan_next_member(&r->scan, first, &key)) == 1; first = false) {
        bool is_failures = scan_equal(key, SLICE("failures")) || scan_equal(key, SLICE("batchItemFailures"));

        if (is_failures                         ? !read_failures(r)
            : scan_equal(key, SLICE("results")) ? !read_results(r)
                                                : is_misspelt(key) || !scan_skip(&r->scan))
            return false;
    }
    return !more && scan_at_end(&r->scan);
}

/* A list of failures may be hidden behind a byte order mark, in UTF-16, by compression, or as JSON in a JSON string. */
static bool may_hide_failures(struct slice body)
{
    return !slice_is_utf8(body) || memchr(body.data, 0, body.len) || memchr(body.data, '{', body.len) ||
           memchr(body.data, '[', body.len);
}

/* A non-empty array may be a list of failures in an unknown form. */
static bool read_body(struct batch_reader *r, struct slice body)
{
    if (!body.len)
        return true;
    switch (scan_peek(&r->scan)) {
    case SCAN_OBJECT:
        return slice_is_utf8(body) && read_object(r);
    case SCAN_ARRAY:
        return scan_open(&r->scan) && scan_next_item(&r->scan, true) == 0 && scan_at_end(&r->scan);
    case SCAN_BAD:
    case SCAN_STRING:
    case SCAN_NUMBER:
    case SCAN_TRUE:
    case SCAN_FALSE:
    case SCAN_NULL:
        break;
    }
    return !may_hide_failures(body);
}

static bool is_blank(struct batch_reader *r)
{
    scan_peek(&r->scan); /* skip the blanks */
    return r->scan.at == r->scan.end;
}

/* --- the whole --- */

static enum batch_verdict verdict_of_error(int status, bool knows_batches)
{
    static const int refusals[] = {400, 404, 405, 413, 415, 422};

    for (size_t i = 0; i < sizeof refusals / sizeof *refusals && !knows_batches; i++)
        if (refusals[i] == status)
            return BATCH_UNKNOWN;
    switch (status) {
    case 429:
    case 503:
        return BATCH_NOT_NOW;
    case 408:
    case 409:
    case 423:
    case 425:
        return BATCH_NOT_NOW_FOR_ONE;
    case 413:
        return BATCH_TOO_LARGE;
    case 502:
    case 504:
        return BATCH_CRASHED;
    default:
        return status < 200 ? BATCH_CRASHED : BATCH_FAILED;
    }
}

static void forget_names(struct batch_member *members, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        members[i].failed = false;
        members[i].status = 0;
        members[i].retry_after_ms = -1;
        members[i].error = members[i].result = (struct slice){0};
    }
}

static void read_success(const struct batch_reply *a, const struct batch_rules *rules,
                         struct batch_member *members, size_t n, struct batch_reading *ret)
{
    struct batch_reader r = {
        .scan = {.at = a->body.data, .end = a->body.data + a->body.len}, .members = members, .n = n};

    if (a->echo != (int64_t)a->n_sent)
        ret->why = a->echo < 0 ? "its answer has no field Onceward-Batch"
                               : "its answer has another count in Onceward-Batch than the request";
    else if (a->is_cut)
        ret->why = "its answer is incomplete: it is larger than forward.max_response, or broke off";
    else if (a->is_to_close && is_blank(&r) && !rules->outcome.transaction)
        ret->why =
            "its answer has neither a body nor a length, as if the application had died before the body";
    else if (!read_body(&r, a->body))
        ret->why = "its answer is not JSON, or has no list of failures";
    else if (r.unknown && !rules->outcome.transaction)
        ret->why = "its answer names a failure that matches no message of the request";
    buf_deinit(&r.text);
    if (ret->why) {
        forget_names(members, n);
        ret->verdict = BATCH_BAD;
        return;
    }
    ret->verdict = a->status == 202 && rules->outcome.transaction ? BATCH_ACCEPTED : BATCH_ANSWERED;
}

void batch_answer_read(const struct batch_reply *a, const struct batch_rules *rules,
                       struct batch_member *members, size_t n, struct batch_reading *ret)
{
    *ret = (struct batch_reading){0};
    forget_names(members, n);
    switch (a->kind) {
    case ANSWER_STATUS:
        if (a->status >= 200 && a->status < 300)
            read_success(a, rules, members, n, ret);
        else
            ret->verdict = verdict_of_error(a->status, rules->knows_batches || a->echo == (int64_t)a->n_sent);
        return;
    case ANSWER_UNREACHABLE:
    case ANSWER_ABANDONED:
        ret->verdict = BATCH_NOT_NOW;
        return;
    case ANSWER_DIED:
        ret->verdict = BATCH_CRASHED;
        return;
    case ANSWER_TIMEOUT:
        ret->verdict = BATCH_TIMEOUT;
        return;
    }
}

enum verdict batch_member_verdict(const struct batch_member *m, const struct outcome_rules *rules)
{
    return m->status == 424 ? VERDICT_NOT_NOW : outcome_of(ANSWER_STATUS, m->status, rules);
}
