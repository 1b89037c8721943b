/* The cases of `onceward try` without a fence: everyday messages. */

#include "command/try.h"

#include "onceward/base/clock.h"
#include "onceward/config/config.h"

#include <string.h>

enum { N_ORDINARY = 3, SLOW_US = 500 * 1000, LATE_MS = 1500, LOOK_AGAIN_MS = 10 };

/* Waits for the effect, which may be committed after the answer. */
static int effect_in_time(struct try_run *t, const struct shot *s, int64_t *ret)
{
    return shot_effect_by(t, s, 1, clock_ms() + LATE_MS, ret);
}

int try_ordinary(struct try_run *t)
{
    char words[320];

    for (int i = 0; i < N_ORDINARY && t->ordinary_us < SLOW_US; i++) {
        bool completed;
        struct shot *s;

        if (shot_new(t, &(struct shot_kind){0}, &s) || shot_run(t, s, &(struct shot_kind){0}, &completed))
            return -1;
        if (!completed) {
            t->is_unreachable = s->kind == ANSWER_UNREACHABLE;
            try_found(t, TRY_FOUND_NOT_DONE, "%s%s%s.", t->is_unreachable ? "No answer: " : "It ",
                      shot_words(s, words, sizeof words),
                      shot_says_done(s) ? ", and the row is not completed" : "");
            return 0;
        }
        if (!shot_says_done(s))
            try_note(t, TRY_ORDINARY, "completed, though it %s", shot_words(s, words, sizeof words));
        if (i == 0 || s->took_us < t->ordinary_us)
            t->ordinary_us = s->took_us;
        if (effect_in_time(t, s, &t->effect_of_one))
            return -1;
        if (t->effect_of_one == 0) {
            try_found(t, TRY_FOUND_NO_EFFECT, "It %s.", shot_words(s, words, sizeof words));
            break;
        }
    }
    t->works = true;
    return 0;
}

int try_duplicate(struct try_run *t)
{
    struct shot *first, *second;
    bool completed;
    int64_t effect;
    char words[320];

    if (shot_new(t, &(struct shot_kind){0}, &first) ||
        shot_run(t, first, &(struct shot_kind){0}, &completed) || shot_again(t, first, &second) ||
        shot_effect_by(t, first, t->effect_of_one, clock_ms() + LATE_MS, &effect) ||
        shot_run(t, second, &(struct shot_kind){0}, &completed) || try_pause(t, LOOK_AGAIN_MS) ||
        shot_effect(t, first, &effect))
        return -1;
    if (effect < 0)
        try_skip(t, TRY_DUPLICATE, "without --effect a second effect stays undetected");
    else if (effect > t->effect_of_one)
        try_found(t, t->q->transaction ? TRY_FOUND_REPEATED : TRY_FOUND_NOT_IDEMPOTENT,
                  "The second request %s; --effect counts %d instead of %d.",
                  shot_words(second, words, sizeof words), (int)effect, (int)t->effect_of_one);
    return 0;
}

/* Judges a 2xx for a wrong message. effect: -1, unknown. */
static void judge_yes(struct try_run *t, bool completed, int64_t effect, const char *words)
{
    if (effect != 0 && (completed || effect > 0))
        try_found(t, TRY_FOUND_TOOK_IT, "It %s.", words);
    else
        try_found(t, completed ? TRY_FOUND_SAID_YES : TRY_FOUND_SAID_YES_UNDONE, "It %s.", words);
}

int try_wrong(struct try_run *t)
{
    const struct shot_kind kind = {.wrong_body = true};
    struct shot *s;
    bool completed;
    int64_t effect;
    char words[320];

    if (shot_new(t, &kind, &s) || shot_run(t, s, &kind, &completed) || shot_effect(t, s, &effect))
        return -1;
    shot_words(s, words, sizeof words);
    if (shot_says_done(s))
        judge_yes(t, completed, effect, words);
    else if (effect > 0)
        try_found(t, TRY_FOUND_KEPT_WRONG, "It %s; --effect counts %d.", words, (int)effect);
    else if (s->kind != ANSWER_STATUS)
        try_found(t, TRY_FOUND_DIED_OF_IT, "What came: %s.", words);
    else if (!try_is_permanent(t, s->status))
        try_found(t, TRY_FOUND_TRIED_AGAIN, "It %s.", words);
    return 0;
}

/* Checks a shot that must behave like an ordinary message. */
static int same(struct try_run *t, const struct shot_kind *kind, enum try_finding finding)
{
    struct shot *s;
    bool completed;
    int64_t effect;
    char words[320];

    if (shot_new(t, kind, &s) || shot_run(t, s, kind, &completed) ||
        shot_effect_by(t, s, t->effect_of_one, clock_ms() + LATE_MS, &effect))
        return -1;
    if (!completed || effect < t->effect_of_one)
        try_found(t, finding, "It %s%s.", shot_words(s, words, sizeof words),
                  completed ? ", and did nothing" : "");
    return 0;
}

int try_headers(struct try_run *t)
{
    return same(t, &(struct shot_kind){.many_headers = true}, TRY_FOUND_HEADERS_REFUSED);
}

int try_body(struct try_run *t)
{
    return same(t, &(struct shot_kind){.large_body = true}, TRY_FOUND_BODY_REFUSED);
}

int try_type(struct try_run *t)
{
    const char *fallback = t->q->forward.content_type;

    if (!t->content_type || (fallback && strcmp(t->content_type, fallback) == 0)) {
        try_skip(t, TRY_TYPE, "it would be sent as the others are");
        return 0;
    }
    return same(t, &(struct shot_kind){.no_type = true}, TRY_FOUND_TYPE_REFUSED);
}
