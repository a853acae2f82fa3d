/*
 * experts.c: what families with a mixture of experts share: their settings, and the experts'
 * matrices in every layout that files have: a tensor for each expert, stacks of all of them (views;
 * GGUF and newer checkpoints), and gpt-oss' stacks, transposed or in MXFP4, which are copied once.
 */
#include <string.h>

#include "models/arch.h"

#define MAX_EXPERTS 4096

/* ---- settings -------------------------------------------------------------------------------- */

/* Layers that Qwen's files name as dense, and all but every step-th. */
static void read_dense_layers(config_source *s, config *c)
{
    int step = 1;
    cfg_int(s, &step, "decoder_sparse_step", "interleave_moe_layer_step", 1, MAX_LAYERS);
    const json_t *list = s->json ? json_object_get(s->json, "mlp_only_layers") : NULL;
    if ((step == 1 && json_array_size(list) == 0) || c->n_layers < 1) return;
    c->moe.dense = cfg_zero(s, (size_t)c->n_layers, 1);
    if (!c->moe.dense) return;
    for (int i = 0; i < c->n_layers; i++)
        c->moe.dense[i] = (i + 1) % step != 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t layer = json_integer_value(json_array_get(list, i));
        if (layer >= 0 && layer < c->n_layers) c->moe.dense[layer] = 1;
    }
}

/* 0 for null. */
static void read_count(config_source *s, int *out, const char *hf, const char *key)
{
    if (cfg_int(s, out, hf, key, 0, MAX_EXPERTS) == FOUND_NULL) *out = 0;
}

static void read_score(config_source *s, moe_config *m)
{
    const char *name;
    int id;
    if (cfg_string(s, &name, "scoring_func", NULL) == FOUND) {
        if (strcmp(name, "softmax") == 0)
            m->score = MOE_SOFTMAX;
        else if (strcmp(name, "sigmoid") == 0)
            m->score = MOE_SIGMOID;
        else
            fault_add(&s->faults, "scoring_func: expected softmax or sigmoid, found '%.60s'", name);
    }
    if (cfg_int(s, &id, NULL, "expert_gating_func", 0, INT32_MAX) == FOUND && id) {
        static const moe_score known[] = { MOE_SOFTMAX, MOE_SIGMOID, MOE_SOFTMAX_USED };
        if (id <= COUNT_OF(known))
            m->score = known[id - 1];
        else
            fault_add(&s->faults, "%s: expected 1 to 3, found %d",
                      cfg_name(s, NULL, "expert_gating_func"), id);
    }
}

void config_read_experts(config_source *s, config *c)
{
    moe_config *m = &c->moe;
    read_count(s, &m->n_experts, "n_routed_experts|num_local_experts|num_experts", "expert_count");
    if (!m->n_experts) return;
    read_count(s, &m->n_used, "num_experts_per_tok|experts_per_token|top_k_experts",
               "expert_used_count");
    if (!m->d_ff) m->d_ff = c->d_ff;
    cfg_int(s, &m->d_ff, "moe_intermediate_size", "expert_feed_forward_length", 1, MAX_WIDTH);
    read_count(s, &m->n_shared, "n_shared_experts", "expert_shared_count");
    if (m->n_shared && m->d_ff <= MAX_WIDTH / m->n_shared) m->d_ff_shared = m->n_shared * m->d_ff;
    cfg_int(s, &m->d_ff_shared, "shared_expert_intermediate_size|shared_intermediate_size",
            "expert_shared_feed_forward_length", 0, MAX_WIDTH);
    read_count(s, &m->n_groups, "n_group", "expert_group_count");
    read_count(s, &m->n_groups_used, "topk_group", "expert_group_used_count");
    cfg_int(s, &m->n_dense, "first_k_dense_replace", "leading_dense_block_count", 0, MAX_LAYERS);
    cfg_bool(s, &m->renormalise, "norm_topk_prob", "expert_weights_norm");
    cfg_float(s, &m->weight_scale, "routed_scaling_factor", "expert_weights_scale");
    if (s->g && m->weight_scale == 0) m->weight_scale = 1; // stands for none
    read_score(s, m);
    read_dense_layers(s, c);
}

void config_check_experts(config_source *s, const config *c)
{
    const moe_config *m = &c->moe;
    const char *experts = cfg_name(s, "num_experts", "expert_count");
    if (m->n_used < 1 || m->n_used > m->n_experts)
        fault_add(&s->faults, "%s: expected 1 to %d (%s), found %d",
                  cfg_name(s, "num_experts_per_tok", "expert_used_count"), m->n_experts, experts,
                  m->n_used);
    if (!(m->weight_scale > 0 && m->weight_scale < 1e30))
        fault_add(&s->faults, "%s: expected a finite number above 0, found %g",
                  cfg_name(s, "routed_scaling_factor", "expert_weights_scale"), m->weight_scale);
    if (m->n_groups < 2) return;
    if (m->n_experts % m->n_groups) {
        fault_add(&s->faults, "%s %d is no multiple of %s %d", experts, m->n_experts,
                  cfg_name(s, "n_group", "expert_group_count"), m->n_groups);
        return;
    }
    int size = m->n_experts / m->n_groups;
    if (m->n_groups_used < 1 || m->n_groups_used > m->n_groups)
        fault_add(&s->faults, "%s: expected 1 to %d, found %d",
                  cfg_name(s, "topk_group", "expert_group_used_count"), m->n_groups,
                  m->n_groups_used);
    else if (m->n_used > m->n_groups_used * size)
        fault_add(&s->faults, "%s %d: the groups used have only %d experts",
                  cfg_name(s, "num_experts_per_tok", "expert_used_count"), m->n_used,
                  m->n_groups_used * size);
    if (m->group_top2 && size < 2)
        fault_add(&s->faults, "%s: groups of one expert have no second best",
                  cfg_name(s, "n_group", "expert_group_count"));
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Matrices of a layer's experts, to be filled. */
typedef struct expert_set {
    linear *gate, *up, *down; // [n_experts]
    int n, d_ff, d_model;
} expert_set;

static void spread(linear *out, const tensor *stack, int n, int first_row, int n_rows)
{
    for (int x = 0; x < n; x++) {
        tensor one = tensor_slice(stack, x);
        out[x].w = tensor_rows(&one, first_row, n_rows);
    }
}

static void spread_biases(linear *out, const float *rows, int n, int width)
{
    for (int x = 0; rows && x < n; x++)
        out[x].bias = rows + (size_t)x * (size_t)width;
}

/* Stacks as they are: gate and up in one, or each alone. */
static void load_stacks(loader *l, expert_set *e, int layer)
{
    tensor t;
    int n = e->n, ff = e->d_ff;
    if (load_has(l, ROLE_EXPERTS_GATE_UP, layer)) {
        if (load_stack(l, &t, ROLE_EXPERTS_GATE_UP, layer, n, 2 * ff, e->d_model, false)) {
            spread(e->gate, &t, n, 0, ff);
            spread(e->up, &t, n, ff, ff);
        }
    } else {
        if (load_stack(l, &t, ROLE_EXPERT_GATE, layer, n, ff, e->d_model, false))
            spread(e->gate, &t, n, 0, ff);
        if (load_stack(l, &t, ROLE_EXPERT_UP, layer, n, ff, e->d_model, false))
            spread(e->up, &t, n, 0, ff);
    }
    if (load_stack(l, &t, ROLE_EXPERTS_DOWN, layer, n, e->d_model, ff, false))
        spread(e->down, &t, n, 0, e->d_model);
    if (!l->m->gguf) return;
    const tensor_role roles[] = { ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN };
    linear *const sets[] = { e->gate, e->up, e->down };
    for (int i = 0; i < COUNT_OF(roles); i++) {
        int width = i == 2 ? e->d_model : ff;
        spread_biases(sets[i], load_float_rows(l, roles[i], layer, ".bias", n, width, true), n,
                      width);
    }
}

/* Stacks [n_experts, n_in, n_out], in which columns of gate and up alternate. */
static void load_columns(loader *l, expert_set *e, int layer)
{
    tensor t;
    int n = e->n, ff = e->d_ff;
    if (load_stack(l, &t, ROLE_EXPERTS_GATE_UP, layer, n, e->d_model, 2 * ff, false))
        for (int x = 0; x < n; x++) {
            tensor one = tensor_slice(&t, x);
            load_exchanged(l, &e->gate[x].w, &one, 0, 2);
            load_exchanged(l, &e->up[x].w, &one, 1, 2);
        }
    if (load_stack(l, &t, ROLE_EXPERTS_DOWN, layer, n, ff, e->d_model, false))
        for (int x = 0; x < n; x++) {
            tensor one = tensor_slice(&t, x);
            load_exchanged(l, &e->down[x].w, &one, 0, 1);
        }
}

/* A block of 32 as safetensors have it, element 2i low and 2i + 1 high in byte i, to GGUF's: the
 * scale, then element i low and i + 16 high. */
static void repack_block(uint8_t *to, const uint8_t *codes, uint8_t scale)
{
    to[0] = scale;
    for (int i = 0; i < 8; i++) {
        uint8_t a = codes[i], b = codes[i + 8];
        to[1 + 2 * i] = (uint8_t)((a & 15) | (b & 15) << 4);
        to[2 + 2 * i] = (uint8_t)(a >> 4 | (b & 0xf0));
    }
}

/* Blocks [n_experts, n_rows, n_cols / 32, 16] and their scales. Row r of expert x goes to matrix
 * r % n_sets of its sets. */
static void load_mxfp4(loader *l, linear *const *sets, int n_sets, tensor_role role, int layer,
                       int n_experts, int n_rows, int n_cols)
{
    int n_blocks = n_cols / 32;
    size_t row = (size_t)n_blocks * 17, n = (size_t)n_experts * (size_t)n_rows;
    if (n_cols % 32) {
        fault_add(&l->faults, "experts of %d inputs do not fit type mxfp4", n_cols);
        return;
    }
    const int64_t dims[] = { n_experts, n_rows, n_blocks, 16 };
    const uint8_t *codes = load_bytes(l, role, layer, "_blocks", dims, 4, n * (uint64_t)n_cols);
    const uint8_t *scales = load_bytes(l, role, layer, "_scales", dims, 3, 0);
    uint8_t *to = codes && scales ? load_repacked(l, n * row) : NULL;
    if (!to) return;
    int per_set = n_rows / n_sets;
    for (int x = 0; x < n_experts; x++)
        for (int k = 0; k < n_sets; k++) {
            sets[k][x].w = (tensor){ .name = "experts",
                                     .data = to,
                                     .type = DT_MXFP4,
                                     .n_rows = per_set,
                                     .n_cols = n_cols,
                                     .n_slices = 1,
                                     .row_bytes = row };
            for (int r = 0; r < per_set; r++) {
                size_t from = ((size_t)x * n_rows + (size_t)r * n_sets + k) * (size_t)n_blocks;
                for (int b = 0; b < n_blocks; b++, to += 17)
                    repack_block(to, codes + (from + b) * 16, scales[from + b]);
            }
        }
}

/* Biases [n_experts, 2 * d_ff], gate and up in turn, and [n_experts, d_model], of stacks by column.
 */
static void load_column_biases(loader *l, expert_set *e, int layer)
{
    size_t n = (size_t)e->n * (size_t)e->d_ff;
    const float *both =
        load_float_rows(l, ROLE_EXPERTS_GATE_UP, layer, "_bias", e->n, 2 * e->d_ff, false);
    float *apart = arena_alloc(&l->m->mem, 2 * n, sizeof(float));
    if (!apart) l->out_of_memory = true;
    if (both && apart) {
        for (size_t i = 0; i < n; i++) {
            apart[i] = both[2 * i];
            apart[n + i] = both[2 * i + 1];
        }
        spread_biases(e->gate, apart, e->n, e->d_ff);
        spread_biases(e->up, apart + n, e->n, e->d_ff);
    }
    spread_biases(e->down,
                  load_float_rows(l, ROLE_EXPERTS_DOWN, layer, "_bias", e->n, e->d_model, false),
                  e->n, e->d_model);
}

static void load_each(loader *l, expert_set *e, int layer)
{
    for (int x = 0; x < e->n; x++) {
        load_expert(l, &e->gate[x], ROLE_EXPERT_GATE, layer, x, e->d_ff, e->d_model);
        load_expert(l, &e->up[x], ROLE_EXPERT_UP, layer, x, e->d_ff, e->d_model);
        load_expert(l, &e->down[x], ROLE_EXPERT_DOWN, layer, x, e->d_model, e->d_ff);
    }
}

static void load_experts(loader *l, moe_plan *m, int layer)
{
    expert_set e = { .n = m->n_experts, .d_ff = m->d_ff, .d_model = l->c.d_model };
    linear *all = arena_zero(&l->m->mem, (size_t)e.n * 3, sizeof(*all));
    if (!all) {
        l->out_of_memory = true;
        return;
    }
    m->gate = e.gate = all;
    m->up = e.up = all + e.n;
    m->down = e.down = all + 2 * e.n;
    if (l->m->gguf) {
        load_stacks(l, &e, layer);
    } else if (load_has_suffix(l, ROLE_EXPERTS_GATE_UP, layer, "_blocks")) {
        load_mxfp4(l, (linear *const[]){ e.gate, e.up }, 2, ROLE_EXPERTS_GATE_UP, layer, e.n,
                   2 * e.d_ff, e.d_model);
        load_mxfp4(l, &e.down, 1, ROLE_EXPERTS_DOWN, layer, e.n, e.d_model, e.d_ff);
        load_column_biases(l, &e, layer);
    } else if (l->c.moe.by_column) {
        load_columns(l, &e, layer);
        load_column_biases(l, &e, layer);
    } else if (load_has(l, ROLE_EXPERTS_GATE_UP, layer)) {
        load_stacks(l, &e, layer);
    } else {
        load_each(l, &e, layer);
    }
}

/* ---- the layer ------------------------------------------------------------------------------- */

static void plan_shared(loader *l, moe_plan *m, int layer)
{
    int ff = m->shared_d_ff, d_model = l->c.d_model;
    if (load_has(l, ROLE_SHARED_GATE_UP, layer)) {
        load_fused(l, (linear *const[]){ &m->shared_gate, &m->shared_up }, (int[]){ ff, ff }, 2,
                   ROLE_SHARED_GATE_UP, layer, d_model, 1, BIAS_NONE);
    } else {
        load_linear(l, &m->shared_gate, ROLE_SHARED_GATE, layer, ff, d_model, BIAS_NONE);
        load_linear(l, &m->shared_up, ROLE_SHARED_UP, layer, ff, d_model, BIAS_NONE);
    }
    load_linear(l, &m->shared_down, ROLE_SHARED_DOWN, layer, d_model, ff, BIAS_NONE);
    if (!load_has(l, ROLE_SHARED_ROUTER, layer)) return;
    const float *w = load_floats(l, ROLE_SHARED_ROUTER, layer, d_model, false);
    if (w)
        m->shared_router.w = (tensor){ .name = "shared router",
                                       .data = (const uint8_t *)w,
                                       .type = DT_F32,
                                       .n_rows = 1,
                                       .n_cols = d_model,
                                       .n_slices = 1,
                                       .row_bytes = (size_t)d_model * sizeof(float) };
}

bool layer_is_dense(const loader *l, int layer)
{
    const moe_config *m = &l->c.moe;
    if (!m->n_experts) return true;
    if (loader_gguf_settings(l)) return !load_has(l, ROLE_ROUTER, layer);
    return layer < m->n_dense || (m->dense && m->dense[layer]);
}

moe_plan *plan_moe(loader *l, layer_plan *p, int layer)
{
    const config *c = &l->c;
    const moe_config *mc = &c->moe;
    moe_plan *m = arena_zero(&l->m->mem, 1, sizeof(*m));
    if (!m) {
        l->out_of_memory = true;
        return NULL;
    }
    *m = (moe_plan){ .n_experts = mc->n_experts,
                     .n_used = mc->n_used,
                     .d_ff = mc->d_ff,
                     .score = mc->score,
                     .renormalise = mc->renormalise,
                     .weight_scale = (float)mc->weight_scale,
                     .n_groups = mc->n_groups,
                     .n_groups_used = mc->n_groups_used,
                     .group_top2 = mc->group_top2,
                     .shared_d_ff = mc->d_ff_shared };
    p->ffn = FFN_GATED;
    p->act = c->act;
    p->d_ff = mc->d_ff;
    load_norm(l, &p->ffn_norm, ROLE_FFN_NORM, layer, c->d_model, false);
    load_norm(l, &p->post_ffn_norm, ROLE_POST_FFN_NORM, layer, c->d_model, false);
    load_linear(l, &m->router, ROLE_ROUTER, layer, m->n_experts, c->d_model, BIAS_OPTIONAL);
    m->select_bias = load_floats(l, ROLE_SELECT_BIAS, layer, m->n_experts, true);
    load_experts(l, m, layer);
    if (m->shared_d_ff) plan_shared(l, m, layer);
    p->moe = m;
    return m;
}

void plan_with_experts(loader *l, layer_plan *p, int layer)
{
    plan_attention(l, p, layer);
    if (layer_is_dense(l, layer))
        plan_ffn(l, p, layer);
    else
        plan_moe(l, p, layer);
}
