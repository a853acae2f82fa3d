/* ffn.c: the dense feed-forward network: gated (Shazeer 2020) or plain. */
#include <math.h>

#include "inference/engine.h"

void glu_rows(const worker *w, infer_engine *e, const layer_plan *l, float *gate, float *up,
              size_t stride, int n_rows, int width)
{
    if (l->glu_limit > 0) {
        // min(gate, limit) * sigmoid(alpha * gate) * (clamp(up) + 1), as silu(alpha * gate) / alpha
        float a = l->glu_alpha;
        e->be->clamp(w, gate, stride, n_rows, width, -INFINITY, l->glu_limit, a, 0);
        e->be->clamp(w, up, stride, n_rows, width, -l->glu_limit, l->glu_limit, 1 / a, 1 / a);
    }
    e->be->glu(w, gate, gate, up, stride, n_rows, width, l->act);
}

void sparsify(const worker *w, float *gate, size_t stride, int n_rows, int width, float cut)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *g = gate + (size_t)r * stride;
        double sum = 0, squares = 0;
        for (int i = 0; i < width; i++)
            sum += g[i];
        double mean = sum / width;
        for (int i = 0; i < width; i++)
            squares += (g[i] - mean) * (g[i] - mean);
        float least = (float)(mean + sqrt(squares / width) * cut);
        for (int i = 0; i < width; i++)
            g[i] = g[i] > least ? g[i] - least : 0;
    }
}

void ffn_forward(const worker *w, infer_engine *e, const layer_plan *l, float *out)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    int n = e->step.n_rows;
    bool gated = l->ffn == FFN_GATED;
    act h = act_rows(&ws->h, n, e->model->d_model), f = act_rows(&ws->ffn, n, l->d_ff);
    if (gated) be->matmul(w, ws->up, ws->ffn_stride, &l->up, &h, e->exact);
    be->matmul(w, f.x, ws->ffn_stride, gated ? &l->gate : &l->up, &h, e->exact);
    be->barrier(w);
    if (l->sparse) sparsify(w, f.x, ws->ffn_stride, n, l->d_ff, l->sparse_cut);
    glu_rows(w, e, l, f.x, gated ? ws->up : NULL, ws->ffn_stride, n, l->d_ff);
    be->prepare(w, &f);
    be->barrier(w);
    be->matmul(w, out, ws->x_stride, &l->down, &f, e->exact);
    be->barrier(w);
}

void dense_forward(const worker *w, infer_engine *e, const ffn_provider *f, float *out)
{
    ffn_forward(w, e, f->plan, out);
}
