/* Retry-After is a wait within the cap, or refused; and every status has a verdict. */

#include "forward/retry_after.h"
#include "fuzz.h"
#include "onceward/core/outcome.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int64_t now_ms = INT64_C(1700000000000), cap_ms = 3600000;
    char text[64] = "";
    int64_t wait_ms;
    int status = 0;

    memcpy(text, data, size < sizeof(text) ? size : sizeof(text) - 1);
    wait_ms = retry_after_ms(text, now_ms, cap_ms);
    MUST(wait_ms >= -1 && wait_ms <= cap_ms);
    if (wait_ms >= 0)
        MUST(text[0]);
    memcpy(&status, data, size < sizeof(status) ? size : sizeof(status));
    for (int transaction = 0; transaction < 2; transaction++) {
        struct outcome_rules rules = {transaction, &status, status & 1};
        MUST((unsigned)outcome_of(ANSWER_STATUS, status, &rules) < N_VERDICTS);
    }
    return 0;
}
