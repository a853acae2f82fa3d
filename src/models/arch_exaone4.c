/*
 * arch_exaone4.c: EXAONE 4: norms only after each branch, and over each head of q and k. Where it
 * has a window, every fourth layer sees everything and has no rope.
 */
#include "models/arch.h"

static const tensor_name exaone4_names[] = {
    { ROLE_ATTN_NORM, NULL, NULL },
    { ROLE_POST_ATTN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_FFN_NORM, NULL, NULL },
    { ROLE_POST_FFN_NORM, "layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void exaone4_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-5;
    c->qk_norm = QK_NORM_HEAD;
    c->act = ACT_SILU;
    c->window = is_gguf ? 0 : 4096;
    c->pattern = 4;
    c->n_kv_heads = is_gguf ? 0 : 32;
    c->rope.base = 10000;
    c->n_ctx = 2048;
}

static void exaone4_read(config_source *s, config *c)
{
    if (c->window == 0) return;
    config_slide_by_pattern(s, c);
    config_rotate_sliding(s, c);
}

const arch arch_exaone4 = {
    .name = "exaone4",
    .hf_names = (const char *const[]){ "exaone4", "Exaone4ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "exaone4", NULL },
    .names = exaone4_names,
    .defaults = exaone4_defaults,
    .read_config = exaone4_read,
    .plan_layer = plan_usual,
};
