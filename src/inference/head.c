/* head.c: logits, whole or searched; head.h says when. */
#include "inference/head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "inference/engine.h"
#include "inference/profile.h"

#define HEAD_WAIT 32        // steps: a short answer pays for no copy
#define HEAD_SLICES 64      // steps that it takes to pack all
#define HEAD_PATIENCE 256   // steps after the first disappointment
#define MOST_SURVIVORS 0.02 // of the rows, on average: a row on its own costs several in a stream
#define NO_ROOM 0.1         // what a search that ended in the whole product counts as
#define MEASURED 64         // steps that the mean looks back on
#define LEAST_VOCAB 8192
#define MOST_ALSO 8192
#define WINDOW (64 << 10) // what a fault maps at once, of a file that is in memory
#define LEAST_TOUCHED 64  // windows that may be in memory beside the copy
#define RELEASED_AT_ONCE (4 << 20)

static bool is_possible(const infer_engine *e)
{
    const infer_model *m = e->model;
    const tensor *w = &m->head.w;
    if (!e->be->top || e->exact || m->pages_stay) return false;
    // A bias and a soft cap move logits after the product, and not by the same for all.
    if (m->head.bias || m->final_softcap != 0.0f) return false;
    if (!(m->logit_scale > 1e-6f && m->logit_scale < 1e6f)) return false;
    if (w->n_rows < LEAST_VOCAB || w->n_cols % 32 || w->n_slices != 1) return false;
    // Other formats' rows that survive come from the file: that takes a copy which is much smaller.
    size_t copy = coarse_panel_bytes(w->n_cols) / PANEL;
    return w->type == DT_Q8_0 || copy * 2 <= w->row_bytes;
}

static void *buffer(infer_engine *e, size_t n, size_t size, bool *ok)
{
    void *p = *ok ? workspace_alloc(e, n, size) : NULL;
    if (!p) *ok = false;
    return p;
}

infer_status head_open(infer_engine *e, infer_error *err)
{
    head_search *h = &e->head;
    const tensor *w = &e->model->head.w;
    size_t threads = (size_t)e->be->n_threads(e->dev);
    if (!is_possible(e)) return INFER_OK;
    bool ok = e->be->coarse_open(e->dev, &h->c, w);
    h->possible = ok;
    h->wait = HEAD_WAIT;
    int share = (h->c.n_panels + (int)threads - 1) / (int)threads;
    h->slice = (share + HEAD_SLICES - 1) / HEAD_SLICES;
    h->mean = mem_zero((size_t)w->n_cols, sizeof *h->mean);
    h->touched = mem_zero(tensor_bytes(w) / WINDOW / 64 + 1, sizeof *h->touched);
    uint64_t copy = h->c.bytes + h->c.rest_bytes * (size_t)w->n_rows;
    h->most_touched = copy < tensor_bytes(w) ? (tensor_bytes(w) - copy) / WINDOW : 0;
    h->most_touched += LEAST_TOUCHED;
    h->args = (top_args){ .c = &h->c, .x = &h->x, .rows = h->rows, .scale = e->model->logit_scale };
    h->args.room = w->n_rows / (int)threads / 4 + COARSE_MOST;
    h->args.stride = e->ws.logits_stride;
    size_t room = threads * (size_t)h->args.room, floats = COARSE_ROWS * e->ws.logits_stride;
    h->args.score = buffer(e, floats, sizeof(float), &ok);
    h->args.upper = buffer(e, floats, sizeof(float), &ok);
    h->args.best = buffer(e, threads * COARSE_ROWS * COARSE_MOST, sizeof(float), &ok);
    for (int r = 0; r < COARSE_ROWS; r++) {
        h->rows[r].ids = buffer(e, room, sizeof(int32_t), &ok);
        h->rows[r].values = buffer(e, room, sizeof(float), &ok);
        h->rows[r].n = buffer(e, threads, sizeof(int), &ok);
    }
    h->also = mem_alloc(MOST_ALSO, sizeof *h->also);
    if (ok && h->mean && h->touched && h->also) return INFER_OK;
    return error_set(err, INFER_NOMEM, "engine: out of memory");
}

void head_close(infer_engine *e)
{
    head_search *h = &e->head;
    if (h->possible) e->be->coarse_close(&h->c);
    mem_free(h->mean);
    mem_free(h->touched);
    mem_free(h->also);
}

void head_give_up(infer_engine *e)
{
    head_search *h = &e->head;
    if (!h->possible) return;
    e->be->coarse_close(&h->c);
    h->possible = h->packing = false;
}

uint64_t head_bytes(const infer_engine *e)
{
    return e->head.possible ? e->be->coarse_bytes(&e->head.c) : 0;
}

/* ---- before the step ---- */

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The rows' `also`, sorted, each id once. */
static void copy_also(infer_engine *e, const infer_row *rows)
{
    head_search *h = &e->head;
    int32_t *list = h->also;
    for (int i = 0; i < e->step.n_logits; i++) {
        const infer_row *row = &rows[e->step.want_row[i]];
        int n = 0;
        if (row->n_also) {
            memcpy(list, row->also, (size_t)row->n_also * sizeof *list);
            qsort(list, (size_t)row->n_also, sizeof *list, by_id);
        }
        for (int k = 0; k < row->n_also; k++)
            if (list[k] >= 0 && list[k] < e->model->n_vocab && (!n || list[n - 1] != list[k]))
                list[n++] = list[k];
        h->rows[i].also = list;
        h->rows[i].n_also = n;
        list += n;
    }
}

/* The direction that the copy is packed along: where the head's input mostly points. */
static void begin_copy(head_search *h)
{
    double squares = 0;
    int n = h->c.w.n_cols;
    for (int i = 0; i < n; i++)
        squares += h->mean[i] * h->mean[i];
    bool usable = squares > 1e-12 && squares < 1e12;
    for (int i = 0; i < n; i++)
        h->c.direction[i] = usable ? (float)(h->mean[i] / sqrt(squares)) : 0;
    memset(h->mean, 0, (size_t)n * sizeof *h->mean);
    h->packing = true;
    h->survivors = 0;
    h->n_measured = 0;
}

void head_plan(infer_engine *e, const infer_row *rows)
{
    head_search *h = &e->head;
    step *s = &e->step;
    s->searches = s->could_search = false;
    int n_also = 0;
    if (!h->possible || !s->n_logits || s->n_logits > COARSE_ROWS) return;
    for (int i = 0; i < s->n_logits; i++) {
        const infer_row *row = &rows[s->want_row[i]];
        if (row->want & INFER_WANT_LOGITS || row->top > COARSE_MOST) return;
        if (row->n_also > MOST_ALSO - n_also) return;
        n_also += row->n_also;
        h->rows[i].k = row->top;
    }
    s->could_search = true;
    if (!h->packing) {
        if (h->wait > 0) return;
        begin_copy(h);
    }
    s->searches = true;
    copy_also(e, rows);
}

/* ---- in the step ---- */

/* The whole product. Where the file's pages of the head were given back, they are again, behind the
 * threads: the file and the copy are never both in memory. */
static void whole(const worker *w, infer_engine *e, const act *out)
{
    const linear *l = &e->lm_head;
    workspace *ws = &e->ws;
    if (!e->head.packing) {
        e->be->matmul(w, ws->logits, ws->logits_stride, l, out, e->exact);
        return;
    }
    int rows = (int)(RELEASED_AT_ONCE / l->w.row_bytes / PANEL + 1) * PANEL;
    for (int o = 0; o < l->w.n_rows; o += rows) {
        int n = l->w.n_rows - o < rows ? l->w.n_rows - o : rows;
        linear part = { tensor_rows(&l->w, o, n), l->bias ? l->bias + o : NULL };
        e->be->matmul(w, ws->logits + o, ws->logits_stride, &part, out, e->exact);
        e->be->barrier(w); // nobody reads it any more
        if (w->thread == 0) model_release(e->model, part.w.data, tensor_bytes(&part.w));
    }
}

void head_run(const worker *w, infer_engine *e, const act *out)
{
    head_search *h = &e->head;
    const infer_model *m = e->model;
    workspace *ws = &e->ws;
    const backend *be = e->be;
    if (e->step.searches) {
        const uint8_t *from;
        size_t size;
        be->coarse_pack(w, &h->c, h->slice, &from, &size);
        if (e->head.n_measured <= HEAD_SLICES) model_release(m, from, size);
        if (w->thread == 0) h->x = *out;
        be->barrier(w);
        be->top(w, &h->args);
        return;
    }
    whole(w, e, out);
    if (m->logit_scale != 1.0f) {
        be->barrier(w);
        be->scale(w, ws->logits, ws->logits_stride, out->n_rows, m->n_vocab, m->logit_scale);
    }
    if (m->final_softcap != 0.0f) {
        be->barrier(w);
        be->softcap(w, ws->logits, ws->logits_stride, out->n_rows, m->n_vocab, m->final_softcap);
    }
}

/* ---- after the step ---- */

static void run_whole(const worker *w, void *arg)
{
    infer_engine *e = arg;
    act out = act_rows(&e->ws.out, e->step.n_logits, e->model->d_model);
    head_run(w, e, &out);
}

/* The threads' pieces, which are ascending, joined; -1 where one had no room. */
static int join(const head_search *h, const top_row *r)
{
    int n = 0;
    for (int t = 0; t < h->c.n_threads; t++) {
        size_t from = (size_t)t * (size_t)h->args.room;
        if (r->n[t] < 0) return -1;
        memmove(r->ids + n, r->ids + from, (size_t)r->n[t] * sizeof *r->ids);
        memmove(r->values + n, r->values + from, (size_t)r->n[t] * sizeof *r->values);
        n += r->n[t];
    }
    return n;
}

static void touch(infer_engine *e, const int32_t *ids, int n)
{
    head_search *h = &e->head;
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0) continue;
        size_t at = (size_t)ids[i] * h->c.w.row_bytes / WINDOW;
        uint64_t bit = (uint64_t)1 << at % 64;
        h->n_touched += !(h->touched[at / 64] & bit);
        h->touched[at / 64] |= bit;
    }
}

static void release_touched(infer_engine *e)
{
    head_search *h = &e->head;
    if (h->n_touched <= h->most_touched) return;
    model_release(e->model, h->c.w.data, tensor_bytes(&h->c.w));
    memset(h->touched, 0, (tensor_bytes(&h->c.w) / WINDOW / 64 + 1) * sizeof *h->touched);
    h->n_touched = 0;
}

/* The share of the rows that survived; less than it will be while not all are packed. Single steps
 * vary by orders of magnitude: only what is hopeless is given up before many were seen. */
static void measure(infer_engine *e, double share)
{
    head_search *h = &e->head;
    h->survivors +=
        (share - h->survivors) / (h->n_measured < MEASURED ? h->n_measured + 1 : MEASURED);
    h->n_measured++;
    bool hopeless = h->n_measured >= 4 && h->survivors > 4 * MOST_SURVIVORS;
    if (!hopeless && (h->n_measured < MEASURED / 2 || h->survivors <= MOST_SURVIVORS)) return;
    if (h->disappointed) {
        head_give_up(e);
        return;
    }
    e->be->coarse_drop(&h->c);
    h->packing = false;
    h->disappointed = true;
    h->wait = HEAD_PATIENCE;
}

static void learn_direction(infer_engine *e)
{
    head_search *h = &e->head;
    for (int i = 0; i < e->step.n_logits; i++)
        for (int k = 0; k < e->model->d_model; k++)
            h->mean[k] += (double)e->ws.out.x[(size_t)i * e->ws.out.stride + (size_t)k];
    if (h->wait > 0) h->wait--;
}

bool head_is_copied(const infer_engine *e) { return e->lm_head.w.panels || e->head.packing; }

void head_release_table(infer_engine *e)
{
    const tensor *t = &e->model->embed;
    if (t->data == e->lm_head.w.data) model_release(e->model, t->data, tensor_bytes(t));
    e->head.n_embedded = 0;
}

void head_settle(infer_engine *e)
{
    head_search *h = &e->head;
    step *s = &e->step;
    h->n_embedded += s->n_rows;
    if (head_is_copied(e) && h->n_embedded >= TABLE_ROWS) head_release_table(e);
    if (!s->searches) {
        if (s->could_search) learn_direction(e);
        return;
    }
    int found = 0;
    for (int r = 0; r < s->n_logits; r++) {
        h->n_found[r] = join(h, &h->rows[r]);
        if (h->n_found[r] < 0) {
            s->searches = false;
            continue;
        }
        if (!h->c.rests) touch(e, h->rows[r].ids, h->n_found[r]);
        found += h->n_found[r];
    }
    uint64_t packed = e->be->coarse_rows(&h->c);
    uint64_t spared = packed * (h->c.w.row_bytes - h->c.panel_bytes / PANEL);
    uint64_t read = (uint64_t)found * h->c.w.row_bytes;
    h->unread = spared > read ? spared - read : 0;
    if (!s->searches && e->profiling)
        profile_run(e->profile, e->dev, run_whole, e);
    else if (!s->searches)
        e->be->run(e->dev, run_whole, e);
    release_touched(e);
    measure(e, s->searches ? (double)found / s->n_logits / h->c.w.n_rows : NO_ROOM);
}

int infer_top(const infer_engine *e, int row, const int32_t **ids, const float **logits)
{
    const step *s = &e->step;
    *ids = NULL;
    *logits = NULL;
    if (row < 0 || row >= s->n_rows || s->logits_at[row] < 0) return 0;
    int at = s->logits_at[row];
    if (!s->searches) {
        *logits = e->ws.logits + (size_t)at * e->ws.logits_stride;
        return e->model->n_vocab;
    }
    *ids = e->head.rows[at].ids;
    *logits = e->head.rows[at].values;
    return e->head.n_found[at];
}
