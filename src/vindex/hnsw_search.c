/*
 * hnsw_search.c: searching a graph: greedy descent to level 0, then a beam. What orders both is
 * |integer product| * scale; the best of the beam are scored again on the matrix's own rows.
 */
#include <string.h>

#include "base/compiler.h"
#include "base/mem.h"
#include "vindex/hnsw_impl.h"

struct graph_search {
    const cpu_kernels *k;
    int n_rows, n_cols, ef;
    size_t row_bytes;
    uint32_t *seen, stamp; // [n_rows] the stamp of the search that saw a place
    uint64_t *beam;        // [ef] keys, the largest first; the lowest bit of `done` below
    uint8_t *done;         // [ef] its links have been looked at
    int8_t *q;             // [stride]
    act x;
    uint8_t *rows; // [ef, row_bytes] gathered for the exact scores
    float *scores; // [ef, rounded up]
    void *scratch; // of the matmul
    size_t x_floats, scratch_bytes;
    uint64_t compared;
};

graph_search *graph_search_new(int n_rows, int n_cols, size_t row_bytes, int ef)
{
    graph_search *s = mem_zero(1, sizeof *s);
    if (!s) return NULL;
    s->k = cpu_kernels_get(NULL);
    s->n_rows = n_rows;
    s->n_cols = n_cols;
    s->row_bytes = row_bytes;
    s->ef = ef;
    s->x_floats = row_stride(n_cols);
    s->scratch_bytes = matmul_scratch_bytes(n_cols);
    s->seen = mem_zero((size_t)n_rows + 1, sizeof *s->seen);
    s->beam = mem_alloc((size_t)ef + 1, sizeof *s->beam);
    s->done = mem_alloc((size_t)ef + 1, 1);
    s->rows = mem_alloc((size_t)ef, row_bytes);
    s->scores = mem_pages(padded((size_t)ef) * sizeof *s->scores);
    s->scratch = mem_pages(s->scratch_bytes);
    s->q = mem_alloc(s->x_floats, 1);
    s->x.x = mem_pages(s->x_floats * sizeof(float));
    s->x.q = mem_pages(s->x_floats * ACT_PLANES);
    s->x.scale = mem_pages(s->x_floats / 32 * sizeof(float));
    s->x.sum = mem_pages(s->x_floats / 16 * sizeof(int32_t));
    s->x.n_rows = 1;
    s->x.stride = s->x_floats;
    if (s->seen && s->beam && s->done && s->rows && s->scores && s->scratch && s->q && s->x.x &&
        s->x.q && s->x.scale && s->x.sum)
        return s;
    graph_search_free(s);
    return NULL;
}

void graph_search_free(graph_search *s)
{
    if (!s) return;
    mem_free(s->seen);
    mem_free(s->beam);
    mem_free(s->done);
    mem_free(s->rows);
    mem_free(s->q);
    mem_free_pages(s->scores, padded((size_t)s->ef) * sizeof *s->scores);
    mem_free_pages(s->scratch, s->scratch_bytes);
    mem_free_pages(s->x.x, s->x_floats * sizeof(float));
    mem_free_pages(s->x.q, s->x_floats * ACT_PLANES);
    mem_free_pages(s->x.scale, s->x_floats / 32 * sizeof(float));
    mem_free_pages(s->x.sum, s->x_floats / 16 * sizeof(int32_t));
    mem_free(s);
}

int graph_search_ef(const graph_search *s) { return s->ef; }
uint64_t graph_search_compared(const graph_search *s) { return s->compared; }

#define LINKS_MAX (2 * GRAPH_M_MAX) // of a place

static uint32_t row_of(const graph_level *l, uint32_t place)
{
    return l->rows ? l->rows[place] : place;
}

/* Keys of n places of a level. */
static void compare(const vindex_graph *g, graph_search *s, const graph_level *l, uint64_t *keys,
                    const uint32_t *places, int n)
{
    const int8_t *vectors[LINKS_MAX], *q = s->q;
    if (n <= 0) return;
    int32_t products[LINKS_MAX];
    for (int i = 0; i < n; i++)
        vectors[i] = g->vectors + (size_t)row_of(l, places[i]) * g->stride;
    s->k->dots_i8(products, LINKS_MAX, &q, 1, vectors, n, (int)g->stride);
    for (int i = 0; i < n; i++)
        keys[i] = key_of(products[i], g->scale[row_of(l, places[i])], places[i]);
    s->compared += (uint64_t)n;
}

/* Place of a row in a level; the row is in it. */
static uint32_t place_of(const graph_level *l, uint32_t row)
{
    if (!l->rows) return row;
    uint32_t lo = 0, hi = (uint32_t)l->n - 1;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (l->rows[mid] < row)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The nearest place of level 0 that greedy steps reach. */
static uint64_t descend(const vindex_graph *g, graph_search *s)
{
    uint64_t best, keys[LINKS_MAX];
    uint32_t place = g->entry;
    compare(g, s, &g->levels[g->n_levels - 1], &best, &place, 1);
    for (int l = g->n_levels - 1; l > 0; l--) {
        const graph_level *v = &g->levels[l];
        for (bool better = true; better;) {
            const uint32_t *links = v->links + (size_t)key_place(best) * (size_t)v->width;
            int n = 0;
            while (n < v->width && links[n] != GRAPH_NONE)
                n++;
            compare(g, s, v, keys, links, n);
            better = false;
            for (int i = 0; i < n; i++)
                if (keys[i] > best) best = keys[i], better = true;
        }
        uint32_t below = place_of(&g->levels[l - 1], v->rows[key_place(best)]);
        best = (best >> 32) << 32 | (uint32_t)~below;
    }
    return best;
}

/* Fills the beam; its size. */
static int walk(const vindex_graph *g, graph_search *s, int ef)
{
    const graph_level *v = &g->levels[0];
    if (++s->stamp == 0) {
        memset(s->seen, 0, (size_t)s->n_rows * sizeof *s->seen);
        s->stamp = 1;
    }
    int n = 1, at = 0; // at: nothing before it is left to do
    s->beam[0] = descend(g, s);
    s->done[0] = 0;
    s->seen[key_place(s->beam[0])] = s->stamp;
    while (at < n) {
        if (s->done[at]) {
            at++;
            continue;
        }
        s->done[at] = 1;
        uint32_t fresh[LINKS_MAX], place = key_place(s->beam[at]);
        uint64_t keys[LINKS_MAX];
        const uint32_t *links = v->links + (size_t)place * (size_t)v->width;
        int n_fresh = 0;
        for (int i = 0; i < v->width && links[i] != GRAPH_NONE; i++) {
            if (s->seen[links[i]] == s->stamp) continue;
            s->seen[links[i]] = s->stamp;
            fresh[n_fresh++] = links[i];
        }
        compare(g, s, v, keys, fresh, n_fresh);
        for (int i = 0; i < n_fresh; i++) {
            if (n == ef && keys[i] <= s->beam[n - 1]) continue;
            int lo = 0, hi = n;
            while (lo < hi) {
                int mid = (lo + hi) / 2;
                if (s->beam[mid] > keys[i])
                    lo = mid + 1;
                else
                    hi = mid;
            }
            int last = n < ef ? n++ : n - 1;
            memmove(s->beam + lo + 1, s->beam + lo, (size_t)(last - lo) * sizeof *s->beam);
            memmove(s->done + lo + 1, s->done + lo, (size_t)(last - lo));
            s->beam[lo] = keys[i];
            s->done[lo] = 0;
            if (lo < at) at = lo;
        }
    }
    return n;
}

/* The query as the kernels want it; false where it is zero or not finite. */
static bool take_query(const vindex_graph *g, graph_search *s, const float *x, int n_x)
{
    s->x.n_cols = g->n_cols;
    memcpy(s->x.x, x, (size_t)n_x * sizeof *x);
    memset(s->x.x + n_x, 0, (s->x_floats - (size_t)n_x) * sizeof *x);
    if (g->n_cols % 32 == 0) s->k->act_row(s->x.q, s->x.scale, s->x.sum, s->x.x, g->n_cols);
    return graph_bytes(s->q, s->x.x, g->n_cols, g->stride) != 0.0f;
}

/* Scores of the beam's first n as a scan gives them. */
static void score(const vindex_graph *g, graph_search *s, const tensor *rows, int n)
{
    if (knn_reads_rows(rows)) {
        const float *x = s->x.x;
        const void *some[8];
        for (int i = 0, m; i < n; i += m) {
            m = n - i < COUNT_OF(some) ? n - i : COUNT_OF(some);
            for (int j = 0; j < m; j++)
                some[j] = rows->data + (size_t)key_place(s->beam[i + j]) * rows->row_bytes;
            s->k->dots_float(s->scores + i, (size_t)m, &x, 1, some, m, g->n_cols,
                             rows->type == DT_F16);
        }
        return;
    }
    for (int i = 0; i < n; i++)
        memcpy(s->rows + (size_t)i * rows->row_bytes,
               rows->data + (size_t)key_place(s->beam[i]) * rows->row_bytes, rows->row_bytes);
    tensor some = *rows;
    some.data = s->rows;
    some.n_rows = n;
    matmul_args a = { s->scores, padded((size_t)n), &some, &s->x, 0, n, s->scratch };
    if (quant_formats[rows->type]->sub && g->n_cols % 32 == 0)
        s->k->matmul_int8(&a);
    else
        s->k->matmul_f32(&a);
}

/* Larger in magnitude; among equals the lower row. */
static bool comes_before(knn_hit a, knn_hit b)
{
    float x = fabsf(a.score), y = fabsf(b.score);
    return x > y || (x == y && a.row < b.row);
}

int graph_find(const vindex_graph *g, graph_search *s, knn_hit *hits, int n, const tensor *rows,
               const float *x, int n_x, int ef)
{
    if (ef < n) ef = n;
    if (ef > s->ef) ef = s->ef;
    if (!g->n_rows || n <= 0 || n_x > g->n_cols || !take_query(g, s, x, n_x)) return 0;
    int found = walk(g, s, ef);
    // bytes misplace neighbours in rank, not more: twice as many are scored
    int again = 2 * n + 8 < found ? 2 * n + 8 : found;
    score(g, s, rows, again);
    int n_hits = 0;
    for (int i = 0; i < again; i++) {
        knn_hit h = { (int)key_place(s->beam[i]), s->scores[i] };
        if (isnan(h.score)) continue;
        int at = n_hits < n ? n_hits : n;
        while (at > 0 && comes_before(h, hits[at - 1]))
            at--;
        if (at >= n) continue;
        int last = n_hits < n ? n_hits++ : n - 1;
        memmove(hits + at + 1, hits + at, (size_t)(last - at) * sizeof *hits);
        hits[at] = h;
    }
    return n_hits;
}
