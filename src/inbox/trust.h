#pragma once

#include "inbox/session.h"

/* May the objects in the schema be run? See sql/queries/schema_trust.sql. */

/* Columns of an answer: one row per fault, the worst first. */
enum { TRUST_KIND, TRUST_WHAT, TRUST_REMEDY };

/* Checks the schema inside a transaction. mine: the schema and everything in it must belong to the current role, else
 * to any one role. Runs nothing of the schema. 0: *ret is the caller's (PQclear), without rows if nothing is wrong or
 * there is no schema. -1: f. */
int trust_ask(struct admin *a, bool mine, PGresult **ret, struct fault *f);

/* Is the fault a reason not to use the schema? after: a migration has run, which revokes excess rights. */
bool trust_refuses(const PGresult *r, int row, bool after);
