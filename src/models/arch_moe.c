/*
 * arch_moe.c: families that are a known dense layer with experts for an FFN: Mixtral (Llama), Qwen
 * 2 and 3, OLMoE (norms over all of q and k) and GLM 4.5 (sigmoid scores, a bias in the choice).
 */
#include "models/arch.h"

static void usual_defaults(config *c, double norm_eps, int n_ctx)
{
    c->norm = NORM_RMS;
    c->norm_eps = norm_eps;
    c->act = ACT_SILU;
    c->rope.base = 10000;
    c->n_ctx = n_ctx;
}

/* ---- Mixtral --------------------------------------------------------------------------------- */

static const tensor_name mixtral_names[] = {
    { ROLE_ROUTER, "layers.#.block_sparse_moe.gate", "blk.#.ffn_gate_inp" },
    { ROLE_EXPERT_GATE, "layers.#.block_sparse_moe.experts.@.w1", "blk.#.ffn_gate_exps" },
    { ROLE_EXPERT_UP, "layers.#.block_sparse_moe.experts.@.w3", "blk.#.ffn_up_exps" },
    { ROLE_EXPERT_DOWN, "layers.#.block_sparse_moe.experts.@.w2", "blk.#.ffn_down_exps" },
    { ROLE_COUNT, NULL, NULL },
};

static void mixtral_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    usual_defaults(c, 1e-5, 131072);
    c->rope.base = 1000000;
    c->n_kv_heads = 8;
    c->moe = (moe_config){ .n_experts = 8, .n_used = 2, .renormalise = true, .weight_scale = 1 };
}

/* GGUF files call it "llama", which is in arch_llama.c. */
const arch arch_mixtral = {
    .name = "mixtral",
    .hf_names = (const char *const[]){ "mixtral", "MixtralForCausalLM", NULL },
    .gguf_names = (const char *const[]){ NULL },
    .names = mixtral_names,
    .defaults = mixtral_defaults,
    .read_config = config_read_experts,
    .plan_layer = plan_with_experts,
};

/* ---- Qwen ------------------------------------------------------------------------------------ */

static const tensor_name qwen2_moe_names[] = {
    { ROLE_SHARED_GATE, "layers.#.mlp.shared_expert.gate_proj", "blk.#.ffn_gate_shexp" },
    { ROLE_SHARED_UP, "layers.#.mlp.shared_expert.up_proj", "blk.#.ffn_up_shexp" },
    { ROLE_SHARED_DOWN, "layers.#.mlp.shared_expert.down_proj", "blk.#.ffn_down_shexp" },
    { ROLE_COUNT, NULL, NULL },
};

static void qwen2_moe_defaults(config *c, bool is_gguf)
{
    usual_defaults(c, 1e-6, 32768);
    c->window = 4096;
    c->qkv_bias = true;
    c->moe = (moe_config){ .n_experts = 60, .n_used = 4, .weight_scale = 1 };
    if (is_gguf) return; // the file tells these
    c->moe.d_ff = 1408;
    c->moe.d_ff_shared = 5632;
}

/* Without layer_types, even layers before max_window_layers slide, where the file says so. */
static void qwen2_moe_read(config_source *s, config *c)
{
    bool windowed = false;
    int end = 28;
    cfg_bool(s, &c->qkv_bias, "qkv_bias", NULL);
    cfg_bool(s, &windowed, "use_sliding_window", NULL);
    cfg_int(s, &end, "max_window_layers", NULL, 0, INT32_MAX);
    if (!windowed) c->window = 0;
    if (c->window && !c->sliding && c->n_layers > 0) {
        c->sliding = cfg_zero(s, (size_t)c->n_layers, 1);
        for (int i = 0; c->sliding && i < c->n_layers && i < end; i += 2)
            c->sliding[i] = 1;
    }
    config_read_experts(s, c);
}

const arch arch_qwen2_moe = {
    .name = "qwen2_moe",
    .hf_names = (const char *const[]){ "qwen2_moe", "Qwen2MoeForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "qwen2moe", NULL },
    .names = qwen2_moe_names,
    .defaults = qwen2_moe_defaults,
    .read_config = qwen2_moe_read,
    .plan_layer = plan_with_experts,
};

static void qwen3_moe_defaults(config *c, bool is_gguf)
{
    usual_defaults(c, 1e-6, 32768);
    c->window = 4096;
    c->qk_norm = QK_NORM_HEAD;
    c->n_kv_heads = 4;
    c->moe = (moe_config){ .n_experts = 128, .n_used = 8, .weight_scale = 1 };
    c->moe.renormalise = is_gguf; // files do not have the setting; all models have it set
    if (!is_gguf) c->moe.d_ff = 768;
}

/* The window is all layers' here. */
static void qwen3_moe_read(config_source *s, config *c)
{
    bool windowed = false;
    cfg_bool(s, &windowed, "use_sliding_window", NULL);
    if (!windowed) c->window = 0;
    config_read_experts(s, c);
}

const arch arch_qwen3_moe = {
    .name = "qwen3_moe",
    .hf_names = (const char *const[]){ "qwen3_moe", "Qwen3MoeForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "qwen3moe", NULL },
    .defaults = qwen3_moe_defaults,
    .read_config = qwen3_moe_read,
    .plan_layer = plan_with_experts,
};

/* ---- OLMoE ----------------------------------------------------------------------------------- */

static void olmoe_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    usual_defaults(c, 1e-5, 4096);
    c->qk_norm = QK_NORM_WHOLE;
    c->moe = (moe_config){ .n_experts = 64, .n_used = 8, .weight_scale = 1 };
}

static void olmoe_read(config_source *s, config *c)
{
    cfg_float(s, &c->clip_qkv, "clip_qkv", "attention.clamp_kqv");
    config_read_experts(s, c);
}

const arch arch_olmoe = {
    .name = "olmoe",
    .hf_names = (const char *const[]){ "olmoe", "OlmoeForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "olmoe", NULL },
    .defaults = olmoe_defaults,
    .read_config = olmoe_read,
    .plan_layer = plan_with_experts,
};

/* ---- GLM 4.5 --------------------------------------------------------------------------------- */

static const tensor_name glm4_moe_names[] = {
    { ROLE_FFN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void glm4_moe_defaults(config *c, bool is_gguf)
{
    usual_defaults(c, 1e-5, 131072);
    c->rotary_fraction = 0.5;
    c->moe = (moe_config){ .n_experts = 128,
                           .n_used = 8,
                           .n_groups = 1,
                           .n_groups_used = 1,
                           .group_top2 = true,
                           .n_dense = 1,
                           .score = MOE_SIGMOID,
                           .renormalise = true,
                           .weight_scale = 1 };
    if (is_gguf) return;
    c->n_kv_heads = 8;
    c->moe.d_ff = 1408;
    c->moe.n_shared = 1;
}

static void glm4_moe_read(config_source *s, config *c)
{
    // biases are on q, k and v alone; which norms there are, GGUF tells by its tensors
    bool normed = s->g && gguf_find_tensor(s->g, "blk.0.attn_q_norm.weight");
    int n_predict = 0; // layers at the end that predict further tokens
    c->qkv_bias = c->attention_bias;
    c->attention_bias = false;
    cfg_bool(s, &normed, "use_qk_norm", NULL);
    if (normed) c->qk_norm = QK_NORM_HEAD;
    cfg_int(s, &n_predict, NULL, "nextn_predict_layers", 0, MAX_LAYERS);
    if (n_predict < c->n_layers) c->n_layers -= n_predict;
    config_read_experts(s, c);
}

const arch arch_glm4_moe = {
    .name = "glm4_moe",
    .hf_names = (const char *const[]){ "glm4_moe", "Glm4MoeForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "glm4moe", NULL },
    .names = glm4_moe_names,
    .defaults = glm4_moe_defaults,
    .read_config = glm4_moe_read,
    .plan_layer = plan_with_experts,
};
