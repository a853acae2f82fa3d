/*
 * nearest.c: a cheap product with a bound on its error finds candidates; only these are multiplied
 * exactly.
 *
 * With w a row of the table as float32, v its copy in Q8_0 (or w itself), x a vector, z its form
 * rounded to 8 bits: the exact kernel makes F of w . x, the integer kernel S of v . z, and
 *
 *   |F - S| <= |F - w . x|  +  |w - v| |x|  +  |v| |x - z|  +  |v . z - S|
 *           <= g1 |w| |x|   +  |w - v| |x|  +  |v| |x - z|  +  g2 |v| |z|
 *           <= a |w - v| + b |v|     a = (1 + g1) |x|,  b = |x - z| + g1 |x| + g2 |z|
 *
 * by Cauchy and Schwarz; g1 and g2 stand for the roundings on the way of a term: n + 2 of F, n / 32
 * + 2 of S, 2^-24 each, doubled here. Lengths are rounded up. A vector or row that is not finite,
 * or so long that a sum may overflow, has an infinite bound, and what is compared with NaN is kept:
 * a row is dropped only where its product is provably smaller than top_k others.
 *
 * Each vector has a list of candidates; where it is full, those that k others exceed for certain
 * fall out, and if that is not enough (equal rows) they are multiplied.
 */
#include "vindex/nearest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

#define BLOCK 512    // vectors multiplied at once: the products of a tile stay in the last cache
#define TOKENS 2048  // rows of the table at once
#define GROUP 16     // rows with a common bound
#define LEAST 1e-34f // what sums can lose below the smallest normal number
#define FINITE 1e18f // lengths below this: no product or sum overflows

struct nearest {
    const backend *be;
    device *dev;
    tensor table;
    int top_k, cap;
    bool exact; // no integer product can be made: S is F
    const uint8_t *skip;
    float *length, *rest;             // [n_rows] |v| and |w - v|
    float *group_length, *group_rest; // [n_rows / GROUP] the largest
    uint8_t *copy;                    // [TOKENS] rows of Q8_0; NULL: the table is read
    float *row;                       // [n_threads, stride]
    act x;                            // [NEAREST_MOST]
    float *a, *b;                     // [NEAREST_MOST]
    float *y;                         // [BLOCK, TOKENS]
    near_row *list;                   // [NEAREST_MOST, cap]
    int *n_list;                      // [NEAREST_MOST]
    float *least;                     // [NEAREST_MOST] a product that top_k candidates reach
    float *products;                  // [n_threads, cap]
    int32_t *ids;                     // [n_threads, cap]
    /* the running job */
    int n, token, n_tokens;
};

/* ---- the table ------------------------------------------------------------------------------- */

static double length_of(const float *x, const float *less, int n)
{
    double sum[4] = { 0 };
    for (int i = 0; i < n; i++) {
        double d = less ? x[i] - less[i] : x[i];
        sum[i % 4] += d * d;
    }
    return sqrt(sum[0] + sum[1] + sum[2] + sum[3]);
}

static float bounded(double length)
{
    return length < FINITE ? (float)(length * 1.0001) : INFINITY;
}

/* Lengths of the table's rows and of what their copies lack. */
static void measure(const worker *w, void *arg)
{
    nearest *x = arg;
    int begin, end, n = x->table.n_cols;
    float *row = x->row + 2 * (size_t)w->thread * x->x.stride, *copied = row + x->x.stride;
    uint8_t *bytes =
        x->copy ? x->copy + (size_t)w->thread * quant_row_bytes(DT_Q8_0, (size_t)n) : NULL;
    thread_share(x->table.n_rows, GROUP, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        tensor_row(row, &x->table, r);
        if (bytes) {
            quant_formats[DT_Q8_0]->quantize(bytes, row, NULL, (size_t)n);
            quant_formats[DT_Q8_0]->dequant(copied, bytes, (size_t)n);
            x->rest[r] = bounded(length_of(row, copied, n));
        }
        x->length[r] = bounded(length_of(bytes ? copied : row, NULL, n));
        if (!(x->length[r] < FINITE)) x->rest[r] = INFINITY;
        int g = r / GROUP;
        if (r % GROUP == 0) x->group_length[g] = x->group_rest[g] = 0;
        x->group_length[g] = fmaxf(x->group_length[g], x->length[r]);
        x->group_rest[g] = fmaxf(x->group_rest[g], x->rest[r]);
    }
}

void nearest_free(nearest *x)
{
    if (!x) return;
    size_t rows = NEAREST_MOST * x->x.stride;
    x->be->free(x->dev, x->x.x, rows * sizeof(float));
    x->be->free(x->dev, x->x.q, rows * ACT_PLANES);
    x->be->free(x->dev, x->x.scale, rows / 32 * sizeof(float));
    x->be->free(x->dev, x->x.sum, rows / 16 * sizeof(int32_t));
    x->be->free(x->dev, x->y, sizeof(float) * BLOCK * TOKENS);
    void *const plain[] = { x->length, x->rest, x->group_length, x->group_rest, x->copy,     x->row,
                            x->a,      x->b,    x->list,         x->n_list,     x->products, x->ids,
                            x->least };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        mem_free(plain[i]);
    mem_free(x);
}

static bool allocate(nearest *x)
{
    const backend *be = x->be;
    size_t rows = NEAREST_MOST * x->x.stride, n = (size_t)x->table.n_rows;
    size_t threads = (size_t)be->n_threads(x->dev), cap = (size_t)x->cap;
    size_t groups = (n + GROUP - 1) / GROUP;
    x->x.x = be->alloc(x->dev, rows * sizeof(float));
    x->x.q = be->alloc(x->dev, rows * ACT_PLANES);
    x->x.scale = be->alloc(x->dev, rows / 32 * sizeof(float));
    x->x.sum = be->alloc(x->dev, rows / 16 * sizeof(int32_t));
    x->y = be->alloc(x->dev, sizeof(float) * BLOCK * TOKENS);
    x->length = mem_zero(n, sizeof(float));
    x->rest = mem_zero(n, sizeof(float));
    x->group_length = mem_zero(groups, sizeof(float));
    x->group_rest = mem_zero(groups, sizeof(float));
    x->row = mem_alloc(threads * 2 * x->x.stride, sizeof(float));
    x->a = mem_alloc(NEAREST_MOST, sizeof(float));
    x->b = mem_alloc(NEAREST_MOST, sizeof(float));
    x->list = mem_alloc(NEAREST_MOST * cap, sizeof *x->list);
    x->n_list = mem_alloc(NEAREST_MOST, sizeof *x->n_list);
    x->least = mem_alloc(NEAREST_MOST, sizeof(float));
    x->products = mem_alloc(threads * cap, sizeof(float));
    x->ids = mem_alloc(threads * cap, sizeof(int32_t));
    bool copied = !x->exact && x->table.type != DT_Q8_0;
    if (copied) x->copy = mem_alloc(TOKENS, quant_row_bytes(DT_Q8_0, (size_t)x->table.n_cols));
    return x->x.x && x->x.q && x->x.scale && x->x.sum && x->y && x->length && x->rest &&
           x->group_length && x->group_rest && x->row && x->a && x->b && x->list && x->n_list &&
           x->least && x->products && x->ids && (x->copy || !copied);
}

infer_status nearest_new(nearest **out, const backend *be, device *dev, const tensor *table,
                         int top_k, const uint8_t *skip, infer_error *err)
{
    nearest *x = *out = mem_zero(1, sizeof *x);
    if (!x) return error_set(err, INFER_NOMEM, "labels: out of memory");
    x->be = be;
    x->dev = dev;
    x->table = *table;
    x->top_k = top_k;
    x->cap = top_k > 64 ? 4 * top_k : 256;
    x->skip = skip;
    // Narrow rows are slow in the integer kernels, other widths have none.
    x->exact = table->n_cols % 32 || table->n_cols < ACT_NARROW;
    x->x.n_cols = table->n_cols;
    x->x.stride = row_stride(table->n_cols);
    if (!allocate(x)) {
        nearest_free(x);
        *out = NULL;
        return error_set(err, INFER_NOMEM, "labels: out of memory");
    }
    if (!x->exact) be->run(dev, measure, x);
    return INFER_OK;
}

float *nearest_vectors(nearest *x, size_t *stride)
{
    *stride = x->x.stride;
    return x->x.x;
}

/* ---- candidates ------------------------------------------------------------------------------ */

static int by_score(const void *p, const void *q)
{
    const near_row *a = p, *b = q;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Exact products in place of bounds; those that can be chosen, best first, at most top_k. */
static void multiply(const worker *w, nearest *x, int i)
{
    near_row *list = x->list + (size_t)i * (size_t)x->cap;
    float *products = x->products + (size_t)w->thread * (size_t)x->cap;
    int32_t *ids = x->ids + (size_t)w->thread * (size_t)x->cap;
    int n = 0, kept = 0;
    for (int c = 0; c < x->n_list[i]; c++)
        if (!(list[c].score == list[c].upper)) ids[n++] = list[c].id;
    x->be->dot_rows(w, products, &x->table, ids, n, &x->x, i);
    n = 0;
    for (int c = 0; c < x->n_list[i]; c++) {
        near_row r = list[c];
        if (!(r.score == r.upper)) r.score = r.upper = products[n++];
        if (r.score > -INFINITY) list[kept++] = r;
    }
    qsort(list, (size_t)kept, sizeof *list, by_score);
    x->n_list[i] = kept < x->top_k ? kept : x->top_k;
    if (kept >= x->top_k) x->least[i] = list[x->top_k - 1].score;
}

/* Drops those that top_k others exceed for certain. */
static void thin_out(const worker *w, nearest *x, int i)
{
    near_row *list = x->list + (size_t)i * (size_t)x->cap;
    float *best = x->products + (size_t)w->thread * (size_t)x->cap; // [top_k], descending
    int n = x->n_list[i], k = x->top_k, n_best = 0, kept = 0;
    for (int c = 0; c < n; c++) {
        float s = list[c].score;
        if (n_best == k && !(s > best[k - 1])) continue;
        int at = n_best < k ? n_best++ : k - 1;
        for (; at > 0 && best[at - 1] < s; at--)
            best[at] = best[at - 1];
        best[at] = s;
    }
    if (n_best == k && best[k - 1] > x->least[i]) x->least[i] = best[k - 1];
    for (int c = 0; c < n; c++)
        if (!(list[c].upper < x->least[i])) list[kept++] = list[c];
    x->n_list[i] = kept;
    if (kept > x->cap / 2) multiply(w, x, i);
}

static void look_at(const worker *w, nearest *x, int i, const float *y)
{
    float a = x->a[i], b = x->b[i];
    for (int t = 0; t < x->n_tokens; t += GROUP) {
        int n = x->n_tokens - t < GROUP ? x->n_tokens - t : GROUP, g = (x->token + t) / GROUP;
        float least = x->least[i], off = a * x->group_rest[g] + b * x->group_length[g] + LEAST;
        int n_less = 0;
        least -= fabsf(least) * 0x1p-22f + off;
        for (int k = 0; k < GROUP; k++) // past the last row: not looked at again
            n_less += y[t + k] < least;
        for (int k = 0; n_less < GROUP && k < n; k++) {
            int id = x->token + t + k;
            float s = y[t + k];
            if (s < least || (x->skip && x->skip[id])) continue;
            float e =
                x->exact ? 0 : a * x->rest[id] + b * x->length[id] + fabsf(s) * 0x1p-22f + LEAST;
            // NaN: nothing is known
            near_row r = { id, s - e == s - e ? s - e : -INFINITY,
                           s + e == s + e ? s + e : INFINITY };
            if (r.upper < x->least[i]) continue;
            if (x->n_list[i] == x->cap) thin_out(w, x, i);
            x->list[(size_t)i * (size_t)x->cap + (size_t)x->n_list[i]++] = r;
        }
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

/* The two factors of a vector's bounds; by rows, as prepare. */
static void measure_vectors(const worker *w, nearest *x)
{
    int begin, end, n = x->table.n_cols;
    double g1 = (n + 2) * 0x1p-23, g2 = (n / 32.0 + 2) * 0x1p-23;
    thread_share(x->n, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        const float *v = x->x.x + (size_t)i * x->x.stride;
        const int8_t *q = x->x.q + (size_t)i * x->x.stride * ACT_PLANES;
        const float *scale = x->x.scale + (size_t)i * x->x.stride / 32;
        double length = 0, off = 0, rounded = 0;
        for (int k = 0; k < n && !x->exact; k++) {
            double z = (double)scale[k / 32] * act_value(q, (size_t)k), d = (double)v[k] - z;
            length += (double)v[k] * (double)v[k];
            off += d * d;
            rounded += z * z;
        }
        length = sqrt(length);
        bool finite = length < FINITE && off < FINITE && rounded < INFINITY;
        x->a[i] = finite ? (float)((1 + g1) * length * 1.001) : INFINITY;
        x->b[i] = finite ? (float)((sqrt(off) + g1 * length + g2 * sqrt(rounded)) * 1.001) + 1e-30f
                         : INFINITY;
        if (x->exact) x->a[i] = x->b[i] = 0;
        x->n_list[i] = 0;
        x->least[i] = -INFINITY;
    }
}

static void copy_rows(const worker *w, nearest *x)
{
    int begin, end, n = x->table.n_cols;
    size_t size = quant_row_bytes(DT_Q8_0, (size_t)n);
    float *row = x->row + 2 * (size_t)w->thread * x->x.stride;
    thread_share(x->n_tokens, GROUP, w->thread, w->n_threads, &begin, &end);
    for (int t = begin; t < end; t++) {
        tensor_row(row, &x->table, x->token + t);
        quant_formats[DT_Q8_0]->quantize(x->copy + (size_t)t * size, row, NULL, (size_t)n);
    }
}

static void search_tile(const worker *w, void *arg)
{
    nearest *x = arg;
    const backend *be = x->be;
    act all = x->x;
    all.n_rows = x->n;
    if (x->token == 0) {
        if (!x->exact) be->prepare(w, &all);
        measure_vectors(w, x);
    }
    if (x->copy) copy_rows(w, x);
    be->barrier(w);
    linear tile = { tensor_rows(&x->table, x->token, x->n_tokens), NULL };
    if (x->copy) {
        tile.w.type = DT_Q8_0;
        tile.w.data = x->copy;
        tile.w.row_bytes = quant_row_bytes(DT_Q8_0, (size_t)x->table.n_cols);
    }
    for (int first = 0; first < x->n; first += BLOCK) {
        int n = x->n - first < BLOCK ? x->n - first : BLOCK, begin, end;
        size_t at = (size_t)first * all.stride;
        act some = { all.x + at,
                     all.q + at * ACT_PLANES,
                     all.scale + at / 32,
                     all.sum + at / 16,
                     n,
                     all.n_cols,
                     all.stride };
        be->matmul(w, x->y, TOKENS, &tile, &some, x->exact);
        be->barrier(w);
        thread_share(n, 1, w->thread, w->n_threads, &begin, &end);
        for (int i = begin; i < end; i++)
            look_at(w, x, first + i, x->y + (size_t)i * TOKENS);
        be->barrier(w);
    }
    if (x->token + x->n_tokens < x->table.n_rows) return;
    int begin, end;
    thread_share(x->n, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        thin_out(w, x, i);
        multiply(w, x, i);
    }
}

bool nearest_search(nearest *x, int n, bool (*tick)(double share, void *user), void *user)
{
    x->n = n;
    for (x->token = 0; x->token < x->table.n_rows; x->token += TOKENS) {
        int left = x->table.n_rows - x->token;
        x->n_tokens = left < TOKENS ? left : TOKENS;
        x->be->run(x->dev, search_tile, x);
        if (tick && !tick((double)(x->token + x->n_tokens) / x->table.n_rows, user)) return false;
    }
    return true;
}

const near_row *nearest_best(const nearest *x, int i, int *n)
{
    *n = x->n_list[i];
    return x->list + (size_t)i * (size_t)x->cap;
}
