/*
 * model.c: opening a model: where is it, which family, which numbers, which tensors.
 */
#include "models/model.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "models/arch.h"
#include "models/load_vindex.h"
#include "models/locate.h"

#define MAX_CONFIG (16 << 20) // bytes of a JSON file

/* ---- which family ---------------------------------------------------------------------------- */

static infer_status refuse(const char *path, const char *name, infer_error *err)
{
    char known[640];
    arch_list(known, sizeof(known));
    return error_set(err, INFER_UNSUPPORTED,
                     "%s: architecture '%.60s' is not supported "
                     "(supported: %s)",
                     path, name, known);
}

static infer_status find_arch_gguf(const arch **out, config_source *s, infer_error *err)
{
    gguf_text name = { 0 };
    bool found;
    infer_status st = gguf_string(s->g, "general.architecture", &name, &found, err);
    if (st != INFER_OK) return st;
    if (!found)
        return error_set(err, INFER_FORMAT, "%s: key 'general.architecture' missing", s->path);
    s->prefix = arena_strndup(s->mem, name.s, name.n < 60 ? name.n : 60);
    if (!s->prefix) return error_set(err, INFER_NOMEM, "%s: out of memory", s->path);
    *out = arch_find_gguf(name.s, name.n);
    return *out ? INFER_OK : refuse(s->path, s->prefix, err);
}

/* The text part's model_type counts first, then the whole checkpoint's, then the class. */
static infer_status find_arch_hf(const arch **out, config_source *s, infer_error *err)
{
    const char *names[3] = {
        json_string_value(json_object_get(s->json, "model_type")),
        json_string_value(json_object_get(s->outer, "model_type")),
        json_string_value(json_array_get(json_object_get(s->outer, "architectures"), 0)),
    };
    const char *first = NULL;
    for (int i = 0; i < COUNT_OF(names); i++) {
        if (!names[i]) continue;
        if ((*out = arch_find_hf(names[i]))) return INFER_OK;
        if (!first || i == 1) first = names[i];
    }
    if (!first) return error_set(err, INFER_FORMAT, "%s: model_type missing", s->path);
    return refuse(s->path, first, err);
}

/* ---- config ---------------------------------------------------------------------------------- */

static infer_status read_json(json_t **out, const char *folder, const char *name, infer_error *err)
{
    *out = NULL;
    arena mem = { 0 };
    char *text = NULL;
    size_t n;
    char *path = arena_printf(&mem, "%s/%s", folder, name);
    infer_status s = path ? file_read(path, MAX_CONFIG, &text, &n, err)
                          : error_set(err, INFER_NOMEM, "%s: out of memory", folder);
    if (s == INFER_OK) {
        json_error_t why;
        *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
        if (!*out)
            s = error_set(err, INFER_FORMAT, "%s: line %d: %s", path, why.line, why.text);
        else if (!json_is_object(*out))
            s = error_set(err, INFER_FORMAT, "%s: expected a JSON object", path);
    }
    if (s != INFER_OK) {
        json_decref(*out);
        *out = NULL;
    }
    mem_free(text);
    arena_free(&mem);
    return s;
}

infer_status config_open_folder(config_source *s, json_t **json, const char *folder,
                                infer_error *err)
{
    infer_status st = read_json(json, folder, "config.json", err);
    if (st != INFER_OK) return st;
    s->path = arena_printf(s->mem, "%s/config.json", folder);
    if (!s->path) return error_set(err, INFER_NOMEM, "%s: out of memory", folder);
    const json_t *text = json_object_get(*json, "text_config");
    s->outer = *json;
    s->json = json_is_object(text) ? text : *json;
    return INFER_OK;
}

infer_status config_load(config *c, const arch **a, config_source *s, infer_error *err)
{
    infer_status st = s->g ? find_arch_gguf(a, s, err) : find_arch_hf(a, s, err);
    if (st != INFER_OK) return st;
    config_init(c, *a, s->g != NULL);
    config_read(s, c);
    if ((*a)->read_config) (*a)->read_config(s, c);
    config_check(s, c);
    if (s->out_of_memory) return error_set(err, INFER_NOMEM, "%s: out of memory", s->path);
    return fault_status(&s->faults, err, INFER_FORMAT, s->path);
}

/* ---- ids that end a text --------------------------------------------------------------------- */

static void add_eos(infer_model *m, const json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n && m->n_eos_ids < COUNT_OF(m->eos_ids); i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id)) continue;
        json_int_t x = json_integer_value(id);
        bool known = x < 0 || x > INT32_MAX;
        for (int k = 0; k < m->n_eos_ids && !known; k++)
            known = m->eos_ids[k] == x;
        if (!known) m->eos_ids[m->n_eos_ids++] = (int32_t)x;
    }
}

static infer_status read_eos(infer_model *m, const config_source *s, infer_error *err)
{
    if (s->g) {
        int64_t id;
        bool found;
        infer_status st = gguf_int(s->g, "tokenizer.ggml.eos_token_id", &id, &found, err);
        if (st == INFER_OK && found && id >= 0 && id <= INT32_MAX)
            m->eos_ids[m->n_eos_ids++] = (int32_t)id;
        return st;
    }
    json_t *generation;
    infer_status st = read_json(&generation, m->path, "generation_config.json", err);
    if (st != INFER_OK && st != INFER_NOT_FOUND) return st;
    add_eos(m, json_object_get(generation, "eos_token_id"));
    add_eos(m, json_object_get(s->json, "eos_token_id"));
    add_eos(m, json_object_get(s->outer, "eos_token_id"));
    json_decref(generation);
    return INFER_OK;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static int larger(int a, int b) { return a > b ? a : b; }

static infer_status plan_ropes(infer_model *m, const config *c, infer_error *err)
{
    if (c->unrotated) return INFER_OK;
    m->n_ropes = c->has_local ? 2 : 1;
    m->ropes = arena_zero(&m->mem, (size_t)m->n_ropes, sizeof(*m->ropes));
    if (!m->ropes) return error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    infer_status s = rope_build(&m->ropes[0], &c->rope, c->pairing, c->n_ctx, &m->mem, err);
    if (s == INFER_OK && c->has_local)
        s = rope_build(&m->ropes[1], &c->rope_local, c->pairing, c->n_ctx, &m->mem, err);
    return s;
}

static void plan_ends(loader *l)
{
    infer_model *m = l->m;
    const config *c = &l->c;
    if (load_tensor(l, &m->embed, ROLE_EMBED, 0, 0, c->d_model, false))
        m->n_vocab = m->embed.n_rows;
    m->embed_scale = (float)c->embed_scale;
    load_tensor(l, &m->pos_embed, ROLE_POS_EMBED, 0, c->n_ctx, c->d_model, false);
    load_norm(l, &m->final_norm, ROLE_FINAL_NORM, 0, c->d_model, false);
    m->logit_scale = (float)c->logit_scale;
    m->final_softcap = (float)c->final_softcap;
    if (c->head_bias) m->head.bias = load_bias(l, ROLE_HEAD, 0, m->n_vocab);
    // In GGUF files the tensor tells. Where config.json says tied, a head in the file is a copy.
    if (!m->gguf && c->tied)
        ignore_tensor(l, ROLE_HEAD, 0);
    else if (load_tensor(l, &m->head.w, ROLE_HEAD, 0, m->n_vocab, c->d_model, m->gguf != NULL))
        return;
    m->head.w = m->embed;
}

static infer_status plan_model(infer_model *m, const config *c, infer_error *err)
{
    m->n_layers = c->n_layers;
    m->d_model = c->d_model;
    m->n_ctx_train = c->n_ctx;
    infer_status s = plan_ropes(m, c, err);
    if (s != INFER_OK) return s;
    m->layers = arena_zero(&m->mem, (size_t)m->n_layers, sizeof(*m->layers));
    if (!m->layers) return error_set(err, INFER_NOMEM, "%s: out of memory", m->path);

    loader l;
    if ((s = loader_open(&l, m, m->arch, c, err)) != INFER_OK) return s;
    plan_ends(&l);
    if (m->arch->plan_model) m->arch->plan_model(&l);
    for (int i = 0; i < m->n_layers; i++) {
        layer_plan *p = &m->layers[i];
        m->arch->plan_layer(&l, p, i);
        int heads = larger(p->n_heads, p->n_kv_heads);
        int width = heads * larger(p->head_dim, p->head_dim_v);
        m->max_heads_width = larger(m->max_heads_width, width);
        m->max_d_ff = larger(m->max_d_ff, p->d_ff);
    }
    return loader_close(&l, err);
}

/* ---- opening --------------------------------------------------------------------------------- */

static infer_status read_name(infer_model *m, const char *given, infer_error *err)
{
    gguf_text name = { 0 };
    if (m->gguf || m->meta) {
        infer_status s = gguf_string(m->gguf ? m->gguf : m->meta, "general.name", &name, NULL, err);
        if (s != INFER_OK) return s;
    }
    if (!name.n) { // the last part of the path
        size_t end = strlen(given), begin;
        while (end > 1 && given[end - 1] == '/')
            end--;
        for (begin = end; begin > 0 && given[begin - 1] != '/';)
            begin--;
        name = (gguf_text){ given + begin, end - begin };
    }
    m->name = arena_strndup(&m->mem, name.s, name.n);
    return m->name ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
}

static infer_status read_tokenizer(infer_model *m, infer_error *err)
{
    const gguf *g = m->gguf ? m->gguf : m->meta;
    if (g) {
        gguf_text kind = { 0 };
        bool named;
        infer_status s = gguf_string(g, "tokenizer.ggml.model", &kind, &named, err);
        if (s != INFER_OK) return s;
        if (named && kind.n == 4 && memcmp(kind.s, "none", 4) == 0) return INFER_OK;
        if (named && kind.n == 8 && memcmp(kind.s, "no_vocab", 8) == 0) return INFER_OK;
        if (!named && !gguf_find(g, "tokenizer.ggml.tokens")) return INFER_OK;
        return tokenizer_from_gguf(&m->tok, g, err);
    }
    char *path = arena_printf(&m->mem, "%s/tokenizer.json", m->path);
    if (!path) return error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    return file_exists(path) ? tokenizer_from_folder(&m->tok, m->path, err) : INFER_OK;
}

static infer_status fill(infer_model *m, const char *path, bool is_folder, const map_options *o,
                         infer_error *err)
{
    json_t *json = NULL;
    arena scratch = { 0 }; // what the configuration holds
    config_source s = { .path = m->path, .mem = &scratch };
    infer_status st;
    if (is_folder && vindex_dir_is(m->path)) {
        st = vindex_dir_open(&m->dir, m->path, o, &m->log, err);
        if (st == INFER_OK) st = vindex_settings(&s, &json, &m->meta, m->dir, err);
        if (st != INFER_OK) goto done;
    } else if (is_folder) {
        if ((st = config_open_folder(&s, &json, m->path, err)) != INFER_OK) goto done;
    } else {
        if ((st = gguf_open(&m->gguf, m->path, o, &m->log, err)) != INFER_OK) goto done;
        s.g = m->gguf;
    }
    config c;
    if ((st = config_load(&c, &m->arch, &s, err)) != INFER_OK) goto done;
    if (m->gguf && gguf_n_tensors(m->gguf) == 0) {
        st = error_set(err, INFER_FORMAT, "%s: the file has no tensors (a vocabulary alone?)",
                       m->path);
        goto done;
    }
    if (m->dir) {
        vindex_conventions(&c, m->arch, m->dir);
        st = vindex_tensors(&m->st, m->dir, m->arch, &c, m->walk_only, err);
    } else if (is_folder) {
        st = st_open(&m->st, m->path, o, &m->log, err);
    }
    if (st != INFER_OK) goto done;
    m->file_bytes = m->gguf  ? gguf_file_bytes(m->gguf)
                    : m->dir ? vindex_dir_bytes(m->dir)
                             : st_file_bytes(m->st);
    if ((st = plan_model(m, &c, err)) != INFER_OK) goto done;
    if ((st = read_name(m, path, err)) != INFER_OK) goto done;
    if ((st = read_eos(m, &s, err)) != INFER_OK) goto done;
    st = read_tokenizer(m, err);
done:
    json_decref(json);
    arena_free(&scratch);
    return st;
}

infer_status infer_model_open(infer_model **out, const char *path,
                              const infer_model_options *options, infer_error *err)
{
    if (!out || !path) return error_set(err, INFER_ARGUMENT, "infer_model_open: NULL argument");
    *out = NULL;
    double from = clock_seconds();
    infer_model_options o = { 0 };
    if (options) o = *options;
    if ((o.patch || o.walk_only) && !o.ffn)
        return error_set(err, INFER_ARGUMENT, "%s: a patch and walk_only need an index (ffn)",
                         path);
    infer_model *m = mem_zero(1, sizeof(*m));
    if (!m) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    m->log = o.log;
    m->ffn_index = o.ffn;
    m->ffn_patch = o.patch;
    m->walk_only = o.walk_only;
    m->pages_stay = o.no_mmap || o.mlock;
    map_options how = { .no_mmap = o.no_mmap, .mlock = o.mlock };
    bool is_folder;
    infer_status s = model_locate(&m->path, &is_folder, path, err);
    if (s == INFER_OK) s = fill(m, path, is_folder, &how, err);
    if (s != INFER_OK) {
        infer_model_close(m);
        return s;
    }
    m->open_s = clock_seconds() - from;
    *out = m;
    return error_clear(err);
}

void infer_model_close(infer_model *m)
{
    if (!m) return;
    tokenizer_free(m->tok);
    gguf_close(m->gguf);
    gguf_close(m->meta);
    vindex_dir_close(m->dir);
    st_close(m->st);
    arena_free(&m->mem);
    mem_free(m->path);
    mem_free(m);
}

void model_release(const infer_model *m, const void *from, size_t size)
{
    if (m->pages_stay || !size) return;
    if (m->gguf)
        gguf_release(m->gguf, from, size);
    else if (m->dir)
        vindex_dir_release(m->dir, from, size);
    else
        st_release(m->st, from, size);
}

bool model_broken(const infer_model *m)
{
    return m->gguf ? gguf_broken(m->gguf) : m->dir ? vindex_dir_broken(m->dir) : st_broken(m->st);
}

/* ---- describing ------------------------------------------------------------------------------ */

/* The type that has most bytes of the matrices. */
static const char *main_type(const infer_model *m)
{
    size_t bytes[DT_COUNT] = { 0 };
    int best = m->embed.type;
    bytes[m->embed.type] += tensor_bytes(&m->embed);
    if (m->head.w.data != m->embed.data) bytes[m->head.w.type] += tensor_bytes(&m->head.w);
    for (int i = 0; i < m->n_layers; i++) {
        const layer_plan *p = &m->layers[i];
        const linear *all[] = { &p->q, &p->k, &p->v, &p->o, &p->gate, &p->up, &p->down };
        for (int k = 0; k < COUNT_OF(all); k++)
            if (tensor_present(&all[k]->w)) bytes[all[k]->w.type] += tensor_bytes(&all[k]->w);
        for (int x = 0; p->moe && x < p->moe->n_experts; x++) {
            const linear *expert[] = { &p->moe->gate[x], &p->moe->up[x], &p->moe->down[x] };
            for (int k = 0; k < COUNT_OF(expert); k++)
                bytes[expert[k]->w.type] += tensor_bytes(&expert[k]->w);
        }
    }
    for (int t = 0; t < DT_COUNT; t++)
        if (bytes[t] > bytes[best]) best = t;
    return quant_formats[best]->name;
}

static uint64_t linear_bytes(const linear *l)
{
    return tensor_present(&l->w) ? tensor_bytes(&l->w) : 0;
}

/* Of n experts, those that a row uses. */
static uint64_t experts_bytes(const moe_plan *m)
{
    uint64_t one = linear_bytes(&m->up[0]) + linear_bytes(&m->down[0]);
    if (m->gate) one += linear_bytes(&m->gate[0]);
    return linear_bytes(&m->router) + (uint64_t)m->n_used * one + linear_bytes(&m->shared_gate) +
           linear_bytes(&m->shared_up) + linear_bytes(&m->shared_down);
}

static uint64_t latent_bytes(const mla_plan *m, int n_heads)
{
    uint64_t n = linear_bytes(&m->q_a) + linear_bytes(&m->kv_a);
    for (int h = 0; h < n_heads; h++)
        n += linear_bytes(&m->k_up[h]) + linear_bytes(&m->v_up[h]);
    return n;
}

/* What one generated token reads: the matrices of the plan, once each. */
static uint64_t token_bytes(const infer_model *m)
{
    uint64_t n = linear_bytes(&m->head) + linear_bytes(&m->ple_project);
    for (int i = 0; i < m->n_layers; i++) {
        const layer_plan *l = &m->layers[i];
        const linear *all[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (int k = 0; k < COUNT_OF(all); k++)
            n += linear_bytes(all[k]);
        if (l->moe) n += experts_bytes(l->moe);
        if (l->mla) n += latent_bytes(l->mla, l->n_heads);
        if (l->ple) n += linear_bytes(&l->ple->gate) + linear_bytes(&l->ple->project);
    }
    return n;
}

infer_model_info infer_model_describe(const infer_model *m)
{
    const layer_plan *first = &m->layers[0];
    infer_model_info info = {
        .arch = m->arch->name,
        .path = m->path,
        .name = m->name,
        .quant = main_type(m),
        .n_layers = m->n_layers,
        .d_model = m->d_model,
        .n_heads = first->n_heads,
        .n_kv_heads = first->n_kv_heads,
        .head_dim = first->head_dim,
        .d_ff = m->max_d_ff,
        .n_vocab = m->n_vocab,
        .n_ctx_train = m->n_ctx_train,
        .n_params = m->n_params,
        .weight_bytes = m->weight_bytes,
        .file_bytes = m->file_bytes,
        .repacked_bytes = m->repacked_bytes,
        .has_tokenizer = m->tok != NULL,
        .bytes_per_token = token_bytes(m),
    };
    for (int i = 0; i < m->n_layers; i++)
        info.window = larger(info.window, m->layers[i].window);
    return info;
}
