/*
 * ffn_walk.c: the FFN from a vindex: the same three matrices as the dense FFN, read where the index
 * has them, in the form that it has them in.
 *
 * The ladder, first that fits:
 *   no features in the layer        the model's own weights
 *   experts                         moe_forward on the index's matrices, edited ones copied
 *   experts beside a dense FFN      moe_forward, whose dense part is one of the following
 *   edits, sparse, down by features walk_forward below
 *   padded columns                  walk_forward, on inputs with zeros behind
 *   else                            dense_forward on the index's matrices: nothing is added
 *
 * Edits: gates and ups of edited features are computed anew from their own rows, deleted ones get
 * activation 0, and where a down row is the edit's own, the activation goes to that row in place of
 * the base's. Sparse (opt-in, approximate): activations whose |a| * |down row| is below the layer's
 * threshold, times the row's mean of them, are set to 0, and sum_rows does not read the rows that
 * are 0 everywhere.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "inference/walk.h"

/* ---- a step ---------------------------------------------------------------------------------- */

/* The input with zeros behind, for matrices with padded columns; by rows, then a barrier. */
static act padded_input(const worker *w, infer_engine *e, int h_cols)
{
    int n = e->step.n_rows, d_model = e->model->d_model, begin, end;
    act h = act_rows(&e->ws.h, n, d_model);
    if (h_cols == d_model) return h;
    act wide = act_rows(&e->ws.walk_in, n, h_cols);
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *to = wide.x + (size_t)r * wide.stride;
        memcpy(to, h.x + (size_t)r * h.stride, (size_t)d_model * sizeof(float));
        memset(to + d_model, 0, (size_t)(h_cols - d_model) * sizeof(float));
    }
    e->be->prepare(w, &wide);
    e->be->barrier(w);
    return wide;
}

static float row_dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return (float)sum;
}

/* Scores of edited features from their own rows; by rows. */
static void edit_scores(const worker *w, infer_engine *e, const struct walk_layer *x, float *gate,
                        float *up)
{
    int n = e->step.n_rows, d_model = e->model->d_model, begin, end;
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        const float *in = e->ws.h.x + (size_t)r * e->ws.h.stride;
        size_t at = (size_t)r * e->ws.ffn_stride;
        for (int i = 0; i < x->n_edits; i++) {
            const patch_feature *p = &x->edits[i];
            if (p->gate) gate[at + (size_t)p->feature] = row_dot(p->gate, in, d_model);
            if (p->up && up) up[at + (size_t)p->feature] = row_dot(p->up, in, d_model);
        }
    }
}

/* Activations of deleted features, and of those whose down row is the edit's own, leave the base's
 * sum; by rows. */
static void take_edits(const worker *w, infer_engine *e, const struct walk_layer *x, float *a)
{
    int n = e->step.n_rows, begin, end;
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        for (int i = 0; i < x->n_edits; i++) {
            const patch_feature *p = &x->edits[i];
            float *v = a + (size_t)r * e->ws.ffn_stride + p->feature;
            e->ws.walk_coef[(size_t)r * e->ws.walk_coef_stride + (size_t)i] = *v;
            if (p->deleted || p->down) *v = 0;
        }
}

/* And go to the rows of their own; by rows. */
static void add_edits(const worker *w, infer_engine *e, const struct walk_layer *x, float *out)
{
    int n = e->step.n_rows, begin, end;
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        for (int i = 0; i < x->n_edits; i++) {
            const patch_feature *p = &x->edits[i];
            float a = e->ws.walk_coef[(size_t)r * e->ws.walk_coef_stride + (size_t)i];
            float *y = out + (size_t)r * e->ws.x_stride;
            for (int c = 0; !p->deleted && p->down && c < e->model->d_model; c++)
                y[c] += a * p->down[c];
        }
}

/* The mean of |x[i]| * lengths[i]. */
static float mean_size(const float *x, const float *lengths, int n)
{
    float part[16] = { 0 };
    double sum = 0;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            part[k] += fabsf(x[i + k]) * lengths[i + k];
    for (; i < n; i++)
        sum += (double)(fabsf(x[i]) * lengths[i]);
    for (int k = 0; k < 16; k++)
        sum += (double)part[k];
    return (float)(sum / n);
}

/* Contributions that are small beside the row's others become 0, or are counted; by rows. Beside
 * the others: a norm after the FFN makes the sum of small ones as long as that of large ones.
 * `gate` holds what decides where by_gate. */
static void thin(const worker *w, infer_engine *e, const struct walk_layer *x, int d_ff, float *a,
                 const float *gate)
{
    int n = e->step.n_rows, begin, end;
    walk_counts *counts = e->walk_counts;
    uint64_t *bins =
        counts ? counts->bins +
                     ((size_t)w->thread * (size_t)counts->n_layers + (size_t)x->layer) * WALK_BINS
               : NULL;
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        size_t at = (size_t)r * e->ws.ffn_stride;
        const float *by = x->by_gate ? gate + at : a + at, *lengths = x->down_norm;
        float *to = a + at;
        float mean = mean_size(by, lengths, d_ff), cut = x->keep * mean;
        if (!(mean > 0 && mean < INFINITY)) continue; // nothing to choose by
        for (int f = 0; bins && f < d_ff; f++)
            bins[walk_bin(fabsf(by[f]) * lengths[f] / mean)]++;
        for (int f = 0; f < d_ff; f++)
            to[f] = fabsf(by[f]) * lengths[f] < cut ? 0 : to[f];
    }
}

void walk_forward(const worker *w, infer_engine *e, const ffn_provider *f, float *out)
{
    const backend *be = e->be;
    const struct walk_layer *x = f->walk;
    const layer_plan *l = f->plan;
    workspace *ws = &e->ws;
    int n = e->step.n_rows, begin, end;
    bool gated = l->ffn == FFN_GATED, thinned = x->down_norm != NULL;
    act h = padded_input(w, e, x->h_cols), a = act_rows(&ws->ffn, n, x->f_cols);
    float *up = gated ? ws->up : NULL;
    if (gated) be->matmul(w, ws->up, ws->ffn_stride, &l->up, &h, e->exact);
    be->matmul(w, a.x, ws->ffn_stride, gated ? &l->gate : &l->up, &h, e->exact);
    be->barrier(w);
    if (x->n_edits) edit_scores(w, e, x, a.x, up);
    if (l->sparse) sparsify(w, a.x, ws->ffn_stride, n, l->d_ff, l->sparse_cut);
    if (thinned && x->by_gate && gated) { // act(gate), kept beside the product
        be->glu(w, a.x, a.x, NULL, ws->ffn_stride, n, l->d_ff, l->act);
        thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
        for (int r = begin; r < end; r++)
            for (int i = 0; i < l->d_ff; i++) {
                size_t at = (size_t)r * ws->ffn_stride + (size_t)i;
                float g = a.x[at];
                a.x[at] = g * up[at];
                up[at] = g;
            }
        thin(w, e, x, l->d_ff, a.x, up);
    } else {
        glu_rows(w, e, l, a.x, up, ws->ffn_stride, n, l->d_ff);
        if (thinned) thin(w, e, x, l->d_ff, a.x, a.x);
    }
    if (x->n_edits) take_edits(w, e, x, a.x);
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end && x->f_cols > l->d_ff; r++)
        memset(a.x + (size_t)r * a.stride + l->d_ff, 0,
               (size_t)(x->f_cols - l->d_ff) * sizeof(float));
    if (x->rows) {
        be->barrier(w);
        be->sum_rows(w, out, ws->x_stride, e->model->d_model, x->rows, a.x, a.stride, n);
        be->barrier(w);
        for (int r = begin; r < end && x->bias; r++)
            for (int c = 0; c < e->model->d_model; c++)
                out[(size_t)r * ws->x_stride + (size_t)c] += x->bias[c];
    } else {
        be->prepare(w, &a);
        be->barrier(w);
        be->matmul(w, out, ws->x_stride, &l->down, &a, e->exact);
        be->barrier(w);
    }
    if (x->n_edits) {
        add_edits(w, e, x, out);
        be->barrier(w);
    }
}

/* ---- making the providers -------------------------------------------------------------------- */

static int padded(const tensor *t) { return tensor_present(t) ? t->n_cols : 0; }

static int max_of(int a, int b) { return a > b ? a : b; }

walk_widths walk_widths_of(const infer_model *m)
{
    walk_widths wd = { 0 };
    const infer_vindex *v = m->ffn_index;
    for (int l = 0; l < m->n_layers && l < v->n_layers; l++) {
        const patch_feature *edits;
        const vindex_layer *x = &v->layers[l];
        wd.h_cols = max_of(wd.h_cols, max_of(padded(&x->gate), padded(&x->up)));
        wd.f_cols = max_of(wd.f_cols, padded(&x->down));
        if (m->ffn_patch) wd.n_edits = max_of(wd.n_edits, patch_layer(m->ffn_patch, l, &edits));
    }
    return wd;
}

static infer_status wrong(infer_error *err, const infer_vindex *v, int layer, const char *what,
                          int expected, int found)
{
    return error_set(err, INFER_ARGUMENT,
                     "%s: layer %d: %s: expected the model's %d, found %d: is it another "
                     "model's index?",
                     v->path, layer, what, expected, found);
}

static infer_status lacks(infer_error *err, const infer_vindex *v, int layer, const char *what,
                          const char *how)
{
    return error_set(err, INFER_NOT_FOUND, "%s: layer %d has no %s: %s", v->path, layer, what, how);
}

/* The expert's matrices as a copy in float32. */
static infer_status copy_expert(infer_engine *e, linear *const *all, int n, infer_error *err)
{
    for (int k = 0; k < n; k++) {
        tensor *t = &all[k]->w;
        size_t row = (size_t)t->n_cols * sizeof(float);
        uint8_t *to = arena_alloc(&e->walk_mem, (size_t)t->n_rows, row);
        if (!to) return error_set(err, INFER_NOMEM, "walk: out of memory for an edited expert");
        for (int r = 0; r < t->n_rows; r++)
            tensor_row((float *)(void *)(to + (size_t)r * row), t, r);
        t->data = to;
        t->type = DT_F32;
        t->row_bytes = row;
    }
    return INFER_OK;
}

static void set_row(tensor *t, int row, const float *x)
{
    float *to = (float *)(uintptr_t)(t->data + (size_t)row * t->row_bytes);
    for (int i = 0; i < t->n_cols && x; i++)
        to[i] = x[i];
}

/* Edits of experts' features, in copies: few experts are edited, and a step has nothing to add.
 * all: gates, ups and downs of the experts; no gates: plain FFNs. */
static infer_status edit_experts(infer_engine *e, linear *all, int n, int per, bool gated,
                                 const patch_feature *edits, int n_edits, infer_error *err)
{
    int d = e->model->d_model;
    float *zeros = arena_zero(&e->walk_mem, (size_t)d, sizeof *zeros);
    if (!zeros) return error_set(err, INFER_NOMEM, "walk: out of memory for an edited expert");
    for (int i = 0, last = -1; i < n_edits; i++) {
        const patch_feature *p = &edits[i];
        int x = p->feature / per, f = p->feature % per;
        linear *down = &all[2 * n + x];
        infer_status st = INFER_OK;
        if (x != last) // edits ascend: each expert is copied once
            st = copy_expert(e, (linear *const[]){ &all[n + x], down, &all[x] }, 2 + gated, err);
        if (st) return st;
        last = x;
        const float *gate = p->deleted ? zeros : p->gate, *out = p->deleted ? zeros : p->down;
        if (gated) set_row(&all[x].w, f, gate);
        set_row(&all[n + x].w, f, gated ? p->up : gate);
        for (int r = 0; r < d && out; r++)
            ((float *)(uintptr_t)(down->w.data + (size_t)r * down->w.row_bytes))[f] = out[r];
    }
    return INFER_OK;
}

/* Experts: the index's matrices, cut into the experts' own. */
static infer_status open_experts(infer_engine *e, ffn_provider *f, const vindex_layer *x, int layer,
                                 infer_error *err)
{
    const infer_vindex *v = e->model->ffn_index;
    const layer_plan *l = &e->layers[layer];
    const moe_plan *from = l->moe;
    const patch_feature *edits;
    int d_model = e->model->d_model, n = from->n_experts;
    if (x->n_experts != n) return wrong(err, v, layer, "experts", n, x->n_experts);
    if (x->per_expert != from->d_ff)
        return wrong(err, v, layer, "features of an expert", from->d_ff, x->per_expert);
    if (!tensor_present(&x->down) || !tensor_present(&x->up))
        return lacks(err, v, layer, "up and down matrices",
                     "extract it at level inference and with --quant none");
    if (x->gate.n_cols != d_model || x->down.n_cols != from->d_ff)
        return error_set(err, INFER_UNSUPPORTED, "%s: layer %d: experts with padded columns",
                         v->path, layer);
    layer_plan *plan = arena_zero(&e->walk_mem, 1, sizeof *plan);
    moe_plan *moe = arena_zero(&e->walk_mem, 1, sizeof *moe);
    linear *all = arena_zero(&e->walk_mem, 3 * (size_t)n, sizeof *all);
    if (!plan || !moe || !all) return error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    for (int i = 0; i < n; i++) {
        all[i].w = tensor_rows(&x->gate, i * from->d_ff, from->d_ff);
        all[n + i].w = tensor_rows(&x->up, i * from->d_ff, from->d_ff);
        all[2 * n + i].w = tensor_slice(&x->down, i);
        if (from->gate) all[i].bias = from->gate[i].bias;
        all[n + i].bias = from->up[i].bias;
        all[2 * n + i].bias = from->down[i].bias;
    }
    int n_edits = e->model->ffn_patch ? patch_layer(e->model->ffn_patch, layer, &edits) : 0;
    if (n_edits) {
        bool gated = from->gate != NULL;
        infer_status st = edit_experts(e, all, n, from->d_ff, gated, edits, n_edits, err);
        if (st) return st;
    }
    *moe = *from;
    if (from->gate) moe->gate = all;
    moe->up = all + n;
    moe->down = all + 2 * n;
    *plan = *l;
    plan->moe = moe;
    *f = (ffn_provider){ moe_forward, plan, NULL };
    return INFER_OK;
}

/* Lengths of the down rows; the choice by the gate alone does not know them. */
static infer_status measure_rows(infer_engine *e, struct walk_layer *x, infer_error *err)
{
    int n = x->rows->n_rows, d = e->model->d_model;
    float *norms = arena_alloc(&e->walk_mem, (size_t)n, sizeof *norms);
    float *row = arena_alloc(&e->walk_mem, (size_t)x->rows->n_cols, sizeof *row);
    if (!norms || !row) return error_set(err, INFER_NOMEM, "%s: out of memory", x->index->path);
    for (int f = 0; f < n; f++) {
        tensor_row(row, x->rows, f);
        norms[f] = x->by_gate ? 1 : sqrtf(row_dot(row, row, d));
    }
    x->down_norm = norms;
    return INFER_OK;
}

static infer_status open_dense(infer_engine *e, ffn_provider *f, const vindex_layer *x, int layer,
                               const infer_engine_options *o, infer_error *err)
{
    const infer_model *m = e->model;
    const infer_vindex *v = m->ffn_index;
    const layer_plan *l = &m->layers[layer];
    bool gated = l->ffn == FFN_GATED, thinned = o->walk_keep || e->walk_counts;
    const tensor *first = gated ? &x->gate : tensor_present(&x->up) ? &x->up : &x->gate;
    if (x->n_features != l->d_ff) return wrong(err, v, layer, "features", l->d_ff, x->n_features);
    if (!tensor_present(first) || (gated && !tensor_present(&x->up)))
        return lacks(err, v, layer, "up matrix", "extract it again with --level inference");
    if (!tensor_present(&x->down) && !tensor_present(&x->down_rows))
        return lacks(err, v, layer, "down matrix", "extract it again with --level inference");
    if (thinned && !tensor_present(&x->down_rows))
        return lacks(err, v, layer, "down rows by features, which a sparse walk reads",
                     "make them with 'infer build-down-features'");
    if (gated && x->up.n_cols != x->gate.n_cols)
        return error_set(err, INFER_UNSUPPORTED, "%s: layer %d: gate rows of %d and up rows of %d",
                         v->path, layer, x->gate.n_cols, x->up.n_cols);
    layer_plan *plan = arena_zero(&e->walk_mem, 1, sizeof *plan);
    struct walk_layer *walk = arena_zero(&e->walk_mem, 1, sizeof *walk);
    if (!plan || !walk) return error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    *plan = *l;
    plan->gate = (linear){ gated ? x->gate : (tensor){ 0 }, gated ? x->gate_bias : NULL };
    plan->up = (linear){ gated ? x->up : *first, x->up_bias };
    plan->down = (linear){ x->down, x->down_bias };
    *walk = (struct walk_layer){ .index = v,
                                 .layer = layer,
                                 .h_cols = first->n_cols,
                                 .f_cols = l->d_ff,
                                 .bias = x->down_bias,
                                 .keep = o->walk_keep ? o->walk_keep[layer] : 0,
                                 .by_gate = o->walk_by_gate };
    if (thinned || !tensor_present(&x->down)) {
        walk->rows = &x->down_rows;
        plan->down = (linear){ 0 };
    } else {
        walk->f_cols = x->down.n_cols;
    }
    if (m->ffn_patch) walk->n_edits = patch_layer(m->ffn_patch, layer, &walk->edits);
    if (thinned) {
        infer_status st = measure_rows(e, walk, err);
        if (st) return st;
    }
    const tensor *down = walk->rows ? walk->rows : &x->down;
    snprintf(walk->path, sizeof walk->path, "walk %s, down %s%s%s%s",
             quant_formats[first->type]->name, quant_formats[down->type]->name,
             walk->rows ? " by features" : "", walk->n_edits ? ", edited" : "",
             o->walk_keep ? ", sparse" : "");
    walk->plain =
        !walk->rows && !walk->n_edits && walk->h_cols == m->d_model && walk->f_cols == l->d_ff;
    *f = (ffn_provider){ walk->plain ? dense_forward : walk_forward, plan, walk };
    return INFER_OK;
}

infer_status walk_open(infer_engine *e, const infer_engine_options *o, infer_error *err)
{
    const infer_model *m = e->model;
    const infer_vindex *v = m->ffn_index;
    if (v->n_layers != m->n_layers || v->d_model != m->d_model)
        return error_set(err, INFER_ARGUMENT,
                         "%s: expected an index of %d layers of width %d, found %d of %d", v->path,
                         m->n_layers, m->d_model, v->n_layers, v->d_model);
    if (o->walk_from < 0 || o->walk_from > m->n_layers)
        return error_set(err, INFER_ARGUMENT, "walk_from: expected 0 to %d, found %d", m->n_layers,
                         o->walk_from);
    if (o->walk_from && m->walk_only)
        return error_set(err, INFER_ARGUMENT,
                         "walk_from: layers before %d need the model's own weights, which "
                         "walk_only leaves out",
                         o->walk_from);
    for (int l = o->walk_from; l < m->n_layers; l++) {
        const vindex_layer *x = &v->layers[l];
        infer_status st = INFER_OK;
        if (m->layers[l].ffn == FFN_NONE) continue;
        if (!x->n_features && m->walk_only)
            return lacks(err, v, l, "features", "extract it again, or leave walk_only out");
        if (!x->n_features) continue;
        const moe_plan *moe = m->layers[l].moe;
        if (moe && !moe->with_dense)
            st = open_experts(e, &e->ffn[l], x, l, err);
        else
            st = open_dense(e, &e->ffn[l], x, l, o, err);
        if (moe && moe->with_dense) e->ffn[l].run = moe_forward; // the dense part is the index's
        if (st) return st;
    }
    return INFER_OK;
}

const char *infer_engine_ffn(const infer_engine *e, int layer)
{
    if (layer < 0 || layer >= e->model->n_layers) return NULL;
    const ffn_provider *f = &e->ffn[layer];
    if (f->walk) return f->walk->path;
    if (f->plan == &e->layers[layer]) return f->plan->moe ? "experts" : "weights";
    return "walk experts";
}
