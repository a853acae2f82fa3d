/* check_attn.c: attention over tiles of the cache: ref's bits at every level, ref against float64, and
 * a query's bits alone equal to its bits among others; parts merged. Unseen columns and rows hold NaN. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "compute/quant.h"

#define TILES 3
#define QUERIES 11
#define MOST_DIM 256

typedef struct cache {
    fence k[TILES], v[TILES];
    kv_type k_type, v_type;
    int head_dim, head_dim_v, v_stride, n; // positions stored
    float keys[TILES * KV_TILE][MOST_DIM], values[TILES * KV_TILE][MOST_DIM];
} cache;

static kv_tile tile_of(const cache *s, int t)
{
    return (kv_tile){s->k[t].data, s->v[t].data, s->k_type, s->v_type, s->head_dim, s->head_dim_v};
}

/* Fills positions [0, n) through the level's kv_store; the rest stays NaN. */
static void cache_fill(cache *s, const cpu_kernels *k)
{
    for (int t = 0; t < TILES; t++) {
        s->k[t] = fence_new(kv_tile_bytes(s->k_type, s->head_dim));
        s->v[t] = fence_new(kv_tile_bytes(s->v_type, s->v_stride));
    }
    for (int p = 0; p < s->n; p++) {
        kv_tile tile = tile_of(s, p / KV_TILE);
        k->kv_store(&tile, p % KV_TILE, s->keys[p], s->values[p]);
    }
}
static bool cache_equal(const cache *a, const cache *b)
{
    for (int t = 0; t < TILES; t++)
        if (memcmp(a->k[t].data, b->k[t].data, a->k[t].n) ||
            memcmp(a->v[t].data, b->v[t].data, a->v[t].n) || !fence_intact(&a->k[t]) ||
            !fence_intact(&a->v[t]))
            return false;
    return true;
}
static void cache_free(cache *s)
{
    for (int t = 0; t < TILES; t++) {
        fence_free(&s->k[t]);
        fence_free(&s->v[t]);
    }
}

typedef struct attn_case {
    float q[QUERIES][MOST_DIM] ATTR_ALIGNED(64);
    int from[QUERIES], to[QUERIES]; // visible positions
    float scale, softcap;
} attn_case;

typedef struct attn_result {
    float acc[QUERIES][MOST_DIM] ATTR_ALIGNED(64);
    float max[QUERIES], sum[QUERIES];
    float scores[QUERIES][TILES * KV_TILE];
} attn_result;

static void see(attn_query *q, const attn_case *a, int i, int t)
{
    int lo = a->from[i] - t * KV_TILE, hi = a->to[i] - t * KV_TILE;
    q->lo = lo < 0 ? 0 : lo;
    q->hi = hi > KV_TILE ? KV_TILE : hi;
}

/* Queries [first, first + n) over all tiles. */
static void run(attn_result *out, const cpu_kernels *k, const cache *s, const attn_case *a, int first,
                int n)
{
    attn_query q[QUERIES];
    for (int i = 0; i < n; i++) {
        memset(out->acc[first + i], 0, sizeof out->acc[0]);
        q[i] = (attn_query){a->q[first + i], out->acc[first + i], -INFINITY, 0, 0, 0};
    }
    for (int t = 0; t < TILES; t++) {
        kv_tile tile = tile_of(s, t);
        for (int i = 0; i < n; i++) {
            see(&q[i], a, first + i, t);
            k->attn_scores(out->scores[first + i] + t * KV_TILE, &q[i], &tile, a->scale, a->softcap);
        }
        k->attn_tile(q, n, &tile, a->scale, a->softcap);
    }
    for (int i = 0; i < n; i++) {
        out->max[first + i] = q[i].max;
        out->sum[first + i] = q[i].sum;
    }
}

static void compare(checker *c, const attn_result *a, const attn_result *b, int head_dim_v,
                    const char *what)
{
    check_bits(c, a->max, b->max, QUERIES, what);
    check_bits(c, a->sum, b->sum, QUERIES, what);
    check_bits(c, a->scores[0], b->scores[0], QUERIES * TILES * KV_TILE, what);
    for (int i = 0; i < QUERIES; i++)
        check_bits(c, a->acc[i], b->acc[i], (size_t)head_dim_v, what);
}

/* A vector as the cache holds it. */
static void as_stored(float *y, const float *x, int n, kv_type type)
{
    uint8_t block[34];
    dtype format = type == KV_Q8_0 ? DT_Q8_0 : DT_Q4_0;
    for (int i = 0; i < n; i++)
        y[i] = type == KV_F32    ? x[i]
               : type == KV_BF16 ? bf16_to_f32(bf16_from_f32(x[i]))
                                 : f16_to_f32(f16_from_f32(x[i]));
    for (int i = 0; kv_block(type) > 1 && i < n; i += 32) {
        quant_formats[format]->quantize(block, x + i, NULL, 32);
        quant_formats[format]->dequant(y + i, block, 32);
    }
}

static void check_double(checker *c, const attn_result *r, const cache *s, const attn_case *a)
{
    static float keys[TILES * KV_TILE][MOST_DIM], values[TILES * KV_TILE][MOST_DIM];
    for (int j = 0; j < s->n; j++) {
        as_stored(keys[j], s->keys[j], s->head_dim, s->k_type);
        as_stored(values[j], s->values[j], s->head_dim_v, s->v_type);
    }
    for (int i = 0; i < QUERIES; i++) {
        double p[TILES * KV_TILE], max = -INFINITY, sum = 0, want[MOST_DIM] = {0};
        float got[MOST_DIM];
        if (a->from[i] >= a->to[i]) continue;
        for (int j = a->from[i]; j < a->to[i]; j++) {
            double dot = 0;
            for (int d = 0; d < s->head_dim; d++) dot += (double)a->q[i][d] * (double)keys[j][d];
            p[j] = dot * (double)a->scale;
            if (a->softcap != 0) p[j] = (double)a->softcap * tanh(p[j] / (double)a->softcap);
            max = p[j] > max ? p[j] : max;
        }
        for (int j = a->from[i]; j < a->to[i]; j++) sum += p[j] = exp(p[j] - max);
        for (int j = a->from[i]; j < a->to[i]; j++)
            for (int d = 0; d < s->head_dim_v; d++)
                want[d] += p[j] / sum * (double)values[j][d];
        for (int d = 0; d < s->head_dim_v; d++) got[d] = r->acc[i][d] / r->sum[i];
        // up to 192 positions of weight 2^-22 relative each, values of order 1
        check_near(c, got, want, (size_t)s->head_dim_v, 1e-5, 1e-5, "against float64");
    }
}

/* Parts merged in order; one that saw nothing changes nothing. */
static void check_merge(checker *c)
{
    enum { PARTS = 5, WIDTH = 48 };
    float acc[2][WIDTH] ATTR_ALIGNED(64) = {{0}}, part_acc[WIDTH] ATTR_ALIGNED(64), at[2];
    attn_query to[2] = {{.acc = acc[0], .max = -INFINITY}, {.acc = acc[1], .max = -INFINITY}};
    double want[WIDTH] = {0}, top = -INFINITY, total = 0;
    for (int i = 0; i < PARTS; i++) {
        fill(part_acc, WIDTH, RANDOM);
        fill(at, 2, RANDOM);
        attn_query part = {.acc = part_acc, .max = 3 * at[0], .sum = 1 + fabsf(at[1])};
        if (i % 2) {
            part.max = -INFINITY;
            part.sum = 0;
            memset(part_acc, 0, sizeof part_acc);
        }
        c->ref->attn_merge(&to[0], &part, WIDTH);
        c->k->attn_merge(&to[1], &part, WIDTH);
        double m = (double)part.max > top ? (double)part.max : top;
        double keep = exp(top - m), take = exp((double)part.max - m);
        for (int d = 0; d < WIDTH; d++) want[d] = want[d] * keep + (double)part_acc[d] * take;
        total = total * keep + (double)part.sum * take;
        top = m;
    }
    check_near(c, acc[0], want, WIDTH, 1e-6, 1e-6, "against float64");
    check_near(c, &to[0].sum, &total, 1, 1e-6, 1e-6, "sum, against float64");
    check_bits(c, acc[0], acc[1], WIDTH, "acc");
    check_bits(c, &to[0].max, &to[1].max, 1, "max");
    check_bits(c, &to[0].sum, &to[1].sum, 1, "sum");
}

static void check_dims(checker *c, kv_type k_type, kv_type v_type, int head_dim, int head_dim_v,
                       int n, float softcap)
{
    if (!kv_takes_keys(k_type)) k_type = KV_Q8_0;
    if (head_dim % kv_block(k_type) || head_dim_v % kv_block(v_type)) return;
    static cache mine, theirs; // large; each call fills what it reads
    static attn_case a;
    static attn_result got, ref, alone;
    char what[128];
    mine.k_type = k_type;
    mine.v_type = v_type;
    mine.head_dim = head_dim;
    mine.head_dim_v = head_dim_v;
    mine.v_stride = (head_dim_v + 15) / 16 * 16;
    mine.n = n;
    for (int p = 0; p < n; p++) {
        fill(mine.keys[p], (size_t)head_dim, RANDOM);
        fill(mine.values[p], (size_t)head_dim_v, RANDOM);
    }
    theirs = mine;
    cache_fill(&mine, c->k);
    cache_fill(&theirs, c->ref);
    snprintf(what, sizeof what, "K %s V %s, head_dim %d and %d, %d positions, softcap %g",
             kv_type_name(k_type), kv_type_name(v_type), head_dim, head_dim_v, n, (double)softcap);
    c->op = "kv_store";
    check_true(c, cache_equal(&mine, &theirs), "%s", what);

    a.scale = 1.0f / sqrtf((float)head_dim);
    a.softcap = softcap;
    for (int i = 0; i < QUERIES; i++) {
        fill(a.q[i], (size_t)head_dim, RANDOM);
        a.to[i] = i < 6 ? n - i > 0 ? n - i : 0 : random_below(n + 1); // causal ones, then any
        a.from[i] = i % 3 == 2 ? random_below(n) : 0;                  // a window
    }
    c->op = "attn_tile";
    memset(&got, 0, sizeof got);
    memset(&ref, 0, sizeof ref);
    run(&got, c->k, &mine, &a, 0, QUERIES);
    run(&ref, c->ref, &mine, &a, 0, QUERIES);
    compare(c, &got, &ref, head_dim_v, what);
    memset(&alone, 0, sizeof alone);
    for (int i = 0; i < QUERIES; i++) run(&alone, c->k, &mine, &a, i, 1);
    compare(c, &got, &alone, head_dim_v, "alone and among others");
    if (c->k == c->ref) check_double(c, &ref, &mine, &a);
    cache_free(&mine);
    cache_free(&theirs);
}

void check_attn(checker *c)
{
    static const int dims[] = {4, 8, 16, 20, 64, 96, 128, 256};
    const int n = (int)(sizeof dims / sizeof *dims);
    for (int t = 0; t < KV_TYPE_COUNT; t++)
        for (int i = 0; i < n; i++) {
            kv_type k = (kv_type)t, v = (kv_type)((t + i) % KV_TYPE_COUNT); // all pairs in turn
            check_dims(c, k, k, dims[i], dims[i], 150, 0);
            check_dims(c, k, k, dims[i], dims[n - 1 - i], 64, 0);
            check_dims(c, k, v, dims[i], dims[i], 1, 20.0f);
            check_dims(c, k, v, dims[i], dims[i], 65, 5.0f);
            check_dims(c, k, v, 64, 32, 70 + i, 0);
        }
    c->op = "attn_merge";
    check_merge(c);
}
