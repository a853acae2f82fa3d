/* check_attn.c: attention over tiles of the cache: ref's bits at every level, ref against float64, and
 * a query's bits alone equal to its bits among others. Unseen columns and rows hold NaN. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

#define TILES 3
#define QUERIES 11
#define MOST_DIM 256

typedef struct cache {
    fence k[TILES], v[TILES];
    kv_type type;
    int head_dim, head_dim_v, v_stride, n; // positions stored
    float keys[TILES * KV_TILE][MOST_DIM], values[TILES * KV_TILE][MOST_DIM];
} cache;

/* Fills positions [0, n) through the level's kv_store; the rest stays NaN. */
static void cache_fill(cache *s, const cpu_kernels *k)
{
    size_t item = s->type == KV_F16 ? 2 : 4;
    for (int t = 0; t < TILES; t++) {
        s->k[t] = fence_new((size_t)s->head_dim * KV_TILE * item);
        s->v[t] = fence_new((size_t)s->v_stride * KV_TILE * item);
    }
    for (int p = 0; p < s->n; p++)
        k->kv_store(s->k[p / KV_TILE].data, s->v[p / KV_TILE].data, p % KV_TILE, s->keys[p],
                    s->values[p], s->head_dim, s->head_dim_v, s->type);
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
        kv_tile tile = {s->k[t].data, s->v[t].data, s->type, s->head_dim, s->head_dim_v};
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

/* Values as the cache holds them. */
static double stored(const cache *s, float x)
{
    if (s->type == KV_F32) return x;
    uint16_t h = f16_from_f32(x);
    return f16_to_f32(h);
}

static void check_double(checker *c, const attn_result *r, const cache *s, const attn_case *a)
{
    for (int i = 0; i < QUERIES; i++) {
        double p[TILES * KV_TILE], max = -INFINITY, sum = 0, want[MOST_DIM] = {0};
        float got[MOST_DIM];
        if (a->from[i] >= a->to[i]) continue;
        for (int j = a->from[i]; j < a->to[i]; j++) {
            double dot = 0;
            for (int d = 0; d < s->head_dim; d++) dot += a->q[i][d] * stored(s, s->keys[j][d]);
            p[j] = dot * (double)a->scale;
            if (a->softcap != 0) p[j] = (double)a->softcap * tanh(p[j] / (double)a->softcap);
            max = p[j] > max ? p[j] : max;
        }
        for (int j = a->from[i]; j < a->to[i]; j++) sum += p[j] = exp(p[j] - max);
        for (int j = a->from[i]; j < a->to[i]; j++)
            for (int d = 0; d < s->head_dim_v; d++)
                want[d] += p[j] / sum * stored(s, s->values[j][d]);
        for (int d = 0; d < s->head_dim_v; d++) got[d] = r->acc[i][d] / r->sum[i];
        // up to 192 positions of weight 2^-22 relative each, values of order 1
        check_near(c, got, want, (size_t)s->head_dim_v, 1e-5, 1e-5, "against float64");
    }
}

static void check_dims(checker *c, kv_type type, int head_dim, int head_dim_v, int n, float softcap)
{
    static cache mine, theirs; // large; each call fills what it reads
    static attn_case a;
    static attn_result got, ref, alone;
    char what[128];
    mine.type = type;
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
    snprintf(what, sizeof what, "%s, head_dim %d and %d, %d positions, softcap %g",
             type == KV_F16 ? "f16" : "f32", head_dim, head_dim_v, n, (double)softcap);
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
    for (int type = 0; type < KV_TYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            check_dims(c, (kv_type)type, dims[i], dims[i], 150, 0);
            check_dims(c, (kv_type)type, dims[i], dims[sizeof dims / sizeof *dims - 1 - i], 64, 0);
            check_dims(c, (kv_type)type, dims[i], dims[i], 1, 20.0f);
            check_dims(c, (kv_type)type, dims[i], dims[i], 65, 5.0f);
        }
}
