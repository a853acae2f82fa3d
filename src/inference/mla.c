/*
 * mla.c: multi-head latent attention (DeepSeek-V2, 2024) in its absorbed form: the cache holds one
 * latent vector and one rotated key a position; each head's query is taken into latent space, attends
 * there as if all heads shared one KV head, and its result is taken out again. The same numbers as with
 * expanded keys and values, for a fraction of the cache.
 */
#include <string.h>

#include "inference/engine.h"

/* Copies columns [from, from + width) of rows; by rows. */
static void copy_columns(const worker *w, float *y, size_t y_stride, const float *x, size_t x_stride,
                         int n_rows, int width)
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

void mla_project(const worker *w, infer_engine *e, const layer_plan *l)
{
    const backend *be = e->be;
    const mla_plan *m = l->mla;
    workspace *ws = &e->ws;
    int n = e->step.n_rows, wide = m->n_nope + m->n_rope;
    act h = act_rows(&ws->h, n, e->model->d_model);
    be->matmul(w, ws->k, ws->kv_stride, &m->kv_a, &h, e->exact);
    project_q(w, e, l);

    for (int head = 0; head < l->n_heads; head++) {
        float *q = ws->q + (size_t)head * l->head_dim;
        const float *from = ws->wide_q + (size_t)head * wide;
        act in = act_rows(&ws->head_in, n, m->n_nope);
        copy_columns(w, in.x, in.stride, from, ws->wide_q_stride, n, m->n_nope);
        copy_columns(w, q + m->n_latent, ws->q_stride, from + m->n_nope, ws->wide_q_stride, n,
                     m->n_rope);
        be->prepare(w, &in);
        be->barrier(w);
        be->matmul(w, q, ws->q_stride, &m->k_up[head], &in, e->exact);
        be->barrier(w);
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
    int n = e->step.n_rows;
    for (int head = 0; head < l->n_heads; head++) {
        act in = act_rows(&ws->head_in, n, m->n_latent);
        copy_columns(w, in.x, in.stride, ws->att.x + (size_t)head * m->n_latent, ws->att.stride, n,
                     m->n_latent);
        be->prepare(w, &in);
        be->barrier(w);
        be->matmul(w, ws->values.x + (size_t)head * m->n_value, ws->values.stride, &m->v_up[head],
                   &in, e->exact);
        be->barrier(w);
    }
}
