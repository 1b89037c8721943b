/* The transaction token, written and read. Pure; any thread. */

#include "onceward/core/token.h"

#include "onceward/base/buf.h"

#include <assert.h>

static const char prefix[] = "ow1.";

enum {
    PREFIX = sizeof(prefix) - 1,
    SECRET_CHARS = 22,
    KEY_MAX = (TOKEN_MAX - PREFIX - 1 - SECRET_CHARS) * 3 / 4
};

static void key_add(struct buf *out, struct slice consumer, struct slice message_id)
{
    char key[KEY_MAX];
    size_t len = consumer.len + 1 + message_id.len;

    assert(consumer.len && message_id.len && len <= sizeof(key));
    memcpy(key, consumer.data, consumer.len);
    key[consumer.len] = '\0';
    memcpy(key + consumer.len + 1, message_id.data, message_id.len);
    buf_add_base64url(out, key, len);
    buf_add_char(out, '.');
}

void token_write(struct buf *out, struct slice consumer, struct slice message_id,
                 const uint8_t secret[TOKEN_SECRET])
{
    buf_add(out, prefix, PREFIX);
    key_add(out, consumer, message_id);
    buf_add_base64url(out, secret, TOKEN_SECRET);
}

void token_write_behind(struct buf *out, struct slice consumer, struct slice message_id, struct slice before,
                        const uint8_t secret[TOKEN_SECRET])
{
    buf_add(out, prefix, PREFIX);
    key_add(out, consumer, message_id);
    key_add(out, consumer, before);
    buf_add_base64url(out, secret, TOKEN_SECRET);
}

bool token_is_same(struct slice token, struct slice other)
{
    const char *end = other.len > PREFIX ? memchr(other.data + PREFIX, '.', other.len - PREFIX) : NULL;
    size_t key = end ? (size_t)(end - other.data) + 1 : 0, tail = other.len - key;

    if (slice_equal(token, other))
        return true;
    return key && token.len > other.len && tail == SECRET_CHARS && !memcmp(token.data, other.data, key) &&
           !memcmp(token.data + token.len - tail, end + 1, tail);
}

static int sextet(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* Decodes strict base64url: each value has one text, so equal tokens have equal texts. out has room for len * 3 / 4
 * bytes. */
static bool decode(struct slice in, uint8_t *out)
{
    uint32_t bits = 0;
    int n_bits = 0;

    if (in.len % 4 == 1)
        return false;
    for (size_t i = 0; i < in.len; i++) {
        int value = sextet(in.data[i]);

        if (value < 0)
            return false;
        bits = bits << 6 | (uint32_t)value;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            *out++ = (uint8_t)(bits >> n_bits);
            bits &= (1u << n_bits) - 1;
        }
    }
    return bits == 0;
}

int token_read(struct slice token, struct buf *key, struct slice *consumer, struct slice *message_id,
               uint8_t secret[TOKEN_SECRET])
{
    uint8_t bytes[KEY_MAX], tail[TOKEN_SECRET];

    if (token.len > TOKEN_MAX || token.len < PREFIX + 1 + SECRET_CHARS ||
        memcmp(token.data, prefix, PREFIX) != 0)
        return 1;
    size_t dot = token.len - SECRET_CHARS - 1;
    struct slice head = {token.data + PREFIX, dot - PREFIX};

    if (token.data[dot] != '.' || !decode(head, bytes) ||
        !decode((struct slice){token.data + dot + 1, SECRET_CHARS}, tail))
        return 1;
    size_t len = head.len * 3 / 4;
    uint8_t *nul = len ? memchr(bytes, '\0', len) : NULL;

    if (!nul)
        return 1;
    struct slice first = {(char *)bytes, (size_t)(nul - bytes)};
    struct slice second = {(char *)nul + 1, len - first.len - 1};

    if (!first.len || !second.len || !slice_is_text(first) || !slice_is_text(second))
        return 1;
    size_t at = key->len;
    buf_add(key, bytes, len);
    *consumer = (struct slice){key->data + at, first.len};
    *message_id = (struct slice){key->data + at + first.len + 1, second.len};
    memcpy(secret, tail, TOKEN_SECRET);
    return 0;
}
