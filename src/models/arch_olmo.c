/*
 * arch_olmo.c: OLMo 1: LayerNorms without weights, q k v clipped. OLMo 2 and 3: norms only after
 * each branch, and one over all heads of q and of k; 3 slides on all but every fourth layer, and
 * scales rope on those fourth ones alone.
 */
#include "models/arch.h"

static void olmo_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    c->norm = NORM_LAYER;
    c->norm_eps = 1e-5;
    c->bare_norms = true;
    c->act = ACT_SILU;
    c->rope.base = 10000;
    c->n_ctx = 2048;
}

static void olmo_read(config_source *s, config *c)
{
    cfg_float(s, &c->clip_qkv, "clip_qkv", "attention.clamp_kqv");
}

const arch arch_olmo = {
    .name = "olmo",
    .hf_names = (const char *const[]){ "olmo", "OlmoForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "olmo", NULL },
    .defaults = olmo_defaults,
    .read_config = olmo_read,
    .plan_layer = plan_usual,
    .gguf_pairing = ROPE_ADJACENT,
};

/* ---- OLMo 2 and 3 ---------------------------------------------------------------------------- */

static const tensor_name olmo2_names[] = {
    { ROLE_ATTN_NORM, NULL, NULL },
    { ROLE_POST_ATTN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_FFN_NORM, NULL, NULL },
    { ROLE_POST_FFN_NORM, "layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void olmo2_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    c->norm = NORM_RMS;
    c->norm_eps = 1e-5;
    c->qk_norm = QK_NORM_WHOLE;
    c->act = ACT_SILU;
    c->pattern = 4;
    c->rope.base = 10000;
    c->n_ctx = 2048;
}

static void olmo3_defaults(config *c, bool is_gguf)
{
    olmo2_defaults(c, is_gguf);
    c->window = 4096;
    c->rope.base = 500000;
}

static void olmo3_read(config_source *s, config *c)
{
    if (c->window == 0) return;
    config_slide_by_pattern(s, c);
    // transformers gives a rope_theta outside rope_parameters to the full layers alone
    if (!c->has_local) c->rope_local.base = s->g ? c->rope.base : 500000;
    c->has_local = true;
}

/* GGUF calls both by one name; what has a window is OLMo 3. */
static void olmo2_read(config_source *s, config *c)
{
    if (s->g)
        olmo3_read(s, c);
    else
        c->window = 0;
}

const arch arch_olmo2 = {
    .name = "olmo2",
    .hf_names = (const char *const[]){ "olmo2", "Olmo2ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "olmo2", NULL },
    .names = olmo2_names,
    .defaults = olmo2_defaults,
    .read_config = olmo2_read,
    .plan_layer = plan_usual,
};

const arch arch_olmo3 = {
    .name = "olmo3",
    .hf_names = (const char *const[]){ "olmo3", "Olmo3ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ NULL },
    .names = olmo2_names,
    .defaults = olmo3_defaults,
    .read_config = olmo3_read,
    .plan_layer = plan_usual,
};
