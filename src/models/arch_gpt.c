/*
 * arch_gpt.c: GPT-2, with learned positions and matrices stored as [n_in, n_out]; GPT-NeoX and
 * Pythia, with rotary positions, attention and FFN in parallel and q, k and v interleaved by head;
 * StarCoder 2, in Llama's names. All have LayerNorms with biases and a plain FFN.
 */
#include "models/arch.h"

static void gpt_defaults(config *c)
{
    c->norm = NORM_LAYER;
    c->norm_eps = 1e-5;
    c->ffn = FFN_PLAIN;
    c->attention_bias = true;
    c->mlp_bias = true;
    c->rope.base = 10000;
}

/* ---- GPT-2 ----------------------------------------------------------------------------------- */

static const tensor_name gpt2_names[] = {
    { ROLE_EMBED, "wte", "token_embd" },
    { ROLE_POS_EMBED, "wpe", "position_embd" },
    { ROLE_FINAL_NORM, "ln_f", "output_norm" },
    { ROLE_ATTN_NORM, "h.#.ln_1", "blk.#.attn_norm" },
    { ROLE_QKV, "h.#.attn.c_attn", "blk.#.attn_qkv" },
    { ROLE_O, "h.#.attn.c_proj", "blk.#.attn_output" },
    { ROLE_FFN_NORM, "h.#.ln_2", "blk.#.ffn_norm" },
    { ROLE_UP, "h.#.mlp.c_fc", "blk.#.ffn_up" },
    { ROLE_DOWN, "h.#.mlp.c_proj", "blk.#.ffn_down" },
    { ROLE_COUNT, NULL, NULL },
};

static void gpt2_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    gpt_defaults(c);
    c->act = ACT_GELU_TANH;
    c->fused_qkv = true;
    c->unrotated = true;
    c->tied = true;
    c->n_ctx = 1024;
}

static void gpt2_read(config_source *s, config *c)
{
    bool scaled = true, by_layer = false;
    cfg_bool(s, &scaled, "scale_attn_weights", NULL);
    cfg_bool(s, &by_layer, "scale_attn_by_inverse_layer_idx", NULL);
    if (!scaled) c->attn_scale = 1;
    if (by_layer)
        fault_add(&s->faults, "scale_attn_by_inverse_layer_idx: attention scaled by layer is not "
                              "supported");
    if (c->d_ff == 0 && c->d_model <= MAX_WIDTH / 4) c->d_ff = 4 * c->d_model; // n_inner null
}

const arch arch_gpt2 = {
    .name = "gpt2",
    .hf_names = (const char *const[]){ "gpt2", "GPT2LMHeadModel", NULL },
    .gguf_names = (const char *const[]){ "gpt2", NULL },
    .names = gpt2_names,
    .defaults = gpt2_defaults,
    .read_config = gpt2_read,
    .plan_layer = plan_usual,
    .hf_transposed = true,
};

/* ---- GPT-NeoX -------------------------------------------------------------------------------- */

static const tensor_name gpt_neox_names[] = {
    { ROLE_EMBED, "embed_in", "token_embd" },
    { ROLE_FINAL_NORM, "final_layer_norm", "output_norm" },
    { ROLE_HEAD, "/embed_out", "output" },
    { ROLE_QKV, "layers.#.attention.query_key_value", "blk.#.attn_qkv" },
    { ROLE_O, "layers.#.attention.dense", "blk.#.attn_output" },
    { ROLE_UP, "layers.#.mlp.dense_h_to_4h", "blk.#.ffn_up" },
    { ROLE_DOWN, "layers.#.mlp.dense_4h_to_h", "blk.#.ffn_down" },
    { ROLE_COUNT, NULL, NULL },
};

static void gpt_neox_defaults(config *c, bool is_gguf)
{
    gpt_defaults(c);
    c->act = ACT_GELU_ERF;
    c->fused_qkv = true;
    c->parallel = true;
    c->rotary_fraction = is_gguf ? 1 : 0.25;
    c->n_ctx = 2048;
}

static void gpt_neox_read(config_source *s, config *c)
{
    cfg_bool(s, &c->parallel, "use_parallel_residual", "use_parallel_residual");
}

const arch arch_gpt_neox = {
    .name = "gpt_neox",
    .hf_names = (const char *const[]){ "gpt_neox", "GPTNeoXForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "gptneox", NULL },
    .names = gpt_neox_names,
    .defaults = gpt_neox_defaults,
    .read_config = gpt_neox_read,
    .plan_layer = plan_usual,
    .hf_qkv_by_head = true,
};

/* ---- StarCoder 2 ----------------------------------------------------------------------------- */

static const tensor_name starcoder2_names[] = {
    { ROLE_UP, "layers.#.mlp.c_fc", "blk.#.ffn_up" },
    { ROLE_DOWN, "layers.#.mlp.c_proj", "blk.#.ffn_down" },
    { ROLE_COUNT, NULL, NULL },
};

static void starcoder2_defaults(config *c, bool is_gguf)
{
    gpt_defaults(c);
    c->act = ACT_GELU_TANH;
    c->n_kv_heads = is_gguf ? 0 : 2;
    c->tied = true;
    c->n_ctx = 4096;
}

static void starcoder2_read(config_source *s, config *c)
{
    cfg_bool(s, &c->mlp_bias, "use_bias", NULL);
    c->attention_bias = c->mlp_bias;
}

const arch arch_starcoder2 = {
    .name = "starcoder2",
    .hf_names = (const char *const[]){ "starcoder2", "Starcoder2ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "starcoder2", NULL },
    .names = starcoder2_names,
    .defaults = starcoder2_defaults,
    .read_config = starcoder2_read,
    .plan_layer = plan_usual,
};
