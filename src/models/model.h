/*
 * model.h: a model as the forward pass sees it: weights that are views into maps, and a plan: for each
 * layer a row that says what is computed, with no word about which family it belongs to.
 *
 * Data flow: container (gguf | safetensors) → config (config.h) → the architecture's row (arch.h) fills
 * the plan, each tensor checked for shape → infer_model. Immutable after open, shared by threads.
 */
#ifndef MODELS_MODEL_H
#define MODELS_MODEL_H

#include "base/arena.h"
#include "compute/backend.h"
#include "infer.h"
#include "models/gguf.h"
#include "models/safetensors.h"
#include "models/tokenizer.h"

/* Rotary embedding (Su et al. 2021) with its scaling. Frequencies are float32, as in transformers:
 * angle = (float)position * inv_freq. */
typedef enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_DYNAMIC,
                            ROPE_LONGROPE } rope_scaling;
typedef struct rope_plan {
    int n_pairs;        // rotated pairs
    int gap;            // between the halves of a pair, beyond n_pairs (kernels.h); usually 0
    rope_pairing pairing;
    const float *inv_freq; // [n_pairs], scaling applied
    float attention_factor; // multiplies cos and sin; 1 unless YaRN or longrope
    /* Frequencies that depend on length: dynamic NTK and longrope switch past original_len. */
    rope_scaling scaling;
    double base, factor;
    int dim;               // rotated dimensions, 2 * n_pairs
    int original_len;
    const float *inv_freq_long; // [n_pairs], longrope past original_len, or NULL
} rope_plan;

typedef enum ffn_kind { FFN_GATED, FFN_PLAIN, FFN_NONE } ffn_kind;

typedef struct layer_plan {
    /* attention */
    norm attn_norm;          // before; NORM_NONE where the family norms only after
    norm post_attn_norm;     // on the branch's output, before the residual add
    linear q, k, v, o;       // v absent: V is the raw K projection
    norm q_norm, k_norm, v_norm; // per head over head_dim ...
    bool qk_norm_whole;      // ... or one norm over all heads together (OLMo 2)
    bool qk_norm_per_head;   // weight [n_heads, head_dim]: its own weights for each head (Cohere)
    int n_heads, n_kv_heads, head_dim, head_dim_v;
    int rope;                // index into model->ropes; -1: none
    int window;              // 0: sees everything
    float attn_scale, attn_softcap;
    const float *sinks;      // [n_heads] or NULL
    int kv_source;           // the layer whose K and V are used: this one's own index, or an earlier

    /* FFN */
    norm ffn_norm, post_ffn_norm;
    ffn_kind ffn;
    activation act;
    linear gate, up, down;   // FFN_PLAIN: up, down
    int d_ff;

    bool parallel;           // attention and FFN read the same input and are added together
    float residual_scale;    // of both branches; 1
    float layer_scale;       // of the layer's output; 1
} layer_plan;

typedef struct arch arch;

struct infer_model {
    char *path;
    const arch *arch;
    arena mem;               // plan, names, converted norms and biases
    gguf *gguf;              // exactly one of the two
    safetensors *st;
    tokenizer *tok;          // NULL: the file has no vocabulary
    infer_log log;
    bool exact_only;

    int n_layers, d_model, n_vocab, n_ctx_train;
    int max_heads_width;     // widest n_heads * head_dim (or head_dim_v) and KV widths of any layer
    int max_d_ff;
    layer_plan *layers;      // [n_layers]
    rope_plan *ropes;
    int n_ropes;

    tensor embed;            // [n_vocab, d_model]
    float embed_scale;
    norm embed_norm;         // NORM_NONE mostly
    tensor pos_embed;        // learned positions [n_ctx_train, d_model], or absent
    norm final_norm;
    linear head;             // lm_head, or the embedding where tied
    float logit_scale;       // multiplies logits; 1
    float final_softcap;     // 0: none
    uint64_t n_params, weight_bytes, file_bytes;
    int32_t eos_ids[16];     // generation_config.json and config.json
    int n_eos_ids;
};

/* True where a file of the model shrank under its map. */
bool model_broken(const infer_model *m);

#endif
