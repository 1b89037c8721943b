/* The id of a message, from the sources of its queue, or the reason why it has no id or no key. */
#include "sidecar/sidecar.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/json.h"
#include "onceward/core/identity.h"
#include "onceward/core/message.h"

enum { HEADERS_TOLD = 6 };

/* Lists the properties and headers that could serve as id or key, for a message without one. */
static void list_names(const struct message *m, struct fault *f)
{
    struct buf names = {0};

    buf_add_text(&names, f->text);
    buf_add_text(&names, "; it has ");
    message_add_names(m, HEADERS_TOLD, &names);
    fault_set(f, "%s", buf_text(&names));
    buf_deinit(&names);
}

enum dead_reason identify_message(const struct sidecar_queue *sq, const struct message *m, struct buf *id,
                                  struct fault *f)
{
    buf_reset(id);
    switch (identity_find(sq->config->message_id.items, sq->config->message_id.n, m, jsonread_id, id, f)) {
    case IDENTITY_FOUND:
        return DEAD_NONE;
    case IDENTITY_MISSING:
    case IDENTITY_EMPTY:
        list_names(m, f);
        return DEAD_NO_MESSAGE_ID;
    default:
        return DEAD_INVALID_MESSAGE_ID;
    }
}

void identify_no_key(const struct sidecar_queue *sq, const struct message *m, struct fault *f)
{
    key_missing(sq->config->order.key.items, sq->config->order.key.n, f);
    list_names(m, f);
}
