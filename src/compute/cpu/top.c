/*
 * top.c: the search for the largest products of a matrix through its coarse copy
 * (compute/coarse.h), one thread's share of the rows at a time:
 *
 *   1. scores and upper bounds of all rows, from the copy; rows that are not packed yet are
 *      multiplied, and are their own bounds;
 *   2. the k best scores are multiplied exactly; of all threads' the k-th largest is a product that
 *      k rows reach: whatever is provably below it is not among the k largest;
 *   3. all other rows are multiplied, by the kernel and on the bytes of the full product.
 *
 * Every comparison keeps a row unless it is provably below, so that NaN and infinity keep it too.
 */
#include "compute/cpu/top.h"

#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "base/mem.h"

#define CHUNK 32 // panels between two looks at their scores: they stay in the second-level cache

/* ---- the copy ---- */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Scratch of a thread: a row of activations in pieces, PANEL rows of the matrix, the packing's. */
static size_t act_bytes(int n_cols) { return round_up((size_t)(n_cols / 32) * 4, 64) * 3; }
static size_t rows_bytes(const tensor *w) { return round_up(PANEL * w->row_bytes, 64); }

bool coarse_open(coarse *c, const tensor *w, int n_threads)
{
    size_t n = (size_t)w->n_cols;
    *c = (coarse){ .w = *w, .panel_bytes = coarse_panel_bytes(w->n_cols), .n_threads = n_threads };
    c->n_panels = (w->n_rows + PANEL - 1) / PANEL;
    c->bytes = (size_t)c->n_panels * c->panel_bytes;
    c->scratch_bytes =
        act_bytes(w->n_cols) * COARSE_ROWS + rows_bytes(w) + round_up(COARSE_PACK_SCRATCH(n), 64);
    c->middle = 7.5f;
    if (w->type == DT_Q8_0) { // q = 16 (code - 8) + low nibble, and that is 7.5 in the mean
        c->middle = 8 - 7.5f / 16;
        c->rest_bytes = n / 32 * COARSE_REST;
        c->rests = mem_pages_large(c->rest_bytes * (size_t)w->n_rows);
    }
    c->panels = mem_pages_large(c->bytes);
    c->scratch = mem_pages(c->scratch_bytes * (size_t)n_threads);
    c->direction = mem_zero(n, sizeof *c->direction);
    c->packed = mem_zero((size_t)n_threads, sizeof *c->packed);
    bool rests = c->rests || !c->rest_bytes;
    if (c->panels && rests && c->scratch && c->direction && c->packed) return true;
    coarse_close(c);
    return false;
}

void coarse_close(coarse *c)
{
    mem_free_pages(c->panels, c->bytes);
    mem_free_pages(c->rests, c->rest_bytes * (size_t)c->w.n_rows);
    mem_free_pages(c->scratch, c->scratch_bytes * (size_t)c->n_threads);
    mem_free(c->direction);
    mem_free(c->packed);
    *c = (coarse){ 0 };
}

void coarse_drop(coarse *c)
{
    mem_drop_pages(c->panels, c->bytes);
    mem_drop_pages(c->rests, c->rest_bytes * (size_t)c->w.n_rows);
    memset(c->packed, 0, (size_t)c->n_threads * sizeof *c->packed);
}

/* Rows [*first, *end) of the thread's share, of which those before *packed are packed. */
static void share_of(const coarse *c, int thread, int *first, int *packed, int *end)
{
    thread_share(c->w.n_rows, PANEL, thread, c->n_threads, first, end);
    *packed = *first + c->packed[thread] * PANEL;
    if (*packed > *end) *packed = *end;
}

size_t coarse_packed_bytes(const coarse *c)
{
    size_t n = 0;
    for (int i = 0; i < c->n_threads; i++)
        n += (size_t)c->packed[i] * (c->panel_bytes + PANEL * c->rest_bytes);
    return n;
}

size_t coarse_packed_rows(const coarse *c)
{
    size_t n = 0;
    for (int i = 0; i < c->n_threads; i++) {
        int first, packed, end;
        share_of(c, i, &first, &packed, &end);
        n += (size_t)(packed - first);
    }
    return n;
}

void coarse_pack_more(coarse *c, const cpu_kernels *k, int thread, int n, const uint8_t **from,
                      size_t *size)
{
    int first, packed, end;
    share_of(c, thread, &first, &packed, &end);
    uint8_t *scratch = c->scratch + c->scratch_bytes * (size_t)thread;
    for (; n > 0 && packed < end; n--, packed += PANEL) {
        k->coarse_pack(c, packed / PANEL,
                       scratch + act_bytes(c->w.n_cols) * COARSE_ROWS + rows_bytes(&c->w));
        c->packed[thread]++;
    }
    if (packed > end) packed = end;
    *from = c->w.data + (size_t)first * c->w.row_bytes;
    *size = (size_t)(packed - first) * c->w.row_bytes;
}

/* ---- the activations ---- */

/* Row r of x, as one row. */
static act row_of(const act *x, int r)
{
    act v = *x;
    size_t at = (size_t)r * x->stride;
    v.x += at;
    v.q += at * ACT_PLANES;
    v.scale += at / 32;
    v.sum += at / 16;
    v.n_rows = 1;
    return v;
}

/* x as the scores read it: z is what the exact product multiplies, g = scale * v what the scores
 * do. False where z is not finite. */
static bool prepare(coarse_act *out, const coarse *c, const act *x, uint8_t *scratch)
{
    int n_blocks = c->w.n_cols / 32;
    bool is_float = !quant_formats[c->w.type]->sub; // z = x, else z = g
    size_t piece = round_up((size_t)n_blocks * 4, 64);
    float *offset = (float *)(void *)scratch, *norm = (float *)(void *)(scratch + piece);
    double along = 0, squares = 0, rounded = 0;
    for (int b = 0; b < n_blocks; b++)
        for (int k = b * 32; k < b * 32 + 32; k++) {
            double g = (double)x->scale[b] * act_value(x->q, (size_t)k);
            double z = is_float ? (double)x->x[k] : g;
            along += z * (double)c->direction[k];
            squares += z * z;
            rounded += (z - g) * (z - g);
        }
    if (!(sqrt(squares) < (double)COARSE_LARGEST)) return false;
    float part = (float)along;
    for (int b = 0; b < n_blocks; b++) {
        double across = 0;
        for (int k = b * 32; k < b * 32 + 32; k++) {
            double g = (double)x->scale[b] * act_value(x->q, (size_t)k);
            double z = is_float ? (double)x->x[k] : g;
            double v = z - (double)part * (double)c->direction[k];
            across += v * v;
        }
        norm[b] = (float)(sqrt(across) * (1 + 1e-6)) + 1e-37f;
        int sum = x->sum[2 * b] + x->sum[2 * b + 1];
        offset[b] = (float)(-(double)c->middle * (double)x->scale[b] * sum);
    }
    // The ADR's theta. terms: roundings on the way of one term of the exact product.
    double terms = c->w.n_cols / 8.0 + 48, size = sqrt(squares) * (1 + 1e-9);
    double slack = size * ((terms + n_blocks + 64) * 0x1p-23 + 0x1p-17) + 1.01 * sqrt(rounded);
    *out = (coarse_act){ .q = x->q,
                         .scale = x->scale,
                         .offset = offset,
                         .norm = norm,
                         .along = part,
                         .slack = (float)(slack * 1.0001) + 1e-30f };
    return true;
}

/* ---- the search ---- */

typedef struct search {
    const cpu_kernels *k;
    const top_args *a;
    int thread, row;
    act x;
    int first, packed, end;
    float *score, *upper; // of all rows
    uint8_t *rows;        // [PANEL, row_bytes]
    void *scratch;        // the matmul's
} search;

static void multiply(const cpu_kernels *k, const matmul_args *m)
{
    if (m->begin >= m->end) return;
    if (quant_formats[m->w->type]->sub)
        k->matmul_int8(m);
    else
        k->matmul_f32(m);
}

static const uint8_t *panel_of(const coarse *c, int32_t id)
{
    return c->panels + (size_t)(id / PANEL) * c->panel_bytes;
}

/* A row's bytes, as in the file. */
static void copy_row(uint8_t *row, const coarse *c, int32_t id)
{
    if (!c->rests) {
        memcpy(row, c->w.data + (size_t)id * c->w.row_bytes, c->w.row_bytes);
        return;
    }
    const uint8_t *rest = c->rests + (size_t)id * c->rest_bytes;
    const uint8_t *p = panel_of(c, id) + 64 * (id % 4) + 16 * (id % PANEL / 4);
    for (int b = 0; b < c->w.n_cols / 32; b++) {
        uint8_t high[16], low[16], q[32];
        memcpy(high, p, 16);
        memcpy(low, rest, 16);
        for (int i = 0; i < 16; i++) {
            q[i] = (uint8_t)((high[i] << 4 | (low[i] & 15)) ^ 128);
            q[16 + i] = (uint8_t)(((high[i] & 240) | low[i] >> 4) ^ 128);
        }
        memcpy(row, rest + 16, 2);
        memcpy(row + 2, q, 32);
        row += 34;
        rest += COARSE_REST;
        p += COARSE_BLOCK;
    }
}

static void prefetch_row(const coarse *c, int32_t id)
{
    const uint8_t *row =
        c->rests ? c->rests + (size_t)id * c->rest_bytes : c->w.data + (size_t)id * c->w.row_bytes;
    for (size_t at = 0; at < (c->rests ? c->rest_bytes : c->w.row_bytes); at += 64)
        PREFETCH(row + at);
    for (int b = 0; c->rests && b < c->w.n_cols / 32; b++)
        PREFETCH(panel_of(c, id) + (size_t)b * COARSE_BLOCK + 64 * (id % 4));
}

/* Exact products of n rows that are packed. */
static void multiply_packed(const search *s, float *y, const int32_t *ids, int n)
{
    const coarse *c = s->a->c;
    tensor few = c->w;
    float part[PANEL] ATTR_ALIGNED(64);
    few.data = s->rows;
    for (int i = 0; i < n && i < 4; i++)
        prefetch_row(c, ids[i]);
    for (int i = 0; i < n; i += PANEL) {
        int m = n - i < PANEL ? n - i : PANEL;
        for (int j = 0; j < m; j++) {
            if (i + j + 4 < n) prefetch_row(c, ids[i + j + 4]);
            copy_row(s->rows + (size_t)j * c->w.row_bytes, c, ids[i + j]);
        }
        few.n_rows = m;
        matmul_args args = { part, 0, &few, &s->x, 0, m, s->scratch };
        multiply(s->k, &args);
        memcpy(y + i, part, (size_t)m * sizeof *y);
    }
}

/* Exact products of n rows, in any order; of those not packed yet they are known. */
static void multiply_rows(const search *s, float *y, int32_t *ids, int n)
{
    int n_packed = 0;
    for (int i = 0; i < n; i++) { // the packed ones first
        int32_t id = ids[i];
        if (id >= s->packed) continue;
        ids[i] = ids[n_packed];
        ids[n_packed++] = id;
    }
    multiply_packed(s, y, ids, n_packed);
    for (int i = n_packed; i < n; i++)
        y[i] = s->score[ids[i]];
}

static bool is_also(const top_row *r, int32_t id)
{
    int lo = 0, hi = r->n_also;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (r->also[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < r->n_also && r->also[lo] == id;
}

/* The k largest values seen, as a heap with the least on top. */
typedef struct largest {
    int k, n;
    float value[COARSE_MOST];
    int32_t id[COARSE_MOST];
} largest;

static void offer(largest *h, float value, int32_t id)
{
    int i = 0;
    if (h->n < h->k) { // up from the end
        for (i = h->n++; i && h->value[(i - 1) / 2] > value; i = (i - 1) / 2) {
            h->value[i] = h->value[(i - 1) / 2];
            h->id[i] = h->id[(i - 1) / 2];
        }
    } else { // down from the top
        if (!(value > h->value[0])) return;
        for (int child; (child = 2 * i + 1) < h->n; i = child) {
            if (child + 1 < h->n && h->value[child + 1] < h->value[child]) child++;
            if (!(h->value[child] < value)) break;
            h->value[i] = h->value[child];
            h->id[i] = h->id[child];
        }
    }
    h->value[i] = value;
    h->id[i] = id;
}

static float least(const largest *h) { return h->n < h->k ? -INFINITY : h->value[0]; }

/* Offers the scores of rows [from, to). */
static void offer_scores(const search *s, largest *h, int from, int to)
{
    const top_row *r = &s->a->rows[s->row];
    for (int i = from; i < to; i += PANEL) {
        int n = to - i < PANEL ? to - i : PANEL, any = 0;
        float than = least(h);
        for (int j = 0; j < n; j++)
            any |= s->score[i + j] > than;
        for (int j = 0; any && j < n; j++)
            if (s->score[i + j] > least(h) && !is_also(r, i + j)) offer(h, s->score[i + j], i + j);
    }
}

/* A product that k rows reach, less what the scale after it can round away. */
static float reached(const top_args *a, int row)
{
    largest h = { .k = a->rows[row].k };
    for (int t = 0; t < a->c->n_threads; t++) {
        size_t at = (size_t)t * (size_t)a->x->n_rows + (size_t)row;
        const float *best = a->best + at * COARSE_MOST;
        for (int i = 0; i < h.k; i++)
            if (best[i] > -INFINITY) offer(&h, best[i], 0);
    }
    float v = least(&h);
    return v - fabsf(v) * 0x1p-21f - 1e-30f;
}

/* Rows that may reach `tau`, and `also`, with their products; returns their number or -1. */
static int collect(const search *s, float tau, int32_t *ids, float *values)
{
    const top_row *r = &s->a->rows[s->row];
    int n = 0, also = 0, room = s->a->room;
    while (also < r->n_also && r->also[also] < s->first)
        also++;
    for (int i = s->first; i < s->end; i += PANEL) {
        int m = s->end - i < PANEL ? s->end - i : PANEL, any = 0;
        for (int j = 0; j < m; j++)
            any |= !(s->upper[i + j] < tau);
        any |= also < r->n_also && r->also[also] < i + m;
        for (int j = 0; any && j < m; j++) {
            bool asked = also < r->n_also && r->also[also] == i + j;
            also += asked;
            if (!asked && s->upper[i + j] < tau) continue;
            if (n == room) return -1;
            ids[n++] = i + j;
        }
    }
    multiply_rows(s, values, ids, n); // ascending, so that the order stays
    if (s->a->scale != 1.0f) s->k->scale(values, s->a->scale, n);
    return n;
}

void top_search(const cpu_kernels *k, thread_pool *pool, void *scratch, const top_args *a,
                int thread)
{
    const coarse *c = a->c;
    int n_rows = a->x->n_rows, n_blocks = c->w.n_cols / 32;
    uint8_t *mine = c->scratch + c->scratch_bytes * (size_t)thread;
    search s[COARSE_ROWS];
    coarse_act x[COARSE_ROWS];
    bool usable[COARSE_ROWS];
    for (int r = 0; r < n_rows; r++) {
        s[r] = (search){ .k = k, .a = a, .thread = thread, .row = r, .scratch = scratch };
        s[r].x = row_of(a->x, r);
        s[r].score = a->score + (size_t)r * a->stride;
        s[r].upper = a->upper + (size_t)r * a->stride;
        s[r].rows = mine + act_bytes(c->w.n_cols) * COARSE_ROWS;
        share_of(c, thread, &s[r].first, &s[r].packed, &s[r].end);
        usable[r] = prepare(&x[r], c, &s[r].x, mine + act_bytes(c->w.n_cols) * (size_t)r);
    }
    largest best[COARSE_ROWS];
    for (int r = 0; r < n_rows; r++)
        best[r] = (largest){ .k = a->rows[r].k };
    int first = s[0].first, packed = s[0].packed, end = s[0].end;
    for (int i = first; i < packed; i += CHUNK * PANEL) {
        int to = packed - i < CHUNK * PANEL ? packed : i + CHUNK * PANEL;
        for (int r = 0; r < n_rows; r++) {
            if (!usable[r]) continue;
            k->coarse_scores(s[r].score + i, s[r].upper + i,
                             c->panels + (size_t)(i / PANEL) * c->panel_bytes,
                             (to - i + PANEL - 1) / PANEL, n_blocks, &x[r]);
            offer_scores(&s[r], &best[r], i, to);
        }
    }
    matmul_args rest = { a->score, a->stride, &c->w, a->x, packed, end, scratch };
    multiply(k, &rest);
    for (int r = 0; r < n_rows; r++) {
        memcpy(s[r].upper + packed, s[r].score + packed, (size_t)(end - packed) * sizeof(float));
        offer_scores(&s[r], &best[r], packed, end);
        float *out = a->best + ((size_t)thread * (size_t)n_rows + (size_t)r) * COARSE_MOST;
        multiply_rows(&s[r], out, best[r].id, best[r].n);
        for (int i = best[r].n; i < best[r].k; i++)
            out[i] = -INFINITY;
    }
    pool_barrier(pool);
    for (int r = 0; r < n_rows; r++) {
        size_t at = (size_t)thread * (size_t)a->room;
        top_row *row = &a->rows[r];
        row->n[thread] =
            usable[r] ? collect(&s[r], reached(a, r), row->ids + at, row->values + at) : -1;
    }
}
