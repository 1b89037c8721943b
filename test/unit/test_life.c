/* The table of steps in src/core/life.c: the comment at its head equals the code. */
#include "cmocka_all.h"
#include "onceward/core/operation.h"

#include "core/life.h"

#include <stdio.h>
#include <string.h>

static int operation_find(const char *name)
{
    for (int op = 0; op < N_OPERATIONS; op++)
        if (!strcmp(operation_info((enum operation)op)->name, name))
            return op;
    return strcmp(name, "end") ? -1 : N_OPERATIONS;
}

static int fact_find(const char *name)
{
    for (int fact = 0; fact < N_FACTS; fact++)
        if (!strcmp(life_fact_name((enum fact)fact), name))
            return fact;
    return -1;
}

/* Parses " *   claim sent row ─▶ claim lookup …": its place in the table, and the operations that may follow.
 * False: another line. */
static bool line_read(char *line, unsigned table[N_OPERATIONS][PHASE_SENT + 1][N_FACTS])
{
    char op[16], phase[16], fact[16];
    char *to = strstr(line, "─▶");

    if (!to || sscanf(line, " * %15s %15s %15s", op, phase, fact) != 3 ||
        (strcmp(phase, "wanted") && strcmp(phase, "sent")))
        return false;
    int from = operation_find(op), what = fact_find(fact);

    assert_in_range(from, 0, N_OPERATIONS - 1);
    assert_in_range(what, 0, N_FACTS - 1);
    unsigned *cell = &table[from][strcmp(phase, "sent") ? PHASE_WANTED : PHASE_SENT][what];

    assert_int_equal(*cell, 0); /* not twice */
    for (char *name = strtok(to + strlen("─▶"), " \n"); name; name = strtok(NULL, " \n")) {
        int next = operation_find(name);

        assert_in_range(next, 0, N_OPERATIONS);
        *cell |= 1u << next;
    }
    return true;
}

static void test_the_picture_is_the_table(void **state)
{
    static unsigned table[N_OPERATIONS][PHASE_SENT + 1][N_FACTS];
    FILE *f = fopen(ONCEWARD_SOURCE_DIR "/src/core/life.c", "r");
    char line[512];
    int n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) && !strstr(line, "*/"))
        n += line_read(line, table);
    fclose(f);
    assert_true(n > 50);
    for (int op = 0; op < N_OPERATIONS; op++)
        for (int phase = 0; phase <= PHASE_SENT; phase++)
            for (int fact = 0; fact < N_FACTS; fact++)
                if (life_allows((enum operation)op, (enum phase)phase, (enum fact)fact) !=
                    table[op][phase][fact])
                    fail_msg("%s %s %s: the picture and the table differ",
                             operation_info((enum operation)op)->name,
                             phase == PHASE_SENT ? "sent" : "wanted", life_fact_name((enum fact)fact));
}

/* Every operation that can be reached can be left, and only the broker's operations end a delivery. */
static void test_every_operation_leads_to_an_end(void **state)
{
    bool ends[N_OPERATIONS] = {false};

    for (int round = 0; round < N_OPERATIONS; round++)
        for (int op = 0; op < N_OPERATIONS; op++)
            for (int phase = 0; phase <= PHASE_SENT; phase++)
                for (int fact = 0; fact < N_FACTS; fact++)
                    for (int next = 0; next <= N_OPERATIONS; next++)
                        if (life_allows((enum operation)op, (enum phase)phase, (enum fact)fact) >> next & 1)
                            ends[op] |= next == N_OPERATIONS || ends[next];
    for (int op = 0; op < N_OPERATIONS; op++) {
        unsigned all = 0;

        assert_true(ends[op]);
        for (int phase = 0; phase <= PHASE_SENT; phase++)
            for (int fact = 0; fact < N_FACTS; fact++)
                all |= life_allows((enum operation)op, (enum phase)phase, (enum fact)fact);
        assert_int_equal((all & LIFE_END) != 0, operation_info((enum operation)op)->link == LINK_BROKER);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_picture_is_the_table),
        cmocka_unit_test(test_every_operation_leads_to_an_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
