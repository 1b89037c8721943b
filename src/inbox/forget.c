/* Removes the data of a consumer, one slice per call: see sql/functions/consumer_forget.sql. */

#include "inbox/session.h"

#include "onceward/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { ANSWER, N_ROWS, N_LETTERS, NEXT };

int admin_forget(struct admin *a, const char *consumer, bool letters, struct forgotten *io, struct fault *f)
{
    static const char *const answers[] = {"more", "in_use", "held", "done"};
    const char *const params[] = {consumer, letters ? "true" : "false", io->next ? io->next : ""};
    PGresult *r;

    if (session_once(a, "SELECT * FROM onceward.consumer_forget($1, $2::boolean, $3)", 3, params, &r, f))
        return -1;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        if (!strcmp(field_text(r, 0, ANSWER), answers[i]))
            io->answer = (enum forget_answer)i;
    if (io->answer == FORGET_HELD)
        io->n_held = field_int(r, 0, N_ROWS);
    else
        io->n_rows += field_int(r, 0, N_ROWS);
    io->n_letters += field_int(r, 0, N_LETTERS);
    free(io->next);
    io->next =
        field_text(r, 0, NEXT) ? mem_copy(field_text(r, 0, NEXT), strlen(field_text(r, 0, NEXT))) : NULL;
    PQclear(r);
    return 0;
}

void forgotten_deinit(struct forgotten *f)
{
    free(f->next);
    *f = (struct forgotten){0};
}
