/* The brake: when message after message fails, and none succeeds between, it is not the messages. Then
 * nothing dies any more, and one at a time is tried until one succeeds. */
#include "worker.h"

#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

#include <stdio.h>
#include <string.h>

enum { BRAKE_MAX_MS = 30000, BRAKE_LEAST = 5 };

void worker_success(struct worker *w, const struct delivery *d)
{
    w->n_pauses_in_a_row = 0;
    worker_saw_answer(w, d);
    worker_trickle(w, 1);
    if (delivery_was_sent_before(w, d, PAUSE_EVERYTHING_FAILS))
        return;
    if (w->n_failed_in_a_row)
        memset(w->failed_texts, 0, sizeof(w->failed_texts));
    w->n_failed_in_a_row = 0;
    w->n_brakes = 0;
    pause_clear(w, PAUSE_EVERYTHING_FAILS);
}

/* Fewer where the credit does not let so many come: what is held for others that cannot come would be held in
 * vain. But two or three may well be at fault themselves. */
static int brake_of(const struct worker *w)
{
    int credit = w->consumer_prefetch;

    return credit >= BRAKE_LEAST && credit < w->q->brake ? credit : w->q->brake;
}

/* While there are other messages whose answers will tell whether the message or the application is at fault,
 * a death waits for them: as many as could still set the brake, and for half a window at most, since the
 * token must still be the row's. */
bool worker_brake_holds(const struct worker *w, const struct delivery *d)
{
    if (!w->q->brake || !w->n_failed_in_a_row || w->now_ms - d->ready_ms > w->q->token_window_ms / 2)
        return false;
    static const enum delivery_state undecided[] = {
        DELIVERY_FORWARDING, DELIVERY_TO_REVOKE, DELIVERY_REVOKING, DELIVERY_TO_CHECK,
        DELIVERY_CHECKING,   DELIVERY_WATCHING,  DELIVERY_CLAIMING, DELIVERY_CLAIMED,
        DELIVERY_TO_CLAIM,   DELIVERY_TO_LOOK,   DELIVERY_LOOKING};
    size_t others = 0;

    for (size_t i = 0; i < sizeof(undecided) / sizeof(undecided[0]); i++)
        others += worker_n(w, undecided[i]);
    return others && others + (size_t)w->n_failed_in_a_row >= (size_t)brake_of(w);
}

/* A death that is not written yet, and is not the message's own after all. */
void delivery_spare(struct worker *w, struct delivery *d)
{
    d->charged = false;
    d->delay_ms = delivery_backoff_ms(w, ++d->n_given_back);
    d->release_to = d->suspect ? RELEASE_ALONE : RELEASE_PARK;
    delivery_event(w, d, DELIVERY_EV_GIVE_BACK);
}

/* Deaths that were waiting: it is the application, not they. */
static void brake_give_back(struct worker *w)
{
    for (struct link *k = w->states[DELIVERY_TO_BURY].head.next, *next;
         k != &w->states[DELIVERY_TO_BURY].head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        next = k->next;
        if (d->charged)
            delivery_spare(w, d);
    }
}

static void failed_text_add(struct worker *w, const char *text)
{
    for (size_t i = 0; i < FAILED_TEXTS; i++) {
        struct failed_text *t = &w->failed_texts[i];

        if (!t->n)
            snprintf(t->text, sizeof(t->text), "%s", text);
        else if (strncmp(t->text, text, sizeof(t->text) - 1) != 0)
            continue;
        t->n++;
        return;
    }
}

/* How many failed, and what the application said to most of them. */
static void brake_text(const struct worker *w, char *ret, size_t size)
{
    const struct failed_text *most = &w->failed_texts[0];

    for (size_t i = 1; i < FAILED_TEXTS; i++)
        if (w->failed_texts[i].n > most->n)
            most = &w->failed_texts[i];
    snprintf(ret, size, "%d different messages in a row failed; commonest, %d times: %s",
             w->n_failed_in_a_row, most->n, most->text);
}

static void brake_wait(struct worker *w)
{
    w->brake_at_ms =
        w->now_ms + backoff_ms(w->q->backoff_ms, BRAKE_MAX_MS, ++w->n_brakes, random_below(UINT64_MAX));
}

void worker_failure(struct worker *w, const struct delivery *d)
{
    uint64_t id = hash_bytes(d->id, d->id_len);
    const char *error = d->error ? d->error : "";
    char text[256];
    int n = w->n_failed_in_a_row < FAILED_IDS ? w->n_failed_in_a_row : FAILED_IDS;

    if (worker_is_braked(w)) {
        if (delivery_was_sent_before(w, d, PAUSE_EVERYTHING_FAILS) || w->now_ms < w->brake_at_ms)
            return;
        brake_wait(w);
        failed_text_add(w, error);
        brake_text(w, text, sizeof(text));
        pause_set(w, PAUSE_EVERYTHING_FAILS, text); /* told before: for the stats */
        return;
    }
    for (int i = 0; i < n; i++)
        if (w->failed_ids[i] == id)
            return;
    if (n < FAILED_IDS)
        w->failed_ids[n] = id;
    w->n_failed_in_a_row++;
    failed_text_add(w, error);
    if (w->q->brake && w->n_failed_in_a_row >= brake_of(w)) {
        brake_text(w, text, sizeof(text));
        brake_wait(w);
        w->allowed = 1;
        pause_set(w, PAUSE_EVERYTHING_FAILS, text);
        brake_give_back(w);
    }
}
