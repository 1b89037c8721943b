#pragma once

/* A word that log, stats lines or dead letters say, as `onceward explain` and the documentation tell it. The
 * tables of them are constant, and indexed by the enum of the same .def file. */
struct term {
    const char *name;     /* two of a table may share one, where another field tells them apart */
    const char *sentence; /* what it means */
    const char *advice;   /* what an operator does, with the command to type */
};
