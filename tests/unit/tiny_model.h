/*
 * tiny_model.h: model files written byte by byte: a GGUF writer that writes what it is told, right
 * or wrong, and a small model of two layers as a GGUF file and as a Hugging Face folder.
 */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <stdbool.h>

#include "test.h"

typedef struct blob {
    uint8_t *p;
    size_t n, cap;
} blob;

static inline void blob_put(blob *b, const void *data, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}
static inline void blob_u32(blob *b, uint32_t v) { blob_put(b, &v, 4); }
static inline void blob_u64(blob *b, uint64_t v) { blob_put(b, &v, 8); }
static inline void blob_string(blob *b, const char *s)
{
    blob_u64(b, strlen(s));
    blob_put(b, s, strlen(s));
}
static inline void blob_pad(blob *b, size_t to)
{
    while (b->n % to)
        blob_put(b, "", 1);
}
static inline void blob_free(blob *b)
{
    free(b->p);
    *b = (blob){ 0 };
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

enum {
    T_U8,
    T_I8,
    T_U16,
    T_I16,
    T_U32,
    T_I32,
    T_F32,
    T_BOOL,
    T_STRING,
    T_ARRAY,
    T_U64,
    T_I64,
    T_F64
};

typedef struct gguf_out {
    blob kv, dir, data;
    uint64_t n_kv, n_tensors;
    uint32_t version; // 0: 3
} gguf_out;

static inline void gg_raw(gguf_out *g, const char *key, uint32_t type, const void *value, size_t n)
{
    blob_string(&g->kv, key);
    blob_u32(&g->kv, type);
    blob_put(&g->kv, value, n);
    g->n_kv++;
}
static inline void gg_u32(gguf_out *g, const char *key, uint32_t v)
{
    gg_raw(g, key, T_U32, &v, 4);
}
static inline void gg_f32(gguf_out *g, const char *key, float v) { gg_raw(g, key, T_F32, &v, 4); }
static inline void gg_string(gguf_out *g, const char *key, const char *v)
{
    blob_string(&g->kv, key);
    blob_u32(&g->kv, T_STRING);
    blob_string(&g->kv, v);
    g->n_kv++;
}
static inline void gg_strings(gguf_out *g, const char *key, const char *const *v, size_t n)
{
    blob_string(&g->kv, key);
    blob_u32(&g->kv, T_ARRAY);
    blob_u32(&g->kv, T_STRING);
    blob_u64(&g->kv, n);
    for (size_t i = 0; i < n; i++)
        blob_string(&g->kv, v[i]);
    g->n_kv++;
}
/* An entry of the directory as it is told. */
static inline void gg_entry(gguf_out *g, const char *name, uint32_t n_dims, const uint64_t *dims,
                            uint32_t type, uint64_t offset)
{
    blob_string(&g->dir, name);
    blob_u32(&g->dir, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        blob_u64(&g->dir, dims[i]);
    blob_u32(&g->dir, type);
    blob_u64(&g->dir, offset);
    g->n_tensors++;
}
/* A tensor of F32, fastest dimension first; cols only where rows is 0. */
static inline void gg_tensor(gguf_out *g, const char *name, uint64_t cols, uint64_t rows,
                             const float *v)
{
    blob_pad(&g->data, 32);
    gg_entry(g, name, rows ? 2 : 1, (uint64_t[]){ cols, rows }, 0, g->data.n);
    blob_put(&g->data, v, cols * (rows ? rows : 1) * 4);
}
static inline blob gg_finish(gguf_out *g)
{
    blob out = { 0 };
    blob_put(&out, "GGUF", 4);
    blob_u32(&out, g->version ? g->version : 3);
    blob_u64(&out, g->n_tensors);
    blob_u64(&out, g->n_kv);
    blob_put(&out, g->kv.p, g->kv.n);
    blob_put(&out, g->dir.p, g->dir.n);
    blob_pad(&out, 32);
    blob_put(&out, g->data.p, g->data.n);
    blob_free(&g->kv);
    blob_free(&g->dir);
    blob_free(&g->data);
    return out;
}

/* ---- the tiny model -------------------------------------------------------------------------- */

// A test may want others.
#ifndef TINY_HEAD_DIM
#define TINY_HEAD_DIM 16
#endif
#ifndef TINY_CONTEXT
#define TINY_CONTEXT 128
#endif

enum {
    TINY_LAYERS = 2,
    TINY_D = 32,
    TINY_FF = 64,
    TINY_HEADS = 2,
    TINY_KV = 1,
    TINY_HEAD = TINY_HEAD_DIM,
    TINY_VOCAB = 40,
    TINY_CTX = TINY_CONTEXT
};

typedef struct tiny_tensor {
    char hf[96], gguf[64];
    int rows, cols; // rows 0: a vector
} tiny_tensor;

/* The list of its tensors; returns the count. gemma: with the norms that Gemma 3 has. */
static inline int tiny_tensors(tiny_tensor *t, bool gemma)
{
    int n = 0;
#define ADD(r, c, g, h)                                                                            \
    do {                                                                                           \
        snprintf(t[n].gguf, sizeof t[n].gguf, "%s.weight", g);                                     \
        snprintf(t[n].hf, sizeof t[n].hf, "model.%s.weight", h);                                   \
        t[n].rows = r;                                                                             \
        t[n++].cols = c;                                                                           \
    } while (0)
    ADD(TINY_VOCAB, TINY_D, "token_embd", "embed_tokens");
    ADD(0, TINY_D, "output_norm", "norm");
    for (int l = 0; l < TINY_LAYERS; l++) {
        static const struct {
            int rows, cols, gemma; // gemma 1: only there, 2: another HF name there
            const char *g, *h, *h_gemma;
        } layer[] = {
            { 0, TINY_D, 0, "attn_norm", "input_layernorm", NULL },
            { TINY_HEADS * TINY_HEAD, TINY_D, 0, "attn_q", "self_attn.q_proj", NULL },
            { TINY_KV * TINY_HEAD, TINY_D, 0, "attn_k", "self_attn.k_proj", NULL },
            { TINY_KV * TINY_HEAD, TINY_D, 0, "attn_v", "self_attn.v_proj", NULL },
            { TINY_D, TINY_HEADS * TINY_HEAD, 0, "attn_output", "self_attn.o_proj", NULL },
            { 0, TINY_HEAD, 1, "attn_q_norm", "self_attn.q_norm", NULL },
            { 0, TINY_HEAD, 1, "attn_k_norm", "self_attn.k_norm", NULL },
            { 0, TINY_D, 1, "post_attention_norm", "post_attention_layernorm", NULL },
            { 0, TINY_D, 2, "ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm" },
            { 0, TINY_D, 1, "post_ffw_norm", "post_feedforward_layernorm", NULL },
            { TINY_FF, TINY_D, 0, "ffn_gate", "mlp.gate_proj", NULL },
            { TINY_FF, TINY_D, 0, "ffn_up", "mlp.up_proj", NULL },
            { TINY_D, TINY_FF, 0, "ffn_down", "mlp.down_proj", NULL },
        };
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            char g[48], h[64];
            if (layer[i].gemma == 1 && !gemma) continue;
            snprintf(g, sizeof g, "blk.%d.%s", l, layer[i].g);
            snprintf(h, sizeof h, "layers.%d.%s", l,
                     gemma && layer[i].h_gemma ? layer[i].h_gemma : layer[i].h);
            ADD(layer[i].rows, layer[i].cols, g, h);
        }
    }
#undef ADD
    return n;
}

/* Its i-th tensor's values: small, fixed, all different. The caller frees. */
static inline float *tiny_values(int i, size_t n)
{
    float *v = malloc(n * sizeof(float));
    assert_non_null(v);
    for (size_t k = 0; k < n; k++)
        v[k] = (float)((k * 37 + (size_t)i * 11) % 101) / 64 - 0.75f;
    return v;
}

static inline size_t tiny_count(const tiny_tensor *t)
{
    return (size_t)t->cols * (size_t)(t->rows ? t->rows : 1);
}

static inline void tiny_keys(gguf_out *g, const char *arch)
{
    char key[96];
    const struct {
        const char *name;
        uint32_t v;
    } ints[] = { { "block_count", TINY_LAYERS },          { "embedding_length", TINY_D },
                 { "feed_forward_length", TINY_FF },      { "attention.head_count", TINY_HEADS },
                 { "attention.head_count_kv", TINY_KV },  { "attention.key_length", TINY_HEAD },
                 { "attention.value_length", TINY_HEAD }, { "context_length", TINY_CTX } };
    gg_string(g, "general.architecture", arch);
    gg_string(g, "general.name", "tiny");
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].name);
        gg_u32(g, key, ints[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gg_f32(g, key, 1e-5f);
    gg_u32(g, "tokenizer.ggml.eos_token_id", 7);
}

/* The tensors, but for the one named skip. */
static inline void tiny_data(gguf_out *g, bool gemma, const char *skip)
{
    tiny_tensor t[40];
    int n = tiny_tensors(t, gemma);
    for (int i = 0; i < n; i++) {
        if (skip && strcmp(skip, t[i].gguf) == 0) continue;
        float *v = tiny_values(i, tiny_count(&t[i]));
        gg_tensor(g, t[i].gguf, (uint64_t)t[i].cols, (uint64_t)t[i].rows, v);
        free(v);
    }
}

/* ---- safetensors ----------------------------------------------------------------------------- */

/* A file of header (JSON) and data. */
static inline void write_st(const char *path, const char *header, const void *data, size_t n)
{
    blob b = { 0 };
    blob_u64(&b, strlen(header));
    blob_put(&b, header, strlen(header));
    blob_put(&b, data, n);
    test_write(path, b.p, b.n);
    blob_free(&b);
}

/* Writes folder/file with the tiny model's tensors from to to, prefix in place of "model.", and
 * extra entries (",\"name\":{…}") at the end of the header. */
static inline void tiny_st(const char *folder, const char *file, bool gemma, const char *prefix,
                           int from, int to, const char *extra)
{
    tiny_tensor t[40];
    int n = tiny_tensors(t, gemma);
    blob header = { 0 }, data = { 0 };
    blob_put(&header, "{", 1);
    for (int i = from; i < n && i < to; i++) {
        char entry[300], shape[40];
        size_t bytes = tiny_count(&t[i]) * 4;
        if (t[i].rows)
            snprintf(shape, sizeof shape, "%d,%d", t[i].rows, t[i].cols);
        else
            snprintf(shape, sizeof shape, "%d", t[i].cols);
        snprintf(entry, sizeof entry,
                 "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                 i > from ? "," : "", prefix, t[i].hf + strlen("model."), shape, data.n,
                 data.n + bytes);
        blob_put(&header, entry, strlen(entry));
        float *v = tiny_values(i, tiny_count(&t[i]));
        blob_put(&data, v, bytes);
        free(v);
    }
    blob_put(&header, extra, strlen(extra));
    blob_put(&header, "}", 2);
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    write_st(path, (const char *)header.p, data.p, data.n);
    blob_free(&header);
    blob_free(&data);
}

#endif
