/*
 * attn_kernels.h: attention over one tile of the KV cache, written once over v16. A level's
 * attn_<level>.c includes its vec_<level>.h, then this file. Everything is static.
 *
 * Scores have positions in the lanes and run over head_dim in order; the weighted sum of V has
 * head_dim in the lanes and runs over positions in order. Up to ATTN_GROUP queries share the loads
 * of K and V. What a query computes does not depend on its neighbours: it touches exactly its
 * visible rows of V, and lanes of K that it does not see are masked.
 */
#ifndef COMPUTE_CPU_ATTN_KERNELS_H
#define COMPUTE_CPU_ATTN_KERNELS_H

#include <math.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/vec_math.h"

#define TILE_VECS (KV_TILE / 16)

typedef float tile_row[KV_TILE];

KERNEL_INLINE v16 load_kv(const void *p, size_t at, kv_type type)
{
    return type == KV_F16 ? v16_load_f16((const uint16_t *)p + at)
                          : v16_load((const float *)p + at);
}

/* ---- scores ---- */

/* s[g][16 vec …] = q[g] . K for `vecs` vectors of positions. */
KERNEL_INLINE void dot_vecs(tile_row *s, attn_query *const *q, const kv_tile *t, int vec, int vecs,
                            int group, kv_type type)
{
    v16 acc[ATTN_GROUP][ATTN_VECS], k[ATTN_VECS];
    KERNEL_UNROLL for (int g = 0; g < group; g++) KERNEL_UNROLL for (int i = 0; i < vecs; i++)
        acc[g][i] = v16_set1(0);
    for (int d = 0; d < t->head_dim; d++) {
        size_t at = (size_t)d * KV_TILE + (size_t)vec * 16;
        KERNEL_UNROLL for (int i = 0; i < vecs; i++) k[i] =
            load_kv(t->k, at + (size_t)i * 16, type);
        KERNEL_UNROLL for (int g = 0; g < group; g++)
        {
            v16 x = v16_set1(q[g]->q[d]);
            KERNEL_UNROLL for (int i = 0; i < vecs; i++) acc[g][i] = v16_fma(x, k[i], acc[g][i]);
        }
    }
    KERNEL_UNROLL for (int g = 0; g < group; g++) KERNEL_UNROLL for (int i = 0; i < vecs; i++)
        v16_store(s[g] + (vec + i) * 16, acc[g][i]);
}

KERNEL_INLINE void dot_group(tile_row *s, attn_query *const *q, const kv_tile *t, int group,
                             kv_type type)
{
    int lo = KV_TILE, hi = 0;
    for (int g = 0; g < group; g++) {
        lo = q[g]->lo < lo ? q[g]->lo : lo;
        hi = q[g]->hi > hi ? q[g]->hi : hi;
    }
    int v = lo / 16, end = (hi + 15) / 16;
    for (; v + ATTN_VECS <= end; v += ATTN_VECS)
        dot_vecs(s, q, t, v, ATTN_VECS, group, type);
    for (; v < end; v++)
        dot_vecs(s, q, t, v, 1, group, type);
}

/* Scale and cap of a query's dots, -infinity where it does not see. */
KERNEL_INLINE void finish_scores(float *s, const attn_query *q, float scale, float softcap)
{
    v16 sc = v16_set1(scale), none = v16_set1(-INFINITY), cap = v16_set1(softcap);
    for (int v = 0; v < TILE_VECS; v++) {
        v16 x = none;
        if (v * 16 < q->hi && v * 16 + 16 > q->lo) {
            x = v16_mul(v16_load(s + v * 16), sc);
            if (softcap != 0) x = v16_softcap(x, cap);
            x = v16_select(m16_range(q->lo - v * 16, q->hi - v * 16), x, none);
        }
        v16_store(s + v * 16, x);
    }
}

/* ---- softmax and V ---- */

/* Scores to weights exp(s - max); max, sum and acc go over to the new maximum. */
KERNEL_INLINE void soften(float *s, attn_query *q, size_t v_stride)
{
    v16 x[TILE_VECS];
    KERNEL_UNROLL for (int v = 0; v < TILE_VECS; v++) x[v] = v16_load(s + v * 16);
    float top = v16_reduce_max(v16_max(v16_max(x[0], x[1]), v16_max(x[2], x[3])));
    if (top > q->max) {
        // From -infinity: acc and sum are 0 and stay so.
        float old = q->max == -INFINITY ? top : q->max;
        float keep[16] ATTR_ALIGNED(64);
        v16 k = v16_exp(v16_set1(old - top));
        v16_store(keep, k);
        q->sum *= keep[0];
        for (size_t d = 0; d < v_stride; d += 16)
            v16_store(q->acc + d, v16_mul(v16_load(q->acc + d), k));
        q->max = top;
    }
    // Nothing above -infinity so far: -infinity - 0 gives the weight 0.
    v16 max = v16_set1(q->max == -INFINITY ? 0 : q->max);
    KERNEL_UNROLL for (int v = 0; v < TILE_VECS; v++)
    {
        x[v] = v16_exp(v16_sub(x[v], max));
        v16_store(s + v * 16, x[v]);
    }
    q->sum += v16_sum(v16_add(v16_add(x[0], x[1]), v16_add(x[2], x[3])));
}

/* acc[g] += sum over j in [from, to) of p[g][j] V[j], for `vecs` vectors of head_dim from d on. */
KERNEL_INLINE void weigh_vecs(attn_query *const *q, tile_row *p, const kv_tile *t, size_t v_stride,
                              int from, int to, size_t d, int vecs, int group, kv_type type)
{
    v16 acc[ATTN_GROUP][ATTN_VECS], v[ATTN_VECS];
    KERNEL_UNROLL for (int g = 0; g < group; g++) KERNEL_UNROLL for (int i = 0; i < vecs; i++)
        acc[g][i] = v16_load(q[g]->acc + d + i * 16);
    for (int j = from; j < to; j++) {
        size_t at = (size_t)j * v_stride + d;
        KERNEL_UNROLL for (int i = 0; i < vecs; i++) v[i] =
            load_kv(t->v, at + (size_t)i * 16, type);
        KERNEL_UNROLL for (int g = 0; g < group; g++)
        {
            v16 x = v16_set1(p[g][j]);
            KERNEL_UNROLL for (int i = 0; i < vecs; i++) acc[g][i] = v16_fma(x, v[i], acc[g][i]);
        }
    }
    KERNEL_UNROLL for (int g = 0; g < group; g++) KERNEL_UNROLL for (int i = 0; i < vecs; i++)
        v16_store(q[g]->acc + d + i * 16, acc[g][i]);
}

KERNEL_INLINE void weigh_rows(attn_query *const *q, tile_row *p, const kv_tile *t, size_t v_stride,
                              int from, int to, int group, kv_type type)
{
    size_t d = 0;
    if (from >= to) return;
    for (; d + 16 * ATTN_VECS <= v_stride; d += 16 * ATTN_VECS)
        weigh_vecs(q, p, t, v_stride, from, to, d, ATTN_VECS, group, type);
    for (; d < v_stride; d += 16)
        weigh_vecs(q, p, t, v_stride, from, to, d, 1, group, type);
}

/* Rows that all queries see go together; what one alone sees before and after them goes alone, so
 * that nobody multiplies a row it does not see by 0 (it may hold NaN). */
KERNEL_INLINE void weigh_group(attn_query *const *q, tile_row *p, const kv_tile *t, size_t v_stride,
                               int group, kv_type type)
{
    int lo = 0, hi = KV_TILE;
    for (int g = 0; g < group; g++) {
        lo = q[g]->lo > lo ? q[g]->lo : lo;
        hi = q[g]->hi < hi ? q[g]->hi : hi;
    }
    if (lo >= hi) {
        for (int g = 0; g < group; g++)
            weigh_rows(q + g, p + g, t, v_stride, q[g]->lo, q[g]->hi, 1, type);
        return;
    }
    for (int g = 0; g < group; g++)
        weigh_rows(q + g, p + g, t, v_stride, q[g]->lo, lo, 1, type);
    weigh_rows(q, p, t, v_stride, lo, hi, group, type);
    for (int g = 0; g < group; g++)
        weigh_rows(q + g, p + g, t, v_stride, hi, q[g]->hi, 1, type);
}

/* ---- the kernels ---- */

KERNEL_INLINE void attend_group(attn_query *const *q, const kv_tile *t, float scale, float softcap,
                                int group, kv_type type)
{
    size_t v_stride = ((size_t)t->head_dim_v + 15) / 16 * 16;
    tile_row s[ATTN_GROUP] ATTR_ALIGNED(64);
    dot_group(s, q, t, group, type);
    for (int g = 0; g < group; g++) {
        finish_scores(s[g], q[g], scale, softcap);
        soften(s[g], q[g], v_stride);
    }
    weigh_group(q, s, t, v_stride, group, type);
}

KERNEL_INLINE void attn_tile_as(attn_query *q, int n, const kv_tile *t, float scale, float softcap,
                                kv_type type)
{
    attn_query *seeing[ATTN_GROUP];
    int group = 0;
    for (int i = 0; i < n; i++) {
        if (q[i].lo < q[i].hi) seeing[group++] = &q[i];
        if (group == ATTN_GROUP) {
            attend_group(seeing, t, scale, softcap, ATTN_GROUP, type);
            group = 0;
        }
    }
    // Fewer than a group at the end: by twos and ones.
    int g = 0;
    for (; g + 2 <= group; g += 2)
        attend_group(seeing + g, t, scale, softcap, 2, type);
    if (g < group) attend_group(seeing + g, t, scale, softcap, 1, type);
}

static void attn_tile(attn_query *q, int n, const kv_tile *t, float scale, float softcap)
{
    if (t->type == KV_F16)
        attn_tile_as(q, n, t, scale, softcap, KV_F16);
    else
        attn_tile_as(q, n, t, scale, softcap, KV_F32);
}

static void attn_scores(float *scores, const attn_query *q, const kv_tile *t, float scale,
                        float softcap)
{
    attn_query copy = *q, *one = &copy;
    tile_row s[1] ATTR_ALIGNED(64);
    if (q->lo < q->hi && t->type == KV_F16) dot_group(s, &one, t, 1, KV_F16);
    if (q->lo < q->hi && t->type == KV_F32) dot_group(s, &one, t, 1, KV_F32);
    finish_scores(s[0], q, scale, softcap);
    for (int v = 0; v < KV_TILE; v += 16)
        v16_store(scores + v, v16_load(s[0] + v));
}

static void kv_store(void *k_tile, void *v_tile, int at, const float *k, const float *v,
                     int head_dim, int head_dim_v, kv_type type)
{
    size_t v_stride = ((size_t)head_dim_v + 15) / 16 * 16, row = (size_t)at * v_stride;
    if (type == KV_F32) {
        float *kt = k_tile, *vt = v_tile;
        for (int d = 0; d < head_dim; d++)
            kt[(size_t)d * KV_TILE + (size_t)at] = k[d];
        memcpy(vt + row, v, (size_t)head_dim_v * sizeof(float));
        return;
    }
    uint16_t *kt = k_tile, *vt = v_tile, half[16];
    for (int d = 0; d < head_dim; d += 16) {
        int n = head_dim - d < 16 ? head_dim - d : 16;
        v16_store_f16(half, v16_load_n(k + d, n));
        for (int i = 0; i < n; i++)
            kt[(size_t)(d + i) * KV_TILE + (size_t)at] = half[i];
    }
    for (int d = 0; d < head_dim_v; d += 16) {
        int n = head_dim_v - d < 16 ? head_dim_v - d : 16;
        v16_store_f16(half, v16_load_n(v + d, n));
        memcpy(vt + row + d, half, (size_t)n * sizeof(uint16_t));
    }
}

static inline void attn_kernels_install(cpu_kernels *k)
{
    k->kv_store = kv_store;
    k->attn_tile = attn_tile;
    k->attn_scores = attn_scores;
}

#endif
