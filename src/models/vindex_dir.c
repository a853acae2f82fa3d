/*
 * vindex_dir.c: index.json and the manifests. Unknown keys are ignored; what is read is checked and
 * all its faults are told at once.
 */
#include "models/vindex_dir.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

#define MAX_JSON (256u << 20)
#define MAX_LAYERS 4096
#define MAX_WIDTH (1 << 20)
#define MAX_FEATURES (1 << 28)

bool vindex_dir_is(const char *path)
{
    char name[4096]; // no allocation: there is no way to say that one failed
    int n = snprintf(name, sizeof name, "%s/index.json", path);
    return n > 0 && n < (int)sizeof name && file_exists(name);
}

infer_status vindex_stale(const vindex_dir *d, infer_error *err, const char *file, const char *fmt,
                          ...)
{
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return error_set(err, INFER_FORMAT, "%s/%s: %s: make it anew with 'infer extract'", d->path,
                     file, what);
}

static infer_status no_memory(const char *path, infer_error *err)
{
    return error_set(err, INFER_NOMEM, "%s: out of memory", path);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* *out NULL and INFER_NOT_FOUND where there is no such file. */
static infer_status read_json(json_t **out, const vindex_dir *d, const char *name, infer_error *err)
{
    *out = NULL;
    arena mem = { 0 };
    char *text = NULL;
    size_t n;
    char *path = arena_printf(&mem, "%s/%s", d->path, name);
    infer_status st = path ? file_read(path, MAX_JSON, &text, &n, err) : no_memory(d->path, err);
    if (!st) {
        json_error_t why;
        *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
        if (!*out) st = vindex_stale(d, err, name, "line %d: %s", why.line, why.text);
    }
    mem_free(text);
    arena_free(&mem);
    return st;
}

typedef struct reader {
    fault_list faults;
    const char *where; // "layers[3]", or ""
} reader;

static const char *at(const reader *r) { return r->where; }

static int read_int(reader *r, const json_t *o, const char *key, int min, int max, bool required)
{
    const json_t *v = json_object_get(o, key);
    if (!v && !required) return 0;
    if (json_is_integer(v) && json_integer_value(v) >= min && json_integer_value(v) <= max)
        return (int)json_integer_value(v);
    if (json_is_integer(v))
        fault_add(&r->faults, "%s%s: expected %d to %d, found %" PRId64, at(r), key, min, max,
                  (int64_t)json_integer_value(v));
    else
        fault_add(&r->faults, "%s%s: %s", at(r), key, v ? "expected an integer" : "missing");
    return min;
}

static uint64_t read_u64(reader *r, const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_integer(v) && json_integer_value(v) >= 0) return (uint64_t)json_integer_value(v);
    fault_add(&r->faults, "%s%s: %s", at(r), key,
              v ? "expected an integer of 0 or more" : "missing");
    return 0;
}

static const char *read_text(reader *r, const json_t *o, const char *key, const char *fallback)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v)) return json_string_value(v);
    if (!v && fallback) return fallback;
    fault_add(&r->faults, "%s%s: %s", at(r), key, v ? "expected a string" : "missing");
    return "";
}

static const char *read_word(reader *r, const json_t *o, const char *key, const char *fallback,
                             const char *const *words)
{
    const char *s = read_text(r, o, key, fallback);
    for (int i = 0; words[i]; i++)
        if (!strcmp(s, words[i])) return words[i];
    fault_add(&r->faults, "%s: '%.40s' is not known", key, s);
    return words[0];
}

static bool read_bool(reader *r, const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_boolean(v)) fault_add(&r->faults, "%s: expected true or false", key);
    return json_is_true(v);
}

/* ---- index.json ------------------------------------------------------------------------------ */

static void read_bands(reader *r, vindex_dir *d)
{
    static const char *const names[] = { "syntax", "knowledge", "output" };
    const json_t *o = json_object_get(d->index, "layer_bands");
    if (!o || json_is_null(o)) return;
    d->has_bands = true;
    for (int b = 0; b < 3; b++) {
        const json_t *pair = json_object_get(o, names[b]);
        bool ok = json_is_array(pair) && json_array_size(pair) == 2;
        for (int i = 0; ok && i < 2; i++) {
            const json_t *v = json_array_get(pair, (size_t)i);
            ok = json_is_integer(v) && json_integer_value(v) >= 0 &&
                 json_integer_value(v) < MAX_LAYERS;
            if (ok) d->bands[b][i] = (int)json_integer_value(v);
        }
        if (!ok) fault_add(&r->faults, "layer_bands.%s: expected two layers", names[b]);
    }
}

static void read_layers(reader *r, vindex_dir *d)
{
    const json_t *list = json_object_get(d->index, "layers");
    if (!json_is_array(list)) {
        fault_add(&r->faults, "layers: expected a list");
        return;
    }
    uint64_t size = d->type == DT_F32 ? 4 : 2;
    char where[40];
    r->where = where;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        snprintf(where, sizeof where, "layers[%zu].", i);
        vindex_gates g = { .layer = read_int(r, o, "layer", 0, d->n_layers - 1, true),
                           .n_features = read_int(r, o, "num_features", 0, MAX_FEATURES, true),
                           .n_experts = read_int(r, o, "num_experts", 0, 1 << 16, false),
                           .per_expert =
                               read_int(r, o, "num_features_per_expert", 0, MAX_FEATURES, false),
                           .offset = read_u64(r, o, "offset"),
                           .length = read_u64(r, o, "length") };
        uint64_t want = (uint64_t)g.n_features * (uint64_t)d->d_model * size;
        if (r->faults.n) continue;
        if (g.length != want)
            fault_add(&r->faults, "%slength: expected %" PRIu64 ", found %" PRIu64, where, want,
                      g.length);
        if (g.offset % size)
            fault_add(&r->faults, "%soffset: not a multiple of %d", where, (int)size);
        if (g.offset > UINT64_MAX / 2) fault_add(&r->faults, "%soffset: too large", where);
        if (g.n_experts && (uint64_t)g.n_experts * (uint64_t)g.per_expert != (uint64_t)g.n_features)
            fault_add(&r->faults, "%snum_features: expected %d experts of %d, found %d", where,
                      g.n_experts, g.per_expert, g.n_features);
        if (d->gates[g.layer].length)
            fault_add(&r->faults, "%slayer: %d occurs twice", where, g.layer);
        d->gates[g.layer] = g;
    }
    r->where = "";
}

static infer_status read_index(vindex_dir *d, infer_error *err)
{
    static const char *const levels[] = { "browse", "attention", "inference", "all", NULL };
    static const char *const types[] = { "f32", "f16", NULL };
    static const char *const quants[] = { "none", "q4k", NULL };
    static const char *const layouts[] = { "", "per_layer", NULL };
    infer_status st = read_json(&d->index, d, "index.json", err);
    if (st) return st;
    if (!json_is_object(d->index)) return vindex_stale(d, err, "index.json", "expected an object");
    const json_t *o = d->index;
    reader r = { .where = "" };
    d->version = read_int(&r, o, "version", 0, INT32_MAX, true);
    d->model = read_text(&r, o, "model", NULL);
    d->family = read_text(&r, o, "family", NULL);
    d->n_layers = read_int(&r, o, "num_layers", 1, MAX_LAYERS, true);
    d->d_model = read_int(&r, o, "hidden_size", 1, MAX_WIDTH, true);
    d->d_ff = read_int(&r, o, "intermediate_size", 0, MAX_FEATURES, true);
    d->n_vocab = read_int(&r, o, "vocab_size", 1, INT32_MAX, true);
    d->top_k = read_int(&r, o, "down_top_k", 0, 4096, true);
    d->level = read_word(&r, o, "extract_level", "browse", levels);
    d->type = read_word(&r, o, "dtype", "f32", types) == types[0] ? DT_F32 : DT_F16;
    d->quant = read_word(&r, o, "quant", "none", quants);
    const json_t *layout = json_object_get(o, "ffn_layout");
    d->ffn_layout = json_is_null(layout) ? "" : read_word(&r, o, "ffn_layout", "", layouts);
    d->has_weights = read_bool(&r, o, "has_model_weights");
    const json_t *scale = json_object_get(o, "embed_scale");
    d->embed_scale = (float)json_number_value(scale);
    if (!json_is_number(scale) || !isfinite(d->embed_scale))
        fault_add(&r.faults, "embed_scale: expected a finite number");
    d->config = json_object_get(o, "model_config");
    d->extra = json_object_get(o, "infer");
    if (json_is_null(d->config)) d->config = NULL;
    if (d->config && !json_is_object(d->config))
        fault_add(&r.faults, "model_config: expected an object");
    if (d->extra && !json_is_object(d->extra)) fault_add(&r.faults, "infer: expected an object");
    d->gates = arena_zero(&d->mem, (size_t)d->n_layers, sizeof *d->gates);
    if (!d->gates) return no_memory(d->path, err);
    read_bands(&r, d);
    if (!r.faults.n) read_layers(&r, d);
    if (!r.faults.n) return INFER_OK;
    char where[512];
    snprintf(where, sizeof where, "%.480s/index.json", d->path);
    return fault_status(&r.faults, err, INFER_FORMAT, where);
}

infer_status vindex_dir_open(vindex_dir **out, const char *path, const map_options *how,
                             const infer_log *log, infer_error *err)
{
    *out = NULL;
    vindex_dir *d = mem_zero(1, sizeof *d);
    if (!d) return no_memory(path, err);
    d->path = mem_strdup(path);
    if (how) d->how = *how;
    if (log) d->log = *log;
    infer_status st = d->path ? read_index(d, err) : no_memory(path, err);
    if (st) {
        vindex_dir_close(d);
        return st;
    }
    *out = d;
    return error_clear(err);
}

void vindex_dir_close(vindex_dir *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_maps; i++)
        map_close(&d->maps[i]);
    mem_free(d->maps);
    json_decref(d->index);
    arena_free(&d->mem);
    mem_free(d->path);
    mem_free(d);
}

/* ---- files ----------------------------------------------------------------------------------- */

uint64_t vindex_dir_bytes(const vindex_dir *d)
{
    uint64_t n = 0;
    for (int i = 0; i < d->n_maps; i++)
        n += d->maps[i].size;
    return n;
}

bool vindex_dir_broken(const vindex_dir *d)
{
    for (int i = 0; i < d->n_maps; i++)
        if (map_broken(&d->maps[i])) return true;
    return false;
}

bool vindex_dir_has(const vindex_dir *d, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", d->path, name);
    return n > 0 && n < (int)sizeof path && file_exists(path);
}

#define MAX_FILES (MAX_LAYERS + 64)

const file_map *vindex_dir_map(vindex_dir *d, const char *name, infer_error *err)
{
    char *path = arena_printf(&d->mem, "%s/%s", d->path, name);
    if (!path) {
        no_memory(d->path, err);
        return NULL;
    }
    for (int i = 0; i < d->n_maps; i++)
        if (!strcmp(d->maps[i].path, path)) return &d->maps[i];
    if (!d->maps) { // never moved: maps are referred to
        d->maps = mem_zero(MAX_FILES, sizeof *d->maps);
        d->cap_maps = d->maps ? MAX_FILES : 0;
    }
    if (d->n_maps == d->cap_maps) {
        no_memory(d->path, err);
        return NULL;
    }
    if (map_open(&d->maps[d->n_maps], path, &d->how, &d->log, err)) return NULL;
    return &d->maps[d->n_maps++];
}

/* ---- manifests ------------------------------------------------------------------------------- */

static bool plain_name(const char *s)
{
    return *s && *s != '.' && !strchr(s, '/') && !strchr(s, '\\') && strlen(s) < 200;
}

static uint64_t shape_of(reader *r, vindex_entry *e, const json_t *shape)
{
    uint64_t n = 1;
    e->n_dims = (int)json_array_size(shape);
    if (!json_is_array(shape) || e->n_dims < 1 || e->n_dims > 4) {
        fault_add(&r->faults, "%sshape: expected one to four dimensions", at(r));
        return 0;
    }
    for (int i = 0; i < e->n_dims; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > INT32_MAX ||
            __builtin_mul_overflow(n, (uint64_t)json_integer_value(v), &n) || n > (1ull << 46)) {
            fault_add(&r->faults, "%sshape: expected positive numbers", at(r));
            return 0;
        }
        e->dims[i] = json_integer_value(v);
    }
    return n;
}

/* The type of an entry by its kind, or of a float kind by its length; -1: not known. */
static int type_of(const vindex_dir *d, const vindex_entry *e, uint64_t n)
{
    if (!strcmp(e->kind, "tensor") || !strcmp(e->kind, "vector"))
        return e->bytes == 4 * n ? DT_F32 : e->bytes == 2 * n ? DT_F16 : (int)d->type;
    if (!strcmp(e->kind, "tensor_f16")) return DT_F16;
    if (!strcmp(e->kind, "tensor_q4k") || !strcmp(e->kind, "Q4_K")) return DT_Q4_K;
    if (!strcmp(e->kind, "packed_bf16")) return DT_BF16;
    // LARQL's block, whose bits lie in another order than GGUF's; a tag tells the latter
    if (!strcmp(e->kind, "tensor_q6k") || !strcmp(e->kind, "Q6_K")) return DT_LARQL_Q6_K;
    if (!strcmp(e->kind, "Q6_K_GGUF")) return DT_Q6_K;
    return -1;
}

static bool read_entry(vindex_dir *d, reader *r, vindex_entry *e, const json_t *o,
                       const char *data_file, infer_error *err)
{
    bool own = !data_file; // weight_manifest.json names kinds and files
    const char *file = own ? read_text(r, o, "file", "model_weights.bin") : data_file;
    if (!*file) file = "model_weights.bin";
    e->key = read_text(r, o, "key", NULL);
    e->kind = read_text(r, o, own ? "kind" : "format", NULL);
    e->bytes = read_u64(r, o, "length");
    uint64_t offset = read_u64(r, o, "offset"), n = shape_of(r, e, json_object_get(o, "shape"));
    if (r->faults.n) return true;
    e->type = type_of(d, e, n);
    if (e->type < 0) return true; // unknown kinds are ignored
    if (!plain_name(file)) {
        fault_add(&r->faults, "%sfile: '%.60s': expected the name of a file in the folder", at(r),
                  file);
        return true;
    }
    size_t row = quant_row_bytes((dtype)e->type, (size_t)e->dims[e->n_dims - 1]);
    uint64_t want = row ? n / (uint64_t)e->dims[e->n_dims - 1] * row : 0;
    if (e->bytes != want) {
        fault_add(&r->faults,
                  "%slength of '%.60s': expected %" PRIu64 " for its shape, found %" PRIu64, at(r),
                  e->key, want, e->bytes);
        return true;
    }
    // A folder may be without some of its weights: who needs them says so.
    if (own && !vindex_dir_has(d, file)) {
        e->absent = file;
        return true;
    }
    const file_map *m = vindex_dir_map(d, file, err);
    if (!m) return false;
    if (offset > m->size || e->bytes > m->size - offset) {
        fault_add(&r->faults, "%s'%.60s': bytes %" PRIu64 " to %" PRIu64 " of %s, which has %zu",
                  at(r), e->key, offset, offset + e->bytes, file, m->size);
        return true;
    }
    e->data = m->data + offset;
    return true;
}

infer_status vindex_dir_manifest(vindex_dir *d, const char *name, const char *data_file,
                                 vindex_manifest *out, infer_error *err)
{
    *out = (vindex_manifest){ 0 };
    json_t *list = NULL;
    infer_status st = read_json(&list, d, name, err);
    if (st == INFER_NOT_FOUND) return error_clear(err);
    if (st) return st;
    if (!json_is_array(list)) {
        json_decref(list);
        return vindex_stale(d, err, name, "expected a list");
    }
    // The strings of the entries live as long as the folder.
    if (json_object_set_new(d->index, name, list)) return no_memory(d->path, err);
    size_t n = json_array_size(list);
    out->v = arena_zero(&d->mem, n ? n : 1, sizeof *out->v);
    if (!out->v) return no_memory(d->path, err);
    reader r = { .where = "" };
    char where[32];
    r.where = where;
    for (size_t i = 0; i < n && !r.faults.n; i++) {
        snprintf(where, sizeof where, "entry %zu: ", i);
        if (!read_entry(d, &r, &out->v[i], json_array_get(list, i), data_file, err))
            return err && err->code ? err->code : INFER_IO;
    }
    out->n = (int)n;
    if (!r.faults.n) return error_clear(err);
    char full[512];
    snprintf(full, sizeof full, "%.400s/%s", d->path, name);
    return fault_status(&r.faults, err, INFER_FORMAT, full);
}

void vindex_dir_release(const vindex_dir *d, const void *from, size_t size)
{
    for (int m = 0; m < d->n_maps; m++)
        map_release(&d->maps[m], from, size);
}

const vindex_entry *vindex_entry_find(const vindex_manifest *m, const char *key)
{
    for (int i = m->n - 1; i >= 0; i--)
        if (m->v[i].data && !strcmp(m->v[i].key, key)) return &m->v[i];
    return NULL;
}
