/*
 * arch_gpt_oss.c: gpt-oss: biases everywhere, a sink in each head's softmax, a window on even
 * layers, experts with a clamped gated unit whose weights are a softmax over the chosen logits.
 */
#include "models/arch.h"

static const tensor_name gpt_oss_names[] = {
    { ROLE_SINKS, "layers.#.self_attn.sinks!", "blk.#.attn_sinks" },
    { ROLE_FFN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_ROUTER, "layers.#.mlp.router", "blk.#.ffn_gate_inp" },
    { ROLE_COUNT, NULL, NULL },
};

static void gpt_oss_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-5;
    c->act = ACT_SILU;
    c->rope.base = 150000;
    c->rope.truncate = !is_gguf; // all models' files say false, but GGUF has no such key
    c->n_ctx = 131072;
    c->window = 128;
    c->attention_bias = true;
    c->glu_limit = 7;
    c->glu_alpha = 1.702;
    c->moe = (moe_config){ .n_experts = 128,
                           .n_used = 4,
                           .score = MOE_SOFTMAX_USED,
                           .weight_scale = 1,
                           .by_column = true };
    if (is_gguf) return;
    c->n_kv_heads = 8;
    c->head_dim = 64;
}

static void gpt_oss_read(config_source *s, config *c)
{
    bool rope_given = s->g || json_object_get(s->json, "rope_scaling") ||
                      json_object_get(s->json, "rope_parameters");
    if (!rope_given) {
        c->rope.scaling = ROPE_YARN;
        c->rope.factor = 32;
        c->rope.original_len = 4096;
        c->rope.truncate = false;
    }
    cfg_float(s, &c->glu_limit, "swiglu_limit", NULL);
    cfg_float(s, &c->glu_alpha, "swiglu_alpha", NULL);
    if (!(c->glu_limit > 0 && c->glu_limit < 1e30))
        fault_add(&s->faults, "swiglu_limit: expected a number above 0, found %g", c->glu_limit);
    if (!(c->glu_alpha > 0 && c->glu_alpha < 1e30))
        fault_add(&s->faults, "swiglu_alpha: expected a number above 0, found %g", c->glu_alpha);
    config_read_experts(s, c);
    if (c->sliding || c->n_layers < 1) return;
    c->sliding = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = 0; c->sliding && i < c->n_layers; i += 2)
        c->sliding[i] = 1;
}

static void gpt_oss_plan(loader *l, layer_plan *p, int layer)
{
    plan_with_experts(l, p, layer);
    p->sinks = load_floats(l, ROLE_SINKS, layer, l->c.n_heads, false);
    p->glu_limit = (float)l->c.glu_limit;
    p->glu_alpha = (float)l->c.glu_alpha;
}

const arch arch_gpt_oss = {
    .name = "gpt_oss",
    .hf_names = (const char *const[]){ "gpt_oss", "GptOssForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "gpt-oss", NULL },
    .names = gpt_oss_names,
    .defaults = gpt_oss_defaults,
    .read_config = gpt_oss_read,
    .plan_layer = gpt_oss_plan,
};
