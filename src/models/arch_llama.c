/*
 * arch_llama.c: Llama 1 to 3.3 and what shares its layer (SmolLM 2, TinyLlama, Yi, …), and Mistral,
 * which adds a sliding window on every layer. GGUF writes both as "llama", with q and k rows
 * permuted so that rope pairs are adjacent.
 */
#include "models/arch.h"

static void llama_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->act = ACT_SILU;
    c->rope.base = 10000;
    c->n_ctx = 2048;
    if (is_gguf) c->moe.renormalise = true; // Mixtral's files are called llama too
}

const arch arch_llama = {
    .name = "llama",
    .hf_names = (const char *const[]){ "llama", "LlamaForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "llama", NULL },
    .defaults = llama_defaults,
    .read_config = config_read_experts,
    .plan_layer = plan_with_experts,
    .gguf_pairing = ROPE_ADJACENT,
};

static void mistral_defaults(config *c, bool is_gguf)
{
    llama_defaults(c, is_gguf);
    c->n_ctx = 131072;
    c->window = 4096; // unless the file says null
}

const arch arch_mistral = {
    .name = "mistral",
    .hf_names = (const char *const[]){ "mistral", "MistralForCausalLM", NULL },
    .gguf_names = (const char *const[]){ NULL },
    .defaults = mistral_defaults,
    .plan_layer = plan_usual,
};
