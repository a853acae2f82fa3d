/*
 * cpu.c: the CPU backend: divides each operation among the threads and hands the shares to the
 * kernels of the level that was chosen at open.
 *
 * How work is divided never shows in a result: kernels compute each row, head or output as one
 * fixed sequence of operations (kernels.h).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/error.h"
#include "base/mem.h"
#include "compute/backend.h"
#include "compute/cpu/cpu_info.h"
#include "compute/cpu/device.h"
#include "compute/cpu/top.h"
#include "compute/route.h"

static bool cpu_available(void) { return true; }

static void cpu_close(device *d)
{
    if (!d) return;
    int n = d->pool ? pool_size(d->pool) : 0;
    for (int i = 0; i < n; i++) {
        mem_free_pages(d->scratch[i].matmul, d->matmul_bytes);
        mem_free_pages(d->scratch[i].rows, d->rows_bytes);
        mem_free_pages(d->scratch[i].acc, d->acc_bytes);
    }
    mem_free_pages(d->parts, ATTN_PART_BYTES);
    pool_free(d->pool);
    mem_free(d);
}

static infer_status cpu_open(device **out, const device_options *o, infer_error *err)
{
    *out = NULL;
    const cpu_kernels *k = cpu_kernels_get(o->cpu_level);
    if (!k) {
        for (int i = 0; isa_levels[i].name; i++)
            if (!strcmp(isa_levels[i].name, o->cpu_level))
                return error_set(err, INFER_UNSUPPORTED,
                                 "cpu level '%s': this processor does not have it", o->cpu_level);
        char known[128] = "";
        for (int i = 0; isa_levels[i].name; i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                     isa_levels[i].name);
        return error_set(err, INFER_ARGUMENT, "cpu level '%s': expected one of %s", o->cpu_level,
                         known);
    }
    device *d = mem_zero(1, sizeof *d);
    if (!d) return error_set(err, INFER_NOMEM, "cpu backend: out of memory");
    d->k = k;
    infer_status st = pool_new(&d->pool, o->n_threads, err);
    if (st) {
        cpu_close(d);
        return st;
    }
    d->matmul_bytes = matmul_scratch_bytes(o->max_cols);
    d->rows_bytes = PANEL * round_up((size_t)o->max_cols, 256) * sizeof(float);
    d->acc_bytes = 2 * ATTN_QUERIES * round_up((size_t)o->max_head_dim, 16) * sizeof(float);
    d->parts = mem_pages(ATTN_PART_BYTES);
    if (!d->parts) {
        cpu_close(d);
        return error_set(err, INFER_NOMEM, "cpu backend: out of memory for scratch");
    }
    for (int i = 0; i < pool_size(d->pool); i++) {
        d->scratch[i].matmul = mem_pages(d->matmul_bytes);
        d->scratch[i].rows = mem_pages(d->rows_bytes);
        d->scratch[i].acc = mem_pages(d->acc_bytes);
        if (!d->scratch[i].matmul || !d->scratch[i].rows || !d->scratch[i].acc) {
            cpu_close(d);
            return error_set(err, INFER_NOMEM, "cpu backend: out of memory for scratch");
        }
    }
    *out = d;
    return error_clear(err);
}

static void cpu_device_info(const device *d, char *text, size_t size)
{
    char name[128];
    cpu_name(name, sizeof name);
    int n = pool_size(d->pool);
    snprintf(text, size, "%s, level %s, %d thread%s", name, d->k->name, n, n == 1 ? "" : "s");
}

static const char *cpu_level(const device *d) { return d->k->name; }
static int cpu_n_threads(const device *d) { return pool_size(d->pool); }

static void *cpu_alloc(device *d, size_t bytes)
{
    (void)d;
    return mem_pages(bytes);
}
static void cpu_free(device *d, void *p, size_t bytes)
{
    (void)d;
    mem_free_pages(p, bytes);
}

typedef struct job {
    device *d;
    worker_fn *fn;
    void *arg;
} job;

static void run_one(void *arg, int thread, int n_threads)
{
    const job *j = arg;
    worker w = { j->d, thread, n_threads };
    j->fn(&w, j->arg);
}

static void cpu_run(device *d, worker_fn *fn, void *arg)
{
    job j = { d, fn, arg };
    pool_run(d->pool, run_one, &j);
}

static void cpu_barrier(const worker *w) { pool_barrier(w->dev->pool); }

/* ---- by rows ---- */

static void cpu_embed(const worker *w, float *y, size_t stride, const tensor *table,
                      const int32_t *ids, int n_rows, float scale)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        if (ids[r] < 0) continue;
        float *row = y + (size_t)r * stride;
        tensor_row(row, table, ids[r]);
        if (scale != 1.0f) w->dev->k->scale(row, scale, table->n_cols);
    }
}

static void cpu_add_rows(const worker *w, float *y, size_t stride, const tensor *table,
                         const int32_t *positions, int n_rows)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    float *row = (float *)(void *)w->dev->scratch[w->thread].matmul;
    for (int r = begin; r < end; r++) {
        tensor_row(row, table, positions[r]);
        w->dev->k->add_scaled(y + (size_t)r * stride, row, 1.0f, table->n_cols);
    }
}

static void norm_row(const cpu_kernels *k, float *y, const float *x, int width, const norm *n,
                     const float *weight)
{
    if (n->kind == NORM_RMS)
        k->rms_norm(y, x, weight, n->offset, n->eps, width);
    else if (n->kind == NORM_LAYER)
        k->layer_norm(y, x, weight, n->bias, n->offset, n->eps, width);
    else if (y != x)
        memcpy(y, x, (size_t)width * sizeof(float));
}

static void cpu_normalise(const worker *w, float *y, const float *x, size_t stride, int n_rows,
                          int width, const norm *n)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        norm_row(w->dev->k, y + (size_t)r * stride, x + (size_t)r * stride, width, n, n->weight);
}

static void cpu_prepare(const worker *w, act *a)
{
    int begin, end;
    thread_share(a->n_rows, 1, w->thread, w->n_threads, &begin, &end);
    if (a->n_cols % 32) return; // only float weights can follow
    for (int r = begin; r < end; r++) {
        size_t at = (size_t)r * a->stride;
        w->dev->k->act_row(a->q + at * ACT_PLANES, a->scale + at / 32, a->sum + at / 16, a->x + at,
                           a->n_cols);
    }
}

static void cpu_glu(const worker *w, float *y, const float *gate, const float *up, size_t stride,
                    int n_rows, int width, activation a)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        size_t at = (size_t)r * stride;
        w->dev->k->glu(y + at, gate + at, up ? up + at : NULL, a, width);
    }
}

static void cpu_add_scaled(const worker *w, float *y, const float *x, size_t stride, int n_rows,
                           int width, float scale)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        w->dev->k->add_scaled(y + (size_t)r * stride, x + (size_t)r * stride, scale, width);
}

static void cpu_scale(const worker *w, float *y, size_t stride, int n_rows, int width, float scale)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        w->dev->k->scale(y + (size_t)r * stride, scale, width);
}

/* ---- by heads of rows ---- */

static void cpu_normalise_heads(const worker *w, float *x, size_t stride, int n_rows, int n_heads,
                                int width, const norm *n, bool per_head_weight)
{
    int begin, end;
    thread_share(n_rows * n_heads, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        int head = i % n_heads;
        float *v = x + (size_t)(i / n_heads) * stride + (size_t)head * width;
        norm_row(w->dev->k, v, v, width, n,
                 n->weight && per_head_weight ? n->weight + (size_t)head * width : n->weight);
    }
}

static void cpu_copy_heads(const worker *w, float *y, size_t y_stride, const float *x,
                           size_t x_stride, int n_rows, int n_heads, int width)
{
    int begin, end;
    thread_share(n_rows * n_heads, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        size_t head = (size_t)(i % n_heads) * width;
        memcpy(y + (size_t)(i / n_heads) * y_stride + head,
               x + (size_t)(i / n_heads) * x_stride + head, (size_t)width * sizeof(float));
    }
}

static void cpu_rope(const worker *w, float *x, size_t stride, int n_rows, int n_heads, int width,
                     const float *cos, const float *sin, int n_pairs, int gap, rope_pairing pairing)
{
    int begin, end;
    thread_share(n_rows * n_heads, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        int r = i / n_heads;
        w->dev->k->rope(x + (size_t)r * stride + (size_t)(i % n_heads) * width,
                        cos + (size_t)r * n_pairs, sin + (size_t)r * n_pairs, n_pairs, gap,
                        pairing);
    }
}

/* ---- by outputs ---- */

static void cpu_matmul(const worker *w, float *y, size_t y_stride, const linear *l, const act *x,
                       bool exact)
{
    const cpu_kernels *k = w->dev->k;
    matmul_args a = { y, y_stride, &l->w, x, 0, 0, w->dev->scratch[w->thread].matmul };
    thread_share(l->w.n_rows, PANEL, w->thread, w->n_threads, &a.begin, &a.end);
    if (a.begin >= a.end) return;
    if (exact || !quant_formats[l->w.type]->sub)
        k->matmul_f32(&a);
    else
        k->matmul_int8(&a);
    if (!l->bias) return;
    for (int r = 0; r < x->n_rows; r++)
        k->add_scaled(y + (size_t)r * y_stride + a.begin, l->bias + a.begin, 1.0f, a.end - a.begin);
}

static size_t cpu_packed_bytes(const device *d, const tensor *w)
{
    bool vectors = d->k->reads_by_vectors != NULL; // the reference has no use for panels
    bool takes = vectors && panels_take(w) &&
                 (panels_float(w->type) || d->k->reads_by_vectors(panels_type(w->type)));
    return takes && w->n_slices == 1 ? panels_bytes(w) : 0;
}

static void cpu_pack(const worker *w, uint8_t *to, const tensor *from, int begin, int end)
{
    int first, last;
    thread_share(end - begin, PANEL, w->thread, w->n_threads, &first, &last);
    if (first < last) panels_pack(to, from, begin + first, begin + last);
}

static void cpu_dot_rows(const worker *w, float *y, const tensor *rows, const int32_t *ids, int n,
                         const act *x, int r)
{
    thread_scratch *s = &w->dev->scratch[w->thread];
    float part[PANEL] ATTR_ALIGNED(64);
    tensor few = tensor_rows(rows, 0, 0);
    act one = {
        .x = x->x + (size_t)r * x->stride, .n_rows = 1, .n_cols = x->n_cols, .stride = x->stride
    };
    few.data = s->rows;
    for (int i = 0; i < n; i += PANEL) {
        few.n_rows = n - i < PANEL ? n - i : PANEL;
        for (int j = 0; j < few.n_rows; j++)
            memcpy(s->rows + (size_t)j * rows->row_bytes,
                   rows->data + (size_t)ids[i + j] * rows->row_bytes, rows->row_bytes);
        matmul_args a = { part, 0, &few, &one, 0, few.n_rows, s->matmul };
        w->dev->k->matmul_f32(&a);
        memcpy(y + i, part, (size_t)few.n_rows * sizeof *y);
    }
}

#define SUM_TILE 32 // rows that all of a step's activations use while they lie in the cache

/* Rows [first, first + n) of t in columns [begin, end) to floats, those that some activation uses.
 * begin is at a block. */
static void floats_of(float *to, const tensor *t, int first, int n, int begin, int end,
                      const float *a, size_t a_stride, int n_rows)
{
    const quant_format *f = quant_formats[t->type];
    size_t at = (size_t)(begin / f->block_size) * (size_t)f->block_bytes;
    for (int i = 0; i < n; i++) {
        bool used = false;
        for (int r = 0; r < n_rows && !used; r++)
            used = a[(size_t)r * a_stride + (size_t)i] != 0;
        if (used)
            f->dequant(to + (size_t)i * (size_t)(end - begin),
                       t->data + (size_t)(first + i) * t->row_bytes + at, (size_t)(end - begin));
    }
}

static void cpu_sum_rows(const worker *w, float *y, size_t y_stride, int width, const tensor *rows,
                         const float *a, size_t a_stride, int n_rows)
{
    const cpu_kernels *k = w->dev->k;
    int block = quant_formats[rows->type]->block_size, unit = block > 64 ? block : 64, begin, end;
    thread_share(rows->n_cols, unit, w->thread, w->n_threads, &begin, &end);
    int wanted = (end < width ? end : width) - begin; // the last block may be padding
    if (wanted <= 0) return;
    size_t size = rows->type == DT_F32 ? 4 : 2, step = (size_t)(end - begin) * sizeof(float);
    bool direct = (rows->type == DT_F32 || rows->type == DT_F16) &&
                  (uintptr_t)rows->data % size == 0 && rows->row_bytes % size == 0;
    float *scratch = (float *)(void *)w->dev->scratch[w->thread].matmul;
    size_t room = w->dev->matmul_bytes / step;
    int tile = direct && n_rows == 1       ? rows->n_rows
               : direct || room > SUM_TILE ? SUM_TILE
                                           : (int)room;
    for (int r = 0; r < n_rows; r++)
        memset(y + (size_t)r * y_stride + begin, 0, (size_t)wanted * sizeof(float));
    for (int f = 0; f < rows->n_rows; f += tile) {
        int n = rows->n_rows - f < tile ? rows->n_rows - f : tile;
        const uint8_t *from = rows->data + (size_t)f * rows->row_bytes + (size_t)begin * size;
        if (!direct) {
            floats_of(scratch, rows, f, n, begin, end, a + f, a_stride, n_rows);
            from = (const uint8_t *)scratch;
        }
        for (int r = 0; r < n_rows; r++)
            k->sum_rows(y + (size_t)r * y_stride + begin, a + (size_t)r * a_stride + f, from,
                        direct ? rows->row_bytes : step, direct ? rows->type : DT_F32, n, wanted);
    }
}

static void cpu_softcap(const worker *w, float *y, size_t stride, int n_rows, int width, float cap)
{
    int begin, end;
    thread_share(width, PANEL, w->thread, w->n_threads, &begin, &end);
    for (int r = 0; r < n_rows && begin < end; r++)
        w->dev->k->softcap(y + (size_t)r * stride + begin, cap, end - begin);
}

static void cpu_clamp(const worker *w, float *y, size_t stride, int n_rows, int width, float lo,
                      float hi, float scale, float shift)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *v = y + (size_t)r * stride;
        for (int i = 0; i < width; i++)
            v[i] = (v[i] < lo ? lo : v[i] > hi ? hi : v[i]) * scale + shift;
    }
}

/* ---- the largest products ---- */

static bool cpu_coarse_open(const device *d, coarse *c, const tensor *w)
{
    return coarse_open(c, w, pool_size(d->pool));
}

static void cpu_coarse_pack(const worker *w, coarse *c, int n, const uint8_t **from, size_t *size)
{
    coarse_pack_more(c, w->dev->k, w->thread, n, from, size);
}

static void cpu_top(const worker *w, const top_args *a)
{
    device *d = w->dev;
    top_search(d->k, d->pool, d->scratch[w->thread].matmul, a, w->thread);
}

/* ---- mixture of experts ---- */

static void cpu_route(const worker *w, const route_args *a)
{
    int begin, end;
    thread_share(a->n_rows, 1, w->thread, w->n_threads, &begin, &end);
    float *scratch = (float *)(void *)w->dev->scratch[w->thread].matmul;
    for (int r = begin; r < end; r++)
        route_row(a, a->logits + (size_t)r * a->stride, a->expert + (size_t)r * a->n_used,
                  a->weight + (size_t)r * a->n_used, scratch);
}

static void cpu_gather(const worker *w, act *y, const act *x, const int32_t *index)
{
    int begin, end;
    thread_share(y->n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        size_t to = (size_t)i * y->stride, from = (size_t)index[i] * x->stride;
        memcpy(y->x + to, x->x + from, x->stride * sizeof(float));
        memcpy(y->q + to * ACT_PLANES, x->q + from * ACT_PLANES, x->stride * ACT_PLANES);
        memcpy(y->scale + to / 32, x->scale + from / 32, x->stride / 32 * sizeof(float));
        memcpy(y->sum + to / 16, x->sum + from / 16, x->stride / 16 * sizeof(int32_t));
    }
}

static void cpu_combine(const worker *w, float *y, size_t stride, const float *x,
                        const int32_t *slot, const float *weight, int n_rows, int n_used, int width)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        memset(y + (size_t)r * stride, 0, (size_t)width * sizeof(float));
        for (int j = 0; j < n_used; j++)
            w->dev->k->add_scaled(y + (size_t)r * stride,
                                  x + (size_t)slot[(size_t)r * n_used + j] * stride,
                                  weight[(size_t)r * n_used + j], width);
    }
}

static void cpu_sigmoid_rows(const worker *w, float *y, size_t stride, const float *gate,
                             size_t gate_stride, int n_rows, int width)
{
    int begin, end;
    thread_share(n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++)
        w->dev->k->scale(y + (size_t)r * stride,
                         (float)(1 / (1 + exp(-(double)gate[(size_t)r * gate_stride]))), width);
}

const backend backend_cpu = {
    .name = "cpu",
    .summary = "this machine's processor",
    .available = cpu_available,
    .open = cpu_open,
    .close = cpu_close,
    .device_info = cpu_device_info,
    .level = cpu_level,
    .n_threads = cpu_n_threads,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .run = cpu_run,
    .barrier = cpu_barrier,
    .embed = cpu_embed,
    .add_rows = cpu_add_rows,
    .normalise = cpu_normalise,
    .normalise_heads = cpu_normalise_heads,
    .copy_heads = cpu_copy_heads,
    .prepare = cpu_prepare,
    .matmul = cpu_matmul,
    .packed_bytes = cpu_packed_bytes,
    .pack = cpu_pack,
    .dot_rows = cpu_dot_rows,
    .sum_rows = cpu_sum_rows,
    .rope = cpu_rope,
    .kv_append = cpu_kv_append,
    .attention = cpu_attention,
    .glu = cpu_glu,
    .add_scaled = cpu_add_scaled,
    .scale = cpu_scale,
    .softcap = cpu_softcap,
    .clamp = cpu_clamp,
    .coarse_open = cpu_coarse_open,
    .coarse_close = coarse_close,
    .coarse_drop = coarse_drop,
    .coarse_bytes = coarse_packed_bytes,
    .coarse_rows = coarse_packed_rows,
    .coarse_pack = cpu_coarse_pack,
    .top = cpu_top,
    .route = cpu_route,
    .gather = cpu_gather,
    .combine = cpu_combine,
    .sigmoid_rows = cpu_sigmoid_rows,
};
