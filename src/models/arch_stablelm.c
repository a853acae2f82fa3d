/*
 * arch_stablelm.c: StableLM 2 and 3B: LayerNorms, a quarter of each head rotated, and as its sizes
 * have it: biases on q, k and v, a LayerNorm of its own on each head, attention and FFN in parallel
 * under one norm.
 */
#include "models/arch.h"

static const tensor_name stablelm_names[] = {
    { ROLE_Q_NORM, "layers.#.self_attn.q_layernorm", "blk.#.attn_q_norm" },
    { ROLE_K_NORM, "layers.#.self_attn.k_layernorm", "blk.#.attn_k_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void stablelm_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_LAYER;
    c->norm_eps = 1e-5;
    c->act = ACT_SILU;
    c->n_kv_heads = is_gguf ? 0 : 32;
    c->rope.base = 10000;
    c->rotary_fraction = is_gguf ? 1 : 0.25;
    c->n_ctx = 4096;
}

static void stablelm_read(config_source *s, config *c)
{
    bool normed = false;
    cfg_bool(s, &c->qkv_bias, "use_qkv_bias", NULL);
    cfg_bool(s, &c->parallel, "use_parallel_residual", NULL);
    cfg_bool(s, &normed, "qk_layernorm", NULL);
    c->shared_norm = c->parallel;
    if (normed) c->qk_norm = QK_NORM_EACH_HEAD;
}

/* In GGUF files the tensors tell; the key of the parallel residual is set either way. */
static void stablelm_plan(loader *l, layer_plan *p, int layer)
{
    if (loader_gguf_settings(l)) {
        l->c.shared_norm = l->c.parallel = !load_has(l, ROLE_FFN_NORM, layer);
        l->c.qk_norm = load_has(l, ROLE_Q_NORM, layer) ? QK_NORM_EACH_HEAD : QK_NORM_NONE;
    }
    plan_usual(l, p, layer);
}

const arch arch_stablelm = {
    .name = "stablelm",
    .hf_names = (const char *const[]){ "stablelm", "StableLmForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "stablelm", NULL },
    .names = stablelm_names,
    .defaults = stablelm_defaults,
    .read_config = stablelm_read,
    .plan_layer = stablelm_plan,
};
