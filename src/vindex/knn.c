/*
 * knn.c: scans. Queries go through in groups, so that scratch memory is bounded; each query's best
 * are then picked by one thread with a heap of n hits. Float rows are read as they lie, by
 * dots_float; others go through the engine's matmul, in fast mode where their width allows it.
 *
 * A key is |score|'s bits over the complement of the row: the order of unsigned numbers is the
 * order of hits. Bits beyond infinity are NaN and never enter.
 */
#include "vindex/knn.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"

#define GROUP 64 // queries that go through the matmul at once
#define ROWS 16  // that queries meet while they are in the first-level cache
#define INFINITE 0x7f800000u

/* ---- the best -------------------------------------------------------------------------------- */

static uint64_t key_of(knn_hit h)
{
    return (uint64_t)(f32_bits(h.score) & 0x7fffffffu) << 32 | (uint32_t)~h.row;
}

/* Puts h into the heap of n at i, or below it. */
static void sift_down(knn_hit *heap, int n, int i, knn_hit h)
{
    uint64_t key = key_of(h);
    for (int c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && key_of(heap[c + 1]) < key_of(heap[c])) c++;
        if (key_of(heap[c]) >= key) break;
        heap[i] = heap[c];
    }
    heap[i] = h;
}

int knn_top(knn_hit *hits, int n, const float *scores, int n_scores, int first)
{
    int size = 0;
    uint32_t least = 0; // magnitude of the worst of n
    for (int i = 0; i < n_scores && n > 0; i++) {
        uint32_t mag = f32_bits(scores[i]) & 0x7fffffffu;
        if (mag > INFINITE || (size == n && mag <= least)) continue;
        knn_hit h = { first + i, scores[i] };
        if (size < n) {
            int at = size++;
            for (; at && key_of(hits[(at - 1) / 2]) > key_of(h); at = (at - 1) / 2)
                hits[at] = hits[(at - 1) / 2];
            hits[at] = h;
        } else {
            sift_down(hits, n, 0, h);
        }
        least = f32_bits(hits[0].score) & 0x7fffffffu;
    }
    for (int left = size; left > 1;) { // the worst goes last
        knn_hit worst = hits[0], last = hits[--left];
        sift_down(hits, left, 0, last);
        hits[left] = worst;
    }
    return size;
}

/* ---- threads and scratch --------------------------------------------------------------------- */

struct knn {
    const backend *be;
    const cpu_kernels *kernels;
    device *dev;
    int max_cols;
    pthread_mutex_t lock;
    act x;         // [GROUP, max_cols]
    float *scores; // [GROUP, cap] of the gate, then of up
    size_t cap, bytes;
    size_t stride;
};

infer_status knn_new(knn **out, int n_threads, int max_cols, infer_error *err)
{
    *out = NULL;
    knn *k = mem_zero(1, sizeof *k);
    if (!k) return error_set(err, INFER_NOMEM, "scan: out of memory");
    pthread_mutex_init(&k->lock, NULL);
    k->be = backend_find("cpu");
    k->kernels = cpu_kernels_get(NULL);
    k->max_cols = max_cols;
    k->stride = row_stride(max_cols);
    device_options o = { .n_threads = n_threads, .max_cols = max_cols, .max_head_dim = 16 };
    infer_status st = k->be->open(&k->dev, &o, err);
    if (st == INFER_OK) {
        size_t n = GROUP * k->stride;
        k->x.x = mem_pages(n * sizeof(float));
        k->x.q = mem_pages(n * ACT_PLANES);
        k->x.scale = mem_pages(n / 32 * sizeof(float));
        k->x.sum = mem_pages(n / 16 * sizeof(int32_t));
        if (!k->x.x || !k->x.q || !k->x.scale || !k->x.sum)
            st = error_set(err, INFER_NOMEM, "scan: out of memory");
    }
    if (st != INFER_OK) {
        knn_free(k);
        return st;
    }
    *out = k;
    return INFER_OK;
}

void knn_free(knn *k)
{
    if (!k) return;
    size_t n = GROUP * k->stride;
    mem_free_pages(k->x.x, n * sizeof(float));
    mem_free_pages(k->x.q, n * ACT_PLANES);
    mem_free_pages(k->x.scale, n / 32 * sizeof(float));
    mem_free_pages(k->x.sum, n / 16 * sizeof(int32_t));
    mem_free_pages(k->scores, k->bytes);
    if (k->dev) k->be->close(k->dev);
    pthread_mutex_destroy(&k->lock);
    mem_free(k);
}

int knn_threads(const knn *k) { return k->be->n_threads(k->dev); }

/* Room for two tables of n floats. */
static infer_status reserve(knn *k, size_t n, infer_error *err)
{
    if (n <= k->cap) return INFER_OK;
    mem_free_pages(k->scores, k->bytes);
    k->cap = 0;
    k->bytes = 2 * n * sizeof(float);
    k->scores = mem_pages(k->bytes);
    if (!k->scores) {
        k->bytes = 0;
        return error_set(err, INFER_NOMEM, "scan: out of memory for %zu scores", n);
    }
    k->cap = n;
    return INFER_OK;
}

typedef struct thread_job {
    thread_fn *fn;
    void *arg;
} thread_job;

static void run_thread(const worker *w, void *arg)
{
    thread_job *j = arg;
    j->fn(j->arg, w->thread, w->n_threads);
}

void knn_run(knn *k, thread_fn *fn, void *arg)
{
    thread_job j = { fn, arg };
    pthread_mutex_lock(&k->lock);
    k->be->run(k->dev, run_thread, &j);
    pthread_mutex_unlock(&k->lock);
}

/* ---- scans ----------------------------------------------------------------------------------- */

typedef struct scan {
    knn *k;
    const knn_query *q;
    int first, n;  // queries of the group
    float *out;    // [n, stride]
    size_t stride; // of out
    knn_hit *hits; // or NULL
    int *counts, n_hits;
} scan;

/* Rows [begin, end) of a float matrix, read as they lie. */
static void float_product(const scan *s, float *y, const tensor *t, int begin, int end)
{
    const void *rows[ROWS];
    const float *x[GROUP];
    for (int i = 0; i < s->n; i++)
        x[i] = s->k->x.x + (size_t)i * s->k->x.stride;
    for (int r = begin, m; r < end; r += m) {
        m = end - r < ROWS ? end - r : ROWS;
        for (int i = 0; i < m; i++)
            rows[i] = t->data + (size_t)(r + i) * t->row_bytes;
        s->k->kernels->dots_float(y + r, s->stride, x, s->n, rows, m, t->n_cols, t->type == DT_F16);
    }
}

static void product(const worker *w, const scan *s, float *y, const tensor *t, const float *bias)
{
    const knn_query *q = s->q;
    tensor part = tensor_rows(t, q->first, q->count);
    if (bias) bias += q->first;
    if (!knn_reads_rows(t)) {
        linear l = { part, bias };
        act x = s->k->x;
        x.n_cols = t->n_cols;
        s->k->be->matmul(w, y, s->stride, &l, &x, t->n_cols % 32 != 0);
        return;
    }
    int begin, end;
    thread_share(part.n_rows, PANEL, w->thread, w->n_threads, &begin, &end);
    float_product(s, y, &part, begin, end);
    for (int r = 0; bias && r < s->n; r++)
        s->k->kernels->add_scaled(y + (size_t)r * s->stride + begin, bias + begin, 1.0f,
                                  end - begin);
}

static void scan_worker(const worker *w, void *arg)
{
    const scan *s = arg;
    const knn_query *q = s->q;
    const backend *be = s->k->be;
    size_t cols = (size_t)(q->x_cols ? q->x_cols : q->w->n_cols);
    int begin, end;
    thread_share(s->n, 1, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        float *to = s->k->x.x + (size_t)r * s->k->x.stride;
        memcpy(to, q->x + (size_t)(s->first + r) * cols, cols * sizeof(float));
        memset(to + cols, 0, (s->k->x.stride - cols) * sizeof(float));
    }
    be->prepare(w, &s->k->x);
    be->barrier(w);
    float *up = tensor_present(&q->up) && q->norms ? s->k->scores + s->k->cap : NULL;
    product(w, s, s->out, q->w, q->gate_bias);
    if (up) product(w, s, up, &q->up, q->up_bias);
    be->barrier(w);
    if (q->norms) {
        be->glu(w, s->out, s->out, up, s->stride, s->n, q->count, q->act);
        for (int r = begin; r < end; r++)
            for (int i = 0; i < q->count; i++)
                s->out[(size_t)r * s->stride + (size_t)i] *= q->norms[q->first + i];
    }
    for (int r = begin; s->hits && r < end; r++) {
        size_t at = (size_t)(s->first + r);
        s->counts[at] = knn_top(s->hits + at * (size_t)s->n_hits, s->n_hits,
                                s->out + (size_t)r * s->stride, q->count, q->first);
    }
}

static infer_status run(knn *k, float *scores, knn_hit *hits, int *counts, int n_hits,
                        const knn_query *q, infer_error *err)
{
    if (q->w->n_cols > k->max_cols || q->up.n_cols > k->max_cols || q->x_cols > q->w->n_cols ||
        q->first < 0 || q->count < 0 || q->first > q->w->n_rows - q->count)
        return error_set(err, INFER_ARGUMENT, "scan: rows %d to %d of a matrix [%d, %d]", q->first,
                         q->first + q->count - 1, q->w->n_rows, q->w->n_cols);
    size_t stride = row_stride(q->count);
    int width = tensor_present(&q->up) && q->up.n_cols > q->w->n_cols ? q->up.n_cols : q->w->n_cols;
    int group = q->n_queries < GROUP ? q->n_queries : GROUP;
    pthread_mutex_lock(&k->lock);
    infer_status st = reserve(k, (size_t)group * stride, err);
    for (int i = 0; st == INFER_OK && i < q->n_queries && q->count; i += group) {
        int n = q->n_queries - i < group ? q->n_queries - i : group;
        k->x.n_rows = n;
        k->x.n_cols = width;
        k->x.stride = row_stride(width);
        scan s = { k, q, i, n, k->scores, stride, hits, counts, n_hits };
        k->be->run(k->dev, scan_worker, &s);
        for (int r = 0; scores && r < n; r++)
            memcpy(scores + (size_t)(i + r) * (size_t)q->count, k->scores + (size_t)r * stride,
                   (size_t)q->count * sizeof(float));
    }
    pthread_mutex_unlock(&k->lock);
    return st;
}

infer_status knn_scores(knn *k, float *scores, const knn_query *q, infer_error *err)
{
    return run(k, scores, NULL, NULL, 0, q, err);
}

infer_status knn_best(knn *k, knn_hit *hits, int *counts, int n, const knn_query *q,
                      infer_error *err)
{
    memset(counts, 0, (size_t)q->n_queries * sizeof *counts);
    return run(k, NULL, hits, counts, n, q, err);
}

/* ---- lengths --------------------------------------------------------------------------------- */

void knn_row_norms(float *y, const tensor *w, float *row)
{
    for (int r = 0; r < w->n_rows; r++) {
        double sum = 0;
        tensor_row(row, w, r);
        for (int i = 0; i < w->n_cols; i++)
            sum += (double)row[i] * (double)row[i];
        y[r] = (float)sqrt(sum);
    }
}

void knn_column_norms(float *y, const tensor *w, float *row, double *sums)
{
    memset(sums, 0, (size_t)w->n_cols * sizeof *sums);
    for (int r = 0; r < w->n_rows; r++) {
        tensor_row(row, w, r);
        for (int i = 0; i < w->n_cols; i++)
            sums[i] += (double)row[i] * (double)row[i];
    }
    for (int i = 0; i < w->n_cols; i++)
        y[i] = (float)sqrt(sums[i]);
}
