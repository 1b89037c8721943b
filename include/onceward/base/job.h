#pragma once

#include <stdbool.h>

/* One blocking piece of work (name resolution, connecting, logging in) on a short-lived thread of its own, so
 * that the loop never blocks. The thread owns what it works on; an abandoned one cleans up after itself when
 * it ends. */
struct job;

/* Starts run(arg) on a thread of its own with an 8 MiB stack. What run answers is the result. drop(result) is
 * called in that thread instead of handing it over, when the job was abandoned. arg belongs to run. NULL: no
 * thread could be made, errno says why (arg was not touched). */
struct job *job_start(void *(*run)(void *arg), void (*drop)(void *result), void *arg);

/* A descriptor that becomes readable when the job has ended. */
int job_fd(const struct job *j);

/* True when it has ended: *result is handed over and the job is freed. False: not yet. */
bool job_take(struct job *j, void **result);

/* Gives the job up: frees it as soon as its thread is done with it. */
void job_abandon(struct job *j);

/* Waits until every job of the process has ended, at most timeout_ms. False: some still run, and the process
 * must end by _exit: the libraries clean up after themselves in exit(), under the feet of such a thread. */
bool job_wait_all(int timeout_ms);
