/* A JSON pointer into a body (RFC 6901). The whole body is walked, so that a malformed one never gives an id; nothing
 * is built. The last of several members with one name counts, as in most readers. Pure; any thread. */

#include "onceward/config/json.h"

#include "onceward/base/buf.h"
#include "onceward/base/scan.h"
#include "onceward/base/texts.h"

#include <stdint.h>

/* State of the search: the rest of the pointer, and the destination of the value. */
struct search {
    struct scan scan;
    struct buf *out;
    size_t start; /* of the value in out */
    bool found, of_id;
};

static bool find(struct search *w, struct slice pointer);

/* Drops an earlier value of the same name. */
static void forget(struct search *w)
{
    w->out->len = w->start;
    w->found = false;
}

static bool find_here(struct search *w)
{
    struct slice raw;
    bool integer;

    switch (scan_peek(&w->scan)) {
    case SCAN_STRING:
        if (!scan_string(&w->scan, &raw))
            return false;
        scan_decode(w->out, raw);
        w->found = true;
        return true;
    case SCAN_NUMBER:
        if (!scan_number(&w->scan, &raw, &integer))
            return false;
        if (integer) {
            buf_add_slice(w->out, slice_equal(raw, SLICE("-0")) ? SLICE("0") : raw);
            w->found = true;
        }
        return true;
    case SCAN_TRUE:
    case SCAN_FALSE:
        if (w->of_id) /* half of all messages would have the same flag as their id */
            return scan_literal(&w->scan);
        buf_add_text(w->out, *w->scan.at == 't' ? "true" : "false");
        w->found = true;
        return scan_literal(&w->scan);
    default:
        return scan_skip(&w->scan);
    }
}

/* Takes one reference token of the pointer and decodes ~1 and ~0. False: another character follows a ~. */
static bool take_token(struct slice *pointer, struct buf *token)
{
    size_t i = 1;

    buf_reset(token);
    for (; i < pointer->len && pointer->data[i] != '/'; i++) {
        char c = pointer->data[i];

        if (c == '~') {
            if (++i == pointer->len || (pointer->data[i] != '0' && pointer->data[i] != '1'))
                return false;
            c = pointer->data[i] == '0' ? '~' : '/';
        }
        buf_add_char(token, c);
    }
    *pointer = (struct slice){pointer->data + i, pointer->len - i};
    return true;
}

/* Reads an array index without sign or leading zero. SIZE_MAX: not an index. */
static size_t index_of(struct slice token)
{
    size_t index = 0;

    if (!token.len || token.len > 9 || (token.len > 1 && token.data[0] == '0'))
        return SIZE_MAX;
    for (size_t i = 0; i < token.len; i++) {
        if (token.data[i] < '0' || token.data[i] > '9')
            return SIZE_MAX;
        index = index * 10 + (size_t)(token.data[i] - '0');
    }
    return index;
}

static bool find_in_object(struct search *w, struct slice token, struct slice rest)
{
    struct slice key;
    int more;

    if (!scan_open(&w->scan))
        return false;
    for (bool first = true; (more = scan_next_member(&w->scan, first, &key)) == 1; first = false) {
        if (scan_equal(key, token)) {
            forget(w);
            if (!find(w, rest))
                return false;
        } else if (!scan_skip(&w->scan)) {
            return false;
        }
    }
    return more == 0;
}

static bool find_in_array(struct search *w, struct slice token, struct slice rest)
{
    size_t wanted = index_of(token);
    int more;

    if (!scan_open(&w->scan))
        return false;
    for (size_t i = 0; (more = scan_next_item(&w->scan, i == 0)) == 1; i++)
        if (i == wanted ? !find(w, rest) : !scan_skip(&w->scan))
            return false;
    return more == 0;
}

/* Finds the value. False: the body or the pointer is malformed. */
static bool find(struct search *w, struct slice pointer)
{
    struct buf token = {0};
    bool well_formed;

    if (!pointer.len)
        return find_here(w);
    if (pointer.data[0] != '/' || !take_token(&pointer, &token))
        well_formed = false;
    else if (scan_peek(&w->scan) == SCAN_OBJECT)
        well_formed = find_in_object(w, buf_slice(&token), pointer);
    else if (scan_peek(&w->scan) == SCAN_ARRAY)
        well_formed = find_in_array(w, buf_slice(&token), pointer);
    else
        well_formed = scan_skip(&w->scan);
    buf_deinit(&token);
    return well_formed;
}

/* Begins the walk, and skips a byte order mark, as RFC 8259, 8.1 allows. False: certainly not JSON. */
static bool scan_begin(struct scan *s, struct slice body)
{
    size_t mark = body.len >= 3 && !memcmp(body.data, "\xEF\xBB\xBF", 3) ? 3 : 0;

    *s = (struct scan){.at = body.data + mark, .end = body.data + body.len};
    return body.len && body.len <= JSON_BODY_MAX && slice_is_utf8(body);
}

static int search_run(struct search *w, struct slice body, struct slice pointer)
{
    w->start = w->out->len;
    if (scan_begin(&w->scan, body) && find(w, pointer) && w->found && scan_at_end(&w->scan))
        return 0;
    w->out->len = w->start;
    return 1;
}

int jsonread_pointer(struct slice body, struct slice pointer, struct buf *out)
{
    return search_run(&(struct search){.out = out}, body, pointer);
}

int jsonread_id(struct slice body, struct slice pointer, struct buf *out)
{
    return search_run(&(struct search){.out = out, .of_id = true}, body, pointer);
}

/* --- the existing part of a pointer --- */

/* Lists the names of an object's members, and finds the value of the last one called token. */
static bool list_members(struct scan *s, struct slice token, struct texts *names, struct scan *ret_value)
{
    struct buf name = {0};
    struct slice key;
    int more = -1;

    if (scan_open(s))
        for (bool first = true; (more = scan_next_member(s, first, &key)) == 1; first = false) {
            buf_reset(&name);
            scan_decode(&name, key);
            texts_add(names, buf_text(&name));
            if (scan_equal(key, token))
                *ret_value = *s;
            if (!scan_skip(s)) {
                more = -1;
                break;
            }
        }
    buf_deinit(&name);
    return more == 0;
}

static bool find_item(struct scan *s, size_t wanted, struct scan *ret_value)
{
    int more = -1;

    if (scan_open(s))
        for (size_t i = 0; (more = scan_next_item(s, i == 0)) == 1; i++) {
            if (i == wanted)
                *ret_value = *s;
            if (!scan_skip(s))
                return false;
        }
    return more == 0;
}

/* Takes a step along the pointer. False: the value is neither object nor array, or is malformed. */
static bool step_into(const struct scan *at, struct slice token, struct texts *names, struct scan *ret_value)
{
    struct scan s = *at;
    enum scan_kind kind = scan_peek(&s);

    texts_deinit(names);
    if (kind == SCAN_OBJECT)
        return list_members(&s, token, names, ret_value);
    return kind == SCAN_ARRAY && find_item(&s, index_of(token), ret_value);
}

int jsonread_reached(struct slice body, struct slice pointer, size_t *ret_len, struct texts *names)
{
    struct slice rest = pointer;
    struct buf token = {0};
    struct scan at, whole;

    if (!scan_begin(&at, body))
        return 1;
    whole = at;
    if (!scan_skip(&whole) || !scan_at_end(&whole))
        return 1;
    for (*ret_len = 0;; *ret_len = pointer.len - rest.len) {
        struct scan value = {0};
        bool more = rest.len && take_token(&rest, &token);

        if (!step_into(&at, more ? buf_slice(&token) : SLICE(""), names, &value) || !more || !value.at)
            break;
        at = value;
    }
    buf_deinit(&token);
    return 0;
}
