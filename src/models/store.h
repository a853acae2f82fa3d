/*
 * store.h: the store's folder on disk.
 *
 *   STORE/owner/name/pulls.json       what was pulled: {"pulls": [record, …]}
 *   STORE/owner/name/.lock            flock: one pull or removal at a time
 *   STORE/owner/name/COMMIT/…         the repository's files as they are named there
 *   STORE/owner/name/COMMIT/X.part    a file that is arriving, X.part.state: which bytes are there
 *
 * record = {"file": first GGUF file or null (a folder), "revision", "commit", "when", "complete",
 *           "files": [{"path", "size", "sha256" or "sha1"}]}
 *
 * A file has its own name only when its checksum was right. Several commits may share a file
 * through a hard link.
 */
#ifndef MODELS_STORE_H
#define MODELS_STORE_H

#include <jansson.h>

#include "models/hub.h"

/* pulls.json of a repository's folder; an empty list where there is none. The array is the caller's
 * (json_decref). What does not have a record's shape is left out. */
infer_status store_read(json_t **pulls, const char *folder, infer_error *err);
infer_status store_write(const json_t *pulls, const char *folder, infer_error *err);
/* Borrowed: the record of this file (NULL: the folder) and commit, or NULL. */
json_t *store_record(const json_t *pulls, const char *file, const char *commit);
/* Makes the folders of a path up to its last '/'. */
infer_status store_folders(const char *path, infer_error *err);
/* Takes the repository's lock; *fd is closed to let it go. -1 with INFER_OK: somebody else has it.
 */
infer_status store_lock(int *fd, const char *folder, infer_error *err);

#endif
