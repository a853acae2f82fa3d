/*
 * arch_gemma.c: Gemma 1, 2 and 3. Norm weights are w with 1 + w applied (a GGUF file has the 1
 * added already), embeddings are scaled by sqrt(d_model), the FFN is gated by tanh-GELU. Gemma 2
 * and 3 norm each branch's output too; 2 caps scores and logits and slides on even layers; 3 norms
 * q and k and slides on all but every sixth layer, with a rope of its own there.
 */
#include <math.h>

#include "models/arch.h"

static void gemma_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->norm_offset = is_gguf ? 0 : 1;
    c->rope.base = 10000;
    c->n_ctx = 8192;
    c->tied = true;
    c->head_dim = 256;
}

/* Old files name the activation wrongly under hidden_act; hidden_activation is the one that counts.
 */
static void gemma_read(config_source *s, config *c)
{
    c->act = ACT_GELU_TANH;
    cfg_activation(s, &c->act, "hidden_activation");
    c->embed_scale = sqrt((double)c->d_model);
}

const arch arch_gemma = {
    .name = "gemma",
    .hf_names = (const char *const[]){ "gemma", "GemmaForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "gemma", NULL },
    .defaults = gemma_defaults,
    .read_config = gemma_read,
    .plan_layer = plan_usual,
};

/* ---- Gemma 2 --------------------------------------------------------------------------------- */

static const tensor_name post_norm_names[] = {
    { ROLE_POST_ATTN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_FFN_NORM, "layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm" },
    { ROLE_POST_FFN_NORM, "layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static void gemma2_defaults(config *c, bool is_gguf)
{
    gemma_defaults(c, is_gguf);
    c->n_kv_heads = 4;
    c->window = 4096;
    c->query_scalar = is_gguf ? 0 : 256;
    c->attn_softcap = 50;
    c->final_softcap = 30;
}

static void read_softcaps(config_source *s, config *c)
{
    if (cfg_float(s, &c->attn_softcap, "attn_logit_softcapping", "attn_logit_softcapping") ==
        FOUND_NULL)
        c->attn_softcap = 0;
    if (cfg_float(s, &c->final_softcap, "final_logit_softcapping", "final_logit_softcapping") ==
        FOUND_NULL)
        c->final_softcap = 0;
}

static void gemma2_read(config_source *s, config *c)
{
    gemma_read(s, c);
    read_softcaps(s, c);
    cfg_float(s, &c->query_scalar, "query_pre_attn_scalar", NULL);
    // GGUF files do not have it: of the released sizes only 27B (46 layers) is not head_dim
    if (s->g && c->n_layers == 46 && c->n_heads > 0)
        c->query_scalar = (double)c->d_model / c->n_heads;
    if (c->sliding || c->n_layers < 1) return;
    c->sliding = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = 0; c->sliding && i < c->n_layers; i += 2)
        c->sliding[i] = 1;
}

const arch arch_gemma2 = {
    .name = "gemma2",
    .hf_names = (const char *const[]){ "gemma2", "Gemma2ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "gemma2", NULL },
    .names = post_norm_names,
    .defaults = gemma2_defaults,
    .read_config = gemma2_read,
    .plan_layer = plan_usual,
};

/* ---- Gemma 3 --------------------------------------------------------------------------------- */

static void gemma3_defaults(config *c, bool is_gguf)
{
    gemma_defaults(c, is_gguf);
    if (!is_gguf) c->n_heads = 8;
    c->n_kv_heads = 4;
    c->n_ctx = 131072;
    c->window = 4096;
    c->pattern = 6;
    c->qk_norm = QK_NORM_HEAD;
    c->query_scalar = is_gguf ? 0 : 256;
    c->rope.base = 1000000;
    c->rope_local.base = 10000;
    c->has_local = true;
}

static void gemma3_read(config_source *s, config *c)
{
    gemma_read(s, c);
    read_softcaps(s, c);
    cfg_float(s, &c->query_scalar, "query_pre_attn_scalar", NULL);
    // as above: only 27B (62 layers) is not head_dim
    if (s->g && c->n_layers == 62 && c->n_heads > 0)
        c->query_scalar = (double)c->d_model / c->n_heads;
    config_slide_by_pattern(s, c);
}

const arch arch_gemma3 = {
    .name = "gemma3",
    .hf_names = (const char *const[]){ "gemma3_text", "gemma3", "Gemma3ForCausalLM",
                                       "Gemma3ForConditionalGeneration", NULL },
    .gguf_names = (const char *const[]){ "gemma3", NULL },
    .names = post_norm_names,
    .defaults = gemma3_defaults,
    .read_config = gemma3_read,
    .plan_layer = plan_usual,
};
