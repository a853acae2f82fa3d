/*
 * atomic_file.h: a file that appears whole or not at all: written beside its name, flushed to the
 * disk, renamed over it, and the folder flushed. A crash at any point leaves the old file or the
 * new one, at worst beside a NAME.<pid>.tmp.
 */
#ifndef BASE_ATOMIC_FILE_H
#define BASE_ATOMIC_FILE_H

#include <stdio.h>

#include "infer_base.h"

typedef struct atomic_file {
    FILE *f; // to be written to; errors are seen at commit
    char *path, *temp;
} atomic_file;

infer_status atomic_open(atomic_file *a, const char *path, infer_error *err);
/* Ends a in either case; on failure the temporary file is gone and `path` as it was. */
infer_status atomic_commit(atomic_file *a, infer_error *err);
/* Also of a zeroed one. */
void atomic_abandon(atomic_file *a);

#endif
