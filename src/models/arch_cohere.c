/*
 * arch_cohere.c: Command R, Aya and Command R7B: attention and FFN in parallel under one LayerNorm
 * without bias, adjacent rope pairs, scaled logits. Command R+ norms each head of q and k with
 * weights of its own; Cohere 2 slides on all but every fourth layer, which has no rope at all.
 */
#include "models/arch.h"

static void cohere_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_LAYER;
    c->norm_eps = 1e-5;
    c->act = ACT_SILU;
    c->parallel = true;
    c->shared_norm = true;
    c->tied = true;
    c->logit_scale = 0.0625;
    c->rope.base = is_gguf ? 10000 : 500000;
    c->n_ctx = 8192;
}

static void cohere_read(config_source *s, config *c)
{
    bool normed = false;
    cfg_float(s, &c->logit_scale, "logit_scale", "logit_scale");
    cfg_bool(s, &normed, "use_qk_norm", NULL);
    if (normed) c->qk_norm = QK_NORM_EACH_HEAD;
}

static void cohere_plan(loader *l, layer_plan *p, int layer)
{
    if (loader_gguf_settings(l) && load_has(l, ROLE_Q_NORM, layer))
        l->c.qk_norm = QK_NORM_EACH_HEAD;
    plan_usual(l, p, layer);
}

const arch arch_cohere = {
    .name = "cohere",
    .hf_names = (const char *const[]){ "cohere", "CohereForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "command-r", NULL },
    .defaults = cohere_defaults,
    .read_config = cohere_read,
    .plan_layer = cohere_plan,
    .gguf_pairing = ROPE_ADJACENT,
    .hf_pairing = ROPE_ADJACENT,
};

static void cohere2_defaults(config *c, bool is_gguf)
{
    cohere_defaults(c, is_gguf);
    c->rope.base = 10000;
    c->window = 4096;
    c->pattern = 4;
}

static void cohere2_read(config_source *s, config *c)
{
    cfg_float(s, &c->logit_scale, "logit_scale", "logit_scale");
    config_slide_by_pattern(s, c);
    config_rotate_sliding(s, c);
}

const arch arch_cohere2 = {
    .name = "cohere2",
    .hf_names = (const char *const[]){ "cohere2", "Cohere2ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "cohere2", NULL },
    .defaults = cohere2_defaults,
    .read_config = cohere2_read,
    .plan_layer = plan_usual,
    .gguf_pairing = ROPE_ADJACENT,
    .hf_pairing = ROPE_ADJACENT,
};
