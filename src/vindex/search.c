/*
 * search.c: KNN in an open vindex: by scan or by graph, with a patch laid over.
 *
 * A patch changes few features: the base is searched as it is, and of what it finds the changed
 * ones are replaced by their own scores.
 */
#include "vindex/search.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "models/vindex_dir.h"
#include "vindex/hnsw.h"
#include "vindex/relations.h"

#define GRAPH_FILE "hnsw.bin"
#define SEED 42
#define SAMPLES 512 // tokens that a baseline is of

struct searcher {
    knn *scan;
    pthread_mutex_t scans; // of the baselines, held while they are scanned for; taken before the
                           // scan's own, as `lock` never is
    pthread_mutex_t lock;  // of the rest
    arena mem;
    const char **tokens; // [n_vocab] texts, NULL: not asked for yet
    float *embed_norms;  // [n_vocab] or NULL
    float **down_norms;  // [n_layers], each [n_features] or NULL
    float **baselines;   // [n_layers], each [2, n_features] or NULL
    float *samples;      // [SAMPLES, d_model] that they are of, or NULL
    /* graphs: of each layer one, or one an expert */
    const vindex_graph ***graphs; // [n_layers] [parts], or NULL
    bool owned;                   // built here, not mapped
    graph_file *file;
    graph_search *idle[MAX_THREADS]; // not in use
    int n_idle, ef_max;
    int graph_rows, graph_cols; // the largest
    size_t graph_row_bytes;
};

knn *searcher_scan(const infer_vindex *v) { return v->search->scan; }

static int n_parts(const vindex_layer *x) { return x->n_experts ? x->n_experts : 1; }

/* The gates that part `i` of a layer's graphs is of. */
static tensor part_rows(const vindex_layer *x, int i)
{
    return x->n_experts ? tensor_rows(&x->gate, i * x->per_expert, x->per_expert) : x->gate;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static infer_status map_graphs(infer_vindex *v, const char *path, infer_error *err)
{
    struct searcher *s = v->search;
    infer_status st = graph_file_open(&s->file, path, err);
    for (int l = 0; l < v->n_layers; l++) {
        vindex_layer *x = &v->layers[l];
        for (int i = 0; st == INFER_OK && s->graphs[l] && i < n_parts(x); i++) {
            tensor rows = part_rows(x, i);
            st = graph_file_find(s->file, &s->graphs[l][i], l, i, &rows, err);
            if (st == INFER_NOT_FOUND) st = INFER_FORMAT; // the file is there, so it is whole
        }
    }
    return st;
}

static infer_status build_graphs(infer_vindex *v, infer_error *err)
{
    struct searcher *s = v->search;
    thread_pool *pool;
    infer_status st = pool_new(&pool, v->n_threads, err);
    if (st != INFER_OK) return st;
    s->owned = true;
    for (int l = 0; l < v->n_layers; l++) {
        vindex_layer *x = &v->layers[l];
        for (int i = 0; st == INFER_OK && s->graphs[l] && i < n_parts(x); i++) {
            tensor rows = part_rows(x, i);
            vindex_graph *g;
            graph_params p = { .m = 16, .seed = SEED };
            st = graph_build(&g, &rows, &p, pool, err);
            s->graphs[l][i] = g;
        }
    }
    pool_free(pool);
    return st;
}

static infer_status open_graphs(infer_vindex *v, infer_error *err)
{
    struct searcher *s = v->search;
    s->graphs = arena_zero(&s->mem, (size_t)v->n_layers, sizeof *s->graphs);
    if (!s->graphs) return error_set(err, INFER_NOMEM, "%s: out of memory for graphs", v->path);
    for (int l = 0; l < v->n_layers; l++) {
        vindex_layer *x = &v->layers[l];
        if (!x->n_features || !tensor_present(&x->gate)) continue;
        tensor rows = part_rows(x, 0);
        s->graphs[l] = arena_zero(&s->mem, (size_t)n_parts(x), sizeof **s->graphs);
        if (!s->graphs[l])
            return error_set(err, INFER_NOMEM, "%s: out of memory for graphs", v->path);
        if (rows.n_rows > s->graph_rows) s->graph_rows = rows.n_rows;
        if (rows.n_cols > s->graph_cols) s->graph_cols = rows.n_cols;
        if (rows.row_bytes > s->graph_row_bytes) s->graph_row_bytes = rows.row_bytes;
    }
    char *path = arena_printf(&s->mem, "%s/" GRAPH_FILE, v->path);
    if (!path) return error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    infer_status st = file_exists(path) ? map_graphs(v, path, err) : build_graphs(v, err);
    for (int l = 0; st == INFER_OK && l < v->n_layers; l++)
        v->layers[l].graph = s->graphs[l] ? (vindex_graph *)(uintptr_t)s->graphs[l][0] : NULL;
    return st;
}

static graph_search *take_search(const infer_vindex *v, int ef, infer_error *err)
{
    struct searcher *s = v->search;
    graph_search *g = NULL;
    pthread_mutex_lock(&s->lock);
    if (ef > s->ef_max) { // those that are idle have too small a beam
        while (s->n_idle)
            graph_search_free(s->idle[--s->n_idle]);
        s->ef_max = ef;
    }
    int ef_max = s->ef_max;
    if (s->n_idle) g = s->idle[--s->n_idle];
    pthread_mutex_unlock(&s->lock);
    if (g && graph_search_ef(g) < ef) {
        graph_search_free(g);
        g = NULL;
    }
    if (!g) g = graph_search_new(s->graph_rows, s->graph_cols, s->graph_row_bytes, ef_max);
    if (!g) error_set(err, INFER_NOMEM, "search: out of memory");
    return g;
}

static void give_search(const infer_vindex *v, graph_search *g)
{
    struct searcher *s = v->search;
    pthread_mutex_lock(&s->lock);
    bool kept = s->n_idle < MAX_THREADS && graph_search_ef(g) >= s->ef_max;
    if (kept) s->idle[s->n_idle++] = g;
    pthread_mutex_unlock(&s->lock);
    if (!kept) graph_search_free(g);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int widest(const infer_vindex *v)
{
    int n = v->embed.n_cols;
    for (int l = 0; l < v->n_layers; l++) {
        const vindex_layer *x = &v->layers[l];
        if (x->gate.n_cols > n) n = x->gate.n_cols;
        if (x->up.n_cols > n) n = x->up.n_cols;
        if (x->router.n_cols > n) n = x->router.n_cols;
    }
    return n;
}

infer_status searcher_open(infer_vindex *v, const infer_vindex_options *o, infer_error *err)
{
    struct searcher *s = mem_zero(1, sizeof *s);
    if (!s) return error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    v->search = s;
    pthread_mutex_init(&s->scans, NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->tokens = mem_pages((size_t)v->n_vocab * sizeof *s->tokens);
    s->down_norms = arena_zero(&s->mem, (size_t)v->n_layers, sizeof *s->down_norms);
    s->baselines = arena_zero(&s->mem, (size_t)v->n_layers, sizeof *s->baselines);
    s->ef_max = v->ef_search;
    if (!s->tokens || !s->down_norms || !s->baselines)
        return error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    infer_status st = knn_new(&s->scan, v->n_threads, widest(v), err);
    return st == INFER_OK && o->hnsw ? open_graphs(v, err) : st;
}

void searcher_close(infer_vindex *v)
{
    struct searcher *s = v->search;
    if (!s) return;
    for (int l = 0; s->owned && l < v->n_layers; l++)
        for (int i = 0; s->graphs[l] && i < n_parts(&v->layers[l]); i++)
            graph_free((vindex_graph *)(uintptr_t)s->graphs[l][i]);
    graph_file_close(s->file);
    while (s->n_idle)
        graph_search_free(s->idle[--s->n_idle]);
    for (int l = 0; s->down_norms && l < v->n_layers; l++)
        mem_free(s->down_norms[l]);
    for (int l = 0; s->baselines && l < v->n_layers; l++)
        mem_free(s->baselines[l]);
    mem_free(s->samples);
    mem_free(s->embed_norms);
    mem_free_pages(s->tokens, (size_t)v->n_vocab * sizeof *s->tokens);
    knn_free(s->scan);
    arena_free(&s->mem);
    pthread_mutex_destroy(&s->scans);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
    v->search = NULL;
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

const char *searcher_token(const infer_vindex *v, int32_t id)
{
    struct searcher *s = v->search;
    if (id < 0 || id >= v->n_vocab) return "";
    pthread_mutex_lock(&s->lock);
    const char *found = s->tokens[id];
    if (!found) {
        char *text = NULL;
        size_t n = 0, raw_n = 0;
        const char *raw = v->tok ? tok_token(v->tok, id, &raw_n) : NULL;
        if (v->tok && tok_decode(v->tok, &text, &n, &id, 1, true, NULL) != INFER_OK) text = NULL;
        const char *at = text ? text : "";
        while (n && is_space(*at))
            at++, n--;
        while (n && is_space(at[n - 1]))
            n--;
        if (n)
            found = arena_strndup(&s->mem, at, n);
        else if (raw_n)
            found = arena_strndup(&s->mem, raw, raw_n);
        else
            found = arena_printf(&s->mem, "T%d", (int)id);
        mem_free(text);
        s->tokens[id] = found;
    }
    pthread_mutex_unlock(&s->lock);
    return found ? found : "";
}

const float *searcher_embed_norms(const infer_vindex *v)
{
    struct searcher *s = v->search;
    pthread_mutex_lock(&s->lock);
    if (!s->embed_norms) {
        float *row = mem_alloc((size_t)v->d_model, sizeof *row);
        float *norms = mem_alloc((size_t)v->n_vocab, sizeof *norms);
        if (row && norms) {
            knn_row_norms(norms, &v->embed, row);
            s->embed_norms = norms;
        } else {
            mem_free(norms);
        }
        mem_free(row);
    }
    const float *norms = s->embed_norms;
    pthread_mutex_unlock(&s->lock);
    return norms;
}

/* Lengths of a layer's down rows. */
static infer_status measure_down(const infer_vindex *v, float *norms, const vindex_layer *x,
                                 infer_error *err)
{
    int cols = tensor_present(&x->down_rows) ? x->down_rows.n_cols : x->down.n_cols;
    int per = x->n_experts ? x->per_expert : x->n_features;
    size_t n = (size_t)(cols > v->d_model ? cols : v->d_model);
    float *row = mem_alloc(n, sizeof *row), *lengths = mem_alloc(n, sizeof *lengths);
    double *sums = mem_alloc(n, sizeof *sums);
    bool ok = row && lengths && sums;
    if (ok && tensor_present(&x->down_rows)) {
        knn_row_norms(norms, &x->down_rows, row);
    } else if (ok) {
        for (int i = 0; i < x->down.n_slices; i++) {
            tensor slice = tensor_slice(&x->down, i);
            knn_column_norms(lengths, &slice, row, sums);
            memcpy(norms + (size_t)i * (size_t)per, lengths, (size_t)per * sizeof *norms);
        }
    }
    mem_free(row);
    mem_free(lengths);
    mem_free(sums);
    return ok ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
}

static infer_status down_norms(const infer_vindex *v, int layer, const float **out,
                               infer_error *err)
{
    struct searcher *s = v->search;
    const vindex_layer *x = &v->layers[layer];
    if (!tensor_present(&x->down) && !tensor_present(&x->down_rows))
        return error_set(err, INFER_UNSUPPORTED,
                         "%s: layer %d has no down rows: extract it with --level inference",
                         v->path, layer);
    infer_status st = INFER_OK;
    pthread_mutex_lock(&s->lock);
    if (!s->down_norms[layer]) {
        float *norms = mem_alloc((size_t)x->n_features, sizeof *norms);
        st = norms ? measure_down(v, norms, x, err)
                   : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
        if (st == INFER_OK)
            s->down_norms[layer] = norms;
        else
            mem_free(norms);
    }
    *out = s->down_norms[layer];
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Embeddings of tokens spread over the vocabulary, scaled as queries are; NULL without memory.
 * `scans` is held. */
static const float *samples(const infer_vindex *v)
{
    struct searcher *s = v->search;
    size_t d = (size_t)v->d_model;
    if (s->samples) return s->samples;
    s->samples = mem_alloc(SAMPLES * d, sizeof *s->samples);
    for (int i = 0; s->samples && i < SAMPLES; i++) {
        float *row = s->samples + (size_t)i * d;
        tensor_row(row, &v->embed, (int)((int64_t)v->n_vocab * i / SAMPLES));
        for (size_t j = 0; j < d; j++)
            row[j] *= v->embed_scale;
    }
    return s->samples;
}

/* Over scores [SAMPLES, n]. */
static void mean_and_deviation(float *mean, float *deviation, const float *scores, int n)
{
    for (int f = 0; f < n; f++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < SAMPLES; i++) {
            double x = (double)scores[i * (size_t)n + (size_t)f];
            sum += x;
            squares += x * x;
        }
        double m = sum / SAMPLES, var = squares / SAMPLES - m * m;
        mean[f] = (float)m;
        deviation[f] = var > 0 ? (float)sqrt(var) : 0.0f;
    }
}

static infer_status measure_baseline(const infer_vindex *v, float *baseline, const tensor *w,
                                     infer_error *err)
{
    const float *x = samples(v);
    float *scores = mem_alloc((size_t)SAMPLES * (size_t)w->n_rows, sizeof *scores);
    infer_status st =
        x && scores ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    knn_query q = {
        .w = w, .count = w->n_rows, .x = x, .n_queries = SAMPLES, .x_cols = v->d_model
    };
    if (st == INFER_OK) st = knn_scores(v->search->scan, scores, &q, err);
    if (st == INFER_OK) mean_and_deviation(baseline, baseline + w->n_rows, scores, w->n_rows);
    mem_free(scores);
    return st;
}

infer_status searcher_baseline(const infer_vindex *v, int layer, const float **mean,
                               const float **deviation, infer_error *err)
{
    struct searcher *s = v->search;
    const vindex_layer *x = &v->layers[layer];
    infer_status st = INFER_OK;
    pthread_mutex_lock(&s->scans);
    if (!s->baselines[layer]) {
        float *b = mem_alloc(2 * (size_t)x->n_features, sizeof *b);
        st = b ? measure_baseline(v, b, &x->gate, err)
               : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
        if (st == INFER_OK)
            s->baselines[layer] = b;
        else
            mem_free(b);
    }
    *mean = s->baselines[layer];
    *deviation = *mean ? *mean + x->n_features : NULL;
    pthread_mutex_unlock(&s->scans);
    return st;
}

infer_status searcher_baseline_of(const infer_vindex *v, const float *gate, float *mean,
                                  float *deviation, infer_error *err)
{
    float both[2];
    tensor w = { .name = "gate",
                 .data = (const uint8_t *)gate,
                 .type = DT_F32,
                 .n_rows = 1,
                 .n_cols = v->d_model,
                 .n_slices = 1,
                 .row_bytes = (size_t)v->d_model * sizeof *gate };
    pthread_mutex_lock(&v->search->scans);
    infer_status st = measure_baseline(v, both, &w, err);
    pthread_mutex_unlock(&v->search->scans);
    *mean = both[0];
    *deviation = both[1];
    return st;
}

/* ---- labels of features ---------------------------------------------------------------------- */

/* Pair i of a record: id and score; -1 where there is none. Pair -1 is the record's head. */
static int32_t pair_at(const infer_vindex *v, int layer, int feature, int i, float *score)
{
    const vindex_layer *x = &v->layers[layer];
    *score = 0;
    if (!x->meta || feature < 0 || feature >= x->n_meta || i >= v->top_k) return -1;
    const uint8_t *p = x->meta + (size_t)feature * (8 + 8 * (size_t)v->top_k) + 8 * (size_t)(i + 1);
    uint32_t id = u32_at(p), bits = u32_at(p + 4);
    if ((!id && !bits) || id >= (uint32_t)v->n_vocab) return -1;
    *score = f32_from_bits(bits);
    return (int32_t)id;
}

static const patch_feature *patched(const infer_patch *p, int layer, int feature)
{
    const patch_feature *list;
    int n = p ? patch_layer(p, layer, &list) : 0;
    for (int i = 0; i < n; i++)
        if (list[i].feature == feature) return &list[i];
    return NULL;
}

feature_label searcher_label(const infer_vindex *v, const infer_patch *p, int layer, int feature)
{
    feature_label l = { .relation = relation_of(v, layer, feature) };
    l.token = pair_at(v, layer, feature, -1, &l.score);
    if (l.token >= 0) l.target = searcher_token(v, l.token);
    const patch_feature *f = patched(p, layer, feature);
    if (!f) return l;
    if (f->deleted) return (feature_label){ .token = -1 };
    if (f->relation) l.relation = f->relation;
    if (f->token >= 0 || f->target) {
        l.token = f->token;
        l.target = f->target ? f->target : searcher_token(v, f->token);
        l.score = f->confidence;
    }
    return l;
}

int infer_vindex_feature(const infer_vindex *v, const infer_patch *patch, int layer, int feature,
                         infer_token_score *tokens, int n)
{
    if (layer < 0 || layer >= v->n_layers) return 0;
    int count = 0;
    const patch_feature *f = patched(patch, layer, feature);
    if (f && f->deleted) return 0;
    if (f && f->token >= 0) {
        if (n > 0) tokens[count++] = (infer_token_score){ f->token, f->confidence };
        return count;
    }
    for (int i = 0; i < v->top_k && count < n; i++) {
        float score;
        int32_t id = pair_at(v, layer, feature, i, &score);
        if (id >= 0) tokens[count++] = (infer_token_score){ id, score };
    }
    return count;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Column c of a matrix, a value of each row. */
static void column(float *y, const tensor *t, int c)
{
    const quant_format *f = quant_formats[t->type];
    float block[256];
    size_t at = (size_t)(c / f->block_size) * (size_t)f->block_bytes;
    for (int r = 0; r < t->n_rows; r++) {
        f->dequant(block, t->data + (size_t)r * t->row_bytes + at, (size_t)f->block_size);
        y[r] = block[c % f->block_size];
    }
}

/* The first d_model values of a row, which may be padded. */
static void unpadded(float *y, const infer_vindex *v, const tensor *t, int row)
{
    const quant_format *f = quant_formats[t->type];
    const uint8_t *p = t->data + (size_t)row * t->row_bytes;
    int whole = v->d_model / f->block_size * f->block_size;
    float block[256];
    f->dequant(y, p, (size_t)whole);
    if (whole == v->d_model) return;
    f->dequant(block, p + (size_t)(whole / f->block_size) * (size_t)f->block_bytes,
               (size_t)f->block_size);
    memcpy(y + whole, block, (size_t)(v->d_model - whole) * sizeof *y);
}

void vindex_row(float *y, const infer_vindex *v, const infer_patch *p, int layer, int feature,
                vindex_part part)
{
    const vindex_layer *x = &v->layers[layer];
    const patch_feature *f = patched(p, layer, feature);
    const float *own = !f                    ? NULL
                       : part == VINDEX_UP   ? f->up
                       : part == VINDEX_DOWN ? f->down
                                             : f->gate;
    size_t bytes = (size_t)v->d_model * sizeof *y;
    if (own) {
        memcpy(y, own, bytes);
    } else if ((f && f->deleted && part == VINDEX_GATE) || feature < 0 ||
               feature >= x->n_features) {
        memset(y, 0, bytes);
    } else if (part == VINDEX_GATE && tensor_present(&x->gate)) {
        unpadded(y, v, &x->gate, feature);
    } else if (part == VINDEX_UP && tensor_present(&x->up)) {
        unpadded(y, v, &x->up, feature);
    } else if (part == VINDEX_DOWN && tensor_present(&x->down_rows)) {
        unpadded(y, v, &x->down_rows, feature);
    } else if (part == VINDEX_DOWN && tensor_present(&x->down)) {
        int per = x->n_experts ? x->per_expert : x->n_features;
        tensor slice = tensor_slice(&x->down, feature / per);
        column(y, &slice, feature % per);
    } else {
        memset(y, 0, bytes);
    }
}

/* ---- searching ------------------------------------------------------------------------------- */

static infer_status layer_ready(const infer_vindex *v, int layer, infer_error *err)
{
    if (layer < 0 || layer >= v->n_layers)
        return error_set(err, INFER_ARGUMENT, "layer %d: expected 0 to %d", layer, v->n_layers - 1);
    const vindex_layer *x = &v->layers[layer];
    if (!x->n_features || !tensor_present(&x->gate))
        return error_set(err, INFER_UNSUPPORTED, "%s: layer %d has no gates", v->path, layer);
    return INFER_OK;
}

/* The features that a search is of. */
static infer_status choose_range(const vindex_layer *x, int expert, int *first, int *count,
                                 infer_error *err)
{
    *first = 0;
    *count = x->n_features;
    if (!expert) return INFER_OK;
    if (expert < 0 || expert > x->n_experts)
        return error_set(err, INFER_ARGUMENT, "expert %d: expected 1 to %d", expert, x->n_experts);
    *first = (expert - 1) * x->per_expert;
    *count = x->per_expert;
    return INFER_OK;
}

static infer_status fill_query(const infer_vindex *v, int layer, bool contribution, knn_query *q,
                               infer_error *err)
{
    const vindex_layer *x = &v->layers[layer];
    q->w = &x->gate;
    q->x_cols = v->d_model;
    if (!contribution) return INFER_OK;
    q->gate_bias = x->gate_bias;
    if (v->gated && !tensor_present(&x->up))
        return error_set(err, INFER_UNSUPPORTED,
                         "%s: layer %d has no up rows: extract it with --level inference", v->path,
                         layer);
    if (v->gated) q->up = x->up;
    q->up_bias = x->up_bias;
    q->act = v->act;
    return down_norms(v, layer, &q->norms, err);
}

typedef struct graph_job {
    const infer_vindex *v;
    int layer, expert; // expert 0: all
    const float *x;
    int n_rows, n;
    knn_hit *hits; // [n_rows, n]
    int *counts;
    _Atomic infer_status status;
} graph_job;

static void insert_hit(knn_hit *hits, int *count, int n, knn_hit h)
{
    if (isnan(h.score)) return;
    float mag = fabsf(h.score);
    int at = *count;
    while (at > 0 && (fabsf(hits[at - 1].score) < mag ||
                      (fabsf(hits[at - 1].score) == mag && hits[at - 1].row > h.row)))
        at--;
    if (at >= n) return;
    int last = *count < n ? (*count)++ : n - 1;
    memmove(hits + at + 1, hits + at, (size_t)(last - at) * sizeof *hits);
    hits[at] = h;
}

static void graph_thread(void *arg, int thread, int n_threads)
{
    graph_job *j = arg;
    const infer_vindex *v = j->v;
    const vindex_layer *x = &v->layers[j->layer];
    int ef = v->ef_search > j->n ? v->ef_search : j->n, begin, end;
    thread_share(j->n_rows, 1, thread, n_threads, &begin, &end);
    if (begin >= end) return;
    graph_search *s = take_search(v, ef, NULL);
    knn_hit *part = mem_alloc((size_t)j->n, sizeof *part);
    if (!s || !part) {
        j->status = INFER_NOMEM;
        end = begin;
    }
    int first = j->expert ? j->expert - 1 : 0, last = j->expert ? j->expert : n_parts(x);
    for (int r = begin; r < end; r++) {
        knn_hit *hits = j->hits + (size_t)r * (size_t)j->n;
        j->counts[r] = 0;
        for (int i = first; i < last; i++) {
            tensor rows = part_rows(x, i);
            int n = graph_find(v->search->graphs[j->layer][i], s, part, j->n, &rows,
                               j->x + (size_t)r * (size_t)v->d_model, v->d_model, ef);
            for (int h = 0; h < n; h++) {
                part[h].row += i * x->per_expert;
                insert_hit(hits, &j->counts[r], j->n, part[h]);
            }
        }
    }
    mem_free(part);
    if (s) give_search(v, s);
}

/* Without a patch: n best rows of each x. */
static infer_status find(const infer_vindex *v, int layer, const float *x, int n_rows,
                         knn_hit *hits, int *counts, int n, const infer_knn_options *o,
                         infer_error *err)
{
    knn_query q = { .x = x, .n_queries = n_rows };
    const struct searcher *s = v->search;
    if (s->graphs && s->graphs[layer] && !o->contribution && !o->scan) {
        graph_job j = { .v = v,
                        .layer = layer,
                        .expert = o->expert,
                        .x = x,
                        .n_rows = n_rows,
                        .n = n,
                        .hits = hits,
                        .counts = counts };
        if (n_rows == 1)
            graph_thread(&j, 0, 1);
        else
            knn_run(s->scan, graph_thread, &j);
        return j.status ? error_set(err, j.status, "search: out of memory") : INFER_OK;
    }
    infer_status st = choose_range(&v->layers[layer], o->expert, &q.first, &q.count, err);
    if (st == INFER_OK) st = fill_query(v, layer, o->contribution, &q, err);
    return st == INFER_OK ? knn_best(s->scan, hits, counts, n, &q, err) : st;
}

/* The score of a patched feature as a scan would give it. */
static infer_status patched_score(const infer_vindex *v, int layer, const patch_feature *f,
                                  const float *x, bool contribution, float *row, float *score,
                                  infer_error *err)
{
    const vindex_layer *l = &v->layers[layer];
    size_t d = (size_t)v->d_model;
    float *up = row + d;
    tensor gate = { .name = "patch",
                    .type = DT_F32,
                    .n_rows = 1,
                    .n_cols = v->d_model,
                    .n_slices = 1,
                    .row_bytes = d * sizeof(float) };
    if (f->gate)
        memcpy(row, f->gate, d * sizeof *row);
    else
        vindex_row(row, v, NULL, layer, f->feature, VINDEX_GATE);
    gate.data = (const uint8_t *)row;
    knn_query q = { .w = &gate, .count = 1, .x = x, .n_queries = 1 };
    float length = 0;
    if (contribution) {
        q.gate_bias = l->gate_bias ? l->gate_bias + f->feature : NULL;
        double sum = 0;
        vindex_row(row + 2 * d, v, NULL, layer, f->feature, VINDEX_DOWN);
        const float *down = f->down ? f->down : row + 2 * d;
        for (size_t i = 0; i < d; i++)
            sum += (double)down[i] * (double)down[i];
        length = (float)sqrt(sum);
        q.norms = &length;
        q.act = v->act;
        if (v->gated) {
            if (f->up)
                memcpy(up, f->up, d * sizeof *up);
            else
                vindex_row(up, v, NULL, layer, f->feature, VINDEX_UP);
            q.up = gate;
            q.up.data = (const uint8_t *)up;
            q.up_bias = l->up_bias ? l->up_bias + f->feature : NULL;
        }
    }
    return knn_scores(v->search->scan, score, &q, err);
}

/* hits of the base [count of n + n_patched] with the patch laid over, in place; the count. */
static infer_status overlay(const infer_vindex *v, int layer, const float *x, knn_hit *hits,
                            int *count, int n, const infer_knn_options *o, int first, int end,
                            infer_error *err)
{
    const patch_feature *list;
    int n_patched = patch_layer(o->patch, layer, &list), kept = 0;
    float *rows = mem_alloc(3 * (size_t)v->d_model, sizeof *rows);
    if (!rows) return error_set(err, INFER_NOMEM, "search: out of memory");
    for (int i = 0; i < *count; i++)
        if (!patched(o->patch, layer, hits[i].row)) hits[kept++] = hits[i];
    if (kept > n) kept = n;
    infer_status st = INFER_OK;
    for (int i = 0; st == INFER_OK && i < n_patched; i++) {
        if (list[i].deleted || list[i].feature < first || list[i].feature >= end) continue;
        knn_hit h = { .row = list[i].feature };
        st = patched_score(v, layer, &list[i], x, o->contribution, rows, &h.score, err);
        if (st == INFER_OK) insert_hit(hits, &kept, n, h);
    }
    mem_free(rows);
    *count = kept;
    return st;
}

infer_status infer_vindex_knn_batch(const infer_vindex *v, int layer, const float *x, int n_rows,
                                    infer_hit *hits, int *counts, int n,
                                    const infer_knn_options *options, infer_error *err)
{
    infer_knn_options o = { 0 };
    if (options) o = *options;
    if (!v || !x || !hits || !counts || n < 0 || n_rows < 0)
        return error_set(err, INFER_ARGUMENT, "infer_vindex_knn: NULL or negative argument");
    infer_status st = layer_ready(v, layer, err);
    if (st != INFER_OK) return st;
    vindex_layer *l = &v->layers[layer];
    int first, count;
    st = choose_range(l, o.expert, &first, &count, err);
    if (st != INFER_OK) return st;
    const patch_feature *list;
    int stride = n, wide = n + (o.patch ? patch_layer(o.patch, layer, &list) : 0);
    if (wide > count) wide = count;
    if (wide < n) n = wide;
    atomic_fetch_add(&l->accesses, 1);
    memset(counts, 0, (size_t)n_rows * sizeof *counts);
    if (!n || !n_rows) return error_clear(err);
    knn_hit *found = mem_alloc((size_t)n_rows * (size_t)(wide + 1), sizeof *found);
    if (!found) return error_set(err, INFER_NOMEM, "search: out of memory");
    st = find(v, layer, x, n_rows, found, counts, wide, &o, err);
    for (int r = 0; st == INFER_OK && r < n_rows; r++) {
        knn_hit *h = found + (size_t)r * (size_t)wide;
        if (o.patch)
            st = overlay(v, layer, x + (size_t)r * (size_t)v->d_model, h, &counts[r], n, &o, first,
                         first + count, err);
        for (int i = 0; st == INFER_OK && i < counts[r]; i++) {
            feature_label f = searcher_label(v, o.patch, layer, h[i].row);
            hits[(size_t)r * (size_t)stride + (size_t)i] = (infer_hit){ .layer = layer,
                                                                        .feature = h[i].row,
                                                                        .score = h[i].score,
                                                                        .token = f.token,
                                                                        .label = f.relation };
        }
    }
    mem_free(found);
    return st == INFER_OK ? error_clear(err) : st;
}

static int knn_one(const infer_vindex *v, int layer, const float *x, infer_hit *hits, int n,
                   const infer_knn_options *o, infer_error *err)
{
    int count;
    return infer_vindex_knn_batch(v, layer, x, 1, hits, &count, n, o, err) == INFER_OK ? count : -1;
}

int infer_vindex_knn(const infer_vindex *v, const infer_patch *patch, int layer, const float *x,
                     infer_hit *hits, int n, infer_error *err)
{
    infer_knn_options o = { .patch = patch };
    return knn_one(v, layer, x, hits, n, &o, err);
}

int infer_vindex_knn_contribution(const infer_vindex *v, int layer, const float *x, infer_hit *hits,
                                  int n, infer_error *err)
{
    infer_knn_options o = { .contribution = true };
    return knn_one(v, layer, x, hits, n, &o, err);
}

infer_status infer_vindex_scores(const infer_vindex *v, int layer, const float *x, int n_rows,
                                 float *scores, infer_error *err)
{
    if (!v || !x || !scores || n_rows < 0)
        return error_set(err, INFER_ARGUMENT, "infer_vindex_scores: NULL or negative argument");
    infer_status st = layer_ready(v, layer, err);
    if (st != INFER_OK) return st;
    knn_query q = { .count = v->layers[layer].n_features, .x = x, .n_queries = n_rows };
    st = fill_query(v, layer, false, &q, err);
    atomic_fetch_add(&v->layers[layer].accesses, 1);
    if (st == INFER_OK) st = knn_scores(v->search->scan, scores, &q, err);
    return st == INFER_OK ? error_clear(err) : st;
}

int infer_vindex_route(const infer_vindex *v, int layer, const float *x, infer_token_score *experts,
                       int n, infer_error *err)
{
    if (layer < 0 || layer >= v->n_layers) {
        error_set(err, INFER_ARGUMENT, "layer %d: expected 0 to %d", layer, v->n_layers - 1);
        return -1;
    }
    const vindex_layer *l = &v->layers[layer];
    if (!tensor_present(&l->router)) {
        error_set(err, INFER_UNSUPPORTED, "%s: layer %d has no router", v->path, layer);
        return -1;
    }
    float *scores = mem_alloc((size_t)l->router.n_rows, sizeof *scores);
    if (!scores) {
        error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
        return -1;
    }
    knn_query q = { .w = &l->router,
                    .count = l->router.n_rows,
                    .x = x,
                    .n_queries = 1,
                    .x_cols = v->d_model,
                    .gate_bias = l->router_bias };
    int count = 0;
    if (knn_scores(v->search->scan, scores, &q, err) != INFER_OK) count = -1;
    double sum = 0;
    for (int e = 0; count >= 0 && e < l->router.n_rows; e++) { // best first, ties to the lowest
        int at = count < n ? count : n;
        if (isnan(scores[e])) continue;
        while (at > 0 && experts[at - 1].score < scores[e])
            at--;
        if (at >= n) continue;
        int last = count < n ? count++ : n - 1;
        memmove(experts + at + 1, experts + at, (size_t)(last - at) * sizeof *experts);
        experts[at] = (infer_token_score){ e, scores[e] };
    }
    float most = count > 0 ? experts[0].score : 0;
    for (int i = 0; i < count; i++)
        sum += exp((double)experts[i].score - (double)most);
    for (int i = 0; i < count; i++)
        experts[i].score = (float)(exp((double)experts[i].score - (double)most) / sum);
    mem_free(scores);
    if (count >= 0) error_clear(err);
    return count;
}

/* ---- graphs: saving, checking ---------------------------------------------------------------- */

static infer_status graphs_there(const infer_vindex *v, infer_error *err)
{
    if (v->search->graphs) return INFER_OK;
    return error_set(err, INFER_ARGUMENT, "%s: opened without graphs", v->path);
}

bool infer_vindex_graphs_mapped(const infer_vindex *v) { return v->search->file != NULL; }

infer_status infer_vindex_save_graphs(const infer_vindex *v, infer_error *err)
{
    struct searcher *s = v->search;
    infer_status st = graphs_there(v, err);
    if (st != INFER_OK) return st;
    int most = 0, n = 0;
    for (int l = 0; l < v->n_layers; l++)
        most += n_parts(&v->layers[l]);
    graph_entry *entries = mem_alloc((size_t)most, sizeof *entries);
    tensor *rows = mem_alloc((size_t)most, sizeof *rows);
    arena mem = { 0 };
    char *path = arena_printf(&mem, "%s/" GRAPH_FILE, v->path);
    if (!entries || !rows || !path) st = error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    for (int l = 0; st == INFER_OK && l < v->n_layers; l++)
        for (int i = 0; s->graphs[l] && i < n_parts(&v->layers[l]); i++, n++) {
            rows[n] = part_rows(&v->layers[l], i);
            entries[n] = (graph_entry){ l, i, s->graphs[l][i], &rows[n] };
        }
    if (st == INFER_OK) st = graph_file_write(path, entries, n, err);
    mem_free(entries);
    mem_free(rows);
    arena_free(&mem);
    return st;
}

enum { CHECK_BEST = 10 };

/* n token embeddings, spread over the vocabulary, brought to a root mean square of 1. */
static float *check_queries(const infer_vindex *v, int n)
{
    size_t d = (size_t)v->d_model;
    float *x = mem_alloc((size_t)n * d, sizeof *x);
    for (int i = 0; x && i < n; i++) {
        float *row = x + (size_t)i * d;
        double sum = 0;
        tensor_row(row, &v->embed, (int)((int64_t)v->n_vocab * i / n));
        for (size_t j = 0; j < d; j++)
            sum += (double)row[j] * (double)row[j];
        double scale = sum > 0 ? sqrt((double)d / sum) : 0;
        for (size_t j = 0; j < d; j++)
            row[j] = (float)((double)row[j] * scale);
    }
    return x;
}

infer_status infer_vindex_check_graphs(const infer_vindex *v, int n, float *recall,
                                       infer_error *err)
{
    infer_status st = graphs_there(v, err);
    if (st == INFER_OK && v->search->file) st = graph_file_check(v->search->file, err);
    if (st != INFER_OK) return st;
    if (n < 1) return error_set(err, INFER_ARGUMENT, "infer_vindex_check_graphs: %d queries", n);
    size_t size = (size_t)n * CHECK_BEST;
    float *x = check_queries(v, n);
    infer_hit *want = mem_alloc(size, sizeof *want), *got = mem_alloc(size, sizeof *got);
    int *n_want = mem_alloc((size_t)n, sizeof *n_want),
        *n_got = mem_alloc((size_t)n, sizeof *n_got);
    if (!x || !want || !got || !n_want || !n_got)
        st = error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    for (int l = 0; st == INFER_OK && l < v->n_layers; l++) {
        recall[l] = 1;
        if (!v->search->graphs[l]) continue;
        int k = v->layers[l].n_features < CHECK_BEST ? v->layers[l].n_features : CHECK_BEST;
        int right = 0, all = 0;
        infer_knn_options scan = { .scan = true };
        st = infer_vindex_knn_batch(v, l, x, n, want, n_want, k, &scan, err);
        if (st == INFER_OK) st = infer_vindex_knn_batch(v, l, x, n, got, n_got, k, NULL, err);
        for (int i = 0; st == INFER_OK && i < n; i++) {
            all += n_want[i];
            for (int a = 0; a < n_want[i]; a++)
                for (int b = 0; b < n_got[i]; b++)
                    right += want[i * k + a].feature == got[i * k + b].feature;
        }
        if (all) recall[l] = (float)right / (float)all;
    }
    mem_free(x);
    mem_free(want);
    mem_free(got);
    mem_free(n_want);
    mem_free(n_got);
    return st == INFER_OK ? error_clear(err) : st;
}
