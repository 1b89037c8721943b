/* A steady rate of claims and settles through the sidecar's own adapter, with random times between them, and
 * the latency of each claim from the moment it was due to its answer. In turn, for a while each: without
 * housekeeping ("none"), with a walk that finds nothing ("walk"), with a purge that finds as much as it can
 * take ("purge").
 *
 * Prints one JSON object a stretch, then one for all stretches of a kind. */
#include "options.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/base/random.h"
#include "onceward/config/config.h"
#include "onceward/core/pace.h"
#include "onceward/inbox/inbox.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { BATCH = 256, RING = 1 << 16, BUDGET_US = 300 };
enum kind { NONE, WALK, PURGE, N_KINDS };

static const char *const names[N_KINDS] = {"none", "walk", "purge"};

struct claim {
    char id[40];
    size_t len;
    uint8_t token[16];
    int64_t due_us;
};

struct samples {
    uint32_t *us;
    size_t n, cap;
};

struct tally {
    int64_t n_purged, n_calls, took_us, most_us, run_us;
};

static struct inbox *inbox;
static enum inbox_op claim_op;
static struct claim ring[RING]; /* made [claimed..arrived), by number */
static uint64_t n_arrived, n_sent, n_settled;
static uint64_t to_settle[RING];
static uint64_t settle_head, settle_tail;
static struct samples pool[N_KINDS], stretch;
static struct tally totals[N_KINDS], tally;
static double next_us, gap_us;
static enum kind kind;
static int64_t retention_ms;
static struct pace pace;
static int64_t page = -1, keep_at_us;
static bool asked;

static void sample_add(struct samples *s, uint32_t us)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 1 << 16;
        s->us = realloc(s->us, s->cap * sizeof(*s->us));
        if (!s->us)
            fail("claims: out of memory");
    }
    s->us[s->n++] = us;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static double quantile(const struct samples *s, double q)
{
    return s->n ? s->us[(size_t)(q * (double)(s->n - 1))] / 1000.0 : 0;
}

static void print(const char *what, enum kind k, struct samples *s, const struct tally *t)
{
    qsort(s->us, s->n, sizeof(*s->us), compare);
    printf("{\"what\":\"%s\",\"kind\":\"%s\",\"claims\":%zu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p999_ms\":%.3f,"
           "\"max_ms\":%.3f,"
           "\"seconds\":%.1f,\"purged\":%" PRId64 ",\"calls\":%" PRId64
           ",\"took_ms\":%.1f,\"longest_ms\":%.2f}\n",
           what, names[k], s->n, quantile(s, 0.5), quantile(s, 0.99), quantile(s, 0.999), quantile(s, 1),
           (double)t->run_us / 1e6, t->n_purged, t->n_calls, (double)t->took_us / 1000,
           (double)t->most_us / 1000);
    fflush(stdout);
}

static void die(const struct fault *f)
{
    fail("claims: %s %s", f->code, f->text);
}

static void connect_inbox(const char *url, bool transaction)
{
    struct config_database d = {
        .url.value = (char *)url, .statement_timeout_ms = 10000, .connect_timeout_ms = 5000};
    struct inbox_queue q = {.queue = "q",
                            .vhost = "/",
                            .consumer = "c",
                            .transaction = transaction,
                            .token_window_ms = 30000,
                            .max_window_ms = 60000,
                            .max_attempts = 8,
                            .revive = 3};
    struct fault f = {0};
    char instance[40];
    void *result;

    claim_op = transaction ? INBOX_CLAIM_ASYNC : INBOX_CLAIM;
    snprintf(instance, sizeof(instance), "claims-%016" PRIx64, random_below(UINT64_MAX));
    struct job *job = inbox_connect(&d, &q, 1, &(struct inbox_self){.instance = instance, .number = 1}, &f);

    while (job && !job_take(job, &result))
        poll(&(struct pollfd){job_fd(job), POLLIN, 0}, 1, -1);
    if (!job || inbox_attempt_take(result, &inbox, &f))
        die(&f);
}

static void arrive(int64_t now_us)
{
    while (next_us <= (double)now_us) {
        struct claim *m = &ring[n_arrived % RING];
        uint8_t bytes[16];

        if (n_arrived - n_settled >= RING - 1)
            fail("claims: the database does not keep up with this rate");
        random_bytes(bytes, sizeof(bytes));
        m->len = 0;
        for (size_t k = 0; k < sizeof(bytes); k++)
            m->len += (size_t)snprintf(m->id + m->len, 3, "%02x", bytes[k]);
        random_bytes(m->token, sizeof(m->token));
        m->due_us = (int64_t)next_us;
        n_arrived++;
        next_us += -log(1 - (double)random_below(1 << 30) / (1 << 30)) * gap_us;
    }
}

static void item_fill(struct inbox_item *i, uint64_t number)
{
    const struct claim *m = &ring[number % RING];

    *i = (struct inbox_item){
        .ref = number, .message_id = {m->id, m->len}, .http_status = 200, .crashes = -1, .unproven_step = -1};
    memcpy(i->token, m->token, 16);
    memcpy(i->fingerprint, m->token, 16);
}

static void submit(void)
{
    static struct inbox_item items[BATCH];
    struct fault f = {0};
    size_t n = 0;

    if (settle_head < settle_tail && inbox_is_free(inbox, INBOX_SETTLE)) {
        while (n < BATCH && settle_head < settle_tail)
            item_fill(&items[n++], to_settle[settle_head++ % RING]);
        if (inbox_submit(inbox, INBOX_SETTLE, items, n, &f))
            die(&f);
    }
    if (n_sent < n_arrived && inbox_is_free(inbox, claim_op)) {
        for (n = 0; n < BATCH && n_sent < n_arrived;)
            item_fill(&items[n++], n_sent++);
        if (inbox_submit(inbox, claim_op, items, n, &f))
            die(&f);
    }
}

static void read_rows(void)
{
    struct inbox_row row;
    struct fault f = {0};
    int got;

    while ((got = inbox_next(inbox, &row, &f)) > 0) {
        if (row.op == INBOX_CLAIM && row.row.answer == ROW_CLAIMED) {
            sample_add(&stretch, (uint32_t)(clock_us() - ring[row.ref % RING].due_us));
            to_settle[settle_tail++ % RING] = row.ref;
        } else if (row.op == INBOX_SETTLE && row.row.answer == ROW_COMPLETED) {
            n_settled++;
        } else {
            fail("claims: %s: %.*s", row_answer_name(row.row.answer), (int)row.row.detail.len,
                 row.row.detail.data);
        }
    }
    if (got < 0)
        die(&f);
}

/* As the worker does it. */
static void keep_house(int64_t now_us)
{
    struct inbox_housekeep ask = {.retention_ms = kind == PURGE ? retention_ms : INT64_C(3650) * 86400000,
                                  .late_ms = 600000,
                                  .from_page = page,
                                  .budget_us = BUDGET_US};
    struct inbox_housekept kept;
    struct fault f = {0};
    int got = inbox_housekept(inbox, &kept, &f);

    if (got < 0)
        die(&f);
    if (got > 0) {
        bool found = kept.n_purged || kept.n_swept;

        asked = false;
        if (kept.away_ms > 100)
            fail("claims: somebody else keeps house for another %" PRId64 " ms", kept.away_ms);
        page = kept.next_page;
        tally.n_purged += kept.n_purged;
        tally.n_calls++;
        tally.took_us += kept.took_us;
        if (kept.took_us > tally.most_us)
            tally.most_us = kept.took_us;
        keep_at_us = now_us + 1000 * pace_rest_ms(&pace, kept.took_us, found, page == 0, false, 1000);
    }
    if (asked || kind == NONE || now_us < keep_at_us)
        return;
    inbox_ask_housekeep(inbox, &ask);
    asked = true;
}

static void run(enum kind k, int64_t us, bool counts)
{
    int64_t start = clock_us(), now = start;

    kind = k;
    stretch.n = 0;
    pace.share = k == PURGE ? PACE_MOST : PACE_LEAST; /* as after a while of it */
    keep_at_us = start;
    tally = (struct tally){0};
    while (now < start + us) {
        arrive(now);
        read_rows();
        keep_house(now);
        submit();
        int64_t until = (int64_t)next_us;

        if (!asked && kind != NONE && keep_at_us < until)
            until = keep_at_us;
        now = clock_us();
        if (until > now) {
            struct timespec wait = {.tv_nsec = until - now > 5000000 ? 5000000 : (until - now) * 1000};
            struct pollfd fd = {inbox_fd(inbox), (short)(POLLIN | (inbox_wants_write(inbox) ? POLLOUT : 0)),
                                0};

            ppoll(&fd, 1, &wait, NULL);
        }
        now = clock_us();
    }
    tally.run_us = now - start;
    if (!counts)
        return;
    struct tally *t = &totals[k];

    t->n_purged += tally.n_purged;
    t->n_calls += tally.n_calls;
    t->took_us += tally.took_us;
    t->run_us += tally.run_us;
    if (tally.most_us > t->most_us)
        t->most_us = tally.most_us;
    for (size_t i = 0; i < stretch.n; i++)
        sample_add(&pool[k], stretch.us[i]);
    print("stretch", k, &stretch, &tally);
}

int main(int argc, char **argv)
{
    const char *url = option(argc, argv, "url", NULL);
    int64_t us = option_number(argc, argv, "seconds", 5) * 1000000;
    long rounds = option_number(argc, argv, "rounds", 6);

    if (!url)
        fail("usage: claims --url URL [--rate N] [--seconds N] [--rounds N] [--retention MS] [--transaction "
             "0|1]");
    gap_us = 1e6 / (double)option_number(argc, argv, "rate", 2000);
    retention_ms = option_number(argc, argv, "retention", 3600000);
    connect_inbox(url, option_number(argc, argv, "transaction", 0) != 0);
    next_us = (double)clock_us();
    run(NONE, 2000000, false);
    run(PURGE, 2000000, false);
    for (long n = 0; n < rounds; n++)
        for (int k = 0; k < N_KINDS; k++)
            run((enum kind)(n % 2 ? N_KINDS - 1 - k : k), us, true);
    for (int k = 0; k < N_KINDS; k++)
        print("all", (enum kind)k, &pool[k], &totals[k]);
    inbox_free(inbox);
    return 0;
}
