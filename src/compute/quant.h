/*
 * quant.h: the block formats in which weights lie in files. One file a format (quant_<fmt>.c), one
 * row here; the row is all that the rest of the program knows of a format.
 *
 * Every quantised format is, 16 or 32 elements at a time, scale * q + min with integers q of 8
 * bits: `unpack` gives that form, and all integer dot products are defined on it (quant_dot).
 * `dequant` is the format's own arithmetic, bit for bit that of gguf-py (gguf.quants). Formats
 * without integers (F32, F16, BF16) have no unpack; their dots are made in float32.
 */
#ifndef COMPUTE_QUANT_H
#define COMPUTE_QUANT_H

#include <math.h>

#include "base/half.h"
#include "infer_base.h"

/* X(ENUM, row): ggml's names; those of vindex files last. */
#define QUANT_LIST(X)                                                                              \
    X(F32, f32)                                                                                    \
    X(F16, f16)                                                                                    \
    X(BF16, bf16) X(Q8_0, q8_0) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1)            \
        X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(IQ1_S, iq1_s)      \
            X(IQ1_M, iq1_m) X(IQ2_XXS, iq2_xxs) X(IQ2_XS, iq2_xs) X(IQ2_S, iq2_s)                  \
                X(IQ3_XXS, iq3_xxs) X(IQ3_S, iq3_s) X(IQ4_NL, iq4_nl) X(IQ4_XS, iq4_xs)            \
                    X(TQ1_0, tq1_0) X(TQ2_0, tq2_0) X(MXFP4, mxfp4) X(NVFP4, nvfp4)    \
                        X(LARQL_Q4_0, larql_q4_0) X(LARQL_Q6_K, larql_q6_k)                        \
                            X(VINDEX_FP4, vindex_fp4) X(VINDEX_FP8, vindex_fp8)

typedef enum dtype {
#define X(NAME, row) DT_##NAME,
    QUANT_LIST(X)
#undef X
        DT_COUNT
} dtype;

typedef struct quant_format {
    const char *name; // "q4_k"
    int ggml_type;    // id in GGUF files; -1: of vindex files alone
    int block_size;   // elements
    int block_bytes;
    int sub;      // elements that share a scale in unpack: 16 or 32; 0: a float format
    bool has_min; // unpack writes mins

    /* n elements (a multiple of block_size) to float32. */
    void (*dequant)(float *y, const void *blocks, size_t n);
    /* n elements to q [n], scale [n/sub], min [n/sub] (untouched unless has_min):
     * x[i] = scale[i/sub] * q[i] + min[i/sub]. NULL for float formats. */
    void (*unpack)(int8_t *q, float *scale, float *min, const void *blocks, size_t n);
    /* n elements to blocks; weight [n] is an importance per element or NULL. Bit for bit
     * gguf.quants where it has a quantiser and weight is NULL. NULL: reading only. */
    void (*quantize)(void *blocks, const float *x, const float *weight, size_t n);
} quant_format;

extern const quant_format *const quant_formats[DT_COUNT]; // [dtype]

/* The dtype with this GGUF id, or with this name (any case); -1: none. */
int quant_find_ggml(uint32_t ggml_type);
int quant_find_name(const char *name);
/* Bytes of a row of n elements; 0 when n is no multiple of the block. */
size_t quant_row_bytes(dtype type, size_t n);

/*
 * A row of activations rounded to 8 bits, but for a few elements of 16; two planes of 8 hold both.
 * 32 elements share one scale. The wide quad of a block is the 4 elements (4j … 4j + 3) that hold
 * its largest magnitude amax, the first such quad; rest is the largest magnitude in the others.
 * Magnitudes are compared as bit patterns without sign (so that NaN is larger than infinity).
 *
 *   m     = max(rest, amax / ACT_REACH)
 *   t     = x * (127 / m) to nearest even
 *   hi    = t / 256 to nearest even
 *   lo    = t - 256 * hi, cut to +-127
 *   v     = 256 * hi + lo
 *   scale = m / 127, so that x is about scale * v
 *
 * Outside the wide quad |v| <= 127 and hi is 0: a kernel may leave those products out. Rows of
 * fewer than ACT_NARROW elements cost next to nothing: there rest counts as 0, every quad is wide.
 * amax infinite or NaN: scale NaN (0x7fc00000), v 0. 127 / m infinite (m 0 or below about 3.7e-37):
 * scale 0, v 0. Sums of 16 v each serve the mins and offsets. Why so: docs/adr/0012.
 */
#define ACT_PLANES 2
#define ACT_NARROW 256
#define ACT_REACH 240 // not 256: sums of 32 products with weights of 8 bits stay below 2^24
typedef struct act_row {
    const int8_t *q;    // [n/4, ACT_PLANES, 4]: for each 4 elements their hi, then their lo
    const float *scale; // [n/32]
    const int32_t *sum; // [n/16]
} act_row;

/* What a block's elements share, from amax and rest as bits. */
typedef struct act_block {
    float inv, scale; // 127 / m; scale
    bool codes;       // false: v is 0
} act_block;
static inline act_block act_block_of(uint32_t amax, uint32_t rest)
{
    bool finite = amax < 0x7f800000u;
    float least = f32_from_bits(amax) * (1.0f / ACT_REACH), m = f32_from_bits(rest);
    m = m > least ? m : least;
    // Zero, or so small that the inverse overflows: nothing of it is seen. Infinity or NaN: the
    // codes are 0, the scale makes every sum NaN.
    act_block a = { 127.0f / m, 0, false };
    a.codes = finite && a.inv < INFINITY;
    a.scale = a.codes ? m / 127.0f : finite ? 0.0f : f32_from_bits(0x7fc00000u);
    return a;
}

/* v of element k. */
static inline int act_value(const int8_t *q, size_t k)
{
    const int8_t *p = q + k / 4 * 4 * ACT_PLANES + k % 4;
    return 256 * p[0] + p[4];
}

/* The definition of a quantised dot product, in plain C. For each block of 32, in order, and in it
 * for each sub-block, in order:
 *     acc = fmaf(w.scale * x.scale, (float)sum_i w.q * x.v, acc)
 *     acc = fmaf(w.min, x.scale * (float)sum_i x.v, acc)              where the format has mins
 * Every CPU level gives these bits. n is a multiple of 32 and of the block; the format has unpack.
 */
float quant_dot(dtype type, const void *row, const act_row *x, size_t n);
/* The activation rounding itself, in plain C; every CPU level gives these bits. */
void quant_act_row(int8_t *q, float *scale, int32_t *sum, const float *x, size_t n);

#endif
