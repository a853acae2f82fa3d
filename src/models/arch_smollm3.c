/*
 * arch_smollm3.c: SmolLM 3: Llama's layer, of which every fourth has no rope. GGUF permutes q and k
 * rows as it does Llama's.
 */
#include "models/arch.h"

static void smollm3_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->act = ACT_SILU;
    c->n_kv_heads = is_gguf ? 0 : 4;
    c->tied = true;
    c->rope.base = 2000000;
    c->n_ctx = 32768;
}

static void smollm3_read(config_source *s, config *c)
{
    int interval = 4;
    bool windowed = false;
    uint8_t *rotated = NULL;
    cfg_int(s, &interval, "no_rope_layer_interval", NULL, 1, MAX_LAYERS);
    cfg_bool(s, &windowed, "use_sliding_window", NULL);
    // 1 stands for a layer that rotates, whatever the name says
    cfg_flags(s, &rotated, "no_rope_layers", NULL, c->n_layers);
    if (!windowed) c->window = 0;
    if (c->n_layers < 1) return;
    c->no_rope = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = 0; c->no_rope && i < c->n_layers; i++)
        c->no_rope[i] = rotated ? !rotated[i] : (i + 1) % interval == 0;
    if (c->window && !c->sliding) c->sliding = c->no_rope;
}

const arch arch_smollm3 = {
    .name = "smollm3",
    .hf_names = (const char *const[]){ "smollm3", "SmolLM3ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "smollm3", NULL },
    .defaults = smollm3_defaults,
    .read_config = smollm3_read,
    .plan_layer = plan_usual,
    .gguf_pairing = ROPE_ADJACENT,
};
