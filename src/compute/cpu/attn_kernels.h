/*
 * attn_kernels.h: attention over one tile of the KV cache, written once over v16. A level's
 * attn_<level>.c includes its vec_<level>.h, then this file. Everything is static.
 *
 * Scores have positions in the lanes and run over head_dim in order; the weighted sum of V has
 * head_dim in the lanes and runs over positions in order. A quantised key is scale * q, an exact
 * float; of a quantised value the scale is multiplied into the position's weight. Up to ATTN_GROUP
 * queries share the loads of K and V. What a query computes does not depend on its neighbours: it
 * touches exactly its visible rows of V, and lanes of K that it does not see are masked.
 */
#ifndef COMPUTE_CPU_ATTN_KERNELS_H
#define COMPUTE_CPU_ATTN_KERNELS_H

#include <math.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/vec_math.h"
#include "compute/quant.h"

#define TILE_VECS (KV_TILE / 16)

typedef float tile_row[KV_TILE];

/* The scales of block `block`, for 16 positions from `at` on. */
KERNEL_INLINE v16 load_scales(const void *p, kv_type type, int width, int block, int at)
{
    size_t q = (size_t)width * KV_TILE / (type == KV_Q4_0 ? 2 : 1);
    const void *scales = (const uint8_t *)p + q;
    return v16_load_f16((const uint16_t *)scales + (size_t)block * KV_TILE + (size_t)at);
}

/* Dimension d of 16 positions from `at` on; quantised: still to be scaled. */
KERNEL_INLINE v16 load_k(const void *p, int d, int at, kv_type type)
{
    size_t i = (size_t)d * KV_TILE + (size_t)at;
    switch (type) {
    case KV_F32: return v16_load((const float *)p + i);
    case KV_BF16: return v16_load_bf16((const uint16_t *)p + i);
    case KV_Q8_0: return v16_load_i8((const int8_t *)p + i);
    default: return v16_load_f16((const uint16_t *)p + i);
    }
}

/* 16 dimensions from d on of position j; quantised: still to be scaled. */
KERNEL_INLINE v16 load_v(const void *p, size_t v_stride, int j, size_t d, kv_type type)
{
    size_t i = (size_t)j * v_stride + d;
    switch (type) {
    case KV_F32: return v16_load((const float *)p + i);
    case KV_BF16: return v16_load_bf16((const uint16_t *)p + i);
    case KV_Q8_0: return v16_load_i8((const int8_t *)p + i);
    case KV_Q4_0: return v16_load_i4((const uint8_t *)p + (i - d % 32) / 2, d % 32 ? 4 : 0);
    default: return v16_load_f16((const uint16_t *)p + i);
    }
}

/* ---- scores ---- */

/* s[g][16 vec …] = q[g] . K for `vecs` vectors of positions. */
KERNEL_INLINE void dot_vecs(tile_row *s, attn_query *const *q, const kv_tile *t, int vec, int vecs,
                            int group, kv_type type)
{
    v16 acc[ATTN_GROUP][ATTN_VECS], k[ATTN_VECS], scale[ATTN_VECS];
    int block = kv_block(type) > 1 ? kv_block(type) : t->head_dim;
    // V comes in while K is worked on: of a long context both come from memory.
    const uint8_t *next = t->v;
    size_t step = kv_tile_bytes(t->v_type, kv_v_stride(t->head_dim_v)) / (size_t)t->head_dim;
    KERNEL_UNROLL for (int g = 0; g < group; g++) KERNEL_UNROLL for (int i = 0; i < vecs; i++)
        acc[g][i] = v16_set1(0);
    KERNEL_UNROLL for (int i = 0; i < vecs; i++) scale[i] = v16_set1(1); // quiets arm64's gcc 12
    for (int from = 0; from < t->head_dim; from += block) {
        if (kv_block(type) > 1)
            KERNEL_UNROLL for (int i = 0; i < vecs; i++) scale[i] =
                load_scales(t->k, type, t->head_dim, from / block, (vec + i) * 16);
        for (int d = from; d < from + block; d++, next += step) {
            if (vec == 0) {
                __builtin_prefetch(next);
                __builtin_prefetch(next + 64);
            }
            KERNEL_UNROLL for (int i = 0; i < vecs; i++)
            {
                k[i] = load_k(t->k, d, (vec + i) * 16, type);
                if (kv_block(type) > 1) k[i] = v16_mul(k[i], scale[i]);
            }
            KERNEL_UNROLL for (int g = 0; g < group; g++)
            {
                v16 x = v16_set1(q[g]->q[d]);
                KERNEL_UNROLL for (int i = 0; i < vecs; i++) acc[g][i] =
                    v16_fma(x, k[i], acc[g][i]);
            }
        }
    }
    KERNEL_UNROLL for (int g = 0; g < group; g++) KERNEL_UNROLL for (int i = 0; i < vecs; i++)
        v16_store(s[g] + (vec + i) * 16, acc[g][i]);
}

KERNEL_INLINE void dot_group_as(tile_row *s, attn_query *const *q, const kv_tile *t, int group,
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

KERNEL_INLINE void dot_group(tile_row *s, attn_query *const *q, const kv_tile *t, int group)
{
    switch (t->k_type) {
    case KV_F32: dot_group_as(s, q, t, group, KV_F32); break;
    case KV_BF16: dot_group_as(s, q, t, group, KV_BF16); break;
    case KV_Q8_0: dot_group_as(s, q, t, group, KV_Q8_0); break;
    default: dot_group_as(s, q, t, group, KV_F16); break;
    }
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
        KERNEL_UNROLL for (int i = 0; i < vecs; i++) v[i] =
            load_v(t->v, v_stride, j, d + (size_t)i * 16, type);
        KERNEL_UNROLL for (int g = 0; g < group; g++)
        {
            v16 x = v16_set1(p[g][j]);
            KERNEL_UNROLL for (int i = 0; i < vecs; i++) acc[g][i] = v16_fma(x, v[i], acc[g][i]);
        }
    }
    KERNEL_UNROLL for (int g = 0; g < group; g++) KERNEL_UNROLL for (int i = 0; i < vecs; i++)
        v16_store(q[g]->acc + d + i * 16, acc[g][i]);
}

/* Quantised: a block of dimensions at a time, for which weights times scales are made first. */
KERNEL_INLINE void weigh_blocks(attn_query *const *q, tile_row *p, const kv_tile *t,
                                size_t v_stride, int from, int to, int group, kv_type type)
{
    tile_row scaled[ATTN_GROUP] ATTR_ALIGNED(64);
    for (size_t d = 0; d < v_stride; d += 32) {
        for (int at = from / 16 * 16; at < to; at += 16) {
            v16 scale = load_scales(t->v, type, (int)v_stride, (int)(d / 32), at);
            KERNEL_UNROLL for (int g = 0; g < group; g++)
                v16_store(scaled[g] + at, v16_mul(v16_load(p[g] + at), scale));
        }
        if (ATTN_VECS > 1) {
            weigh_vecs(q, scaled, t, v_stride, from, to, d, ATTN_VECS > 1 ? 2 : 1, group, type);
        } else {
            weigh_vecs(q, scaled, t, v_stride, from, to, d, 1, group, type);
            weigh_vecs(q, scaled, t, v_stride, from, to, d + 16, 1, group, type);
        }
    }
}

KERNEL_INLINE void weigh_rows_as(attn_query *const *q, tile_row *p, const kv_tile *t,
                                 size_t v_stride, int from, int to, int group, kv_type type)
{
    size_t d = 0;
    if (kv_block(type) > 1) {
        weigh_blocks(q, p, t, v_stride, from, to, group, type);
        return;
    }
    for (; d + 16 * ATTN_VECS <= v_stride; d += 16 * ATTN_VECS)
        weigh_vecs(q, p, t, v_stride, from, to, d, ATTN_VECS, group, type);
    for (; d < v_stride; d += 16)
        weigh_vecs(q, p, t, v_stride, from, to, d, 1, group, type);
}

KERNEL_INLINE void weigh_rows(attn_query *const *q, tile_row *p, const kv_tile *t, size_t v_stride,
                              int from, int to, int group)
{
    if (from >= to) return;
    switch (t->v_type) {
    case KV_F32: weigh_rows_as(q, p, t, v_stride, from, to, group, KV_F32); break;
    case KV_BF16: weigh_rows_as(q, p, t, v_stride, from, to, group, KV_BF16); break;
    case KV_Q8_0: weigh_rows_as(q, p, t, v_stride, from, to, group, KV_Q8_0); break;
    case KV_Q4_0: weigh_rows_as(q, p, t, v_stride, from, to, group, KV_Q4_0); break;
    default: weigh_rows_as(q, p, t, v_stride, from, to, group, KV_F16); break;
    }
}

/* Rows of one query alone. */
static void weigh_alone(attn_query *q, tile_row *p, const kv_tile *t, size_t v_stride, int from,
                        int to)
{
    weigh_rows(&q, p, t, v_stride, from, to, 1);
}

/* Rows that all queries see go together; what one alone sees before and after them goes alone, so
 * that nobody multiplies a row it does not see by 0 (it may hold NaN). */
KERNEL_INLINE void weigh_group(attn_query *const *q, tile_row *p, const kv_tile *t, size_t v_stride,
                               int group)
{
    int lo = 0, hi = KV_TILE;
    for (int g = 0; g < group; g++) {
        lo = q[g]->lo > lo ? q[g]->lo : lo;
        hi = q[g]->hi < hi ? q[g]->hi : hi;
    }
    if (lo >= hi) {
        for (int g = 0; g < group; g++)
            weigh_alone(q[g], p + g, t, v_stride, q[g]->lo, q[g]->hi);
        return;
    }
    for (int g = 0; g < group; g++)
        weigh_alone(q[g], p + g, t, v_stride, q[g]->lo, lo);
    weigh_rows(q, p, t, v_stride, lo, hi, group);
    for (int g = 0; g < group; g++)
        weigh_alone(q[g], p + g, t, v_stride, hi, q[g]->hi);
}

/* ---- the kernels ---- */

KERNEL_INLINE void attend_group(attn_query *const *q, const kv_tile *t, float scale, float softcap,
                                int group)
{
    size_t v_stride = (size_t)kv_v_stride(t->head_dim_v);
    tile_row s[ATTN_GROUP] ATTR_ALIGNED(64);
    dot_group(s, q, t, group);
    for (int g = 0; g < group; g++) {
        finish_scores(s[g], q[g], scale, softcap);
        soften(s[g], q[g], v_stride);
    }
    weigh_group(q, s, t, v_stride, group);
}

static void attn_tile(attn_query *q, int n, const kv_tile *t, float scale, float softcap)
{
    attn_query *seeing[ATTN_GROUP];
    int group = 0;
    for (int i = 0; i < n; i++) {
        if (q[i].lo < q[i].hi) seeing[group++] = &q[i];
        if (group == ATTN_GROUP) {
            attend_group(seeing, t, scale, softcap, ATTN_GROUP);
            group = 0;
        }
    }
    // Fewer than a group at the end.
    if (group == 3) attend_group(seeing, t, scale, softcap, 3);
    if (group == 2) attend_group(seeing, t, scale, softcap, 2);
    if (group == 1) attend_group(seeing, t, scale, softcap, 1);
}

static void attn_scores(float *scores, const attn_query *q, const kv_tile *t, float scale,
                        float softcap)
{
    attn_query copy = *q, *one = &copy;
    tile_row s[1] ATTR_ALIGNED(64);
    if (q->lo < q->hi) dot_group(s, &one, t, 1);
    finish_scores(s[0], q, scale, softcap);
    for (int v = 0; v < KV_TILE; v += 16)
        v16_store(scores + v, v16_load(s[0] + v));
}

static void attn_merge(attn_query *to, const attn_query *part, int v_stride)
{
    if (part->max == -INFINITY && part->sum == 0) return;
    float max = part->max > to->max ? part->max : to->max, old[16], new[16];
    // Both at -infinity: the sums, of NaN, are all that there is.
    float shift = max == -INFINITY ? 0 : max;
    v16 keep = v16_exp(v16_set1(to->max - shift)), take = v16_exp(v16_set1(part->max - shift));
    for (int d = 0; d < v_stride; d += 16)
        v16_store(to->acc + d, v16_fma(v16_load(part->acc + d), take,
                                       v16_mul(v16_load(to->acc + d), keep)));
    v16_store(old, keep);
    v16_store(new, take);
    to->sum = fmaf(part->sum, new[0], to->sum * old[0]);
    to->max = max;
}

/* ---- storing ---- */

/* A vector's blocks of 32: K into column `at`, V into row `at` of its tile. */
static void store_quantised(const kv_tile *t, int at, const float *x, bool key)
{
    kv_type type = key ? t->k_type : t->v_type;
    int width = key ? t->head_dim : t->head_dim_v;
    const quant_format *f = quant_formats[type == KV_Q8_0 ? DT_Q8_0 : DT_Q4_0];
    uint8_t *to = key ? t->k : t->v, block[34];
    size_t row = (size_t)width / (type == KV_Q8_0 ? 1 : 2), bytes = (size_t)f->block_bytes - 2;
    uint16_t *scales = (uint16_t *)(void *)(to + row * KV_TILE);
    for (int b = 0; b < width / 32; b++) {
        f->quantize(block, x + b * 32, NULL, 32);
        memcpy(scales + (size_t)b * KV_TILE + (size_t)at, block, 2);
        const uint8_t *q = block + 2;
        if (!key) {
            memcpy(to + (size_t)at * row + (size_t)b * bytes, q, bytes);
            continue;
        }
        for (size_t i = 0; i < 32; i++)
            to[((size_t)b * 32 + i) * KV_TILE + (size_t)at] = q[i];
    }
}

/* Element i of a 16-bit K or V; at [i * step]. */
static void store_halves(uint16_t *to, size_t step, const float *x, int n, kv_type type)
{
    uint16_t half[16];
    for (int d = 0; d < n; d += 16) {
        int m = n - d < 16 ? n - d : 16;
        if (type == KV_F16) v16_store_f16(half, v16_load_n(x + d, m));
        for (int i = 0; i < m; i++)
            to[(size_t)(d + i) * step] = type == KV_F16 ? half[i] : bf16_from_f32(x[d + i]);
    }
}

static void kv_store(const kv_tile *t, int at, const float *k, const float *v)
{
    size_t row = (size_t)at * (size_t)kv_v_stride(t->head_dim_v), column = (size_t)at;
    if (kv_block(t->k_type) > 1)
        store_quantised(t, at, k, true);
    else if (t->k_type == KV_F32)
        for (int d = 0; d < t->head_dim; d++)
            ((float *)t->k)[(size_t)d * KV_TILE + column] = k[d];
    else
        store_halves((uint16_t *)t->k + column, KV_TILE, k, t->head_dim, t->k_type);
    if (kv_block(t->v_type) > 1)
        store_quantised(t, at, v, false);
    else if (t->v_type == KV_F32)
        memcpy((float *)t->v + row, v, (size_t)t->head_dim_v * sizeof(float));
    else
        store_halves((uint16_t *)t->v + row, 1, v, t->head_dim_v, t->v_type);
}

static inline void attn_kernels_install(cpu_kernels *k)
{
    k->kv_store = kv_store;
    k->attn_tile = attn_tile;
    k->attn_scores = attn_scores;
    k->attn_merge = attn_merge;
}

#endif
