/* load_vindex.c: the tensors and settings of a vindex, for the loader. */
#include "models/load_vindex.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "models/places.h"
#include "models/vindex_side.h"

/* ---- settings -------------------------------------------------------------------------------- */

static bool copy(json_t *to, const char *name, const json_t *from, const char *key)
{
    json_t *v = json_object_get(from, key);
    return !v || json_is_null(v) || !json_object_set(to, name, v);
}

/* What an index of another writer tells, under the names that config.json uses. */
static json_t *settings_of_others(const vindex_dir *d)
{
    static const struct {
        const char *hf, *key;
    } names[] = {
        { "model_type", "model_type" },
        { "head_dim", "head_dim" },
        { "num_attention_heads", "num_q_heads" },
        { "num_key_value_heads", "num_kv_heads" },
        { "rope_theta", "rope_base" },
        { "sliding_window", "sliding_window" },
        { "layer_types", "layer_types" },
        { "partial_rotary_factor", "partial_rotary_factor" },
        { "sliding_window_pattern", "sliding_window_pattern" },
        { "global_head_dim", "global_head_dim" },
        { "num_global_key_value_heads", "num_global_kv_heads" },
        { "attention_k_eq_v", "attention_k_eq_v" },
        { "num_kv_shared_layers", "num_kv_shared_layers" },
        { "hidden_size_per_layer_input", "per_layer_embed_dim" },
        { "rope_local_base_freq", "rope_local_base" },
        { "query_pre_attn_scalar", "query_pre_attn_scalar" },
        { "final_logit_softcapping", "final_logit_softcapping" },
    };
    static const struct {
        const char *hf, *key;
    } experts[] = {
        { "num_experts", "num_experts" },
        { "num_local_experts", "num_experts" },
        { "num_experts_per_tok", "top_k" },
        { "moe_intermediate_size", "moe_intermediate_size" },
    };
    json_t *o = json_pack("{s:i, s:i, s:i, s:i}", "num_hidden_layers", d->n_layers, "hidden_size",
                          d->d_model, "intermediate_size", d->d_ff, "vocab_size", d->n_vocab);
    bool ok = o != NULL;
    for (int i = 0; ok && i < COUNT_OF(names); i++)
        ok = copy(o, names[i].hf, d->config, names[i].key);
    const json_t *moe = json_object_get(d->config, "moe");
    for (int i = 0; ok && json_is_object(moe) && i < COUNT_OF(experts); i++)
        ok = copy(o, experts[i].hf, moe, experts[i].key);
    if (ok) return o;
    json_decref(o);
    return NULL;
}

infer_status vindex_settings(config_source *s, json_t **json, gguf **meta, vindex_dir *d,
                             infer_error *err)
{
    *json = NULL;
    *meta = NULL;
    s->path = arena_printf(s->mem, "%s/index.json", d->path);
    if (!s->path) return error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
    const char *name = json_string_value(json_object_get(d->extra, "metadata"));
    if (name) {
        if (strchr(name, '/') || name[0] == '.')
            return vindex_stale(d, err, "index.json", "infer.metadata: '%.60s' is no file name",
                                name);
        char *path = arena_printf(s->mem, "%s/%s", d->path, name);
        if (!path) return error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
        infer_status st = gguf_open(meta, path, &d->how, &d->log, err);
        s->g = *meta;
        return st;
    }
    json_t *own = json_object_get(d->extra, "config");
    if (own && !json_is_object(own))
        return vindex_stale(d, err, "index.json", "infer.config: expected an object");
    if (!own && !d->config)
        return error_set(err, INFER_NOT_FOUND,
                         "%s/index.json: no model_config: make it anew with 'infer extract --level "
                         "inference'",
                         d->path);
    *json = own ? json_incref(own) : settings_of_others(d);
    if (!*json) return error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
    const json_t *text = json_object_get(*json, "text_config");
    s->outer = *json;
    s->json = json_is_object(text) ? text : *json;
    return INFER_OK;
}

void vindex_conventions(config *c, const arch *a, const vindex_dir *d)
{
    config hf;
    config_init(&hf, a, false);
    c->norm_offset = hf.norm_offset;
    c->pairing = hf.pairing;
    c->moe.by_column = false;
    c->tied = !vindex_dir_has(d, "lm_head.bin") && !vindex_dir_has(d, "lm_head_q4.bin");
    if (!d->extra) c->embed_scale = (double)d->embed_scale;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static infer_status missing(const vindex_dir *d, infer_error *err, const char *what,
                            const char *level)
{
    return error_set(err, INFER_NOT_FOUND,
                     "%s: a model cannot run from this index: its level is '%s', without %s; make "
                     "it anew with 'infer extract --level %s'",
                     d->path, d->level, what, level);
}

static infer_status add_matrix(safetensors *s, const char *name, dtype type, int64_t rows,
                               int64_t cols, const uint8_t *data, infer_error *err)
{
    st_tensor t = { .name = name,
                    .dtype_name = quant_formats[type]->name,
                    .type = type,
                    .n_dims = 2,
                    .dims = { rows, cols },
                    .data = data,
                    .bytes = (uint64_t)rows * quant_row_bytes(type, (size_t)cols) };
    return st_add(s, &t, err);
}

static infer_status add_embedding(safetensors *s, vindex_dir *d, const arch *a, infer_error *err)
{
    const file_map *m = vindex_dir_map(d, "embeddings.bin", err);
    if (!m) return INFER_NOT_FOUND;
    uint64_t n = (uint64_t)d->n_vocab * (uint64_t)d->d_model;
    if (m->size != 4 * n && m->size != 2 * n)
        return vindex_stale(d, err, "embeddings.bin",
                            "expected %d rows of %d values of 4 or 2 bytes, found %zu bytes",
                            d->n_vocab, d->d_model, m->size);
    char name[256];
    place_key(name, sizeof name, a, ROLE_EMBED, 0, 0, ".weight");
    return add_matrix(s, name, m->size == 4 * n ? DT_F32 : DT_F16, d->n_vocab, d->d_model, m->data,
                      err);
}

/* Rows of gate_vectors.bin as the gate matrices of gated FFNs. */
static infer_status add_gates(safetensors *s, vindex_dir *d, const arch *a, const config *c,
                              infer_error *err)
{
    if (c->ffn == FFN_PLAIN) return INFER_OK; // its gate rows are the up matrix, which is there
    bool whole = vindex_dir_has(d, "gate_vectors.bin");
    if (!whole && (vindex_dir_has(d, "interleaved_q4k.bin") || !strcmp(d->ffn_layout, "per_layer")))
        return INFER_OK;
    bool q4 = !whole && vindex_dir_has(d, SIDE_GATES);
    const file_map *m = q4 ? NULL : vindex_dir_map(d, "gate_vectors.bin", err);
    const uint8_t *at = q4 ? side_gates(d, err) : NULL;
    if (!m && !at) return err->code ? err->code : INFER_NOT_FOUND;
    dtype type = q4 ? DT_LARQL_Q4_0 : d->type;
    size_t row = quant_row_bytes(type, (size_t)d->d_model);
    for (int l = 0; l < d->n_layers; l++) {
        const vindex_gates *g = &d->gates[l];
        if (m && (g->offset > m->size || g->length > m->size - g->offset))
            return vindex_stale(d, err, "gate_vectors.bin",
                                "layer %d is bytes %" PRIu64 " to %" PRIu64 ", found %zu bytes", l,
                                g->offset, g->offset + g->length, m->size);
        char name[256];
        int n = g->n_experts ? g->n_experts : g->n_features ? 1 : 0;
        int rows = g->n_experts ? g->per_expert : g->n_features;
        const uint8_t *data = m ? m->data + g->offset : at;
        if (q4) at += (size_t)g->n_features * row;
        for (int x = 0; x < n; x++) {
            tensor_role role = g->n_experts ? ROLE_EXPERT_GATE : ROLE_GATE;
            if (!place_key(name, sizeof name, a, role, l, x, ".weight"))
                return error_set(err, INFER_UNSUPPORTED, "%s: %s has no name for gates", d->path,
                                 a->name);
            if (st_find(s, name)) continue; // in blocks
            infer_status st = add_matrix(s, name, type, rows, d->d_model,
                                         data + (size_t)x * (size_t)rows * row, err);
            if (st) return st;
        }
    }
    return INFER_OK;
}

/* The entries of a manifest; of equal keys the last. */
static infer_status add_entries(safetensors *s, const vindex_manifest *m, infer_error *err)
{
    for (int i = 0; i < m->n; i++) {
        const vindex_entry *e = &m->v[i];
        if (!e->data || st_find(s, e->key) || vindex_entry_find(m, e->key) != e) continue;
        st_tensor t = { .name = e->key,
                        .dtype_name = quant_formats[e->type]->name,
                        .type = e->type,
                        .n_dims = e->n_dims,
                        .data = e->data,
                        .bytes = e->bytes };
        memcpy(t.dims, e->dims, sizeof e->dims);
        infer_status st = st_add(s, &t, err);
        if (st) return st;
    }
    return INFER_OK;
}

/* Files may be left out where others have the same tensors. */
static infer_status nothing_absent(const safetensors *s, const vindex_dir *d,
                                   const vindex_manifest *m, bool walk_only, infer_error *err)
{
    for (int i = 0; i < m->n; i++) {
        const char *file = m->v[i].absent;
        if (!file || st_find(s, m->v[i].key)) continue;
        if (walk_only && (!strcmp(file, "up_weights.bin") || !strcmp(file, "down_weights.bin")))
            continue;
        return missing(d, err, file, "inference");
    }
    return INFER_OK;
}

static infer_status fill(safetensors *s, vindex_dir *d, const arch *a, const config *c,
                         bool walk_only, infer_error *err)
{
    bool q4k = !strcmp(d->quant, "q4k");
    if (!d->has_weights || !vindex_dir_has(d, "weight_manifest.json"))
        return missing(d, err,
                       "attention and norms (weight_manifest.json, attn_weights.bin, "
                       "norms.bin)",
                       "inference");
    if (!q4k && !walk_only && !vindex_dir_has(d, "up_weights.bin") &&
        strcmp(d->ffn_layout, "per_layer"))
        return missing(d, err, "the FFN (up_weights.bin, down_weights.bin)", "inference");
    vindex_manifest m, weights;
    infer_status st = vindex_dir_manifest(d, "weight_manifest.json", NULL, &weights, err);
    if (!st) st = add_entries(s, &weights, err);
    if (!st && q4k)
        st = vindex_dir_manifest(d, "attn_weights_q4k_manifest.json", "attn_weights_q4k.bin", &m,
                                 err);
    if (!st && q4k) st = add_entries(s, &m, err);
    if (!st && q4k && !walk_only)
        st =
            vindex_dir_manifest(d, "interleaved_q4k_manifest.json", "interleaved_q4k.bin", &m, err);
    if (!st && q4k && !walk_only) st = add_entries(s, &m, err);
    if (!st) st = side_tensors(s, d, a, c, walk_only, err);
    if (!st) st = add_embedding(s, d, a, err);
    if (!st && !walk_only) st = add_gates(s, d, a, c, err);
    if (!st) st = nothing_absent(s, d, &weights, walk_only, err);
    return st;
}

infer_status vindex_tensors(safetensors **out, vindex_dir *d, const arch *a, const config *c,
                            bool walk_only, infer_error *err)
{
    infer_error own;
    if (!err) err = &own;
    infer_status st = st_new(out, d->path, err);
    if (!st) st = fill(*out, d, a, c, walk_only, err);
    if (!st) return error_clear(err);
    st_close(*out);
    *out = NULL;
    return st == INFER_NOT_FOUND && err->code ? err->code : st;
}
