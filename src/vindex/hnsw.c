/*
 * hnsw.c: building the graph.
 *
 * Rows are taken in a random order; a row's candidates in a level are the nearest of the rows
 * before it, all of which are compared: products of bytes by tiles run so much faster than a walk
 * over scattered vectors that comparing all is quicker than searching up to some 10^5 rows, and it
 * makes candidates exact and independent of each other. So each row is a task of its own, in three
 * passes: candidates and their choice; links back, gathered by target; their choice.
 *
 * Nearness is |inner product|, of rows with each other too: a graph by cosines needs twice the
 * comparisons for the same recall of the largest products.
 *
 * Choice: from the nearest on, a candidate is taken unless it is nearer to one already taken than
 * to the row itself.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "vindex/hnsw_impl.h"

#define TILE 32  // rows that look for candidates together
#define BLOCK 64 // rows that they are compared with at once
#define DEFAULT_M 16
#define DEFAULT_EF 100
#define ROWS_MAX (1 << 26)

/* ---- vectors of bytes ------------------------------------------------------------------------ */

float graph_bytes(int8_t *q, const float *x, int n, size_t stride)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits = f32_bits(x[i]) & 0x7fffffffu;
        if (bits > most) most = bits;
    }
    memset(q, 0, stride);
    float amax = f32_from_bits(most), inverse = 127.0f / amax;
    if (!isfinite(amax) || amax == 0.0f || !isfinite(inverse)) return 0.0f;
    for (int i = 0; i < n; i++) {
        float t = x[i] * inverse; // rounded by adding: half to even
        q[i] = (int8_t)((int)(t + 384.0f + 0x1p23f - 0x1p23f) - 384);
    }
    return amax / 127.0f;
}

/* ---- building -------------------------------------------------------------------------------- */

typedef struct key_list {
    uint64_t *v; // a heap, the smallest first; or sorted, the largest first
    int n;
} key_list;

static void keep_best(key_list *l, int most, uint64_t key)
{
    if (l->n < most) {
        int at = l->n++;
        for (; at && l->v[(at - 1) / 2] > key; at = (at - 1) / 2)
            l->v[at] = l->v[(at - 1) / 2];
        l->v[at] = key;
        return;
    }
    if (key <= l->v[0]) return;
    int at = 0;
    for (int c; (c = 2 * at + 1) < most; at = c) {
        if (c + 1 < most && l->v[c + 1] < l->v[c]) c++;
        if (l->v[c] >= key) break;
        l->v[at] = l->v[c];
    }
    l->v[at] = key;
}

static void sort_best(uint64_t *v, int n)
{
    for (int gap = n / 2; gap > 0; gap /= 2)
        for (int i = gap; i < n; i++) {
            uint64_t key = v[i];
            int at = i;
            for (; at >= gap && v[at - gap] < key; at -= gap)
                v[at] = v[at - gap];
            v[at] = key;
        }
}

typedef struct build {
    vindex_graph *g;
    const tensor *rows;
    const cpu_kernels *k;
    int ef;
    _Atomic infer_status status;
    // of the level at hand
    graph_level *level;
    uint32_t *links;   // level->links, writable
    uint32_t *order;   // [n] places in random order
    uint32_t *chosen;  // [n, m] of each place, GRAPH_NONE at the end
    uint32_t *back_at; // [n + 1] where in back a place's begin
    uint32_t *back;    // links back, by target
    atomic_int next;   // task
    thread_fn *pass;
} build;

static const int8_t *vector_of(const build *b, uint32_t place)
{
    const uint32_t *rows = b->level->rows;
    return b->g->vectors + (size_t)(rows ? rows[place] : place) * b->g->stride;
}
static float scale_of(const build *b, uint32_t place)
{
    const uint32_t *rows = b->level->rows;
    return b->g->scale[rows ? rows[place] : place];
}

/* Of candidates (sorted, nearest first) the links of `place`, at most `most`; the count. Clobbers
 * v; products and vectors are scratch [n]. */
static int choose(const build *b, uint32_t *out, int most, uint64_t *v, int n, int32_t *products,
                  const int8_t **vectors)
{
    int taken = 0;
    while (n > 0 && taken < most) {
        uint32_t best = key_place(v[0]);
        out[taken++] = best;
        const int8_t *q = vector_of(b, best);
        float weight = scale_of(b, best);
        for (int i = 1; i < n; i++)
            vectors[i] = vector_of(b, key_place(v[i]));
        if (taken < most && n > 1)
            b->k->dots_i8(products + 1, (size_t)n, &q, 1, vectors + 1, n - 1, (int)b->g->stride);
        int left = 0;
        for (int i = 1; i < n; i++) { // the candidate's own length cancels
            float to_best = fabsf((float)products[i]) * weight;
            float to_row = f32_from_bits((uint32_t)(v[i] >> 32));
            if (to_best * scale_of(b, key_place(v[i])) <= to_row) v[left++] = v[i];
        }
        n = left;
    }
    return taken;
}

/* Task t: the candidates and the choice of the places order[t * TILE …]. */
typedef struct forward_scratch {
    uint64_t *keys; // [TILE, ef]
    int32_t products[TILE * BLOCK];
    int32_t *more; // [ef]
    const int8_t **vectors;
} forward_scratch;

static void forward_tile(build *b, forward_scratch *s, int begin)
{
    int n = b->level->n, end = begin + TILE < n ? begin + TILE : n;
    const int8_t *q[TILE], *v[BLOCK];
    key_list best[TILE];
    for (int i = begin; i < end; i++) {
        q[i - begin] = vector_of(b, b->order[i]);
        best[i - begin] = (key_list){ s->keys + (size_t)(i - begin) * (size_t)b->ef, 0 };
    }
    for (int j = 0, m; j < end; j += m) { // rows before the tile's last
        m = end - j < BLOCK ? end - j : BLOCK;
        for (int l = 0; l < m; l++)
            v[l] = vector_of(b, b->order[j + l]);
        b->k->dots_i8(s->products, BLOCK, q, end - begin, v, m, (int)b->g->stride);
        for (int i = begin; i < end; i++) {
            float mine = scale_of(b, b->order[i]);
            for (int l = 0; l < m && j + l < i; l++) {
                uint32_t place = b->order[j + l];
                uint64_t key =
                    key_of(s->products[(i - begin) * BLOCK + l], mine * scale_of(b, place), place);
                key_list *list = &best[i - begin];
                if (list->n < b->ef || key > list->v[0]) keep_best(list, b->ef, key);
            }
        }
    }
    int width = b->g->m;
    for (int i = begin; i < end; i++) {
        key_list *l = &best[i - begin];
        uint32_t *out = b->chosen + (size_t)b->order[i] * (size_t)width;
        sort_best(l->v, l->n);
        int taken = choose(b, out, width, l->v, l->n, s->more, s->vectors);
        for (; taken < width; taken++)
            out[taken] = GRAPH_NONE;
    }
}

static void forward_pass(void *arg, int thread, int n_threads)
{
    build *b = arg;
    (void)thread;
    (void)n_threads;
    size_t ef = (size_t)b->ef;
    forward_scratch *s = mem_alloc(1, sizeof *s);
    uint64_t *keys = mem_alloc(TILE * ef, sizeof *keys);
    int32_t *more = mem_alloc(ef, sizeof *more);
    const int8_t **vectors = mem_alloc(ef, sizeof *vectors);
    if (s && keys && more && vectors) {
        s->keys = keys;
        s->more = more;
        s->vectors = vectors;
        // from the end: the longest tasks first
        int n_tasks = (b->level->n + TILE - 1) / TILE, t;
        while ((t = atomic_fetch_add(&b->next, 1)) < n_tasks)
            forward_tile(b, s, (n_tasks - 1 - t) * TILE);
    } else {
        b->status = INFER_NOMEM;
    }
    mem_free(vectors);
    mem_free(more);
    mem_free(keys);
    mem_free(s);
}

/* Whom each place was chosen by, ascending. */
static void gather_back(build *b)
{
    uint32_t n = (uint32_t)b->level->n;
    size_t width = (size_t)b->g->m, n_links = n * width;
    memset(b->back_at, 0, (n + 1) * sizeof *b->back_at);
    for (size_t i = 0; i < n_links; i++)
        if (b->chosen[i] != GRAPH_NONE) b->back_at[b->chosen[i] + 1]++;
    for (uint32_t i = 0; i < n; i++)
        b->back_at[i + 1] += b->back_at[i];
    for (uint32_t i = 0; i < n; i++)
        for (size_t j = 0; j < width && b->chosen[i * width + j] != GRAPH_NONE; j++)
            b->back[b->back_at[b->chosen[i * width + j]]++] = i;
    for (uint32_t i = n; i > 0; i--) // each begin was moved to its end
        b->back_at[i] = b->back_at[i - 1];
    b->back_at[0] = 0;
}

typedef struct back_scratch {
    uint64_t *keys;
    int32_t *products;
    const int8_t **vectors;
    int cap;
} back_scratch;

static bool back_reserve(back_scratch *s, int n)
{
    if (n <= s->cap) return true;
    mem_free(s->keys);
    mem_free(s->products);
    mem_free(s->vectors);
    s->cap = 2 * n;
    s->keys = mem_alloc((size_t)s->cap, sizeof *s->keys);
    s->products = mem_alloc((size_t)s->cap, sizeof *s->products);
    s->vectors = mem_alloc((size_t)s->cap, sizeof *s->vectors);
    return s->keys && s->products && s->vectors;
}

static bool back_place(build *b, back_scratch *s, uint32_t place)
{
    int m = b->g->m, width = b->level->width, n = 0;
    const uint32_t *own = b->chosen + (size_t)place * (size_t)m;
    uint32_t *out = b->links + (size_t)place * (size_t)width;
    int n_back = (int)(b->back_at[place + 1] - b->back_at[place]);
    if (!back_reserve(s, m + n_back)) return false;
    const int8_t *q = vector_of(b, place);
    for (; n < m && own[n] != GRAPH_NONE; n++)
        s->keys[n] = own[n];
    for (int i = 0; i < n_back; i++)
        s->keys[n++] = b->back[b->back_at[place] + (uint32_t)i];
    for (int i = 0; i < n; i++)
        s->vectors[i] = vector_of(b, (uint32_t)s->keys[i]);
    if (n) b->k->dots_i8(s->products, (size_t)n, &q, 1, s->vectors, n, (int)b->g->stride);
    for (int i = 0; i < n; i++)
        s->keys[i] = key_of(s->products[i], scale_of(b, place) * scale_of(b, (uint32_t)s->keys[i]),
                            (uint32_t)s->keys[i]);
    sort_best(s->keys, n);
    if (n > width) {
        n = choose(b, out, width, s->keys, n, s->products, s->vectors);
    } else {
        for (int i = 0; i < n; i++)
            out[i] = key_place(s->keys[i]);
    }
    for (; n < width; n++)
        out[n] = GRAPH_NONE;
    return true;
}

static void back_pass(void *arg, int thread, int n_threads)
{
    build *b = arg;
    back_scratch s = { 0 };
    (void)thread;
    (void)n_threads;
    int n_tasks = (b->level->n + TILE - 1) / TILE, t;
    bool ok = true;
    while (ok && (t = atomic_fetch_add(&b->next, 1)) < n_tasks)
        for (int i = t * TILE; ok && i < (t + 1) * TILE && i < b->level->n; i++)
            ok = back_place(b, &s, (uint32_t)i);
    if (!ok) b->status = INFER_NOMEM;
    mem_free(s.keys);
    mem_free(s.products);
    mem_free(s.vectors);
}

static void vectors_pass(void *arg, int thread, int n_threads)
{
    build *b = arg;
    vindex_graph *g = b->g;
    int begin, end;
    thread_share(g->n_rows, 1, thread, n_threads, &begin, &end);
    float *row = mem_alloc((size_t)g->n_cols, sizeof *row);
    if (!row) {
        b->status = INFER_NOMEM;
        return;
    }
    int8_t *vectors = (int8_t *)(uintptr_t)g->vectors;
    float *scale = (float *)(uintptr_t)g->scale;
    for (int r = begin; r < end; r++) {
        int8_t *q = vectors + (size_t)r * g->stride;
        tensor_row(row, b->rows, r);
        scale[r] = graph_bytes(q, row, g->n_cols, g->stride);
    }
    mem_free(row);
}

/* ---- levels ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Each level keeps one row of m of the level below, by chance alone. */
static int level_of(uint64_t seed, int row, int m)
{
    uint64_t bits = mix(mix(seed) ^ (uint64_t)row);
    int level = 0;
    double u = (double)(bits >> 11) * 0x1p-53, part = 1.0;
    while (level < GRAPH_LEVELS - 1 && u < (part /= m))
        level++;
    return level;
}

typedef struct random_place {
    uint64_t random;
    uint32_t place;
} random_place;

static int by_random(const void *a, const void *b)
{
    const random_place *x = a, *y = b;
    if (x->random != y->random) return x->random < y->random ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static infer_status shuffle(uint32_t *order, int n, uint64_t seed, infer_error *err)
{
    random_place *p = mem_alloc((size_t)n, sizeof *p);
    if (!p) return error_set(err, INFER_NOMEM, "graph: out of memory for %d rows", n);
    for (int i = 0; i < n; i++)
        p[i] = (random_place){ mix(seed + mix((uint64_t)i)), (uint32_t)i };
    qsort(p, (size_t)n, sizeof *p, by_random);
    for (int i = 0; i < n; i++)
        order[i] = p[i].place;
    mem_free(p);
    return INFER_OK;
}

/* How many rows each level has. */
static void count_levels(vindex_graph *g, uint64_t seed)
{
    for (int r = 0; r < g->n_rows; r++)
        for (int l = level_of(seed, r, g->m); l >= 0; l--)
            g->levels[l].n++;
    for (g->n_levels = 0; g->n_levels < GRAPH_LEVELS && g->levels[g->n_levels].n; g->n_levels++)
        g->levels[g->n_levels].width = g->n_levels ? g->m : 2 * g->m;
}

/* The next part, of n bytes; NULL where there is no memory yet. */
static const void *lay(const uint8_t *base, size_t *at, size_t n)
{
    const void *part = base ? base + *at : NULL;
    *at += padded(n);
    return part;
}

size_t graph_layout(vindex_graph *g, const uint8_t *base)
{
    size_t at = 0;
    g->vectors = lay(base, &at, (size_t)g->n_rows * g->stride);
    g->scale = lay(base, &at, (size_t)g->n_rows * sizeof *g->scale);
    for (int l = 0; l < g->n_levels; l++) {
        graph_level *v = &g->levels[l];
        v->links = lay(base, &at, (size_t)v->n * (size_t)v->width * sizeof *v->links);
        v->rows = l ? lay(base, &at, (size_t)v->n * sizeof *v->rows) : NULL;
    }
    return at;
}

static infer_status allocate(vindex_graph *g, uint64_t seed, infer_error *err)
{
    g->memory_bytes = graph_layout(g, NULL);
    g->memory = mem_pages(g->memory_bytes);
    if (!g->memory)
        return error_set(err, INFER_NOMEM, "graph: out of memory for %zu bytes", g->memory_bytes);
    graph_layout(g, g->memory);
    for (int l = 1; l < g->n_levels; l++) {
        uint32_t *rows = (uint32_t *)(uintptr_t)g->levels[l].rows;
        for (int r = 0; r < g->n_rows; r++)
            if (level_of(seed, r, g->m) >= l) *rows++ = (uint32_t)r;
    }
    return INFER_OK;
}

static infer_status build_level(build *b, int l, uint64_t seed, thread_pool *pool, infer_error *err)
{
    b->level = &b->g->levels[l];
    b->links = (uint32_t *)(uintptr_t)b->level->links;
    infer_status st = shuffle(b->order, b->level->n, seed + (uint64_t)l, err);
    if (st != INFER_OK) return st;
    atomic_store(&b->next, 0);
    pool_run(pool, forward_pass, b);
    if (b->status == INFER_OK) {
        gather_back(b);
        atomic_store(&b->next, 0);
        pool_run(pool, back_pass, b);
    }
    if (b->status != INFER_OK)
        return error_set(err, b->status, "graph: out of memory at level %d", l);
    return INFER_OK;
}

infer_status graph_build(vindex_graph **out, const tensor *rows, const graph_params *p,
                         thread_pool *pool, infer_error *err)
{
    *out = NULL;
    if (p->m < 0 || p->m == 1 || p->m > GRAPH_M_MAX || p->ef_build < 0)
        return error_set(err, INFER_ARGUMENT, "graph: m %d of 2 to %d, ef %d", p->m, GRAPH_M_MAX,
                         p->ef_build);
    if (rows->n_rows > ROWS_MAX || rows->n_cols > DOTS_MAX - 63)
        return error_set(err, INFER_UNSUPPORTED, "graph: a matrix [%d, %d] is too large",
                         rows->n_rows, rows->n_cols);
    vindex_graph *g = mem_zero(1, sizeof *g);
    if (!g) return error_set(err, INFER_NOMEM, "graph: out of memory");
    g->n_rows = rows->n_rows;
    g->n_cols = rows->n_cols;
    g->m = p->m ? p->m : DEFAULT_M;
    g->stride = padded((size_t)rows->n_cols);
    count_levels(g, p->seed);
    infer_status st = allocate(g, p->seed, err);
    size_t n = (size_t)rows->n_rows, m = (size_t)g->m;
    build b = { .g = g, .rows = rows, .k = cpu_kernels_get(NULL) };
    b.ef = p->ef_build ? p->ef_build : DEFAULT_EF;
    if (b.ef < g->m) b.ef = g->m;
    b.order = mem_alloc(n, sizeof *b.order);
    b.chosen = mem_alloc(n * m, sizeof *b.chosen);
    b.back_at = mem_alloc(n + 1, sizeof *b.back_at);
    b.back = mem_alloc(n * m, sizeof *b.back);
    if (st == INFER_OK && n && (!b.order || !b.chosen || !b.back_at || !b.back))
        st = error_set(err, INFER_NOMEM, "graph: out of memory for %d rows", rows->n_rows);
    if (st == INFER_OK && n) {
        pool_run(pool, vectors_pass, &b);
        if (b.status != INFER_OK) st = error_set(err, b.status, "graph: out of memory");
    }
    for (int l = 0; st == INFER_OK && l < g->n_levels; l++)
        st = build_level(&b, l, p->seed, pool, err);
    mem_free(b.order);
    mem_free(b.chosen);
    mem_free(b.back_at);
    mem_free(b.back);
    if (st != INFER_OK) {
        graph_free(g);
        return st;
    }
    *out = g;
    return INFER_OK;
}

void graph_free(vindex_graph *g)
{
    if (!g) return;
    mem_free_pages(g->memory, g->memory_bytes);
    mem_free(g);
}
