/* The cases of `onceward try` about connections: many at once, and many in sequence. */

#include "command/try.h"

#include "onceward/base/clock.h"
#include "onceward/config/config.h"
#include "onceward/forward/forward.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MANY_MAX = 64,
    MANY_MS = 6000,
    IDLE_MS = 1500,
    EFFECT_MS = 1500,
    SLOW_MS = 2000, /* for an answer beside an unfinished request */
};

/* ---- many ---- */

struct many {
    struct shot *shots[MANY_MAX];
    int n, at_once; /* at_once 0: not observed */
    bool met;       /* no shot was answered before they met */
    int64_t took_us;
};

static int many_send(struct try_run *t, struct many *m)
{
    const struct trial_claim *claims[MANY_MAX];

    for (int i = 0; i < m->n; i++) {
        if (shot_new(t, &(struct shot_kind){0}, &m->shots[i]))
            return -1;
        claims[i] = &m->shots[i]->claim;
    }
    if (t->q->transaction && trial_hold(t->inbox, claims, m->n, &t->fault))
        return -1;
    for (int i = 0; i < m->n; i++)
        shot_send(t, m->shots[i], &(struct shot_kind){0}, MANY_MS);
    return 0;
}

/* Counts the requests in complete(), where locked rows stop each of them. */
static int many_meet(struct try_run *t, struct many *m)
{
    if (!t->q->transaction)
        return 0;
    if (try_meet(t, m->shots, m->n, m->n, &m->at_once))
        return -1;
    m->met = m->at_once > 0;
    for (int i = 0; i < m->n; i++)
        m->met &= !m->shots[i]->answered;
    return trial_let_go(t->inbox, &t->fault);
}

static int many_judge(struct try_run *t, const struct many *m)
{
    int64_t until_ms = clock_ms() + EFFECT_MS;
    int n_completed = 0, n_differ = 0;
    char words[320] = "";

    for (int i = 0; i < m->n; i++) {
        bool completed;
        int64_t effect;

        if (shot_finish(t, m->shots[i], &completed) ||
            shot_effect_by(t, m->shots[i], completed ? t->effect_of_one : 0, until_ms, &effect))
            return -1;
        n_completed += completed;
        if (!completed)
            shot_words(m->shots[i], words, sizeof words);
        if (effect >= 0 && effects_by_id(t->effects))
            n_differ += effect != (completed ? t->effect_of_one : 0);
    }
    if (n_completed < m->n)
        try_found(t, TRY_FOUND_SOME_REFUSED, "%d of %d were completed. One of the others: %s.", n_completed,
                  m->n, words);
    if (n_differ)
        try_found(t, TRY_FOUND_EFFECTS_DIFFER,
                  "Of %d messages %d have more or fewer effects than they should.", m->n, n_differ);
    return 0;
}

/* ---- a single request at a time, without a lock ---- */

/* A plain connection to the application; -1: impossible. */
static int connect_plainly(const struct try_run *t)
{
    char host[256];
    const char *name = forward_application_name(t->forward, 0), *colon = strrchr(name, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    int fd;

    if (t->q->forward.unix_socket || strncmp(t->q->forward.url, "http://", 7) != 0 || !colon)
        return -1;
    snprintf(host, sizeof host, "%.*s", (int)(colon - name), name);
    if (*host == '[') { /* an IPv6 address */
        memmove(host, host + 1, strlen(host));
        host[strcspn(host, "]")] = '\0';
    }
    if (getaddrinfo(host, colon + 1, &hints, &found))
        return -1;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen)) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

/* Does another request get an answer while one request's body never ends? */
static int try_beside_slow(struct try_run *t)
{
    static const char half[] = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{";
    const struct shot_kind fresh = {.fresh = true};
    struct shot *s;
    bool completed, timely;
    int fd = connect_plainly(t), answer = -1;

    if (fd < 0 || send(fd, half, sizeof half - 1, MSG_NOSIGNAL) < 0) {
        try_skip(t, TRY_MANY, "in part: only plain TCP shows whether it works on one request at a time");
        answer = 0;
    } else if (try_pause(t, SLOW_MS / 10) == 0 && shot_new(t, &fresh, &s) == 0) {
        shot_send(t, s, &fresh, MANY_MS);
        answer = shot_wait(t, s, SLOW_MS + t->ordinary_us / 500) || shot_finish(t, s, &completed) ? -1 : 0;
        timely = s->kind == ANSWER_STATUS;
        if (answer == 0 && !timely)
            try_found(t, TRY_FOUND_ONE_AT_A_TIME,
                      "It gave no answer while another request was still coming in.");
    }
    if (fd >= 0)
        close(fd);
    return answer;
}

static int many_judge_pace(struct try_run *t, const struct many *m)
{
    if (m->met && m->at_once == 1)
        try_found(t, TRY_FOUND_ONE_AT_A_TIME, "It worked on 1 of %d requests at a time.", m->n);
    else if (m->met && m->at_once < m->n)
        try_found(t, TRY_FOUND_FEW_AT_ONCE, "It worked on %d of %d requests at once.", m->at_once, m->n);
    if (m->met)
        return 0;
    try_note(t, TRY_MANY, "%d took %d ms, one takes %d ms", m->n, (int)(m->took_us / 1000),
             (int)(t->ordinary_us / 1000));
    return try_beside_slow(t);
}

int try_many(struct try_run *t)
{
    struct many m = {.n = t->q->forward.concurrency < MANY_MAX ? t->q->forward.concurrency : MANY_MAX};
    int64_t start_us, until_ms;

    if (m.n < 2) {
        try_skip(t, TRY_MANY, "forward.concurrency is 1");
        return 0;
    }
    if (many_send(t, &m))
        return -1;
    start_us = clock_us();
    if (many_meet(t, &m))
        return -1;
    until_ms = clock_ms() + MANY_MS;
    for (int i = 0; i < m.n; i++)
        if (shot_wait(t, m.shots[i], until_ms - clock_ms()))
            return -1;
    m.took_us = clock_us() - start_us;
    return many_judge(t, &m) || many_judge_pace(t, &m) ? -1 : 0;
}

/* ---- kept ---- */

/* A valid message failed: does it succeed on a new connection? */
static int judge_failed(struct try_run *t, const struct shot *failed)
{
    const struct shot_kind fresh = {.fresh = true};
    struct shot *s;
    bool completed;
    char words[320];

    if (shot_new(t, &fresh, &s) || shot_run(t, s, &fresh, &completed))
        return -1;
    shot_words(failed, words, sizeof words);
    if (completed)
        try_found(t, TRY_FOUND_REUSED_WRONGLY, "It %s.", words);
    else
        try_skip(t, TRY_KEPT, "an ordinary message failed: it %s", words);
    return 0;
}

/* Sends another shot. *last: the previous one, then this one. 1: it failed, which was reported. */
static int one_more(struct try_run *t, const struct shot_kind *kind, const struct shot **last)
{
    bool bad = kind->wrong_body || kind->no_type, completed;
    struct shot *s;

    if (shot_new(t, kind, &s) || shot_run(t, s, kind, &completed))
        return -1;
    if (*last && (*last)->kept && !s->reused)
        try_found(t, TRY_FOUND_NOT_KEPT, "The connection was gone when the next message was to be sent.");
    *last = s;
    if (bad || completed)
        return 0;
    return judge_failed(t, s) ? -1 : 1;
}

int try_kept(struct try_run *t)
{
    static const struct shot_kind kinds[] = {{0}, {0}, {.wrong_body = true}, {0}, {.no_type = true},
                                             {0}, {0}};
    const struct shot *last = NULL;
    bool any_kept = false;
    int answer = 0;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && answer == 0; i++) {
        answer = one_more(t, &kinds[i], &last);
        any_kept |= last && last->kept;
    }
    if (answer == 0 && last->kept)
        answer = try_pause(t, IDLE_MS) ? -1 : one_more(t, &(struct shot_kind){0}, &last);
    if (answer >= 0 && !any_kept)
        try_note(t, TRY_KEPT, "it closes each connection after the answer: allowed, but slower");
    return answer < 0 ? -1 : 0;
}
