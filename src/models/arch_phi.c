/*
 * arch_phi.c: Phi 1, 1.5 and 2: a parallel block under one LayerNorm, biases everywhere, a part of
 * each head rotated. Phi 3 and 4 are Llama's layer with q k v and gate up in one tensor each, and
 * longrope for long contexts.
 */
#include "models/arch.h"

static const tensor_name phi_names[] = {
    { ROLE_FINAL_NORM, "final_layernorm", "output_norm" },
    { ROLE_O, "layers.#.self_attn.dense", "blk.#.attn_output" },
    { ROLE_Q_NORM, "layers.#.self_attn.q_layernorm", "blk.#.attn_q_norm" },
    { ROLE_K_NORM, "layers.#.self_attn.k_layernorm", "blk.#.attn_k_norm" },
    { ROLE_UP, "layers.#.mlp.fc1", "blk.#.ffn_up" },
    { ROLE_DOWN, "layers.#.mlp.fc2", "blk.#.ffn_down" },
    { ROLE_COUNT, NULL, NULL },
};

static void phi_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_LAYER;
    c->norm_eps = 1e-5;
    c->act = ACT_GELU_TANH;
    c->ffn = FFN_PLAIN;
    c->parallel = true;
    c->shared_norm = true;
    c->attention_bias = true;
    c->mlp_bias = true;
    c->head_bias = true;
    c->rope.base = 10000;
    c->rotary_fraction = is_gguf ? 1 : 0.5; // GGUF files state the dimensions
    c->n_ctx = 2048;
}

static void phi_read(config_source *s, config *c)
{
    bool normed = false;
    cfg_bool(s, &normed, "qk_layernorm", NULL);
    if (normed) c->qk_norm = QK_NORM_HEAD;
}

const arch arch_phi = {
    .name = "phi",
    .hf_names = (const char *const[]){ "phi", "PhiForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "phi2", NULL },
    .names = phi_names,
    .defaults = phi_defaults,
    .read_config = phi_read,
    .plan_layer = plan_usual,
};

static void phi3_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    c->norm = NORM_RMS;
    c->norm_eps = 1e-5;
    c->act = ACT_SILU;
    c->fused_qkv = true;
    c->fused_gate_up = true;
    c->rope.base = 10000;
    c->n_ctx = 4096;
}

/* Early files call longrope "yarn". */
static void phi3_read(config_source *s, config *c)
{
    if (!s->g && c->rope.scaling == ROPE_YARN)
        fault_add(&s->faults, "rope_scaling: type 'yarn' of early Phi 3 files is not supported, "
                              "newer files name it longrope");
}

const arch arch_phi3 = {
    .name = "phi3",
    .hf_names = (const char *const[]){ "phi3", "Phi3ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "phi3", NULL },
    .defaults = phi3_defaults,
    .read_config = phi3_read,
    .plan_layer = plan_usual,
};
