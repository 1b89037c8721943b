/* The meaning of an answer. Pure; any thread. */

#include "onceward/core/outcome.h"

#include <assert.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static enum verdict verdict_of_status(int status, const struct outcome_rules *rules)
{
    for (size_t i = 0; i < rules->n_permanent; i++)
        if (rules->permanent_status[i] == status)
            return VERDICT_PERMANENT;
    if (status < 200)
        return VERDICT_DIED;
    if (status < 300) {
        if (!rules->transaction)
            return VERDICT_COMPLETE;
        return status == 202 ? VERDICT_ACCEPTED : VERDICT_CHECK;
    }
    switch (status) {
    case 408:
    case 409:
    case 423:
    case 425:
    case 429:
        return VERDICT_NOT_NOW;
    case 503:
        return VERDICT_UNAVAILABLE;
    case 502:
    case 504:
        return VERDICT_DIED;
    default:
        return VERDICT_FAILED;
    }
}

enum verdict outcome_of(enum answer_kind kind, int status, const struct outcome_rules *rules)
{
    switch (kind) {
    case ANSWER_STATUS:
        return verdict_of_status(status, rules);
    case ANSWER_UNREACHABLE:
        return VERDICT_UNAVAILABLE;
    case ANSWER_DIED:
        return VERDICT_DIED;
    case ANSWER_TIMEOUT:
        return VERDICT_REVOKE;
    case ANSWER_ABANDONED:
        return VERDICT_NOT_NOW;
    }
    assert(!"no such kind of answer");
    return VERDICT_DIED;
}

size_t outcome_brief(const char *error, size_t len)
{
    static const char start[] = "answered ";
    const size_t head = sizeof(start) - 1 + 3; /* with the status */

    for (size_t i = 0; i + head < len; i++) {
        const char *status = error + i + sizeof(start) - 1;

        if (!memcmp(error + i, start, sizeof(start) - 1) && is_digit(status[0]) && is_digit(status[1]) &&
            is_digit(status[2]) && status[3] == ':')
            return i + head;
    }
    return len;
}

const char *verdict_name(enum verdict v)
{
    static const char *const names[N_VERDICTS] = {
        [VERDICT_COMPLETE] = "complete",       [VERDICT_CHECK] = "check",
        [VERDICT_ACCEPTED] = "accepted",       [VERDICT_NOT_NOW] = "not_now",
        [VERDICT_UNAVAILABLE] = "unavailable", [VERDICT_PERMANENT] = "permanent",
        [VERDICT_FAILED] = "failed",           [VERDICT_DIED] = "died",
        [VERDICT_REVOKE] = "revoke",           [VERDICT_SPLIT] = "split",
        [VERDICT_BAD_ANSWER] = "bad_answer",
    };

    assert((unsigned)v < N_VERDICTS);
    return names[v];
}
