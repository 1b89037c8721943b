#pragma once

#include "inbox/session.h"

/* May what is in the schema be run? See sql/queries/schema_trust.sql. */

/* The columns of an answer, a row a fault, the worst first. */
enum { TRUST_KIND, TRUST_WHAT, TRUST_REMEDY };

/* Inside a transaction. mine: the schema and all in it must belong to the role that asks; else to one role,
 * whichever. Calls nothing of the schema. 0: *ret is the caller's (PQclear), without rows where nothing is
 * wrong, or where there is no schema. -1: f. */
int trust_ask(struct admin *a, bool mine, PGresult **ret, struct fault *f);

/* Is the row a reason to leave the schema alone? after: a migration has run, which takes rights away that
 * nobody should have. */
bool trust_refuses(const PGresult *r, int row, bool after);
