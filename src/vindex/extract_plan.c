/*
 * extract_plan.c: which tensor of a model goes to which file of a vindex, and under which key.
 *
 * The FFN's matrices are taken from the model's plan, where they are whole and the right way round;
 * everything else goes under its Hugging Face name as it is. What no other reader asks for (biases,
 * positions, shared experts …) goes to infer_extra.bin.
 */
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/mem.h"
#include "vindex/extract.h"

static infer_status no_memory(const extraction *x)
{
    return error_set(x->err, INFER_NOMEM, "extract: out of memory");
}

static infer_status add(extraction *x, item it)
{
    infer_status st =
        mem_reserve((void **)&x->items, &x->cap_items, x->n_items + 1, sizeof *x->items, x->err);
    if (st) return st;
    if (!it.n_dims) {
        it.n_dims = it.floats ? 1 : 2;
        it.dims[0] = it.floats ? it.n_cols : it.n_rows;
        it.dims[1] = it.n_cols;
    }
    if (!it.n_padded) it.n_padded = it.n_cols;
    it.bytes = (uint64_t)it.n_rows * quant_row_bytes(it.type, (size_t)it.n_padded);
    x->items[x->n_items++] = it;
    return INFER_OK;
}

static const char *key_of(extraction *x, tensor_role role, int layer, int expert,
                          const char *suffix)
{
    char key[256];
    if (!place_key(key, sizeof key, x->m->arch, role, layer, expert, suffix)) return NULL;
    return arena_strndup(&x->mem, key, strlen(key));
}

static infer_status no_name(extraction *x, const char *what)
{
    return error_set(x->err, INFER_UNSUPPORTED, "%s: %s of %s cannot be held by a vindex",
                     x->m->path, what, x->m->arch->name);
}

static infer_status add_matrix(extraction *x, const char *file, const char *key, const tensor *t,
                               int order0, int order1)
{
    return add(x, (item){ .file = file,
                          .key = key,
                          .kind = "tensor",
                          .src = *t,
                          .n_rows = t->n_rows,
                          .n_cols = t->n_cols,
                          .type = x->type,
                          .order = { order0, order1 } });
}

/* A matrix in blocks, its rows padded with zeros to whole ones. */
static infer_status add_blocks(extraction *x, const char *file, const char *key, const char *kind,
                               const tensor *t, dtype type, int order0, int order1)
{
    int padded = (t->n_cols + 255) / 256 * 256;
    return add(x, (item){ .file = file,
                          .key = key,
                          .kind = kind,
                          .src = *t,
                          .n_rows = t->n_rows,
                          .n_cols = t->n_cols,
                          .n_padded = padded,
                          .type = type,
                          .n_dims = 2,
                          .dims = { t->n_rows, padded },
                          .order = { order0, order1 } });
}

static infer_status add_floats(extraction *x, const char *key, const float *v, int n, int layer)
{
    if (!v) return INFER_OK;
    if (!key) return no_name(x, "a bias of the FFN");
    return add(x, (item){ .file = "infer_extra.bin",
                          .key = key,
                          .kind = "vector",
                          .floats = v,
                          .n_rows = 1,
                          .n_cols = n,
                          .type = DT_F32,
                          .order = { layer, 0 } });
}

/* ---- the FFN --------------------------------------------------------------------------------- */

const moe_plan *extract_experts(const extraction *x, int layer)
{
    const moe_plan *m = x->m->layers[layer].moe;
    return m && !m->with_dense ? m : NULL;
}

int extract_n_parts(const extraction *x, int layer)
{
    const moe_plan *m = extract_experts(x, layer);
    return m ? m->n_experts : 1;
}

const tensor *extract_gate(const extraction *x, int layer, int part)
{
    const layer_plan *p = &x->m->layers[layer];
    const moe_plan *m = extract_experts(x, layer);
    if (m) return m->gate ? &m->gate[part].w : &m->up[part].w;
    return p->ffn == FFN_GATED ? &p->gate.w : &p->up.w;
}

static infer_status add_gates(extraction *x, int layer)
{
    if (x->m->layers[layer].ffn == FFN_NONE) return INFER_OK;
    infer_status st = INFER_OK;
    for (int e = 0; e < extract_n_parts(x, layer) && !st; e++) {
        const tensor *gate = extract_gate(x, layer, e);
        st = add_matrix(x, "gate_vectors.bin", NULL, gate, layer, e);
        x->items[x->n_items - 1].kind = NULL;
        x->features[layer] += gate->n_rows;
    }
    return st;
}

static infer_status add_router_rows(extraction *x, int layer)
{
    const moe_plan *m = extract_experts(x, layer);
    if (!m) return INFER_OK;
    infer_status st = add_matrix(x, "router_weights.bin", NULL, &m->router.w, layer, 0);
    x->items[x->n_items - 1].kind = NULL;
    float *bias = arena_zero(&x->mem, (size_t)m->n_experts, sizeof *bias);
    if (!bias) return no_memory(x);
    if (m->router.bias) memcpy(bias, m->router.bias, (size_t)m->n_experts * sizeof *bias);
    if (st) return st;
    return add(x, (item){ .file = "router_weights.bin",
                          .floats = bias,
                          .n_rows = 1,
                          .n_cols = m->n_experts,
                          .type = x->type,
                          .order = { layer, 1 } });
}

/* Up or down of an expert, or of the layer, among the weights. */
static infer_status add_weight(extraction *x, const char *file, const char *key, const tensor *t,
                               bool down, int layer, int expert)
{
    if (!x->q4k) return add_matrix(x, file, key, t, layer, expert);
    return add_blocks(x, file, key, down ? "tensor_q6k" : "tensor_q4k", t,
                      down ? DT_LARQL_Q6_K : DT_Q4_K, layer, expert);
}

static infer_status add_expert_biases(extraction *x, int layer, int e)
{
    const moe_plan *m = x->m->layers[layer].moe;
    const float *gate = m->gate ? m->gate[e].bias : NULL;
    infer_status st =
        add_floats(x, key_of(x, ROLE_EXPERT_GATE, layer, e, ".bias"), gate, m->d_ff, layer);
    if (!st)
        st = add_floats(x, key_of(x, ROLE_EXPERT_UP, layer, e, ".bias"), m->up[e].bias, m->d_ff,
                        layer);
    if (!st)
        st = add_floats(x, key_of(x, ROLE_EXPERT_DOWN, layer, e, ".bias"), m->down[e].bias,
                        x->m->d_model, layer);
    return st;
}

/* A router: a choice is not a sum, and rounding it could change it. */
static infer_status add_router(extraction *x, const char *file, int layer)
{
    const moe_plan *m = x->m->layers[layer].moe;
    const char *key = key_of(x, ROLE_ROUTER, layer, 0, ".weight");
    if (!key) return no_name(x, "the router");
    infer_status st = add_matrix(x, file, key, &m->router.w, layer, 1 << 20);
    if (st) return st;
    if (x->type != DT_F32) {
        x->items[x->n_items - 1].type = DT_F32;
        x->items[x->n_items - 1].bytes *= 2;
    }
    return add_floats(x, key_of(x, ROLE_ROUTER, layer, 0, ".bias"), m->router.bias, m->n_experts,
                      layer);
}

/* Experts beside the dense FFN, which is the one that is indexed: what they are made of. */
static infer_status add_experts_beside(extraction *x, int layer)
{
    static const tensor_role roles[] = { ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN };
    const moe_plan *m = x->m->layers[layer].moe;
    const linear *const sets[] = { m->gate, m->up, m->down };
    infer_status st = add_router(x, "infer_extra.bin", layer);
    for (int e = 0; e < m->n_experts && !st; e++) {
        for (int k = 0; k < COUNT_OF(sets) && !st; k++) {
            const char *key = key_of(x, roles[k], layer, e, ".weight");
            if (!key) return no_name(x, "the experts");
            st = add_matrix(x, "infer_extra.bin", key, &sets[k][e].w, layer, 3 * e + k);
        }
        if (!st) st = add_expert_biases(x, layer, e);
    }
    return st;
}

static infer_status add_ffn(extraction *x, int layer)
{
    static const char up_file[] = "up_weights.bin", down_file[] = "down_weights.bin";
    const layer_plan *p = &x->m->layers[layer];
    const moe_plan *m = extract_experts(x, layer);
    infer_status st = INFER_OK;
    if (p->ffn == FFN_NONE) return st;
    for (int e = 0; e < (m ? m->n_experts : 1) && !st; e++) {
        const char *up = key_of(x, m ? ROLE_EXPERT_UP : ROLE_UP, layer, e, ".weight");
        const char *down = key_of(x, m ? ROLE_EXPERT_DOWN : ROLE_DOWN, layer, e, ".weight");
        if (!up || !down) return no_name(x, "the FFN");
        const tensor *ups = m ? &m->up[e].w : &p->up.w, *downs = m ? &m->down[e].w : &p->down.w;
        if (x->interleaved) {
            const char *gate = p->ffn == FFN_GATED ? key_of(x, ROLE_GATE, layer, 0, ".weight") : up;
            const tensor *gates = p->ffn == FFN_GATED ? &p->gate.w : ups;
            static const char file[] = "interleaved_q4k.bin";
            if (!gate) return no_name(x, "the gate");
            st = add_blocks(x, file, gate, "Q4_K", gates, DT_Q4_K, layer, 0);
            if (!st) st = add_blocks(x, file, up, "Q4_K", ups, DT_Q4_K, layer, 1);
            if (!st) st = add_blocks(x, file, down, "Q6_K", downs, DT_LARQL_Q6_K, layer, 2);
            continue;
        }
        st = add_weight(x, up_file, up, ups, false, layer, e);
        if (!st) st = add_weight(x, down_file, down, downs, true, layer, e);
        if (!st && m) st = add_expert_biases(x, layer, e);
    }
    if (st) return st;
    if (m) return add_router(x, up_file, layer);
    if (p->moe && (st = add_experts_beside(x, layer))) return st;
    st = add_floats(x, key_of(x, ROLE_GATE, layer, 0, ".bias"), p->gate.bias, p->d_ff, layer);
    if (!st) st = add_floats(x, key_of(x, ROLE_UP, layer, 0, ".bias"), p->up.bias, p->d_ff, layer);
    if (!st)
        st = add_floats(x, key_of(x, ROLE_DOWN, layer, 0, ".bias"), p->down.bias, x->m->d_model,
                        layer);
    return st;
}

/* ---- attention in blocks ----------------------------------------------------------------------
 */

/* q, k, v and o of every layer, in this order: readers count places, not names. */
static infer_status add_attention(extraction *x, int layer)
{
    static const tensor_role roles[] = { ROLE_Q, ROLE_K, ROLE_V, ROLE_O };
    const layer_plan *p = &x->m->layers[layer];
    const linear *all[] = { &p->q, &p->k, &p->v, &p->o };
    const arch *a = x->m->arch;
    bool pairs = x->m->gguf && a->gguf_pairing != a->hf_pairing;
    infer_status st = INFER_OK;
    if (p->mla || p->kv_source != layer || !tensor_present(&p->v.w) || a->hf_transposed)
        return no_name(x, "with quant q4k, attention");
    for (int i = 0; i < COUNT_OF(all) && !st; i++) {
        const char *key = key_of(x, roles[i], layer, 0, ".weight");
        bool v = roles[i] == ROLE_V, rotated = pairs && i < 2;
        if (!key || (rotated && (all[i]->bias || a->gguf_pairing != ROPE_ADJACENT)))
            return no_name(x, "with quant q4k, attention");
        st = add_blocks(x, "attn_weights_q4k.bin", key, v ? "Q6_K" : "Q4_K", &all[i]->w,
                        v ? DT_LARQL_Q6_K : DT_Q4_K, layer, i);
        if (!st && rotated) x->items[x->n_items - 1].head_dim = p->head_dim;
        if (!st)
            st = add_floats(x, key_of(x, roles[i], layer, 0, ".bias"), all[i]->bias,
                            all[i]->w.n_rows, layer);
    }
    return st;
}

static bool is_attention(const place *p)
{
    return p->role == ROLE_Q || p->role == ROLE_K || p->role == ROLE_V || p->role == ROLE_O ||
           p->role == ROLE_QKV;
}

/* ---- the rest, by name ----------------------------------------------------------------------- */

static bool is_ffn(const place *p)
{
    switch (p->role) {
    case ROLE_GATE:
    case ROLE_UP:
    case ROLE_GATE_UP:
    case ROLE_DOWN:
    case ROLE_EXPERT_GATE:
    case ROLE_EXPERT_UP:
    case ROLE_EXPERT_DOWN:
    case ROLE_EXPERTS_GATE_UP:
    case ROLE_EXPERTS_DOWN:
    case ROLE_ROUTER: return true;
    default: return false;
    }
}

/* Place in attn_weights.bin or norms.bin; -1: in neither. */
static int attn_slot(tensor_role r)
{
    static const tensor_role order[] = { ROLE_Q, ROLE_QKV,    ROLE_K,     ROLE_V,
                                         ROLE_O, ROLE_Q_NORM, ROLE_K_NORM };
    for (int i = 0; i < COUNT_OF(order); i++)
        if (order[i] == r) return i;
    return -1;
}
static int norm_slot(tensor_role r)
{
    static const tensor_role order[] = { ROLE_ATTN_NORM, ROLE_POST_ATTN_NORM, ROLE_FFN_NORM,
                                         ROLE_POST_FFN_NORM, ROLE_FINAL_NORM };
    for (int i = 0; i < COUNT_OF(order); i++)
        if (order[i] == r) return i;
    return -1;
}

/* A tensor of either container. */
typedef struct source {
    const char *name;
    int type, n_dims;
    int64_t dims[5]; // slowest first
    const uint8_t *data;
} source;

static infer_status source_at(extraction *x, source *s, int i)
{
    if (!x->m->gguf) {
        const st_tensor *t = st_tensor_at(x->m->st, i);
        *s = (source){ .name = t->name, .type = t->type, .n_dims = t->n_dims, .data = t->data };
        memcpy(s->dims, t->dims, sizeof s->dims);
        return INFER_OK;
    }
    const gguf_tensor *t = gguf_tensor_at(x->m->gguf, i);
    *s = (source){ .name = arena_strndup(&x->mem, t->name.s, t->name.n),
                   .type = t->type,
                   .n_dims = t->n_dims,
                   .data = t->data };
    for (int k = 0; k < t->n_dims; k++)
        s->dims[k] = t->dims[t->n_dims - 1 - k];
    return s->name ? INFER_OK : no_memory(x);
}

/* What the conventions of the two containers differ in. */
static infer_status convert(extraction *x, item *it, const place *p, const source *s)
{
    const arch *a = x->m->arch;
    if (!x->m->gguf) return INFER_OK;
    config hf, gg;
    config_init(&hf, a, false);
    config_init(&gg, a, true);
    if (role_is_norm(p->role) && !strcmp(p->suffix, ".weight"))
        it->add = gg.norm_offset - hf.norm_offset;
    if (p->layer < 0) return INFER_OK;
    if (a->gguf_pairing != a->hf_pairing && (p->role == ROLE_Q || p->role == ROLE_K)) {
        if (a->gguf_pairing != ROPE_ADJACENT || s->n_dims != 2) return no_name(x, s->name);
        it->head_dim = x->m->layers[p->layer].head_dim;
    }
    if ((a->gguf_pairing != a->hf_pairing && p->role == ROLE_QKV) ||
        (a->hf_transposed && s->n_dims > 1) || (a->hf_qkv_by_head && p->role == ROLE_QKV))
        return no_name(x, s->name);
    return INFER_OK;
}

static infer_status add_named(extraction *x, const source *s, const place *p)
{
    const infer_model *m = x->m;
    int attn = attn_slot(p->role), norms = norm_slot(p->role);
    bool weight = !strcmp(p->suffix, ".weight");
    item it = { .file = "infer_extra.bin",
                .kind = s->n_dims == 1 ? "vector" : "tensor",
                .n_dims = s->n_dims,
                .n_rows = 1,
                .n_cols = (int)s->dims[s->n_dims - 1],
                .type = s->n_dims == 1 ? DT_F32 : x->type,
                .order = { p->layer, (int)p->role } };
    if (s->n_dims < 1 || s->n_dims > 4 || s->type < 0) return no_name(x, s->name);
    it.key = key_of(x, p->role, p->layer, p->expert, p->suffix);
    if (!it.key) return no_name(x, s->name);
    for (int i = 0; i < s->n_dims; i++)
        it.dims[i] = s->dims[i];
    for (int i = 0; i + 1 < s->n_dims; i++)
        it.n_rows *= (int)s->dims[i];
    it.src = (tensor){ .name = s->name,
                       .data = s->data,
                       .type = (dtype)s->type,
                       .n_rows = it.n_rows,
                       .n_cols = it.n_cols,
                       .n_slices = 1,
                       .row_bytes = quant_row_bytes((dtype)s->type, (size_t)it.n_cols) };
    if (!it.src.row_bytes) return no_name(x, s->name);
    infer_status st = convert(x, &it, p, s);
    if (st) return st;
    if (weight && attn >= 0) {
        it.file = "attn_weights.bin";
        it.type = x->type;
        it.order[1] = attn;
    } else if (weight && norms >= 0) {
        it.file = "norms.bin";
        it.type = x->q4k ? DT_F32 : x->type;
        it.order[0] = p->layer < 0 ? m->n_layers : p->layer;
        it.order[1] = norms;
    } else if (weight && p->role == ROLE_HEAD) {
        if (m->head.w.data == m->embed.data) return INFER_OK; // tied: the embedding is there
        if (x->q4k)
            return add_blocks(x, "lm_head_q4.bin", it.key, "tensor_q4k", &it.src, DT_Q4_K, 0, 0);
        it.file = "lm_head.bin";
    }
    return add(x, it);
}

/* Every tensor that has a role, but for the FFN and the embedding. Those without one were warned of
 * when the model was opened. */
static infer_status add_all_named(extraction *x)
{
    const infer_model *m = x->m;
    int n = m->gguf ? gguf_n_tensors(m->gguf) : st_n_tensors(m->st);
    infer_status st = INFER_OK;
    for (int i = 0; i < n && !st; i++) {
        source s;
        place p;
        if ((st = source_at(x, &s, i))) return st;
        bool found = m->gguf ? place_find_gguf(&p, m->arch, s.name)
                             : place_find_hf(&p, m->arch, m->prefix, m->outer, s.name);
        if (!found || tensor_is_foreign(s.name, strlen(s.name))) continue;
        if (p.layer >= m->n_layers || is_ffn(&p)) continue;
        if (x->q4k && is_attention(&p)) continue;
        if (p.role == ROLE_EMBED && !strcmp(p.suffix, ".weight")) continue;
        bool attention = attn_slot(p.role) >= 0 || norm_slot(p.role) >= 0;
        if (x->level_no < 2 && !attention) continue;
        st = add_named(x, &s, &p);
    }
    return st;
}

/* ---- the list -------------------------------------------------------------------------------- */

static int file_order(const char *file)
{
    static const char *const files[] = { "attn_weights.bin",    "attn_weights_q4k.bin",
                                         "interleaved_q4k.bin", "up_weights.bin",
                                         "down_weights.bin",    "norms.bin",
                                         "lm_head.bin",         "lm_head_q4.bin",
                                         "infer_extra.bin" };
    for (int i = 0; i < COUNT_OF(files); i++)
        if (!strcmp(files[i], file)) return i;
    return -1;
}

static int by_place(const void *pa, const void *pb)
{
    const item *a = pa, *b = pb;
    int fa = file_order(a->file), fb = file_order(b->file);
    if (fa != fb) return fa < fb ? -1 : 1;
    for (int i = 0; i < 2; i++)
        if (a->order[i] != b->order[i]) return a->order[i] < b->order[i] ? -1 : 1;
    return a->key && b->key ? strcmp(a->key, b->key) : 0;
}

static void set_offsets(extraction *x)
{
    const char *file = "";
    uint64_t at = 0;
    for (size_t i = 0; i < x->n_items; i++) {
        if (strcmp(file, x->items[i].file)) at = 0;
        file = x->items[i].file;
        x->items[i].offset = at;
        at += x->items[i].bytes;
    }
}

infer_status extract_plan(extraction *x)
{
    const infer_model *m = x->m;
    if (m->dir) return error_set(x->err, INFER_ARGUMENT, "%s: is a vindex already", m->path);
    if (x->q4k) {
        x->type = DT_F16;
        x->level_no = 3; // blocks are one set, whatever the level says
        x->interleaved = true;
        for (int l = 0; l < m->n_layers; l++)
            if (extract_experts(x, l) || m->layers[l].ffn == FFN_NONE) x->interleaved = false;
    }
    x->features = arena_zero(&x->mem, (size_t)m->n_layers, sizeof *x->features);
    if (!x->features) return no_memory(x);
    infer_status st = INFER_OK;
    for (int l = 0; l < m->n_layers && !st; l++)
        st = add_gates(x, l);
    for (int l = 0; l < m->n_layers && !st; l++)
        st = add_router_rows(x, l);
    if (!st) st = add_matrix(x, "embeddings.bin", NULL, &m->embed, 0, 0);
    if (st) return st;
    x->items[x->n_items - 1].kind = NULL;
    x->n_browse = x->n_items;
    if (x->level_no >= 1) st = add_all_named(x);
    for (int l = 0; l < m->n_layers && !st && x->q4k; l++)
        st = add_attention(x, l);
    for (int l = 0; l < m->n_layers && !st && x->level_no >= 2; l++)
        st = add_ffn(x, l);
    if (st) return st;
    qsort(x->items + x->n_browse, x->n_items - x->n_browse, sizeof *x->items, by_place);
    set_offsets(x);
    return INFER_OK;
}
