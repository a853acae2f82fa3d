/*
 * mla.c: multi-head latent attention (DeepSeek-V2, 2024) in its absorbed form: the cache holds one
 * latent vector and one rotated key a position; each head's query is taken into latent space,
 * attends there as if all heads shared one KV head, and its result is taken out again. The same
 * numbers as with expanded keys and values, for a fraction of the cache.
 */
#include <string.h>

#include "inference/engine.h"

/* Copies columns [from, from + width) of rows; by rows. */
static void copy_columns(const worker *w, float *y, size_t y_stride, const float *x,
                         size_t x_stride, int n_rows, int width)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        memcpy(y + (size_t)r * y_stride, x + (size_t)r * x_stride, (size_t)width * sizeof(float));
}

static void project_q(const worker *w, infer_engine *e, const layer_plan *l)
{
    const backend *be = e->be;
    const mla_plan *m = l->mla;
    workspace *ws = &e->ws;
    int n = e->step.n_rows;
    act in = act_rows(&ws->h, n, e->model->d_model);
    if (tensor_present(&m->q_a.w)) {
        act low = act_rows(&ws->latent_q, n, m->q_a.w.n_rows);
        be->matmul(w, low.x, low.stride, &m->q_a, &in, e->exact);
        be->barrier(w);
        be->normalise(w, low.x, low.x, low.stride, n, low.n_cols, &m->q_a_norm);
        be->prepare(w, &low);
        be->barrier(w);
        in = low;
    }
    be->matmul(w, ws->wide_q, ws->wide_q_stride, &l->q, &in, e->exact);
    be->barrier(w);
}

/* Columns [first, first + n_cols) of a. Integer forms are right where first is a multiple of 32,
 * which holds wherever the weights that read them come in blocks. */
static act columns(const act *a, size_t first, int n_cols)
{
    act v = *a;
    v.x += first;
    v.q += first * ACT_PLANES;
    v.scale += first / 32;
    v.sum += first / 16;
    v.n_cols = n_cols;
    return v;
}

/* Queries [n_nope, n_rope] of each head: the former to ws->head_in, the latter to their place in
 * ws->q; by rows. */
static void split_q(const worker *w, infer_engine *e, const layer_plan *l, size_t head_stride)
{
    const mla_plan *m = l->mla;
    workspace *ws = &e->ws;
    int wide = m->n_nope + m->n_rope;
    for (int head = 0; head < l->n_heads; head++) {
        const float *from = ws->wide_q + (size_t)head * wide;
        copy_columns(w, ws->head_in.x + (size_t)head * head_stride, ws->head_in.stride, from,
                     ws->wide_q_stride, e->step.n_rows, m->n_nope);
        copy_columns(w, ws->q + (size_t)head * l->head_dim + m->n_latent, ws->q_stride,
                     from + m->n_nope, ws->wide_q_stride, e->step.n_rows, m->n_rope);
    }
}

void mla_project(const worker *w, infer_engine *e, const layer_plan *l)
{
    const backend *be = e->be;
    const mla_plan *m = l->mla;
    workspace *ws = &e->ws;
    int n = e->step.n_rows;
    act h = act_rows(&ws->h, n, e->model->d_model);
    be->matmul(w, ws->k, ws->kv_stride, &m->kv_a, &h, e->exact);
    project_q(w, e, l);

    size_t head_stride = row_stride(m->n_nope); // whole blocks, whatever the head's width
    act in = act_rows(&ws->head_in, n, l->n_heads * (int)head_stride);
    split_q(w, e, l, head_stride);
    be->prepare(w, &in);
    be->barrier(w);
    for (int head = 0; head < l->n_heads; head++) {
        act one = columns(&in, (size_t)head * head_stride, m->n_nope);
        be->matmul(w, ws->q + (size_t)head * l->head_dim, ws->q_stride, &m->k_up[head], &one,
                   e->exact);
    }
    // The latent is normed; its copy is V.
    be->normalise(w, ws->k, ws->k, ws->kv_stride, n, m->n_latent, &m->kv_norm);
    copy_columns(w, ws->v, ws->kv_stride, ws->k, ws->kv_stride, n, m->n_latent);
    be->barrier(w);
}

void mla_values(const worker *w, infer_engine *e, const layer_plan *l)
{
    const backend *be = e->be;
    const mla_plan *m = l->mla;
    workspace *ws = &e->ws;
    act att = act_rows(&ws->att, e->step.n_rows, l->n_heads * m->n_latent);
    be->prepare(w, &att);
    be->barrier(w);
    for (int head = 0; head < l->n_heads; head++) {
        act one = columns(&att, (size_t)head * m->n_latent, m->n_latent);
        be->matmul(w, ws->values.x + (size_t)head * m->n_value, ws->values.stride, &m->v_up[head],
                   &one, e->exact);
    }
    be->barrier(w);
}
