#include "onceward/base/log.h"

static const struct event_info events[N_EVENTS] = {
#define EVENT(id, name, level, class, message, sentence, advice)                                             \
    {name, LOG_##level, CLASS_##class, message, sentence, advice},
#include "onceward/base/events.def"
#undef EVENT
};

const struct event_info *event_info(enum event e)
{
    return &events[e];
}

const char *log_level_name(enum log_level level)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};

    return names[level];
}
