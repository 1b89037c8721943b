#pragma once

struct admin;
struct fault;

/* Does the server speak PostgreSQL's protocol but lack a feature that the inbox relies on? 1: it is refused,
 * and f names it and the reason. -1: it did not answer. Runs outside a transaction, and uses nothing that
 * such a server lacks. */
int engine_refuses(struct admin *a, struct fault *f);
