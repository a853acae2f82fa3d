/*
 * model.c: from what the user wrote to an open model: names in the local store, the default model,
 * the nearest name where there is none, and the options that all engines share.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "infer_vindex.h"

/* ---- names ----------------------------------------------------------------------------------- */

#define MAX_NAMES 512
typedef struct name_list {
    const char *v[MAX_NAMES];
    int n;
} name_list;

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

// Adds what may be a model in folder: GGUF files, and folders that hold a config.json.
static void list_models(name_list *l, arena *a, const char *folder, const char *prefix)
{
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) && l->n < MAX_NAMES;) {
        if (e->d_name[0] == '.') continue;
        char *config = arena_printf(a, "%s/%s/config.json", folder, e->d_name);
        if (!ends_with(e->d_name, ".gguf") && !(config && file_exists(config))) continue;
        char *name = arena_printf(a, "%s%s", prefix, e->d_name);
        if (name) l->v[l->n++] = name;
    }
    closedir(d);
}

static int not_found(arena *a, const char *name, const char *store)
{
    name_list l = { 0 };
    const char *slash = strrchr(name, '/');
    list_models(&l, a, store, "");
    if (slash) {
        char *prefix = arena_strndup(a, name, (size_t)(slash - name) + 1);
        if (prefix) list_models(&l, a, prefix, prefix);
    } else {
        list_models(&l, a, ".", "");
        l.v[l.n < MAX_NAMES ? l.n++ : MAX_NAMES - 1] = "default";
    }
    const char *near = cli_nearest(name, l.v, l.n);
    if (near)
        return cli_error(EXIT_FAILED,
                         "%s: no such file, folder or model in the store: the nearest "
                         "is %s",
                         name, near);
    if (infer_hub_is_name(name))
        return cli_error(EXIT_FAILED,
                         "%s: no such file or folder, and not in the store: 'infer pull' "
                         "fetches models of the hub",
                         name);
    return cli_error(EXIT_FAILED, "%s: no such file, folder or model in %s", name, store);
}

// A name without hf:// that is rather a path which is not there.
static bool looks_like_path(const char *name)
{
    char first[128];
    size_t n = strcspn(name, "/");
    if (!strncmp(name, "hf://", 5)) return false;
    if (!strchr(name, ':') && (ends_with(name, ".gguf") || ends_with(name, ".safetensors")))
        return true;
    snprintf(first, sizeof first, "%.*s", n < 127 ? (int)n : 127, name);
    return dir_exists(first);
}

// In the store or the cache, else from the hub where the name may be one of it. NULL with *code
// set, or with EXIT_DONE where the name says nothing to them.
static const char *find_on_hub(arena *a, const char *name, bool fetch, int *code)
{
    infer_hub_options o = cli_hub_options(a);
    infer_error err = { 0 };
    char *found = NULL;
    *code = EXIT_DONE;
    infer_status s = infer_store_find(&found, name, &o, &err);
    if (s == INFER_NOT_FOUND && fetch && infer_hub_is_name(name) && !looks_like_path(name)) {
        fprintf(stderr, "%s is not here: fetching it\n", name);
        *code = cli_pull(&found, name, o, false);
    } else if (s && s != INFER_NOT_FOUND) {
        *code = cli_fail(&err);
    } else if (s && !strncmp(name, "hf://", 5)) {
        *code = infer_hub_is_name(name)
                    ? cli_fail(&err)
                    : cli_error(EXIT_USAGE, "%s: expected hf://owner/name[@revision][:file]", name);
    }
    const char *path = found ? arena_strndup(a, found, strlen(found)) : NULL;
    if (found && !path) *code = cli_error(EXIT_FAILED, "%s: out of memory", name);
    infer_free(found);
    return path;
}

// The path that a name leads to, or NULL with *code set after a message.
static const char *find_model(arena *a, const char *name, bool fetch, int *code)
{
    const char *store = cli_home(a, "models"), *path;
    const cli_bundle *b = cli_bundle_find(name);
    struct stat st;
    if (!*name) {
        *code = cli_error(EXIT_USAGE, "MODEL is empty");
        return NULL;
    }
    if (b && (!strcmp(name, "default") || stat(name, &st))) {
        path = arena_printf(a, "%s/%s", store, b->file);
        if (path && file_exists(path)) return path;
        *code = cli_error(EXIT_FAILED, "%s: %s is missing: 'infer pull %s' fetches it", name, path,
                          name);
        return NULL;
    }
    if (!stat(name, &st)) return name;
    if (errno != ENOENT && errno != ENOTDIR) {
        *code = cli_error(EXIT_FAILED, "%s: %s", name, strerror(errno));
        return NULL;
    }
    path = arena_printf(a, "%s/%s", store, name);
    if (path && !strstr(name, "..") && !stat(path, &st)) return path;
    path = arena_printf(a, "%s/%s.gguf", store, name);
    if (path && !strstr(name, "..") && !stat(path, &st)) return path;
    path = find_on_hub(a, name, fetch, code);
    if (!path && !*code) *code = not_found(a, name, store);
    return path;
}

static int model_path(char **path, const char *name, bool fetch)
{
    arena a = { 0 };
    int code = EXIT_FAILED;
    const char *found = find_model(&a, name, fetch, &code);
    *path = found ? mem_strdup(found) : NULL;
    if (found && !*path) code = cli_error(EXIT_FAILED, "%s: out of memory", name);
    arena_free(&a);
    return *path ? EXIT_DONE : code;
}

int cli_model_path(char **path, const char *name) { return model_path(path, name, true); }
int cli_model_find(char **path, const char *name) { return model_path(path, name, false); }

// The index of --ffn, or the model itself where that is one and --patch wants it, and the patches.
static int open_index(const char *path, cli_engine *e)
{
    infer_error err = { 0 };
    if (e->facts && !e->ffn) {
        arena a = { 0 };
        const char *store = arena_printf(&a, "%s/knn_store.bin", path);
        e->needs_index |= store && file_exists(store);
        arena_free(&a);
    }
    if (!e->ffn && !e->patches.n && !e->walk_only && !e->walk_from && !e->sparse && !e->needs_index)
        return EXIT_DONE;
    infer_vindex_options o = { .n_threads = e->threads, .log = cli_log };
    if (infer_vindex_open(&e->index, e->ffn ? e->ffn : path, &o, &err)) return cli_fail(&err);
    if (e->patches.n && !(e->patch = infer_patch_new(e->index, &err))) return cli_fail(&err);
    for (int i = 0; i < e->patches.n; i++)
        if (infer_patch_load(e->patch, e->patches.v[i], &err)) return cli_fail(&err);
    return EXIT_DONE;
}

// The thresholds of the point with the fewest bytes whose KL is put up with.
static int read_sparse(cli_engine *e, int n_layers)
{
    infer_error err = { 0 };
    char *text;
    size_t n;
    double most = e->sparse_kl > 0 ? (double)e->sparse_kl : 0.01;
    if (!e->sparse) return EXIT_DONE;
    if (file_read(e->sparse, 16 << 20, &text, &n, &err)) return cli_fail(&err);
    json_t *json = json_loadb(text, n, 0, NULL), *points = json_object_get(json, "points");
    mem_free(text);
    const json_t *best = NULL;
    for (size_t i = 0; i < json_array_size(points); i++) {
        const json_t *p = json_array_get(points, i);
        bool fits = json_is_number(json_object_get(p, "kl")) &&
                    json_array_size(json_object_get(p, "thresholds")) == (size_t)n_layers &&
                    json_number_value(json_object_get(p, "kl")) <= most;
        if (fits && (!best || json_number_value(json_object_get(p, "bytes")) <
                                  json_number_value(json_object_get(best, "bytes"))))
            best = p;
    }
    int code = EXIT_DONE;
    if (!best)
        code = cli_error(EXIT_FAILED,
                         "%s: no thresholds for %d layers with a mean KL of at most %g: make them "
                         "with 'infer walk-calibrate'",
                         e->sparse, n_layers, most);
    else if (!(e->keep = mem_alloc((size_t)n_layers, sizeof *e->keep)))
        code = cli_error(EXIT_FAILED, "%s: out of memory", e->sparse);
    for (int l = 0; !code && l < n_layers; l++)
        e->keep[l] = (float)json_number_value(
            json_array_get(json_object_get(best, "thresholds"), (size_t)l));
    if (!code)
        fprintf(stderr,
                "infer: approximate: %.0f%% of the features, mean KL %.4f and top-1 %.1f%% when it "
                "was measured\n",
                100 * json_number_value(json_object_get(best, "kept")),
                json_number_value(json_object_get(best, "kl")),
                100 * json_number_value(json_object_get(best, "top1")));
    json_decref(json);
    return code;
}

int cli_model_open(infer_model **model, const char *name, cli_engine *e)
{
    char *path;
    int code = cli_model_path(&path, name);
    if (code) return code;
    code = open_index(path, e);
    infer_error err = { 0 };
    infer_model_options o = { .no_mmap = e->no_mmap,
                              .mlock = e->mlock,
                              .log = cli_log,
                              .ffn = e->index,
                              .patch = e->patch,
                              .walk_only = e->walk_only };
    if (!code && infer_model_open(model, path, &o, &err)) code = cli_fail(&err);
    if (!code && (code = read_sparse(e, infer_model_describe(*model).n_layers))) {
        infer_model_close(*model);
        *model = NULL;
    }
    if (code) cli_model_close(NULL, e);
    mem_free(path);
    return code;
}

void cli_model_close(infer_model *model, cli_engine *e)
{
    infer_model_close(model);
    infer_patch_free(e->patch);
    infer_vindex_close(e->index);
    mem_free(e->keep);
    e->keep = NULL;
    e->patch = NULL;
    e->index = NULL;
}

const infer_tokenizer *cli_tokenizer(const infer_model *model, const char *name)
{
    const infer_tokenizer *tok = infer_model_tokenizer(model);
    if (!tok) cli_error(EXIT_FAILED, "%s: has no vocabulary: text needs a tokenizer", name);
    return tok;
}

static bool adds_bos(const infer_tokenizer *tok)
{
    int32_t *ids, bos = infer_token_bos(tok);
    size_t n;
    if (bos < 0 || infer_tokenize(tok, &ids, &n, "", 0, NULL, NULL)) return false;
    bool adds = n && ids[0] == bos;
    infer_free(ids);
    return adds;
}

infer_status cli_prompt_ids(const infer_tokenizer *tok, int32_t **ids, size_t *n_ids,
                            const char *text, size_t n, infer_error *err)
{
    infer_status st = infer_tokenize(tok, ids, n_ids, text, n, NULL, err);
    int32_t bos = infer_token_bos(tok), *v = *ids;
    if (st || *n_ids < 2 || v[0] != bos || v[1] != bos || !adds_bos(tok)) return st;
    cli_warn("the prompt begins with %s, which is added anyway: one is kept",
             infer_token_text(tok, bos));
    memmove(v, v + 1, --*n_ids * sizeof *v);
    return INFER_OK;
}

/* ---- engines --------------------------------------------------------------------------------- */

static int check_level(const cli_command *c, const char *level, const char *from)
{
    char known[256] = "";
    bool here;
    for (int i = 0; infer_cpu_level(i, &here); i++) {
        const char *name = infer_cpu_level(i, &here);
        if (!strcmp(name, level) && here) return EXIT_DONE;
        if (!strcmp(name, level))
            return cli_error(EXIT_FAILED, "%s: this machine does not run %s, the best it has is %s",
                             from, level, infer_cpu_best());
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? "|" : "", name);
    }
    return cli_usage(c, "%s: expected %s, found '%s'", from, known, level);
}

static int check_backend(const cli_command *c, const char *backend)
{
    const char *summary, *name;
    char known[256] = "auto";
    bool here;
    for (int i = 0; (name = infer_backend_name(i, &here, &summary)); i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "|%s", name);
        if (strcmp(name, backend)) continue;
        if (here) return EXIT_DONE;
        return cli_error(EXIT_FAILED, "--backend: %s cannot run here: %s", name, summary);
    }
    if (!strcmp(backend, "cuda")) // known, but left out of this build
        return cli_error(EXIT_FAILED, "--backend: this build has no cuda, expected %s", known);
    return cli_usage(c, "--backend: expected %s, found '%s'", known, backend);
}

int cli_engine_check(const cli_command *c, cli_engine *e)
{
    const char *from = "--cpu", *env = getenv("INFER_CPU");
    if (!e->cpu && env && *env) e->cpu = env, from = "INFER_CPU";
    if (e->backend && !strcmp(e->backend, "auto")) e->backend = NULL;
    int code = e->backend ? check_backend(c, e->backend) : EXIT_DONE;
    return !code && e->cpu ? check_level(c, e->cpu, from) : code;
}

infer_engine_options cli_engine_options(const cli_engine *e)
{
    return (infer_engine_options){
        .n_threads = e->threads,
        .backend = e->backend,
        .cpu_level = e->cpu,
        .exact = e->exact,
        .kv_type = e->kv_type,
        .kv_type_k = e->kv_type_k,
        .kv_type_v = e->kv_type_v,
        .walk_from = e->walk_from,
        .walk_keep = e->keep,
        .log = cli_log,
    };
}

infer_status cli_feed(infer_engine *engine, infer_sequence *seq, const int32_t *ids, size_t n,
                      unsigned want, int *last_row, infer_error *err)
{
    size_t step = (size_t)infer_engine_describe(engine).max_rows;
    infer_row *rows = mem_alloc(step < n ? step : n, sizeof *rows);
    if (!rows) return error_set(err, INFER_NOMEM, "prompt: out of memory");
    infer_status st = INFER_OK;
    for (size_t i = 0; i < n && !st;) {
        size_t k = n - i < step ? n - i : step;
        for (size_t j = 0; j < k; j++) {
            bool last = i + j + 1 == n;
            rows[j] = (infer_row){ .seq = seq,
                                   .token = ids[i + j],
                                   .want = last ? want : 0,
                                   .top = last && want == INFER_WANT_TOP };
        }
        st = infer_step(engine, rows, (int)k, err);
        i += k;
        *last_row = (int)k - 1;
        if (!st && n > step) cli_progress("prompt %zu of %zu tokens", i, n);
    }
    mem_free(rows);
    return st;
}
