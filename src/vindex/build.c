/*
 * build.c: files that stand in for others, made of what an index has: gates in Q4_0, down rows in
 * blocks, attention in int8 or Q4_0, FFNs in a file for each layer.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/folder.h"
#include "base/mem.h"
#include "compute/quant_larql.h"
#include "models/vindex_side.h"
#include "vindex/vindex.h"

typedef struct building {
    infer_vindex *v;
    arena mem;
    float *row;     // [widest, padded]
    uint8_t *bytes; // a row of any format
    infer_error *err;
} building;

static infer_status no_memory(const building *b)
{
    return error_set(b->err, INFER_NOMEM, "%s: out of memory", b->v->path);
}

static int padded(int n) { return (n + 255) / 256 * 256; }

/* n numbers of b->row. */
static void put(building *b, FILE *f, dtype type, int n)
{
    size_t size = quant_row_bytes(type, (size_t)n);
    if (type == DT_F32)
        memcpy(b->bytes, b->row, size);
    else if (type == DT_Q4_K)
        larql_quantize_q4_k(b->bytes, b->row, (size_t)n);
    else
        quant_formats[type]->quantize(b->bytes, b->row, NULL, (size_t)n);
    fwrite(b->bytes, 1, size, f);
}

/* Rows [first, first + n) of d_model numbers each. */
static void put_rows(building *b, FILE *f, const tensor *t, int first, int n, dtype type, int cols,
                     int to_cols)
{
    for (int r = first; r < first + n; r++) {
        tensor_row(b->row, t, r);
        for (int i = cols; i < to_cols; i++)
            b->row[i] = 0;
        put(b, f, type, to_cols);
    }
}

static infer_status open_file(building *b, atomic_file *f, const char *name)
{
    char *path = arena_printf(&b->mem, "%s/%s", b->v->path, name);
    return path ? atomic_open(f, path, b->err) : no_memory(b);
}

static infer_status write_json(building *b, const char *name, const json_t *json)
{
    atomic_file f;
    infer_status st = json ? open_file(b, &f, name) : no_memory(b);
    if (st) return st;
    if (json_dumpf(json, f.f, JSON_INDENT(2) | JSON_REAL_PRECISION(9))) {
        atomic_abandon(&f);
        return error_set(b->err, INFER_IO, "%s/%s: writing failed", b->v->path, name);
    }
    fputc('\n', f.f);
    return atomic_commit(&f, b->err);
}

static infer_status check_width(const building *b, int block)
{
    if (b->v->d_model % block == 0) return INFER_OK;
    return error_set(b->err, INFER_UNSUPPORTED, "%s: rows of %d are no whole blocks of %d",
                     b->v->path, b->v->d_model, block);
}

/* ---- the kinds ------------------------------------------------------------------------------- */

static infer_status build_gates(building *b)
{
    infer_vindex *v = b->v;
    atomic_file f;
    infer_status st = check_width(b, 32);
    if (!st) st = open_file(b, &f, SIDE_GATES);
    if (st) return st;
    for (int l = 0; l < v->n_layers; l++)
        put_rows(b, f.f, &v->layers[l].gate, 0, v->layers[l].n_features, DT_LARQL_Q4_0, v->d_model,
                 v->d_model);
    return atomic_commit(&f, b->err);
}

static infer_status build_down_rows(building *b)
{
    static const char name[] = "down_features_q4k.bin";
    infer_vindex *v = b->v;
    int cols = padded(v->d_model);
    uint64_t at = 0;
    atomic_file f;
    for (int l = 0; l < v->n_layers; l++)
        if (v->layers[l].n_features && !tensor_present(&v->layers[l].down_rows))
            return error_set(b->err, INFER_NOT_FOUND,
                             "%s: layer %d has no down rows: make them with 'infer "
                             "build-down-features' first",
                             v->path, l);
    json_t *list = json_array();
    infer_status st = list ? open_file(b, &f, name) : no_memory(b);
    if (st) goto done;
    for (int l = 0; l < v->n_layers; l++) {
        const vindex_layer *x = &v->layers[l];
        char key[64];
        int rows = padded(x->n_features);
        uint64_t size = (uint64_t)rows * quant_row_bytes(DT_LARQL_Q6_K, (size_t)cols);
        put_rows(b, f.f, &x->down_rows, 0, x->n_features, DT_LARQL_Q6_K, v->d_model, cols);
        memset(b->row, 0, (size_t)cols * sizeof *b->row);
        for (int r = x->n_features; r < rows; r++)
            put(b, f.f, DT_LARQL_Q6_K, cols);
        snprintf(key, sizeof key, "layers.%d.mlp.down_proj.weight", l);
        json_array_append_new(list, json_pack("{s:s, s:[i, i], s:s, s:I, s:I}", "key", key, "shape",
                                              rows ? rows : 1, cols, "format", "Q6_K", "offset",
                                              (json_int_t)at, "length", (json_int_t)size));
        at += size;
    }
    st = atomic_commit(&f, b->err);
    if (!st) st = write_json(b, "down_features_q4k_manifest.json", list);
done:
    json_decref(list);
    return st;
}

/* A tensor of n numbers as int8, then a scale for each 32. */
static infer_status put_planes(building *b, FILE *f, const vindex_entry *e, json_t *o, uint64_t at)
{
    size_t n = (size_t)(e->dims[0] * e->dims[1]), plane = (n + 31) / 32 * 32;
    float *x = mem_zero(plane, sizeof *x), *scales = mem_zero(plane / 32 + 1, sizeof *scales);
    int8_t *q = mem_zero(plane + 1, 1);
    infer_status st = x && q && scales ? INFER_OK : no_memory(b);
    if (!st) quant_formats[e->type]->dequant(x, e->data, n);
    for (size_t k = 0; !st && k < plane / 32; k++) {
        float most = 0;
        for (int i = 0; i < 32; i++)
            most = fabsf(x[32 * k + (size_t)i]) > most ? fabsf(x[32 * k + (size_t)i]) : most;
        scales[k] = most / 127.0f;
        for (int i = 0; i < 32 && most > 0; i++) {
            float v = roundf(x[32 * k + (size_t)i] / scales[k]);
            q[32 * k + (size_t)i] = (int8_t)(v > 127 ? 127 : v < -128 ? -128 : v);
        }
    }
    if (!st) fwrite(q, 1, plane, f);
    if (!st) fwrite(scales, sizeof *scales, plane / 32, f);
    json_object_set_new(o, "q8_offset", json_integer((json_int_t)at));
    json_object_set_new(o, "q8_vals_len", json_integer((json_int_t)plane));
    json_object_set_new(o, "q8_scales_len", json_integer((json_int_t)(plane / 8)));
    json_object_set_new(o, "q8_total_len", json_integer((json_int_t)(plane + plane / 8)));
    mem_free(x);
    mem_free(scales);
    mem_free(q);
    return st;
}

static infer_status put_attention(building *b, FILE *f, const vindex_entry *e, bool q8,
                                  uint64_t *at, json_t *list)
{
    json_t *o = json_pack("{s:s, s:[I, I]}", "key", e->key, "shape", (json_int_t)e->dims[0],
                          (json_int_t)e->dims[1]);
    infer_status st = INFER_OK;
    if (json_array_append_new(list, o)) return no_memory(b);
    if (q8) {
        st = put_planes(b, f, e, o, *at);
        *at += (uint64_t)json_integer_value(json_object_get(o, "q8_total_len"));
        return st;
    }
    uint64_t size = (uint64_t)e->dims[0] * quant_row_bytes(DT_LARQL_Q4_0, (size_t)e->dims[1]);
    tensor t = { .data = e->data,
                 .type = (dtype)e->type,
                 .n_rows = (int)e->dims[0],
                 .n_cols = (int)e->dims[1],
                 .row_bytes = quant_row_bytes((dtype)e->type, (size_t)e->dims[1]) };
    put_rows(b, f, &t, 0, t.n_rows, DT_LARQL_Q4_0, t.n_cols, t.n_cols);
    json_object_set_new(o, "q4_offset", json_integer((json_int_t)*at));
    json_object_set_new(o, "q4_length", json_integer((json_int_t)size));
    *at += size;
    return st;
}

static infer_status build_attention(building *b, bool q8)
{
    infer_vindex *v = b->v;
    vindex_manifest m;
    atomic_file f;
    uint64_t at = 0;
    int n = 0;
    infer_status st = vindex_dir_manifest(v->dir, "weight_manifest.json", NULL, &m, b->err);
    for (int i = 0; !st && i < m.n; i++) {
        const json_t *row =
            json_array_get(json_object_get(v->dir->index, "weight_manifest.json"), (size_t)i);
        const char *file = json_string_value(json_object_get(row, "file"));
        bool is = file && !strcmp(file, "attn_weights.bin") && !strcmp(m.v[i].kind, "tensor");
        if (is && m.v[i].data && m.v[i].n_dims == 2 && m.v[i].dims[1] % 32 == 0) m.v[n++] = m.v[i];
    }
    if (!st && n != 4 * v->n_layers)
        st = error_set(b->err, INFER_UNSUPPORTED,
                       "%s: expected q, k, v and o of %d layers in attn_weights.bin with rows of "
                       "whole blocks of 32, found %d",
                       v->path, v->n_layers, n);
    json_t *list = json_array();
    if (!st && !list) st = no_memory(b);
    if (!st) st = open_file(b, &f, q8 ? SIDE_ATTN_Q8 : SIDE_ATTN_Q4);
    if (!st) {
        for (int i = 0; i < n && !st; i++)
            st = put_attention(b, f.f, &m.v[i], q8, &at, list);
        if (st)
            atomic_abandon(&f);
        else
            st = atomic_commit(&f, b->err);
    }
    if (!st)
        st = write_json(b, q8 ? "attn_weights_q8_manifest.json" : "attn_weights_q4_manifest.json",
                        list);
    json_decref(list);
    return st;
}

static void put_u32(FILE *f, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        fputc((int)(v >> 8 * i & 255), f);
}

static infer_status build_layer(building *b, int layer, dtype type, uint32_t id)
{
    infer_vindex *v = b->v;
    const vindex_layer *x = &v->layers[layer];
    int n = x->n_experts ? x->n_experts : 1, per = x->n_experts ? x->per_expert : x->n_features;
    char name[64];
    atomic_file f;
    if (!x->n_features || !v->gated || !tensor_present(&x->gate) || !tensor_present(&x->up) ||
        !tensor_present(&x->down))
        return error_set(b->err, INFER_UNSUPPORTED,
                         "%s: layer %d: expected gates, ups and downs: extract it at level "
                         "inference",
                         v->path, layer);
    snprintf(name, sizeof name, "layers/layer_%02d.weights", layer);
    infer_status st = open_file(b, &f, name);
    if (st) return st;
    uint64_t row = quant_row_bytes(type, (size_t)v->d_model), at = 24 + 32 * (uint64_t)n;
    uint64_t sizes[] = { 2 * (uint64_t)per * row,
                         (uint64_t)v->d_model * quant_row_bytes(type, (size_t)padded(per)) };
    fwrite("LYRW", 1, 4, f.f);
    const uint32_t head[] = { 1, id, (uint32_t)n, (uint32_t)per, (uint32_t)v->d_model };
    for (int i = 0; i < COUNT_OF(head); i++)
        put_u32(f.f, head[i], 4);
    for (int i = 0; i < 2 * n; i++) {
        put_u32(f.f, at, 8);
        put_u32(f.f, sizes[i % 2], 8);
        at += sizes[i % 2];
    }
    for (int i = 0; i < n; i++) {
        tensor down = tensor_slice(&x->down, i);
        put_rows(b, f.f, &x->gate, i * per, per, type, v->d_model, v->d_model);
        put_rows(b, f.f, &x->up, i * per, per, type, v->d_model, v->d_model);
        put_rows(b, f.f, &down, 0, v->d_model, type, per, padded(per));
    }
    return atomic_commit(&f, b->err);
}

static infer_status build_layers(building *b, dtype type, uint32_t id)
{
    infer_vindex *v = b->v;
    char *folder = arena_printf(&b->mem, "%s/layers", v->path);
    infer_status st = folder ? check_width(b, type == DT_F32 ? 1 : 256) : no_memory(b);
    if (!st && mkdir(folder, 0755) && errno != EEXIST)
        st = error_set(b->err, INFER_IO, "%s: %s", folder, strerror(errno));
    for (int l = 0; l < v->n_layers && !st; l++)
        st = build_layer(b, l, type, id);
    if (st) return st;
    folder_sync_of(folder);
    json_t *index = json_deep_copy(v->dir->index); // less the manifests that hang on it
    json_object_del(index, "weight_manifest.json");
    json_object_del(index, "interleaved_q4k_manifest.json");
    json_object_del(index, "down_features_q4k_manifest.json");
    json_object_set_new(index, "ffn_layout", json_string("per_layer"));
    st = write_json(b, "index.json", index);
    json_decref(index);
    return st;
}

static infer_status open_scratch(building *b)
{
    size_t widest = (size_t)b->v->d_model;
    for (int l = 0; l < b->v->n_layers; l++)
        if ((size_t)b->v->layers[l].n_features > widest)
            widest = (size_t)b->v->layers[l].n_features;
    for (int i = 0; i < b->v->n_layers; i++)
        if ((size_t)b->v->layers[i].gate.n_cols > widest)
            widest = (size_t)b->v->layers[i].gate.n_cols;
    widest = widest * 4 + 512; // outputs of attention may be wider than the model
    b->row = arena_alloc(&b->mem, widest, sizeof *b->row);
    b->bytes = arena_alloc(&b->mem, widest, sizeof *b->row);
    return b->row && b->bytes ? INFER_OK : no_memory(b);
}

infer_status infer_vindex_build(const char *path, const char *what, infer_error *err)
{
    infer_error own;
    building b = { .err = err ? err : &own };
    if (!path || !what) return error_set(err, INFER_ARGUMENT, "infer_vindex_build: NULL argument");
    infer_status st = infer_vindex_open(&b.v, path, NULL, b.err);
    if (st) return st;
    st = open_scratch(&b);
    if (!st && !strcmp(what, "gates-q4"))
        st = build_gates(&b);
    else if (!st && !strcmp(what, "down-q4k"))
        st = build_down_rows(&b);
    else if (!st && !strncmp(what, "attention-q", 11) && (what[11] == '8' || what[11] == '4'))
        st = build_attention(&b, what[11] == '8');
    else if (!st && !strcmp(what, "layers-f32"))
        st = build_layers(&b, DT_F32, 0);
    else if (!st && !strcmp(what, "layers-q4k"))
        st = build_layers(&b, DT_Q4_K, 4);
    else if (!st)
        st = error_set(b.err, INFER_ARGUMENT, "'%.40s' is nothing to build", what);
    infer_vindex_close(b.v);
    arena_free(&b.mem);
    return st ? st : error_clear(b.err);
}
