/*
 * arch.h: what a family of models is: one constant row, in arch_<name>.c, listed in arch.c.
 *
 * A row gives the names that files call the family by, the names of its tensors where they differ
 * from the usual ones, what its configuration class assumes, its own settings, and how a layer is
 * planned. Nothing else in the program knows which family it runs.
 */
#ifndef MODELS_ARCH_H
#define MODELS_ARCH_H

#include "models/config.h"

/* What a tensor is for. */
typedef enum tensor_role {
    ROLE_EMBED,
    ROLE_POS_EMBED,
    ROLE_FINAL_NORM,
    ROLE_HEAD,
    ROLE_ATTN_NORM,
    ROLE_POST_ATTN_NORM,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_QKV, // q, k and v in one tensor
    ROLE_O,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_FFN_NORM,
    ROLE_POST_FFN_NORM,
    ROLE_GATE,
    ROLE_UP,
    ROLE_GATE_UP, // both in one tensor
    ROLE_DOWN,
    /* Mixture of experts: each expert's tensors, all of them in one, the shared expert's. */
    ROLE_ROUTER,
    ROLE_SELECT_BIAS,
    ROLE_EXPERT_GATE,
    ROLE_EXPERT_UP,
    ROLE_EXPERT_DOWN,
    ROLE_EXPERTS_GATE_UP,
    ROLE_EXPERTS_DOWN,
    ROLE_SHARED_GATE,
    ROLE_SHARED_UP,
    ROLE_SHARED_GATE_UP,
    ROLE_SHARED_DOWN,
    ROLE_SHARED_ROUTER,
    ROLE_SINKS,
    /* Latent attention. */
    ROLE_Q_A,
    ROLE_Q_A_NORM,
    ROLE_Q_B,
    ROLE_KV_A,
    ROLE_KV_A_NORM,
    ROLE_KV_B,
    ROLE_K_B,
    ROLE_V_B,
    /* Per-layer embeddings, the layer's scale. */
    ROLE_PLE_TABLE,
    ROLE_PLE_PROJECT,
    ROLE_PLE_NORM,
    ROLE_PLE_GATE,
    ROLE_PLE_OUT,
    ROLE_PLE_POST_NORM,
    ROLE_LAYER_SCALE,
    /* Experts beside a dense FFN. */
    ROLE_ROUTER_SCALE,
    ROLE_EXPERT_SCALE,
    ROLE_DENSE_POST_NORM,
    ROLE_EXPERT_PRE_NORM,
    ROLE_EXPERT_POST_NORM,
    /* Alternating updates ('#' of the first two is the stream), learned augmented residual. */
    ROLE_STREAM_IN,
    ROLE_STREAM_OUT,
    ROLE_ALTUP_ROUTER,
    ROLE_ALTUP_NORM,
    ROLE_ALTUP_PREDICT,
    ROLE_ALTUP_CORRECT,
    ROLE_ALTUP_SCALE,
    ROLE_LAUREL_LEFT,
    ROLE_LAUREL_RIGHT,
    ROLE_LAUREL_NORM,
    ROLE_COUNT
} tensor_role;

/* '#' stands for the layer, '@' for the expert; ".weight" or ".bias" is added, unless the name ends
 * with '!', which is left out. A Hugging Face name counts from the text
 * model's prefix ("model."), or from outside it where it begins with '/'. NULL: the family has no
 * such tensor in that container. */
typedef struct tensor_name {
    tensor_role role;
    const char *hf, *gguf;
} tensor_name;

typedef struct loader loader;

struct arch {
    const char *name;
    const char *const *hf_names;   // model_type and class names; ends with NULL
    const char *const *gguf_names; // general.architecture; ends with NULL
    const tensor_name *names;      // where they differ; ends with ROLE_COUNT; or NULL
    /* What the family assumes where its file is silent; c is zeroed but for neutral factors. */
    void (*defaults)(config *c, bool is_gguf);
    /* The family's own settings, after config_read; or NULL. */
    void (*read_config)(config_source *s, config *c);
    /* Tensors beside the usual ones that belong to no layer; or NULL. */
    void (*plan_model)(loader *l);
    /* Fills p, which is zeroed; faults go to the loader. */
    void (*plan_layer)(loader *l, layer_plan *p, int layer);
    rope_pairing gguf_pairing; // of rope in GGUF files (q and k rows permuted: adjacent)
    rope_pairing hf_pairing;
    bool hf_transposed;  // Hugging Face files hold the layers' matrices as [n_in, n_out]
    bool hf_qkv_by_head; // and rows of ROLE_QKV as q, k and v of one KV head after the other
};

extern const arch *const archs[]; // ends with NULL
const arch *arch_find_hf(const char *name);
const arch *arch_find_gguf(const char *name, size_t n);
/* The names of a role in the family's files. */
const tensor_name *arch_tensor_name(const arch *a, tensor_role role);
/* Whether a tensor of a file is known to be no part of the text model, or nothing to compute with.
 */
bool tensor_is_foreign(const char *name, size_t n);
/* Makes a folder's config.json s's container; *json is the caller's (json_decref). */
infer_status config_open_folder(config_source *s, json_t **json, const char *folder,
                                infer_error *err);
/* The family that s names, and its numbers. */
infer_status config_load(config *c, const arch **a, config_source *s, infer_error *err);
/* "llama, mistral, …" */
void arch_list(char *text, size_t size);

/* ---- for plan_layer (load.c) ----------------------------------------------------------------- */

struct loader {
    infer_model *m;
    const arch *arch;
    config c;
    const char *prefix, *outer; // Hugging Face names: of the text model, and outside it
    bool *used;                 // [tensors of the file]
    fault_list faults;          // missing tensors and wrong shapes
    bool out_of_memory;
};

/* The settings are GGUF's, which leaves some things to the tensors to tell. */
bool loader_gguf_settings(const loader *l);

typedef enum bias_rule { BIAS_NONE, BIAS_OPTIONAL, BIAS_NEEDED } bias_rule;
/* Of a bias that the config speaks of. GGUF does not: its tensors tell. */
static inline bias_rule bias_rule_of(const loader *l, bool bias)
{
    return loader_gguf_settings(l) ? BIAS_OPTIONAL : bias ? BIAS_NEEDED : BIAS_NONE;
}

/* The weight [n_out, n_in] and its bias. */
void load_linear(loader *l, linear *out, tensor_role role, int layer, int n_out, int n_in,
                 bias_rule bias);
/* The bias alone, which the file must have. */
const float *load_bias(loader *l, tensor_role role, int layer, int n_out);
/* n_parts matrices over n_in inputs whose rows lie in one tensor, part after part, and their
 * biases. Where n_groups is not 1 the tensor has that many groups of rows, each with its share of
 * every part, and the rows are copied. */
void load_fused(loader *l, linear *const *parts, const int *n_out, int n_parts, tensor_role role,
                int layer, int n_in, int n_groups, bias_rule bias);
/* Whether the file has the role's weight. */
bool load_has(const loader *l, tensor_role role, int layer);
/* The family's kind of norm over width. False where there is none (which is a fault unless
 * optional, or the family has no such norm). */
bool load_norm(loader *l, norm *out, tensor_role role, int layer, int width, bool optional);
/* As load_norm, for weights [n_heads, head_dim]: each head's own. */
bool load_head_norms(loader *l, norm *out, tensor_role role, int layer, int n_heads, int head_dim);
/* The weight alone, any number of rows where n_rows is 0. False where there is none (a fault unless
 * optional). */
bool load_tensor(loader *l, tensor *out, tensor_role role, int layer, int n_rows, int n_cols,
                 bool optional);
/* Experts' matrices in one tensor [n_slices, n_rows, n_cols]; as load_tensor. */
bool load_stack(loader *l, tensor *out, tensor_role role, int layer, int n_slices, int n_rows,
                int n_cols, bool optional);
/* The matrix of one expert, and its bias where there is one. */
void load_expert(loader *l, linear *out, tensor_role role, int layer, int expert, int n_rows,
                 int n_cols);
/* n numbers, as float32. NULL where there are none (a fault unless optional). */
const float *load_floats(loader *l, tensor_role role, int layer, int n, bool optional);
/* Numbers [n_rows, n] beside the tensor of a role, whose name `suffix` follows. */
const float *load_float_rows(loader *l, tensor_role role, int layer, const char *suffix, int n_rows,
                             int n, bool optional);
/* The bytes of a tensor of no type of ours, of n_dims dimensions as in dims, that stand for
 * n_params parameters; NULL where there are none, which is a fault. */
const uint8_t *load_bytes(loader *l, tensor_role role, int layer, const char *suffix,
                          const int64_t *dims, int n_dims, uint64_t n_params);
/* Whether the file has the role's tensor with another ending than ".weight". */
bool load_has_suffix(const loader *l, tensor_role role, int layer, const char *suffix);
/* Memory of the model for weights in another order than the file's, counted. */
uint8_t *load_repacked(loader *l, size_t bytes);
/* Columns first, first + step, … of t as the rows of *out, copied; quantised ones become float32.
 */
void load_exchanged(loader *l, tensor *out, const tensor *t, int first, int step);

/* A tensor that the file may have and the model does not need. */
void ignore_tensor(loader *l, tensor_role role, int layer);
/* Opens the loader on m's container and finds the names' prefix. */
infer_status loader_open(loader *l, infer_model *m, const arch *a, const config *c,
                         infer_error *err);
/* Warns of tensors that nothing used; gives the faults. */
infer_status loader_close(loader *l, infer_error *err);

/* The usual layer by its config: norms as far as the family names them, q k v o, window where the
 * layer slides, FFN. Families that differ change its result. */
void plan_attention(loader *l, layer_plan *p, int layer);
void plan_ffn(loader *l, layer_plan *p, int layer);
void plan_usual(loader *l, layer_plan *p, int layer);

/* ---- families with experts (experts.c) ------------------------------------------------------- */

/* Reads c->moe, which holds the family's defaults; and checks it. */
void config_read_experts(config_source *s, config *c);
void config_check_experts(config_source *s, const config *c);
/* The layer's FFN is the dense one: by the file's tensors in GGUF, else by the config. */
bool layer_is_dense(const loader *l, int layer);
/* Norms, router, experts and shared expert. The plan, which is p->moe; NULL without memory. */
moe_plan *plan_moe(loader *l, layer_plan *p, int layer);
/* plan_attention, then plan_ffn or plan_moe. */
void plan_with_experts(loader *l, layer_plan *p, int layer);

#endif
