/*
 * arch_nemotron.c: Nemotron 3 and Minitron: LayerNorms with 1 + w applied (a GGUF file has the 1
 * added already), half of each head rotated, a plain FFN with squared ReLU.
 */
#include "models/arch.h"

static void nemotron_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_LAYER;
    c->norm_eps = 1e-5;
    c->norm_offset = is_gguf ? 0 : 1;
    c->act = ACT_RELU2;
    c->ffn = FFN_PLAIN;
    c->rope.base = 10000;
    c->rotary_fraction = is_gguf ? 1 : 0.5;
    c->n_ctx = 4096;
}

const arch arch_nemotron = {
    .name = "nemotron",
    .hf_names = (const char *const[]){ "nemotron", "NemotronForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "nemotron", NULL },
    .defaults = nemotron_defaults,
    .plan_layer = plan_usual,
};
