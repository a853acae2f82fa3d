/* arch_ernie.c: ERNIE 4.5 (dense): Llama's layer with adjacent rope pairs. */
#include "models/arch.h"

static void ernie4_5_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-5;
    c->act = ACT_SILU;
    c->tied = true;
    c->rope.base = 500000;
    c->n_ctx = 131072;
    if (is_gguf) return;
    c->n_kv_heads = 2;
    c->head_dim = 128;
}

static void ernie4_5_read(config_source *s, config *c)
{
    cfg_bool(s, &c->mlp_bias, "use_bias", NULL);
    c->attention_bias = c->mlp_bias;
}

const arch arch_ernie4_5 = {
    .name = "ernie4_5",
    .hf_names =
        (const char *const[]){ "ernie4_5", "Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "ernie4_5", NULL },
    .defaults = ernie4_5_defaults,
    .read_config = ernie4_5_read,
    .plan_layer = plan_usual,
    .gguf_pairing = ROPE_ADJACENT,
    .hf_pairing = ROPE_ADJACENT,
};
