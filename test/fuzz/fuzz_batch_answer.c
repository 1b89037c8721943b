/* Any answer to a request with three messages is read without a crash and names only members of the request.
 * In `response` a success with an entry that matches no member does not count as a success. */

#include "fuzz.h"
#include "onceward/base/scan.h"
#include "onceward/core/batch_answer.h"

#include <string.h>

static void members_must_be_good(const struct batch_member *m, size_t n, const struct batch_reading *r,
                                 struct slice body)
{
    size_t n_failed = 0;

    for (size_t i = 0; i < n; i++) {
        n_failed += m[i].failed;
        MUST(!m[i].failed ||
             (m[i].status >= 300 && m[i].status <= 999 && m[i].status != 502 && m[i].status != 504));
        MUST(m[i].retry_after_ms >= -1 && m[i].retry_after_ms <= 3600 * 1000);
        if (m[i].result.len) {
            struct scan s = {.at = m[i].result.data, .end = m[i].result.data + m[i].result.len};

            MUST(m[i].result.data >= body.data && s.end <= body.data + body.len);
            MUST(scan_skip(&s) && scan_at_end(&s));
        }
    }
    MUST((r->verdict == BATCH_BAD) == (r->why != NULL));
    MUST(!n_failed || r->verdict == BATCH_ANSWERED || r->verdict == BATCH_ACCEPTED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct batch_member m[] = {{.id = SLICE("a"), .token = SLICE("ow1.a")},
                               {.id = SLICE("b"), .token = SLICE("ow1.b")},
                               {.id = SLICE("\xc3\xa4"), .token = SLICE("ow1.c")}};
    const struct batch_rules rules = {.outcome = {.transaction = data[0] & 1}, .knows_batches = data[0] & 2};
    const struct batch_reply a = {.kind = ANSWER_STATUS,
                                  .status = data[0] & 4 ? 200 : data[1] * 4,
                                  .n_sent = 3,
                                  .echo = data[0] & 8 ? 3 : data[1] - 4,
                                  .body = {(const char *)data + 2, size - 2}};
    struct batch_reading r;

    batch_answer_read(&a, &rules, m, 3, &r);
    members_must_be_good(m, 3, &r, a.body);
    return 0;
}
