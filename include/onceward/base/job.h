#pragma once

#include <stdbool.h>

/* A blocking piece of work (name resolution, connecting, logging in) on a short-lived thread of its own, so
 * that the loop never blocks. The thread owns its data; an abandoned job cleans up after itself when it ends. */
struct job;

/* Starts run(arg) on a thread of its own with an 8 MiB stack; its return value is the job's result. For an abandoned
 * job, the thread calls drop(result) instead. arg belongs to run. NULL: no thread could be started, errno has the
 * reason, and arg was not touched. */
struct job *job_start(void *(*run)(void *arg), void (*drop)(void *result), void *arg);

/* Descriptor that becomes readable when the job has ended. */
int job_fd(const struct job *j);

/* True: the job has ended; *result belongs to the caller and the job is freed. False: the job still runs. */
bool job_take(struct job *j, void **result);

/* Abandons the job: it is freed as soon as its thread ends. */
void job_abandon(struct job *j);

/* Waits until every job of the process has ended, at most timeout_ms. False: some still run, and the process
 * must end by _exit, since exit() runs the libraries' cleanup while such a thread still uses them. */
bool job_wait_all(int timeout_ms);
