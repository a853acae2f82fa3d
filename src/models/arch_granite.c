/*
 * arch_granite.c: Granite 3: Llama's layer with multipliers on embeddings, scores, branches and
 * logits; and Granite with experts, weighted by a softmax of the chosen. GGUF permutes q and k rows
 * as it does Llama's.
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

/* ---- with experts ---------------------------------------------------------------------------- */

static const tensor_name granite_moe_names[] = {
    { ROLE_ROUTER, "layers.#.block_sparse_moe.router.layer", "blk.#.ffn_gate_inp" },
    { ROLE_EXPERTS_GATE_UP, "layers.#.block_sparse_moe.input_linear", "blk.#.ffn_gate_up_exps" },
    { ROLE_EXPERTS_DOWN, "layers.#.block_sparse_moe.output_linear", "blk.#.ffn_down_exps" },
    { ROLE_SHARED_GATE_UP, "layers.#.shared_mlp.input_linear", NULL },
    { ROLE_SHARED_DOWN, "layers.#.shared_mlp.output_linear", "blk.#.ffn_down_shexp" },
    { ROLE_COUNT, NULL, NULL },
};

static void granite_moe_defaults(config *c, bool is_gguf)
{
    granite_defaults(c, is_gguf);
    c->moe =
        (moe_config){ .n_experts = 8, .n_used = 2, .score = MOE_SOFTMAX_USED, .weight_scale = 1 };
}

static void granite_moe_read(config_source *s, config *c)
{
    granite_read(s, c);
    config_read_experts(s, c);
}

const arch arch_granite_moe = {
    .name = "granitemoe",
    .hf_names = (const char *const[]){ "granitemoe", "granitemoeshared", "GraniteMoeForCausalLM",
                                       "GraniteMoeSharedForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "granitemoe", NULL },
    .names = granite_moe_names,
    .defaults = granite_moe_defaults,
    .read_config = granite_moe_read,
    .plan_layer = plan_with_experts,
    .gguf_pairing = ROPE_ADJACENT,
};
