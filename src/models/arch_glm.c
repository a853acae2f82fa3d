/*
 * arch_glm.c: GLM 4 (dense): biases on q, k and v, half of each head rotated in adjacent pairs,
 * gate and up in one tensor. The later "glm4" norms each branch's output too.
 */
#include "models/arch.h"

#include <stdio.h>

static const tensor_name glm4_names[] = {
    { ROLE_POST_ATTN_NORM, "layers.#.post_self_attn_layernorm", "blk.#.post_attention_norm" },
    { ROLE_POST_FFN_NORM, "layers.#.post_mlp_layernorm", "blk.#.post_ffw_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void glm_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 0.00000015625;
    c->act = ACT_SILU;
    c->fused_gate_up = true;
    c->attention_bias = true;
    c->rope.base = 10000;
    c->rotary_fraction = is_gguf ? 1 : 0.5;
    c->n_ctx = 131072;
    if (is_gguf) return;
    c->n_kv_heads = 2;
    c->head_dim = 128;
}

static void glm_read(config_source *s, config *c)
{
    char key[128];
    if (s->g) {
        snprintf(key, sizeof(key), "%s.rope.dimension_sections", s->prefix);
        if (gguf_find(s->g, key))
            fault_add(&s->faults, "key '%s': rope in sections (GLM-4V) is not supported", key);
        return;
    }
    c->qkv_bias = c->attention_bias; // not on o
    c->attention_bias = false;
}

const arch arch_glm = {
    .name = "glm",
    .hf_names = (const char *const[]){ "glm", "GlmForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "chatglm", NULL },
    .defaults = glm_defaults,
    .read_config = glm_read,
    .plan_layer = plan_usual,
    .gguf_pairing = ROPE_ADJACENT,
    .hf_pairing = ROPE_ADJACENT,
};

const arch arch_glm4 = {
    .name = "glm4",
    .hf_names = (const char *const[]){ "glm4", "Glm4ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "glm4", NULL },
    .names = glm4_names,
    .defaults = glm_defaults,
    .read_config = glm_read,
    .plan_layer = plan_usual,
    .gguf_pairing = ROPE_ADJACENT,
    .hf_pairing = ROPE_ADJACENT,
};
