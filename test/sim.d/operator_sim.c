/* The simulated operator: see operator_sim.h. */
#include "operator_sim.h"

#include "database_sim.h"
#include "oracle.h"
#include "random.h"
#include "sidecar_sim.h"

#include "onceward/base/buf.h"

#include <string.h>

enum { IN_A_SECOND = 500, UNFINISHED_IN_A_SECOND = 30, N_RETRIES = 2 }; /* in 10,000 */

static void continue_queues(struct world *w)
{
    for (int i = 0; i < w->plan->n_queues; i++) {
        if (!w->database->stops[i].count || !random_chance(&w->random, IN_A_SECOND))
            continue;
        TRACE(w, "the operator lets queue %d continue", i);
        w->database->stops[i] = (struct stop_sim){.accepted = w->database->stops[i].count + 1,
                                                  .at_us = w->now_us,
                                                  .n_continued = w->database->stops[i].n_continued + 1};
        w->database->retry_number[i]++;
        oracle_continues(w, i);
    }
}

/* Gives up messages in any state in one of eight plans, a renewal included. A random state of its own leaves other
 * plans unchanged. */
static void give_up_unfinished(struct world *w)
{
    uint64_t own = random_mix(w->plan->seed ^ 0x24) ^ (uint64_t)w->now_us;

    bool all = w->plan->given_up_us && w->now_us - WORLD_START_US >= w->plan->given_up_us;

    if (!all && (!w->plan->jitter || random_mix(w->plan->seed ^ 0x24) % 8))
        return;
    for (size_t i = 0; i < w->n_truths; i++) {
        struct truth *t = &w->truths[i];
        bool is_over = t->row.status == INBOX_DEAD || t->row.status == INBOX_COMPLETED;

        if (is_over || t->given_up || !t->n_open_copies || (all && t->character == CHARACTER_GOOD) ||
            w->plan->queues[t->queue].rules.ordered || t->character == CHARACTER_NO_ID ||
            !(all || random_chance(&own, UNFINISHED_IN_A_SECOND)))
            continue;
        TRACE(w, "the operator gives %s up, unfinished", t->id);
        t->given_up = true;
    }
}

void operator_second(struct world *w)
{
    if (w->database->up) {
        continue_queues(w);
        give_up_unfinished(w);
    }
    bool any = false;

    for (int i = 0; i < w->plan->n_queues; i++)
        any |= w->plan->queues[i].rules.holds_dead;
    for (size_t i = 0; i < w->n_truths && any && w->database->up; i++) {
        struct truth *t = &w->truths[i];

        if (t->row.status != INBOX_HELD || t->given_up || !random_chance(&w->random, IN_A_SECOND))
            continue;
        if (t->n_retries < N_RETRIES && random_chance(&w->random, 5000)) {
            TRACE(w, "the operator retries %s", t->id);
            inbox_sim_retry(&t->row, database_now(w));
            memset(t->free, 0, sizeof(t->free)); /* the message begins again, with short waits */
            t->n_retries++;
            w->database->retry_number[t->queue]++;
        } else {
            TRACE(w, "the operator gives %s up", t->id);
            t->given_up = true;
        }
    }
}

static void give_up(struct world *w, struct sidecar *s, int queue)
{
    struct buf ids = {0};

    for (size_t i = 0; i < w->n_truths; i++) {
        const struct truth *t = &w->truths[i];

        if (t->queue == queue && t->given_up && t->row.status != INBOX_DEAD &&
            t->row.status != INBOX_COMPLETED)
            buf_add(&ids, t->id, t->id_len + 1);
    }
    queue_command_give_up(&s->queues[queue].core, world_ms(w), "the simulation's operator", buf_text(&ids),
                          ids.len);
    buf_deinit(&ids);
}

void operator_tells(struct world *w, struct sidecar *s)
{
    for (int i = 0; i < w->plan->n_queues; i++) {
        struct sidecar_queue *q = &s->queues[i];
        uint64_t number = w->database->retry_number[i];

        queue_command_pause(&q->core, world_ms(w), q->core.commands.paused, "the simulation's operator", "");
        if (w->plan->queues[i].rules.ordered)
            queue_stop_known(&q->core, world_ms(w), w->database->stops[i].count,
                             w->database->stops[i].accepted, w->database->stops[i].n_continued, "recorded");
        give_up(w, s, i);
        if (!w->plan->queues[i].rules.ordered)
            continue;
        if (q->retry_known && q->retry_number != number) {
            promises_retried(w, i);
            queue_command_retry(&q->core, world_ms(w), "the simulation's operator");
        }
        q->retry_known = true;
        q->retry_number = number;
    }
}
