/* Deliveries: what is held here, in which state, and who follows whom.
 *
 * A delivery is in exactly one list by its state; it is in `unacked` while its channel lives and nothing was
 * said to the broker about it; it is in `by_id` when it stands for its message id (leader == itself). Only
 * delivery_event changes a state. */
#include "worker.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

size_t worker_n(const struct worker *w, enum delivery_state s)
{
    return w->states[s].len;
}

size_t worker_n_out(const struct worker *w)
{
    return worker_n(w, DELIVERY_FORWARDING) + worker_n(w, DELIVERY_TO_REVOKE) +
           worker_n(w, DELIVERY_REVOKING);
}

struct delivery *worker_find(struct worker *w, uint64_t ref)
{
    for (struct hash_link *k = hash_first(&w->by_ref, hash_number(ref)); k; k = hash_next(k)) {
        struct delivery *d = container_of(k, struct delivery, by_ref);

        if (d->ref == ref)
            return d;
    }
    return NULL;
}

struct slice delivery_id(const struct delivery *d)
{
    return (struct slice){d->id, d->id_len};
}

static struct delivery *leader_find(struct worker *w, struct slice id)
{
    for (struct hash_link *k = hash_first(&w->by_id, hash_bytes(id.data, id.len)); k; k = hash_next(k)) {
        struct delivery *d = container_of(k, struct delivery, by_id);

        if (slice_equal(delivery_id(d), id))
            return d;
    }
    return NULL;
}

static void leader_add(struct worker *w, struct delivery *d)
{
    hash_insert(&w->by_id, &d->by_id, hash_bytes(d->id, d->id_len));
    d->leader = d;
}

void delivery_set_error(struct delivery *d, const char *text)
{
    char *copy = mem_copy(text, strlen(text));

    free(d->error);
    d->error = copy;
    mem_clear(&d->said); /* it was said of something else */
}

int64_t delivery_backoff_ms(const struct worker *w, int n)
{
    uint64_t random;

    random_bytes(&random, sizeof(random));
    return backoff_ms(w->q->backoff_ms, w->q->max_backoff_ms, n, random);
}

int64_t delivery_lock_wait_ms(struct delivery *d)
{
    int64_t wait = (int64_t)LOCK_FIRST_MS << (d->n_locks < 8 ? d->n_locks : 8);

    d->n_locks++;
    return wait < LOCK_LAST_MS ? wait : LOCK_LAST_MS;
}

/* One that did not fit: it comes again when there is room for it, or when it was held for long enough. */
static enum delivery_event drained_timer_event(struct worker *w, struct delivery *d)
{
    bool fits = !w->n_held_bytes || (delivery_may_return(w, d) && d->n_wanted <= worker_room(w).whole);

    if (d->rowless || fits)
        return DELIVERY_EV_RETURN;
    d->delay_ms = ROOM_LOOK_MS;
    return DELIVERY_EV_NOT_NOW;
}

/* Is the leader's body that of the row? Only a claim tells. */
static bool leader_knows_its_row(const struct delivery *leader)
{
    return leader->has_token && leader->row_is_ours && !leader->rowless && !delivery_is_idle(leader->state) &&
           leader->state != DELIVERY_CLAIMING && leader->state != DELIVERY_LOOKING;
}

static void mismatch_here(struct worker *w, struct delivery *d, const struct delivery *leader)
{
    struct buf text = {0};
    struct log_line l;

    buf_add_text(&text, "{\"fingerprint\" : \"");
    buf_add_hex(&text, d->fingerprint, sizeof(d->fingerprint));
    buf_add_text(&text, "\", \"first_fingerprint\" : \"");
    buf_add_hex(&text, leader->fingerprint, sizeof(leader->fingerprint));
    buf_printf(&text, "\", \"first_status\" : \"processing\", \"first_came_ms_ago\" : %" PRId64 "}",
               (clock_us() - leader->received_us) / 1000);
    delivery_set_error(d, buf_text(&text));
    d->dead_reason = DEAD_BODY_MISMATCH;
    d->rowless = true;
    if (worker_may_say(w, EVENT_BODY_MISMATCH)) {
        report_delivery_begin(&l, EVENT_BODY_MISMATCH, w, d);
        log_text(&l, "first", "in flight here");
        log_end(&l);
    }
    buf_deinit(&text);
}

/* Where a copy stands beside others of its id. `alone`: the event when there are none. */
enum delivery_event delivery_join(struct worker *w, struct delivery *d, enum delivery_event alone)
{
    struct delivery *leader = leader_find(w, delivery_id(d));

    if (!leader) {
        leader_add(w, d);
        return alone;
    }
    bool same = w->q->mismatch_is_duplicate ||
                memcmp(leader->fingerprint, d->fingerprint, sizeof(d->fingerprint)) == 0;
    if (!same && leader_knows_its_row(leader)) {
        mismatch_here(w, d, leader);
        return DELIVERY_EV_GIVE_UP;
    }
    if (same && leader->followers.len < N_FOLLOWERS_MAX) {
        d->leader = leader;
        list_push(&leader->followers, &d->in_leader);
        return DELIVERY_EV_FOLLOW;
    }
    d->wait = WAIT_DUE;
    d->delay_ms = SURPLUS_LOOK_MS;
    return DELIVERY_EV_NOT_NOW;
}

/* What the end of a wait means depends on what was waited for. */
static enum delivery_event parked_timer_event(struct worker *w, struct delivery *d)
{
    if (d->was_dead)
        return DELIVERY_EV_WAS_DEAD;
    if (!d->message)
        return drained_timer_event(w, d);
    if (d->rowless)
        return DELIVERY_EV_GIVE_UP; /* its letter was refused: again; or it circles */
    if (!d->leader)
        return delivery_join(w, d, DELIVERY_EV_TIMER);
    if (d->suspect)
        return DELIVERY_EV_ALONE;
    return d->wait == WAIT_HELD ? DELIVERY_EV_LOOK : DELIVERY_EV_TIMER;
}

void worker_run_timers(struct worker *w)
{
    for (struct delivery *d; (d = worker_take_due(w));) {
        if (d->state == DELIVERY_PARKED)
            delivery_event(w, d, parked_timer_event(w, d));
        else
            delivery_event(w, d, DELIVERY_EV_TIMER);
    }
}

/* --- leaving --- */

/* The followers of a message that is completed are copies of a completed message. */
static void followers_complete(struct worker *w, struct delivery *d)
{
    struct link *k;

    while ((k = list_first(&d->followers))) {
        struct delivery *f = container_of(k, struct delivery, in_leader);

        list_remove(&d->followers, k);
        f->leader = NULL;
        counter_add(&w->counts.duplicates, 1);
        report_delivery(w, EVENT_DUPLICATE, f);
        delivery_event(w, f, DELIVERY_EV_COMPLETED);
    }
}

/* The first follower stands for the id from now on, and goes its own way. */
static void followers_promote(struct worker *w, struct delivery *d)
{
    struct link *k = list_first(&d->followers);

    if (!k)
        return;
    struct delivery *heir = container_of(k, struct delivery, in_leader);
    list_remove(&d->followers, k);
    leader_add(w, heir);
    while ((k = list_first(&d->followers))) {
        list_remove(&d->followers, k);
        list_push(&heir->followers, k);
        container_of(k, struct delivery, in_leader)->leader = heir;
    }
    /* It is the same message: what its leader was suspected of, it is, too. */
    if (!heir->last_chance)
        suspect_recall(w, heir);
    delivery_event(w, heir, DELIVERY_EV_LEADER_LEFT);
}

void delivery_drop_id(struct worker *w, struct delivery *d)
{
    struct delivery *leader = d->leader;

    d->leader = NULL;
    if (leader == d)
        hash_remove(&w->by_id, &d->by_id);
    else if (leader)
        list_remove(&leader->followers, &d->in_leader);
}

void delivery_step_down(struct worker *w, struct delivery *d)
{
    bool led = d->leader == d;

    delivery_drop_id(w, d);
    if (led)
        followers_promote(w, d);
}

static bool tag_is_lost(const struct worker *w, const struct delivery *d)
{
    return d->tag.generation != w->generation;
}

void delivery_destroy(struct worker *w, struct delivery *d)
{
    w->n_held_bytes -= d->n_bytes;
    message_free(d->message);
    free(d->id);
    free(d->error);
    free(d->said);
    free(d->answered);
    free(d->result);
    free(d);
}

void worker_reap(struct worker *w)
{
    struct link *k;

    while ((k = list_first(&w->states[DELIVERY_GONE]))) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        list_remove(&w->states[DELIVERY_GONE], k);
        hash_remove(&w->by_ref, &d->by_ref);
        delivery_destroy(w, d);
    }
}

/* --- the machine --- */

static bool takes_parked_credit(const struct delivery *d)
{
    return d->state == DELIVERY_PARKED || d->state == DELIVERY_FOLLOWING || d->state == DELIVERY_SUSPECT;
}

static void count_parked(struct worker *w, const struct delivery *d, int by)
{
    if (takes_parked_credit(d) && d->consumer == w->consumer_number && d->in_tags.next)
        w->credit_parked += (size_t)by;
}

/* States in which nothing is held but the broker's tag: without that there is nothing left to do. */
static bool lives_by_its_tag(enum delivery_state s)
{
    return delivery_is_idle(s) || s == DELIVERY_TO_ACK || s == DELIVERY_TO_REJECT || s == DELIVERY_TO_RETURN;
}

/* What is written if the database agrees that the window has ended. */
static void delivery_window_over(struct worker *w, struct delivery *d)
{
    char text[80];

    snprintf(text, sizeof(text), "no answer within the window of %" PRId64 " ms", w->q->token_window_ms);
    delivery_set_error(d, text);
    d->only_expired = true;
    d->http_status = 0;
    d->delay_ms = delivery_backoff_ms(w, d->attempt);
}

static void delivery_enter(struct worker *w, struct delivery *d)
{
    switch (d->state) {
    case DELIVERY_TO_ACK:
        d->ready_ms = w->now_ms;
        d->suspect = false;
        if (d->leader == d)
            followers_complete(w, d);
        delivery_drop_id(w, d);
        break;
    case DELIVERY_TO_REJECT:
    case DELIVERY_TO_RETURN:
    case DELIVERY_GONE:
        if (d->state == DELIVERY_TO_REJECT)
            d->suspect = false;
        suspect_remember(w, d);
        if (!d->message && d->rowless && !w->too_large_stays)
            pause_clear(w, PAUSE_TOO_LARGE);
        delivery_step_down(w, d);
        break;
    case DELIVERY_PARKED:
        d->due_ms = w->now_ms + (d->delay_ms > 0 ? d->delay_ms : 0);
        delivery_set_timer(w, d, d->due_ms);
        break;
    case DELIVERY_WATCHING:
        delivery_set_timer(w, d, w->now_ms + delivery_lock_wait_ms(d));
        break;
    case DELIVERY_TO_CLAIM:
    case DELIVERY_SUSPECT:
    case DELIVERY_TO_BURY:
        d->ready_ms = w->now_ms;
        /* fall through */
    case DELIVERY_TO_CHECK:
    case DELIVERY_TO_SETTLE:
    case DELIVERY_TO_FAIL:
    case DELIVERY_TO_RELEASE:
    case DELIVERY_TO_LOOK:
        if (d->not_before_ms > w->now_ms)
            delivery_set_timer(w, d, d->not_before_ms);
        else if (d->state == DELIVERY_SUSPECT && d->stands_back_until_ms > w->now_ms)
            delivery_set_timer(w, d, d->stands_back_until_ms);
        break;
    case DELIVERY_FORWARDING: {
        int64_t at = d->window_ends_ms > d->not_before_ms ? d->window_ends_ms : d->not_before_ms;

        delivery_set_timer(w, d, at > w->now_ms ? at : w->now_ms + LOCK_FIRST_MS);
        break;
    }
    case DELIVERY_TO_REVOKE:
        delivery_window_over(w, d);
        break;
    default:
        break;
    }
}

static void delivery_move(struct worker *w, struct delivery *d, enum delivery_state next)
{
    count_parked(w, d, -1);
    if (delivery_is_out(d->state) && !delivery_is_out(next))
        target_leave(w);
    list_remove(&w->states[d->state], &d->in_state);
    delivery_clear_timer(w, d);
    d->state = next;
    list_push(&w->states[next], &d->in_state);
    count_parked(w, d, 1);
    if (next == DELIVERY_GONE && d->in_tags.next) {
        if (d->consumer == w->consumer_number)
            w->credit_used--;
        list_remove(&w->unacked, &d->in_tags);
    }
}

/* A pair that the table does not know. Giving the delivery back loses nothing and repeats nothing: the row
 * stays as it is, and whatever is at the database answers a ref that is gone. */
static void delivery_bug(struct worker *w, struct delivery *d, enum delivery_event e)
{
    struct log_line l;

    if (delivery_is_out(d->state))
        forward_abandon(w->forward, 0, d->ref); /* the body must outlive the request */
    report_delivery_begin(&l, EVENT_BUG, w, d);
    log_text(&l, "state", delivery_state_name(d->state));
    log_text(&l, "on", delivery_event_name(e));
    log_end(&l);
    if (d->state == DELIVERY_GONE)
        return;
    delivery_move(w, d, DELIVERY_TO_RETURN);
    delivery_enter(w, d);
}

static void delivery_lose_tag(struct worker *w, struct delivery *d);

void delivery_event(struct worker *w, struct delivery *d, enum delivery_event e)
{
    int next = delivery_next(d->state, e);

    if (next < 0) {
        delivery_bug(w, d, e);
        return;
    }
    delivery_move(w, d, (enum delivery_state)next);
    delivery_enter(w, d);
    if (d->state != (enum delivery_state)next)
        return;
    if (tag_is_lost(w, d) && lives_by_its_tag(d->state))
        delivery_lose_tag(w, d);
    else if (d->state == DELIVERY_TO_CLAIM && d->suspect)
        delivery_event(w, d, DELIVERY_EV_ALONE);
    else if (d->state == DELIVERY_TO_BURY && d->rowless && delivery_circles(w, d))
        delivery_event(w, d, DELIVERY_EV_NOT_NOW);
}

static void delivery_lose_tag(struct worker *w, struct delivery *d)
{
    if (!delivery_release_idle_claim(w, d))
        delivery_event(w, d, DELIVERY_EV_TAG_LOST);
}

/* --- the end of a channel --- */

/* Tags of a channel that is gone mean nothing any more. What is in flight goes on and ends in the database.
 */
void worker_channel_lost(struct worker *w)
{
    static const enum delivery_state states[] = {DELIVERY_TO_CLAIM,  DELIVERY_PARKED,    DELIVERY_TO_LOOK,
                                                 DELIVERY_SUSPECT,   DELIVERY_FOLLOWING, DELIVERY_TO_ACK,
                                                 DELIVERY_TO_REJECT, DELIVERY_TO_RETURN};
    struct link *k;

    w->generation = 0;
    w->consumer = CONSUMER_NONE;
    w->consumer_number++;
    w->credit_used = w->credit_parked = 0;
    while ((k = list_first(&w->unacked)))
        list_remove(&w->unacked, k);
    /* Followers first: a leader that leaves would promote them for nothing. */
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        struct list *l = &w->states[states[sizeof(states) / sizeof(states[0]) - 1 - i]];

        while ((k = list_first(l)))
            delivery_lose_tag(w, container_of(k, struct delivery, in_state));
    }
    if (!w->too_large_stays)
        pause_clear(w, PAUSE_TOO_LARGE);
}
