/* vindex_side.c: what stands in (vindex_side.h). */
#include "models/vindex_side.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/mem.h"
#include "models/places.h"

#define MAX_MANIFEST ((size_t)64 << 20)

/* ---- gates ----------------------------------------------------------------------------------- */

const uint8_t *side_gates(vindex_dir *d, infer_error *err)
{
    const file_map *m = vindex_dir_map(d, SIDE_GATES, err);
    if (!m) return NULL;
    size_t row = quant_row_bytes(DT_LARQL_Q4_0, (size_t)d->d_model);
    uint64_t want = 0;
    for (int l = 0; l < d->n_layers; l++)
        want += (uint64_t)d->gates[l].n_features * row;
    if (row && m->size == want && m->data) return m->data;
    vindex_stale(d, err, SIDE_GATES, "expected %" PRIu64 " bytes of blocks of 32, found %zu", want,
                 m->size);
    return NULL;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static int padded(int n) { return (n + 255) / 256 * 256; }

infer_status side_layer_open(side_layer *out, vindex_dir *d, int layer, infer_error *err)
{
    static const dtype types[] = { DT_F32,  DT_F16,        DT_BF16, DT_LARQL_Q4_0,
                                   DT_Q4_K, DT_LARQL_Q6_K, DT_Q8_0, DT_VINDEX_FP4 };
    char name[64];
    *out = (side_layer){ 0 };
    if (strcmp(d->ffn_layout, "per_layer")) return INFER_OK;
    snprintf(name, sizeof name, "layers/layer_%02d.weights", layer);
    const file_map *m = vindex_dir_map(d, name, err);
    if (!m) return err->code;
    if (m->size < 24)
        return vindex_stale(d, err, name, "%zu bytes, expected a header of 24", m->size);
    const uint8_t *p = m->data;
    if (memcmp(p, "LYRW", 4))
        return vindex_stale(d, err, name, "expected magic LYRW, found %02x%02x%02x%02x", p[0], p[1],
                            p[2], p[3]);
    uint32_t version = u32_at(p + 4), type = u32_at(p + 8), n = u32_at(p + 12),
             inter = u32_at(p + 16);
    uint32_t hidden = u32_at(p + 20);
    if (version != 1)
        return vindex_stale(d, err, name, "expected version 1, found %" PRIu32, version);
    if (type >= COUNT_OF(types))
        return vindex_stale(d, err, name, "expected a format of 0 to 7, found %" PRIu32, type);
    if (hidden != (uint32_t)d->d_model || !inter || inter > 1u << 24 || !n || n > 1u << 16)
        return vindex_stale(d, err, name,
                            "expected entries of width %d, found %" PRIu32 " of width %" PRIu32
                            " and %" PRIu32 " features",
                            d->d_model, n, hidden, inter);
    if ((m->size - 24) / 32 < n)
        return vindex_stale(d, err, name, "a table of %" PRIu32 " entries does not fit %zu bytes",
                            n, m->size);
    out->type = types[type];
    size_t row = quant_row_bytes(out->type, hidden);
    size_t down = quant_row_bytes(out->type, (size_t)padded((int)inter));
    if (!row || !down)
        return vindex_stale(d, err, name, "rows of %" PRIu32 " do not fit format %" PRIu32, hidden,
                            type);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *t = p + 24 + 32 * (size_t)i;
        const uint64_t want[] = { 2 * (uint64_t)inter * row, (uint64_t)hidden * down };
        for (int k = 0; k < 2; k++) {
            uint64_t at = u64_at(t + 16 * k), bytes = u64_at(t + 16 * k + 8);
            if (bytes != want[k] || at > m->size || bytes > m->size - at)
                return vindex_stale(d, err, name,
                                    "entry %" PRIu32 ": %s: expected %" PRIu64 " bytes of %zu, "
                                    "found %" PRIu64 " at %" PRIu64,
                                    i, k ? "down" : "gate and up", want[k], m->size, bytes, at);
        }
    }
    out->n = (int)n;
    out->inter = (int)inter;
    out->hidden = (int)hidden;
    out->file = p;
    out->table = p + 24;
    return INFER_OK;
}

static tensor matrix(dtype type, int rows, int cols, const uint8_t *data)
{
    return (tensor){ .name = "layers",
                     .data = data,
                     .type = type,
                     .n_rows = rows,
                     .n_cols = cols,
                     .n_slices = 1,
                     .row_bytes = quant_row_bytes(type, (size_t)cols) };
}

infer_status side_layer_entry(tensor *gate, tensor *up, tensor *down, const side_layer *x, int i,
                              vindex_dir *d, infer_error *err)
{
    const uint8_t *t = x->table + 32 * (size_t)i;
    *gate = matrix(x->type, x->inter, x->hidden, x->file + u64_at(t));
    *up = *gate;
    up->data += (size_t)x->inter * gate->row_bytes;
    *down = matrix(x->type, x->hidden, padded(x->inter), x->file + u64_at(t + 16));
    if (down->n_cols == x->inter) return INFER_OK;
    size_t cols = (size_t)x->inter;
    float *row = mem_alloc((size_t)down->n_cols, sizeof *row);
    float *to = arena_alloc(&d->mem, (size_t)x->hidden * cols, sizeof *to);
    for (int r = 0; r < x->hidden && row && to; r++) {
        tensor_row(row, down, r);
        memcpy(to + (size_t)r * cols, row, cols * sizeof *to);
    }
    mem_free(row);
    if (!row || !to) return error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
    *down = matrix(DT_F32, x->hidden, x->inter, (const uint8_t *)to);
    return INFER_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static infer_status add(safetensors *s, const char *key, const tensor *t, infer_error *err)
{
    if (st_find(s, key)) return INFER_OK;
    st_tensor x = { .name = key,
                    .dtype_name = quant_formats[t->type]->name,
                    .type = t->type,
                    .n_dims = 2,
                    .dims = { t->n_rows, t->n_cols },
                    .data = t->data,
                    .bytes = (uint64_t)t->n_rows * t->row_bytes };
    return st_add(s, &x, err);
}

static infer_status add_layer(safetensors *s, vindex_dir *d, const arch *a, int layer,
                              infer_error *err)
{
    side_layer x;
    infer_status st = side_layer_open(&x, d, layer, err);
    bool moe = x.n > 1 || d->gates[layer].n_experts;
    const tensor_role roles[] = { moe ? ROLE_EXPERT_GATE : ROLE_GATE,
                                  moe ? ROLE_EXPERT_UP : ROLE_UP,
                                  moe ? ROLE_EXPERT_DOWN : ROLE_DOWN };
    for (int i = 0; i < x.n && !st; i++) {
        tensor parts[3];
        char key[256];
        st = side_layer_entry(&parts[0], &parts[1], &parts[2], &x, i, d, err);
        for (int k = 0; k < 3 && !st; k++)
            if (place_key(key, sizeof key, a, roles[k], layer, i, ".weight"))
                st = add(s, key, &parts[k], err);
    }
    return st;
}

/* The planes of a tensor of n numbers: int8, then a float32 for each 32. */
static float *join_planes(vindex_dir *d, const uint8_t *q, const uint8_t *scales, size_t n)
{
    float *to = arena_alloc(&d->mem, n, sizeof *to), scale;
    for (size_t i = 0; i < n && to; i++) {
        memcpy(&scale, scales + i / 32 * 4, 4);
        to[i] = (float)(int8_t)q[i] * scale;
    }
    return to;
}

typedef struct attention_file {
    safetensors *s;
    vindex_dir *d;
    const arch *a;
    const config *c;
    const file_map *map;
    const char *name; // of the manifest
    bool q8;
    infer_error *err;
} attention_file;

static bool number(const json_t *o, const char *key, uint64_t *out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t)json_integer_value(v) : 0;
    return json_is_integer(v) && json_integer_value(v) >= 0;
}

/* Entry i: q, k, v, o of layer i / 4. Its shape is the model's. */
static infer_status add_attention(const attention_file *f, int i, const json_t *row)
{
    static const tensor_role roles[] = { ROLE_Q, ROLE_K, ROLE_V, ROLE_O };
    const config *c = f->c;
    int layer = i / 4, hd = c->head_dim_of ? c->head_dim_of[layer] : c->head_dim;
    int kv = c->n_kv_heads_of ? c->n_kv_heads_of[layer] : c->n_kv_heads;
    int64_t rows = roles[i % 4] == ROLE_Q   ? (int64_t)c->n_heads * hd
                   : roles[i % 4] == ROLE_O ? c->d_model
                                            : (int64_t)kv * hd;
    int64_t cols = roles[i % 4] == ROLE_O ? (int64_t)c->n_heads * hd : c->d_model;
    uint64_t n = (uint64_t)(rows * cols), at = 0, bytes = 0, plane = (n + 31) / 32 * 32;
    char key[256];
    if (!place_key(key, sizeof key, f->a, roles[i % 4], layer, 0, ".weight") ||
        cols % 32) // blocks of a row
        return error_set(f->err, INFER_UNSUPPORTED, "%s/%s: attention of %s has no such form",
                         f->d->path, f->name, f->a->name);
    bool ok = number(row, f->q8 ? "q8_offset" : "q4_offset", &at) &&
              number(row, f->q8 ? "q8_total_len" : "q4_length", &bytes);
    uint64_t want = f->q8 ? plane + plane / 8 : n / 32 * 18;
    if (!ok || bytes != want || at > f->map->size || bytes > f->map->size - at)
        return vindex_stale(f->d, f->err, f->name,
                            "entry %d: expected %" PRIu64 " bytes of %zu for [%" PRId64 ", %" PRId64
                            "], found %" PRIu64 " at %" PRIu64,
                            i, want, f->map->size, rows, cols, bytes, at);
    if (st_find(f->s, key)) return INFER_OK;
    tensor t = { .type = DT_LARQL_Q4_0,
                 .data = f->map->data + at,
                 .n_rows = (int)rows,
                 .n_cols = (int)cols,
                 .row_bytes = quant_row_bytes(DT_LARQL_Q4_0, (size_t)cols) };
    if (f->q8) {
        t.type = DT_F32;
        t.row_bytes = (size_t)cols * sizeof(float);
        t.data = (const uint8_t *)join_planes(f->d, f->map->data + at, f->map->data + at + plane,
                                              (size_t)n);
        if (!t.data) return error_set(f->err, INFER_NOMEM, "%s: out of memory", f->d->path);
    }
    return add(f->s, key, &t, f->err);
}

/* The manifest's rows, the caller's. */
static infer_status read_rows(json_t **out, vindex_dir *d, const char *name, infer_error *err)
{
    char *text, *path = arena_printf(&d->mem, "%s/%s", d->path, name);
    size_t n;
    json_error_t why;
    *out = NULL;
    if (!path) return error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
    if (!file_exists(path)) return vindex_stale(d, err, name, "missing");
    infer_status st = file_read(path, MAX_MANIFEST, &text, &n, err);
    if (st) return st;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    mem_free(text);
    return *out ? INFER_OK : vindex_stale(d, err, name, "line %d: %s", why.line, why.text);
}

static infer_status add_attentions(safetensors *s, vindex_dir *d, const arch *a, const config *c,
                                   bool q8, infer_error *err)
{
    const char *file = q8 ? SIDE_ATTN_Q8 : SIDE_ATTN_Q4;
    attention_file f = { s, d, a, c, NULL, NULL, q8, err };
    f.name = q8 ? "attn_weights_q8_manifest.json" : "attn_weights_q4_manifest.json";
    if (!vindex_dir_has(d, file)) return INFER_OK;
    json_t *list;
    infer_status st = read_rows(&list, d, f.name, err);
    if (st) return st;
    if (!(f.map = vindex_dir_map(d, file, err)))
        st = err->code;
    else if (!json_is_array(list) || json_array_size(list) != 4 * (size_t)d->n_layers)
        st = vindex_stale(d, err, f.name, "expected four entries for each of %d layers, found %zu",
                          d->n_layers, json_array_size(list));
    for (int i = 0; i < 4 * d->n_layers && !st; i++)
        st = add_attention(&f, i, json_array_get(list, (size_t)i));
    json_decref(list);
    return st;
}

infer_status side_tensors(safetensors *s, vindex_dir *d, const arch *a, const config *c,
                          bool walk_only, infer_error *err)
{
    infer_status st = add_attentions(s, d, a, c, true, err);
    if (!st) st = add_attentions(s, d, a, c, false, err);
    for (int l = 0; l < d->n_layers && !st && !walk_only; l++)
        st = add_layer(s, d, a, l, err);
    return st;
}
