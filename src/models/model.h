/*
 * model.h: a model as the forward pass sees it: weights that are views into maps, and a plan: for
 * each layer a row that says what is computed, with no word about which family it belongs to.
 *
 * Data flow: container (gguf | safetensors) → config (config.h) → the architecture's row (arch.h)
 * fills the plan, each tensor checked for shape → infer_model. Immutable after open, shared by
 * threads.
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
typedef enum rope_scaling {
    ROPE_PLAIN,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_DYNAMIC,
    ROPE_LONGROPE,
    ROPE_PROPORTIONAL
} rope_scaling;
typedef struct rope_plan {
    int n_pairs; // rotated pairs
    int gap;     // between the halves of a pair, beyond n_pairs (kernels.h); usually 0
    rope_pairing pairing;
    const float *inv_freq;  // [n_pairs], scaling applied
    float attention_factor; // multiplies cos and sin; 1 unless YaRN or longrope
    /* Frequencies that depend on length: dynamic NTK and longrope switch past original_len. */
    rope_scaling scaling;
    double base, factor;
    int dim; // rotated dimensions, 2 * n_pairs
    int original_len;
    const float *inv_freq_long; // [n_pairs], longrope past original_len, or NULL
} rope_plan;

typedef enum ffn_kind { FFN_GATED, FFN_PLAIN, FFN_NONE } ffn_kind;

/* Mixture of experts (Shazeer et al. 2017). Scores are made of the router's logits, n_used experts
 * are chosen by score (plus select_bias, which weighs in the choice alone), and their outputs are
 * summed with weights made of the scores. */
typedef enum moe_score {
    MOE_SOFTMAX,      // over all experts, before the choice
    MOE_SIGMOID,      // each expert alone
    MOE_SOFTMAX_USED, // of the logits of the chosen ones, after the choice
} moe_score;
typedef struct moe_plan {
    int n_experts, n_used, d_ff;
    linear router;            // [n_experts, d_model]
    norm router_norm;         // of the router's own input (Gemma 4), else NORM_NONE
    bool router_raw;          // the router reads the residual stream, not the normed input
    const float *select_bias; // [n_experts] or NULL
    moe_score score;
    bool renormalise;               // weights of the chosen sum to 1
    float weight_scale;             // of the weights; 1
    const float *expert_scale;      // [n_experts] of the weights, or NULL
    int n_groups, n_groups_used;    // choice limited to the best groups; 0: no groups
    bool group_top2;                // a group's score is the sum of its two best, else its best
    const linear *gate, *up, *down; // [n_experts] each
    linear shared_gate, shared_up, shared_down; // the shared expert, absent: none
    int shared_d_ff;
    linear shared_router; // [1, d_model]: sigmoid weight of the shared expert; absent: 1
    bool with_dense;      // the layer's dense FFN runs beside the experts (Gemma 4), and:
    norm dense_norm, expert_in_norm, expert_norm; // dense output, experts' input and output
} moe_plan;

/* Multi-head latent attention (DeepSeek-V2). The cache keeps one latent vector and one rotated key
 * a position: K = [latent, rotated key] of one KV head, V = the latent. Queries are taken into
 * latent space by k_up, the result out of it by v_up. layer_plan.head_dim is n_latent + n_rope,
 * head_dim_v n_latent, n_kv_heads 1, and rope rotates the last n_rope dimensions. */
typedef struct mla_plan {
    int n_latent, n_rope, n_nope, n_value;
    linear q_a; // [q_rank, d_model]; absent: layer's q reads the input itself
    norm q_a_norm;
    linear kv_a;        // [n_latent + n_rope, d_model]
    norm kv_norm;       // over n_latent
    const linear *k_up; // [n_heads] each [n_latent, n_nope]
    const linear *v_up; // [n_heads] each [n_value, n_latent]
} mla_plan;

/* Per-layer embeddings (Gemma 3n and 4): a vector of `width` a token and layer, gated by the
 * residual stream and added to it after the FFN. */
typedef struct ple_plan {
    linear gate;    // [width, d_model]
    linear project; // [d_model, width]
    norm post_norm;
    activation act;
} ple_plan;

/* Alternating updates (AltUp, Baykal et al. 2023): the residual stream is n streams wide, of which
 * a layer computes the first. Before it, every stream is predicted from all; after it, every stream
 * is corrected by what the layer made of the first. The coefficients of both are made of the first
 * stream: m = tanh(router(norm(x))). */
typedef struct altup_plan {
    linear router;        // [n_streams, d_model]
    norm router_norm;     // its weights are divided by d_model
    const float *predict; // [n_streams, n_streams, n_streams] stream, from stream, m
    const float *correct; // [n_streams, n_streams] stream, m
    const float
        *out_scale; // [d_model] of the first stream where the per-layer embedding reads it; NULL: 1
} altup_plan;

/* Learned augmented residual (LAuReL, Menghani et al. 2024): a low-rank map of the attention's
 * input joins the residual stream beside it. */
typedef struct laurel_plan {
    linear left, right; // [rank, d_model], [d_model, rank]
    norm post_norm;
} laurel_plan;

typedef struct layer_plan {
    /* attention */
    norm attn_norm;              // before; NORM_NONE where the family norms only after
    norm post_attn_norm;         // on the branch's output, before the residual add
    linear q, k, v, o;           // v absent: V is the raw K projection
    norm q_norm, k_norm, v_norm; // per head over head_dim ...
    bool qk_norm_whole;          // ... or one norm over all heads together (OLMo 2)
    bool qk_norm_per_head; // weight [n_heads, head_dim]: its own weights for each head (Cohere)
    int n_heads, n_kv_heads, head_dim, head_dim_v;
    int rope;   // index into model->ropes; -1: none
    int window; // 0: sees everything
    float attn_scale, attn_softcap;
    const float *sinks;      // [n_heads] or NULL
    bool qk_norm_after_rope; // (Hunyuan)
    float clip_qkv;          // q, k and v are cut to [-clip, clip]; 0: not
    const mla_plan *mla;     // or NULL: q, k, v as above
    int kv_source; // the layer whose K and V are used: this one's own index, or an earlier

    /* FFN */
    norm ffn_norm, post_ffn_norm;
    ffn_kind ffn;
    activation act;
    linear gate, up, down; // FFN_PLAIN: up, down
    int d_ff;
    float glu_limit,
        glu_alpha; // gpt-oss: gate and up clamped, act(alpha * gate) * (up + 1); 0: not
    bool sparse;   // gate = max(gate - (its mean + sparse_cut * its deviation), 0)
    float sparse_cut;
    const moe_plan *moe;       // or NULL
    const ple_plan *ple;       // or NULL
    const altup_plan *altup;   // or NULL
    const laurel_plan *laurel; // or NULL

    bool parallel;        // attention and FFN read the same input and are added together
    float residual_scale; // of both branches; 1
    float layer_scale;    // of the layer's output; 1
} layer_plan;

typedef struct arch arch;

struct infer_model {
    char *path;
    const char *name; // general.name, or the file's or folder's
    const arch *arch;
    arena mem;  // plan, names, converted norms and biases
    gguf *gguf; // exactly one of the two
    safetensors *st;
    struct vindex_dir *dir;      // the folder whose tensors st lists, where it is a vindex
    gguf *meta;                  // and its settings, where it was made from a GGUF file
    const char *prefix, *outer;  // of names in st: of the text model, and outside it
    tokenizer *tok; // NULL: the file has no vocabulary
    infer_log log;
    const struct infer_vindex *ffn_index; // or NULL: the FFN runs from the plan's own weights
    const struct infer_patch *ffn_patch;  // or NULL
    bool walk_only;                       // the plan has no weights of dense FFNs

    int n_layers, d_model, n_vocab, n_ctx_train;
    int max_heads_width; // widest n_heads * head_dim (or head_dim_v) and KV widths of any layer
    int max_d_ff;
    layer_plan *layers; // [n_layers]
    rope_plan *ropes;
    int n_ropes;

    tensor embed; // [n_vocab, d_model]
    float embed_scale;
    norm embed_norm; // NORM_NONE mostly
    /* Per-layer embeddings; ple_width 0: none. in[l] = ple_sum_scale *
     * (norm(ple_project_scale * project(x)[l]) + ple_table_scale * table[id][l]) */
    int ple_width;
    tensor ple_table;   // [tokens, n_layers * ple_width]; ids past it have the row of id 0
    linear ple_project; // [n_layers * ple_width, d_model]
    norm ple_norm;      // over ple_width
    float ple_table_scale, ple_project_scale, ple_sum_scale;
    /* Streams beside the first (altup_plan), made of it before the first layer and taken back after
     * the last; n_streams 0: one alone. */
    int n_streams;
    const linear *stream_in, *stream_out; // [n_streams - 1] each [d_model, d_model]
    tensor pos_embed;                     // learned positions [n_ctx_train, d_model], or absent
    norm final_norm;
    linear head;         // lm_head, or the embedding where tied
    float logit_scale;   // multiplies logits; 1
    float final_softcap; // 0: none
    uint64_t n_params, weight_bytes, file_bytes;
    double open_s; // seconds that opening took
    bool pages_stay;         // the weights were asked to stay in memory: model_release does nothing
    uint64_t repacked_bytes; // of weights copied to the arena in another order than the file's
    int32_t eos_ids[16];     // generation_config.json and config.json
    int n_eos_ids;
};

/* Gives pages of weights that will not be read soon back to the system. */
void model_release(const infer_model *m, const void *from, size_t size);

/* True where a file of the model shrank under its map. */
bool model_broken(const infer_model *m);

#endif
