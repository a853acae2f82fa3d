/*
 * arch_gemma4.c: Gemma 3n and Gemma 4: Gemma 3's layer with plain norm weights, values normed too,
 * an attention scale of 1, a vector of each token for each layer (per-layer embeddings), and last
 * layers that use the keys and values of earlier ones. 3n has several residual streams, a low-rank
 * branch beside the attention and sparse gates; 4 has heads of another size in layers that see
 * everything, rotates part of them, scales each layer's output, and may have experts beside the
 * dense FFN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/arch.h"

static const tensor_name gemma3n_names[] = {
    { ROLE_POST_ATTN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_FFN_NORM, "layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm" },
    { ROLE_POST_FFN_NORM, "layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { ROLE_PLE_TABLE, "embed_tokens_per_layer", "per_layer_token_embd" },
    { ROLE_PLE_PROJECT, "per_layer_model_projection", "per_layer_model_proj" },
    { ROLE_PLE_NORM, "per_layer_projection_norm", "per_layer_proj_norm" },
    { ROLE_PLE_GATE, "layers.#.per_layer_input_gate", "blk.#.inp_gate" },
    { ROLE_PLE_OUT, "layers.#.per_layer_projection", "blk.#.proj" },
    { ROLE_PLE_POST_NORM, "layers.#.post_per_layer_input_norm", "blk.#.post_norm" },
    { ROLE_STREAM_IN, "altup_projections.#", "altup_proj" },
    { ROLE_STREAM_OUT, "altup_unembed_projections.#", "altup_unembd_proj" },
    { ROLE_ALTUP_ROUTER, "layers.#.altup.modality_router", "blk.#.altup_router" },
    { ROLE_ALTUP_NORM, "layers.#.altup.router_norm", "blk.#.altup_router_norm" },
    { ROLE_ALTUP_PREDICT, "layers.#.altup.prediction_coefs", "blk.#.altup_predict_coef" },
    { ROLE_ALTUP_CORRECT, "layers.#.altup.correction_coefs", "blk.#.altup_correct_coef" },
    { ROLE_ALTUP_SCALE, "layers.#.altup.correct_output_scale!", "blk.#.altup_correct_scale" },
    { ROLE_LAUREL_LEFT, "layers.#.laurel.linear_left", "blk.#.laurel_l" },
    { ROLE_LAUREL_RIGHT, "layers.#.laurel.linear_right", "blk.#.laurel_r" },
    { ROLE_LAUREL_NORM, "layers.#.laurel.post_laurel_norm", "blk.#.laurel_post_norm" },
    { ROLE_COUNT, NULL, NULL },
};

static const tensor_name gemma4_names[] = {
    { ROLE_POST_ATTN_NORM, "layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { ROLE_FFN_NORM, "layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm" },
    { ROLE_POST_FFN_NORM, "layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { ROLE_PLE_TABLE, "embed_tokens_per_layer", "per_layer_token_embd" },
    { ROLE_PLE_PROJECT, "per_layer_model_projection", "per_layer_model_proj" },
    { ROLE_PLE_NORM, "per_layer_projection_norm", "per_layer_proj_norm" },
    { ROLE_PLE_GATE, "layers.#.per_layer_input_gate", "blk.#.inp_gate" },
    { ROLE_PLE_OUT, "layers.#.per_layer_projection", "blk.#.proj" },
    { ROLE_PLE_POST_NORM, "layers.#.post_per_layer_input_norm", "blk.#.post_norm" },
    { ROLE_LAYER_SCALE, "layers.#.layer_scalar!", "blk.#.layer_output_scale" },
    { ROLE_ROUTER, "layers.#.router.proj", "blk.#.ffn_gate_inp" },
    { ROLE_ROUTER_SCALE, "layers.#.router.scale!", "blk.#.ffn_gate_inp.scale!" },
    { ROLE_EXPERT_SCALE, "layers.#.router.per_expert_scale!", "blk.#.ffn_down_exps.scale!" },
    { ROLE_EXPERTS_GATE_UP, "layers.#.experts.gate_up_proj!", "blk.#.ffn_gate_up_exps" },
    { ROLE_EXPERTS_DOWN, "layers.#.experts.down_proj!", "blk.#.ffn_down_exps" },
    { ROLE_EXPERT_GATE, "layers.#.experts.@.gate_proj", "blk.#.ffn_gate_exps" },
    { ROLE_EXPERT_UP, "layers.#.experts.@.up_proj", "blk.#.ffn_up_exps" },
    { ROLE_EXPERT_DOWN, "layers.#.experts.@.down_proj", "blk.#.ffn_down_exps" },
    { ROLE_DENSE_POST_NORM, "layers.#.post_feedforward_layernorm_1", "blk.#.post_ffw_norm_1" },
    { ROLE_EXPERT_PRE_NORM, "layers.#.pre_feedforward_layernorm_2", "blk.#.pre_ffw_norm_2" },
    { ROLE_EXPERT_POST_NORM, "layers.#.post_feedforward_layernorm_2", "blk.#.post_ffw_norm_2" },
    { ROLE_COUNT, NULL, NULL },
};

/* ---- what both have -------------------------------------------------------------------------- */

static void common_defaults(config *c)
{
    c->norm = NORM_RMS;
    c->norm_eps = 1e-6;
    c->act = ACT_GELU_TANH;
    c->tied = true;
    c->n_heads = 8;
    c->head_dim = 256;
    c->qk_norm = QK_NORM_HEAD;
    c->attn_scale = 1;
    c->window = 512;
    c->rope.base = 1000000;
    c->rope_local.base = 10000;
    c->has_local = true;
}

/* The last n_shared layers use the keys and values of the last layer of their kind before them. */
static void share_kv(config_source *s, config *c, int n_shared)
{
    if (!n_shared || c->n_layers < 1 || !c->sliding) return;
    int first = c->n_layers - n_shared;
    c->kv_source = cfg_zero(s, (size_t)c->n_layers, sizeof(*c->kv_source));
    if (!c->kv_source) return;
    for (int i = 0; i < c->n_layers; i++) {
        int from = i < first ? i : first - 1;
        while (from >= 0 && c->sliding[from] != c->sliding[i])
            from--;
        if (from < 0)
            fault_add(&s->faults, "%s %d: layer %d has no earlier layer of its kind",
                      cfg_name(s, "num_kv_shared_layers", "attention.shared_kv_layers"), n_shared,
                      i);
        c->kv_source[i] = from < 0 ? i : from;
    }
}

/* The number of layers that share. */
static int common_read(config_source *s, config *c, int n_shared)
{
    cfg_activation(s, &c->act, "hidden_activation");
    c->embed_scale = sqrt((double)c->d_model);
    if (cfg_float(s, &c->final_softcap, "final_logit_softcapping", "final_logit_softcapping") ==
        FOUND_NULL)
        c->final_softcap = 0;
    if (cfg_int(s, &c->ple_width, "hidden_size_per_layer_input", "embedding_length_per_layer_input",
                0, MAX_WIDTH) == FOUND_NULL)
        c->ple_width = 0;
    if (c->n_layers > 0 && c->ple_width > MAX_WIDTH / c->n_layers)
        fault_add(&s->faults, "%s: %d layers of %d are wider than %d",
                  cfg_name(s, "hidden_size_per_layer_input", "embedding_length_per_layer_input"),
                  c->n_layers, c->ple_width, MAX_WIDTH);
    config_slide_by_pattern(s, c);
    cfg_int(s, &n_shared, "num_kv_shared_layers", "attention.shared_kv_layers", 0, c->n_layers);
    share_kv(s, c, n_shared);
    return n_shared;
}

static void plan_common_model(loader *l)
{
    infer_model *m = l->m;
    const config *c = &l->c;
    int width = c->ple_width, all = width * c->n_layers;
    if (!width) return;
    m->ple_width = width;
    m->ple_table_scale = (float)sqrt((double)width);
    m->ple_project_scale = (float)(1 / sqrt((double)c->d_model));
    m->ple_sum_scale = (float)M_SQRT1_2;
    load_tensor(l, &m->ple_table, ROLE_PLE_TABLE, 0, 0, all, false);
    load_linear(l, &m->ple_project, ROLE_PLE_PROJECT, 0, all, c->d_model, BIAS_NONE);
    load_norm(l, &m->ple_norm, ROLE_PLE_NORM, 0, width, false);
}

static void plan_ple(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    ple_plan *ple = arena_zero(&l->m->mem, 1, sizeof(*ple));
    if (!ple) {
        l->out_of_memory = true;
        return;
    }
    load_linear(l, &ple->gate, ROLE_PLE_GATE, layer, c->ple_width, c->d_model, BIAS_NONE);
    load_linear(l, &ple->project, ROLE_PLE_OUT, layer, c->d_model, c->ple_width, BIAS_NONE);
    load_norm(l, &ple->post_norm, ROLE_PLE_POST_NORM, layer, c->d_model, false);
    ple->act = c->act;
    p->ple = ple;
}

static void plan_common(loader *l, layer_plan *p, int layer)
{
    plan_attention(l, p, layer);
    if (p->kv_source != layer) { // files may have what is not used
        ignore_tensor(l, ROLE_K, layer);
        ignore_tensor(l, ROLE_V, layer);
        ignore_tensor(l, ROLE_K_NORM, layer);
    }
    p->v_norm = (norm){ .kind = NORM_RMS, .eps = (float)l->c.norm_eps };
    if (l->c.ple_width) plan_ple(l, p, layer);
}

/* n numbers times a factor, in the model's arena. */
static const float *scaled(loader *l, const float *x, int n, double factor)
{
    float *y = x ? arena_alloc(&l->m->mem, (size_t)n, sizeof(*y)) : NULL;
    if (x && !y) l->out_of_memory = true;
    for (int i = 0; y && i < n; i++)
        y[i] = (float)(x[i] * factor);
    return y;
}

/* ---- Gemma 3n -------------------------------------------------------------------------------- */

#define MAX_STREAMS 8 // as in inference/altup.c

static void gemma3n_defaults(config *c, bool is_gguf)
{
    common_defaults(c);
    c->n_kv_heads = 2;
    c->n_ctx = 32768;
    c->pattern = 5;
    c->final_softcap = 30;
    c->n_streams = 4;
    c->ple_width = 256;
    c->scale_stream = true;
    (void)is_gguf;
}

/* The number of deviations that a share p of a normal distribution lies below. */
static double normal_quantile(double p)
{
    double low = -40, high = 40;
    for (int i = 0; i < 200; i++) {
        double mid = (low + high) / 2;
        if (0.5 * erfc(-mid * M_SQRT1_2) < p)
            low = mid;
        else
            high = mid;
    }
    return high;
}

/* GGUF has the deviations, config.json the shares of gates that are cut. */
static void read_sparsity(config_source *s, config *c)
{
    if (s->g) {
        cfg_floats(s, &c->sparsity, c->n_layers, NULL, "activation_sparsity_scale");
        for (int i = 0; c->sparsity && i < c->n_layers; i++)
            if (isnan(c->sparsity[i]) || c->sparsity[i] > 40)
                fault_add(&s->faults, "%s: expected deviations below 40, found %g",
                          cfg_name(s, NULL, "activation_sparsity_scale"), c->sparsity[i]);
        return;
    }
    const char *key = "activation_sparsity_pattern";
    cfg_found f = cfg_floats(s, &c->sparsity, c->n_layers, key, NULL);
    if (f == FOUND_BAD || c->n_layers < 1) return;
    if (f != FOUND) {
        c->sparsity = cfg_zero(s, (size_t)c->n_layers, sizeof(*c->sparsity));
        for (int i = 0; c->sparsity && c->n_layers > 10 && i < 10; i++)
            c->sparsity[i] = 0.95;
    }
    for (int i = 0; c->sparsity && i < c->n_layers; i++) {
        if (!(c->sparsity[i] >= 0 && c->sparsity[i] < 1))
            fault_add(&s->faults, "%s: expected numbers from 0 to below 1, found %g", key,
                      c->sparsity[i]);
        c->sparsity[i] = c->sparsity[i] > 0 ? normal_quantile(c->sparsity[i]) : -INFINITY;
    }
}

static void gemma3n_read(config_source *s, config *c)
{
    int active = 0;
    common_read(s, c, s->g ? 0 : 15);
    cfg_int(s, &c->n_streams, "altup_num_inputs", "altup.num_inputs", 2, MAX_STREAMS);
    cfg_int(s, &active, "altup_active_idx", "altup.active_idx", 0, 0);
    cfg_bool(s, &c->scale_stream, "altup_correct_scale", NULL);
    if (c->ple_width < 1)
        fault_add(&s->faults, "%s missing",
                  cfg_name(s, "hidden_size_per_layer_input", "embedding_length_per_layer_input"));
    read_sparsity(s, c);
}

static const linear *load_streams(loader *l, tensor_role role)
{
    int n = l->c.n_streams - 1, d_model = l->c.d_model;
    linear *all = arena_zero(&l->m->mem, (size_t)n, sizeof(*all));
    tensor stack;
    if (!all) {
        l->out_of_memory = true;
    } else if (!l->m->gguf) {
        for (int i = 0; i < n; i++)
            load_linear(l, &all[i], role, i, d_model, d_model, BIAS_NONE);
    } else if (load_stack(l, &stack, role, 0, n, d_model, d_model, false)) {
        for (int i = 0; i < n; i++)
            all[i].w = tensor_slice(&stack, i);
    }
    return all;
}

static void gemma3n_plan_model(loader *l)
{
    plan_common_model(l);
    l->m->n_streams = l->c.n_streams;
    l->m->stream_in = load_streams(l, ROLE_STREAM_IN);
    l->m->stream_out = load_streams(l, ROLE_STREAM_OUT);
}

static void gemma3n_plan(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    int n = c->n_streams;
    altup_plan *a = arena_zero(&l->m->mem, 1, sizeof(*a));
    laurel_plan *laurel = arena_zero(&l->m->mem, 1, sizeof(*laurel));
    plan_common(l, p, layer);
    plan_ffn(l, p, layer);
    if (!a || !laurel) {
        l->out_of_memory = true;
        return;
    }
    if (c->sparsity && c->sparsity[layer] > -40) {
        p->sparse = true;
        p->sparse_cut = (float)c->sparsity[layer];
    }
    load_linear(l, &a->router, ROLE_ALTUP_ROUTER, layer, n, c->d_model, BIAS_NONE);
    load_norm(l, &a->router_norm, ROLE_ALTUP_NORM, layer, c->d_model, false);
    a->router_norm.weight = scaled(l, a->router_norm.weight, c->d_model, 1.0 / c->d_model);
    a->predict = load_float_rows(l, ROLE_ALTUP_PREDICT, layer, ".weight", n * n, n, false);
    a->correct = load_float_rows(l, ROLE_ALTUP_CORRECT, layer, ".weight", n, n, false);
    const float *scale = load_floats(l, ROLE_ALTUP_SCALE, layer, c->d_model, false);
    if (c->scale_stream) a->out_scale = scale;
    p->altup = a;

    if (load_tensor(l, &laurel->left.w, ROLE_LAUREL_LEFT, layer, 0, c->d_model, false))
        load_linear(l, &laurel->right, ROLE_LAUREL_RIGHT, layer, c->d_model, laurel->left.w.n_rows,
                    BIAS_NONE);
    load_norm(l, &laurel->post_norm, ROLE_LAUREL_NORM, layer, c->d_model, false);
    p->laurel = laurel;
}

const arch arch_gemma3n = {
    .name = "gemma3n",
    .hf_names = (const char *const[]){ "gemma3n_text", "gemma3n", "Gemma3nForCausalLM",
                                       "Gemma3nForConditionalGeneration", NULL },
    .gguf_names = (const char *const[]){ "gemma3n", NULL },
    .names = gemma3n_names,
    .defaults = gemma3n_defaults,
    .read_config = gemma3n_read,
    .plan_model = gemma3n_plan_model,
    .plan_layer = gemma3n_plan,
};

/* ---- Gemma 4 --------------------------------------------------------------------------------- */

static void gemma4_defaults(config *c, bool is_gguf)
{
    common_defaults(c);
    c->n_kv_heads = 4;
    c->n_ctx = 131072;
    c->pattern = 6;
    c->global_v_is_k = is_gguf; // where a layer has no tensor of values
    if (!is_gguf) c->ple_width = 256;
    c->moe = (moe_config){ .renormalise = true, .weight_scale = 1 };
}

/* Sizes that transformers 5 writes by layer: {"5": {"head_dim": 512}, …}. */
static void read_layer_overrides(config_source *s, config *c)
{
    const json_t *all = s->json ? json_object_get(s->json, "per_layer_config") : NULL;
    const char *key;
    json_t *one;
    json_object_foreach((json_t *)(uintptr_t)all, key, one)
    {
        char *end;
        long layer = strtol(key, &end, 10);
        if (end == key || *end || layer < 0 || layer >= c->n_layers) continue;
        config_source in = { .path = s->path, .json = one, .outer = one, .mem = s->mem };
        cfg_int(&in, &c->head_dim_of[layer], "head_dim", NULL, 1, MAX_WIDTH);
        cfg_int(&in, &c->n_kv_heads_of[layer], "num_key_value_heads", NULL, 1, MAX_WIDTH);
        if (in.faults.n) fault_add(&s->faults, "per_layer_config: %s", in.faults.text);
        s->out_of_memory |= in.out_of_memory;
    }
}

/* Heads of layers that see everything have their own size, and maybe number. */
static void read_global_heads(config_source *s, config *c)
{
    int n = c->n_layers, global = s->g ? c->head_dim : 512, local = c->head_dim, kv_heads = 0;
    bool k_is_v = false;
    if (n < 1 || !c->sliding) return;
    cfg_int(s, &global, "global_head_dim", NULL, 1, MAX_WIDTH);
    cfg_int(s, &local, NULL, "attention.key_length_swa", 1, MAX_WIDTH);
    cfg_bool(s, &k_is_v, "attention_k_eq_v", NULL);
    cfg_int(s, &kv_heads, "num_global_key_value_heads", NULL, 1, MAX_WIDTH);
    if (!s->g) c->global_v_is_k = k_is_v;
    c->head_dim = c->head_dim_v = local;
    c->head_dim_of = cfg_zero(s, (size_t)n, sizeof(int));
    int *kv = cfg_zero(s, (size_t)n, sizeof(int));
    if (!c->head_dim_of || !kv) return;
    for (int i = 0; i < n; i++) {
        c->head_dim_of[i] = c->sliding[i] ? local : global;
        kv[i] = c->n_kv_heads_of ? c->n_kv_heads_of[i] : c->n_kv_heads ? c->n_kv_heads : c->n_heads;
        if (!c->sliding[i] && kv_heads && k_is_v) kv[i] = kv_heads;
    }
    c->n_kv_heads_of = kv;
    read_layer_overrides(s, c);
    for (int i = 0; i < n; i++) {
        if (!c->sliding[i]) global = c->head_dim_of[i];
        if ((int64_t)c->n_heads * c->head_dim_of[i] > MAX_WIDTH)
            fault_add(&s->faults, "%d heads of %d are wider than %d", c->n_heads, c->head_dim_of[i],
                      MAX_WIDTH);
    }
    c->rope.head_dim = global;
}

/* Which pairs rotate: GGUF says it by divisors of frequencies. */
static void read_rotation(config_source *s, config *c)
{
    if (s->g) {
        cfg_int(s, &c->rope_local.dim, NULL, "rope.dimension_count_swa", 1, MAX_WIDTH);
        if (!c->rope_local.dim) c->rope_local.dim = c->head_dim;
        if (!c->rope.dim) c->rope.dim = c->rope.head_dim;
        return;
    }
    if (!json_object_get(s->json, "rope_parameters")) {
        c->rope.scaling = ROPE_PROPORTIONAL;
        c->rotary_fraction = 0.25;
    }
    c->rope_local.dim = c->head_dim;
    c->rope.dim = c->rope.head_dim;
    if (c->rope.scaling == ROPE_PROPORTIONAL && c->rotary_fraction > 0 && c->rotary_fraction <= 1)
        c->rope.dim = 2 * (int)(c->rotary_fraction * c->rope.head_dim / 2);
    if (c->rope.factor == 0) c->rope.factor = 1; // proportional has none where the file is silent
}

static void gemma4_read(config_source *s, config *c)
{
    bool experts = s->g != NULL, wide = false;
    const char *both_ways;
    config_slide_by_pattern(s, c);
    // the last layer sees everything, whatever the file says
    if (!s->g && c->sliding && c->n_layers > 0) c->sliding[c->n_layers - 1] = 0;
    int first = c->n_layers - common_read(s, c, 0);
    if (cfg_string(s, &both_ways, "use_bidirectional_attention", NULL) == FOUND &&
        strcmp(both_ways, "all") == 0)
        fault_add(&s->faults, "use_bidirectional_attention: 'all' is not supported");
    read_global_heads(s, c);
    read_rotation(s, c);
    cfg_bool(s, &wide, "use_double_wide_mlp", NULL);
    if (wide && first < c->n_layers && !c->d_ff_of && c->d_ff <= MAX_WIDTH / 2) {
        c->d_ff_of = cfg_zero(s, (size_t)c->n_layers, sizeof(int));
        for (int i = 0; c->d_ff_of && i < c->n_layers; i++)
            c->d_ff_of[i] = i < first ? c->d_ff : 2 * c->d_ff;
    }
    cfg_bool(s, &experts, "enable_moe_block", NULL);
    if (experts) config_read_experts(s, c);
}

/* Experts beside the dense FFN; both read the residual stream, through norms of their own, as does
 * the router. */
static void plan_experts_beside(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    int d_model = c->d_model;
    moe_plan *m = plan_moe(l, p, layer);
    if (!m) return;
    m->with_dense = true;
    m->router_raw = true;
    m->router_norm = (norm){ .kind = NORM_RMS, .eps = (float)c->norm_eps };
    m->router_norm.weight = scaled(l, load_floats(l, ROLE_ROUTER_SCALE, layer, d_model, false),
                                   d_model, 1 / sqrt((double)d_model));
    m->expert_scale = load_floats(l, ROLE_EXPERT_SCALE, layer, m->n_experts, false);
    load_norm(l, &m->dense_norm, ROLE_DENSE_POST_NORM, layer, d_model, false);
    load_norm(l, &m->expert_in_norm, ROLE_EXPERT_PRE_NORM, layer, d_model, false);
    load_norm(l, &m->expert_norm, ROLE_EXPERT_POST_NORM, layer, d_model, false);
}

static void gemma4_plan(loader *l, layer_plan *p, int layer)
{
    plan_common(l, p, layer);
    if (!layer_is_dense(l, layer)) plan_experts_beside(l, p, layer);
    plan_ffn(l, p, layer);
    const float *scale = load_floats(l, ROLE_LAYER_SCALE, layer, 1, l->m->gguf != NULL);
    if (scale) p->layer_scale = *scale;
}

const arch arch_gemma4 = {
    .name = "gemma4",
    .hf_names = (const char *const[]){ "gemma4_text", "gemma4", "Gemma4ForCausalLM",
                                       "Gemma4ForConditionalGeneration", NULL },
    .gguf_names = (const char *const[]){ "gemma4", NULL },
    .names = gemma4_names,
    .defaults = gemma4_defaults,
    .read_config = gemma4_read,
    .plan_model = plan_common_model,
    .plan_layer = gemma4_plan,
};
