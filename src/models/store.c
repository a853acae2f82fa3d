/*
 * store.c: what is in the store and in a Hugging Face cache: finding, listing, removing.
 *
 * The cache is only read: models--OWNER--NAME/refs/REVISION holds a commit, snapshots/COMMIT the
 * files as links. A snapshot is looked at as if it were a hub's listing, so that the same rules
 * choose.
 */
#include "models/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"

#define MAX_RECORDS ((size_t)16 << 20) // bytes of pulls.json
#define MAX_INDEX ((size_t)64 << 20)

static infer_status no_memory(infer_error *err, const char *what)
{
    return error_set(err, INFER_NOMEM, "%s: out of memory", what);
}

/* ---- pulls.json ------------------------------------------------------------------------------ */

static const char *text_of(const json_t *record, const char *key)
{
    return json_string_value(json_object_get(record, key));
}

static bool commit_ok(const char *s)
{
    return s && strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40;
}

static bool record_ok(const json_t *record)
{
    size_t i;
    const json_t *f, *file = json_object_get(record, "file");
    if (!commit_ok(text_of(record, "commit")) || !text_of(record, "revision") ||
        !json_is_integer(json_object_get(record, "when")) ||
        !json_is_boolean(json_object_get(record, "complete")) ||
        !(json_is_null(file) || (json_is_string(file) && hub_path_ok(json_string_value(file)))))
        return false;
    const json_t *files = json_object_get(record, "files");
    json_array_foreach(files, i,
                       f) if (!text_of(f, "path") || !hub_path_ok(text_of(f, "path")) ||
                              json_integer_value(json_object_get(f, "size")) < 0) return false;
    return json_is_array(files);
}

infer_status store_read(json_t **pulls, const char *folder, infer_error *err)
{
    char path[2048], *text;
    size_t n;
    *pulls = NULL;
    snprintf(path, sizeof path, "%s/pulls.json", folder);
    json_t *list = json_array(), *root = NULL;
    if (!list) return no_memory(err, path);
    if (file_exists(path)) {
        infer_status s = file_read(path, MAX_RECORDS, &text, &n, err);
        if (s) {
            json_decref(list);
            return s;
        }
        root = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
        mem_free(text);
    }
    size_t i;
    json_t *record;
    json_array_foreach(json_object_get(root, "pulls"), i, record) if (record_ok(record))
        json_array_append(list, record);
    json_decref(root);
    *pulls = list;
    return error_clear(err);
}

infer_status store_write(const json_t *pulls, const char *folder, infer_error *err)
{
    char path[2048], temp[2048];
    snprintf(path, sizeof path, "%s/pulls.json", folder);
    snprintf(temp, sizeof temp, "%s/.pulls.json.new", folder);
    json_t *root = json_pack("{s:O}", "pulls", pulls);
    FILE *f = root ? fopen(temp, "we") : NULL;
    bool ok = f && json_dumpf(root, f, JSON_INDENT(1)) == 0 && fputc('\n', f) != EOF &&
              fflush(f) == 0 && fsync(fileno(f)) == 0;
    int why = errno;
    if (f && fclose(f)) ok = false;
    json_decref(root);
    if (ok && rename(temp, path) == 0) return INFER_OK;
    if (ok) why = errno;
    unlink(temp);
    return error_set(err, INFER_IO, "%s: %s", path, strerror(why));
}

json_t *store_record(const json_t *pulls, const char *file, const char *commit)
{
    size_t i;
    json_t *record;
    json_array_foreach(pulls, i, record)
    {
        const char *f = text_of(record, "file");
        if (!strcmp(text_of(record, "commit"), commit) && !f == !file && (!f || !strcmp(f, file)))
            return record;
    }
    return NULL;
}

/* ---- folders and the lock -------------------------------------------------------------------- */

infer_status store_folders(const char *path, infer_error *err)
{
    char part[2048];
    if (strlen(path) >= sizeof part)
        return error_set(err, INFER_LIMIT, "%.100s…: the path is too long", path);
    strcpy(part, path);
    for (char *s = strchr(part + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            return error_set(err, INFER_IO, "%s: %s", part, strerror(errno));
        *s = '/';
    }
    return INFER_OK;
}

infer_status store_lock(int *fd, const char *folder, infer_error *err)
{
    char path[2048];
    struct stat a, b;
    *fd = -1;
    snprintf(path, sizeof path, "%s/.lock", folder);
    infer_status s = store_folders(path, err);
    if (s) return s;
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (lock < 0) return error_set(err, INFER_IO, "%s: %s", path, strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB)) {
        int why = errno;
        close(lock);
        if (why == EWOULDBLOCK || why == EINTR) return INFER_OK;
        return error_set(err, INFER_IO, "%s: %s", path, strerror(why));
    }
    // A removal may have deleted the file between open and flock: then this lock guards nothing.
    if (fstat(lock, &a) || stat(path, &b) || a.st_ino != b.st_ino || a.st_dev != b.st_dev) {
        close(lock);
        return INFER_OK;
    }
    *fd = lock;
    return INFER_OK;
}

/* ---- finding in the store -------------------------------------------------------------------- */

static bool revision_fits(const json_t *record, const char *revision)
{
    if (!revision || !strcmp(revision, text_of(record, "revision"))) return true;
    size_t n = strlen(revision);
    return n >= 7 && !strncmp(text_of(record, "commit"), revision, n);
}

static const char *record_path(const json_t *record, const char *folder, arena *mem)
{
    const char *file = text_of(record, "file");
    return arena_printf(mem, "%s/%s%s%s", folder, text_of(record, "commit"), file ? "/" : "",
                        file ? file : "");
}

// How well a record fits a name: 0 not at all. A folder wins over files where none is named.
static int record_fits(const json_t *record, const hub_name *name)
{
    const char *file = text_of(record, "file");
    if (!revision_fits(record, name->revision)) return 0;
    if (!name->file) return file ? 1 : 2;
    int fit = file ? hub_file_fits(file, name->file) : 0, of;
    if (file && !fit && hub_split_part(file, &of)) { // by a later part of its set
        size_t i;
        const json_t *f;
        json_array_foreach(json_object_get(record, "files"), i,
                           f) if (hub_file_fits(text_of(f, "path"), name->file) > 1) fit = 2;
    }
    return fit;
}

static bool same_text(const char *a, const char *b) { return !a == !b && (!a || !strcmp(a, b)); }

// The newest complete record that fits best; several files that fit equally are an error.
static infer_status best_record(const json_t **out, const json_t *pulls, const hub_name *name,
                                const char *folder, arena *mem, infer_error *err)
{
    size_t i;
    const json_t *record;
    int best = 0;
    char list[700] = "";
    *out = NULL;
    json_array_foreach(pulls, i, record)
    {
        int fit = record_fits(record, name);
        struct stat st;
        const char *path = record_path(record, folder, mem);
        if (!path) return no_memory(err, name->repo);
        if (!json_is_true(json_object_get(record, "complete")) || !fit || fit < best ||
            stat(path, &st))
            continue;
        const char *file = text_of(record, "file");
        bool other = fit == best && !same_text(file, text_of(*out, "file"));
        if (fit > best) *list = 0;
        if (other) {
            size_t n = strlen(list);
            snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", file);
        }
        bool newer = fit > best || json_integer_value(json_object_get(record, "when")) >=
                                       json_integer_value(json_object_get(*out, "when"));
        if (newer && !other) *out = record;
        best = fit;
    }
    if (!*list) return INFER_OK;
    return error_set(err, INFER_ARGUMENT,
                     "%s: several models of it are here, name one as %s:FILE: "
                     "%s, %s",
                     name->repo, name->repo, text_of(*out, "file"), list);
}

static infer_status find_in_store(const char **path, const hub_name *name, const char *store,
                                  arena *mem, infer_error *err)
{
    json_t *pulls;
    const json_t *record;
    char *folder = arena_printf(mem, "%s/%s", store, name->repo);
    if (!folder) return no_memory(err, name->repo);
    if (!dir_exists(folder)) return INFER_OK;
    infer_status s = store_read(&pulls, folder, err);
    if (s) return s;
    s = best_record(&record, pulls, name, folder, mem, err);
    if (!s && record && !(*path = record_path(record, folder, mem))) s = no_memory(err, name->repo);
    json_decref(pulls);
    return s;
}

/* ---- the Hugging Face cache ------------------------------------------------------------------ */

// Adds the files below folder, whose paths begin with prefix; links count as what they lead to.
static infer_status scan(hub_tree *t, const char *folder, const char *prefix, int depth, arena *mem,
                         infer_error *err)
{
    DIR *d = opendir(folder);
    infer_status s = INFER_OK;
    if (!d) return INFER_OK;
    for (struct dirent *e; !s && (e = readdir(d));) {
        struct stat st;
        if (e->d_name[0] == '.') continue;
        char *path = arena_printf(mem, "%s/%s", folder, e->d_name);
        char *name = arena_printf(mem, "%s%s", prefix, e->d_name);
        if (!path || !name) {
            s = no_memory(err, folder);
        } else if (!hub_path_ok(name) || stat(path, &st)) {
            continue;
        } else if (S_ISDIR(st.st_mode) && depth > 0) {
            char *deeper = arena_printf(mem, "%s/", name);
            s = deeper ? scan(t, path, deeper, depth - 1, mem, err) : no_memory(err, folder);
        } else if (S_ISREG(st.st_mode) && t->n < HUB_MAX_ENTRIES) {
            s = mem_reserve((void **)&t->v, &t->cap, t->n + 1, sizeof *t->v, err);
            if (!s) t->v[t->n++] = (hub_entry){ .path = name, .size = (uint64_t)st.st_size };
        }
    }
    closedir(d);
    return s;
}

// The only folder in `folder`, NULL where there is none or several.
static const char *only_folder(const char *folder, arena *mem)
{
    DIR *d = opendir(folder);
    const char *only = NULL;
    int n = 0;
    if (!d) return NULL;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') only = arena_strndup(mem, e->d_name, strlen(e->d_name)), n++;
    closedir(d);
    return n == 1 ? only : NULL;
}

// The snapshot's folder that a revision leads to, or NULL.
static const char *snapshot_of(const hub_name *name, const char *cache, arena *mem)
{
    const char *slash = strchr(name->repo, '/');
    const char *revision = name->revision ? name->revision : "main", *commit = NULL;
    char *folder = arena_printf(mem, "%s/models--%.*s--%s", cache, (int)(slash - name->repo),
                                name->repo, slash + 1);
    char *ref = folder ? arena_printf(mem, "%s/refs/%s", folder, revision) : NULL, *text;
    char *snapshots = folder ? arena_printf(mem, "%s/snapshots", folder) : NULL;
    size_t n;
    if (!ref || !snapshots || !dir_exists(snapshots)) return NULL;
    if (file_exists(ref) && !file_read(ref, 200, &text, &n, NULL)) {
        text[strcspn(text, " \r\n")] = 0;
        if (hub_path_ok(text) && !strchr(text, '/'))
            commit = arena_strndup(mem, text, strlen(text));
        mem_free(text);
    } else if (name->revision) {
        commit = strchr(revision, '/') ? NULL : revision; // a commit itself
    } else {
        commit = only_folder(snapshots, mem);
    }
    char *path = commit ? arena_printf(mem, "%s/%s", snapshots, commit) : NULL;
    return path && dir_exists(path) ? path : NULL;
}

// Whether all files that the index names are there: a cache may hold a part of a model.
static bool shards_there(const char *snapshot, arena *mem)
{
    char *path = arena_printf(mem, "%s/model.safetensors.index.json", snapshot), *text;
    size_t n;
    if (!path || !file_exists(path)) return path;
    if (file_read(path, MAX_INDEX, &text, &n, NULL)) return false;
    json_t *root = json_loadb(text, n, 0, NULL), *map = json_object_get(root, "weight_map");
    const char *key, *last = "";
    const json_t *value;
    bool all = json_is_object(map);
    mem_free(text);
    json_object_foreach(map, key, value)
    {
        const char *file = json_string_value(value);
        if (!file || !all || !strcmp(file, last)) continue;
        arena_position here = arena_mark(mem);
        char *shard = arena_printf(mem, "%s/%s", snapshot, file);
        all = shard && file_exists(shard);
        arena_reset(mem, here);
        last = file;
    }
    json_decref(root);
    return all;
}

static infer_status find_in_cache(const char **path, const hub_name *name, const char *cache,
                                  arena *mem, infer_error *err)
{
    hub_tree t = { 0 };
    hub_choice c;
    const char *snapshot = snapshot_of(name, cache, mem);
    if (!snapshot) return INFER_OK;
    infer_status s = scan(&t, snapshot, "", 3, mem, err);
    if (!s) s = hub_tree_end(&t, err);
    if (!s) s = hub_choose(&c, &t, name, mem, err);
    if (!s && c.file)
        *path = arena_printf(mem, "%s/%s", snapshot, c.file);
    else if (!s && shards_there(snapshot, mem))
        *path = snapshot;
    hub_tree_free(&t);
    return s == INFER_NOT_FOUND ? INFER_OK : s;
}

/* ---- listing --------------------------------------------------------------------------------- */

struct infer_store {
    arena mem;
    infer_store_entry *v;
    size_t n, cap;
};

static infer_status add_record(infer_store *l, const json_t *record, const json_t *pulls,
                               const char *repo, const char *folder, infer_error *err)
{
    size_t i;
    const json_t *f, *other;
    const char *file = text_of(record, "file"), *commit = text_of(record, "commit");
    json_int_t when = json_integer_value(json_object_get(record, "when"));
    bool newest = true, passed = false; // of two in one second the later in the list is newer
    json_array_foreach(pulls, i, other)
    {
        if (other == record)
            passed = true;
        else if (same_text(file, text_of(other, "file")) &&
                 json_integer_value(json_object_get(other, "when")) >= when + !passed)
            newest = false;
    }
    infer_status s = mem_reserve((void **)&l->v, &l->cap, l->n + 1, sizeof *l->v, err);
    if (s) return s;
    infer_store_entry e = { .when = when,
                            .complete = json_is_true(json_object_get(record, "complete")) };
    json_array_foreach(json_object_get(record, "files"), i, f) e.bytes +=
        (uint64_t)json_integer_value(json_object_get(f, "size"));
    e.name = arena_printf(&l->mem, "%s%s%.12s%s%s", repo, newest ? "" : "@", newest ? "" : commit,
                          file ? ":" : "", file ? file : "");
    e.path = record_path(record, folder, &l->mem);
    const char *revision = text_of(record, "revision");
    e.revision = arena_strndup(&l->mem, revision, strlen(revision));
    e.commit = arena_strndup(&l->mem, commit, strlen(commit));
    if (!e.name || !e.path || !e.revision || !e.commit) return no_memory(err, repo);
    l->v[l->n++] = e;
    return INFER_OK;
}

static infer_status list_repo(infer_store *l, const char *repo, const char *folder,
                              infer_error *err)
{
    json_t *pulls, *record;
    size_t i;
    infer_status s = store_read(&pulls, folder, err);
    if (s) return s;
    json_array_foreach(pulls, i, record) if (!s) s =
        add_record(l, record, pulls, repo, folder, err);
    json_decref(pulls);
    return s;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const infer_store_entry *)a)->name, ((const infer_store_entry *)b)->name);
}

// Each name in a folder that is not hidden.
static infer_status list_level(infer_store *l, const char *folder, const char *owner,
                               infer_error *err)
{
    DIR *d = opendir(folder);
    infer_status s = INFER_OK;
    if (!d) {
        if (errno == ENOENT || errno == ENOTDIR) return INFER_OK;
        return error_set(err, INFER_IO, "%s: %s", folder, strerror(errno));
    }
    for (struct dirent *e; !s && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *path = arena_printf(&l->mem, "%s/%s", folder, e->d_name);
        char *repo = arena_printf(&l->mem, "%s/%s", owner ? owner : "", e->d_name);
        if (!path || !repo)
            s = no_memory(err, folder);
        else
            s = owner ? list_repo(l, repo, path, err) : list_level(l, path, repo + 1, err);
    }
    closedir(d);
    return s;
}

infer_status infer_store_open(infer_store **out, const infer_hub_options *o, infer_error *err)
{
    *out = NULL;
    if (!o || !o->store) return error_set(err, INFER_ARGUMENT, "no store is given");
    infer_store *l = mem_zero(1, sizeof *l);
    if (!l) return no_memory(err, o->store);
    infer_status s = list_level(l, o->store, NULL, err);
    if (s) {
        infer_store_close(l);
        return s;
    }
    if (l->n) qsort(l->v, l->n, sizeof *l->v, by_name);
    *out = l;
    return error_clear(err);
}

void infer_store_close(infer_store *l)
{
    if (!l) return;
    mem_free(l->v);
    arena_free(&l->mem);
    mem_free(l);
}

int infer_store_count(const infer_store *l) { return (int)l->n; }
infer_store_entry infer_store_get(const infer_store *l, int i) { return l->v[i]; }

/* ---- finding --------------------------------------------------------------------------------- */

// A file's name alone, with or without .gguf, that one model of the store has.
static infer_status find_bare(const char **path, const char *name, const infer_hub_options *o,
                              arena *mem, infer_error *err)
{
    infer_store *l;
    size_t n = strlen(name);
    infer_status s = infer_store_open(&l, o, err);
    if (s) return s;
    const char *first = NULL;
    for (size_t i = 0; i < l->n && !s; i++) {
        const infer_store_entry *e = &l->v[i];
        const char *colon = strchr(e->name, ':'), *last = colon ? strrchr(colon, '/') : NULL;
        last = last ? last + 1 : colon ? colon + 1 : "";
        bool fits = !strncmp(last, name, n) && (!last[n] || !strcmp(last + n, ".gguf"));
        if (!e->complete || !n || !fits || !file_exists(e->path) || strchr(e->name, '@')) continue;
        if (first)
            s = error_set(err, INFER_ARGUMENT,
                          "%s: several models have a file of this name: %s, %s", name, first,
                          e->name);
        first = e->name;
        *path = arena_strndup(mem, e->path, strlen(e->path));
        if (!*path) s = no_memory(err, name);
    }
    infer_store_close(l);
    return s;
}

infer_status infer_store_find(char **path, const char *name, const infer_hub_options *o,
                              infer_error *err)
{
    arena mem = { 0 };
    hub_name n;
    const char *found = NULL;
    infer_status s = INFER_OK;
    *path = NULL;
    if (!o) return error_set(err, INFER_ARGUMENT, "no store is given");
    if (!infer_hub_is_name(name)) {
        if (o->store && !strchr(name, '/')) s = find_bare(&found, name, o, &mem, err);
    } else {
        s = hub_name_parse(&n, name, &mem, err);
        if (!s && o->store) s = find_in_store(&found, &n, o->store, &mem, err);
        if (!s && !found && o->cache) s = find_in_cache(&found, &n, o->cache, &mem, err);
    }
    if (!s && found && !(*path = mem_strdup(found))) s = no_memory(err, name);
    arena_free(&mem);
    if (!s && !*path) s = error_set(err, INFER_NOT_FOUND, "%s: not in the store", name);
    return s ? s : error_clear(err);
}

/* ---- removing -------------------------------------------------------------------------------- */

static uint64_t unlink_file(const char *path)
{
    struct stat st;
    if (lstat(path, &st) || unlink(path)) return 0;
    return S_ISREG(st.st_mode) && st.st_nlink == 1 ? (uint64_t)st.st_blocks * 512 : 0;
}

// Deletes a folder and all in it, without following links; adds to *freed.
static infer_status remove_folder(const char *folder, uint64_t *freed, infer_error *err)
{
    DIR *d = opendir(folder);
    infer_status s = INFER_OK;
    if (!d) return error_set(err, INFER_IO, "%s: %s", folder, strerror(errno));
    for (struct dirent *e; !s && (e = readdir(d));) {
        char path[4096];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= sizeof path)
            s = error_set(err, INFER_LIMIT, "%.100s…: the path is too long", folder);
        else if (lstat(path, &st))
            s = error_set(err, INFER_IO, "%s: %s", path, strerror(errno));
        else if (S_ISDIR(st.st_mode))
            s = remove_folder(path, freed, err);
        else
            *freed += unlink_file(path);
    }
    closedir(d);
    if (!s && rmdir(folder)) s = error_set(err, INFER_IO, "%s: %s", folder, strerror(errno));
    return s;
}

static bool used_elsewhere(const json_t *pulls, const json_t *record, const char *path)
{
    size_t i, k;
    const json_t *other, *f;
    json_array_foreach(pulls, i, other)
    {
        if (other == record || strcmp(text_of(other, "commit"), text_of(record, "commit")))
            continue;
        json_array_foreach(json_object_get(other, "files"), k,
                           f) if (!strcmp(text_of(f, "path"), path)) return true;
    }
    return false;
}

static void remove_files(const json_t *record, const json_t *pulls, const char *folder,
                         uint64_t *freed)
{
    static const char *const ends[] = { "", ".part", ".part.state" };
    size_t i;
    const json_t *f;
    json_array_foreach(json_object_get(record, "files"), i, f)
    {
        char path[4096];
        if (used_elsewhere(pulls, record, text_of(f, "path"))) continue;
        for (int k = 0; k < 3; k++) {
            snprintf(path, sizeof path, "%s/%s/%s%s", folder, text_of(record, "commit"),
                     text_of(f, "path"), ends[k]);
            *freed += unlink_file(path);
        }
    }
}

// Removes the records that fit best, refusing where they are of several files.
static infer_status remove_records(json_t *pulls, const hub_name *name, const char *folder,
                                   uint64_t *freed, infer_error *err)
{
    int best = 0, n = 0;
    const char *file = NULL;
    for (size_t i = 0; i < json_array_size(pulls); i++) {
        const json_t *r = json_array_get(pulls, i);
        int fit = record_fits(r, name);
        if (!fit || fit < best) continue;
        if (fit == best && name->file && !same_text(file, text_of(r, "file")))
            return error_set(err, INFER_ARGUMENT, "%s: several models fit '%s', name one: %s, %s",
                             name->repo, name->file, file, text_of(r, "file"));
        best = fit;
        file = text_of(r, "file");
        n++;
    }
    if (!n)
        return error_set(err, INFER_NOT_FOUND, "%s%s%s%s%s: not in the store", name->repo,
                         name->revision ? "@" : "", name->revision ? name->revision : "",
                         name->file ? ":" : "", name->file ? name->file : "");
    for (size_t i = json_array_size(pulls); i-- > 0;) {
        const json_t *r = json_array_get(pulls, i);
        int fit = record_fits(r, name);
        if (name->file ? fit != best : !fit) continue;
        remove_files(r, pulls, folder, freed);
        json_array_remove(pulls, i);
    }
    return store_write(pulls, folder, err);
}

infer_status infer_store_remove(uint64_t *freed, const char *name, const infer_hub_options *o,
                                infer_error *err)
{
    arena mem = { 0 };
    hub_name n;
    json_t *pulls = NULL;
    uint64_t bytes = 0;
    int lock = -1;
    char *folder = NULL, *owner = NULL;
    if (!o || !o->store) return error_set(err, INFER_ARGUMENT, "no store is given");
    infer_status s = hub_name_parse(&n, name, &mem, err);
    if (!s) {
        folder = arena_printf(&mem, "%s/%s", o->store, n.repo);
        owner = arena_printf(&mem, "%s/%.*s", o->store, (int)strcspn(n.repo, "/"), n.repo);
        if (!folder || !owner) s = no_memory(err, name);
    }
    if (!s && !dir_exists(folder))
        s = error_set(err, INFER_NOT_FOUND, "%s: not in the store", name);
    if (!s) s = store_lock(&lock, folder, err);
    if (!s && lock < 0) s = error_set(err, INFER_IO, "%s: it is being pulled right now", name);
    if (!s) s = store_read(&pulls, folder, err);
    if (!s && (n.file || n.revision)) s = remove_records(pulls, &n, folder, &bytes, err);
    if (!s && ((!n.file && !n.revision) || json_array_size(pulls) == 0)) {
        s = remove_folder(folder, &bytes, err);
        if (!s) rmdir(owner); // stays where other models of the owner are in it
    }
    if (lock >= 0) close(lock);
    json_decref(pulls);
    arena_free(&mem);
    if (freed) *freed = bytes;
    return s ? s : error_clear(err);
}
