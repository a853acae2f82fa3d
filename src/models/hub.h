/*
 * hub.h: what a hub lists and what of it makes a model; names and file choice without any network.
 *
 * A hub answers GET /api/models/OWNER/NAME/tree/COMMIT?recursive=1 with an array of
 *   {"type": "file", "path": P, "size": N, "oid": SHA-1, "lfs": {"oid": SHA-256, "size": N}}
 * where lfs is there for large files. SHA-1 is git's, of "blob N\0" and the bytes. Everything in it
 * is a stranger's word: a path that could lead out of a folder, a second entry of the same name or
 * a size beyond HUB_MAX_FILE refuses the whole listing.
 */
#ifndef MODELS_HUB_H
#define MODELS_HUB_H

#include "base/arena.h"
#include "infer_tools.h"

#define HUB_MAX_FILE ((uint64_t)1 << 44) // bytes of one file
#define HUB_MAX_ENTRIES 100000

/* owner/name[@revision][:file], with or without hf:// in front. */
typedef struct hub_name {
    const char *repo;     // "owner/name"
    const char *revision; // NULL where none is given
    const char *file;     // a file's path, or a part of its name ("Q4_K_M"); or NULL
} hub_name;
/* Strings are the arena's. INFER_ARGUMENT says what is wrong with the name. */
infer_status hub_name_parse(hub_name *out, const char *text, arena *mem, infer_error *err);

typedef struct hub_entry {
    const char *path;
    uint64_t size;
    char sha256[65]; // "" for small files
    char sha1[41];   // git's, of the content; "" where sha256 is there
} hub_entry;

typedef struct hub_tree {
    hub_entry *v;
    size_t n, cap;
} hub_tree;
/* Adds one page of a listing; strings are the arena's. */
infer_status hub_tree_add(hub_tree *t, const char *json, size_t size, arena *mem, infer_error *err);
/* After the last page: sorts by path and refuses two of one name. */
infer_status hub_tree_end(hub_tree *t, infer_error *err);
void hub_tree_free(hub_tree *t);

/* Whether a path of a stranger stays below a folder: relative, no empty, "." or ".." parts, UTF-8
 * without control characters, of a length that file systems take. */
bool hub_path_ok(const char *path);

typedef struct hub_choice {
    const hub_entry **v; // the arena's
    int n;
    const char *file; // the GGUF file, or the first of its set; NULL: a folder of safetensors
} hub_choice;
/* The files that name->file asks for, or the model that the repository is. INFER_ARGUMENT lists
 * what there is where several fit, INFER_NOT_FOUND where none does. */
infer_status hub_choose(hub_choice *out, const hub_tree *t, const hub_name *name, arena *mem,
                        infer_error *err);

/* Whether `wanted` (a path, a file's name, or a part of it between separators: "Q4_K_M") fits a
 * path. 3: the path itself, 2: its last part, 1: a part of the name, 0: no. Case does not count
 * for 1. */
int hub_file_fits(const char *path, const char *wanted);
/* "x-00001-of-00003.gguf": the part's number, and the number of parts; 0 where it is no part. */
int hub_split_part(const char *path, int *n_parts);

#endif
