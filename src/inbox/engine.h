#pragma once

struct admin;
struct fault;

/* Is the server one that speaks PostgreSQL's protocol, and lacks what the inbox is built on? 1: it is refused,
 * and f says which one it is and why. -1: it did not answer. Asks outside a transaction, and for nothing that
 * such a server lacks. */
int engine_refuses(struct admin *a, struct fault *f);
