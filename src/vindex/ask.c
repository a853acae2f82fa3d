/*
 * ask.c: questions in words: what an entity's embedding sets off in the gates, and what the
 * features that it sets off speak for.
 *
 * Thresholds are on raw scores of embeddings that no layer has worked on: they rank, they do not
 * prove. What is counted as readable is said at is_readable.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "vindex/relations.h"
#include "vindex/search.h"

#define DESCRIBE_HITS 20 // features of a layer that are looked at

/* ---- layers ---------------------------------------------------------------------------------- */

/* First and last layer of a band; without bands in the index two fifths, two fifths, the rest, and
 * below eight layers all. */
static void band_layers(const infer_vindex *v, int band, int *first, int *last)
{
    infer_vindex_info info = infer_vindex_describe_index(v);
    int n = v->n_layers, syntax = 2 * n / 5, knowledge = 4 * n / 5;
    int ends[4] = { 0, syntax, knowledge, n };
    *first = 0;
    *last = n - 1;
    if (info.bands[2][1] > 0) {
        *first = info.bands[band][0];
        *last = info.bands[band][1];
    } else if (n >= 8) {
        *first = ends[band];
        *last = ends[band + 1] - 1;
    }
    if (*last >= n) *last = n - 1;
}

static infer_status query_layers(const infer_vindex *v, const infer_query *q, int *first, int *last,
                                 infer_error *err)
{
    static const char *const names[] = { "syntax", "knowledge", "output" };
    if (q->first_layer || q->last_layer) {
        *first = q->first_layer;
        *last = q->last_layer == -1 ? q->first_layer : q->last_layer;
        if (*first >= 0 && *first <= *last && *last < v->n_layers) return INFER_OK;
        return error_set(err, INFER_ARGUMENT, "layers %d-%d: expected layers of 0 to %d", *first,
                         *last, v->n_layers - 1);
    }
    const char *band = q->band ? q->band : "knowledge";
    *first = 0;
    *last = v->n_layers - 1;
    if (!strcmp(band, "all")) return INFER_OK;
    for (int i = 0; i < 3; i++)
        if (!strcmp(band, names[i])) {
            band_layers(v, i, first, last);
            return INFER_OK;
        }
    return error_set(err, INFER_ARGUMENT, "band '%s': expected syntax, knowledge, output or all",
                     band);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

static bool same_text(const char *a, const char *b)
{
    while (*a && lower(*a) == lower(*b))
        a++, b++;
    return lower(*a) == lower(*b);
}

static bool contains(const char *text, const char *part)
{
    for (; *text; text++) {
        size_t i = 0;
        while (part[i] && lower(text[i]) == lower(part[i]))
            i++;
        if (!part[i]) return true;
    }
    return !*part;
}

/* A word or a number: at least two bytes, none of them control or punctuation but - and '; no
 * marker like <bos>. Letters beyond ASCII are letters, whatever their script. */
static bool is_readable(const char *s)
{
    size_t n = strlen(s);
    if (n < 2) return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool word =
            c >= 0x80 || (c >= '0' && c <= '9') || (lower(s[i]) >= 'a' && lower(s[i]) <= 'z');
        if (!word && c != ' ' && c != '-' && c != '\'') return false;
    }
    return true;
}

const char *infer_vindex_token(const infer_vindex *v, int32_t token)
{
    return searcher_token(v, token);
}

/* ---- query vectors --------------------------------------------------------------------------- */

infer_status infer_vindex_embed(const infer_vindex *v, const char *text, bool last, float *x,
                                infer_error *err)
{
    if (!v || !text || !x)
        return error_set(err, INFER_ARGUMENT, "infer_vindex_embed: NULL argument");
    if (!v->tok)
        return error_set(err, INFER_UNSUPPORTED, "%s: no tokenizer: extract it again", v->path);
    int32_t *ids = NULL;
    size_t n = 0, used = 0, d = (size_t)v->d_model;
    tok_options o = { .no_special = !last };
    infer_status st = tok_encode(v->tok, &ids, &n, text, strlen(text), &o, err);
    if (st != INFER_OK) return st;
    float *row = mem_alloc(d, sizeof *row);
    double *sum = mem_zero(d, sizeof *sum);
    if (!row || !sum) st = error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    for (size_t i = last && n ? n - 1 : 0; st == INFER_OK && i < n; i++) {
        if (ids[i] < 0 || ids[i] >= v->n_vocab) continue;
        tensor_row(row, &v->embed, ids[i]);
        for (size_t j = 0; j < d; j++)
            sum[j] += (double)row[j];
        used++;
    }
    for (size_t j = 0; st == INFER_OK && used && j < d; j++)
        x[j] = (float)(sum[j] / (double)used) * v->embed_scale;
    if (st == INFER_OK && !used)
        st = error_set(err, INFER_ARGUMENT, "'%s': no token of the vocabulary", text);
    mem_free(ids);
    mem_free(row);
    mem_free(sum);
    return st == INFER_OK ? error_clear(err) : st;
}

/* ---- edges ----------------------------------------------------------------------------------- */

typedef struct edge_list {
    infer_edge *v;
    size_t n, cap;
} edge_list;

/* The edge of the same target, or a new one; relations are not told apart: the strongest's is kept.
 */
static infer_status join(edge_list *list, const infer_edge *e, infer_error *err)
{
    for (size_t i = 0; i < list->n; i++) {
        infer_edge *old = &list->v[i];
        if (!same_text(old->target, e->target)) continue;
        infer_edge joined = e->score > old->score ? *e : *old;
        joined.n_features = old->n_features + 1;
        joined.first_layer = old->first_layer < e->layer ? old->first_layer : e->layer;
        joined.last_layer = old->last_layer > e->layer ? old->last_layer : e->layer;
        if (!joined.relation) joined.relation = e->relation ? e->relation : old->relation;
        *old = joined;
        return INFER_OK;
    }
    infer_status st = mem_reserve((void **)&list->v, &list->cap, list->n + 1, sizeof *e, err);
    if (st == INFER_OK) list->v[list->n++] = *e;
    return st;
}

static int by_score(const void *a, const void *b)
{
    const infer_edge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->layer != y->layer) return x->layer - y->layer;
    return x->feature - y->feature;
}

static int by_layer(const void *a, const void *b)
{
    const infer_edge *x = a, *y = b;
    if (x->layer != y->layer) return x->layer - y->layer;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->feature - y->feature;
}

/* Moves up to n edges out; the count. */
static int give(edge_list *list, infer_edge *edges, int n, int (*order)(const void *, const void *))
{
    if (list->n) qsort(list->v, list->n, sizeof *list->v, order);
    int count = list->n < (size_t)n ? (int)list->n : n;
    if (count > 0) memcpy(edges, list->v, (size_t)count * sizeof *edges);
    mem_free(list->v);
    return count;
}

/* The features of a layer that answer to x most, by q's measure; the count, -1 on error. */
static int strongest(const infer_vindex *v, const infer_query *q, int layer, const float *x,
                     knn_hit *best, infer_error *err)
{
    const vindex_layer *l = &v->layers[layer];
    size_t n = (size_t)l->n_features, d = (size_t)v->d_model;
    const float *mean = NULL, *deviation = NULL;
    const patch_feature *list;
    int count = -1, n_patched = q->patch ? patch_layer(q->patch, layer, &list) : 0;
    float *scores = mem_alloc(n, sizeof *scores), *row = mem_alloc(d, sizeof *row);
    infer_status st = scores && row ? infer_vindex_scores(v, layer, x, 1, scores, err)
                                    : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    if (st == INFER_OK && q->contrast) st = searcher_baseline(v, layer, &mean, &deviation, err);
    for (size_t f = 0; st == INFER_OK && f < n; f++) {
        if (!(scores[f] > 0)) // a gate that is negative does not fire
            scores[f] = NAN;
        else if (q->contrast)
            scores[f] = deviation[f] > 0 ? (scores[f] - mean[f]) / deviation[f] : NAN;
    }
    for (int i = 0; st == INFER_OK && i < n_patched; i++) {
        float score, m = 0, s = 1;
        vindex_row(row, v, q->patch, layer, list[i].feature, VINDEX_GATE);
        tensor w = { .name = "gate",
                     .data = (const uint8_t *)row,
                     .type = DT_F32,
                     .n_rows = 1,
                     .n_cols = v->d_model,
                     .n_slices = 1,
                     .row_bytes = d * sizeof *row };
        knn_query one = { .w = &w, .count = 1, .x = x, .n_queries = 1 };
        st = knn_scores(searcher_scan(v), &score, &one, err);
        if (st == INFER_OK && q->contrast) st = searcher_baseline_of(v, row, &m, &s, err);
        if (st == INFER_OK && list[i].feature >= 0 && (size_t)list[i].feature < n)
            scores[list[i].feature] = score > 0 && s > 0 ? (score - m) / s : NAN;
    }
    for (size_t f = 0; st == INFER_OK && f < n; f++)
        if (!(scores[f] > 0) || scores[f] < q->min_score) scores[f] = NAN;
    if (st == INFER_OK) count = knn_top(best, DESCRIBE_HITS, scores, (int)n, 0);
    mem_free(scores);
    mem_free(row);
    return count;
}

int infer_vindex_describe(const infer_vindex *v, const char *entity, infer_edge *edges, int n,
                          const infer_query *query, infer_error *err)
{
    infer_query q = { 0 };
    infer_error own;
    if (!err) err = &own;
    if (query) q = *query;
    int first = 0, last = -1;
    if (!v || !entity || (!edges && n > 0) || n < 0) {
        error_set(err, INFER_ARGUMENT, "infer_vindex_describe: NULL or negative argument");
        return -1;
    }
    float *x = mem_alloc((size_t)v->d_model, sizeof *x);
    infer_status st = x ? query_layers(v, &q, &first, &last, err)
                        : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    if (st == INFER_OK) st = infer_vindex_embed(v, entity, false, x, err);
    edge_list list = { 0 };
    for (int l = first; st == INFER_OK && l <= last; l++) {
        knn_hit best[DESCRIBE_HITS];
        if (!v->layers[l].n_features) continue;
        int count = strongest(v, &q, l, x, best, err);
        if (count < 0) st = err->code;
        for (int i = 0; st == INFER_OK && i < count; i++) {
            feature_label f = searcher_label(v, q.patch, l, best[i].row);
            if (!f.target || !is_readable(f.target) || same_text(f.target, entity)) continue;
            if (q.relation && (!f.relation || !same_text(f.relation, q.relation))) continue;
            infer_edge e = { .target = f.target,
                             .relation = f.relation,
                             .token = f.token,
                             .layer = l,
                             .feature = best[i].row,
                             .score = best[i].score,
                             .n_features = 1,
                             .first_layer = l,
                             .last_layer = l };
            st = join(&list, &e, err);
        }
    }
    mem_free(x);
    int count = give(&list, edges, n, by_score);
    if (st != INFER_OK) return -1;
    error_clear(err);
    return count;
}

int infer_vindex_walk(const infer_vindex *v, const char *prompt, infer_hit *hits, int n_per_layer,
                      const infer_query *query, infer_error *err)
{
    infer_query q = { 0 };
    infer_error own;
    if (!err) err = &own;
    if (query) q = *query;
    int first = 0, last = -1, total = 0;
    if (!v || !prompt || !hits || n_per_layer < 1) {
        error_set(err, INFER_ARGUMENT, "infer_vindex_walk: NULL or too small argument");
        return -1;
    }
    float *x = mem_alloc((size_t)v->d_model, sizeof *x);
    infer_status st = x ? query_layers(v, &q, &first, &last, err)
                        : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    if (st == INFER_OK) st = infer_vindex_embed(v, prompt, true, x, err);
    for (int l = first; st == INFER_OK && l <= last; l++) {
        if (!v->layers[l].n_features) continue;
        infer_hit *to = hits + total;
        int n = infer_vindex_knn(v, q.patch, l, x, to, n_per_layer, err), kept = 0;
        if (n < 0) st = err->code;
        for (int i = 0; i < n; i++) {
            if (fabsf(to[i].score) < q.min_score) continue;
            if (q.relation && (!to[i].label || !same_text(to[i].label, q.relation))) continue;
            to[kept++] = to[i];
        }
        total += kept;
    }
    mem_free(x);
    if (st != INFER_OK) return -1;
    error_clear(err);
    return total;
}

/* ---- select ---------------------------------------------------------------------------------- */

/* Whether tokens contain a text, asked once of each. */
typedef struct token_test {
    const infer_vindex *v;
    const char *text;
    uint8_t *known; // [n_vocab] 0: not yet, 1: no, 2: yes
} token_test;

static bool token_matches(token_test *t, int32_t id)
{
    if (id < 0 || id >= t->v->n_vocab) return false;
    if (!t->known[id]) t->known[id] = contains(searcher_token(t->v, id), t->text) ? 2 : 1;
    return t->known[id] == 2;
}

static bool feature_matches(token_test *t, const infer_patch *p, int layer, int feature,
                            const feature_label *f)
{
    infer_token_score tokens[64];
    if (!t->text || (f->target && contains(f->target, t->text))) return true;
    int n = infer_vindex_feature(t->v, p, layer, feature, tokens, 64);
    for (int i = 0; i < n; i++)
        if (token_matches(t, tokens[i].token)) return true;
    return false;
}

int infer_vindex_select(const infer_vindex *v, infer_edge *edges, int n, const infer_query *query,
                        infer_error *err)
{
    infer_query q = { .band = "all" };
    if (query) q = *query;
    if (!q.band && !q.first_layer && !q.last_layer) q.band = "all";
    int first = 0, last = -1;
    if (!v || (!edges && n > 0) || n < 0) {
        error_set(err, INFER_ARGUMENT, "infer_vindex_select: NULL or negative argument");
        return -1;
    }
    infer_status st = query_layers(v, &q, &first, &last, err);
    token_test test = { v, q.entity, mem_zero((size_t)v->n_vocab + 1, 1) };
    if (st == INFER_OK && !test.known)
        st = error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    edge_list list = { 0 };
    for (int l = first; st == INFER_OK && l <= last; l++)
        for (int f = 0; st == INFER_OK && f < v->layers[l].n_features; f++) {
            feature_label x = searcher_label(v, q.patch, l, f);
            if (!x.target || x.score < q.min_score) continue;
            if (q.relation && (!x.relation || !same_text(x.relation, q.relation))) continue;
            if (!feature_matches(&test, q.patch, l, f, &x)) continue;
            infer_edge e = { .target = x.target,
                             .relation = x.relation,
                             .token = x.token,
                             .layer = l,
                             .feature = f,
                             .score = x.score,
                             .n_features = 1,
                             .first_layer = l,
                             .last_layer = l };
            st = mem_reserve((void **)&list.v, &list.cap, list.n + 1, sizeof e, err);
            if (st == INFER_OK) list.v[list.n++] = e;
        }
    mem_free(test.known);
    int count = give(&list, edges, n, q.by_layer ? by_layer : by_score);
    if (st != INFER_OK) return -1;
    error_clear(err);
    return count;
}

/* ---- relations ------------------------------------------------------------------------------- */

typedef struct relation_list {
    infer_relation *v;
    size_t n, cap;
    float (*best)[3]; // scores of the examples
    size_t best_cap;
} relation_list;

static infer_status count_relation(relation_list *list, const feature_label *f, int layer,
                                   infer_error *err)
{
    size_t i = 0;
    while (i < list->n && strcmp(list->v[i].name, f->relation))
        i++;
    if (i == list->n) {
        infer_status st = mem_reserve((void **)&list->v, &list->cap, i + 1, sizeof *list->v, err);
        if (st == INFER_OK)
            st = mem_reserve((void **)&list->best, &list->best_cap, i + 1, sizeof *list->best, err);
        if (st != INFER_OK) return st;
        list->v[i] = (infer_relation){ .name = f->relation, .first_layer = layer };
        list->n++;
    }
    infer_relation *r = &list->v[i];
    if (!r->count || f->score > r->max_score) r->max_score = f->score;
    r->count++;
    r->last_layer = layer;
    if (!f->target || !is_readable(f->target)) return INFER_OK;
    int at = 3; // the strongest three, each target once
    for (int j = 0; j < 3 && r->examples[j]; j++)
        if (same_text(r->examples[j], f->target)) return INFER_OK;
    while (at > 0 && (!r->examples[at - 1] || list->best[i][at - 1] < f->score))
        at--;
    for (int j = 2; j > at; j--) {
        r->examples[j] = r->examples[j - 1];
        list->best[i][j] = list->best[i][j - 1];
    }
    if (at < 3) {
        r->examples[at] = f->target;
        list->best[i][at] = f->score;
    }
    return INFER_OK;
}

static int by_count(const void *a, const void *b)
{
    const infer_relation *x = a, *y = b;
    return x->count != y->count ? y->count - x->count : strcmp(x->name, y->name);
}

int infer_vindex_relations(const infer_vindex *v, infer_relation *relations, int n,
                           infer_error *err)
{
    relation_list list = { 0 };
    infer_status st = INFER_OK;
    for (int l = 0; st == INFER_OK && l < v->n_layers && v->labels; l++)
        for (int f = 0; st == INFER_OK && f < v->layers[l].n_features; f++) {
            if (!relation_of(v, l, f)) continue;
            feature_label x = searcher_label(v, NULL, l, f);
            st = count_relation(&list, &x, l, err);
        }
    if (list.n) qsort(list.v, list.n, sizeof *list.v, by_count);
    int count = list.n < (size_t)n ? (int)list.n : n;
    if (st == INFER_OK && count > 0) memcpy(relations, list.v, (size_t)count * sizeof *relations);
    mem_free(list.v);
    mem_free(list.best);
    if (st != INFER_OK) return -1;
    error_clear(err);
    return count;
}

/* ---- neighbours ------------------------------------------------------------------------------ */

int infer_vindex_neighbours(const infer_vindex *v, const char *text, infer_token_score *tokens,
                            int n, infer_error *err)
{
    if (!v || !text || (!tokens && n > 0) || n < 0) {
        error_set(err, INFER_ARGUMENT, "infer_vindex_neighbours: NULL or negative argument");
        return -1;
    }
    float *x = mem_alloc((size_t)v->d_model, sizeof *x);
    float *scores = mem_alloc((size_t)v->n_vocab, sizeof *scores);
    const float *norms = searcher_embed_norms(v);
    infer_status st = x && scores && norms
                          ? infer_vindex_embed(v, text, false, x, err)
                          : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    knn_query q = { .w = &v->embed, .count = v->n_vocab, .x = x, .n_queries = 1 };
    if (st == INFER_OK) st = knn_scores(searcher_scan(v), scores, &q, err);
    double sum = 0;
    for (int j = 0; st == INFER_OK && j < v->d_model; j++)
        sum += (double)x[j] * (double)x[j];
    float inverse = sum > 0 ? (float)(1 / sqrt(sum)) : 0;
    int count = 0;
    for (int32_t id = 0; st == INFER_OK && id < v->n_vocab; id++) {
        float cosine = norms[id] > 0 ? scores[id] / norms[id] * inverse : 0;
        if (isnan(cosine) || (count == n && (n == 0 || cosine <= tokens[n - 1].score))) continue;
        if (same_text(searcher_token(v, id), text)) continue;
        int at = count < n ? count++ : n - 1;
        for (; at > 0 && tokens[at - 1].score < cosine; at--)
            tokens[at] = tokens[at - 1];
        tokens[at] = (infer_token_score){ id, cosine };
    }
    mem_free(x);
    mem_free(scores);
    if (st != INFER_OK) return -1;
    error_clear(err);
    return count;
}
