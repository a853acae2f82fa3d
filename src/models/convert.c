/*
 * convert.c: a Hugging Face folder as GGUF. Nothing here knows a family: names of tensors and keys
 * of settings come from the family's row, which serves both containers. The settings that the row
 * asks for are noted with their GGUF keys while config.json is read; tensors find their role by
 * their name. What differs between the containers follows from the row too: rows of q and k are
 * permuted where rope pairs are halves here and neighbours there, and norms have 1 added where the
 * families' norm_offset says so.
 *
 * A vindex is a folder too: its tensors go by the same names. Where it was made from a GGUF file,
 * that file's keys are taken over as they are.
 *
 * Whether that was all is not believed but checked: the written file is opened, and the plan that
 * comes of it must be the folder's.
 */
#include "models/convert.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "models/arch.h"
#include "models/load_vindex.h"
#include "models/places.h"

/* What reading needs beside the output. */
typedef struct conversion {
    out_model *m;
    const arch *a; // the folder's family, and the one whose name GGUF files give it
    const arch *to;
    config c;
    loader l; // for the prefixes of names
    float norm_add;
    bool permute;
    const char *family; // general.architecture
    infer_error *err;
} conversion;

/* ---- keys ------------------------------------------------------------------------------------ */

/* Families whose files are called as another's. */
static const char *family_of(const arch *a)
{
    static const char *const others[][2] = { { "mistral", "llama" },
                                             { "mixtral", "llama" },
                                             { "olmo3", "olmo2" } };
    if (a->gguf_names[0]) return a->gguf_names[0];
    for (int i = 0; i < COUNT_OF(others); i++)
        if (!strcmp(a->name, others[i][0])) return others[i][1];
    return NULL;
}

static const char *key_of(conversion *v, const char *key)
{
    const char *full = arena_printf(&v->m->mem, "%s.%s", v->family, key);
    return full ? full : "";
}

static void put_int(conversion *v, const char *key, int64_t x)
{
    gguf_put_u32(v->m->w, key_of(v, key), (uint32_t)x);
}

static void put_float(conversion *v, const char *key, double x)
{
    gguf_put_f32(v->m->w, key_of(v, key), (float)x);
}

static void put_text(conversion *v, const char *key, const char *s)
{
    gguf_put_string(v->m->w, key_of(v, key), s, strlen(s));
}

/* Settings as config_check left them. Zero means none and is not written, but for counts that
 * readers insist on. */
static void put_notes(conversion *v, const config_source *s)
{
    const char *begin = (const char *)&v->c, *end = begin + sizeof(v->c);
    for (int i = 0; i < s->n_notes; i++) {
        const cfg_note *n = &s->notes[i];
        bool inside = (const char *)n->at >= begin && (const char *)n->at < end;
        if (!n->key || !strncmp(n->key, "rope.", 5) || (!inside && !n->found)) continue;
        double x = n->value;
        if (inside)
            x = n->kind == 'i'   ? *(const int *)n->at
                : n->kind == 'f' ? *(const double *)n->at
                                 : *(const bool *)n->at;
        bool dense = v->c.moe.n_experts && !strcmp(n->key, "leading_dense_block_count");
        if (n->of && *n->of)
            gguf_put_array(v->m->w, key_of(v, n->key), GGUF_I32, *n->of, (uint64_t)v->c.n_layers);
        else if (n->kind == 'b' && v->c.moe.n_experts + !strstr(n->key, "expert") > 0)
            gguf_put_bool(v->m->w, key_of(v, n->key), x != 0);
        else if (n->kind == 'i' && (x != 0 || dense))
            put_int(v, n->key, (int64_t)x);
        else if (n->kind == 'f' && x != 0 && (v->c.moe.n_experts || !strstr(n->key, "expert")))
            put_float(v, n->key, x);
    }
}

static infer_status put_rope(conversion *v)
{
    const rope_spec *r = &v->c.rope;
    out_model *m = v->m;
    if (v->c.unrotated) return INFER_OK;
    put_int(v, "rope.dimension_count", r->dim);
    put_float(v, "rope.freq_base", r->base);
    if (v->c.has_local) put_float(v, "rope.freq_base_swa", v->c.rope_local.base);
    switch (r->scaling) {
    case ROPE_PLAIN:
    case ROPE_LLAMA3: break; // a tensor tells
    case ROPE_LINEAR:
        put_text(v, "rope.scaling.type", "linear");
        put_float(v, "rope.scaling.factor", r->factor);
        break;
    case ROPE_YARN:
        put_text(v, "rope.scaling.type", "yarn");
        put_float(v, "rope.scaling.factor", r->factor);
        put_int(v, "rope.scaling.original_context_length",
                r->original_len ? r->original_len : v->c.n_ctx);
        if (r->beta_fast != 32) put_float(v, "rope.scaling.yarn_beta_fast", r->beta_fast);
        if (r->beta_slow != 1) put_float(v, "rope.scaling.yarn_beta_slow", r->beta_slow);
        break;
    case ROPE_LONGROPE:
        if (r->original_len) put_int(v, "rope.scaling.original_context_length", r->original_len);
        put_float(v, "rope.scaling.attn_factor", m->model->ropes[0].attention_factor);
        break;
    default:
        return error_set(v->err, INFER_UNSUPPORTED, "%s: GGUF has no form for its rope scaling",
                         m->path);
    }
    return INFER_OK;
}

static void put_file_type(conversion *v)
{
    dtype t = v->m->model->embed.type;
    if (!v->m->o->type)
        gguf_put_u32(v->m->w, "general.file_type", t == DT_F16 ? 1 : t == DT_BF16 ? 32 : 0);
}

static infer_status put_keys(conversion *v, const config_source *s)
{
    out_model *m = v->m;
    gguf_put_string(m->w, "general.architecture", v->family, strlen(v->family));
    gguf_put_string(m->w, "general.type", "model", 5);
    gguf_put_string(m->w, "general.name", m->model->name, strlen(m->model->name));
    put_notes(v, s);
    put_int(v, "vocab_size", m->model->n_vocab);
    put_int(v, "attention.key_length", v->c.head_dim);
    put_int(v, "attention.value_length", v->c.head_dim_v);
    if (v->c.sliding && v->c.window && !strcmp(v->a->name, "olmo3"))
        gguf_put_array(m->w, key_of(v, "attention.sliding_window_pattern"), GGUF_BOOL, v->c.sliding,
                       (uint64_t)v->c.n_layers);
    infer_status st = put_rope(v);
    gguf_put_u32(m->w, "general.quantization_version", 2);
    put_file_type(v);
    return st;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static bool find_place(const conversion *v, place *p, const char *name)
{
    return place_find_hf(p, v->a, v->l.prefix, v->l.outer, name) &&
           (p->role == ROLE_SHARED_GATE_UP || arch_tensor_name(v->to, p->role)->gguf);
}

static const char *gguf_name(conversion *v, tensor_role role, int layer, const char *suffix)
{
    char out[300];
    size_t at = 0;
    const char *s = arch_tensor_name(v->to, role)->gguf;
    for (; *s && *s != '!' && at < 200; s++) {
        if (*s == '#')
            at += (size_t)snprintf(out + at, sizeof(out) - at, "%d", layer);
        else
            out[at++] = *s;
    }
    snprintf(out + at, sizeof(out) - at, "%s", *s == '!' ? "" : suffix);
    return arena_strndup(&v->m->mem, out, strlen(out));
}

static infer_status refuse(const conversion *v, const char *name, const char *why)
{
    return error_set(v->err, INFER_UNSUPPORTED, "%s: tensor '%s': %s", v->m->path, name, why);
}

/* The shape, fastest first, from the file's slowest first; dimensions of 1 in front are left out.
 */
static void set_shape(out_tensor *t, const int64_t *dims, int n)
{
    while (n > 1 && dims[0] == 1)
        dims++, n--;
    t->n_dims = n;
    for (int i = 0; i < 4; i++)
        t->dims[i] = i < n ? dims[n - 1 - i] : 1;
    t->n_cols = t->dims[0];
    t->n_rows = t->dims[1];
    t->n_slices = t->dims[2] * t->dims[3];
}

/* Everything that a tensor's role changes about it. */
static infer_status shape_by_role(conversion *v, out_tensor *t, const place *p, const char *name)
{
    bool bias = !strcmp(p->suffix, ".bias");
    if (role_is_norm(p->role) && !bias) t->add = v->norm_add;
    if ((p->role == ROLE_Q || p->role == ROLE_K) && v->permute) {
        t->permute_heads = p->role == ROLE_Q ? v->c.n_heads : v->c.n_kv_heads;
        if (t->n_dims == 1) { // a bias: each number is a row
            t->n_rows = t->n_cols;
            t->n_cols = 1;
        }
        if (t->n_rows % (2 * t->permute_heads))
            return refuse(v, name, "its rows are no whole heads");
    }
    if (p->role == ROLE_QKV && v->permute)
        return refuse(v, name,
                      "its rows would have to be permuted, which is not done in one tensor");
    t->fixed = !mix_takes(t->name, t->n_dims);
    if (t->fixed) t->to = DT_F32;
    return INFER_OK;
}

/* Columns that a role's matrix has in the plan. */
static int cols_of(const infer_model *m, const place *p)
{
    const layer_plan *l = p->layer >= 0 && p->layer < m->n_layers ? &m->layers[p->layer] : NULL;
    if (l && p->role == ROLE_O) return l->n_heads * l->head_dim_v;
    if (l && p->role == ROLE_DOWN) return l->d_ff;
    if (l && l->moe && p->role == ROLE_EXPERT_DOWN) return l->moe->d_ff;
    if (l && l->moe && p->role == ROLE_SHARED_DOWN) return l->moe->shared_d_ff;
    return m->d_model;
}

/* Formats stay as they are; those of vindexes that GGUF does not have become its own. */
static infer_status set_type(conversion *v, out_tensor *t, const st_tensor *s, const place *p)
{
    t->from = t->to = (dtype)s->type;
    if (t->from == DT_LARQL_Q6_K) t->to = DT_Q6_K;
    if (quant_formats[t->from]->block_size > 1 && s->n_dims > 1 &&
        s->dims[s->n_dims - 1] != cols_of(v->m->model, p))
        return refuse(v, s->name, "its rows are padded to whole blocks, which GGUF does not know");
    return INFER_OK;
}

static infer_status add_tensor(conversion *v, const st_tensor *s, const place *p)
{
    out_tensor *t = out_add(v->m, v->err);
    if (!t) return INFER_NOMEM;
    t->name = gguf_name(v, p->role, p->layer, p->suffix);
    if (!t->name) return error_set(v->err, INFER_NOMEM, "%s: out of memory", v->m->path);
    if (s->n_dims > 4) return refuse(v, s->name, "it has more than four dimensions");
    infer_status st = set_type(v, t, s, p);
    if (st) return st;
    t->data = s->data;
    set_shape(t, s->dims, s->n_dims);
    return shape_by_role(v, t, p, s->name);
}

/* All experts' matrices of one role and layer, in one. */
static infer_status add_experts(conversion *v, const place *first)
{
    int n = v->c.moe.n_experts;
    out_model *m = v->m;
    const uint8_t **slices = arena_zero(&m->mem, (size_t)n + 1, sizeof(*slices));
    if (!slices) return error_set(v->err, INFER_NOMEM, "%s: out of memory", m->path);
    const st_tensor *one = NULL;
    int found = 0;
    for (int i = 0; i < st_n_tensors(m->model->st); i++) {
        const st_tensor *s = st_tensor_at(m->model->st, i);
        place p;
        if (!find_place(v, &p, s->name) || p.role != first->role || p.layer != first->layer ||
            strcmp(p.suffix, first->suffix))
            continue;
        bool same = !one || (s->type == one->type && s->n_dims == 2 && s->dims[0] == one->dims[0] &&
                             s->dims[1] == one->dims[1]);
        if (p.expert >= n || slices[p.expert] || !same || s->n_dims != 2)
            return refuse(v, s->name, "it does not fit the other experts'");
        slices[p.expert] = s->data;
        one = s;
        found++;
    }
    if (found != n) return refuse(v, one ? one->name : "experts", "some experts are missing");
    out_tensor *t = out_add(m, v->err);
    if (!t) return INFER_NOMEM;
    t->name = gguf_name(v, first->role, first->layer, first->suffix);
    if (!t->name) return error_set(v->err, INFER_NOMEM, "%s: out of memory", m->path);
    set_shape(t, (int64_t[]){ n, one->dims[0], one->dims[1] }, 3);
    t->slices = slices;
    return set_type(v, t, one, first);
}

/* Gate's and up's rows of matrices [n, gate and up, n_cols] that hold both. */
static infer_status add_gate_up(conversion *v, const st_tensor *s, const place *p)
{
    bool stack = p->role == ROLE_EXPERTS_GATE_UP;
    const tensor_role parts[] = { stack ? ROLE_EXPERT_GATE : ROLE_SHARED_GATE,
                                  stack ? ROLE_EXPERT_UP : ROLE_SHARED_UP };
    out_model *m = v->m;
    if ((stack && v->c.moe.by_column) || s->n_dims != 2 + stack || strcmp(p->suffix, ".weight"))
        return refuse(v, s->name, "matrices of this kind cannot be converted");
    int64_t n = stack ? s->dims[0] : 1, rows = s->dims[stack] / 2, cols = s->dims[stack + 1];
    size_t half = quant_row_bytes((dtype)s->type, (size_t)cols) * (size_t)rows;
    for (int k = 0; k < COUNT_OF(parts); k++) {
        const uint8_t **slices = arena_zero(&m->mem, (size_t)n, sizeof(*slices));
        out_tensor *t = out_add(m, v->err);
        if (!t) return INFER_NOMEM;
        t->name = gguf_name(v, parts[k], p->layer, ".weight");
        if (!t->name || !slices)
            return error_set(v->err, INFER_NOMEM, "%s: out of memory", m->path);
        for (int64_t i = 0; i < n; i++)
            slices[i] = s->data + (size_t)(2 * i + k) * half;
        t->from = t->to = (dtype)s->type;
        set_shape(t, (int64_t[]){ n, rows, cols } + !stack, 2 + stack);
        t->slices = slices;
    }
    return INFER_OK;
}

static infer_status add_by_name(conversion *v, const st_tensor *s)
{
    place p;
    if (tensor_is_foreign(s->name, strlen(s->name))) return INFER_OK;
    if (!find_place(v, &p, s->name)) return refuse(v, s->name, "its GGUF form is not known");
    if (p.role == ROLE_HEAD && v->c.tied) return INFER_OK; // a copy of the embedding
    if (p.layer >= v->c.n_layers) return INFER_OK;         // of a layer that is not run
    if (s->type < 0) return refuse(v, s->name, "its type is not supported");
    if (p.role == ROLE_EXPERTS_GATE_UP || p.role == ROLE_SHARED_GATE_UP)
        return add_gate_up(v, s, &p);
    if (p.role == ROLE_EXPERTS_DOWN && v->c.moe.by_column)
        return refuse(v, s->name, "stacks of this kind cannot be converted");
    if (p.expert == 0) return add_experts(v, &p);
    return p.expert > 0 ? INFER_OK : add_tensor(v, s, &p);
}

/* Numbers that are no tensor of the folder: rope's factors. */
static infer_status add_floats(conversion *v, const char *name, const float *x, int n)
{
    out_model *m = v->m;
    float *copy = arena_alloc(&m->mem, (size_t)n, sizeof(*copy));
    out_tensor *t = out_add(m, v->err);
    if (!t) return INFER_NOMEM;
    if (!copy) return error_set(v->err, INFER_NOMEM, "%s: out of memory", m->path);
    memcpy(copy, x, (size_t)n * sizeof(*copy));
    t->name = name;
    t->data = (const uint8_t *)copy;
    t->from = t->to = DT_F32;
    t->fixed = true;
    set_shape(t, (int64_t[]){ n }, 1);
    return INFER_OK;
}

static infer_status add_rope(conversion *v)
{
    const rope_spec *r = &v->c.rope;
    if (r->scaling == ROPE_LONGROPE) {
        infer_status s = add_floats(v, "rope_factors_long.weight", r->long_factor, r->n_factors);
        if (s != INFER_OK) return s;
        return add_floats(v, "rope_factors_short.weight", r->short_factor, r->n_factors);
    }
    if (r->scaling != ROPE_LLAMA3) return INFER_OK;
    // what each frequency is divided by: as it is, over the scaled one
    int n = r->dim / 2;
    float *divisors = arena_alloc(&v->m->mem, (size_t)n, sizeof(*divisors));
    if (!divisors) return error_set(v->err, INFER_NOMEM, "%s: out of memory", v->m->path);
    for (int i = 0; i < n; i++) {
        double plain = pow(r->base, -2.0 * i / r->dim);
        divisors[i] = (float)(plain / (double)v->m->model->ropes[0].inv_freq[i]);
        if (fabs((double)divisors[i] - 1) < 1e-6) divisors[i] = 1;
    }
    return add_floats(v, "rope_freqs.weight", divisors, n);
}

/* Embedding, layers in order, what ends the model. */
static int by_place(const void *x, const void *y)
{
    const out_tensor *a = x, *b = y;
    int la = INT_MAX, lb = INT_MAX;
    if (sscanf(a->name, "blk.%d.", &la) != 1 && !strncmp(a->name, "output", 6))
        la = INT_MAX;
    else if (la == INT_MAX)
        la = -1;
    if (sscanf(b->name, "blk.%d.", &lb) != 1 && !strncmp(b->name, "output", 6))
        lb = INT_MAX;
    else if (lb == INT_MAX)
        lb = -1;
    return la != lb ? (la < lb ? -1 : 1) : strcmp(a->name, b->name);
}

/* ---- the folder ------------------------------------------------------------------------------ */

static infer_status refuse_family(const conversion *v, const char *why)
{
    return error_set(v->err, INFER_UNSUPPORTED, "%s: %s: %s, which cannot be converted", v->m->path,
                     v->a->name, why);
}

/* Forms that GGUF has otherwise and that are not made here. */
static infer_status check_family(conversion *v)
{
    const config *c = &v->c;
    if (!v->to) return refuse_family(v, "GGUF has no name for the family");
    if (v->a->hf_transposed) return refuse_family(v, "its matrices are transposed");
    if (v->a->hf_qkv_by_head) return refuse_family(v, "its q, k and v lie head by head");
    if (c->mla.n_latent) return refuse_family(v, "latent attention");
    if (c->n_streams || c->ple_width) return refuse_family(v, "per-layer embeddings");
    return INFER_OK;
}

static int32_t bos_of(const config_source *s)
{
    const json_t *v = json_object_get(s->json, "bos_token_id");
    if (!v) v = json_object_get(s->outer, "bos_token_id");
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

static infer_status fill_tensors(conversion *v)
{
    out_model *m = v->m;
    const config *c = &v->c;
    const gguf *meta = m->model->meta;
    infer_status st = INFER_OK;
    for (int i = 0; st == INFER_OK && i < st_n_tensors(m->model->st); i++)
        st = add_by_name(v, st_tensor_at(m->model->st, i));
    for (int i = 0; st == INFER_OK && meta && i < gguf_n_tensors(meta); i++) {
        const gguf_tensor *g = gguf_tensor_at(meta, i); // rope's factors
        const char *name = arena_strndup(&m->mem, g->name.s, g->name.n);
        if (g->type != DT_F32 || g->n_dims != 1) continue;
        st = name ? add_floats(v, name, (const float *)(const void *)g->data, (int)g->dims[0])
                  : error_set(v->err, INFER_NOMEM, "%s: out of memory", m->path);
    }
    if (st != INFER_OK) return st;
    qsort(m->tensors, m->n_tensors, sizeof(*m->tensors), by_place);
    m->facts.n_layers = c->n_layers;
    m->facts.n_heads = c->n_heads;
    m->facts.n_kv_heads = c->n_kv_heads;
    m->facts.n_experts = c->moe.n_experts;
    m->in_bytes = m->model->file_bytes;
    return INFER_OK;
}

/* The keys of the GGUF file that an index was made from. */
static void put_metadata(conversion *v, const gguf *g)
{
    if (!v->m->base) put_file_type(v);
    const quant_mix *mix = v->m->o->type ? mix_find(v->m->o->type) : NULL;
    for (int i = 0; i < gguf_n_values(g); i++)
        if (!own_key(gguf_value_at(g, i), mix)) gguf_put_value(v->m->w, gguf_value_at(g, i));
}

static infer_status fill(conversion *v, const config_source *s)
{
    out_model *m = v->m;
    const config *c = &v->c;
    config other = { 0 };
    v->family = family_of(v->a);
    v->to = v->family ? arch_find_gguf(v->family, strlen(v->family)) : NULL;
    infer_status st = check_family(v);
    if (st != INFER_OK) return st;
    config_init(&other, v->to, true);
    v->norm_add = c->norm_offset - other.norm_offset;
    v->permute = c->pairing == ROPE_HALVES && other.pairing == ROPE_ADJACENT;
    if (!v->permute && c->pairing != other.pairing)
        return refuse_family(v, "rope pairs are halves in GGUF and not in the folder");
    if (v->permute && c->qk_norm != QK_NORM_NONE)
        return refuse_family(v, "norms of permuted queries");
    if (s->g) {
        put_metadata(v, m->model->meta);
        return fill_tensors(v);
    }
    st = put_keys(v, s);
    if (st == INFER_OK && m->model->tok)
        st = convert_tokenizer(m, m->model->tok, m->model->n_vocab, bos_of(s), v->err);
    if (st == INFER_OK && !m->model->tok)
        log_line(&m->o->log, INFER_LOG_WARN,
                 "%s: no tokenizer.json: the GGUF file will have no vocabulary", m->path);
    if (st == INFER_OK) st = add_rope(v);
    return st == INFER_OK ? fill_tensors(v) : st;
}

infer_status convert_folder(out_model *m, infer_error *err)
{
    conversion v = { .m = m, .err = err };
    cfg_note *notes = mem_zero(MAX_NOTES, sizeof(*notes));
    json_t *json = NULL;
    gguf *meta = NULL;
    config_source s = { .path = m->path, .mem = &m->mem, .notes = notes };
    infer_model_options o = { .log = m->o->log };
    infer_status st = notes ? infer_model_open(&m->model, m->path, &o, err)
                            : error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    vindex_dir *dir = st == INFER_OK ? m->model->dir : NULL;
    if (st == INFER_OK)
        st = dir ? vindex_settings(&s, &json, &meta, dir, err)
                 : config_open_folder(&s, &json, m->path, err);
    if (st == INFER_OK) st = config_load(&v.c, &v.a, &s, err);
    if (st == INFER_OK && dir) vindex_conventions(&v.c, v.a, dir);
    if (st == INFER_OK) st = loader_open(&v.l, m->model, v.a, &v.c, err);
    if (st == INFER_OK) {
        st = fill(&v, &s);
        mem_free(v.l.used);
    }
    json_decref(json);
    gguf_close(meta);
    mem_free(notes);
    return st;
}

/* ---- the check ------------------------------------------------------------------------------- */

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * (fabs(a) + fabs(b)); }

static bool same_rope(const rope_plan *a, const rope_plan *b)
{
    if (a->n_pairs != b->n_pairs || a->gap != b->gap ||
        !near((double)a->attention_factor, (double)b->attention_factor) ||
        (a->inv_freq_long != NULL) != (b->inv_freq_long != NULL))
        return false;
    for (int i = 0; i < a->n_pairs; i++) {
        if (!near((double)a->inv_freq[i], (double)b->inv_freq[i])) return false;
        if (a->inv_freq_long && !near((double)a->inv_freq_long[i], (double)b->inv_freq_long[i]))
            return false;
    }
    return true;
}

static bool same_linear(const linear *a, const linear *b)
{
    return tensor_present(&a->w) == tensor_present(&b->w) && a->w.n_rows == b->w.n_rows &&
           a->w.n_cols == b->w.n_cols && (a->bias != NULL) == (b->bias != NULL);
}

static bool same_norm(const norm *a, const norm *b)
{
    return a->kind == b->kind && near((double)a->eps, (double)b->eps) &&
           (a->weight != NULL) == (b->weight != NULL) && (a->bias != NULL) == (b->bias != NULL);
}

static const char *moe_difference(const moe_plan *a, const moe_plan *b)
{
    if (!a != !b) return "experts";
    if (!a) return NULL;
    if (a->n_experts != b->n_experts || a->n_used != b->n_used || a->d_ff != b->d_ff)
        return "numbers of experts";
    if (a->score != b->score || a->renormalise != b->renormalise ||
        !near((double)a->weight_scale, (double)b->weight_scale) || a->router_raw != b->router_raw ||
        !a->select_bias != !b->select_bias || !a->expert_scale != !b->expert_scale ||
        a->n_groups != b->n_groups || a->n_groups_used != b->n_groups_used ||
        a->group_top2 != b->group_top2)
        return "choice of experts";
    if (!same_linear(&a->router, &b->router) || !same_linear(&a->gate[0], &b->gate[0]) ||
        !same_linear(&a->up[0], &b->up[0]) || !same_linear(&a->down[0], &b->down[0]))
        return "experts' matrices";
    if (!same_linear(&a->shared_gate, &b->shared_gate) || a->shared_d_ff != b->shared_d_ff ||
        !same_linear(&a->shared_down, &b->shared_down) ||
        !same_linear(&a->shared_router, &b->shared_router))
        return "shared expert";
    return NULL;
}

static const char *layer_difference(const infer_model *ma, const infer_model *mb, int layer)
{
    const layer_plan *a = &ma->layers[layer], *b = &mb->layers[layer];
    const linear *la[] = { &a->q, &a->k, &a->v, &a->o, &a->gate, &a->up, &a->down };
    const linear *lb[] = { &b->q, &b->k, &b->v, &b->o, &b->gate, &b->up, &b->down };
    const norm *na[] = { &a->attn_norm, &a->post_attn_norm, &a->q_norm,       &a->k_norm,
                         &a->v_norm,    &a->ffn_norm,       &a->post_ffn_norm };
    const norm *nb[] = { &b->attn_norm, &b->post_attn_norm, &b->q_norm,       &b->k_norm,
                         &b->v_norm,    &b->ffn_norm,       &b->post_ffn_norm };
    for (int i = 0; i < COUNT_OF(la); i++)
        if (!same_linear(la[i], lb[i])) return "matrices";
    for (int i = 0; i < COUNT_OF(na); i++)
        if (!same_norm(na[i], nb[i])) return "norms";
    if (a->qk_norm_whole != b->qk_norm_whole || a->qk_norm_per_head != b->qk_norm_per_head ||
        a->qk_norm_after_rope != b->qk_norm_after_rope)
        return "norms of queries and keys";
    if (a->n_heads != b->n_heads || a->n_kv_heads != b->n_kv_heads || a->head_dim != b->head_dim ||
        a->head_dim_v != b->head_dim_v)
        return "heads";
    if ((a->rope < 0) != (b->rope < 0)) return "layers that rotate";
    if (a->rope >= 0 && !same_rope(&ma->ropes[a->rope], &mb->ropes[b->rope])) return "rope";
    if (a->window != b->window) return "sliding window";
    if (!near((double)a->attn_scale, (double)b->attn_scale) ||
        !near((double)a->attn_softcap, (double)b->attn_softcap) || !a->sinks != !b->sinks ||
        !near((double)a->clip_qkv, (double)b->clip_qkv) || !a->mla != !b->mla ||
        a->kv_source - layer != b->kv_source - layer)
        return "attention";
    if (a->ffn != b->ffn || a->act != b->act || a->d_ff != b->d_ff ||
        !near((double)a->glu_limit, (double)b->glu_limit) ||
        !near((double)a->glu_alpha, (double)b->glu_alpha))
        return "feed-forward network";
    if (a->parallel != b->parallel || !near((double)a->residual_scale, (double)b->residual_scale) ||
        !near((double)a->layer_scale, (double)b->layer_scale) || !a->ple != !b->ple)
        return "residual stream";
    return moe_difference(a->moe, b->moe);
}

const char *model_difference(const infer_model *a, const infer_model *b)
{
    if (a->n_layers != b->n_layers || a->d_model != b->d_model || a->n_vocab != b->n_vocab)
        return "sizes";
    if (a->n_ctx_train != b->n_ctx_train) return "context";
    if (!near((double)a->embed_scale, (double)b->embed_scale)) return "scale of the embedding";
    if (!near((double)a->logit_scale, (double)b->logit_scale) ||
        !near((double)a->final_softcap, (double)b->final_softcap))
        return "scale of the logits";
    if (!same_norm(&a->final_norm, &b->final_norm) || !same_linear(&a->head, &b->head))
        return "the model's end";
    if ((a->head.w.data == a->embed.data) != (b->head.w.data == b->embed.data)) return "tied head";
    if (tensor_present(&a->pos_embed) != tensor_present(&b->pos_embed)) return "learned positions";
    for (int i = 0; i < a->n_layers; i++) {
        const char *what = layer_difference(a, b, i);
        if (what) return what;
    }
    return NULL;
}

infer_status convert_check(const out_model *m, const char *written, infer_error *err)
{
    infer_model *other;
    infer_status s = infer_model_open(&other, written, NULL, err);
    if (s != INFER_OK) return error_prefix(err, "the converted file is not valid");
    const char *what = model_difference(m->model, other);
    if (what)
        s = error_set(err, INFER_UNSUPPORTED,
                      "%s: %s: its GGUF form would lose its %s, which is not written", m->path,
                      m->model->arch->name, what);
    if (s == INFER_OK && m->model->tok)
        s = convert_check_tokenizer(m, m->model->tok, other->gguf, err);
    infer_model_close(other);
    return s;
}
