/*
 * open.c: an open vindex: the folder's files as matrices by layer, whichever files hold them.
 *
 * Of several storages of a matrix the first of these counts: gate_vectors.bin, then the quantised
 * files; float weights, then quantised ones; a down by features beside a down by outputs, both are
 * kept.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/thread.h"
#include "models/load_vindex.h"
#include "models/places.h"
#include "models/vindex_side.h"
#include "vindex/facts.h"
#include "vindex/relations.h"
#include "vindex/search.h"
#include "vindex/side.h"

/* What opening needs to know of the model; arch NULL: only what needs no names is opened. */
typedef struct opening {
    infer_vindex *v;
    const arch *arch;
    config c;
    vindex_manifest weights, ffn_q4k;
    infer_error *err;
} opening;

static tensor matrix(const char *name, dtype type, int rows, int cols, const uint8_t *data)
{
    return (tensor){ .name = name,
                     .data = data,
                     .type = type,
                     .n_rows = rows,
                     .n_cols = cols,
                     .n_slices = 1,
                     .row_bytes = quant_row_bytes(type, (size_t)cols) };
}

/* ---- gates, embedding, labels ---------------------------------------------------------------- */

static infer_status open_gates(opening *o)
{
    infer_vindex *v = o->v;
    vindex_dir *d = v->dir;
    bool there = vindex_dir_has(d, "gate_vectors.bin");
    const file_map *m = there ? vindex_dir_map(d, "gate_vectors.bin", o->err) : NULL;
    if (there && !m) return INFER_IO;
    bool q4 = !there && vindex_dir_has(d, SIDE_GATES);
    const uint8_t *at = q4 ? side_gates(d, o->err) : NULL;
    if (q4 && !at) return o->err->code;
    for (int l = 0; l < d->n_layers; l++) {
        const vindex_gates *g = &d->gates[l];
        vindex_layer *x = &v->layers[l];
        x->n_experts = g->n_experts;
        x->per_expert = g->per_expert;
        if (q4 && g->n_features) {
            x->n_features = g->n_features;
            x->gate = matrix("gate", DT_LARQL_Q4_0, g->n_features, d->d_model, at);
            at += (size_t)g->n_features * x->gate.row_bytes;
        }
        if (!there || !g->n_features) continue;
        if (g->offset > m->size || g->length > m->size - g->offset)
            return vindex_stale(d, o->err, "gate_vectors.bin",
                                "layer %d is bytes %" PRIu64 " to %" PRIu64 ", found %zu bytes", l,
                                g->offset, g->offset + g->length, m->size);
        x->n_features = g->n_features;
        x->gate = matrix("gate", d->type, g->n_features, d->d_model, m->data + g->offset);
    }
    return INFER_OK;
}

static infer_status open_embedding(opening *o)
{
    infer_vindex *v = o->v;
    vindex_dir *d = v->dir;
    const file_map *m = vindex_dir_map(d, "embeddings.bin", o->err);
    if (!m) return o->err->code;
    uint64_t n = (uint64_t)d->n_vocab * (uint64_t)d->d_model;
    if (m->size != 4 * n && m->size != 2 * n)
        return vindex_stale(d, o->err, "embeddings.bin",
                            "expected %d rows of %d values of 4 or 2 bytes, found %zu bytes",
                            d->n_vocab, d->d_model, m->size);
    v->embed =
        matrix("embeddings", m->size == 4 * n ? DT_F32 : DT_F16, d->n_vocab, d->d_model, m->data);
    return INFER_OK;
}

/*
 * down_meta.bin: magic, version 1, layers, top_k; then for each layer the number of records and
 * records of 8 + 8 * top_k bytes.
 */
static infer_status open_meta(opening *o)
{
    static const char name[] = "down_meta.bin";
    infer_vindex *v = o->v;
    vindex_dir *d = v->dir;
    if (!vindex_dir_has(d, name)) return side_meta(v, o->err);
    const file_map *m = vindex_dir_map(d, name, o->err);
    if (!m) return o->err->code;
    if (m->size < 16)
        return vindex_stale(d, o->err, name, "%zu bytes, expected a header of 16", m->size);
    if (memcmp(m->data, "TEMD", 4) && memcmp(m->data, "DMET", 4))
        return vindex_stale(d, o->err, name, "expected magic TEMD, found %02x%02x%02x%02x",
                            m->data[0], m->data[1], m->data[2], m->data[3]);
    uint32_t version = u32_at(m->data + 4), layers = u32_at(m->data + 8), k = u32_at(m->data + 12);
    if (version != 1)
        return vindex_stale(d, o->err, name, "expected version 1, found %" PRIu32, version);
    if (layers > (uint32_t)d->n_layers || k > 4096)
        return vindex_stale(d, o->err, name, "%" PRIu32 " layers of %" PRIu32 " tokens a feature",
                            layers, k);
    size_t at = 16, size = 8 + 8 * (size_t)k;
    v->top_k = (int)k;
    for (uint32_t l = 0; l < layers; l++) {
        if (m->size - at < 4) return vindex_stale(d, o->err, name, "ends in layer %" PRIu32, l);
        uint32_t n = u32_at(m->data + at);
        at += 4;
        if (n > (m->size - at) / size)
            return vindex_stale(d, o->err, name,
                                "layer %" PRIu32 ": %" PRIu32 " records, room for %zu", l, n,
                                (m->size - at) / size);
        v->layers[l].meta = n ? m->data + at : NULL;
        v->layers[l].n_meta = (int)n;
        at += n * size;
    }
    return INFER_OK;
}

/* ---- the FFN's weights ----------------------------------------------------------------------- */

static const vindex_entry *entry_of(const opening *o, const vindex_manifest *m, tensor_role role,
                                    int layer, int expert, const char *suffix)
{
    char key[256];
    if (!o->arch || !place_key(key, sizeof key, o->arch, role, layer, expert, suffix)) return NULL;
    return vindex_entry_find(m, key);
}

/* n matrices of the same shape that lie one behind the other; absent where they do not. */
static tensor stack_of(const opening *o, tensor_role role, int layer, int n)
{
    const vindex_entry *first = entry_of(o, &o->weights, role, layer, 0, ".weight");
    if (!first || first->n_dims != 2) return (tensor){ 0 };
    for (int i = 1; i < n; i++) {
        const vindex_entry *e = entry_of(o, &o->weights, role, layer, i, ".weight");
        if (!e || e->type != first->type || memcmp(e->dims, first->dims, sizeof e->dims) ||
            e->data != first->data + (size_t)i * first->bytes)
            return (tensor){ 0 };
    }
    tensor t = matrix(first->key, (dtype)first->type, (int)first->dims[0], (int)first->dims[1],
                      first->data);
    t.n_slices = n;
    return t;
}

static infer_status wrong_shape(const opening *o, const char *what, int layer, const tensor *t,
                                int rows, int cols)
{
    return error_set(o->err, INFER_FORMAT,
                     "%s: layer %d: %s: expected [%d, %d], found [%d, %d]: make it anew with "
                     "'infer extract'",
                     o->v->path, layer, what, rows, cols, t->n_rows, t->n_cols);
}

static const float *floats_of(opening *o, tensor_role role, int layer, int n)
{
    const vindex_entry *e = entry_of(o, &o->weights, role, layer, 0, ".bias");
    if (!e || e->n_dims != 1 || e->dims[0] != n) return NULL;
    float *to = arena_alloc(&o->v->mem, (size_t)n, sizeof *to);
    if (to) quant_formats[e->type]->dequant(to, e->data, (size_t)n);
    return to;
}

/* Columns of a matrix of n: blocks are whole. */
static int stored_cols(const tensor *t, int n)
{
    int block = quant_formats[t->type]->block_size;
    return (n + block - 1) / block * block;
}

static infer_status open_float_layer(opening *o, int layer)
{
    infer_vindex *v = o->v;
    vindex_layer *x = &v->layers[layer];
    int d = v->d_model, n = x->n_experts ? x->n_experts : 1;
    int per = x->n_experts ? x->per_expert : x->n_features;
    bool moe = x->n_experts != 0;
    tensor up = stack_of(o, moe ? ROLE_EXPERT_UP : ROLE_UP, layer, n);
    tensor down = stack_of(o, moe ? ROLE_EXPERT_DOWN : ROLE_DOWN, layer, n);
    if (tensor_present(&up)) {
        if (up.n_rows != per || up.n_cols != stored_cols(&up, d))
            return wrong_shape(o, "up", layer, &up, per, d);
        up.n_rows *= n; // experts one behind the other are one matrix of features
        up.n_slices = 1;
        x->up = up;
    }
    if (tensor_present(&down)) {
        if (down.n_rows != d || down.n_cols != stored_cols(&down, per))
            return wrong_shape(o, "down", layer, &down, d, per);
        x->down = down;
    }
    const vindex_entry *r = entry_of(o, &o->weights, ROLE_ROUTER, layer, 0, ".weight");
    if (moe && r && r->n_dims == 2 && r->dims[0] == n && r->dims[1] == d)
        x->router = matrix(r->key, (dtype)r->type, n, d, r->data);
    if (moe) {
        x->router_bias = floats_of(o, ROLE_ROUTER, layer, n);
        return INFER_OK;
    }
    x->gate_bias = floats_of(o, ROLE_GATE, layer, per);
    x->up_bias = floats_of(o, ROLE_UP, layer, per);
    x->down_bias = floats_of(o, ROLE_DOWN, layer, d);
    return INFER_OK;
}

static bool entry_matrix(tensor *t, const vindex_entry *e)
{
    if (!e->data || e->n_dims != 2) return false;
    *t = matrix(e->key, (dtype)e->type, (int)e->dims[0], (int)e->dims[1], e->data);
    return true;
}

static int padded(int n) { return (n + 255) / 256 * 256; }

/* interleaved_q4k.bin: entries gate, up, down of each layer in order. */
static infer_status open_q4k_layer(opening *o, int layer)
{
    infer_vindex *v = o->v;
    vindex_layer *x = &v->layers[layer];
    tensor gate, up, down;
    const vindex_entry *e = o->ffn_q4k.v + 3 * layer;
    if (!entry_matrix(&gate, e) || !entry_matrix(&up, e + 1) || !entry_matrix(&down, e + 2))
        return vindex_stale(v->dir, o->err, "interleaved_q4k_manifest.json",
                            "layer %d: expected matrices", layer);
    int n = x->n_features ? x->n_features : gate.n_rows, d = v->d_model;
    if (gate.n_rows != n || gate.n_cols != padded(d))
        return wrong_shape(o, "gate", layer, &gate, n, padded(d));
    if (up.n_rows != n || up.n_cols != padded(d))
        return wrong_shape(o, "up", layer, &up, n, padded(d));
    if (down.n_rows != d || down.n_cols != padded(n))
        return wrong_shape(o, "down", layer, &down, d, padded(n));
    x->n_features = n;
    // A walk wants gate and up in one form: the quantised ones where the ups are.
    if (!tensor_present(&x->up)) {
        x->gate = gate;
        x->up = up;
    }
    if (!tensor_present(&x->down)) x->down = down;
    return INFER_OK;
}

/* up_features.bin, down_features.bin: float32, or half as large float16, [n_features, d_model],
 * layer after layer. */
static infer_status open_features(opening *o, const char *name, bool down)
{
    infer_vindex *v = o->v;
    if (!vindex_dir_has(v->dir, name)) return INFER_OK;
    const file_map *m = vindex_dir_map(v->dir, name, o->err);
    if (!m) return o->err->code;
    uint64_t want = 0;
    for (int l = 0; l < v->n_layers; l++)
        want += (uint64_t)v->layers[l].n_features * (uint64_t)v->d_model * 4;
    if (m->size != want && m->size != want / 2)
        return vindex_stale(v->dir, o->err, name, "expected %" PRIu64 " bytes or half, found %zu",
                            want, m->size);
    dtype type = m->size == want ? DT_F32 : DT_F16;
    const uint8_t *at = m->data;
    for (int l = 0; l < v->n_layers; l++) {
        vindex_layer *x = &v->layers[l];
        tensor t = matrix(name, type, x->n_features, v->d_model, at);
        if (down)
            x->down_rows = t;
        else if (!tensor_present(&x->up))
            x->up = t;
        at += (size_t)x->n_features * t.row_bytes;
    }
    return INFER_OK;
}

/* interleaved.bin, interleaved_q4.bin: of each layer gate, up and down by features, of one type. */
static infer_status open_interleaved(opening *o, const char *name, dtype type)
{
    infer_vindex *v = o->v;
    if (!vindex_dir_has(v->dir, name)) return INFER_OK;
    const file_map *m = vindex_dir_map(v->dir, name, o->err);
    if (!m) return o->err->code;
    size_t row = quant_row_bytes(type, (size_t)v->d_model);
    uint64_t want = 0;
    for (int l = 0; l < v->n_layers; l++)
        want += 3 * (uint64_t)v->layers[l].n_features * row;
    if (!row || m->size != want)
        return vindex_stale(v->dir, o->err, name, "expected %" PRIu64 " bytes, found %zu", want,
                            m->size);
    const uint8_t *at = m->data;
    for (int l = 0; l < v->n_layers; l++) {
        vindex_layer *x = &v->layers[l];
        size_t part = (size_t)x->n_features * row;
        if (!x->n_features) continue;
        if (!tensor_present(&x->up)) {
            x->gate = matrix(name, type, x->n_features, v->d_model, at);
            x->up = matrix(name, type, x->n_features, v->d_model, at + part);
        }
        if (!tensor_present(&x->down) && !tensor_present(&x->down_rows))
            x->down_rows = matrix(name, type, x->n_features, v->d_model, at + 2 * part);
        at += 3 * part;
    }
    return INFER_OK;
}

/* A projection of the fp4 object: rows by feature, in the order of index.json's layers. */
static infer_status open_projection(opening *o, const json_t *all, const char *which)
{
    infer_vindex *v = o->v;
    const json_t *p = json_object_get(all, which);
    const char *precision = json_string_value(json_object_get(p, "precision"));
    const char *file = json_string_value(json_object_get(p, "file"));
    if (!precision || !file || !*file || strchr(file, '/') || file[0] == '.')
        return vindex_stale(v->dir, o->err, "index.json",
                            "fp4.projections.%s: expected a precision and a file's name", which);
    dtype type = DT_VINDEX_FP4;
    if (!strcmp(precision, "fp8"))
        type = DT_VINDEX_FP8;
    else if (!strcmp(precision, "f16") || !strcmp(precision, "f32"))
        return INFER_OK; // the usual file
    else if (strcmp(precision, "fp4"))
        return vindex_stale(v->dir, o->err, "index.json", "fp4.projections.%s: precision '%.20s'",
                            which, precision);
    const file_map *m = vindex_dir_map(v->dir, file, o->err);
    if (!m) return o->err->code;
    size_t row = quant_row_bytes(type, (size_t)v->d_model);
    uint64_t want = 0;
    for (int l = 0; l < v->n_layers; l++)
        want += (uint64_t)v->layers[l].n_features * row;
    if (!row || m->size != want)
        return vindex_stale(v->dir, o->err, file, "expected %" PRIu64 " bytes, found %zu", want,
                            m->size);
    const json_t *layers = json_object_get(v->dir->index, "layers");
    const uint8_t *at = m->data;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *entry = json_array_get(layers, i);
        vindex_layer *x = &v->layers[json_integer_value(json_object_get(entry, "layer"))];
        tensor t = matrix(file, type, x->n_features, v->d_model, at);
        at += (size_t)x->n_features * row;
        if (!x->n_features) continue;
        if (which[0] == 'g') {
            x->gate = t;
        } else if (which[0] == 'u') {
            x->up = t;
        } else {
            x->down_rows = t;
            if (!x->n_experts) x->down = (tensor){ 0 }; // index.json says which one counts
        }
    }
    return INFER_OK;
}

static infer_status open_fp4(opening *o)
{
    const json_t *fp4 = json_object_get(o->v->dir->index, "fp4");
    if (!fp4 || json_is_null(fp4)) return INFER_OK;
    const json_t *all = json_object_get(fp4, "projections");
    infer_status st = open_projection(o, all, "gate");
    if (!st) st = open_projection(o, all, "up");
    return st ? st : open_projection(o, all, "down");
}

/* router_weights.bin: [E, d_model] a layer, by some writers followed by [E] biases: the size tells.
 */
static infer_status open_routers(opening *o)
{
    static const char name[] = "router_weights.bin";
    infer_vindex *v = o->v;
    if (!vindex_dir_has(v->dir, name)) return INFER_OK;
    const file_map *m = vindex_dir_map(v->dir, name, o->err);
    if (!m) return o->err->code;
    size_t size = v->dir->type == DT_F32 ? 4 : 2, plain = 0, experts = 0;
    for (int l = 0; l < v->n_layers; l++)
        experts += (size_t)v->layers[l].n_experts;
    plain = experts * (size_t)v->d_model * size;
    bool biased = m->size == plain + experts * size;
    if (!biased && m->size != plain)
        return vindex_stale(v->dir, o->err, name, "expected %zu bytes, found %zu", plain, m->size);
    const uint8_t *at = m->data;
    for (int l = 0; l < v->n_layers; l++) {
        vindex_layer *x = &v->layers[l];
        int n = x->n_experts;
        if (!n) continue;
        if (!tensor_present(&x->router)) x->router = matrix(name, v->dir->type, n, v->d_model, at);
        at += (size_t)n * (size_t)v->d_model * size;
        if (!biased) continue;
        float *bias = arena_alloc(&v->mem, (size_t)n, sizeof *bias);
        if (!bias) return error_set(o->err, INFER_NOMEM, "%s: out of memory", v->path);
        quant_formats[v->dir->type]->dequant(bias, at, (size_t)n);
        if (!x->router_bias) x->router_bias = bias;
        at += (size_t)n * size;
    }
    return INFER_OK;
}

static infer_status open_ffn(opening *o)
{
    infer_vindex *v = o->v;
    vindex_dir *d = v->dir;
    infer_status st = vindex_dir_manifest(d, "weight_manifest.json", NULL, &o->weights, o->err);
    bool q4k = vindex_dir_has(d, "interleaved_q4k.bin");
    if (!st && q4k)
        st = vindex_dir_manifest(d, "interleaved_q4k_manifest.json", "interleaved_q4k.bin",
                                 &o->ffn_q4k, o->err);
    if (!st && q4k && o->ffn_q4k.n && o->ffn_q4k.n != 3 * v->n_layers)
        st = vindex_stale(d, o->err, "interleaved_q4k_manifest.json",
                          "expected three entries for each of %d layers, found %d", v->n_layers,
                          o->ffn_q4k.n);
    for (int l = 0; !st && l < v->n_layers; l++) {
        st = open_float_layer(o, l);
        if (!st && o->ffn_q4k.n) st = open_q4k_layer(o, l);
    }
    for (int l = 0; !st && l < v->n_layers; l++)
        st = side_ffn(v, l, o->err);
    if (!st) st = open_features(o, "up_features.bin", false);
    if (!st) st = open_features(o, "down_features.bin", true);
    if (!st) st = side_down_rows(v, o->err);
    if (!st) st = open_interleaved(o, "interleaved.bin", DT_F32);
    if (!st) st = open_interleaved(o, "interleaved_q4.bin", DT_LARQL_Q4_0);
    if (!st) st = open_fp4(o);
    if (!st) st = open_routers(o);
    return st;
}

/* ---- opening --------------------------------------------------------------------------------- */

static infer_status open_settings(opening *o)
{
    infer_vindex *v = o->v;
    json_t *json = NULL;
    gguf *meta = NULL;
    arena scratch = { 0 };
    config_source s = { .path = v->path, .mem = &scratch };
    infer_status st = INFER_OK;
    v->gated = true;
    v->act = ACT_SILU;
    if (v->dir->extra || v->dir->config) {
        st = vindex_settings(&s, &json, &meta, v->dir, o->err);
        if (!st) st = config_load(&o->c, &o->arch, &s, o->err);
        if (!st) {
            v->gated = o->c.ffn == FFN_GATED;
            v->act = o->c.act;
        }
        if (st == INFER_UNSUPPORTED) st = INFER_OK; // asking needs no architecture
    }
    if (!st && meta && gguf_find(meta, "tokenizer.ggml.tokens"))
        st = tokenizer_from_gguf(&v->tok, meta, o->err);
    else if (!st && vindex_dir_has(v->dir, "tokenizer.json"))
        st = tokenizer_from_folder(&v->tok, v->path, o->err);
    gguf_close(meta);
    json_decref(json);
    arena_free(&scratch);
    return st;
}

static infer_status fill(infer_vindex *v, const char *path, const infer_vindex_options *options,
                         infer_error *err)
{
    opening o = { .v = v, .err = err };
    v->path = mem_strdup(path);
    if (!v->path) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    infer_status st = vindex_dir_open(&v->dir, path, NULL, &v->log, err);
    if (st) return st;
    v->n_layers = v->dir->n_layers;
    v->d_model = v->dir->d_model;
    v->n_vocab = v->dir->n_vocab;
    v->top_k = v->dir->top_k;
    v->embed_scale = v->dir->embed_scale;
    v->n_threads = options->n_threads ? options->n_threads : thread_count_default();
    v->ef_search = options->ef_search ? options->ef_search : 200;
    v->pin_budget = options->pin_bytes;
    v->layers = arena_zero(&v->mem, (size_t)v->n_layers, sizeof *v->layers);
    if (!v->layers) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    if ((st = open_settings(&o))) return st;
    if ((st = open_gates(&o))) return st;
    if ((st = open_embedding(&o))) return st;
    if ((st = open_ffn(&o))) return st;
    return open_meta(&o);
}

infer_status infer_vindex_open(infer_vindex **out, const char *path,
                               const infer_vindex_options *options, infer_error *err)
{
    infer_error own;
    infer_vindex_options o = { 0 };
    if (!err) err = &own;
    if (!out || !path) return error_set(err, INFER_ARGUMENT, "infer_vindex_open: NULL argument");
    *out = NULL;
    if (options) o = *options;
    if (!vindex_dir_is(path))
        return error_set(err, INFER_NOT_FOUND,
                         "%s: no vindex: expected a folder with index.json, as 'infer extract' "
                         "makes",
                         path);
    infer_vindex *v = mem_zero(1, sizeof *v);
    if (!v) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    v->log = o.log;
    infer_status st = fill(v, path, &o, err);
    if (!st) st = relations_open(v, err);
    if (!st) st = facts_open(v, err);
    if (!st) st = searcher_open(v, &o, err);
    if (st) {
        infer_vindex_close(v);
        return st;
    }
    *out = v;
    return error_clear(err);
}

void infer_vindex_close(infer_vindex *v)
{
    if (!v) return;
    searcher_close(v);
    relations_close(v);
    tokenizer_free(v->tok);
    vindex_dir_close(v->dir);
    arena_free(&v->mem);
    mem_free(v->path);
    mem_free(v);
}

/* ---- describing ------------------------------------------------------------------------------ */

/* A record of down_meta.bin that says nothing is all zero. */
static bool is_labelled(const vindex_layer *x, int feature, int top_k)
{
    if (!x->meta || feature < 0 || feature >= x->n_meta) return false;
    const uint8_t *r = x->meta + (size_t)feature * (8 + 8 * (size_t)top_k);
    return u32_at(r) || u32_at(r + 4);
}

infer_vindex_info infer_vindex_describe_index(const infer_vindex *v)
{
    const vindex_dir *d = v->dir;
    infer_vindex_info info = { .path = v->path,
                               .model = d->model,
                               .family = d->family,
                               .level = d->level,
                               .dtype = d->type == DT_F32 ? "f32" : "f16",
                               .quant = d->quant,
                               .n_layers = v->n_layers,
                               .d_model = v->d_model,
                               .d_ff = d->d_ff,
                               .n_vocab = v->n_vocab,
                               .top_k = v->top_k,
                               .bytes = vindex_dir_bytes(d),
                               .has_attention = d->has_weights,
                               .has_ffn = true,
                               .has_tokenizer = v->tok != NULL };
    memcpy(info.bands, d->bands, sizeof info.bands);
    for (int l = 0; l < v->n_layers; l++) {
        const vindex_layer *x = &v->layers[l];
        info.n_features += (uint64_t)x->n_features;
        info.has_meta |= x->meta != NULL;
        info.has_hnsw |= x->graph != NULL;
        bool up = tensor_present(&x->up) || !v->gated;
        bool down = tensor_present(&x->down) || tensor_present(&x->down_rows);
        info.has_ffn &= !x->n_features || (up && down);
        for (int f = 0; f < x->n_meta; f++)
            info.n_labelled += is_labelled(x, f, v->top_k);
    }
    return info;
}

infer_status infer_vindex_embedding(const infer_vindex *v, int32_t token, float *x,
                                    infer_error *err)
{
    if (token < 0 || token >= v->n_vocab)
        return error_set(err, INFER_ARGUMENT, "%s: token %d, expected 0 to %d", v->path, (int)token,
                         v->n_vocab - 1);
    tensor_row(x, &v->embed, token);
    for (int i = 0; i < v->d_model; i++)
        x[i] *= v->embed_scale;
    return error_clear(err);
}

int infer_vindex_n_features(const infer_vindex *v, int layer)
{
    return layer < 0 || layer >= v->n_layers ? -1 : v->layers[layer].n_features;
}

const infer_tokenizer *infer_vindex_tokenizer(const infer_vindex *v)
{
    return (const infer_tokenizer *)v->tok;
}
