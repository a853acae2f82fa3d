/*
 * arch_seed_oss.c: Seed-OSS: Llama's layer with biases on q, k and v. Its GGUF files call the norm
 * before the FFN by another's name.
 */
#include "models/arch.h"

static const tensor_name seed_oss_names[] = {
    { ROLE_FFN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void seed_oss_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->act = ACT_SILU;
    c->attention_bias = true;
    c->rope.base = 10000;
    c->n_ctx = 524288;
    if (is_gguf) return;
    c->n_kv_heads = 8;
    c->head_dim = 128;
}

static void seed_oss_read(config_source *s, config *c)
{
    c->qkv_bias = c->attention_bias;
    c->attention_bias = false;
    cfg_bool(s, &c->attention_bias, "attention_out_bias", NULL); // of o alone
}

const arch arch_seed_oss = {
    .name = "seed_oss",
    .hf_names = (const char *const[]){ "seed_oss", "SeedOssForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "seed_oss", NULL },
    .names = seed_oss_names,
    .defaults = seed_oss_defaults,
    .read_config = seed_oss_read,
    .plan_layer = plan_usual,
};
