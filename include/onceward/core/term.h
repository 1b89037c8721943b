#pragma once

/* A word in log, stats lines or dead letters, with its text for `onceward explain` and the documentation. The
 * tables are constant, and indexed by the enum of the same .def file. */
struct term {
    const char *name;     /* two terms may share a name if another field tells them apart */
    const char *sentence; /* its meaning */
    const char *advice;   /* the operator's remedy, with the command to type */
};
