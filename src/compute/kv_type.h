/*
 * kv_type.h: the types of the KV cache, and how a tile of KV_TILE positions lies in memory for one
 * head. K has positions side by side, V dimensions:
 *
 *   f32, f16, bf16   K [head_dim, KV_TILE]        V [KV_TILE, v_stride]
 *   q8_0             K int8 [head_dim, KV_TILE]   V int8 [KV_TILE, v_stride]
 *   q4_0             V alone                      V [KV_TILE, v_stride / 2]
 *
 * and after a quantised K or V its scales, f16 [width / 32, KV_TILE]. v_stride is head_dim_v
 * rounded up to 16. Quantised values are those of quant_q8_0.c and quant_q4.c, a block being 32
 * dimensions of one position, and a block of q4_0 lies as it does there. Why not K: docs/adr/0014.
 */
#ifndef COMPUTE_KV_TYPE_H
#define COMPUTE_KV_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define KV_TILE 64 // positions in a tile of the KV cache

typedef enum kv_type { KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0, KV_TYPE_COUNT } kv_type;

#define KV_TYPE_NAMES "f32, f16, bf16, q8_0 or q4_0"
static inline const char *kv_type_name(kv_type type)
{
    static const char *const names[KV_TYPE_COUNT] = { "f32", "f16", "bf16", "q8_0", "q4_0" };
    return names[type];
}
/* KV_TYPE_COUNT: none has this name. */
static inline kv_type kv_type_find(const char *name)
{
    int t = 0;
    while (t < KV_TYPE_COUNT && strcmp(name, kv_type_name((kv_type)t)))
        t++;
    return (kv_type)t;
}

/* Dimensions that share a scale; head sizes must be multiples of it. */
static inline int kv_block(kv_type type) { return type == KV_Q8_0 || type == KV_Q4_0 ? 32 : 1; }

/* Bytes of a tile's K (width: head_dim) or V (v_stride) of one head. */
static inline size_t kv_tile_bytes(kv_type type, int width)
{
    size_t n = (size_t)width * KV_TILE, scales = n / 32 * 2;
    switch (type) {
    case KV_F32: return n * 4;
    case KV_Q8_0: return n + scales;
    case KV_Q4_0: return n / 2 + scales;
    default: return n * 2;
    }
}

/* Keys do not stand 4 bits. */
static inline bool kv_takes_keys(kv_type type) { return type != KV_Q4_0; }

static inline int kv_v_stride(int head_dim_v) { return (head_dim_v + 15) / 16 * 16; }

#endif
