/* The circuit breaker: see brake.h. */
#include "onceward/core/brake.h"
#include "onceward/base/slice.h"

#include <assert.h>
#include <stdio.h>

/* The counts stop here. Without a breaker, or while no message succeeds, they may grow for weeks. */
enum { COUNT_MOST = 1000000000 };

static int count_more(int n, int by)
{
    return n < COUNT_MOST ? n + by : n;
}

void brake_init(struct brake *b, int threshold)
{
    assert(threshold >= 0);
    *b = (struct brake){.threshold = threshold, .no_ids = true};
}

int brake_threshold(int configured, int prefetch)
{
    int least = prefetch > BRAKE_LEAST ? prefetch : BRAKE_LEAST;

    return configured < least ? configured : least;
}

static struct brake_member *find_member(struct brake *b, uint64_t id)
{
    for (int i = 0; i < b->n && i < BRAKE_IDS; i++)
        if (b->members[i].id == id)
            return &b->members[i];
    return NULL;
}

/* Finds the former delivery of a message that has no id of its own. */
static struct brake_member *find_former(struct brake *b, const struct brake_failure *f)
{
    for (int i = 0; f->again && i < b->n && i < BRAKE_IDS; i++)
        if (b->members[i].ended && b->members[i].content == f->content)
            return &b->members[i];
    return NULL;
}

/* Counts an error text. New texts are not counted once the table is full. */
static void brake_count(struct brake *b, const char *text)
{
    struct slice said = slice_cut(slice_of(text), sizeof(b->texts[0].text) - 1);

    for (size_t i = 0; i < BRAKE_TEXTS; i++) {
        struct brake_text *t = &b->texts[i];

        if (!t->n)
            snprintf(t->text, sizeof(t->text), "%.*s", (int)said.len, said.data);
        else if (!slice_equal(slice_of(t->text), said))
            continue;
        t->n = count_more(t->n, 1);
        return;
    }
}

bool brake_failed(struct brake *b, int64_t now_ms, const struct brake_failure *f)
{
    struct brake_member member = {.id = f->id, .content = f->content}, *former;

    assert(f->weight >= 0 && f->text);
    if (find_member(b, f->id))
        return false;
    former = find_former(b, f);
    if (former) {
        *former = member;
        return false;
    }
    if (b->n < BRAKE_IDS)
        b->members[b->n] = member;
    b->n = count_more(b->n, 1);
    b->sum = count_more(b->sum, f->weight ? f->weight : 1);
    b->requests |= f->weight > 0;
    b->no_ids &= f->no_id;
    assert(b->n > 0 && b->sum >= b->n);
    brake_count(b, f->text);
    if (b->on || !b->threshold || b->sum < b->threshold)
        return false;
    b->on = true;
    b->since_ms = b->tried_ms = now_ms;
    return true;
}

void brake_ended(struct brake *b, uint64_t id)
{
    struct brake_member *m = find_member(b, id);

    if (m)
        m->ended = m->content != 0;
}

bool brake_force(struct brake *b, int64_t now_ms, const char *text)
{
    if (b->on)
        return false;
    brake_init(b, b->threshold);
    snprintf(b->texts[0].text, sizeof(b->texts[0].text), "%s", text);
    b->on = true;
    b->no_ids = false;
    b->since_ms = b->tried_ms = now_ms;
    return true;
}

bool brake_succeeded(struct brake *b)
{
    bool was_on = b->on;

    brake_init(b, b->threshold);
    return was_on;
}

bool brake_may_set(const struct brake *b, size_t n_open)
{
    return b->threshold && !b->on && b->n && n_open && n_open + (size_t)b->sum >= (size_t)b->threshold;
}

bool brake_try(struct brake *b, int64_t now_ms, int most)
{
    int64_t second = now_ms / 1000;

    assert(b->on && most > 0);
    if (b->second_ms != second) {
        b->second_ms = second;
        b->n_tries = 0;
    }
    if (b->n_tries >= most)
        return false;
    b->n_tries++;
    b->tried_ms = now_ms;
    return true;
}

int64_t brake_deadline(const struct brake *b, int64_t now_ms, int most)
{
    if (!b->on)
        return INT64_MAX;
    return b->second_ms == now_ms / 1000 && b->n_tries >= most ? (now_ms / 1000 + 1) * 1000 : now_ms;
}

void brake_tell(const struct brake *b, char *ret, size_t size)
{
    const struct brake_text *most = &b->texts[0];

    for (size_t i = 1; i < BRAKE_TEXTS; i++)
        if (b->texts[i].n > most->n)
            most = &b->texts[i];
    if (!b->n) /* forced */
        snprintf(ret, size, "%s", most->text);
    else
        snprintf(ret, size, "%d different %s in a row failed; most often, %d times: %s", b->n,
                 b->requests ? "requests or messages" : "messages", most->n, most->text);
}
