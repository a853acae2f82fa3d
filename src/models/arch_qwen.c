/*
 * arch_qwen.c: Qwen 1.5 to 3. Qwen 2 is Llama's layer with biases on q, k and v; Qwen 3 has none,
 * but a norm over each head of q and k. Where use_sliding_window is set, layers from
 * max_window_layers on slide.
 */
#include "models/arch.h"

static void qwen2_defaults(config *c, bool is_gguf)
{
    (void)is_gguf;
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->act = ACT_SILU;
    c->rope.base = 10000;
    c->n_ctx = 32768;
    c->window = 4096;
    c->qkv_bias = true;
}

static void read_window(config_source *s, config *c)
{
    bool windowed = false;
    int first = 28;
    cfg_bool(s, &windowed, "use_sliding_window", NULL);
    cfg_int(s, &first, "max_window_layers", NULL, 0, INT32_MAX);
    if (!windowed) c->window = 0;
    if (!c->window || c->sliding || c->n_layers < 1) return;
    c->sliding = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = first; c->sliding && i < c->n_layers; i++)
        c->sliding[i] = 1;
}

const arch arch_qwen2 = {
    .name = "qwen2",
    .hf_names = (const char *const[]){ "qwen2", "Qwen2ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "qwen2", NULL },
    .defaults = qwen2_defaults,
    .read_config = read_window,
    .plan_layer = plan_usual,
};

static void qwen3_defaults(config *c, bool is_gguf)
{
    qwen2_defaults(c, is_gguf);
    c->qkv_bias = false;
    c->qk_norm = QK_NORM_HEAD;
    if (!is_gguf) c->head_dim = 128;
}

const arch arch_qwen3 = {
    .name = "qwen3",
    .hf_names = (const char *const[]){ "qwen3", "Qwen3ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "qwen3", NULL },
    .defaults = qwen3_defaults,
    .read_config = read_window,
    .plan_layer = plan_usual,
};
