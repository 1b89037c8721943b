/* A token that can be read is written back as the same text; and any key that may be written can be read. */

#include "fuzz.h"
#include "onceward/base/buf.h"
#include "onceward/core/token.h"

static const char token_letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

static void write_and_read(struct slice consumer, struct slice id)
{
    static const uint8_t secret[TOKEN_SECRET] = {1, 2, 3};
    struct slice c, i;
    struct buf text = {0}, key = {0};
    uint8_t got[TOKEN_SECRET];

    token_write(&text, consumer, id, secret);
    MUST(text.len <= TOKEN_MAX && strspn(buf_text(&text), token_letters) == text.len);
    MUST(token_read(buf_slice(&text), &key, &c, &i, got) == 0);
    MUST(slice_equal(c, consumer) && slice_equal(i, id) && memcmp(got, secret, sizeof(got)) == 0);
    buf_deinit(&text);
    buf_deinit(&key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice token = {(const char *)data, size}, consumer, id;
    struct buf key = {0}, again = {0};
    uint8_t secret[TOKEN_SECRET];

    if (token_read(token, &key, &consumer, &id, secret) == 0) {
        MUST(size <= TOKEN_MAX);
        MUST(consumer.len && id.len && slice_is_text(consumer) && slice_is_text(id));
        token_write(&again, consumer, id, secret);
        MUST(slice_equal(buf_slice(&again), token));
    } else {
        MUST(key.len == 0);
    }
    buf_deinit(&key);
    buf_deinit(&again);
    if (size >= 3 && size <= 512) {
        size_t split = 1 + data[0] % (size - 2);
        struct slice c = {(const char *)data + 1, split}, i = {c.data + split, size - 1 - split};

        if (i.len && slice_is_text(c) && slice_is_text(i))
            write_and_read(c, i);
    }
    return 0;
}
