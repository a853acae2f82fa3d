/*
 * arch.c: the table of families, and the layer that most of them share.
 */
#include "models/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// clang-format off
/* Makes the externs and the table: one line a file, arch_<name> a family. */
#define ARCH_LIST(X) \
    X(llama) X(mistral) \
    X(qwen2) X(qwen3) \
    X(gemma) X(gemma2) X(gemma3) X(gemma3n) X(gemma4) \
    X(phi) X(phi3) \
    X(gpt2) X(gpt_neox) X(starcoder2) \
    X(stablelm) \
    X(cohere) X(cohere2) \
    X(granite) X(granite_moe) \
    X(olmo) X(olmo2) X(olmo3) \
    X(glm) X(glm4) \
    X(smollm3) \
    X(exaone4) \
    X(nemotron) \
    X(seed_oss) \
    X(ernie4_5) \
    X(hunyuan_v1_dense) \
    X(mixtral) X(qwen2_moe) X(qwen3_moe) X(olmoe) X(glm4_moe) \
    X(deepseek_v2) X(deepseek_v3) \
    X(gpt_oss)
// clang-format on

#define EXTERN(name) extern const arch arch_##name;
ARCH_LIST(EXTERN)

#define ROW(name) &arch_##name,
const arch *const archs[] = { ARCH_LIST(ROW) NULL };

static bool has_name(const char *const *names, const char *name, size_t n)
{
    for (; *names; names++)
        if (strlen(*names) == n && memcmp(*names, name, n) == 0) return true;
    return false;
}

const arch *arch_find_hf(const char *name)
{
    for (int i = 0; archs[i]; i++)
        if (has_name(archs[i]->hf_names, name, strlen(name))) return archs[i];
    return NULL;
}

const arch *arch_find_gguf(const char *name, size_t n)
{
    for (int i = 0; archs[i]; i++)
        if (has_name(archs[i]->gguf_names, name, n)) return archs[i];
    return NULL;
}

void arch_list(char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; archs[i] && at < size; i++) {
        int n = snprintf(text + at, size - at, "%s%s", i ? ", " : "", archs[i]->name);
        at += n > 0 ? (size_t)n : 0;
    }
}

/* ---- the usual layer ------------------------------------------------------------------------- */

static void plan_qk_norms(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    int head = p->head_dim, heads = p->n_heads, kv_heads = p->n_kv_heads;
    bool own = p->kv_source == layer;
    p->qk_norm_whole = c->qk_norm == QK_NORM_WHOLE;
    p->qk_norm_per_head = c->qk_norm == QK_NORM_EACH_HEAD;
    p->qk_norm_after_rope = c->qk_norm_after_rope;
    if (c->qk_norm == QK_NORM_HEAD || c->qk_norm == QK_NORM_WHOLE) {
        bool whole = p->qk_norm_whole;
        load_norm(l, &p->q_norm, ROLE_Q_NORM, layer, whole ? heads * head : head, false);
        if (own)
            load_norm(l, &p->k_norm, ROLE_K_NORM, layer, whole ? kv_heads * head : head, false);
    } else if (c->qk_norm == QK_NORM_EACH_HEAD) {
        load_head_norms(l, &p->q_norm, ROLE_Q_NORM, layer, heads, head);
        if (own) load_head_norms(l, &p->k_norm, ROLE_K_NORM, layer, kv_heads, head);
    }
}

/* The layer's values are its raw keys: by the file's tensors in GGUF, else by the config. */
static bool v_is_k(const loader *l, int layer)
{
    const config *c = &l->c;
    if (!c->global_v_is_k) return false;
    return loader_gguf_settings(l) ? !load_has(l, ROLE_V, layer)
                                   : !c->sliding || !c->sliding[layer];
}

void plan_attention(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    bias_rule o = bias_rule_of(l, c->attention_bias), qkv = c->qkv_bias ? BIAS_NEEDED : o;
    p->n_heads = c->n_heads;
    p->n_kv_heads = c->n_kv_heads_of ? c->n_kv_heads_of[layer] : c->n_kv_heads;
    p->head_dim = c->head_dim_of ? c->head_dim_of[layer] : c->head_dim;
    p->head_dim_v = c->head_dim_of ? p->head_dim : c->head_dim_v;
    p->kv_source = c->kv_source ? c->kv_source[layer] : layer;
    int q_width = p->n_heads * p->head_dim, k_width = p->n_kv_heads * p->head_dim;
    int v_width = p->n_kv_heads * p->head_dim_v;

    load_norm(l, &p->attn_norm, ROLE_ATTN_NORM, layer, c->d_model, false);
    load_norm(l, &p->post_attn_norm, ROLE_POST_ATTN_NORM, layer, c->d_model, false);
    if (load_has(l, ROLE_QKV, layer) || (c->fused_qkv && !load_has(l, ROLE_Q, layer))) {
        int groups = l->arch->hf_qkv_by_head && !l->m->gguf ? c->n_kv_heads : 1;
        load_fused(l, (linear *const[]){ &p->q, &p->k, &p->v },
                   (int[]){ q_width, k_width, v_width }, 3, ROLE_QKV, layer, c->d_model, groups,
                   qkv);
    } else {
        load_linear(l, &p->q, ROLE_Q, layer, q_width, c->d_model, qkv);
        if (p->kv_source == layer) {
            load_linear(l, &p->k, ROLE_K, layer, k_width, c->d_model, qkv);
            if (!v_is_k(l, layer)) load_linear(l, &p->v, ROLE_V, layer, v_width, c->d_model, qkv);
        }
    }
    load_linear(l, &p->o, ROLE_O, layer, c->d_model, p->n_heads * p->head_dim_v, o);
    plan_qk_norms(l, p, layer);
    p->clip_qkv = (float)c->clip_qkv;
    bool sliding = c->window > 0 && (!c->sliding || c->sliding[layer]);
    p->window = sliding ? c->window : 0;
    // by the layer's kind, not by the window: a sliding layer without a window keeps its rope
    p->rope = c->has_local && c->sliding && c->sliding[layer] ? 1 : 0;
    if (c->unrotated || (c->no_rope && c->no_rope[layer])) p->rope = -1;
    p->attn_scale = (float)(c->attn_scale > 0     ? c->attn_scale
                            : c->query_scalar > 0 ? 1 / sqrt(c->query_scalar)
                                                  : 1 / sqrt((double)p->head_dim));
    p->attn_softcap = (float)c->attn_softcap;
    p->parallel = c->parallel;
    p->residual_scale = (float)c->residual_scale;
    p->layer_scale = 1;
}

void plan_ffn(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    bias_rule mlp = bias_rule_of(l, c->mlp_bias);
    if (c->shared_norm)
        p->ffn_norm = p->attn_norm;
    else
        load_norm(l, &p->ffn_norm, ROLE_FFN_NORM, layer, c->d_model, false);
    load_norm(l, &p->post_ffn_norm, ROLE_POST_FFN_NORM, layer, c->d_model, false);
    p->ffn = c->ffn;
    p->act = c->act;
    p->d_ff = c->d_ff_of ? c->d_ff_of[layer] : c->d_ff;
    if (l->m->walk_only) {
        static const tensor_role roles[] = { ROLE_GATE, ROLE_UP, ROLE_GATE_UP, ROLE_DOWN };
        for (int i = 0; i < COUNT_OF(roles); i++)
            ignore_tensor(l, roles[i], layer);
        return;
    }
    if (c->fused_gate_up && !load_has(l, ROLE_GATE, layer)) {
        load_fused(l, (linear *const[]){ &p->gate, &p->up }, (int[]){ p->d_ff, p->d_ff }, 2,
                   ROLE_GATE_UP, layer, c->d_model, 1, mlp);
    } else {
        if (c->ffn == FFN_GATED)
            load_linear(l, &p->gate, ROLE_GATE, layer, p->d_ff, c->d_model, mlp);
        load_linear(l, &p->up, ROLE_UP, layer, p->d_ff, c->d_model, mlp);
    }
    load_linear(l, &p->down, ROLE_DOWN, layer, c->d_model, p->d_ff, mlp);
}

void plan_usual(loader *l, layer_plan *p, int layer)
{
    plan_attention(l, p, layer);
    plan_ffn(l, p, layer);
}
