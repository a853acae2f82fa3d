/*
 * file.c: what is in a model file, as text: for people who look, not for the forward pass. No
 * architecture and no tensor type is refused here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "infer.h"
#include "models/gguf.h"
#include "models/locate.h"
#include "models/safetensors.h"
#include "models/vindex_dir.h"

#define SHOWN_ITEMS 8         // of an array
#define MAX_CONFIG (16 << 20) // bytes of config.json
#define MAX_NESTING 8         // objects in config.json

struct infer_file {
    arena mem;
    gguf *g;
    safetensors *st;
    vindex_dir *dir;
    const char *format;
    infer_meta_info *meta;
    size_t n_meta, cap_meta;
    infer_tensor_info *tensors; // in mem
    int n_tensors;
};

/* Text that grows in a buffer of fixed size and ends with "…" where that was too small. */
typedef struct writer {
    char s[1024];
    size_t at;
} writer;

static void put(writer *w, const char *s, size_t n)
{
    size_t room = sizeof(w->s) - 1 - w->at;
    if (n > room) n = room;
    memcpy(w->s + w->at, s, n);
    w->at += n;
    w->s[w->at] = 0;
}

static void put_string(writer *w, const char *s) { put(w, s, strlen(s)); }

/* A copy that is valid UTF-8 and ends at the first NUL. */
static char *copy_text(infer_file *f, const char *s, size_t n)
{
    if (utf8_valid(s, n)) return arena_strndup(&f->mem, s, n);
    char *copy = arena_alloc(&f->mem, n + 1, 3);
    if (copy) copy[utf8_replace(s, n, copy)] = 0;
    return copy;
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static void put_number(writer *w, const gguf_value *v, uint64_t i)
{
    char text[40];
    double x = gguf_array_number(v, i);
    if (v->item == GGUF_BOOL)
        snprintf(text, sizeof(text), "%s", x != 0 ? "true" : "false");
    else if (v->item == GGUF_F32)
        snprintf(text, sizeof(text), "%.7g", x);
    else if (v->item == GGUF_F64)
        snprintf(text, sizeof(text), "%.15g", x);
    else
        snprintf(text, sizeof(text), "%.0f", x);
    put_string(w, text);
}

static void put_array(writer *w, const gguf_value *v)
{
    uint64_t n = v->count < SHOWN_ITEMS ? v->count : SHOWN_ITEMS;
    put_string(w, "[");
    for (uint64_t i = 0; i < n; i++) {
        if (i) put_string(w, ", ");
        if (v->strings) {
            const gguf_text *t = &v->strings[i];
            put_string(w, "\"");
            put(w, t->s, t->n < 60 ? t->n : 60);
            put_string(w, t->n < 60 ? "\"" : "…\"");
        } else if (v->item == GGUF_ARRAY) {
            put_string(w, "[…]");
        } else {
            put_number(w, v, i);
        }
    }
    char count[40];
    snprintf(count, sizeof(count), "%s] (%" PRIu64 ")", n < v->count ? ", …" : "", v->count);
    put_string(w, count);
}

static infer_status add_meta(infer_file *f, const char *key, size_t n_key, const char *type,
                             const char *value, size_t n_value, infer_error *err)
{
    infer_status s =
        mem_reserve((void **)&f->meta, &f->cap_meta, f->n_meta + 1, sizeof(*f->meta), err);
    if (s != INFER_OK) return s;
    infer_meta_info m = { .key = copy_text(f, key, n_key),
                          .type = type,
                          .value = copy_text(f, value, n_value) };
    if (!m.key || !m.value || !m.type) return error_set(err, INFER_NOMEM, "out of memory");
    f->meta[f->n_meta++] = m;
    return INFER_OK;
}

static infer_status meta_of_gguf(infer_file *f, infer_error *err)
{
    for (int i = 0; i < gguf_n_values(f->g); i++) {
        const gguf_value *v = gguf_value_at(f->g, i);
        infer_status s;
        writer w = { .at = 0 };
        if (v->type == GGUF_STRING) {
            gguf_text t = gguf_value_text(v);
            s = add_meta(f, v->key.s, v->key.n, "string", t.s, t.n, err);
        } else if (v->type == GGUF_ARRAY) {
            put_array(&w, v);
            s = add_meta(f, v->key.s, v->key.n,
                         arena_printf(&f->mem, "array of %s", gguf_type_name(v->item)), w.s, w.at,
                         err);
        } else {
            put_number(&w, v, 0);
            s = add_meta(f, v->key.s, v->key.n, gguf_type_name(v->type), w.s, w.at, err);
        }
        if (s != INFER_OK) return s;
    }
    return INFER_OK;
}

static infer_status tensors_of_gguf(infer_file *f, infer_error *err)
{
    f->n_tensors = gguf_n_tensors(f->g);
    f->tensors = arena_zero(&f->mem, (size_t)f->n_tensors + 1, sizeof(*f->tensors));
    if (!f->tensors) return error_set(err, INFER_NOMEM, "out of memory");
    for (int i = 0; i < f->n_tensors; i++) {
        const gguf_tensor *t = gguf_tensor_at(f->g, i);
        infer_tensor_info *to = &f->tensors[i];
        to->name = copy_text(f, t->name.s, t->name.n);
        to->type = t->type >= 0 ? quant_formats[t->type]->name
                                : arena_printf(&f->mem, "type %" PRIu32, t->ggml_type);
        if (!to->name || !to->type) return error_set(err, INFER_NOMEM, "out of memory");
        to->n_dims = t->n_dims;
        for (int d = 0; d < t->n_dims; d++)
            to->dims[d] = t->dims[t->n_dims - 1 - d];
        to->bytes = t->bytes;
    }
    return INFER_OK;
}

/* ---- safetensors ----------------------------------------------------------------------------- */

static infer_status meta_of_object(infer_file *f, const char *prefix, const json_t *object,
                                   int depth, infer_error *err)
{
    static const char *const types[] = { "object", "array", "string", "integer",
                                         "real",   "bool",  "bool",   "null" };
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)object, name, v)
    {
        char *key = arena_printf(&f->mem, "%s%s", prefix, name);
        char *inner = key ? arena_printf(&f->mem, "%s.", key) : NULL;
        if (!inner) return error_set(err, INFER_NOMEM, "out of memory");
        infer_status s;
        if (json_is_object(v) && depth < MAX_NESTING) {
            s = meta_of_object(f, inner, v, depth + 1, err);
        } else if (json_is_string(v)) {
            s = add_meta(f, key, strlen(key), "string", json_string_value(v), json_string_length(v),
                         err);
        } else {
            char text[1024];
            const size_t room = sizeof(text) - sizeof("…"); // where it is longer
            size_t n = json_dumpb(v, text, room,
                                  JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
            if (n > room) { // what fits was written
                memcpy(text + room, "…", sizeof("…"));
                n = room + sizeof("…") - 1;
            }
            s = add_meta(f, key, strlen(key), types[json_typeof(v)], text, n, err);
        }
        if (s != INFER_OK) return s;
    }
    return INFER_OK;
}

static infer_status meta_of_folder(infer_file *f, const char *folder, infer_error *err)
{
    char *path = arena_printf(&f->mem, "%s/config.json", folder), *text;
    size_t n;
    if (!path) return error_set(err, INFER_NOMEM, "out of memory");
    infer_status s = file_read(path, MAX_CONFIG, &text, &n, err);
    if (s != INFER_OK) return s;
    json_error_t why;
    json_t *json = json_loadb(text, n, 0, &why);
    mem_free(text);
    if (!json) return error_set(err, INFER_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    s = json_is_object(json) ? meta_of_object(f, "", json, 0, err)
                             : error_set(err, INFER_FORMAT, "%s: expected a JSON object", path);
    json_decref(json);
    return s;
}

static infer_status tensors_of_folder(infer_file *f, infer_error *err)
{
    f->n_tensors = st_n_tensors(f->st);
    f->tensors = arena_zero(&f->mem, (size_t)f->n_tensors + 1, sizeof(*f->tensors));
    if (!f->tensors) return error_set(err, INFER_NOMEM, "out of memory");
    for (int i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = st_tensor_at(f->st, i);
        infer_tensor_info *to = &f->tensors[i];
        to->name = t->name;
        to->type = t->type >= 0 ? quant_formats[t->type]->name : t->dtype_name;
        to->n_dims = t->n_dims;
        memcpy(to->dims, t->dims, sizeof(to->dims));
        to->bytes = t->bytes;
    }
    return INFER_OK;
}

/* ---- vindex ---------------------------------------------------------------------------------- */

/* All of index.json but the list of layers, which the tensors tell. */
static infer_status meta_of_vindex(infer_file *f, infer_error *err)
{
    json_t *shown = json_copy(f->dir->index);
    if (!shown) return error_set(err, INFER_NOMEM, "out of memory");
    json_object_del(shown, "layers");
    infer_status st = meta_of_object(f, "", shown, 0, err);
    json_decref(shown);
    return st;
}

static infer_status put_tensor(infer_file *f, const char *name, dtype type, const int64_t *dims,
                               int n_dims, uint64_t bytes, infer_error *err)
{
    infer_tensor_info *to = &f->tensors[f->n_tensors++];
    *to =
        (infer_tensor_info){ .type = quant_formats[type]->name, .n_dims = n_dims, .bytes = bytes };
    memcpy(to->dims, dims, (size_t)n_dims * sizeof *dims);
    to->name = copy_text(f, name, strlen(name));
    return to->name ? INFER_OK : error_set(err, INFER_NOMEM, "out of memory");
}

#define N_BLOCK_FILES 3

/* The manifests of weight_manifest.json and of the quantised files that are there. */
static infer_status read_manifests(vindex_manifest *m, vindex_dir *d, infer_error *err)
{
    static const char *const blocks[N_BLOCK_FILES] = { "attn_weights_q4k", "interleaved_q4k",
                                                       "down_features_q4k" };
    infer_status st = vindex_dir_manifest(d, "weight_manifest.json", NULL, &m[0], err);
    for (int i = 0; i < N_BLOCK_FILES && !st; i++) {
        char data[64], manifest[64];
        snprintf(data, sizeof data, "%s.bin", blocks[i]);
        snprintf(manifest, sizeof manifest, "%s_manifest.json", blocks[i]);
        m[1 + i] = (vindex_manifest){ 0 };
        if (vindex_dir_has(d, data)) st = vindex_dir_manifest(d, manifest, data, &m[1 + i], err);
    }
    return st;
}

static infer_status tensors_of_vindex(infer_file *f, infer_error *err)
{
    vindex_dir *d = f->dir;
    vindex_manifest m[1 + N_BLOCK_FILES];
    infer_status st = read_manifests(m, d, err);
    if (st) return st;
    size_t n = (size_t)d->n_layers + 1;
    for (int k = 0; k < COUNT_OF(m); k++)
        n += (size_t)m[k].n;
    f->tensors = arena_zero(&f->mem, n, sizeof *f->tensors);
    if (!f->tensors) return error_set(err, INFER_NOMEM, "out of memory");
    const int64_t embed[] = { d->n_vocab, d->d_model };
    const file_map *map = vindex_dir_map(d, "embeddings.bin", err);
    if (!map) return INFER_NOT_FOUND;
    bool wide = map->size == 4 * (uint64_t)embed[0] * (uint64_t)embed[1];
    st = put_tensor(f, "embeddings.bin", wide ? DT_F32 : DT_F16, embed, 2, map->size, err);
    for (int l = 0; l < d->n_layers && !st; l++) {
        char name[40];
        const int64_t dims[] = { d->gates[l].n_features, d->d_model };
        snprintf(name, sizeof name, "gate_vectors.bin, layer %d", l);
        if (dims[0]) st = put_tensor(f, name, d->type, dims, 2, d->gates[l].length, err);
    }
    for (int k = 0; k < COUNT_OF(m); k++)
        for (int i = 0; i < m[k].n && !st; i++) {
            const vindex_entry *e = &m[k].v[i];
            if (e->data)
                st = put_tensor(f, e->key, (dtype)e->type, e->dims, e->n_dims, e->bytes, err);
        }
    return st;
}

/* ---- public ---------------------------------------------------------------------------------- */

infer_status infer_file_open(infer_file **out, const char *path, infer_error *err)
{
    if (!out || !path) return error_set(err, INFER_ARGUMENT, "infer_file_open: NULL argument");
    *out = NULL;
    infer_file *f = mem_zero(1, sizeof(*f));
    if (!f) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    char *found = NULL;
    bool is_folder;
    infer_status s = model_locate(&found, &is_folder, path, err);
    if (s != INFER_OK) goto done;
    if (is_folder && vindex_dir_is(found)) {
        f->format = "vindex";
        s = vindex_dir_open(&f->dir, found, NULL, NULL, err);
        if (s == INFER_OK) s = meta_of_vindex(f, err);
        if (s == INFER_OK) s = tensors_of_vindex(f, err);
    } else if (is_folder) {
        f->format = "safetensors";
        s = st_open(&f->st, found, NULL, NULL, err);
        if (s == INFER_OK) s = meta_of_folder(f, found, err);
        if (s == INFER_OK) s = tensors_of_folder(f, err);
    } else {
        s = gguf_open(&f->g, found, NULL, NULL, err);
        if (s == INFER_OK) f->format = gguf_version(f->g) == 2 ? "GGUF v2" : "GGUF v3";
        if (s == INFER_OK) s = meta_of_gguf(f, err);
        if (s == INFER_OK) s = tensors_of_gguf(f, err);
    }
done:
    mem_free(found);
    if (s != INFER_OK) {
        infer_file_close(f);
        return s;
    }
    *out = f;
    return error_clear(err);
}

void infer_file_close(infer_file *f)
{
    if (!f) return;
    gguf_close(f->g);
    st_close(f->st);
    vindex_dir_close(f->dir);
    mem_free(f->meta);
    arena_free(&f->mem);
    mem_free(f);
}

const char *infer_file_format(const infer_file *f) { return f->format; }

uint64_t infer_file_bytes(const infer_file *f)
{
    if (f->dir) return vindex_dir_bytes(f->dir);
    return f->g ? gguf_file_bytes(f->g) : st_file_bytes(f->st);
}

int infer_file_n_meta(const infer_file *f) { return (int)f->n_meta; }

infer_meta_info infer_file_meta(const infer_file *f, int i)
{
    return i >= 0 && (size_t)i < f->n_meta ? f->meta[i] : (infer_meta_info){ 0 };
}

int infer_file_n_tensors(const infer_file *f) { return f->n_tensors; }

infer_tensor_info infer_file_tensor(const infer_file *f, int i)
{
    return i >= 0 && i < f->n_tensors ? f->tensors[i] : (infer_tensor_info){ 0 };
}
