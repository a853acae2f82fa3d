/*
 * arch_granite.c: Granite 3: Llama's layer with multipliers on embeddings, scores, branches and
 * logits. GGUF permutes q and k rows as it does Llama's.
 */
#include "models/arch.h"

static void granite_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->act = ACT_SILU;
    c->rope.base = 10000;
    c->n_ctx = 2048;
    c->attn_scale = is_gguf ? 0 : 1;
}

static void granite_read(config_source *s, config *c)
{
    double divisor = 1;
    cfg_float(s, &c->embed_scale, "embedding_multiplier", "embedding_scale");
    cfg_float(s, &c->attn_scale, "attention_multiplier", "attention.scale");
    cfg_float(s, &c->residual_scale, "residual_multiplier", "residual_scale");
    cfg_float(s, &divisor, "logits_scaling", "logit_scale");
    if (divisor == 0)
        fault_add(&s->faults, "%s: expected a number other than 0",
                  cfg_name(s, "logits_scaling", "logit_scale"));
    else
        c->logit_scale = 1 / divisor;
}

const arch arch_granite = {
    .name = "granite",
    .hf_names = (const char *const[]){ "granite", "GraniteForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "granite", NULL },
    .defaults = granite_defaults,
    .read_config = granite_read,
    .plan_layer = plan_usual,
    .gguf_pairing = ROPE_ADJACENT,
};
