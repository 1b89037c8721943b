/* onceward explain: the events and reasons of the log, the fields of its stats and outbox lines, the errors
 * for applications, and the keys of the configuration. Generated from their tables, like the documentation. */

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/log.h"
#include "onceward/base/markdown.h"
#include "onceward/base/table.h"
#include "onceward/config/keys.h"
#include "onceward/core/codes.h"
#include "onceward/core/reasons.h"
#include "onceward/core/stats.h"

#include <string.h>
#include <strings.h>

/* A table of terms, and its headings. */
struct glossary {
    const struct term *terms;
    size_t n;
    const char *what;    /* name of the kind of term */
    const char *heading; /* in the list */
    const char *title;   /* in the documentation */
};

static const struct glossary pauses = {
    .terms = pause_reasons,
    .n = N_PAUSE_REASONS,
    .what = "reason of a pause",
    .heading = "REASON OF A PAUSE",
    .title = "Reasons of a pause",
};
static const struct glossary deaths = {
    .terms = dead_reasons,
    .n = N_DEAD_REASONS,
    .what = "reason of a dead letter",
    .heading = "REASON OF A DEAD LETTER",
    .title = "Reasons of a dead letter",
};
static const struct glossary states = {
    .terms = queue_states,
    .n = N_QUEUE_STATES,
    .what = "state of a queue, in stats",
    .heading = "STATE",
    .title = "Values of `state`",
};

static const struct glossary codes = {
    .terms = error_codes,
    .n = N_ERROR_CODES,
    .what = "error of the functions for applications",
    .heading = "ERROR",
    .title = "Errors",
};

static void list_events(void)
{
    struct table t = {.n_columns = 3};

    table_add_text(&t, "EVENT");
    table_add_text(&t, "LEVEL");
    table_add_text(&t, "MEANS");
    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);

        table_add_text(&t, info->name);
        table_add_text(&t, log_level_name(info->level));
        table_add_text(&t, info->sentence);
    }
    table_print(&t, stdout, text_width(stdout));
    table_deinit(&t);
}

static void list_terms(const struct glossary *g)
{
    struct table t = {.n_columns = 2};

    table_add_text(&t, g->heading);
    table_add_text(&t, "MEANS");
    for (size_t i = 0; i < g->n; i++) {
        struct buf sentence = {0};

        markdown_add_unlinked(&sentence, g->terms[i].sentence);
        table_add_text(&t, g->terms[i].name);
        table_add_text(&t, buf_text(&sentence));
        buf_deinit(&sentence);
    }
    table_print(&t, stdout, text_width(stdout));
    table_deinit(&t);
}

static void list_reasons(void)
{
    list_terms(&pauses);
    putchar('\n');
    list_terms(&deaths);
}

/* Adds "received, _total": the first key, and the endings of the others. */
static void add_keys(struct buf *out, enum stats_field f)
{
    char key[STATS_KEY_MAX];
    size_t len = strlen(stats_field_info(f)->name);

    for (size_t i = 0; stats_key(f, i, key); i++)
        buf_printf(out, "%s%s", i ? ", " : "", i ? key + len : key);
}

static void list_fields(const char *heading, int from, int to)
{
    struct table fields = {.n_columns = 2};

    table_add_text(&fields, heading);
    table_add_text(&fields, "MEANS");
    for (int i = from; i < to; i++) {
        struct buf keys = {0};

        add_keys(&keys, i);
        table_add(&fields, buf_slice(&keys));
        table_add_text(&fields, stats_field_info(i)->sentence);
        buf_deinit(&keys);
    }
    table_print(&fields, stdout, text_width(stdout));
    table_deinit(&fields);
    putchar('\n');
}

static void list_stats(void)
{
    list_fields("FIELD OF STATS", 0, N_STATS_FIELDS);
    list_fields("FIELD OF OUTBOX", N_STATS_FIELDS, N_FIGURES);
    list_terms(&states);
}

static void list_codes(void)
{
    list_terms(&codes);
}

static void list_key(void *ctx, const char *path, const char *fallback, const char *sentence)
{
    struct table *t = ctx;

    table_add_text(t, path);
    table_add_text(t, fallback);
    table_add_text(t, sentence);
}

static void list_keys(void)
{
    struct table t = {.n_columns = 3};

    list_key(&t, "KEY", "DEFAULT", "MEANS");
    config_keys_each(list_key, &t);
    table_print(&t, stdout, text_width(stdout));
    table_deinit(&t);
}

static void list_everything(void)
{
    list_events();
    putchar('\n');
    list_reasons();
    putchar('\n');
    list_stats();
    putchar('\n');
    list_codes();
    putchar('\n');
    list_keys();
}

static void print_buf(struct buf *out)
{
    fwrite(out->data, 1, out->len, stdout);
    buf_deinit(out);
}

/* Lists the events of each level, as links to their entries. */
static void add_index(struct buf *out)
{
    static const enum log_level levels[] = {LOG_ERROR, LOG_WARNING, LOG_INFO};

    for (size_t l = 0; l < sizeof(levels) / sizeof(levels[0]); l++) {
        struct buf line = {0};

        buf_printf(&line, "**%s**:", log_level_name(levels[l]));
        for (int i = 0, n = 0; i < N_EVENTS; i++)
            if (event_info(i)->level == levels[l])
                buf_printf(&line, "%s [`%s`](#%s)", n++ ? "," : "", event_info(i)->name, event_info(i)->name);
        markdown_add_paragraph(out, buf_text(&line));
        buf_add_char(out, '\n');
        buf_deinit(&line);
    }
}

static void print_events(void)
{
    struct buf out = {0};

    add_index(&out);
    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);
        char heading[64], label[32];

        snprintf(heading, sizeof(heading), "`%s`", info->name);
        snprintf(label, sizeof(label), "*%s.* ", log_level_name(info->level));
        markdown_add_entry(&out, &(struct markdown_entry){3, heading, label, info->sentence, info->advice});
    }
    print_buf(&out);
}

static void add_terms(struct buf *out, const struct glossary *g, int level)
{
    for (size_t i = 0; i < g->n; i++) {
        char heading[64];

        snprintf(heading, sizeof(heading), "`%s`", g->terms[i].name);
        markdown_add_entry(
            out, &(struct markdown_entry){level, heading, "", g->terms[i].sentence, g->terms[i].advice});
    }
}

static void add_titled_terms(struct buf *out, const struct glossary *g)
{
    buf_printf(out, "### %s\n\n", g->title);
    add_terms(out, g, 4);
}

static void print_reasons(void)
{
    struct buf out = {0};

    add_titled_terms(&out, &pauses);
    add_titled_terms(&out, &deaths);
    print_buf(&out);
}

static void add_fields(struct buf *out, const char *event, int from, int to)
{
    buf_printf(out, "### Fields of `%s`\n\n", event);
    for (int i = from; i < to; i++) {
        struct buf heading = {0};
        char key[STATS_KEY_MAX];

        for (size_t k = 0; stats_key(i, k, key); k++)
            buf_printf(&heading, "%s`%s`", k ? ", " : "", key);
        markdown_add_entry(out,
                           &(struct markdown_entry){4, buf_text(&heading), "", stats_field_info(i)->sentence,
                                                    stats_field_info(i)->advice});
        buf_deinit(&heading);
    }
}

static void print_stats(void)
{
    struct buf out = {0};

    add_fields(&out, "stats", 0, N_STATS_FIELDS);
    add_fields(&out, "outbox", N_STATS_FIELDS, N_FIGURES);
    add_titled_terms(&out, &states);
    print_buf(&out);
}

static void print_codes(void)
{
    struct buf out = {0};

    add_terms(&out, &codes, 3);
    print_buf(&out);
}

static void print_keys(void)
{
    struct buf out = {0};

    config_keys_markdown(&out);
    print_buf(&out);
}

static bool explain_event(const char *name)
{
    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);

        if (strcasecmp(info->name, name) == 0) {
            printf("%s (%s)\n  %s\n  %s\n", info->name, log_level_name(info->level), info->sentence,
                   info->advice);
            return true;
        }
    }
    return false;
}

static void explain_field_of(int f)
{
    const struct stats_field_info *info = stats_field_info(f);
    const char *endings = stats_kind_sentence(info->kind);
    struct buf keys = {0};

    add_keys(&keys, f);
    printf("%s (field of %s)\n  %s\n", buf_text(&keys), f < N_STATS_FIELDS ? "stats" : "outbox",
           info->sentence);
    if (endings)
        printf("  %s\n", endings);
    printf("  %s\n", info->advice);
    buf_deinit(&keys);
}

static bool explain_field(const char *name)
{
    char key[STATS_KEY_MAX] = "";
    bool known = false;

    for (size_t i = 0; i + 1 < sizeof(key) && name[i]; i++) /* all names are lower-case */
        key[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] | 0x20) : name[i];
    if (strlen(name) >= sizeof(key))
        return false;
    for (int f = -1; (f = stats_field_find(key, f + 1)) >= 0; known = true)
        explain_field_of(f);
    return known;
}

static bool explain_term(const struct glossary *g, const char *name)
{
    bool known = false;

    for (size_t i = 0; i < g->n; i++) {
        const struct term *t = &g->terms[i];

        if (strcasecmp(t->name, name) != 0)
            continue;
        struct buf sentence = {0};

        markdown_add_unlinked(&sentence, t->sentence);
        printf("%s (%s)\n  %s\n  %s\n", t->name, g->what, buf_text(&sentence), t->advice);
        buf_deinit(&sentence);
        known = true;
    }
    return known;
}

/* Explains "p99" or "_total": the ending of keys in the stats line. */
static bool explain_ending(const char *name)
{
    static const enum stats_kind kinds[] = {STATS_KIND_LATENCY, STATS_KIND_QUANTILES, STATS_KIND_BATCH,
                                            STATS_KIND_COUNT};
    char key[STATS_KEY_MAX];
    bool known = false;

    name += *name == '_';
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct buf fields = {0};

        for (int f = 0; f < N_FIGURES; f++) {
            const struct stats_field_info *info = stats_field_info(f);
            bool ends_so = false;

            for (size_t k = 0; info->kind == kinds[i] && stats_key(f, k, key); k++)
                ends_so |= key[strlen(info->name)] && strcasecmp(key + strlen(info->name) + 1, name) == 0;
            if (ends_so)
                buf_printf(&fields, "%s%s", fields.len ? ", " : "", info->name);
        }
        if (fields.len)
            printf("_%s (ending of fields)\n  %s\n  Of: %s.\n", name, stats_kind_sentence(kinds[i]),
                   buf_text(&fields));
        known |= fields.len > 0;
        buf_deinit(&fields);
    }
    return known;
}

static bool explain_keys(const char *name)
{
    struct buf out = {0};
    bool known = config_keys_explain(&out, name) > 0;

    fputs(buf_text(&out), stdout);
    buf_deinit(&out);
    return known;
}

struct guesses {
    const char *names[8];
    size_t n;
};

static void guess(struct guesses *g, const char *name, const char *other)
{
    if (strlen(name) < 3 || (!strcasestr(other, name) && strncmp(other, name, 3) != 0))
        return;
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->names[i], other) == 0)
            return;
    if (g->n < sizeof(g->names) / sizeof(g->names[0]))
        g->names[g->n++] = other;
}

static void guess_terms(struct guesses *g, const char *name, const struct glossary *terms)
{
    for (size_t i = 0; i < terms->n; i++)
        guess(g, name, terms->terms[i].name);
}

/* Explains every term with this name, since several tables may have it. */
static int explain(const char *name)
{
    bool known = explain_event(name);
    struct guesses g = {0};

    known |= explain_term(&pauses, name);
    known |= explain_term(&deaths, name);
    known |= explain_field(name);
    known |= explain_term(&states, name);
    known |= explain_ending(name);
    known |= explain_term(&codes, name);
    known |= explain_keys(name);
    if (known)
        return STATUS_DONE;
    fprintf(stderr, "onceward: there is no event, reason, field, error or key \"%s\"", name);
    for (int i = 0; i < N_EVENTS; i++)
        guess(&g, name, event_info(i)->name);
    guess_terms(&g, name, &pauses);
    guess_terms(&g, name, &deaths);
    for (int i = 0; i < N_FIGURES; i++)
        guess(&g, name, stats_field_info(i)->name);
    guess_terms(&g, name, &states);
    guess_terms(&g, name, &codes);
    struct buf key = {0};
    if (g.n < sizeof(g.names) / sizeof(g.names[0]) && config_keys_nearest(&key, name))
        g.names[g.n++] = buf_text(&key);
    for (size_t i = 0; i < g.n; i++)
        fprintf(stderr, i ? ", %s" : "; did you mean %s", g.names[i]);
    fputs(g.n ? "?\n" : "; `onceward explain` lists them\n", stderr);
    buf_deinit(&key);
    return STATUS_USAGE;
}

enum part { REASONS, STATS, CODES, KEYS, N_PARTS };

static const struct {
    void (*list)(void), (*print)(void);
} parts[N_PARTS] = {
    [REASONS] = {list_reasons, print_reasons},
    [STATS] = {list_stats, print_stats},
    [CODES] = {list_codes, print_codes},
    [KEYS] = {list_keys, print_keys},
};

struct explain_options {
    const char *name;
    bool list, markdown, parts[N_PARTS];
};

static int explain_run(void *options)
{
    const struct explain_options *o = options;
    int part = 0;

    while (part < N_PARTS && !o->parts[part])
        part++;
    if (o->name)
        return explain(o->name);
    if (part < N_PARTS)
        (o->markdown ? parts[part].print : parts[part].list)();
    else
        (o->markdown ? print_events : list_everything)();
    return STATUS_DONE;
}

#define OPTIONS struct explain_options

static const struct command_option explain_options[] = {
    {"list", NULL, "the names with one sentence each (default)", OPTION(FLAG, list)},
    {"markdown", NULL, "the entries of the documentation", OPTION(FLAG, markdown), OPTION_OR},
    {"reasons", NULL, "the reasons instead of the events", OPTION(FLAG, parts[REASONS])},
    {"stats", NULL, "the fields of the stats and outbox lines and the states", OPTION(FLAG, parts[STATS]),
     OPTION_OR},
    {"codes", NULL, "the errors of the functions for applications", OPTION(FLAG, parts[CODES]), OPTION_OR},
    {"keys", NULL, "the keys of the configuration", OPTION(FLAG, parts[KEYS]), OPTION_OR},
    {NULL, "NAME", NULL, OPTION(OPERAND, name), OPTION_ALONE},
    {0},
};

const struct command explain_command = {
    .name = "explain",
    .does = "explain an event or figure of the log, or a configuration key",
    .about =
        "Explains NAME and what to do about it: an event of the log, a reason for a pause or a dead letter, a field or state of the stats and "
        "outbox lines, an error of onceward.complete (OW001), a key of the configuration. Case does not matter. Without NAME it lists all "
        "of them.",
    .options = explain_options,
    .size = sizeof(struct explain_options),
    .run = explain_run,
};
