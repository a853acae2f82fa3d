/*
 * load.c: from a role ("the q projection of layer 3") to a checked view of the file's tensor,
 * whichever container it is in. Matrices stay where they are; vectors become float32 in the model's
 * arena.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "models/arch.h"

/* The usual names: Llama's, which most families follow. */
static const tensor_name usual_names[ROLE_COUNT] = {
    { ROLE_EMBED, "embed_tokens", "token_embd" },
    { ROLE_POS_EMBED, NULL, NULL },
    { ROLE_FINAL_NORM, "norm", "output_norm" },
    { ROLE_HEAD, "/lm_head", "output" },
    { ROLE_ATTN_NORM, "layers.#.input_layernorm", "blk.#.attn_norm" },
    { ROLE_POST_ATTN_NORM, NULL, NULL },
    { ROLE_Q, "layers.#.self_attn.q_proj", "blk.#.attn_q" },
    { ROLE_K, "layers.#.self_attn.k_proj", "blk.#.attn_k" },
    { ROLE_V, "layers.#.self_attn.v_proj", "blk.#.attn_v" },
    { ROLE_QKV, "layers.#.self_attn.qkv_proj", "blk.#.attn_qkv" },
    { ROLE_O, "layers.#.self_attn.o_proj", "blk.#.attn_output" },
    { ROLE_Q_NORM, "layers.#.self_attn.q_norm", "blk.#.attn_q_norm" },
    { ROLE_K_NORM, "layers.#.self_attn.k_norm", "blk.#.attn_k_norm" },
    { ROLE_FFN_NORM, "layers.#.post_attention_layernorm", "blk.#.ffn_norm" },
    { ROLE_POST_FFN_NORM, NULL, NULL },
    { ROLE_GATE, "layers.#.mlp.gate_proj", "blk.#.ffn_gate" },
    { ROLE_UP, "layers.#.mlp.up_proj", "blk.#.ffn_up" },
    { ROLE_GATE_UP, "layers.#.mlp.gate_up_proj", "blk.#.ffn_up" },
    { ROLE_DOWN, "layers.#.mlp.down_proj", "blk.#.ffn_down" },
    { ROLE_ROUTER, "layers.#.mlp.gate", "blk.#.ffn_gate_inp" },
    { ROLE_SELECT_BIAS, "layers.#.mlp.gate.e_score_correction_bias!", "blk.#.exp_probs_b.bias!" },
    { ROLE_EXPERT_GATE, "layers.#.mlp.experts.@.gate_proj", "blk.#.ffn_gate_exps" },
    { ROLE_EXPERT_UP, "layers.#.mlp.experts.@.up_proj", "blk.#.ffn_up_exps" },
    { ROLE_EXPERT_DOWN, "layers.#.mlp.experts.@.down_proj", "blk.#.ffn_down_exps" },
    { ROLE_EXPERTS_GATE_UP, "layers.#.mlp.experts.gate_up_proj!", "blk.#.ffn_gate_up_exps" },
    { ROLE_EXPERTS_DOWN, "layers.#.mlp.experts.down_proj!", "blk.#.ffn_down_exps" },
    { ROLE_SHARED_GATE, "layers.#.mlp.shared_experts.gate_proj", "blk.#.ffn_gate_shexp" },
    { ROLE_SHARED_UP, "layers.#.mlp.shared_experts.up_proj", "blk.#.ffn_up_shexp" },
    { ROLE_SHARED_GATE_UP, NULL, NULL },
    { ROLE_SHARED_DOWN, "layers.#.mlp.shared_experts.down_proj", "blk.#.ffn_down_shexp" },
    { ROLE_SHARED_ROUTER, "layers.#.mlp.shared_expert_gate", "blk.#.ffn_gate_inp_shexp" },
};

/* Where a text model's tensors may lie in a checkpoint, and what stands beside it. */
static const struct {
    const char *text, *outer;
} prefixes[] = {
    { "model.", "" },
    { "model.language_model.", "" },
    { "language_model.model.", "language_model." },
    { "transformer.", "" },
    { "gpt_neox.", "" },
    { "", "" },
};

/* Tensors of these names are not the text model's, or nothing that is computed with. */
static const char *const foreign[] = {
    "vision",
    "multi_modal",
    "audio",
    "visual.",
    "model.vision",
    "model.audio",
    "model.embed_vision",
    "model.embed_audio",
    "model.multi_modal",
    "model.visual",
    "mm.",
    "v.",
    "a.",
    "rope_freqs.",
    "rope_factors_",
};

/* Buffers that old checkpoints carry: frequencies, causal masks. */
static const char *const buffers[] = {
    "rotary_emb.inv_freq",    ".attn.bias", ".attn.masked_bias", ".attention.bias",
    ".attention.masked_bias",
};

/* A tensor of either container. */
typedef struct weight {
    const char *name;
    const char *type_name; // of an unknown type
    int type;              // dtype or -1
    int n_dims;
    int64_t dims[5]; // slowest first
    const uint8_t *data;
    uint64_t bytes;
    int index;
} weight;

/* ---- names ----------------------------------------------------------------------------------- */

typedef struct full_name {
    char s[256];
} full_name;

const tensor_name *arch_tensor_name(const arch *a, tensor_role role)
{
    for (const tensor_name *o = a->names; o && o->role != ROLE_COUNT; o++)
        if (o->role == role) return o;
    return &usual_names[role];
}

/* Empty where the family has no such tensor. */
static full_name expert_name(const loader *l, tensor_role role, int layer, int expert,
                             const char *suffix)
{
    const tensor_name *n = arch_tensor_name(l->arch, role);
    const char *pattern = l->m->gguf ? n->gguf : n->hf;
    full_name out = { { 0 } };
    size_t at = 0;
    if (!pattern) return out;
    if (!l->m->gguf) {
        const char *prefix = pattern[0] == '/' ? l->outer : l->prefix;
        at = (size_t)snprintf(out.s, sizeof(out.s), "%s", prefix);
        if (pattern[0] == '/') pattern++;
    }
    for (; *pattern && *pattern != '!' && at < sizeof(out.s) - 24; pattern++) {
        if (*pattern == '#' || *pattern == '@')
            at += (size_t)snprintf(out.s + at, sizeof(out.s) - at, "%d",
                                   *pattern == '#' ? layer : expert);
        else
            out.s[at++] = *pattern;
    }
    bool whole = *pattern == '!' && strcmp(suffix, ".weight") == 0;
    if (!whole) snprintf(out.s + at, sizeof(out.s) - at, "%s", suffix);
    return out;
}

static full_name name_of(const loader *l, tensor_role role, int layer, const char *suffix)
{
    return expert_name(l, role, layer, 0, suffix);
}

/* ---- finding --------------------------------------------------------------------------------- */

static bool find_gguf(loader *l, weight *w, const char *name)
{
    const gguf *g = l->m->gguf;
    const gguf_tensor *t = gguf_find_tensor(g, name);
    if (!t) return false;
    *w = (weight){ .type = t->type, .n_dims = t->n_dims, .data = t->data, .bytes = t->bytes };
    for (int i = 0; i < t->n_dims; i++)
        w->dims[i] = t->dims[t->n_dims - 1 - i];
    w->index = (int)(t - gguf_tensor_at(g, 0));
    w->name = arena_strndup(&l->m->mem, name, strlen(name));
    w->type_name = "?";
    if (t->type < 0) w->type_name = arena_printf(&l->m->mem, "%" PRIu32, t->ggml_type);
    if (!w->name || !w->type_name) l->out_of_memory = true;
    return w->name && w->type_name;
}

static bool find_st(loader *l, weight *w, const char *name)
{
    const st_tensor *t = st_find(l->m->st, name);
    if (!t) return false;
    *w = (weight){ .name = t->name,
                   .type_name = t->dtype_name,
                   .type = t->type,
                   .n_dims = t->n_dims,
                   .data = t->data,
                   .bytes = t->bytes };
    memcpy(w->dims, t->dims, sizeof(w->dims));
    w->index = (int)(t - st_tensor_at(l->m->st, 0));
    return true;
}

/* Finds a tensor whose type we know and counts it as used. */
static bool find(loader *l, weight *w, const char *name)
{
    if (!(l->m->gguf ? find_gguf(l, w, name) : find_st(l, w, name))) return false;
    if (w->type < 0) {
        fault_add(&l->faults, "tensor '%s': type %s is not supported", name, w->type_name);
        l->used[w->index] = true;
        return false;
    }
    if (!l->used[w->index]) {
        uint64_t n = 1;
        for (int i = 0; i < w->n_dims; i++)
            n *= (uint64_t)w->dims[i];
        l->m->n_params += n;
        l->m->weight_bytes += w->bytes;
    }
    l->used[w->index] = true;
    return true;
}

static bool exists(const loader *l, const char *name)
{
    return l->m->gguf ? gguf_find_tensor(l->m->gguf, name) != NULL
                      : st_find(l->m->st, name) != NULL;
}

/* "[2304, 9216]" in the order of the file: GGUF has the fastest first. */
static full_name shape_text(const loader *l, const int64_t *dims, int n)
{
    full_name out = { "[" };
    size_t at = 1;
    for (int i = 0; i < n; i++) {
        int64_t d = dims[l->m->gguf ? n - 1 - i : i];
        at += (size_t)snprintf(out.s + at, sizeof(out.s) - at, d ? "%s%" PRId64 : "%sany",
                               i ? ", " : "", d);
    }
    snprintf(out.s + at, sizeof(out.s) - at, "]");
    return out;
}

/* A dimension of 0 in want may be anything above 0. */
static bool check_shape(loader *l, const weight *w, const int64_t *want, int n)
{
    bool same = w->n_dims == n;
    for (int i = 0; same && i < n; i++)
        same = want[i] ? w->dims[i] == want[i] : w->dims[i] > 0 && w->dims[i] <= INT32_MAX;
    if (same) return true;
    full_name expected = shape_text(l, want, n), got = shape_text(l, w->dims, w->n_dims);
    fault_add(&l->faults, "tensor '%s': expected %s, found %s", w->name, expected.s, got.s);
    return false;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Says that a tensor is missing, unless that was for its type, which has its fault already. */
static bool missing(loader *l, const char *name, bool optional)
{
    if (!optional && name[0] && !exists(l, name)) fault_add(&l->faults, "%s missing", name);
    return false;
}

bool load_has(const loader *l, tensor_role role, int layer)
{
    return load_has_suffix(l, role, layer, ".weight");
}

bool load_has_suffix(const loader *l, tensor_role role, int layer, const char *suffix)
{
    return exists(l, name_of(l, role, layer, suffix).s);
}

/* A matrix whose rows an index has padded to whole blocks, without the padding, copied. */
static bool unpad(loader *l, tensor *out, const weight *w, int n_cols)
{
    size_t n_rows = (size_t)w->dims[0], padded = (size_t)w->dims[1], cols = (size_t)n_cols;
    size_t from = quant_row_bytes((dtype)w->type, padded);
    uint8_t *to = load_repacked(l, n_rows * cols * sizeof(float));
    float *row = mem_alloc(padded, sizeof *row);
    if (!row) l->out_of_memory = true;
    for (size_t r = 0; to && row && r < n_rows; r++) {
        quant_formats[w->type]->dequant(row, w->data + r * from, padded);
        memcpy(to + r * cols * sizeof(float), row, cols * sizeof(float));
    }
    mem_free(row);
    *out = (tensor){ .name = w->name,
                     .data = to,
                     .type = DT_F32,
                     .n_rows = (int)n_rows,
                     .n_cols = n_cols,
                     .n_slices = 1,
                     .row_bytes = cols * sizeof(float) };
    return to && row;
}

/* n_slices matrices (1: the file's tensor has two dimensions) of n_rows x n_cols; 0 rows: any
 * number. */
static bool stack_view(loader *l, tensor *out, const char *name, int n_slices, int n_rows,
                       int n_cols, bool optional)
{
    weight w;
    bool stack = n_slices > 1;
    if (!find(l, &w, name)) return missing(l, name, optional);
    if (n_slices == 1 && w.n_dims == 3 && w.dims[0] == 1) { // a stack of one
        w.n_dims = 2;
        memmove(w.dims, w.dims + 1, 2 * sizeof(*w.dims));
    }
    int64_t block = quant_formats[w.type]->block_size;
    if (l->m->dir && n_slices == 1 && w.n_dims == 2 && n_cols % block &&
        w.dims[1] == (n_cols / block + 1) * block && (!n_rows || w.dims[0] == n_rows))
        return unpad(l, out, &w, n_cols);
    const int64_t want[] = { n_slices, n_rows, n_cols };
    if (!check_shape(l, &w, want + !stack, 2 + stack)) return false;
    size_t row_bytes = quant_row_bytes((dtype)w.type, (size_t)n_cols);
    if (row_bytes == 0) {
        fault_add(&l->faults, "tensor '%s': rows of %d elements do not fit type %s", w.name, n_cols,
                  quant_formats[w.type]->name);
        return false;
    }
    *out = (tensor){ .name = w.name,
                     .data = w.data,
                     .type = (dtype)w.type,
                     .n_rows = (int)w.dims[stack],
                     .n_cols = n_cols,
                     .n_slices = n_slices,
                     .row_bytes = row_bytes };
    return true;
}

/* A matrix of which the file has n_rows x n_cols; 0 rows: any number. */
static bool matrix_view(loader *l, tensor *out, const char *name, int n_rows, int n_cols,
                        bool optional)
{
    return stack_view(l, out, name, 1, n_rows, n_cols, optional);
}

bool load_stack(loader *l, tensor *out, tensor_role role, int layer, int n_slices, int n_rows,
                int n_cols, bool optional)
{
    return stack_view(l, out, name_of(l, role, layer, ".weight").s, n_slices, n_rows, n_cols,
                      optional);
}

bool load_tensor(loader *l, tensor *out, tensor_role role, int layer, int n_rows, int n_cols,
                 bool optional)
{
    return matrix_view(l, out, name_of(l, role, layer, ".weight").s, n_rows, n_cols, optional);
}

uint8_t *load_repacked(loader *l, size_t bytes)
{
    uint8_t *p = arena_alloc(&l->m->mem, bytes, 1);
    if (!p) l->out_of_memory = true;
    l->m->repacked_bytes += bytes;
    return p;
}

void load_exchanged(loader *l, tensor *out, const tensor *t, int first, int step)
{
    size_t size = quant_row_bytes(t->type, 1); // of an element; 0: it comes in blocks
    size_t width = size ? size : sizeof(float), n = (size_t)t->n_rows;
    int n_out = (t->n_cols - first + step - 1) / step;
    uint8_t *to = load_repacked(l, n * (size_t)n_out * width);
    float *row = size ? NULL : mem_alloc((size_t)t->n_cols, sizeof(float));
    if (!to || (!size && !row)) {
        l->out_of_memory = true;
        mem_free(row);
        return;
    }
    for (int r = 0; r < t->n_rows; r++) {
        const uint8_t *from = t->data + (size_t)r * t->row_bytes;
        if (!size) {
            tensor_row(row, t, r);
            from = (const uint8_t *)row;
        }
        from += (size_t)first * width;
        for (int o = 0; o < n_out; o++)
            memcpy(to + ((size_t)o * n + (size_t)r) * width, from + (size_t)(o * step) * width,
                   width);
    }
    mem_free(row);
    *out = (tensor){ .name = t->name,
                     .data = to,
                     .type = size ? t->type : DT_F32,
                     .n_rows = n_out,
                     .n_cols = t->n_rows,
                     .n_slices = 1,
                     .row_bytes = n * width };
}

/* The matrix [n_rows, n_cols] of a layer, as the family's files hold it. */
static void load_matrix(loader *l, tensor *out, tensor_role role, int layer, int n_rows, int n_cols)
{
    full_name name = name_of(l, role, layer, ".weight");
    tensor t;
    bool ffn = role == ROLE_GATE || role == ROLE_UP || role == ROLE_DOWN;
    if (!l->arch->hf_transposed || l->m->gguf || (l->m->dir && ffn))
        matrix_view(l, out, name.s, n_rows, n_cols, false);
    else if (matrix_view(l, &t, name.s, n_cols, n_rows, false))
        load_exchanged(l, out, &t, 0, 1);
}

void ignore_tensor(loader *l, tensor_role role, int layer)
{
    full_name name = name_of(l, role, layer, ".weight");
    weight w;
    if (l->m->gguf ? find_gguf(l, &w, name.s) : find_st(l, &w, name.s)) l->used[w.index] = true;
}

/* A vector as float32. */
static const float *load_vector(loader *l, const char *name, int width, bool optional)
{
    weight w;
    if (!find(l, &w, name)) {
        missing(l, name, optional);
        return NULL;
    }
    while (w.n_dims > 1 && w.dims[0] == 1) // a matrix of one row
        memmove(w.dims, w.dims + 1, (size_t)--w.n_dims * sizeof(*w.dims));
    if (!check_shape(l, &w, (int64_t[]){ width }, 1)) return NULL;
    if (quant_row_bytes((dtype)w.type, (size_t)width) != w.bytes) {
        fault_add(&l->faults, "tensor '%s': a vector of %d in type %s", name, width,
                  quant_formats[w.type]->name);
        return NULL;
    }
    float *v = arena_alloc(&l->m->mem, (size_t)width, sizeof(float));
    if (!v) {
        l->out_of_memory = true;
        return NULL;
    }
    quant_formats[w.type]->dequant(v, w.data, (size_t)width);
    return v;
}

const float *load_floats(loader *l, tensor_role role, int layer, int n, bool optional)
{
    return load_vector(l, name_of(l, role, layer, ".weight").s, n, optional);
}

const float *load_float_rows(loader *l, tensor_role role, int layer, const char *suffix, int n_rows,
                             int n, bool optional)
{
    tensor t;
    if (!matrix_view(l, &t, name_of(l, role, layer, suffix).s, n_rows, n, optional)) return NULL;
    float *v = arena_alloc(&l->m->mem, (size_t)n_rows * (size_t)n, sizeof(float));
    if (!v) l->out_of_memory = true;
    for (int r = 0; v && r < n_rows; r++)
        tensor_row(v + (size_t)r * (size_t)n, &t, r);
    return v;
}

const uint8_t *load_bytes(loader *l, tensor_role role, int layer, const char *suffix,
                          const int64_t *dims, int n_dims, uint64_t n_params)
{
    full_name name = name_of(l, role, layer, suffix);
    weight w;
    if (l->m->gguf || !find_st(l, &w, name.s)) {
        fault_add(&l->faults, "%s missing", name.s);
        return NULL;
    }
    bool counted = l->used[w.index];
    l->used[w.index] = true;
    if (!check_shape(l, &w, dims, n_dims)) return NULL;
    uint64_t bytes = 1;
    for (int i = 0; i < n_dims; i++)
        bytes *= (uint64_t)dims[i];
    if (w.bytes != bytes) {
        fault_add(&l->faults, "tensor '%s': expected U8, found %s", name.s, w.type_name);
        return NULL;
    }
    if (!counted) l->m->n_params += n_params;
    if (!counted) l->m->weight_bytes += bytes;
    return w.data;
}

const float *load_bias(loader *l, tensor_role role, int layer, int n_out)
{
    return load_vector(l, name_of(l, role, layer, ".bias").s, n_out, false);
}

void load_linear(loader *l, linear *out, tensor_role role, int layer, int n_out, int n_in,
                 bias_rule bias)
{
    *out = (linear){ 0 };
    load_matrix(l, &out->w, role, layer, n_out, n_in);
    if (bias == BIAS_NONE) return;
    full_name name = name_of(l, role, layer, ".bias");
    out->bias = load_vector(l, name.s, n_out, bias == BIAS_OPTIONAL);
}

void load_expert(loader *l, linear *out, tensor_role role, int layer, int expert, int n_rows,
                 int n_cols)
{
    *out = (linear){ 0 };
    matrix_view(l, &out->w, expert_name(l, role, layer, expert, ".weight").s, n_rows, n_cols,
                false);
    out->bias = load_vector(l, expert_name(l, role, layer, expert, ".bias").s, n_rows, true);
}

/* One part's rows of every group: `share` rows from row `first` of each. */
static void gather_rows(loader *l, linear *out, const linear *whole, int first, int share,
                        int n_groups)
{
    size_t row = whole->w.row_bytes, group = (size_t)(whole->w.n_rows / n_groups);
    int n = share * n_groups;
    uint8_t *to = load_repacked(l, (size_t)n * row);
    float *bias = whole->bias ? arena_alloc(&l->m->mem, (size_t)n, sizeof(float)) : NULL;
    if (!to || (whole->bias && !bias)) {
        l->out_of_memory = true;
        return;
    }
    for (int g = 0; g < n_groups; g++) {
        size_t from = (size_t)g * group + (size_t)first, at = (size_t)g * (size_t)share;
        memcpy(to + at * row, whole->w.data + from * row, (size_t)share * row);
        if (bias) memcpy(bias + at, whole->bias + from, (size_t)share * sizeof(float));
    }
    *out = (linear){ .w = whole->w, .bias = bias };
    out->w.data = to;
    out->w.n_rows = n;
}

void load_fused(loader *l, linear *const *parts, const int *n_out, int n_parts, tensor_role role,
                int layer, int n_in, int n_groups, bias_rule bias)
{
    int total = 0;
    for (int i = 0; i < n_parts; i++)
        total += n_out[i];
    linear whole;
    load_linear(l, &whole, role, layer, total, n_in, bias);
    if (!tensor_present(&whole.w)) return; // a fault by now
    for (int i = 0, first = 0; i < n_parts; i++) {
        int share = n_out[i] / n_groups;
        if (n_groups == 1)
            *parts[i] = (linear){ .w = tensor_rows(&whole.w, first, share),
                                  .bias = whole.bias ? whole.bias + first : NULL };
        else
            gather_rows(l, parts[i], &whole, first, share, n_groups);
        first += share;
    }
}

bool load_norm(loader *l, norm *out, tensor_role role, int layer, int width, bool optional)
{
    *out = (norm){ 0 };
    full_name name = name_of(l, role, layer, ".weight");
    const float *w = NULL;
    if (!name.s[0]) return false;
    if (!l->c.bare_norms) {
        w = load_vector(l, name.s, width, optional);
        if (!w) return false;
    }
    *out = (norm){
        .kind = l->c.norm, .weight = w, .offset = l->c.norm_offset, .eps = (float)l->c.norm_eps
    };
    if (w && l->c.norm == NORM_LAYER)
        out->bias = load_vector(l, name_of(l, role, layer, ".bias").s, width, true);
    return true;
}

bool load_head_norms(loader *l, norm *out, tensor_role role, int layer, int n_heads, int head_dim)
{
    *out = (norm){ 0 };
    float *all = arena_alloc(&l->m->mem, (size_t)n_heads * (size_t)head_dim, sizeof(float));
    if (!all) {
        l->out_of_memory = true;
        return false;
    }
    full_name name = name_of(l, role, layer, ".weight");
    bool parted = !exists(l, name.s) && exists(l, name_of(l, role, layer, ".norms.0.weight").s);
    if (parted) { // StableLM's files have a tensor for each head
        for (int h = 0; h < n_heads; h++) {
            char suffix[40];
            snprintf(suffix, sizeof(suffix), ".norms.%d.weight", h);
            const float *w = load_vector(l, name_of(l, role, layer, suffix).s, head_dim, false);
            if (!w) return false;
            memcpy(all + (size_t)h * (size_t)head_dim, w, (size_t)head_dim * sizeof(float));
        }
    } else {
        tensor t;
        if (!matrix_view(l, &t, name.s, n_heads, head_dim, false)) return false;
        for (int h = 0; h < n_heads; h++)
            tensor_row(all + (size_t)h * (size_t)head_dim, &t, h);
    }
    *out = (norm){
        .kind = l->c.norm, .weight = all, .offset = l->c.norm_offset, .eps = (float)l->c.norm_eps
    };
    return true;
}

/* ---- the whole ------------------------------------------------------------------------------- */

infer_status loader_open(loader *l, infer_model *m, const arch *a, const config *c,
                         infer_error *err)
{
    *l = (loader){ .m = m, .arch = a, .c = *c, .prefix = "", .outer = "" };
    int n = m->gguf ? gguf_n_tensors(m->gguf) : st_n_tensors(m->st);
    l->used = mem_zero((size_t)n + 1, sizeof(*l->used));
    if (!l->used) return error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    if (m->gguf) return INFER_OK;
    int chosen = 0; // the usual one, for the message that the embedding is missing
    for (int i = COUNT_OF(prefixes) - 1; i >= 0; i--) {
        l->prefix = prefixes[i].text;
        l->outer = prefixes[i].outer;
        if (exists(l, name_of(l, ROLE_EMBED, 0, ".weight").s)) chosen = i;
    }
    m->prefix = l->prefix = prefixes[chosen].text;
    m->outer = l->outer = prefixes[chosen].outer;
    return INFER_OK;
}

bool tensor_is_foreign(const char *name, size_t n)
{
    for (int i = 0; i < COUNT_OF(foreign); i++) {
        size_t m = strlen(foreign[i]);
        if (n >= m && memcmp(name, foreign[i], m) == 0) return true;
    }
    for (int i = 0; i < COUNT_OF(buffers); i++) {
        size_t m = strlen(buffers[i]);
        if (n >= m && memcmp(name + n - m, buffers[i], m) == 0) return true;
    }
    return false;
}

static gguf_text stored_name(const infer_model *m, int i)
{
    if (m->gguf) return gguf_tensor_at(m->gguf, i)->name;
    const char *s = st_tensor_at(m->st, i)->name;
    return (gguf_text){ .s = s, .n = strlen(s) };
}

/* Whether layers past the last are there to predict further tokens (DeepSeek V3, GLM 4.5): those
   join the embedding and the state by this tensor. Else the layer count is too small. */
static bool has_further_layers(const infer_model *m, int n)
{
    for (int i = 0; i < n; i++) {
        gguf_text name = stored_name(m, i);
        if (memmem(name.s, name.n, "eh_proj", 7)) return true;
    }
    return false;
}

static bool is_past_layers(const loader *l, const char *name, size_t n)
{
    const char *mark = l->m->gguf ? "blk." : "layers.";
    size_t m = strlen(mark);
    for (size_t i = 0; i + m < n; i++) {
        if (memcmp(name + i, mark, m) != 0) continue;
        int layer = 0;
        for (i += m; i < n && name[i] >= '0' && name[i] <= '9' && layer < MAX_LAYERS; i++)
            layer = layer * 10 + (name[i] - '0');
        return layer >= l->c.n_layers;
    }
    return false;
}

static void warn_unused(const loader *l)
{
    const infer_model *m = l->m;
    int n = m->gguf ? gguf_n_tensors(m->gguf) : st_n_tensors(m->st), n_unused = 0;
    char text[400] = "";
    size_t at = 0;
    bool further = has_further_layers(m, n);
    for (int i = 0; i < n; i++) {
        if (l->used[i]) continue;
        gguf_text name = stored_name(m, i);
        if (tensor_is_foreign(name.s, name.n)) continue;
        if (further && is_past_layers(l, name.s, name.n)) continue;
        if (n_unused++ < 3)
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%.*s", at ? ", " : "",
                                   name.n > 100 ? 100 : (int)name.n, name.s);
    }
    if (n_unused)
        log_line(&m->log, INFER_LOG_WARN, "%s: %d tensors are unknown to %s and not used: %s%s",
                 m->path, n_unused, l->arch->name, text, n_unused > 3 ? ", …" : "");
}

bool loader_gguf_settings(const loader *l) { return l->m->gguf || l->m->meta; }

infer_status loader_close(loader *l, infer_error *err)
{
    infer_status s = INFER_OK;
    if (l->out_of_memory)
        s = error_set(err, INFER_NOMEM, "%s: out of memory", l->m->path);
    else if (l->faults.n)
        s = fault_status(&l->faults, err, INFER_FORMAT, l->m->path);
    else if (l->used)
        warn_unused(l);
    if (s == INFER_OK && l->m->repacked_bytes)
        log_line(&l->m->log, INFER_LOG_INFO, "%s: %.1f MB of weights copied in another order",
                 l->m->path, (double)l->m->repacked_bytes / 1e6);
    mem_free(l->used);
    l->used = NULL;
    return s;
}
