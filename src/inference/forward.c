/*
 * forward.c: the forward pass: embedding, layers, final norm, logits. The only one: prompts,
 * generation, batches, captures and probes all come through here, as rows of a step.
 *
 * Runs in every thread of the device at once. Operations divide their work by rows, by heads or by
 * outputs (backend.h); a barrier stands wherever the next operation reads what other threads wrote.
 * What differs between models is data in the layer's plan.
 */
#include <string.h>

#include "inference/engine.h"

#define BARRIER() be->barrier(w)

/* Copies the residual stream into the caller's capture buffer; by rows. */
static void capture_hidden(const worker *w, const infer_engine *e, int layer)
{
    if (!e->capture.hidden) return;
    int n = e->step.n_rows, d_model = e->model->d_model, begin, end;
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        memcpy(e->capture.hidden + ((size_t)layer * n + r) * d_model,
               e->ws.x + (size_t)r * e->ws.x_stride, (size_t)d_model * sizeof(float));
}

/* Copies the FFN's input; by rows. */
static void capture_ffn(const worker *w, const infer_engine *e, int layer)
{
    if (!e->capture.ffn_in) return;
    int n = e->step.n_rows, d_model = e->model->d_model, begin, end;
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        memcpy(e->capture.ffn_in + ((size_t)layer * n + r) * d_model,
               e->ws.h.x + (size_t)r * e->ws.h.stride, (size_t)d_model * sizeof(float));
}

/* The step's spans with this layer's tiles. */
static const row_span *spans_of(const worker *w, const infer_engine *e, int layer)
{
    row_span *spans = e->layer_spans + (size_t)w->thread * e->max_rows;
    const kv_pool *p = &e->kv.pools[layer];
    for (int i = 0; i < e->step.n_spans; i++) {
        const kv_table *t = &e->step.span_seq[i]->kv.layers[layer];
        spans[i] = e->step.spans[i];
        spans[i].kv = (kv_view){ t->k,
                                 t->v,
                                 e->kv.k_type,
                                 e->kv.v_type,
                                 p->n_kv_heads,
                                 p->head_dim,
                                 p->head_dim_v,
                                 (p->k_bytes + p->v_bytes) / KV_TILE };
    }
    return spans;
}

/* Per-head norm and rotary embedding of queries or keys, in the plan's order; by heads. */
static void norm_and_rotate(const worker *w, infer_engine *e, const layer_plan *l, float *x,
                            size_t stride, int n_heads, const norm *per_head)
{
    const backend *be = e->be;
    const workspace *ws = &e->ws;
    int n = e->step.n_rows;
    bool normed = per_head->kind != NORM_NONE && !l->qk_norm_whole;
    if (normed && !l->qk_norm_after_rope)
        be->normalise_heads(w, x, stride, n, n_heads, l->head_dim, per_head, l->qk_norm_per_head);
    if (l->rope >= 0) {
        const rope_plan *r = &e->model->ropes[l->rope];
        size_t at = (size_t)l->rope * e->max_rows * ws->rope_stride;
        float *from = l->mla ? x + l->mla->n_latent : x; // only the last dimensions
        be->rope(w, from, stride, n, n_heads, l->head_dim, ws->cos + at, ws->sin + at, r->n_pairs,
                 r->gap, r->pairing);
    }
    if (normed && l->qk_norm_after_rope)
        be->normalise_heads(w, x, stride, n, n_heads, l->head_dim, per_head, l->qk_norm_per_head);
}

/* Normalises, rotates and stores this step's keys and values; by heads. */
static void store_kv(const worker *w, infer_engine *e, const layer_plan *l, const row_span *spans)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    int n = e->step.n_rows;
    if (!l->mla && !tensor_present(&l->v.w)) // V is the raw K projection: before norm and rotation
        be->copy_heads(w, ws->v, ws->kv_stride, ws->k, ws->kv_stride, n, l->n_kv_heads,
                       l->head_dim);
    norm_and_rotate(w, e, l, ws->k, ws->kv_stride, l->n_kv_heads, &l->k_norm);
    if (l->v_norm.kind != NORM_NONE)
        be->normalise_heads(w, ws->v, ws->kv_stride, n, l->n_kv_heads, l->head_dim_v, &l->v_norm,
                            false);
    be->kv_append(w, spans, e->step.n_spans, ws->k, ws->kv_stride, ws->v, ws->kv_stride);
}

/* ws->q, and ws->k and ws->v where the layer has its own, from ws->h. Ends at a barrier. */
static void project_qkv(const worker *w, infer_engine *e, const layer_plan *l, bool own_kv)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    int n = e->step.n_rows;
    act h = act_rows(&ws->h, n, e->model->d_model);
    be->matmul(w, ws->q, ws->q_stride, &l->q, &h, e->exact);
    if (own_kv) {
        be->matmul(w, ws->k, ws->kv_stride, &l->k, &h, e->exact);
        if (tensor_present(&l->v.w)) be->matmul(w, ws->v, ws->kv_stride, &l->v, &h, e->exact);
    }
    BARRIER();
    if (l->clip_qkv > 0) {
        float c = l->clip_qkv;
        be->clamp(w, ws->q, ws->q_stride, n, l->n_heads * l->head_dim, -c, c, 1, 0);
        be->clamp(w, ws->k, ws->kv_stride, n, l->n_kv_heads * l->head_dim, -c, c, 1, 0);
        be->clamp(w, ws->v, ws->kv_stride, n, l->n_kv_heads * l->head_dim_v, -c, c, 1, 0);
        BARRIER();
    }
    if (l->qk_norm_whole) {
        if (l->q_norm.kind != NORM_NONE)
            be->normalise(w, ws->q, ws->q, ws->q_stride, n, l->n_heads * l->head_dim, &l->q_norm);
        if (own_kv && l->k_norm.kind != NORM_NONE)
            be->normalise(w, ws->k, ws->k, ws->kv_stride, n, l->n_kv_heads * l->head_dim,
                          &l->k_norm);
        BARRIER();
    }
}

/* From the normed input ws->h to the branch's output ws->branch. */
static void attention_branch(const worker *w, infer_engine *e, int layer)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    const layer_plan *l = &e->layers[layer];
    int n = e->step.n_rows;
    bool own_kv = l->kv_source == layer;

    if (l->mla)
        mla_project(w, e, l);
    else
        project_qkv(w, e, l, own_kv);
    norm_and_rotate(w, e, l, ws->q, ws->q_stride, l->n_heads, &l->q_norm);
    const row_span *spans = spans_of(w, e, l->kv_source);
    if (own_kv) store_kv(w, e, l, spans);
    BARRIER();

    attention_args a = { .out = ws->att.x,
                         .out_stride = ws->att.stride,
                         .q = ws->q,
                         .q_stride = ws->q_stride,
                         .spans = spans,
                         .n_spans = e->step.n_spans,
                         .n_heads = l->n_heads,
                         .scale = l->attn_scale,
                         .softcap = l->attn_softcap,
                         .window = l->window,
                         .sinks = l->sinks,
                         .capture = e->capture.layer == layer ? e->capture.attention : NULL };
    be->attention(w, &a);
    BARRIER();

    act att = act_rows(&ws->att, n, l->n_heads * l->head_dim_v);
    if (l->mla) {
        mla_values(w, e, l);
        att = act_rows(&ws->values, n, l->n_heads * l->mla->n_value);
    }
    be->prepare(w, &att);
    BARRIER();
    be->matmul(w, ws->branch, ws->x_stride, &l->o, &att, e->exact);
    BARRIER();
}

/* branch → its norm → added to the residual stream; by rows. */
static void add_branch(const worker *w, infer_engine *e, float *branch, const norm *post,
                       float scale)
{
    int n = e->step.n_rows, d_model = e->model->d_model;
    if (post->kind != NORM_NONE)
        e->be->normalise(w, branch, branch, e->ws.x_stride, n, d_model, post);
    e->be->add_scaled(w, e->ws.x, branch, e->ws.x_stride, n, d_model, scale);
}

/* ws->h = norm(ws->x), ready for matmul; by rows, then a barrier. */
static void norm_input(const worker *w, infer_engine *e, const norm *pre)
{
    act h = act_rows(&e->ws.h, e->step.n_rows, e->model->d_model);
    e->be->normalise(w, h.x, e->ws.x, e->ws.x_stride, h.n_rows, h.n_cols, pre);
    e->be->prepare(w, &h);
    e->be->barrier(w);
}

/* Per-layer embedding: h += norm(project(act(gate(h)) * in[layer])). */
static void ple_branch(const worker *w, infer_engine *e, int layer)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    const infer_model *m = e->model;
    const layer_plan *l = &e->layers[layer];
    int n = e->step.n_rows, width = m->ple_width, begin, end;
    norm plain = { .kind = NORM_NONE };
    if (l->altup)
        altup_input(w, e, l->altup);
    else
        norm_input(w, e, &plain);
    act h = act_rows(&ws->h, n, m->d_model), in = act_rows(&ws->ple_in, n, width);
    be->matmul(w, in.x, in.stride, &l->ple->gate, &h, e->exact);
    BARRIER();
    be->glu(w, in.x, in.x, NULL, in.stride, n, width, l->ple->act);
    thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        const float *mine = ws->ple + (size_t)r * ws->ple_stride + (size_t)layer * width;
        for (int i = 0; i < width; i++)
            in.x[(size_t)r * in.stride + i] *= mine[i];
    }
    be->prepare(w, &in);
    BARRIER();
    be->matmul(w, ws->branch, ws->x_stride, &l->ple->project, &in, e->exact);
    BARRIER();
    if (l->altup) {
        be->normalise(w, ws->branch, ws->branch, ws->x_stride, n, m->d_model, &l->ple->post_norm);
        altup_add(w, e, ws->branch);
    } else {
        add_branch(w, e, ws->branch, &l->ple->post_norm, 1.0f);
    }
}

/* The per-layer inputs of all layers, from the token's table row and a projection of its embedding.
 */
static void ple_inputs(const worker *w, infer_engine *e)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    const infer_model *m = e->model;
    const step *s = &e->step;
    int width = m->ple_width, begin, end;
    norm plain = { .kind = NORM_NONE };
    norm_input(w, e, &plain);
    act h = act_rows(&ws->h, s->n_rows, m->d_model);
    be->matmul(w, ws->ple, ws->ple_stride, &m->ple_project, &h, e->exact);
    BARRIER();
    be->scale(w, ws->ple, ws->ple_stride, s->n_rows, m->n_layers * width, m->ple_project_scale);
    BARRIER();
    be->normalise_heads(w, ws->ple, ws->ple_stride, s->n_rows, m->n_layers, width, &m->ple_norm,
                        false);
    BARRIER();
    thread_share(s->n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *row = ws->ple + (size_t)r * ws->ple_stride;
        float *table = ws->ple_row + (size_t)w->thread * ws->ple_stride;
        if (s->ids[r] < 0) continue; // an embedding has no row in the table
        tensor_row(table, &m->ple_table, s->ids[r] < m->ple_table.n_rows ? s->ids[r] : 0);
        for (int i = 0; i < m->n_layers * width; i++)
            row[i] = (row[i] + table[i] * m->ple_table_scale) * m->ple_sum_scale;
    }
    BARRIER();
}

static void layer_forward(const worker *w, infer_engine *e, int layer)
{
    const backend *be = e->be;
    workspace *ws = &e->ws;
    const layer_plan *l = &e->layers[layer];

    pack_layer(w, e, layer);
    if (l->altup) altup_predict(w, e, l->altup);
    norm_input(w, e, &l->attn_norm);
    if (l->laurel) laurel_branch(w, e, l->laurel);
    attention_branch(w, e, layer);
    if (!l->parallel) add_branch(w, e, ws->branch, &l->post_attn_norm, l->residual_scale);
    if (l->laurel) laurel_add(w, e);

    if (l->ffn != FFN_NONE) {
        float *out = l->parallel ? ws->branch2 : ws->branch;
        norm_input(w, e, &l->ffn_norm);
        capture_ffn(w, e, layer);
        e->ffn[layer].run(w, e, &e->ffn[layer], out);
        if (l->parallel) add_branch(w, e, ws->branch, &l->post_attn_norm, l->residual_scale);
        add_branch(w, e, out, &l->post_ffn_norm, l->residual_scale);
    }
    if (l->altup) altup_correct(w, e, l->altup);
    if (l->ple) ple_branch(w, e, layer);
    if (l->layer_scale != 1.0f)
        be->scale(w, ws->x, ws->x_stride, e->step.n_rows, e->model->d_model, l->layer_scale);
}

static void embed_rows(const worker *w, infer_engine *e)
{
    const backend *be = e->be;
    const infer_model *m = e->model;
    step *s = &e->step;
    workspace *ws = &e->ws;
    rope_fill(w, e);
    int part = head_is_copied(e) ? TABLE_ROWS : s->n_rows;
    for (int r = 0; r < s->n_rows; r += part) {
        if (r) {
            BARRIER(); // nobody reads the table
            if (w->thread == 0) head_release_table(e);
        }
        int n = s->n_rows - r < part ? s->n_rows - r : part;
        be->embed(w, ws->x + (size_t)r * ws->x_stride, ws->x_stride, &m->embed, s->ids + r, n,
                  m->embed_scale);
    }
    if (part < s->n_rows) BARRIER(); // a part's rows were shared out otherwise than all are
    if (tensor_present(&m->pos_embed))
        be->add_rows(w, ws->x, ws->x_stride, &m->pos_embed, s->pos, s->n_rows);
    if (m->embed_norm.kind != NORM_NONE)
        be->normalise(w, ws->x, ws->x, ws->x_stride, s->n_rows, m->d_model, &m->embed_norm);
    if (m->ple_width) ple_inputs(w, e);
    if (m->n_streams) altup_open(w, e);
}

/* Final norm and head for the rows that want them. */
static void logits(const worker *w, infer_engine *e)
{
    const backend *be = e->be;
    const infer_model *m = e->model;
    workspace *ws = &e->ws;
    const step *s = &e->step;
    int begin, end;
    BARRIER(); // rows of x are read below by whoever owns the output row
    thread_share(s->n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        if (s->hidden_at[r] >= 0)
            memcpy(ws->hidden + (size_t)r * ws->x_stride, ws->x + (size_t)r * ws->x_stride,
                   (size_t)m->d_model * sizeof(float));
    if (!s->n_logits) return;

    act out = act_rows(&ws->out, s->n_logits, m->d_model);
    thread_share(s->n_logits, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++)
        memcpy(out.x + (size_t)i * out.stride, ws->x + (size_t)s->want_row[i] * ws->x_stride,
               (size_t)m->d_model * sizeof(float));
    be->normalise(w, out.x, out.x, out.stride, out.n_rows, m->d_model, &m->final_norm);
    be->prepare(w, &out);
    BARRIER();
    pack_layer(w, e, m->n_layers);
    head_run(w, e, &out);
}

static void forward(const worker *w, void *arg)
{
    infer_engine *e = arg;
    embed_rows(w, e);
    for (int l = 0; l < e->model->n_layers; l++) {
        // Each layer has a flag of its own: no thread can see a later layer's before it passed
        // here.
        if (w->thread == 0) atomic_store(&e->step.stop[l], atomic_load(&e->cancel));
        if (l && atomic_load(&e->step.stop[l - 1])) return;
        capture_hidden(w, e, l);
        layer_forward(w, e, l);
    }
    if (e->model->n_streams) altup_close(w, e);
    capture_hidden(w, e, e->model->n_layers);
    logits(w, e);
}

bool forward_run(infer_engine *e)
{
    for (int l = 0; l < e->model->n_layers; l++)
        atomic_store(&e->step.stop[l], 0);
    if (e->profiling)
        profile_run(e->profile, e->dev, forward, e);
    else
        e->be->run(e->dev, forward, e);
    for (int l = 0; l < e->model->n_layers; l++)
        if (atomic_load(&e->step.stop[l])) return false;
    return true;
}
