/*
 * moe.c: mixture of experts, for any number of rows at once: every row chooses its experts, the
 * pairs (row, expert) are sorted by expert into slots, each expert's matrices are read once for all
 * of its slots, and each row sums its own slots in the order of its choice, so that its result does
 * not depend on its neighbours.
 */
#include <string.h>

#include "inference/walk.h"

/* Slots of the step, sorted by expert, then by row; on one thread. */
static void sort_slots(infer_engine *e, const moe_plan *m)
{
    workspace *ws = &e->ws;
    int n = e->step.n_rows * m->n_used, at = 0;
    memset(ws->first_slot, 0, (size_t)(m->n_experts + 1) * sizeof(int));
    for (int i = 0; i < n; i++)
        ws->first_slot[ws->expert[i]]++;
    for (int x = 0; x <= m->n_experts; x++) { // counts to ends of the preceding expert
        int count = ws->first_slot[x];
        ws->first_slot[x] = at;
        at += count;
    }
    for (int i = 0; i < n; i++) {
        int s = ws->first_slot[ws->expert[i]]++;
        ws->slot[i] = s;
        ws->slot_row[s] = i / m->n_used;
    }
    for (int x = m->n_experts; x > 0; x--)
        ws->first_slot[x] = ws->first_slot[x - 1];
    ws->first_slot[0] = 0;
}

/* Rows [first, first + n) of a. */
static act slice(const act *a, int first, int n)
{
    act v = *a;
    size_t at = (size_t)first * a->stride;
    v.x += at;
    v.q += at * ACT_PLANES;
    v.scale += at / 32;
    v.sum += at / 16;
    v.n_rows = n;
    return v;
}

static void choose(const worker *w, infer_engine *e, const moe_plan *m)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    int n = e->step.n_rows, d_model = e->model->d_model;
    act in = act_rows(&ws->h, n, d_model);
    if (m->router_raw || m->router_norm.kind != NORM_NONE) {
        in = act_rows(&ws->router_in, n, d_model);
        be->normalise(w, in.x, m->router_raw ? ws->x : ws->h.x, ws->x_stride, n, d_model,
                      &m->router_norm);
        be->prepare(w, &in);
        be->barrier(w);
    }
    // A choice is not a sum: rounding the router's input could change it, so it is read as float32.
    be->matmul(w, ws->router, ws->router_stride, &m->router, &in, true);
    be->barrier(w);
    route_args a = { .logits = ws->router,
                     .stride = ws->router_stride,
                     .n_rows = n,
                     .n_experts = m->n_experts,
                     .n_used = m->n_used,
                     .n_groups = m->n_groups,
                     .n_groups_used = m->n_groups_used,
                     .score = (route_score)m->score,
                     .renormalise = m->renormalise,
                     .group_top2 = m->group_top2,
                     .weight_scale = m->weight_scale,
                     .select_bias = m->select_bias,
                     .expert_scale = m->expert_scale,
                     .expert = ws->expert,
                     .weight = ws->expert_weight };
    be->route(w, &a);
    be->barrier(w);
    if (w->thread == 0) sort_slots(e, m);
    be->barrier(w);
}

/* Slots' inputs to ws->slot_out. */
static void run_experts(const worker *w, infer_engine *e, const layer_plan *l)
{
    const backend *be = e->be;
    const moe_plan *m = l->moe;
    workspace *ws = &e->ws;
    int n_slots = e->step.n_rows * m->n_used;
    act in = act_rows(&ws->slots, n_slots, e->model->d_model);
    act f = act_rows(&ws->slot_ffn, n_slots, m->d_ff);
    bool gated = m->gate != NULL;
    for (int x = 0; x < m->n_experts; x++) {
        int first = ws->first_slot[x], n = ws->first_slot[x + 1] - first;
        if (!n) continue;
        act rows = slice(&in, first, n);
        size_t at = (size_t)first * f.stride;
        be->matmul(w, f.x + at, f.stride, gated ? &m->gate[x] : &m->up[x], &rows, e->exact);
        if (gated) be->matmul(w, ws->slot_up + at, f.stride, &m->up[x], &rows, e->exact);
    }
    be->barrier(w);
    glu_rows(w, e, l, f.x, gated ? ws->slot_up : NULL, f.stride, n_slots, m->d_ff);
    be->prepare(w, &f);
    be->barrier(w);
    for (int x = 0; x < m->n_experts; x++) {
        int first = ws->first_slot[x], n = ws->first_slot[x + 1] - first;
        if (!n) continue;
        act rows = slice(&f, first, n);
        be->matmul(w, ws->slot_out + (size_t)first * ws->x_stride, ws->x_stride, &m->down[x], &rows,
                   e->exact);
    }
    be->barrier(w);
}

/* The expert that every row uses, into ws->branch2, weighted by its own router where it has one. */
static void run_shared(const worker *w, infer_engine *e, const layer_plan *l)
{
    const backend *be = e->be;
    const moe_plan *m = l->moe;
    workspace *ws = &e->ws;
    int n = e->step.n_rows;
    act h = act_rows(&ws->h, n, e->model->d_model);
    layer_plan shared = *l;
    shared.gate = m->shared_gate;
    shared.up = m->shared_up;
    shared.down = m->shared_down;
    shared.d_ff = m->shared_d_ff;
    shared.ffn = tensor_present(&m->shared_gate.w) ? FFN_GATED : FFN_PLAIN;
    bool weighted = tensor_present(&m->shared_router.w);
    if (weighted) be->matmul(w, ws->shared_gate, 64, &m->shared_router, &h, true);
    ffn_forward(w, e, &shared, ws->branch2);
    if (weighted)
        be->sigmoid_rows(w, ws->branch2, ws->x_stride, ws->shared_gate, 64, n, e->model->d_model);
}

void moe_forward(const worker *w, infer_engine *e, const ffn_provider *f, float *out)
{
    const backend *be = e->be;
    const layer_plan *l = f->plan;
    const moe_plan *m = l->moe;
    workspace *ws = &e->ws;
    int n = e->step.n_rows, d_model = e->model->d_model;
    bool shared = tensor_present(&m->shared_up.w);
    if (shared) run_shared(w, e, l);
    if (m->with_dense) {
        if (f->walk && !f->walk->plain)
            walk_forward(w, e, f, ws->branch2);
        else
            ffn_forward(w, e, l, ws->branch2);
        be->normalise(w, ws->branch2, ws->branch2, ws->x_stride, n, d_model, &m->dense_norm);
    }
    choose(w, e, m);

    act h = act_rows(&ws->h, n, d_model), slots = act_rows(&ws->slots, n * m->n_used, d_model);
    if (m->expert_in_norm.kind != NORM_NONE) { // the experts' own view of the residual stream
        be->normalise(w, h.x, ws->x, ws->x_stride, n, d_model, &m->expert_in_norm);
        be->prepare(w, &h);
        be->barrier(w);
    }
    be->gather(w, &slots, &h, ws->slot_row);
    be->barrier(w);
    run_experts(w, e, l);
    be->combine(w, out, ws->x_stride, ws->slot_out, ws->slot, ws->expert_weight, n, m->n_used,
                d_model);
    if (m->expert_norm.kind != NORM_NONE)
        be->normalise(w, out, out, ws->x_stride, n, d_model, &m->expert_norm);
    if (shared || m->with_dense)
        be->add_scaled(w, out, ws->branch2, ws->x_stride, n, d_model, 1.0f);
    be->barrier(w);
}
