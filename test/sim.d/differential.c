/* The simulated inbox beside the real one: see differential.h. Each episode begins with an empty inbox. Three sidecars
 * and three application transactions make random claims, lookups, completions, failures, releases, letters (with a row
 * and without), extensions, also of several tokens at once, sweeps, moves to the history and redrives, while time
 * advances in whole seconds. All durations end in half a second, so that the few milliseconds of a call make no
 * difference. */
#include "differential.h"

#include "inbox_sim.h"
#include "random.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_MESSAGES = 3, N_SIDECARS = 3, N_TRANSACTIONS = 3, N_CALLS = 60, TOKENS = 12, TOLERANCE_MS = 400 };
enum { N_LETTERS = 3 /* per batch, at most */, LETTER_TOKENS = 4, BODIES = 2 };
enum { LATE = 3 }; /* in place of a difference */
enum { WINDOW_MS = 4500, MAX_WINDOW_MS = 14500, MAX_ATTEMPTS = 2, REVIVE = 2 };

struct asked {
    FILE *to, *from;
    uint64_t random;
    struct inbox_row_sim rows[N_MESSAGES];
    struct inbox_letters_sim letters;
    int64_t letter_ids[N_CALLS * N_LETTERS]; /* ids of the real letters */
    bool transaction;                        /* completion of this episode's queue */
    int64_t aged_us, began_us;
    int64_t episode_us; /* real start of the episode: all times are half a second away from the moment at
                           which an answer changes */
    int64_t numbers[N_SIDECARS];
    bool own[N_SIDECARS];
    unsigned gone[N_SIDECARS];
    unsigned in_tx[N_TRANSACTIONS]; /* messages that the transaction has locked, a bit each */
    uint64_t n_calls;
    char call[300], answer[600];
};

static int64_t real_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t now_us(const struct asked *a)
{
    return 1000000000000000 + real_us() - a->began_us + a->aged_us;
}

/* False: the driver is gone. */
static bool ask(struct asked *a, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(a->call, sizeof(a->call), format, args);
    va_end(args);
    fprintf(a->to, "%s\n", a->call);
    fflush(a->to);
    a->n_calls++;
    if (!fgets(a->answer, sizeof(a->answer), a->from))
        return false;
    a->answer[strcspn(a->answer, "\n")] = 0;
    return true;
}

/* Was the machine suspended, so that the two answers may differ because of their times? */
static bool is_late(const struct asked *a)
{
    return real_us() - a->episode_us > TOLERANCE_MS * INT64_C(1000);
}

static int differs(const struct asked *a, int message, const char *ours)
{
    const struct inbox_row_sim *r = &a->rows[message];

    if (is_late(a))
        return LATE;
    printf("DIFFERS after %llu calls: %s\n  PostgreSQL: %s\n  simulated:  %s\n  its row: status %d attempt "
           "%d takeovers %d body %d expires in %lld ms, "
           "next in %lld ms, locked by %llu\n",
           (unsigned long long)a->n_calls, a->call, a->answer, ours, r->status, r->attempt, r->takeovers,
           r->body, (long long)(r->expires_us - now_us(a)) / 1000, (long long)(r->next_us - now_us(a)) / 1000,
           (unsigned long long)r->locked_by);
    return 1;
}

static int64_t field(const char *answer, const char *name)
{
    const char *at = strstr(answer, name);

    return at ? strtoll(at + strlen(name), NULL, 10) : -1;
}

static bool is_close(int64_t a, int64_t b)
{
    return a - b <= TOLERANCE_MS && b - a <= TOLERANCE_MS;
}

static int compare(const struct asked *a, int message, bool reads, const struct inbox_reply *r)
{
    const char *name = row_answer_name(r->answer);
    size_t len = strlen(name);
    bool alike = strncmp(a->answer, name, len) == 0 && (a->answer[len] == ' ' || !a->answer[len]);
    char ours[200];

    if (alike && reads && r->answer != ROW_COMPLETED && r->answer != ROW_VANISHED)
        alike = field(a->answer, "attempt=") == r->attempt &&
                field(a->answer, "takeovers=") == r->takeovers &&
                field(a->answer, "crashes=") == r->crashes &&
                field(a->answer, "unproven_step=") == r->unproven_step &&
                field(a->answer, "batch_cap=") == r->batch_cap &&
                field(a->answer, "taken_over=") == r->taken_over;
    if (alike && (r->answer == ROW_HELD || r->answer == ROW_NOT_DUE || r->answer == ROW_EXTENDED))
        alike = is_close(field(a->answer, "wait_ms="), r->wait_us / 1000);
    snprintf(ours, sizeof(ours),
             "%s attempt=%d takeovers=%d crashes=%d unproven_step=%d batch_cap=%d wait_ms=%lld taken_over=%d",
             name, r->attempt, r->takeovers, r->crashes, r->unproven_step, r->batch_cap,
             (long long)(r->wait_us / 1000), r->taken_over);
    return alike ? 0 : differs(a, message, ours);
}

static void token_bytes(uint64_t n, uint8_t ret[16])
{
    memset(ret, 0, 16);
    memcpy(ret, &n, sizeof(n));
}

static struct inbox_asker asker(const struct asked *a, int s)
{
    return (struct inbox_asker){.instance = s,
                                .number = a->numbers[s],
                                .own = a->own[s],
                                .gone = a->gone[s],
                                .transaction = a->transaction,
                                .window_us = WINDOW_MS * 1000,
                                .max_window_us = MAX_WINDOW_MS * 1000,
                                .max_attempts = MAX_ATTEMPTS,
                                .revive = REVIVE};
}

/* Picks a token that the row may have, or one of a few others; 0 belongs to no row. */
static uint64_t some_token(struct asked *a, int m)
{
    uint64_t n;

    memcpy(&n, a->rows[m].token, sizeof(n));
    bool known = n && !a->rows[m].unclaimed; /* a renewal's row has a token that the database chose */

    return known && random_chance(&a->random, 6000)
               ? n
               : 1 + (uint64_t)m * TOKENS + random_below(&a->random, TOKENS);
}

static int64_t some_delay(struct asked *a)
{
    return 500 + 1000 * random_between(&a->random, 0, 6);
}

static int do_claim(struct asked *a, int m, int s, bool look)
{
    uint64_t token = random_chance(&a->random, 7000) ? 100 + a->n_calls : some_token(a, m);
    struct inbox_asker who = asker(a, s);
    struct inbox_ask item = {.body = (uint8_t)random_chance(&a->random, 600),
                             .alone = random_chance(&a->random, 4000),
                             .deaths =
                                 random_chance(&a->random, 2000) ? (int64_t)random_below(&a->random, 4) : 0};
    struct inbox_reply r;

    token_bytes(token, item.token);
    if (look) {
        if (!ask(a, "look %d 0:m%d:%llu:%d", s, m, (unsigned long long)token, item.body))
            return 2;
        inbox_sim_look(&a->rows[m], now_us(a), &who, &item, &r);
        r.batch_cap = 0; /* only claims answer it */
    } else {
        if (!ask(a, "claim %d 0:m%d:%llu:%d:%lld:%d", s, m, (unsigned long long)token, item.body,
                 (long long)item.deaths, item.alone))
            return 2;
        inbox_sim_claim(&a->rows[m], now_us(a), &who, &item, &r);
    }
    return compare(a, m, true, &r);
}

static int do_renew(struct asked *a, int m, int s)
{
    struct inbox_asker who = asker(a, s);
    struct inbox_ask item = {.body = (uint8_t)random_chance(&a->random, 600)};
    struct inbox_reply r;

    if (!ask(a, "renew %d 0:m%d:1:%d", s, m, item.body))
        return 2;
    inbox_sim_renew(&a->rows[m], now_us(a), &who, &item, &r);
    if (r.answer == ROW_TOO_OFTEN && r.wait_us && !is_close(field(a->answer, "wait_ms="), r.wait_us / 1000))
        return differs(a, m, "too_often with another wait");
    return compare(a, m, false, &r);
}

static int do_end(struct asked *a, int m, int s, int what)
{
    uint64_t token = some_token(a, m);
    struct inbox_asker who = asker(a, s);
    struct inbox_ask item = {.delay_us = some_delay(a) * 1000,
                             .crashes = random_chance(&a->random, 7000) ? -1 : 3,
                             .unproven_step = random_chance(&a->random, 7000) ? -1 : 2,
                             .batch_cap = random_chance(&a->random, 6000) ? 0 : 50,
                             .only_expired = random_chance(&a->random, 3000),
                             .give_back = random_chance(&a->random, 3000),
                             .exhausted = random_chance(&a->random, 5000),
                             .near_limit = random_chance(&a->random, 4000),
                             .holds = random_chance(&a->random, 4000),
                             .deaths = 1,
                             .body = a->rows[m].body};
    struct inbox_reply r;
    bool said;

    token_bytes(token, item.token);
    if (what == 0)
        said = ask(a, "settle %d 0:m%d:%llu", s, m, (unsigned long long)token);
    else if (what == 1)
        said = ask(a, "fail %d 0:m%d:%llu:%lld:%d:%d:%d:%d:%d", s, m, (unsigned long long)token,
                   (long long)(item.delay_us / 1000), item.crashes, item.unproven_step, item.batch_cap,
                   item.only_expired, item.give_back);
    else if (what == 2)
        said = ask(a, "release %d 0:m%d:%llu:%lld:%d:%d:%d", s, m, (unsigned long long)token,
                   (long long)(item.delay_us / 1000), item.crashes, item.unproven_step, item.batch_cap);
    else
        said = ask(a, "bury %d 0:m%d:%llu:%d:%s:%d:1:1:%d", s, m, (unsigned long long)token, item.body,
                   item.near_limit ? "delivery_limit" : "attempts", item.exhausted, item.holds);
    if (!said)
        return 2;
    if (what == 0)
        inbox_sim_settle(&a->rows[m], now_us(a), &item, &r);
    else if (what == 1)
        inbox_sim_fail(&a->rows[m], now_us(a), &item, &r);
    else if (what == 2)
        inbox_sim_release(&a->rows[m], now_us(a), &item, &r);
    else
        inbox_sim_bury(&a->rows[m], now_us(a), &who, &item, &r);
    return compare(a, m, false, &r);
}

/* Is it the letter of the simulation? The real one must be new if the simulated one is; otherwise any of several
 * equally good ones. */
static bool letter_is(struct asked *a, const char *answer, const struct inbox_ask *item)
{
    int64_t id = field(answer, "letter=");
    size_t n = a->letters.n, known = 0;
    bool inserted;
    size_t place = inbox_sim_letter(&a->letters, item, item->body, &inserted);

    while (known < n && a->letter_ids[known] != id)
        known++;
    if (strncmp(answer, "buried ", 7) != 0 || id <= 0)
        return false;
    if (!inserted)
        return known < n && inbox_sim_is_letter(&a->letters.items[known], item, item->body);
    a->letter_ids[place] = id;
    return known == n;
}

/* Writes letters without a row, with only a few tokens and bodies, so that some are equal, and some are repeats. */
static int do_letters(struct asked *a, int s)
{
    size_t n = 1 + random_below(&a->random, N_LETTERS), len = 0;
    struct inbox_ask items[N_LETTERS];
    char text[200] = "";
    char *at;

    for (size_t i = 0; i < n; i++) {
        uint64_t token = random_below(&a->random, LETTER_TOKENS);

        items[i] = (struct inbox_ask){.body = (uint8_t)random_below(&a->random, BODIES),
                                      .looked_for = random_chance(&a->random, 5000)};
        token_bytes(token, items[i].token);
        len += (size_t)snprintf(text + len, sizeof(text) - len, " 0:%llu:%d:%d", (unsigned long long)token,
                                items[i].body, items[i].looked_for);
    }
    if (!ask(a, "letter %d%s", s, text))
        return 2;
    at = a->answer;
    for (size_t i = 0; i < n; i++) {
        if (!at || !letter_is(a, at, &items[i]))
            return differs(a, 0, "another letter");
        at = strstr(at, "; ");
        at += at ? 2 : 0;
    }
    return 0;
}

static int said_is(struct asked *a, int m, const char *ours)
{
    return strcmp(a->answer, ours) == 0 ? 0 : differs(a, m, ours);
}

static const char *const said_names[] = {"ok", "OW001", "OW003", "55P03"};

/* Appends the item of a token, which may name another message as the previous one. Returns that one's row, or NULL. */
static struct inbox_row_sim *some_item(struct asked *a, int m, uint64_t token, char *text, size_t size)
{
    int before = (m + 1 + (int)random_below(&a->random, N_MESSAGES - 1)) % N_MESSAGES;
    bool names = random_chance(&a->random, 3000);
    size_t len = (size_t)snprintf(text, size, " 0:m%d:%llu", m, (unsigned long long)token);

    if (!names)
        return NULL;
    snprintf(text + len, size - len, ":m%d", before);
    return &a->rows[before];
}

/* Picks the tokens of a request: two messages or more, in any order. */
static size_t some_request(struct asked *a, struct inbox_row_sim *rows[N_MESSAGES],
                           uint8_t tokens[N_MESSAGES][16], struct inbox_row_sim *befores[N_MESSAGES],
                           int messages[N_MESSAGES], char *text, size_t size)
{
    int first = (int)random_below(&a->random, N_MESSAGES),
        step = 1 + (int)random_below(&a->random, N_MESSAGES - 1);
    size_t n = 2 + random_below(&a->random, N_MESSAGES - 1), len = 0;

    for (size_t i = 0; i < n; i++) {
        int m = messages[i] = (first + (int)i * step) % N_MESSAGES;
        uint64_t token = some_token(a, m);

        rows[i] = &a->rows[m];
        token_bytes(token, tokens[i]);
        befores[i] = some_item(a, m, token, text + len, size - len);
        len += strlen(text + len);
    }
    return n;
}

static int do_request(struct asked *a, int t)
{
    struct inbox_row_sim *rows[N_MESSAGES], *befores[N_MESSAGES];
    uint8_t tokens[N_MESSAGES][16];
    int messages[N_MESSAGES];
    char text[200], ours[40];
    size_t n = some_request(a, rows, tokens, befores, messages, text, sizeof(text));
    uint64_t what = random_below(&a->random, 3), valid = (UINT64_C(1) << n) - 1;
    enum inbox_said said;

    if (what == 0) {
        if (!ask(a, "extend_all 8500%s", text))
            return 2;
        said = inbox_sim_extend_all(rows, tokens, n, now_us(a), 8500000);
        return said_is(a, messages[0], said_names[said]);
    }
    if (!ask(a, "complete_%s %d%s", what == 1 ? "all" : "valid", t, text))
        return 2;
    said = what == 1 ? inbox_sim_complete_all(rows, tokens, befores, n, (uint64_t)t + 1)
                     : inbox_sim_complete_valid(rows, tokens, befores, n, (uint64_t)t + 1, &valid);
    for (size_t i = 0; i < n && said == INBOX_OK; i++)
        a->in_tx[t] |= (unsigned)(rows[i]->locked_by == (uint64_t)t + 1) << messages[i];
    snprintf(ours, sizeof(ours), "%s", said_names[said]);
    for (size_t i = 0; i < n && said == INBOX_OK && what == 2; i++)
        snprintf(ours + 2 + i, sizeof(ours) - 2 - i, "%d", (int)(valid >> i & 1));
    return said_is(a, messages[0], ours);
}

static int end_transaction(struct asked *a, int t)
{
    bool commits = random_chance(&a->random, 6000);
    int some = 0;

    if (!ask(a, "%s %d", commits ? "commit" : "rollback", t))
        return 2;
    for (int m = 0; m < N_MESSAGES; m++) {
        if (!(a->in_tx[t] >> m & 1))
            continue;
        some = m;
        if (commits)
            inbox_sim_commit(&a->rows[m], now_us(a), (uint64_t)t + 1);
        else
            inbox_sim_rollback(&a->rows[m], (uint64_t)t + 1);
    }
    a->in_tx[t] = 0;
    return said_is(a, some, "ok");
}

static int do_application(struct asked *a, int m)
{
    int t = (int)random_below(&a->random, N_TRANSACTIONS);
    uint64_t token = some_token(a, m);
    uint8_t bytes[16];

    token_bytes(token, bytes);
    if (a->in_tx[t])
        return end_transaction(a, t);
    if (random_chance(&a->random, 4000))
        return do_request(a, t);
    if (random_chance(&a->random, 3000)) {
        if (!ask(a, "extend 0:m%d:%llu 8500", m, (unsigned long long)token))
            return 2;
        return said_is(a, m, said_names[inbox_sim_extend(&a->rows[m], now_us(a), bytes, 8500000)]);
    }
    char text[80];
    const struct inbox_row_sim *before = some_item(a, m, token, text, sizeof(text));

    if (!ask(a, "complete %d%s", t, text))
        return 2;
    enum inbox_said said = inbox_sim_complete(&a->rows[m], bytes, before, (uint64_t)t + 1);

    if (said == INBOX_OK)
        a->in_tx[t] = 1u << m;
    return said_is(a, m, said_names[said]);
}

static int do_time(struct asked *a)
{
    int64_t ms = 1000 * random_between(&a->random, 1, 6);

    if (random_chance(&a->random, 500)) /* the database's clock was ahead, and is corrected */
        ms = -1000 * (random_between(&a->random, 20, 100) + (random_chance(&a->random, 5000) ? 604800 : 0));
    a->aged_us += ms * 1000;
    return ask(a, "age %lld", (long long)ms) ? said_is(a, 0, "ok") : 2;
}

static bool is_locked(const struct asked *a)
{
    for (int t = 0; t < N_TRANSACTIONS; t++)
        if (a->in_tx[t])
            return true;
    return false;
}

static int one_call(struct asked *a)
{
    int m = (int)random_below(&a->random, N_MESSAGES), s = (int)random_below(&a->random, N_SIDECARS);
    uint64_t what = random_below(&a->random, 100);

    if (what < 35)
        return do_claim(a, m, s, false);
    if (what < 44)
        return do_claim(a, m, s, true);
    if (what < 50)
        return do_renew(a, m, s);
    if (what < 54)
        return do_letters(a, s);
    if (what < 68)
        return do_end(a, m, s, (int)random_below(&a->random, 4));
    if (what < 80)
        return do_application(a, m);
    if (is_locked(a)) /* the call would wait for the application */
        return 0;
    if (what < 90)
        return do_time(a);
    if (what < 92) {
        inbox_sim_retry(&a->rows[m], now_us(a));
        return ask(a, "retry 0:m%d", m) ? said_is(a, m, "ok") : 2;
    }
    if (what < 96) {
        if (!ask(a, "move 0:m%d", m))
            return 2;
        return said_is(a, m, inbox_sim_move(&a->rows[m]) ? "1" : "0");
    }
    if (!ask(a, "redrive 0:m%d", m))
        return 2;
    if (a->rows[m].n_letters && inbox_sim_redrive(&a->rows[m], now_us(a)))
        a->rows[m].n_letters--;
    return 0;
}

static int begin(struct asked *a)
{
    a->episode_us = real_us();
    memset(a->rows, 0, sizeof(a->rows));
    a->letters.n = 0;
    for (int m = 0; m < N_MESSAGES; m++)
        a->rows[m].unproven_us = -1;
    for (int t = 0; t < N_TRANSACTIONS; t++) {
        if (a->in_tx[t] && !ask(a, "rollback %d", t))
            return 2;
        a->in_tx[t] = 0;
    }
    if (!ask(a, "reset"))
        return 2;
    for (int s = 0; s < N_SIDECARS; s++) {
        a->gone[s] = random_chance(&a->random, 3000) ? 1u << ((s + 1) % N_SIDECARS) : 0;
        if (!ask(a, a->gone[s] ? "gone %d i%d" : "gone %d", s, (s + 1) % N_SIDECARS))
            return 2;
    }
    return 0;
}

static int set_up(struct asked *a)
{
    bool good =
        ask(a, "queue c %d %d %d %d %d", a->transaction, WINDOW_MS, MAX_WINDOW_MS, MAX_ATTEMPTS, REVIVE) &&
        !strcmp(a->answer, "ok");

    for (int s = 0; s < N_SIDECARS && good; s++) {
        a->numbers[s] = 2;
        a->own[s] = s == 0;
        good = ask(a, "inbox %d i%d 2 %d", s, s, a->own[s]) && !strcmp(a->answer, "ok");
    }
    if (!good)
        printf("%s: %s\n", a->call, a->answer);
    return !good;
}

static int one_queue(const char *driver, const char *connection, uint64_t seed, bool transaction,
                     double seconds)
{
    int in[2], out[2], bad;
    struct asked a = {.random = random_mix(seed), .transaction = transaction, .began_us = real_us()};
    pid_t child;

    if (pipe(in) || pipe(out) || (child = fork()) < 0)
        return 1;
    if (!child) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl(driver, driver, connection, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    a.to = fdopen(in[1], "w");
    a.from = fdopen(out[0], "r");
    bad = !a.to || !a.from || set_up(&a);
    while (!bad && ((double)(real_us() - a.began_us) < seconds * 1e6 || a.n_calls < N_CALLS)) {
        bad = begin(&a);
        for (int i = 0; i < N_CALLS && !bad && !is_late(&a); i++)
            bad = one_call(&a);
        if (bad == LATE)
            bad = 0;
    }
    if (bad == 2)
        printf("the driver ended at: %s\n", a.call);
    fclose(a.to);
    fclose(a.from);
    free(a.letters.items);
    waitpid(child, NULL, 0);
    if (!bad)
        printf("%s: %llu calls, answered alike\n", transaction ? "transaction" : "response",
               (unsigned long long)a.n_calls);
    return bad;
}

int differential_run(const char *driver, const char *connection, uint64_t seed, double seconds)
{
    signal(SIGPIPE, SIG_IGN);
    return one_queue(driver, connection, seed, true, seconds / 2) ||
           one_queue(driver, connection, seed + 1, false, seconds / 2);
}
