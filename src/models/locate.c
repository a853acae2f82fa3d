/* locate.c: looks at names only; what is in the files is their readers' business. */
#include "models/locate.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"

#define MAX_NAMES 64 // GGUF files of a folder that are looked at

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* "…-00002-of-00003.gguf": a further file of a split set. */
static bool is_later_part(const char *name)
{
    size_t n = strlen(name);
    int part, of;
    char end;
    return n > 20 && sscanf(name + n - 20, "-%5d-of-%5d.ggu%c", &part, &of, &end) == 3 && part > 1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The GGUF files of a folder, in order. */
static infer_status list_gguf(char **names, int *n, const char *folder, arena *mem,
                              infer_error *err)
{
    DIR *d = opendir(folder);
    if (!d) return error_set(err, INFER_IO, "%s: %s", folder, strerror(errno));
    infer_status s = INFER_OK;
    *n = 0;
    for (struct dirent *e; (e = readdir(d)) && *n < MAX_NAMES;) {
        if (!ends_with(e->d_name, ".gguf") || is_later_part(e->d_name)) continue;
        names[*n] = arena_strndup(mem, e->d_name, strlen(e->d_name));
        if (!names[(*n)++]) {
            s = error_set(err, INFER_NOMEM, "%s: out of memory", folder);
            break;
        }
    }
    closedir(d);
    if (s == INFER_OK) qsort(names, (size_t)*n, sizeof(*names), by_name);
    return s;
}

static infer_status choose(char **found, char **names, int n, const char *folder, bool has_config,
                           infer_error *err)
{
    if (n == 0)
        return error_set(err, INFER_NOT_FOUND,
                         "%s: the folder has %s, expected config.json with "
                         "safetensors, or a GGUF file",
                         folder,
                         has_config ? "config.json without model.safetensors or its index"
                                    : "no config.json");
    if (n > 1) {
        char list[512];
        size_t at = 0;
        for (int i = 0; i < n && at < sizeof(list); i++)
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i ? ", " : "", names[i]);
        return error_set(err, INFER_ARGUMENT, "%s: the folder has several GGUF files, name one: %s",
                         folder, list);
    }
    size_t size = strlen(folder) + strlen(names[0]) + 2;
    *found = mem_alloc(size, 1);
    if (!*found) return error_set(err, INFER_NOMEM, "%s: out of memory", folder);
    snprintf(*found, size, "%s/%s", folder, names[0]);
    return INFER_OK;
}

infer_status model_locate(char **found, bool *is_folder, const char *path, infer_error *err)
{
    *found = NULL;
    *is_folder = false;
    arena mem = { 0 };
    infer_status s;
    if (!dir_exists(path)) {
        if (!file_exists(path) && access(path, F_OK) == 0)
            return error_set(err, INFER_ARGUMENT, "%s: neither a regular file nor a folder", path);
        if (!file_exists(path))
            return error_set(err, INFER_NOT_FOUND, "%s: no such file or folder", path);
        *found = mem_strdup(path);
        return *found ? error_clear(err) : error_set(err, INFER_NOMEM, "%s: out of memory", path);
    }
    char *config = arena_printf(&mem, "%s/config.json", path);
    char *single = arena_printf(&mem, "%s/model.safetensors", path);
    char *index = arena_printf(&mem, "%s/model.safetensors.index.json", path);
    char *vindex = arena_printf(&mem, "%s/index.json", path);
    char **names = arena_alloc(&mem, MAX_NAMES, sizeof(*names));
    int n = 0;
    if (!config || !single || !index || !vindex || !names) {
        s = error_set(err, INFER_NOMEM, "%s: out of memory", path);
    } else if (file_exists(vindex) ||
               (file_exists(config) && (file_exists(single) || file_exists(index)))) {
        *is_folder = true;
        *found = mem_strdup(path);
        s = *found ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", path);
    } else if ((s = list_gguf(names, &n, path, &mem, err)) == INFER_OK) {
        s = choose(found, names, n, path, file_exists(config), err);
    }
    arena_free(&mem);
    return s == INFER_OK ? error_clear(err) : s;
}
