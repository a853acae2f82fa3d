/*
 * altup.c: a residual stream of several streams (altup_plan in models/model.h). The first is ws->x,
 * which the layers work on; the others lie in ws->streams. And the learned augmented residual, a
 * low-rank map beside the attention.
 */
#include <math.h>

#include "inference/engine.h"

#define MAX_STREAMS 8

/* Row r of stream i. */
static float *stream_row(infer_engine *e, int i, int r)
{
    workspace *ws = &e->ws;
    if (i == 0) return ws->x + (size_t)r * ws->x_stride;
    return ws->streams + ((size_t)(i - 1) * e->max_rows + (size_t)r) * ws->x_stride;
}

static float magnitude(const float *x, int n, float least)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrtf(fmaxf((float)(sum / n), least));
}

/* ws->h = x, ready for matmul. Ends at a barrier. */
static act load_input(const worker *w, infer_engine *e, const float *x, const norm *n)
{
    act h = act_rows(&e->ws.h, e->step.n_rows, e->model->d_model);
    e->be->normalise(w, h.x, x, h.stride, h.n_rows, h.n_cols, n);
    e->be->prepare(w, &h);
    e->be->barrier(w);
    return h;
}

/* y, scaled to the magnitude of x; by rows. */
static void match_magnitude(const worker *w, infer_engine *e, float *y)
{
    workspace *ws = &e->ws;
    int d = e->model->d_model, begin, end;
    thread_share(e->step.n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *row = y + (size_t)r * ws->x_stride;
        float to = magnitude(ws->x + (size_t)r * ws->x_stride, d, 0),
              from = magnitude(row, d, 1e-5f);
        for (int i = 0; i < d; i++)
            row[i] = row[i] * to / from;
    }
}

void altup_open(const worker *w, infer_engine *e)
{
    const infer_model *m = e->model;
    norm plain = { .kind = NORM_NONE };
    act h = load_input(w, e, e->ws.x, &plain);
    for (int i = 1; i < m->n_streams; i++)
        e->be->matmul(w, stream_row(e, i, 0), e->ws.x_stride, &m->stream_in[i - 1], &h, e->exact);
    e->be->barrier(w);
    for (int i = 1; i < m->n_streams; i++)
        match_magnitude(w, e, stream_row(e, i, 0));
    e->be->barrier(w);
}

void altup_close(const worker *w, infer_engine *e)
{
    const infer_model *m = e->model;
    workspace *ws = &e->ws;
    norm plain = { .kind = NORM_NONE };
    int begin, end;
    for (int i = 1; i < m->n_streams; i++) {
        act h = load_input(w, e, stream_row(e, i, 0), &plain);
        e->be->matmul(w, stream_row(e, i, 0), ws->x_stride, &m->stream_out[i - 1], &h, e->exact);
        e->be->barrier(w);
        match_magnitude(w, e, stream_row(e, i, 0));
    }
    thread_share(e->step.n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *x = stream_row(e, 0, r);
        for (int i = 1; i < m->n_streams; i++) {
            const float *other = stream_row(e, i, r);
            for (int c = 0; c < m->d_model; c++)
                x[c] += other[c];
        }
        for (int c = 0; c < m->d_model; c++)
            x[c] /= (float)m->n_streams;
    }
    e->be->barrier(w);
}

/* ws->altup_router = router(norm(x)), before its tanh. Ends at a barrier. */
static void route_streams(const worker *w, infer_engine *e, const altup_plan *a)
{
    act h = load_input(w, e, e->ws.x, &a->router_norm);
    e->be->matmul(w, e->ws.altup_router, 64, &a->router, &h, true);
    e->be->barrier(w);
}

/* y[i] = coefficients[i] . tanh(router), n of them. */
static void coefficients(float *y, const infer_engine *e, int row, const float *of, int n)
{
    int n_streams = e->model->n_streams;
    float mode[MAX_STREAMS];
    for (int k = 0; k < n_streams; k++)
        mode[k] = tanhf(e->ws.altup_router[(size_t)row * 64 + k]);
    for (int i = 0; i < n; i++) {
        y[i] = 0;
        for (int k = 0; k < n_streams; k++)
            y[i] += of[i * n_streams + k] * mode[k];
    }
}

void altup_predict(const worker *w, infer_engine *e, const altup_plan *a)
{
    workspace *ws = &e->ws;
    int n = e->model->n_streams, d = e->model->d_model, begin, end;
    float c[MAX_STREAMS * MAX_STREAMS], x[MAX_STREAMS], *row[MAX_STREAMS];
    route_streams(w, e, a);
    thread_share(e->step.n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *first = ws->predicted + (size_t)r * ws->x_stride;
        coefficients(c, e, r, a->predict, n * n);
        for (int i = 0; i < n; i++)
            row[i] = stream_row(e, i, r);
        for (int k = 0; k < d; k++) {
            for (int j = 0; j < n; j++)
                x[j] = row[j][k];
            for (int i = 0; i < n; i++) {
                float sum = 0;
                for (int j = 0; j < n; j++)
                    sum += c[i * n + j] * x[j];
                row[i][k] = sum + x[i];
            }
            first[k] = row[0][k];
        }
    }
    e->be->barrier(w);
}

void altup_correct(const worker *w, infer_engine *e, const altup_plan *a)
{
    workspace *ws = &e->ws;
    int n = e->model->n_streams, d = e->model->d_model, begin, end;
    float c[MAX_STREAMS], *row[MAX_STREAMS];
    route_streams(w, e, a);
    thread_share(e->step.n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        const float *predicted = ws->predicted + (size_t)r * ws->x_stride;
        coefficients(c, e, r, a->correct, n);
        for (int i = 0; i < n; i++)
            row[i] = stream_row(e, i, r);
        for (int k = 0; k < d; k++) {
            float change = row[0][k] - predicted[k];
            row[0][k] = predicted[k] + change * (c[0] + 1);
            for (int i = 1; i < n; i++)
                row[i][k] += change * (c[i] + 1);
        }
    }
    e->be->barrier(w);
}

void altup_input(const worker *w, infer_engine *e, const altup_plan *a)
{
    act h = act_rows(&e->ws.h, e->step.n_rows, e->model->d_model);
    int begin, end;
    thread_share(h.n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        const float *x = stream_row(e, 0, r);
        float *y = h.x + (size_t)r * h.stride;
        for (int i = 0; i < h.n_cols; i++)
            y[i] = a->out_scale ? x[i] * a->out_scale[i] : x[i];
    }
    e->be->prepare(w, &h);
    e->be->barrier(w);
}

void altup_add(const worker *w, infer_engine *e, const float *y)
{
    for (int i = 1; i < e->model->n_streams; i++)
        e->be->add_scaled(w, stream_row(e, i, 0), y, e->ws.x_stride, e->step.n_rows,
                          e->model->d_model, 1.0f);
}

void laurel_branch(const worker *w, infer_engine *e, const laurel_plan *l)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    int n = e->step.n_rows, d = e->model->d_model;
    act h = act_rows(&ws->h, n, d), low = act_rows(&ws->laurel_low, n, l->left.w.n_rows);
    be->matmul(w, low.x, low.stride, &l->left, &h, e->exact);
    be->barrier(w);
    be->prepare(w, &low);
    be->barrier(w);
    be->matmul(w, ws->laurel, ws->x_stride, &l->right, &low, e->exact);
    be->barrier(w);
    be->normalise(w, ws->laurel, ws->laurel, ws->x_stride, n, d, &l->post_norm);
    be->add_scaled(w, ws->laurel, h.x, ws->x_stride, n, d, 1.0f);
    be->barrier(w);
}

void laurel_add(const worker *w, infer_engine *e)
{
    workspace *ws = &e->ws;
    int n = e->step.n_rows, d = e->model->d_model;
    e->be->add_scaled(w, ws->x, ws->laurel, ws->x_stride, n, d, 1.0f);
    e->be->scale(w, ws->x, ws->x_stride, n, d, (float)M_SQRT1_2); // both are whole streams
}
