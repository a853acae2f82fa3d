/*
 * config.h: a model's numbers, whichever container they come from.
 *
 * config_source is that container: the JSON of a Hugging Face config.json (text_config first, then
 * the top level), or GGUF keys "<architecture>.…". Each cfg_ call reads one setting under both its
 * names; what is wrong is added to the list of faults, so that a file's faults are told all at
 * once.
 */
#ifndef MODELS_CONFIG_H
#define MODELS_CONFIG_H

#include <jansson.h>

#include "base/error.h"
#include "models/rope.h"

/* A setting that GGUF has a key for, where its value goes, and what was read: what convert writes.
 */
typedef struct cfg_note {
    const char *key; // after "<architecture>."; NULL: GGUF has none
    const char *hf;  // config.json's, alternatives parted by '|'; NULL: it has none
    char kind;       // 'i' int, 'f' double, 'b' bool
    const void *at;
    int *const *of; // [n_layers] where layers differ, or NULL
    double value;
    bool found;
} cfg_note;

#define MAX_NOTES 192

typedef struct config_source {
    const char *path;    // for messages
    const json_t *json;  // config.json's text part; NULL for GGUF
    const json_t *outer; // config.json's top level (may be the same)
    const gguf *g;       // or GGUF
    const char *prefix;  // general.architecture
    arena *mem;          // holds arrays and strings
    fault_list faults;
    bool out_of_memory; // which is no fault of the file
    cfg_note *notes;    // [MAX_NOTES] filled as settings are asked for; or NULL
    int n_notes;
    cfg_note unnoted; // stands in where none is taken
} config_source;

/* Norms of queries and keys. */
typedef enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD,      // of each head, with the same weights
    QK_NORM_EACH_HEAD, // of each head, with its own weights
    QK_NORM_WHOLE,     // of all heads together
} qk_norm;

/* Mixture of experts. */
typedef struct moe_config {
    int n_experts; // 0: none
    int n_used;
    int d_ff;                  // of an expert
    int n_shared, d_ff_shared; // shared experts, and the width of them all; 0: none
    int n_groups, n_groups_used;
    bool group_top2;
    int n_dense;    // layers before the first that has experts
    uint8_t *dense; // [n_layers] 1: this one has none either; NULL: those alone
    moe_score score;
    bool renormalise;
    double weight_scale;
    bool by_column; // Hugging Face files hold stacks as [n_in, n_out], gate and up columns in turn
} moe_config;

/* Latent attention; n_latent 0: none. */
typedef struct mla_config {
    int n_latent, n_rope, n_nope, n_value;
    int q_rank; // 0: queries are made of the input itself
} mla_config;

typedef struct config {
    int n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, head_dim_v;
    // [n_layers] where layers differ, else NULL; head_dim_of is of values too
    int *d_ff_of, *n_kv_heads_of, *head_dim_of;
    bool global_v_is_k; // layers that see everything have no values but their raw keys
    int *kv_source;     // [n_layers] the layer whose keys and values are used; NULL: each its own
    int n_ctx;          // trained context
    bool tied;          // the embedding is the head (safetensors; GGUF tells by the tensor)
    bool qkv_bias, attention_bias, mlp_bias; // on q k v; on q k v o; on the FFN

    norm_kind norm;
    double norm_eps;
    float norm_offset; // added to norm weights
    bool bare_norms;   // norms have no weights
    qk_norm qk_norm;
    bool qk_norm_after_rope;
    double clip_qkv;               // 0: none
    bool fused_qkv, fused_gate_up; // in one tensor, unless the file has them apart
    bool head_bias;
    bool parallel;    // attention and FFN read the same stream
    bool shared_norm; // and the same normed input
    ffn_kind ffn;
    activation act;

    rope_spec rope;       // of layers that see everything, and of all where has_local is false
    rope_spec rope_local; // of sliding layers
    bool has_local;
    double rotary_fraction;       // rotated part of a head
    double rotary_fraction_local; // of sliding layers; 0: the same
    rope_pairing pairing;         // the family's for the container
    bool unrotated;               // no layer rotates: positions are learned
    uint8_t *no_rope;             // [n_layers] 1: this one does not; NULL: all do

    int window;       // of sliding layers; 0: none
    uint8_t *sliding; // [n_layers] 1: sliding; NULL: the family's rule
    int pattern;      // every pattern-th layer sees everything; 0: not given

    moe_config moe;
    mla_config mla;
    int ple_width; // per-layer embeddings; 0: none
    int n_streams; // alternating updates; 0: none
    double
        *sparsity; // [n_layers] deviations above the mean where gates are cut; NULL or -inf: none
    bool scale_stream;           // the per-layer embedding reads the first stream scaled
    double glu_limit, glu_alpha; // clamped gated unit; 0: not

    double query_scalar; // attention scale is its ^-1/2; 0: head_dim
    double attn_softcap, final_softcap;
    double embed_scale, residual_scale, attn_scale, logit_scale; // attn_scale 0: by query_scalar
} config;

/* How a setting was found. */
typedef enum cfg_found { FOUND_NONE, FOUND_NULL, FOUND, FOUND_BAD } cfg_found;

/* hf: the JSON key, alternatives parted by '|' (the first that is there counts); key: the GGUF key
 * after "<architecture>."; NULL: this container has no such setting. *out stays as it is unless
 * FOUND. A list of equal integers counts as that integer. */
cfg_found cfg_int(config_source *s, int *out, const char *hf, const char *key, int min, int max);
/* A number for each of n layers, or one for all. *of is NULL where all are equal; *out is the
 * largest. */
cfg_found cfg_layer_ints(config_source *s, int *out, int **of, int n, const char *hf,
                         const char *key, int min, int max);
cfg_found cfg_float(config_source *s, double *out, const char *hf, const char *key);
/* A list of n numbers, or one for all. */
cfg_found cfg_floats(config_source *s, double **out, int n, const char *hf, const char *key);
cfg_found cfg_bool(config_source *s, bool *out, const char *hf, const char *key);
/* *out is NUL-terminated, in the arena. */
cfg_found cfg_string(config_source *s, const char **out, const char *hf, const char *key);
/* A list of n flags, false or true, 0 or 1. */
cfg_found cfg_flags(config_source *s, uint8_t **out, const char *hf, const char *key, int n);
/* Zeroed memory that lives as long as the source; NULL sets s->out_of_memory. */
void *cfg_zero(config_source *s, size_t n, size_t size);
cfg_found cfg_activation(config_source *s, activation *out, const char *hf);
/* The name of a setting in this container, for messages: "key 'llama.block_count'", "hidden_size".
 */
const char *cfg_name(const config_source *s, const char *hf, const char *key);

/* Neutral values, then the family's defaults. */
void config_init(config *c, const arch *a, bool is_gguf);
/* Reads what all families share into c, which holds the family's defaults. */
void config_read(config_source *s, config *c);
/* Every pattern-th layer sees everything, the others slide, unless the file says it by layer. */
void config_slide_by_pattern(config_source *s, config *c);
/* Only sliding layers rotate. */
void config_rotate_sliding(config_source *s, config *c);
/* Fills what is derived and adds every fault. */
void config_check(config_source *s, config *c);

#define MAX_LAYERS 4096
#define MAX_WIDTH (1 << 20)

#endif
