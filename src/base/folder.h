/*
 * folder.h: folders that appear whole: made beside their name, then put in its place in one step.
 */
#ifndef BASE_FOLDER_H
#define BASE_FOLDER_H

#include "infer_base.h"

/* Flushes the entry of `path` in the folder that it lies in; file systems that cannot are left
 * alone. */
void folder_sync_of(const char *path);
/* `path` and what is in it, folders of files included. */
infer_status folder_remove(const char *path, infer_error *err);
/* `work`, whose files are whole and flushed, becomes `path`. What `path` was is removed afterwards:
 * a crash leaves the old folder or the new one under that name. */
infer_status folder_replace(const char *work, const char *path, infer_error *err);

#endif
