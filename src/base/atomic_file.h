/*
 * atomic_file.h: a file that appears whole or not at all: written beside its name, flushed to the
 * disk, renamed over it, and the folder flushed. A crash at any point leaves the old file or the
 * new one, at worst beside a NAME.<pid>.tmp, which the next one to write NAME removes.
 */
#ifndef BASE_ATOMIC_FILE_H
#define BASE_ATOMIC_FILE_H

#include <stdio.h>

#include "infer_base.h"

typedef struct atomic_file {
    FILE *f; // to be written to; errors are seen at commit
    char *path, *temp;
} atomic_file;

/* Marks a temporary file, PATH.<pid>.tmp or PATH.<pid>.<n>.tmp, as in use while fd is open. */
void atomic_mark(int fd);
/* Removes temporary files of `path` that nobody has in use: their process has ended. */
void atomic_clean(const char *path);

infer_status atomic_open(atomic_file *a, const char *path, infer_error *err);
/* Ends a in either case; on failure the temporary file is gone and `path` as it was. */
infer_status atomic_commit(atomic_file *a, infer_error *err);
/* Also of a zeroed one. */
void atomic_abandon(atomic_file *a);
/* A small file's copy; a missing one is none. */
infer_status atomic_copy(const char *from, const char *to, size_t most, infer_error *err);

#endif
