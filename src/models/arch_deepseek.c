/*
 * arch_deepseek.c: DeepSeek V2 and V3: latent attention, whose key and value projections are taken
 * apart by head here, and experts with shared ones, chosen within groups. V3 scores by sigmoid and
 * has a bias in the choice. GGUF writes both as "deepseek2".
 */
#include <math.h>
#include <string.h>

#include "models/arch.h"

static const tensor_name deepseek_names[] = {
    { ROLE_Q_A, "layers.#.self_attn.q_a_proj", "blk.#.attn_q_a" },
    { ROLE_Q_A_NORM, "layers.#.self_attn.q_a_layernorm", "blk.#.attn_q_a_norm" },
    { ROLE_Q_B, "layers.#.self_attn.q_b_proj", "blk.#.attn_q_b" },
    { ROLE_KV_A, "layers.#.self_attn.kv_a_proj_with_mqa", "blk.#.attn_kv_a_mqa" },
    { ROLE_KV_A_NORM, "layers.#.self_attn.kv_a_layernorm", "blk.#.attn_kv_a_norm" },
    { ROLE_KV_B, "layers.#.self_attn.kv_b_proj", "blk.#.attn_kv_b" },
    { ROLE_K_B, NULL, "blk.#.attn_k_b" },
    { ROLE_V_B, NULL, "blk.#.attn_v_b" },
    { ROLE_COUNT, NULL, NULL },
};

#define LATENT_NORM_EPS 1e-6f // whatever the file's epsilon is, which is for the other norms

static void deepseek_v2_defaults(config *c, bool is_gguf)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->act = ACT_SILU;
    c->rope.base = 10000;
    c->n_ctx = 2048;
    c->moe = (moe_config){ .weight_scale = 1 };
    if (is_gguf) return;
    c->mla = (mla_config){
        .n_latent = 512, .q_rank = 1536, .n_rope = 64, .n_nope = 128, .n_value = 128
    };
    c->moe.n_experts = 64;
    c->moe.n_shared = 2;
    c->moe.d_ff = 1407;
}

static void deepseek_v3_defaults(config *c, bool is_gguf)
{
    deepseek_v2_defaults(c, is_gguf);
    c->n_ctx = 4096;
    c->moe = (moe_config){ .n_experts = 256,
                           .n_used = 8,
                           .n_shared = 1,
                           .n_groups = 8,
                           .n_groups_used = 4,
                           .n_dense = 3,
                           .d_ff = 2048,
                           .score = MOE_SIGMOID,
                           .renormalise = true,
                           .weight_scale = 2.5 };
}

static void need_size(config_source *s, int value, const char *hf, const char *key)
{
    if (value < 1) fault_add(&s->faults, "%s missing", cfg_name(s, hf, key));
}

/* GGUF files since 2025 give the cache's head as key_length and the model's own as key_length_mla;
 * older ones the model's own as key_length. */
static void read_latent(config_source *s, config *c)
{
    mla_config *m = &c->mla;
    cfg_int(s, &m->n_latent, "kv_lora_rank", "attention.kv_lora_rank", 1, MAX_WIDTH);
    if (cfg_int(s, &m->q_rank, "q_lora_rank", "attention.q_lora_rank", 1, MAX_WIDTH) == FOUND_NULL)
        m->q_rank = 0;
    cfg_int(s, &m->n_rope, "qk_rope_head_dim", "rope.dimension_count", 1, MAX_WIDTH);
    cfg_int(s, &m->n_value, "v_head_dim", NULL, 1, MAX_WIDTH);
    cfg_int(s, &m->n_nope, "qk_nope_head_dim", NULL, 1, MAX_WIDTH);
    if (s->g) {
        int key = c->head_dim, value = c->head_dim_v;
        cfg_int(s, &key, NULL, "attention.key_length_mla", 1, MAX_WIDTH);
        cfg_int(s, &value, NULL, "attention.value_length_mla", 1, MAX_WIDTH);
        m->n_nope = key - m->n_rope;
        m->n_value = value;
    }
    need_size(s, m->n_latent, "kv_lora_rank", "attention.kv_lora_rank");
    need_size(s, m->n_rope, "qk_rope_head_dim", "rope.dimension_count");
    need_size(s, m->n_value, "v_head_dim", "attention.value_length_mla");
    if (s->g && c->head_dim && m->n_rope && m->n_nope < 1)
        fault_add(&s->faults, "%s: expected more than the %d rotated dimensions",
                  cfg_name(s, NULL, "attention.key_length_mla"), m->n_rope);
    else
        need_size(s, m->n_nope, "qk_nope_head_dim", "attention.key_length_mla");
    if ((int64_t)c->n_heads * ((int64_t)m->n_nope + m->n_rope) > MAX_WIDTH ||
        (int64_t)c->n_heads * ((int64_t)m->n_nope + m->n_value) > MAX_WIDTH)
        fault_add(&s->faults, "%d heads of %d + %d are wider than %d", c->n_heads, m->n_nope,
                  m->n_rope > m->n_value ? m->n_rope : m->n_value, MAX_WIDTH);
    // what the cache holds: one head for all
    c->n_kv_heads = 1;
    c->head_dim = m->n_latent + m->n_rope;
    c->head_dim_v = m->n_latent;
    c->rope.dim = m->n_rope;
}

static void deepseek_read(config_source *s, config *c)
{
    bool adjacent = true;
    double log_multiplier = 0;
    read_latent(s, c);
    cfg_bool(s, &adjacent, "rope_interleave", NULL);
    if (!adjacent) c->pairing = ROPE_HALVES;
    if (cfg_float(s, &log_multiplier, NULL, "rope.scaling.yarn_log_multiplier") == FOUND)
        c->rope.mscale = c->rope.mscale_all_dim = 10 * log_multiplier;
    config_read_experts(s, c);
    c->moe.group_top2 = c->moe.score == MOE_SIGMOID;
}

static void deepseek_v2_read(config_source *s, config *c)
{
    const char *method = "greedy";
    deepseek_read(s, c);
    cfg_string(s, &method, "topk_method", NULL);
    if (!s->g && strcmp(method, "greedy") == 0) c->moe.n_groups = 0;
}

/* k_up transposed and v_up, by head, from where the file has them. */
static void load_up(loader *l, mla_plan *m, int layer)
{
    int n = l->c.n_heads, part = m->n_nope + m->n_value;
    linear *up = arena_zero(&l->m->mem, (size_t)n * 2, sizeof(*up));
    tensor k, v, both;
    if (!up) {
        l->out_of_memory = true;
        return;
    }
    m->k_up = up;
    m->v_up = up + n;
    if (load_has(l, ROLE_K_B, layer)) {
        bool ok = load_stack(l, &k, ROLE_K_B, layer, n, m->n_latent, m->n_nope, false);
        ok = load_stack(l, &v, ROLE_V_B, layer, n, m->n_value, m->n_latent, false) && ok;
        for (int h = 0; ok && h < n; h++) {
            up[h].w = tensor_slice(&k, h);
            up[n + h].w = tensor_slice(&v, h);
        }
    } else if (load_tensor(l, &both, ROLE_KV_B, layer, n * part, m->n_latent, false)) {
        for (int h = 0; h < n; h++) {
            tensor rows = tensor_rows(&both, h * part, m->n_nope);
            load_exchanged(l, &up[h].w, &rows, 0, 1);
            up[n + h].w = tensor_rows(&both, h * part + m->n_nope, m->n_value);
        }
    }
}

static void plan_latent(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    const mla_config *mc = &c->mla;
    bias_rule bias = bias_rule_of(l, c->attention_bias);
    int q_width = c->n_heads * (mc->n_nope + mc->n_rope);
    mla_plan *m = arena_zero(&l->m->mem, 1, sizeof(*m));
    if (!m) {
        l->out_of_memory = true;
        return;
    }
    m->n_latent = mc->n_latent;
    m->n_rope = mc->n_rope;
    m->n_nope = mc->n_nope;
    m->n_value = mc->n_value;
    load_norm(l, &p->attn_norm, ROLE_ATTN_NORM, layer, c->d_model, false);
    if (mc->q_rank) {
        load_linear(l, &m->q_a, ROLE_Q_A, layer, mc->q_rank, c->d_model, bias);
        load_norm(l, &m->q_a_norm, ROLE_Q_A_NORM, layer, mc->q_rank, false);
        load_linear(l, &p->q, ROLE_Q_B, layer, q_width, mc->q_rank, BIAS_NONE);
        m->q_a_norm.eps = LATENT_NORM_EPS;
    } else {
        load_linear(l, &p->q, ROLE_Q, layer, q_width, c->d_model, BIAS_NONE);
    }
    load_linear(l, &m->kv_a, ROLE_KV_A, layer, mc->n_latent + mc->n_rope, c->d_model, bias);
    load_norm(l, &m->kv_norm, ROLE_KV_A_NORM, layer, mc->n_latent, false);
    m->kv_norm.eps = LATENT_NORM_EPS;
    load_up(l, m, layer);
    load_linear(l, &p->o, ROLE_O, layer, c->d_model, c->n_heads * mc->n_value, bias);

    const rope_spec *r = &c->rope;
    double mscale = r->scaling != ROPE_PLAIN && r->mscale_all_dim != 0
                        ? rope_yarn_mscale(r->factor, r->mscale_all_dim)
                        : 1;
    p->attn_scale = (float)(mscale * mscale / sqrt((double)mc->n_nope + mc->n_rope));
    p->mla = m;
    p->n_heads = c->n_heads;
    p->n_kv_heads = c->n_kv_heads;
    p->head_dim = c->head_dim;
    p->head_dim_v = c->head_dim_v;
    p->kv_source = layer;
    p->residual_scale = (float)c->residual_scale;
    p->layer_scale = 1;
}

static void deepseek_plan(loader *l, layer_plan *p, int layer)
{
    plan_latent(l, p, layer);
    if (layer_is_dense(l, layer))
        plan_ffn(l, p, layer);
    else
        plan_moe(l, p, layer);
}

const arch arch_deepseek_v2 = {
    .name = "deepseek_v2",
    .hf_names = (const char *const[]){ "deepseek_v2", "DeepseekV2ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ "deepseek2", NULL },
    .names = deepseek_names,
    .defaults = deepseek_v2_defaults,
    .read_config = deepseek_v2_read,
    .plan_layer = deepseek_plan,
    .gguf_pairing = ROPE_ADJACENT,
    .hf_pairing = ROPE_ADJACENT,
};

const arch arch_deepseek_v3 = {
    .name = "deepseek_v3",
    .hf_names = (const char *const[]){ "deepseek_v3", "DeepseekV3ForCausalLM", NULL },
    .gguf_names = (const char *const[]){ NULL },
    .names = deepseek_names,
    .defaults = deepseek_v3_defaults,
    .read_config = deepseek_read,
    .plan_layer = deepseek_plan,
    .hf_pairing = ROPE_ADJACENT,
};
