/* arch_hunyuan.c: Hunyuan (dense): Llama's layer with a norm over each head of q and k, after rope.
 */
#include "models/arch.h"

static const tensor_name hunyuan_names[] = {
    { ROLE_Q_NORM, "layers.#.self_attn.query_layernorm", "blk.#.attn_q_norm" },
    { ROLE_K_NORM, "layers.#.self_attn.key_layernorm", "blk.#.attn_k_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void hunyuan_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    c->norm = NORM_RMS;
    c->norm_eps = 1e-5;
    c->qk_norm = QK_NORM_HEAD;
    c->qk_norm_after_rope = true;
    c->act = ACT_SILU;
    c->rope.base = 10000;
    c->n_ctx = 2048;
}

const arch arch_hunyuan_v1_dense = {
    .name = "hunyuan_v1_dense",
    .hf_names = (const char *const[]){ "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "hunyuan-dense", NULL },
    .names = hunyuan_names,
    .defaults = hunyuan_defaults,
    .plan_layer = plan_usual,
};
