/*
 * extract_index.c: what stands beside the matrices: index.json, the manifest, the tokenizer's
 * files, and, in the key "infer" of index.json, the model's whole settings, which other readers
 * ignore.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/mem.h"
#include "models/gguf_write.h"
#include "models/tok_write.h"
#include "vindex/extract.h"

#define METADATA "infer_metadata.gguf"

static infer_status no_memory(const extraction *x)
{
    return error_set(x->err, INFER_NOMEM, "extract: out of memory");
}

/* ---- index.json ------------------------------------------------------------------------------ */

/* The family's name as vindexes have it. */
static const char *family_of(const char *type)
{
    static const struct {
        const char *begin, *family;
    } names[] = {
        { "gemma3", "gemma3" },   { "gemma4", "gemma4" },   { "gemma2", "gemma2" },
        { "gemma", "gemma2" },    { "llama", "llama" },     { "phi", "generic" },
        { "gpt_oss", "gpt_oss" }, { "gpt-oss", "gpt_oss" }, { "deepseek", "deepseek" },
    };
    for (int i = 0; i < COUNT_OF(names); i++)
        if (!strncmp(type, names[i].begin, strlen(names[i].begin))) return names[i].family;
    return type;
}

typedef struct band_row {
    const char *family;
    int n_layers, syntax, knowledge; // last layers of the first two bands
} band_row;
static const band_row bands[] = {
    { "gemma3", 34, 13, 27 }, { "gemma3", 42, 16, 34 },  { "gemma2", 42, 16, 34 },
    { "gemma2", 26, 10, 20 }, { "gemma2", 46, 18, 37 },  { "gemma4", 30, 11, 23 },
    { "gemma4", 35, 13, 27 }, { "gemma4", 36, 14, 28 },  { "gemma4", 60, 23, 47 },
    { "llama", 32, 12, 25 },  { "mistral", 32, 12, 25 }, { "mixtral", 32, 12, 25 },
    { "qwen2", 32, 12, 25 },  { "phi", 32, 12, 25 },     { "llama", 40, 15, 32 },
    { "qwen2", 40, 15, 32 },  { "phi", 40, 15, 32 },     { "llama", 80, 31, 63 },
    { "qwen2", 80, 31, 63 },  { "qwen2", 28, 10, 22 },   { "qwen2", 64, 25, 51 },
    { "gpt2", 12, 4, 9 },     { "gpt2", 24, 9, 19 },     { "gpt2", 36, 14, 28 },
    { "gpt2", 48, 19, 38 },
};

bool extract_bands(int to[3][2], const extraction *x)
{
    int n = x->m->n_layers, s = 2 * n / 5 - 1, k = 4 * n / 5 - 1;
    const char *family = family_of(x->type_name);
    if (n < 8) return false;
    for (int i = 0; i < COUNT_OF(bands); i++)
        if (bands[i].n_layers == n && !strcmp(bands[i].family, family)) {
            s = bands[i].syntax;
            k = bands[i].knowledge;
        }
    to[0][0] = 0;
    to[0][1] = s;
    to[1][0] = s + 1;
    to[1][1] = k;
    to[2][0] = k + 1;
    to[2][1] = n - 1;
    return true;
}

static json_t *bands_of(const extraction *x)
{
    int b[3][2];
    if (!extract_bands(b, x)) return json_null();
    return json_pack("{s:[ii], s:[ii], s:[ii]}", "syntax", b[0][0], b[0][1], "knowledge", b[1][0],
                     b[1][1], "output", b[2][0], b[2][1]);
}

static json_t *layers_of(const extraction *x)
{
    json_t *list = json_array();
    uint64_t at = 0;
    size_t size = x->type == DT_F32 ? 4 : 2;
    for (int l = 0; list && l < x->m->n_layers; l++) {
        const moe_plan *m = extract_experts(x, l);
        uint64_t length = (uint64_t)x->features[l] * (uint64_t)x->m->d_model * size;
        json_t *o = json_pack("{s:i, s:i, s:I, s:I}", "layer", l, "num_features", x->features[l],
                              "offset", (json_int_t)at, "length", (json_int_t)length);
        if (m) {
            json_object_set_new(o, "num_experts", json_integer(m->n_experts));
            json_object_set_new(o, "num_features_per_expert", json_integer(m->d_ff));
        }
        json_array_append_new(list, o);
        at += length;
    }
    return list;
}

/* model_config, as other readers know it. */
static json_t *model_config(const extraction *x, const char *type)
{
    const infer_model *m = x->m;
    const layer_plan *p = &m->layers[0];
    const moe_plan *moe = NULL;
    int window = 0;
    for (int l = 0; l < m->n_layers; l++) {
        if (m->layers[l].window) window = m->layers[l].window;
        if (m->layers[l].moe) moe = m->layers[l].moe;
    }
    double base = 10000, local = 0;
    for (int l = 0; l < m->n_layers; l++) {
        int r = m->layers[l].rope;
        if (r == 0 || m->n_ropes == 1) base = m->ropes ? m->ropes[0].base : base;
        if (r == 1) local = m->ropes[1].base;
    }
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:f}", "model_type", type, "head_dim", p->head_dim,
                  "num_q_heads", p->n_heads, "num_kv_heads", p->n_kv_heads, "rope_base", base);
    if (!o) return NULL;
    json_object_set_new(o, "sliding_window", window ? json_integer(window) : json_null());
    json_object_set_new(o, "moe",
                        moe ? json_pack("{s:i, s:i, s:b, s:s, s:i, s:b}", "num_experts",
                                        moe->n_experts, "top_k", moe->n_used, "shared_expert",
                                        moe->shared_d_ff != 0, "router_type", "top_k_softmax",
                                        "moe_intermediate_size", moe->d_ff, "hybrid",
                                        moe->with_dense)
                            : json_null());
    json_object_set_new(o, "attention_k_eq_v", json_boolean(!tensor_present(&p->v.w) && !p->mla));
    if (local > 0) json_object_set_new(o, "rope_local_base", json_real(local));
    if (m->final_softcap != 0)
        json_object_set_new(o, "final_logit_softcapping", json_real((double)m->final_softcap));
    return o;
}

infer_status extract_settings(extraction *x)
{
    x->type_name = x->m->arch->name;
    x->own = json_pack("{s:i}", "version", 1);
    if (!x->own) return no_memory(x);
    if (x->m->gguf)
        return json_object_set_new(x->own, "metadata", json_string(METADATA)) ? no_memory(x)
                                                                              : INFER_OK;
    json_t *read = NULL;
    config_source s = { .mem = &x->mem };
    infer_status st = config_open_folder(&s, &read, x->m->path, x->err);
    if (st) return st;
    const char *named = json_string_value(json_object_get(s.json, "model_type"));
    if (named) x->type_name = arena_strndup(&x->mem, named, strlen(named));
    if (json_object_set_new(x->own, "config", read) || !x->type_name) return no_memory(x);
    return INFER_OK;
}

json_t *extract_index(extraction *x, json_t *sums)
{
    const infer_model *m = x->m;
    const char *family = family_of(x->type_name);
    json_t *o = json_object();
    if (!o) return NULL;
    json_object_set_new(o, "version", json_integer(2));
    json_object_set_new(o, "model", json_string(m->name));
    json_object_set_new(o, "family", json_string(family));
    json_object_set_new(o, "source",
                        json_pack("{s:s, s:n, s:n, s:s, s:s, s:s}", "huggingface_repo", m->name,
                                  "huggingface_revision", "safetensors_sha256", "extracted_at",
                                  x->extracted_at, "larql_version", "0.1.0", "tool", "infer"));
    json_object_set(o, "checksums", sums);
    json_object_set_new(o, "num_layers", json_integer(m->n_layers));
    json_object_set_new(o, "hidden_size", json_integer(m->d_model));
    json_object_set_new(o, "intermediate_size", json_integer(m->max_d_ff));
    json_object_set_new(o, "vocab_size", json_integer(m->n_vocab));
    json_object_set_new(o, "embed_scale", json_real((double)m->embed_scale));
    json_object_set_new(o, "extract_level", json_string(x->level));
    json_object_set_new(o, "dtype", json_string(x->type == DT_F32 ? "f32" : "f16"));
    json_object_set_new(o, "quant", json_string(x->o.quant));
    json_object_set_new(o, "layer_bands", bands_of(x));
    json_object_set_new(o, "layers", layers_of(x));
    json_object_set_new(o, "down_top_k", json_integer(x->top_k));
    json_object_set_new(o, "has_model_weights", json_boolean(x->level_no >= 1));
    json_object_set_new(o, "model_config", model_config(x, x->type_name));
    json_object_set(o, "infer", x->own);
    return o;
}

/* ---- files ----------------------------------------------------------------------------------- */

static infer_status write_text(extraction *x, const char *name, const char *text, size_t n)
{
    char *path = arena_printf(&x->mem, "%s/%s", x->work, name);
    atomic_file f;
    infer_status st = path ? atomic_open(&f, path, x->err) : no_memory(x);
    if (st) return st;
    fwrite(text, 1, n, f.f);
    return atomic_commit(&f, x->err);
}

static bool is_of(const item *it, const char *file) { return !strcmp(it->file, file); }

/* The places of a file of blocks. */
static infer_status write_places(extraction *x, const char *file, const char *name)
{
    json_t *list = json_array();
    for (size_t i = x->n_browse; list && i < x->n_items; i++) {
        const item *it = &x->items[i];
        if (is_of(it, file))
            json_array_append_new(list, json_pack("{s:s, s:[I, I], s:s, s:I, s:I}", "key", it->key,
                                                  "shape", (json_int_t)it->dims[0],
                                                  (json_int_t)it->dims[1], "format", it->kind,
                                                  "offset", (json_int_t)it->offset, "length",
                                                  (json_int_t)it->bytes));
    }
    char *text = list ? json_dumps(list, JSON_INDENT(2)) : NULL;
    infer_status st = text ? write_text(x, name, text, strlen(text)) : no_memory(x);
    free(text);
    json_decref(list);
    return st;
}

static infer_status write_manifest(extraction *x)
{
    json_t *list = json_array();
    for (size_t i = x->n_browse; list && i < x->n_items; i++) {
        const item *it = &x->items[i];
        if (is_of(it, "attn_weights_q4k.bin") || is_of(it, "interleaved_q4k.bin")) continue;
        json_t *shape = json_array();
        for (int d = 0; shape && d < it->n_dims; d++)
            json_array_append_new(shape, json_integer(it->dims[d]));
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:I, s:I, s:s}", "key", it->key, "kind",
                                        it->kind, "shape", shape, "offset", (json_int_t)it->offset,
                                        "length", (json_int_t)it->bytes, "file", it->file));
    }
    char *path = arena_printf(&x->mem, "%s/weight_manifest.json", x->work);
    atomic_file f;
    infer_status st = list && path ? atomic_open(&f, path, x->err) : no_memory(x);
    if (!st) {
        if (json_dumpf(list, f.f, JSON_INDENT(2)) || fputc('\n', f.f) < 0) {
            atomic_abandon(&f);
            st = error_set(x->err, INFER_IO, "%s: writing failed", path);
        } else {
            st = atomic_commit(&f, x->err);
        }
    }
    json_decref(list);
    return st;
}

#define MAX_COPIED (256u << 20)

static infer_status copy_file(extraction *x, const char *name)
{
    char *from = arena_printf(&x->mem, "%s/%s", x->m->path, name);
    char *to = arena_printf(&x->mem, "%s/%s", x->work, name);
    return from && to ? atomic_copy(from, to, MAX_COPIED, x->err) : no_memory(x);
}

/* A GGUF file of keys, and of the tensors that are settings: factors of rotary frequencies. */
static infer_status write_metadata(extraction *x)
{
    const gguf *g = x->m->gguf;
    gguf_writer *w = NULL;
    char *path = arena_printf(&x->mem, "%s/" METADATA, x->work);
    infer_status st = path ? gguf_writer_new(&w, path, x->err) : no_memory(x);
    if (st) return st;
    for (int i = 0; i < gguf_n_values(g); i++) {
        const gguf_value *v = gguf_value_at(g, i);
        if (v->key.n > 6 && !memcmp(v->key.s, "split.", 6)) continue;
        gguf_put_value(w, v);
    }
    for (int pass = 0; pass < 2 && !st; pass++) {
        for (int i = 0; i < gguf_n_tensors(g) && !st; i++) {
            const gguf_tensor *t = gguf_tensor_at(g, i);
            if (t->name.n < 5 || memcmp(t->name.s, "rope_", 5) || t->type < 0) continue;
            char *name = arena_strndup(&x->mem, t->name.s, t->name.n);
            if (!name)
                st = no_memory(x);
            else if (pass)
                st = gguf_write(w, t->data, (size_t)t->bytes, x->err);
            else
                gguf_put_tensor(w, name, (dtype)t->type, t->dims, t->n_dims, t->bytes);
        }
        if (!pass && !st) st = gguf_begin(w, x->err);
    }
    if (!st) st = gguf_finish(w, x->err);
    gguf_writer_free(w);
    return st;
}

/* A GGUF file's tokenizer and what ends a text, as Hugging Face folders have them. */
static infer_status write_tokenizer(extraction *x)
{
    char *text;
    size_t n;
    if (!x->m->tok) return INFER_OK;
    infer_status st = tok_write_json(&text, &n, x->m->tok, x->m->gguf, x->err);
    if (st == INFER_UNSUPPORTED) {
        log_line(&x->o.log, INFER_LOG_WARN, "%s: %s: other readers of the index need one",
                 x->m->path, x->err ? x->err->msg : "no tokenizer.json");
        return error_clear(x->err);
    }
    if (st) return st;
    st = write_text(x, "tokenizer.json", text, n);
    mem_free(text);
    if (!st) st = tok_write_config(&text, &n, x->m->tok, x->err);
    if (st) return st;
    st = write_text(x, "tokenizer_config.json", text, n);
    mem_free(text);
    json_t *ids = json_array(), *o = json_object();
    for (int i = 0; i < x->m->n_eos_ids; i++)
        json_array_append_new(ids, json_integer(x->m->eos_ids[i]));
    json_object_set_new(o, "eos_token_id", ids);
    char *json = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    if (!st) st = json ? write_text(x, "generation_config.json", json, strlen(json)) : no_memory(x);
    free(json);
    json_decref(o);
    return st;
}

infer_status extract_side_files(extraction *x)
{
    static const char *const copied[] = { "tokenizer.json",
                                          "tokenizer_config.json",
                                          "special_tokens_map.json",
                                          "generation_config.json",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "tokenizer.model",
                                          "vocab.json",
                                          "merges.txt",
                                          "added_tokens.json" };
    infer_status st = x->level_no >= 1 ? write_manifest(x) : INFER_OK;
    if (!st && x->q4k)
        st = write_places(x, "attn_weights_q4k.bin", "attn_weights_q4k_manifest.json");
    if (!st && x->interleaved)
        st = write_places(x, "interleaved_q4k.bin", "interleaved_q4k_manifest.json");
    if (st) return st;
    if (x->m->gguf) {
        st = write_metadata(x);
        return st ? st : write_tokenizer(x);
    }
    for (int i = 0; i < COUNT_OF(copied) && !st; i++)
        st = copy_file(x, copied[i]);
    return st;
}
