/*
 * engine.c: engines and sequences: sizes and allocates everything that steps use, and infer_step,
 * which checks its rows, makes room for them and runs the forward pass over them.
 */
#include "inference/engine.h"
#include "inference/walk.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

#define DEFAULT_CTX 8192
#define DEFAULT_ROWS 256
#define DEFAULT_SEQUENCES 8
#define MAX_CTX (1 << 24)
#define MAX_ROWS (1 << 20)

/* ---- workspace ---- */

static void *ws_alloc(infer_engine *e, size_t rows, size_t stride, size_t size, bool *ok)
{
    workspace *ws = &e->ws;
    size_t n, bytes;
    if (!*ok || !mem_mul(rows, stride, &n) || !mem_mul(n, size, &bytes)) return *ok = false, NULL;
    assert(ws->n_blocks < COUNT_OF(ws->blocks));
    void *p = e->be->alloc(e->dev, bytes);
    if (!p) return *ok = false, NULL;
    ws->bytes += bytes;
    ws->blocks[ws->n_blocks].p = p;
    ws->blocks[ws->n_blocks++].bytes = bytes;
    return p;
}

static float *ws_floats(infer_engine *e, size_t rows, size_t stride, bool *ok)
{
    return ws_alloc(e, rows, stride, sizeof(float), ok);
}

static act ws_act(infer_engine *e, size_t rows, int width, bool *ok)
{
    size_t stride = row_stride(width);
    act a = { .stride = stride, .n_cols = width };
    a.x = ws_floats(e, rows, stride, ok);
    a.q = ws_alloc(e, rows, stride, ACT_PLANES, ok);
    a.scale = ws_floats(e, rows, stride / 32, ok);
    a.sum = ws_alloc(e, rows, stride / 16, sizeof(int32_t), ok);
    return a;
}

void *workspace_alloc(infer_engine *e, size_t n, size_t size)
{
    bool ok = true;
    return ws_alloc(e, n, 1, size, &ok);
}

static int max_of(int a, int b) { return a > b ? a : b; }

/* The widest of everything in the plan. */
typedef struct widths {
    int q, kv, att, ffn, pairs, cols, head_dim;
    int n_experts, n_used, expert_ffn;   // 0: no experts
    int q_rank, wide_q, head_in, values; // 0: no latent attention
    int laurel;                          // its rank; 0: none
    int walk_in, n_edits;                // padded input and edited features of an index
    bool two_branches;
} widths;

static void widen_by_moe(widths *w, const moe_plan *m)
{
    w->n_experts = max_of(w->n_experts, m->n_experts);
    w->n_used = max_of(w->n_used, m->n_used);
    w->expert_ffn = max_of(w->expert_ffn, m->d_ff);
    w->ffn = max_of(w->ffn, m->shared_d_ff);
    w->two_branches = true;
}

static void widen_by_mla(widths *w, const mla_plan *m, int n_heads)
{
    w->q_rank = max_of(w->q_rank, max_of(m->q_a.w.n_rows, 1));
    w->wide_q = max_of(w->wide_q, n_heads * (m->n_nope + m->n_rope));
    w->head_in = max_of(w->head_in, n_heads * (int)row_stride(m->n_nope));
    w->values = max_of(w->values, n_heads * m->n_value);
    w->cols = max_of(w->cols, max_of(m->n_nope, m->n_latent)); // one head at a time
}

static widths widths_of(const infer_model *m)
{
    widths w = { .pairs = 1 };
    for (int l = 0; l < m->n_layers; l++) {
        const layer_plan *p = &m->layers[l];
        w.q = max_of(w.q, p->n_heads * p->head_dim);
        w.kv = max_of(w.kv, p->n_kv_heads * max_of(p->head_dim, p->head_dim_v));
        w.att = max_of(w.att, p->n_heads * p->head_dim_v);
        w.ffn = max_of(w.ffn, p->d_ff);
        w.head_dim = max_of(w.head_dim, max_of(p->head_dim, p->head_dim_v));
        w.two_branches |= p->parallel;
        if (!p->mla) w.cols = max_of(w.cols, p->n_heads * p->head_dim_v);
        if (p->moe) widen_by_moe(&w, p->moe);
        if (p->mla) widen_by_mla(&w, p->mla, p->n_heads);
        if (p->laurel) w.laurel = max_of(w.laurel, p->laurel->left.w.n_rows);
    }
    if (m->ffn_index) {
        walk_widths x = walk_widths_of(m);
        w.walk_in = x.h_cols > m->d_model ? x.h_cols : 0;
        w.ffn = max_of(w.ffn, x.f_cols);
        w.n_edits = x.n_edits;
    }
    for (int i = 0; i < m->n_ropes; i++)
        w.pairs = max_of(w.pairs, m->ropes[i].n_pairs);
    const int inputs[] = {
        m->d_model, w.walk_in,    w.ffn,    w.expert_ffn,   w.q_rank,
        w.values,   m->ple_width, w.laurel, 2 * w.n_experts
    }; // the last: scratch of routing
    for (int i = 0; i < COUNT_OF(inputs); i++)
        w.cols = max_of(w.cols, inputs[i]);
    return w;
}

static void ws_open_moe(infer_engine *e, const widths *wd, bool *ok)
{
    workspace *ws = &e->ws;
    size_t rows = (size_t)e->max_rows, slots = rows * (size_t)wd->n_used;
    int d_model = e->model->d_model;
    ws->router_stride = row_stride(wd->n_experts);
    ws->slot_ffn_stride = row_stride(wd->expert_ffn);
    ws->router_in = ws_act(e, rows, d_model, ok);
    ws->router = ws_floats(e, rows, ws->router_stride, ok);
    ws->expert = ws_alloc(e, slots, 1, sizeof(int32_t), ok);
    ws->expert_weight = ws_floats(e, slots, 1, ok);
    ws->slot = ws_alloc(e, slots, 1, sizeof(int32_t), ok);
    ws->slot_row = ws_alloc(e, slots, 1, sizeof(int32_t), ok);
    ws->first_slot = ws_alloc(e, (size_t)wd->n_experts + 1, 1, sizeof(int), ok);
    ws->slots = ws_act(e, slots, d_model, ok);
    ws->slot_ffn = ws_act(e, slots, wd->expert_ffn, ok);
    ws->slot_up = ws_floats(e, slots, ws->slot_ffn_stride, ok);
    ws->slot_out = ws_floats(e, slots, ws->x_stride, ok);
    ws->shared_gate = ws_floats(e, rows, 64, ok);
}

static void ws_open_mla(infer_engine *e, const widths *wd, bool *ok)
{
    workspace *ws = &e->ws;
    size_t rows = (size_t)e->max_rows;
    ws->wide_q_stride = row_stride(wd->wide_q);
    ws->latent_q = ws_act(e, rows, wd->q_rank, ok);
    ws->wide_q = ws_floats(e, rows, ws->wide_q_stride, ok);
    ws->head_in = ws_act(e, rows, wd->head_in, ok);
    ws->values = ws_act(e, rows, wd->values, ok);
}

static void ws_open_streams(infer_engine *e, const widths *wd, bool *ok)
{
    workspace *ws = &e->ws;
    size_t rows = (size_t)e->max_rows;
    ws->streams = ws_floats(e, rows * (size_t)(e->model->n_streams - 1), ws->x_stride, ok);
    ws->predicted = ws_floats(e, rows, ws->x_stride, ok);
    ws->altup_router = ws_floats(e, rows, 64, ok);
    if (!wd->laurel) return;
    ws->laurel_low = ws_act(e, rows, wd->laurel, ok);
    ws->laurel = ws_floats(e, rows, ws->x_stride, ok);
}

static infer_status ws_open(infer_engine *e, const widths *wd, infer_error *err)
{
    workspace *ws = &e->ws;
    const infer_model *m = e->model;
    size_t rows = (size_t)e->max_rows, rope_rows = rows * (size_t)max_of(m->n_ropes, 1);
    bool ok = true;
    ws->x_stride = row_stride(m->d_model);
    ws->q_stride = row_stride(wd->q);
    ws->kv_stride = row_stride(wd->kv);
    ws->ffn_stride = row_stride(wd->ffn);
    ws->logits_stride = row_stride(m->n_vocab);
    ws->rope_stride = (size_t)wd->pairs;
    ws->x = ws_floats(e, rows, ws->x_stride, &ok);
    ws->h = ws_act(e, rows, m->d_model, &ok);
    ws->q = ws_floats(e, rows, ws->q_stride, &ok);
    ws->k = ws_floats(e, rows, ws->kv_stride, &ok);
    ws->v = ws_floats(e, rows, ws->kv_stride, &ok);
    ws->att = ws_act(e, rows, wd->att, &ok);
    ws->ffn = ws_act(e, rows, wd->ffn, &ok);
    ws->up = ws_floats(e, rows, ws->ffn_stride, &ok);
    ws->branch = ws_floats(e, rows, ws->x_stride, &ok);
    if (wd->walk_in) ws->walk_in = ws_act(e, rows, wd->walk_in, &ok);
    ws->walk_coef_stride = row_stride(wd->n_edits);
    if (wd->n_edits) ws->walk_coef = ws_floats(e, rows, ws->walk_coef_stride, &ok);
    if (wd->two_branches) ws->branch2 = ws_floats(e, rows, ws->x_stride, &ok);
    ws->cos = ws_floats(e, rope_rows, ws->rope_stride, &ok);
    ws->sin = ws_floats(e, rope_rows, ws->rope_stride, &ok);
    ws->hidden = ws_floats(e, rows, ws->x_stride, &ok);
    ws->out = ws_act(e, rows, m->d_model, &ok);
    ws->logits = ws_floats(e, rows, ws->logits_stride, &ok);
    if (wd->n_experts) ws_open_moe(e, wd, &ok);
    if (wd->q_rank) ws_open_mla(e, wd, &ok);
    if (m->n_streams) ws_open_streams(e, wd, &ok);
    if (m->ple_width) {
        ws->ple_stride = row_stride(m->n_layers * m->ple_width);
        ws->ple = ws_floats(e, rows, ws->ple_stride, &ok);
        ws->ple_row = ws_floats(e, (size_t)e->be->n_threads(e->dev), ws->ple_stride, &ok);
        ws->ple_in = ws_act(e, rows, m->ple_width, &ok);
    }
    return ok ? INFER_OK
              : error_set(err, INFER_NOMEM, "engine: no memory for steps of %d rows", e->max_rows);
}

static void ws_close(infer_engine *e)
{
    for (int i = 0; i < e->ws.n_blocks; i++)
        e->be->free(e->dev, e->ws.blocks[i].p, e->ws.blocks[i].bytes);
}

static infer_status step_open(infer_engine *e, infer_error *err)
{
    step *s = &e->step;
    size_t rows = (size_t)e->max_rows, threads = (size_t)e->be->n_threads(e->dev);
    s->ids = mem_zero(rows, sizeof *s->ids);
    s->pos = mem_zero(rows, sizeof *s->pos);
    s->rope_len = mem_zero(rows, sizeof *s->rope_len);
    s->want_row = mem_zero(rows, sizeof *s->want_row);
    s->logits_at = mem_zero(rows, sizeof *s->logits_at);
    s->hidden_at = mem_zero(rows, sizeof *s->hidden_at);
    s->spans = mem_zero(rows, sizeof *s->spans);
    s->span_seq = mem_zero(rows, sizeof *s->span_seq);
    s->stop = mem_zero((size_t)e->model->n_layers, sizeof *s->stop);
    e->layer_spans = mem_zero(rows * threads, sizeof *e->layer_spans);
    if (s->ids && s->pos && s->rope_len && s->want_row && s->logits_at && s->hidden_at &&
        s->spans && s->span_seq && s->stop && e->layer_spans)
        return INFER_OK;
    return error_set(err, INFER_NOMEM, "engine: out of memory");
}

static void step_close(infer_engine *e)
{
    step *s = &e->step;
    mem_free(s->ids);
    mem_free(s->pos);
    mem_free(s->rope_len);
    mem_free(s->want_row);
    mem_free(s->logits_at);
    mem_free(s->hidden_at);
    mem_free(s->spans);
    mem_free(s->span_seq);
    mem_free((void *)s->stop);
    mem_free(e->layer_spans);
}

/* ---- engine ---- */

/* value within 1..most, 0 meaning fallback. */
static infer_status option_int(const char *name, int value, int fallback, int most, int *out,
                               infer_error *err)
{
    if (value < 0 || value > most)
        return error_set(err, INFER_ARGUMENT, "%s: expected 1 to %d, found %d", name, most, value);
    *out = value ? value : fallback;
    return INFER_OK;
}

/* The type of K or V: what was asked for it, or for both, or the usual. */
static infer_status option_kv(const char *option, const char *name, bool exact, kv_type *type,
                              infer_error *err)
{
    *type = exact ? KV_F32 : KV_F16;
    if (!name) return INFER_OK;
    *type = kv_type_find(name);
    if (*type == KV_TYPE_COUNT)
        return error_set(err, INFER_ARGUMENT, "%s: expected " KV_TYPE_NAMES ", found '%s'", option,
                         name);
    if (exact && *type != KV_F32)
        return error_set(err, INFER_ARGUMENT, "%s: %s rounds, which exact forbids", option, name);
    return INFER_OK;
}

static infer_status read_options(infer_engine *e, const infer_engine_options *o, kv_type *k_type,
                                 kv_type *v_type, infer_error *err)
{
    int trained = e->model->n_ctx_train;
    int ctx = trained > 0 && trained < DEFAULT_CTX ? trained : DEFAULT_CTX;
    infer_status st;
    if ((st = option_int("n_ctx", o->n_ctx, ctx, MAX_CTX, &e->n_ctx, err)) ||
        (st = option_int("n_kv_tokens", o->n_kv_tokens, e->n_ctx, INT32_MAX - KV_TILE,
                         &e->n_kv_tokens, err)) ||
        (st = option_int("max_rows", o->max_rows, DEFAULT_ROWS, MAX_ROWS, &e->max_rows, err)) ||
        (st = option_int("max_sequences", o->max_sequences, DEFAULT_SEQUENCES, 1 << 16,
                         &e->max_sequences, err)))
        return st;
    if (tensor_present(&e->model->pos_embed) && e->n_ctx > e->model->pos_embed.n_rows)
        return error_set(err, INFER_ARGUMENT,
                         "n_ctx: expected at most the model's %d learned "
                         "positions, found %d",
                         e->model->pos_embed.n_rows, e->n_ctx);
    e->exact = o->exact;
    const char *k = o->kv_type_k, *v = o->kv_type_v;
    st = option_kv(k ? "kv_type_k" : "kv_type", k ? k : o->kv_type, o->exact, k_type, err);
    if (!st && !kv_takes_keys(*k_type))
        return error_set(err, INFER_UNSUPPORTED,
                         "kv cache: K as %s: expected f32, f16, bf16 or q8_0; only V takes %s",
                         kv_type_name(*k_type), kv_type_name(*k_type));
    return st ? st
              : option_kv(v ? "kv_type_v" : "kv_type", v ? v : o->kv_type, o->exact, v_type, err);
}

/* The layers, and their providers: the plan's own, then those of an index over them. */
static infer_status layers_open(infer_engine *e, const infer_engine_options *o, infer_error *err)
{
    const infer_model *m = e->model;
    e->layers = mem_alloc((size_t)m->n_layers, sizeof *e->layers);
    e->ffn = mem_zero((size_t)m->n_layers, sizeof *e->ffn);
    if (e->layers) memcpy(e->layers, m->layers, (size_t)m->n_layers * sizeof *e->layers);
    e->lm_head = m->head;
    if (!e->layers || !e->ffn) return error_set(err, INFER_NOMEM, "engine: out of memory");
    for (int l = 0; l < m->n_layers; l++)
        e->ffn[l] =
            (ffn_provider){ m->layers[l].moe ? moe_forward : dense_forward, &e->layers[l], NULL };
    return m->ffn_index ? walk_open(e, o, err) : INFER_OK;
}

infer_status infer_engine_new(infer_engine **out, const infer_model *model,
                              const infer_engine_options *options, infer_error *err)
{
    *out = NULL;
    infer_engine_options o = { 0 };
    if (options) o = *options;
    infer_engine *e = mem_zero(1, sizeof *e);
    if (!e) return error_set(err, INFER_NOMEM, "engine: out of memory");
    e->model = model;
    e->log = o.log;
    e->be = o.backend ? backend_find(o.backend) : default_backend();
    kv_type k_type = KV_F16, v_type = KV_F16;
    infer_status st = INFER_OK;
    if (!e->be || !e->be->available())
        st = error_set(err, INFER_UNSUPPORTED, "backend '%s': not on this machine or in this build",
                       o.backend ? o.backend : "default");
    if (!st) st = read_options(e, &o, &k_type, &v_type, err);
    widths wd = widths_of(model);
    device_options d = { o.n_threads, o.cpu_level, wd.cols, wd.head_dim };
    if (!st) st = e->be->open(&e->dev, &d, err);
    if (!st) st = ws_open(e, &wd, err);
    if (!st) st = step_open(e, err);
    if (!st) st = layers_open(e, &o, err);
    if (!st) st = head_open(e, err);
    if (!st) st = pack_open(e, err);
    if (!st)
        st = kv_open(&e->kv, e->be, e->dev, model, k_type, v_type, e->n_ctx, e->n_kv_tokens,
                     e->max_sequences, e->max_rows, err);
    if (st) {
        infer_engine_free(e);
        return st;
    }
    if (model->n_ctx_train > 0 && e->n_ctx > model->n_ctx_train)
        log_line(&e->log, INFER_LOG_WARN,
                 "%s: a context of %d, trained on %d: answers get worse past that", model->path,
                 e->n_ctx, model->n_ctx_train);
    e->be->device_info(e->dev, e->device_text, sizeof e->device_text);
    *out = e;
    return error_clear(err);
}

void infer_engine_free(infer_engine *e)
{
    if (!e) return;
    if (e->dev) {
        pack_close(e);
        head_close(e);
        kv_close(&e->kv);
        step_close(e);
        ws_close(e);
        e->be->close(e->dev);
    }
    profile_free(e->profile);
    mem_free(e->layers);
    mem_free(e->ffn);
    arena_free(&e->walk_mem);
    mem_free(e);
}

infer_engine_info infer_engine_describe(const infer_engine *e)
{
    return (infer_engine_info){ .backend = e->be->name,
                                .cpu_level = e->be->level(e->dev),
                                .device = e->device_text,
                                .n_threads = e->be->n_threads(e->dev),
                                .n_ctx = e->n_ctx,
                                .n_kv_tokens = e->n_kv_tokens,
                                .max_rows = e->max_rows,
                                .kv_bytes = e->kv.bytes,
                                .work_bytes = e->ws.bytes,
                                .repacked_bytes = head_bytes(e) + e->pack.packed,
                                .unread_bytes = e->step.searches ? e->head.unread : 0,
                                .kv_type_k = kv_type_name(e->kv.k_type),
                                .kv_type_v = kv_type_name(e->kv.v_type) };
}

infer_status infer_engine_profile(infer_engine *e, bool on, infer_error *err)
{
    if (on && !e->profile) {
        infer_status st = profile_new(&e->profile, e->kv.be, e, err);
        if (st) return st;
    }
    if (on) profile_reset(e->profile);
    e->profiling = on;
    e->be = on ? profile_backend(e->profile) : e->kv.be;
    return error_clear(err);
}

int infer_profile(const infer_engine *e, infer_profile_row *rows, int max)
{
    return e->profile ? profile_rows(e->profile, rows, max) : 0;
}

void infer_engine_cancel(infer_engine *e) { atomic_store(&e->cancel, 1); }

infer_status infer_engine_capture(infer_engine *e, const infer_capture *capture, infer_error *err)
{
    if (capture && capture->attention &&
        (capture->layer < 0 || capture->layer >= e->model->n_layers))
        return error_set(err, INFER_ARGUMENT, "capture: layer %d, expected 0 to %d", capture->layer,
                         e->model->n_layers - 1);
    e->capture = capture ? *capture : (infer_capture){ 0 };
    return error_clear(err);
}

/* ---- sequences ---- */

infer_sequence *infer_sequence_new(infer_engine *e, infer_error *err)
{
    if (e->n_sequences >= e->max_sequences) {
        error_set(err, INFER_LIMIT, "sequence: the engine has room for %d", e->max_sequences);
        return NULL;
    }
    infer_sequence *s = mem_zero(1, sizeof *s);
    if (!s || kv_sequence_new(&e->kv, &s->kv, err)) {
        if (!s) error_set(err, INFER_NOMEM, "sequence: out of memory");
        mem_free(s);
        return NULL;
    }
    s->engine = e;
    e->n_sequences++;
    error_clear(err);
    return s;
}

infer_sequence *infer_sequence_fork(infer_sequence *seq, infer_error *err)
{
    infer_sequence *s = infer_sequence_new(seq->engine, err);
    if (!s) return NULL;
    kv_fork(&seq->engine->kv, &s->kv, &seq->kv);
    s->rope_len = seq->rope_len;
    return s;
}

void infer_sequence_free(infer_sequence *seq)
{
    if (!seq) return;
    kv_sequence_free(&seq->engine->kv, &seq->kv);
    seq->engine->n_sequences--;
    mem_free(seq);
}

int infer_sequence_length(const infer_sequence *seq) { return seq->kv.length; }

uint64_t infer_sequence_read_bytes(const infer_sequence *seq)
{
    const infer_engine *e = seq->engine;
    uint64_t bytes = 0;
    for (int l = 0; l < e->model->n_layers; l++) {
        const kv_pool *p = &e->kv.pools[e->model->layers[l].kv_source];
        int n = seq->kv.length + 1;
        if (p->window && n > p->window) n = p->window;
        bytes += (uint64_t)n * ((p->k_bytes + p->v_bytes) / KV_TILE);
    }
    return bytes;
}

infer_status infer_sequence_truncate(infer_sequence *seq, int n, infer_error *err)
{
    infer_status st = kv_truncate(&seq->engine->kv, &seq->kv, n, err);
    return st ? st : error_clear(err);
}

infer_status infer_sequence_rope_length(infer_sequence *seq, int n, infer_error *err)
{
    if (n < 0)
        return error_set(err, INFER_ARGUMENT, "rope length: expected 0 or more, found %d", n);
    seq->rope_len = n;
    return error_clear(err);
}

/* ---- step ---- */

/* Checks the rows and writes the step; changes nothing else. */
static infer_status plan_step(infer_engine *e, const infer_row *rows, int n_rows, infer_error *err)
{
    step *s = &e->step;
    if (n_rows < 1 || n_rows > e->max_rows)
        return error_set(err, INFER_ARGUMENT, "step: expected 1 to %d rows, found %d", e->max_rows,
                         n_rows);
    s->n_rows = s->n_spans = s->n_logits = 0;
    for (int r = 0; r < n_rows; r++) {
        const infer_row *row = &rows[r];
        if (!row->seq || row->seq->engine != e)
            return error_set(err, INFER_ARGUMENT, "step: row %d: no sequence of this engine", r);
        if (!r || row->seq != rows[r - 1].seq) {
            for (int i = 0; i < s->n_spans; i++)
                if (s->span_seq[i] == row->seq)
                    return error_set(err, INFER_ARGUMENT,
                                     "step: row %d: rows of one sequence must follow each other",
                                     r);
            s->span_seq[s->n_spans] = row->seq;
            s->spans[s->n_spans++] = (row_span){ .first = r, .pos = row->seq->kv.length };
        }
        row_span *span = &s->spans[s->n_spans - 1];
        s->pos[r] = span->pos + span->n++;
        if (s->pos[r] >= e->n_ctx)
            return error_set(err, INFER_LIMIT, "step: position %d is past the context of %d",
                             s->pos[r], e->n_ctx);
        if (!row->embedding && (row->token < 0 || row->token >= e->model->n_vocab))
            return error_set(err, INFER_ARGUMENT, "step: row %d: token %d, expected 0 to %d", r,
                             row->token, e->model->n_vocab - 1);
        s->ids[r] = row->embedding ? -1 : row->token;
        s->rope_len[r] = row->seq->rope_len ? row->seq->rope_len : s->pos[r] + 1;
        s->logits_at[r] = s->hidden_at[r] = -1;
        if (row->want & INFER_WANT_TOP && (row->top < 1 || row->n_also < 0))
            return error_set(err, INFER_ARGUMENT, "step: row %d: top %d, expected 1 or more", r,
                             row->top);
        if (row->want & (INFER_WANT_LOGITS | INFER_WANT_TOP)) {
            s->want_row[s->n_logits] = r;
            s->logits_at[r] = s->n_logits++;
        }
        if (row->want & INFER_WANT_HIDDEN) s->hidden_at[r] = 0;
    }
    if (e->capture.attention && (s->n_spans != 1 || s->spans[0].pos))
        return error_set(err, INFER_ARGUMENT,
                         "capture: attention is captured only in a step of one "
                         "sequence from its first position");
    s->n_rows = n_rows;
    return INFER_OK;
}

infer_status infer_step(infer_engine *e, const infer_row *rows, int n_rows, infer_error *err)
{
    step *s = &e->step;
    infer_status st = plan_step(e, rows, n_rows, err);
    if (st) {
        s->n_rows = 0;
        return st;
    }
    for (int i = 0; i < s->n_spans; i++) {
        st = kv_prepare(&e->kv, &s->span_seq[i]->kv, s->spans[i].n, err);
        if (!st) continue;
        for (int k = 0; k < i; k++)
            kv_abandon(&e->kv, &s->span_seq[k]->kv);
        s->n_rows = 0;
        return st;
    }
    head_plan(e, rows);
    pack_plan(e);
    for (int r = 0; r < n_rows; r++)
        if (rows[r].embedding)
            memcpy(e->ws.x + (size_t)r * e->ws.x_stride, rows[r].embedding,
                   (size_t)e->model->d_model * sizeof(float));

    if (!forward_run(e))
        st = error_set(err, INFER_CANCELLED, "step: cancelled");
    else if (model_broken(e->model))
        st = error_set(err, INFER_IO, "%s: the file became shorter while it was in use",
                       e->model->path);
    pack_settle(e);
    if (st)
        atomic_store(&e->cancel, 0);
    else
        head_settle(e);
    for (int i = 0; i < s->n_spans; i++) {
        if (st)
            kv_abandon(&e->kv, &s->span_seq[i]->kv);
        else
            kv_commit(&e->kv, &s->span_seq[i]->kv, s->spans[i].n);
    }
    if (st) s->n_rows = 0;
    return st ? st : error_clear(err);
}

const float *infer_logits(const infer_engine *e, int row)
{
    if (row < 0 || row >= e->step.n_rows || e->step.logits_at[row] < 0) return NULL;
    if (e->step.searches) return NULL; // infer_top has them
    return e->ws.logits + (size_t)e->step.logits_at[row] * e->ws.logits_stride;
}

const float *infer_hidden(const infer_engine *e, int row)
{
    if (row < 0 || row >= e->step.n_rows || e->step.hidden_at[row] < 0) return NULL;
    return e->ws.hidden + (size_t)row * e->ws.x_stride;
}
