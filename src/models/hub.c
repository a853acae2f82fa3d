/* hub.c: names, listings and the choice of files: words of a user and of a stranger, no network. */
#include "models/hub.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"

/* ---- names ----------------------------------------------------------------------------------- */

static bool word_ok(const char *s, size_t n)
{
    if (n == 0 || n > 96 || *s == '.' || *s == '-') return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i])) return false;
        if (i && s[i] == '.' && s[i - 1] == '.') return false;
    }
    return true;
}

static bool revision_ok(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > 200 || strstr(s, "..")) return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("._-/+", *s)) return false;
    return true;
}

bool hub_path_ok(const char *path)
{
    size_t n = strlen(path);
    if (n == 0 || n > 1000 || !utf8_valid(path, n)) return false;
    for (const char *s = path; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127 || *s == '\\') return false;
    for (const char *s = path;; s++) {
        size_t k = strcspn(s, "/");
        if (k == 0 || k > 200 || (k == 1 && *s == '.') || (k == 2 && !memcmp(s, "..", 2)))
            return false;
        s += k;
        if (!*s) return true;
    }
}

infer_status hub_name_parse(hub_name *out, const char *text, arena *mem, infer_error *err)
{
    const char *s = strncmp(text, "hf://", 5) ? text : text + 5;
    *out = (hub_name){ 0 };
    const char *slash = strchr(s, '/');
    size_t owner = slash ? (size_t)(slash - s) : 0;
    size_t name = slash ? strcspn(slash + 1, "@:") : 0;
    if (!slash || !word_ok(s, owner) || !word_ok(slash + 1, name))
        return error_set(err, INFER_ARGUMENT, "%s: expected owner/name[@revision][:file]", text);
    const char *rest = slash + 1 + name;
    size_t revision = *rest == '@' ? strcspn(rest + 1, ":") : 0;
    const char *file = *rest == '@' ? rest + 1 + revision : rest;
    out->repo = arena_strndup(mem, s, owner + 1 + name);
    if (*rest == '@') out->revision = arena_strndup(mem, rest + 1, revision);
    if (*file == ':') out->file = arena_strndup(mem, file + 1, strlen(file + 1));
    if (!out->repo || (*rest == '@' && !out->revision) || (*file == ':' && !out->file))
        return error_set(err, INFER_NOMEM, "%s: out of memory", text);
    if (out->revision && !revision_ok(out->revision))
        return error_set(err, INFER_ARGUMENT, "%s: '%s' cannot be a revision", text, out->revision);
    if (out->file && !hub_path_ok(out->file))
        return error_set(err, INFER_ARGUMENT, "%s: '%s' cannot be a file's name", text, out->file);
    return error_clear(err);
}

bool infer_hub_is_name(const char *name)
{
    arena mem = { 0 };
    hub_name n;
    bool is = hub_name_parse(&n, name, &mem, NULL) == INFER_OK;
    arena_free(&mem);
    return is;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* ---- listings -------------------------------------------------------------------------------- */

static bool copy_hex(char *out, const json_t *value, size_t n)
{
    const char *s = json_string_value(value);
    if (!s || strlen(s) != n || strspn(s, "0123456789abcdef") != n) return false;
    memcpy(out, s, n + 1);
    return true;
}

static infer_status read_entry(hub_entry *e, const json_t *item, arena *mem, infer_error *err)
{
    const json_t *lfs = json_object_get(item, "lfs");
    const json_t *size = json_object_get(json_is_object(lfs) ? lfs : item, "size");
    const char *path = json_string_value(json_object_get(item, "path"));
    if (!path) return error_set(err, INFER_FORMAT, "listing: a file without a path");
    if (!hub_path_ok(path))
        return error_set(err, INFER_FORMAT, "listing: '%s' is not allowed as a file's name", path);
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        (uint64_t)json_integer_value(size) > HUB_MAX_FILE)
        return error_set(err, INFER_FORMAT, "listing: %s: expected a size of 0 to %llu bytes", path,
                         (unsigned long long)HUB_MAX_FILE);
    *e = (hub_entry){ .path = arena_strndup(mem, path, strlen(path)),
                      .size = (uint64_t)json_integer_value(size) };
    if (!e->path) return error_set(err, INFER_NOMEM, "listing: out of memory");
    if (json_is_object(lfs) ? !copy_hex(e->sha256, json_object_get(lfs, "oid"), 64)
                            : !copy_hex(e->sha1, json_object_get(item, "oid"), 40))
        return error_set(err, INFER_FORMAT, "listing: %s: expected a checksum of %d hex digits",
                         path, json_is_object(lfs) ? 64 : 40);
    return INFER_OK;
}

infer_status hub_tree_add(hub_tree *t, const char *text, size_t size, arena *mem, infer_error *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    if (!root) return error_set(err, INFER_FORMAT, "listing: line %d: %s", why.line, why.text);
    infer_status s = INFER_OK;
    if (!json_is_array(root)) s = error_set(err, INFER_FORMAT, "listing: expected an array");
    size_t i;
    json_t *item;
    json_array_foreach(root, i, item)
    {
        const char *type = json_string_value(json_object_get(item, "type"));
        if (!type) s = error_set(err, INFER_FORMAT, "listing: an entry without a type");
        if (s) break;
        // A file of the store's own suffixes would be taken for another one's unfinished bytes.
        const char *path = json_string_value(json_object_get(item, "path"));
        bool ours = path && (ends_with(path, ".part") || ends_with(path, ".part.state"));
        if (strcmp(type, "file") || ours) continue;
        if (t->n == HUB_MAX_ENTRIES)
            s = error_set(err, INFER_LIMIT, "listing: more than %d files", HUB_MAX_ENTRIES);
        else
            s = mem_reserve((void **)&t->v, &t->cap, t->n + 1, sizeof *t->v, err);
        if (!s) s = read_entry(&t->v[t->n], item, mem, err);
        if (s) break;
        t->n++;
    }
    json_decref(root);
    return s ? s : error_clear(err);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const hub_entry *)a)->path, ((const hub_entry *)b)->path);
}

infer_status hub_tree_end(hub_tree *t, infer_error *err)
{
    if (t->n) qsort(t->v, t->n, sizeof *t->v, by_path);
    for (size_t i = 1; i < t->n; i++)
        if (!strcmp(t->v[i - 1].path, t->v[i].path))
            return error_set(err, INFER_FORMAT, "listing: two files are named '%s'", t->v[i].path);
    return error_clear(err);
}

void hub_tree_free(hub_tree *t)
{
    mem_free(t->v);
    *t = (hub_tree){ 0 };
}

/* ---- choice ---------------------------------------------------------------------------------- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int hub_split_part(const char *path, int *n_parts)
{
    size_t n = strlen(path);
    *n_parts = 0;
    // "-00001-of-00003.gguf"
    const char *s = n > 20 ? path + n - 20 : "";
    if (*s != '-' || strncmp(s + 6, "-of-", 4) || strcmp(s + 15, ".gguf")) return 0;
    int part = 0, of = 0;
    for (int i = 0; i < 5; i++) {
        if (!isdigit((unsigned char)s[1 + i]) || !isdigit((unsigned char)s[10 + i])) return 0;
        part = part * 10 + s[1 + i] - '0';
        of = of * 10 + s[10 + i] - '0';
    }
    if (part < 1 || part > of) return 0;
    *n_parts = of;
    return part;
}

// Letters and digits go on over '_', so that Q4_K is not a part of Q4_K_M.
static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

int hub_file_fits(const char *path, const char *wanted)
{
    const char *name = last_part(path);
    size_t n = strlen(wanted);
    if (!strcmp(path, wanted)) return 3;
    if (!strcmp(name, wanted)) return 2;
    for (const char *s = path; *s && n; s++)
        if (!strncasecmp(s, wanted, n) && (s == path || !is_word(s[-1])) && !is_word(s[n]))
            return 1;
    return 0;
}

// A GGUF file that begins a model: no later part of a set, no projector of another model.
static bool is_model(const char *path)
{
    int n_parts;
    return ends_with(path, ".gguf") && hub_split_part(path, &n_parts) <= 1 &&
           strncasecmp(last_part(path), "mmproj", 6);
}

static const hub_entry *find_entry(const hub_tree *t, const char *path)
{
    hub_entry key = { .path = path };
    return t->n ? bsearch(&key, t->v, t->n, sizeof *t->v, by_path) : NULL;
}

static uint64_t set_size(const hub_tree *t, const hub_entry *first)
{
    int n_parts;
    uint64_t sum = first->size;
    if (!hub_split_part(first->path, &n_parts)) return sum;
    size_t stem = strlen(first->path) - 20;
    for (size_t i = 0; i < t->n; i++) {
        int of, part = hub_split_part(t->v[i].path, &of);
        if (part > 1 && of == n_parts && strlen(t->v[i].path) == stem + 20 &&
            !strncmp(t->v[i].path, first->path, stem))
            sum += t->v[i].size;
    }
    return sum;
}

// What there is, with sizes, for the messages; wanted NULL or the word that several have.
static void list_models(char *out, size_t size, const hub_tree *t, const char *wanted)
{
    size_t at = 0, more = 0;
    *out = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (!is_model(t->v[i].path) || (wanted && !hub_file_fits(t->v[i].path, wanted))) continue;
        char item[1100];
        double bytes = (double)set_size(t, &t->v[i]);
        int n = snprintf(item, sizeof item, "%s%s (%.*f %s)", at ? ", " : "", t->v[i].path,
                         bytes < 1e9 ? 0 : 1, bytes / (bytes < 1e9 ? 1e6 : 1e9),
                         bytes < 1e9 ? "MB" : "GB");
        if (at + (size_t)n + 20 < size)
            memcpy(out + at, item, (size_t)n + 1), at += (size_t)n;
        else
            more++;
    }
    if (more) snprintf(out + at, size - at, " and %zu more", more);
}

// All parts of the set that one of its files belongs to, or the file alone.
static infer_status add_set(hub_choice *c, const hub_tree *t, const hub_entry *file, arena *mem,
                            infer_error *err)
{
    int n_parts;
    if (!hub_split_part(file->path, &n_parts)) {
        c->v[c->n++] = file;
        c->file = file->path;
        return INFER_OK;
    }
    for (int i = 1; i <= n_parts; i++) {
        char *path = arena_printf(mem, "%.*s-%05d-of-%05d.gguf", (int)strlen(file->path) - 20,
                                  file->path, i, n_parts);
        if (!path) return error_set(err, INFER_NOMEM, "%s: out of memory", file->path);
        const hub_entry *e = find_entry(t, path);
        if (!e)
            return error_set(err, INFER_NOT_FOUND, "%s: part %d of %d is missing in the repository",
                             file->path, i, n_parts);
        c->v[c->n++] = e;
    }
    c->file = c->v[0]->path;
    return INFER_OK;
}

static bool is_weights(const char *path, bool has_index)
{
    if (!has_index) return !strcmp(path, "model.safetensors");
    return !strcmp(path, "model.safetensors.index.json") ||
           (!strncmp(path, "model-", 6) && !strchr(path, '/') && ends_with(path, ".safetensors"));
}

static bool is_companion(const char *path)
{
    static const char *const names[] = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "vocab.txt",
        "chat_template.json",
        "chat_template.jinja",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(path, names[i])) return true;
    return false;
}

static infer_status choose_by_word(hub_choice *c, const hub_tree *t, const hub_name *name,
                                   arena *mem, infer_error *err)
{
    char list[700];
    const hub_entry *found = find_entry(t, name->file);
    int best = found ? 3 : 0, n = found ? 1 : 0;
    for (size_t i = 0; i < t->n && best < 3; i++) {
        int fit = hub_file_fits(t->v[i].path, name->file);
        if (fit == 1 && !is_model(t->v[i].path)) fit = 0;
        if (fit > best) best = fit, n = 0;
        if (fit && fit == best) found = &t->v[i], n++;
    }
    if (n == 1) return add_set(c, t, found, mem, err);
    list_models(list, sizeof list, t, n ? name->file : NULL);
    if (n)
        return error_set(err, INFER_ARGUMENT, "%s: several files fit '%s', name one: %s",
                         name->repo, name->file, list);
    return error_set(err, INFER_NOT_FOUND, "%s: no file fits '%s': there %s %s", name->repo,
                     name->file, *list ? "are" : "is", *list ? list : "no GGUF file");
}

infer_status hub_choose(hub_choice *out, const hub_tree *t, const hub_name *name, arena *mem,
                        infer_error *err)
{
    *out = (hub_choice){ .v = arena_alloc(mem, t->n + 1, sizeof *out->v) };
    if (!out->v) return error_set(err, INFER_NOMEM, "%s: out of memory", name->repo);
    infer_status s;
    if (name->file) {
        s = choose_by_word(out, t, name, mem, err);
        return s ? s : error_clear(err);
    }
    bool has_index = find_entry(t, "model.safetensors.index.json");
    bool has_weights = has_index || find_entry(t, "model.safetensors");
    if (find_entry(t, "config.json") && has_weights) {
        for (size_t i = 0; i < t->n; i++)
            if (is_weights(t->v[i].path, has_index) || is_companion(t->v[i].path))
                out->v[out->n++] = &t->v[i];
        return error_clear(err);
    }
    const hub_entry *only = NULL;
    int n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (is_model(t->v[i].path)) only = &t->v[i], n++;
    if (n == 1) {
        s = add_set(out, t, only, mem, err);
        return s ? s : error_clear(err);
    }
    char list[700];
    list_models(list, sizeof list, t, NULL);
    if (n)
        return error_set(err, INFER_ARGUMENT,
                         "%s: has several models, name one as %s:FILE or :Q4_K_M: %s", name->repo,
                         name->repo, list);
    return error_set(err, INFER_NOT_FOUND,
                     "%s: has no GGUF file and no config.json with model.safetensors (%zu files)",
                     name->repo, t->n);
}
