/*
 * arch.c: the table of families, and the layer that most of them share.
 */
#include "models/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

extern const arch arch_llama, arch_mistral, arch_qwen2, arch_qwen3, arch_gemma, arch_gemma2,
    arch_gemma3;

const arch *const archs[] = {
    &arch_llama, &arch_mistral, &arch_qwen2,  &arch_qwen3,
    &arch_gemma, &arch_gemma2,  &arch_gemma3, NULL,
};

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

void plan_usual(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    bool is_gguf = l->m->gguf != NULL;
    // GGUF does not say whether there are biases: the tensors do
    bias_rule o = is_gguf ? BIAS_OPTIONAL : c->attention_bias ? BIAS_NEEDED : BIAS_NONE;
    bias_rule qkv = c->qkv_bias ? BIAS_NEEDED : o;
    bias_rule mlp = is_gguf ? BIAS_OPTIONAL : c->mlp_bias ? BIAS_NEEDED : BIAS_NONE;
    int q_width = c->n_heads * c->head_dim, kv_width = c->n_kv_heads * c->head_dim;

    load_norm(l, &p->attn_norm, ROLE_ATTN_NORM, layer, c->d_model, false);
    load_linear(l, &p->q, ROLE_Q, layer, q_width, c->d_model, qkv);
    load_linear(l, &p->k, ROLE_K, layer, kv_width, c->d_model, qkv);
    load_linear(l, &p->v, ROLE_V, layer, c->n_kv_heads * c->head_dim_v, c->d_model, qkv);
    load_linear(l, &p->o, ROLE_O, layer, c->d_model, c->n_heads * c->head_dim_v, o);
    p->n_heads = c->n_heads;
    p->n_kv_heads = c->n_kv_heads;
    p->head_dim = c->head_dim;
    p->head_dim_v = c->head_dim_v;
    bool sliding = c->window > 0 && (!c->sliding || c->sliding[layer]);
    p->window = sliding ? c->window : 0;
    // by the layer's kind, not by the window: a sliding layer without a window keeps its rope
    p->rope = c->has_local && c->sliding && c->sliding[layer] ? 1 : 0;
    p->attn_scale = (float)(c->attn_scale > 0     ? c->attn_scale
                            : c->query_scalar > 0 ? 1 / sqrt(c->query_scalar)
                                                  : 1 / sqrt((double)c->head_dim));
    p->attn_softcap = (float)c->attn_softcap;
    p->kv_source = layer;

    load_norm(l, &p->ffn_norm, ROLE_FFN_NORM, layer, c->d_model, false);
    p->ffn = FFN_GATED;
    p->act = c->act;
    p->d_ff = c->d_ff;
    load_linear(l, &p->gate, ROLE_GATE, layer, c->d_ff, c->d_model, mlp);
    load_linear(l, &p->up, ROLE_UP, layer, c->d_ff, c->d_model, mlp);
    load_linear(l, &p->down, ROLE_DOWN, layer, c->d_model, c->d_ff, mlp);
    p->residual_scale = (float)c->residual_scale;
    p->layer_scale = 1;
}
