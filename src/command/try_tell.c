/* Output of `onceward try`: text, JSON, and the tables of its help and the documentation. */

#include "command/try.h"

#include "onceward/base/buf.h"
#include "onceward/base/markdown.h"
#include "onceward/base/table.h"
#include "onceward/config/config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

const struct try_case_info try_cases[N_TRY_CASES] = {
#define CASE(id, name_, what_, expected_) [TRY_##id] = {name_, what_, expected_},
#include "command/try.def"
};

const struct try_finding_info try_findings[N_TRY_FINDINGS] = {
#define FINDING(id, of_, name_, level_, what_, rule_, mend_)                                                 \
    [TRY_FOUND_##id] = {TRY_##of_, TRY_##level_, name_, what_, rule_, mend_},
#include "command/try.def"
};

static const char *level_name(enum try_level level)
{
    return level == TRY_BREAKS ? "breaks" : "advice";
}

/* ---- recording ---- */

void try_found(struct try_run *t, enum try_finding which, const char *format, ...)
{
    va_list args;

    if (t->found[which])
        return; /* the first finding is kept */
    t->found[which] = true;
    va_start(args, format);
    vsnprintf(t->details[which], sizeof t->details[which], format, args);
    va_end(args);
}

void try_skip(struct try_run *t, enum try_case which, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(t->verdicts[which].skipped, sizeof t->verdicts[which].skipped, format, args);
    va_end(args);
}

void try_note(struct try_run *t, enum try_case which, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(t->verdicts[which].note, sizeof t->verdicts[which].note, format, args);
    va_end(args);
}

bool try_applies(const struct try_run *t, enum try_case which)
{
    if (!t->in_batches)
        return which < TRY_SEVERAL;
    return which != TRY_HEADERS; /* message headers stand in the body */
}

static bool has_level(const struct try_run *t, enum try_level level)
{
    for (int i = 0; i < N_TRY_FINDINGS; i++)
        if (t->found[i] && try_findings[i].level == level)
            return true;
    return false;
}

bool try_breaks(const struct try_run *t)
{
    return has_level(t, TRY_BREAKS);
}

bool try_advises(const struct try_run *t)
{
    return has_level(t, TRY_ADVICE);
}

/* "breaks", "advice", "skipped" or "ok". */
static const char *verdict_of(const struct try_run *t, enum try_case which)
{
    const char *verdict = "ok";

    for (int i = 0; i < N_TRY_FINDINGS; i++) {
        if (!t->found[i] || try_findings[i].of != which)
            continue;
        if (try_findings[i].level == TRY_BREAKS)
            return "breaks";
        verdict = "advice";
    }
    if (*verdict == 'o' && (!t->verdicts[which].was_run || t->verdicts[which].skipped[0]))
        return "skipped";
    return verdict;
}

/* ---- text ---- */

/* Text from the application may contain anything. */
static void print_safe(FILE *out, const char *before, const char *text)
{
    struct buf safe = {0};

    text_add_safe(&safe, slice_of(text));
    fprintf(out, "%s%s\n", before, buf_text(&safe));
    buf_deinit(&safe);
}

static void tell_case(const struct try_run *t, enum try_case which, FILE *out)
{
    const struct try_case_info *c = &try_cases[which];
    const struct try_verdict *v = &t->verdicts[which];
    struct buf line = {0};

    buf_printf(&line, "%-8s %-10s ", verdict_of(t, which), c->name);
    print_safe(out, buf_text(&line), c->what);
    buf_deinit(&line);
    if (v->skipped[0])
        print_safe(out, "                      not looked at: ", v->skipped);
    if (v->note[0])
        print_safe(out, "                      ", v->note);
    for (int i = 0; i < N_TRY_FINDINGS; i++) {
        const struct try_finding_info *f = &try_findings[i];

        if (!t->found[i] || f->of != which)
            continue;
        fprintf(out, "         %s: %s\n", f->name, f->what);
        print_safe(out, "           seen      ", t->details[i]);
        fprintf(out, "           expected  %s\n           contract  %s\n           remedy    %s\n",
                c->expected, f->rule, f->mend);
    }
}

/* Prints one line for several skipped cases with the same reason. */
static void tell_not_run(const struct try_run *t, int first, FILE *out)
{
    const char *why = t->verdicts[first].skipped;

    for (int i = 0; i < first; i++)
        if (!t->verdicts[i].was_run && strcmp(t->verdicts[i].skipped, why) == 0)
            return; /* printed already */
    fputs("skipped ", out);
    for (int i = first; i < N_TRY_CASES; i++)
        if (!t->verdicts[i].was_run && try_applies(t, (enum try_case)i) &&
            strcmp(t->verdicts[i].skipped, why) == 0)
            fprintf(out, "%s %s", i > first ? "," : "", try_cases[i].name);
    print_safe(out, ": ", why);
}

static void tell_published(const struct try_run *t, FILE *out)
{
    const struct trial_published *p = &t->published;
    struct buf line = {0};

    if (!p->n)
        return;
    buf_printf(&line, "Published during the run: %" PRId64 " message%s (%s%s). ", p->n, p->n == 1 ? "" : "s",
               p->ids, p->n > 10 ? ", ..." : "");
    if (*p->relay)
        buf_printf(&line, "A relay is running (%s): it sends them to the broker, or has sent them.",
                   p->relay);
    else if (p->discarded)
        buf_printf(&line, "%" PRId64 " of them were deleted.", p->discarded);
    else if (p->unsent)
        buf_printf(&line,
                   "%" PRId64 " of them wait in the outbox, for the next sidecar that relays: "
                   "--discard-published deletes them.",
                   p->unsent);
    else
        buf_add_text(&line, "They were sent to the broker.");
    if (p->others)
        buf_printf(&line, " %" PRId64 " more were published by other transactions, and stay.", p->others);
    print_safe(out, "", buf_text(&line));
    buf_deinit(&line);
}

static void tell_verdict(const struct try_run *t, int breaks, int advice, int skipped, FILE *out)
{
    char took[32];

    snprintf(took, sizeof took, "%" PRId64 ".%" PRId64 " s", t->took_ms / 1000, t->took_ms % 1000 / 100);
    if (breaks)
        fprintf(out, "\nBroken in %s: %d would break a promise, %d to look at, %d not looked at.\n", took,
                breaks, advice, skipped);
    else if (advice)
        fprintf(out, "\nKeeps the promises; %d to look at%s (%s, %d not looked at).\n", advice,
                t->options->strict ? ", so --strict fails" : "", took, skipped);
    else
        fprintf(out, "\nGood in %s: keeps the promises, %d not looked at.\n", took, skipped);
}

static void count(const struct try_run *t, int *ret_breaks, int *ret_advice, int *ret_skipped)
{
    *ret_breaks = *ret_advice = *ret_skipped = 0;
    for (int i = 0; i < N_TRY_FINDINGS; i++) {
        *ret_breaks += t->found[i] && try_findings[i].level == TRY_BREAKS;
        *ret_advice += t->found[i] && try_findings[i].level == TRY_ADVICE;
    }
    for (int i = 0; i < N_TRY_CASES; i++)
        *ret_skipped +=
            try_applies(t, (enum try_case)i) && strcmp(verdict_of(t, (enum try_case)i), "skipped") == 0;
}

void try_tell(const struct try_run *t, FILE *out)
{
    int breaks, advice, skipped;

    if (t->is_unreachable) {
        fprintf(out, "Nothing answers at %s: is the application running? (", t->q->forward.url);
        print_safe(out, t->details[TRY_FOUND_NOT_DONE], ")");
        return;
    }
    fprintf(out, "Queue %s, completion %s, %s%s, consumer %s\n\n", t->q->name,
            t->q->transaction ? "transaction" : "response",
            t->in_batches ? "several messages in a request, " : "", t->q->forward.url, t->consumer);
    for (int i = 0; i < N_TRY_CASES; i++)
        if (t->verdicts[i].was_run)
            tell_case(t, (enum try_case)i, out);
        else if (try_applies(t, (enum try_case)i))
            tell_not_run(t, i, out);
    count(t, &breaks, &advice, &skipped);
    tell_verdict(t, breaks, advice, skipped, out);
    tell_published(t, out);
    if (t->rows_left)
        fprintf(out, "%" PRId64 " rows of %s are locked by the application, and were left.\n", t->rows_left,
                t->consumer);
}

/* ---- JSON ---- */

static void add_member(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "\"%s\":", name);
    buf_add_json(out, slice_of(value));
}

static void add_findings(struct buf *out, const struct try_run *t, enum try_case which)
{
    bool is_first = true;

    for (int i = 0; i < N_TRY_FINDINGS; i++) {
        const struct try_finding_info *f = &try_findings[i];

        if (!t->found[i] || f->of != which)
            continue;
        buf_add_text(out, is_first ? "{" : ",{");
        is_first = false;
        add_member(out, "finding", f->name);
        buf_add_char(out, ',');
        add_member(out, "level", level_name(f->level));
        buf_add_char(out, ',');
        add_member(out, "what", f->what);
        buf_add_char(out, ',');
        add_member(out, "seen", t->details[i]);
        buf_add_char(out, ',');
        add_member(out, "contract", f->rule);
        buf_add_char(out, ',');
        add_member(out, "mend", f->mend);
        buf_add_char(out, '}');
    }
}

static void add_case(struct buf *out, const struct try_run *t, enum try_case which)
{
    const struct try_verdict *v = &t->verdicts[which];

    buf_add_text(out, which ? ",{" : "{");
    add_member(out, "case", try_cases[which].name);
    buf_add_char(out, ',');
    add_member(out, "verdict", verdict_of(t, which));
    buf_add_char(out, ',');
    add_member(out, "what", try_cases[which].what);
    buf_add_char(out, ',');
    add_member(out, "expected", try_cases[which].expected);
    if (v->skipped[0]) {
        buf_add_char(out, ',');
        add_member(out, "not_looked_at", v->skipped);
    }
    if (v->note[0]) {
        buf_add_char(out, ',');
        add_member(out, "note", v->note);
    }
    buf_add_text(out, ",\"findings\":[");
    add_findings(out, t, which);
    buf_add_text(out, "]}");
}

static void add_published(struct buf *out, const struct trial_published *p)
{
    buf_printf(out,
               "\"published\":{\"n\":%" PRId64 ",\"others\":%" PRId64 ",\"unsent\":%" PRId64
               ",\"discarded\":%" PRId64 ",",
               p->n, p->others, p->unsent, p->discarded);
    add_member(out, "ids", p->ids);
    buf_add_char(out, ',');
    add_member(out, "relay", p->relay);
    buf_add_char(out, '}');
}

void try_tell_json(const struct try_run *t, FILE *out)
{
    struct buf text = {0};

    buf_add_char(&text, '{');
    add_member(&text, "queue", t->q->name);
    buf_add_char(&text, ',');
    add_member(&text, "completion", t->q->transaction ? "transaction" : "response");
    buf_add_char(&text, ',');
    add_member(&text, "consumer", t->consumer);
    buf_printf(&text, ",\"breaks\":%s,\"took_ms\":%" PRId64 ",\"rows_left\":%" PRId64 ",",
               try_breaks(t) ? "true" : "false", t->took_ms, t->rows_left);
    add_published(&text, &t->published);
    buf_add_text(&text, ",\"cases\":[");
    for (int i = 0; i < N_TRY_CASES; i++)
        if (try_applies(t, (enum try_case)i))
            add_case(&text, t, (enum try_case)i);
    buf_add_text(&text, "]}\n");
    fwrite(text.data, 1, text.len, out);
    buf_deinit(&text);
}

/* ---- the tables ---- */

void try_tell_cases(struct buf *out)
{
    buf_add_text(out, "\nCases and expected results (the last six only with forward.batch):\n");
    for (int i = 0; i < N_TRY_CASES; i++)
        buf_printf(out, "  %-10s %s: %s\n", try_cases[i].name, try_cases[i].what, try_cases[i].expected);
    buf_add_char(out, '\n');
}

static void add_finding(struct buf *out, const struct try_finding_info *f)
{
    char heading[64], label[64];

    snprintf(heading, sizeof(heading), "`%s`", f->name);
    snprintf(label, sizeof(label), "*%s, case `%s`.* ", level_name(f->level), try_cases[f->of].name);
    markdown_add_entry(out, &(struct markdown_entry){3, heading, label, f->what, f->mend});
}

void try_tell_markdown(FILE *out)
{
    struct buf text = {0};

    buf_add_text(&text, "| case | what is sent | what is expected |\n|---|---|---|\n");
    for (int i = 0; i < N_TRY_CASES; i++)
        buf_printf(&text, "| `%s` | %s | %s |\n", try_cases[i].name, try_cases[i].what,
                   try_cases[i].expected);
    buf_add_text(&text, "\n## Findings\n\n");
    for (int i = 0; i < N_TRY_FINDINGS; i++)
        add_finding(&text, &try_findings[i]);
    fwrite(text.data, 1, text.len, out);
    buf_deinit(&text);
}

bool try_is_permanent(const struct try_run *t, int status)
{
    for (size_t i = 0; i < t->q->n_permanent_status; i++)
        if (t->q->permanent_status[i] == status)
            return true;
    return false;
}
