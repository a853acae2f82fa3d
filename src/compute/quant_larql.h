/*
 * quant_larql.h: the encoders of LARQL's vindex files where they differ from ours: halves are cut,
 * not rounded, and blocks are found in one pass. A file written with them has the bytes that LARQL
 * writes; what they encode decodes like any other. Formats of its own bit order are rows of
 * QUANT_LIST (quant_larql_q4_0.c, quant_larql_q6_k.c, quant_vindex_fp4.c, quant_vindex_fp8.c).
 */
#ifndef COMPUTE_QUANT_LARQL_H
#define COMPUTE_QUANT_LARQL_H

#include <stddef.h>
#include <stdint.h>

/* A half of the storage files: mantissa cut, below 2^-14 a zero with its sign, from 65536 infinity,
 * NaN 0x7e00 with its sign. */
uint16_t larql_f16(float x);
/* A half of a block's scale: mantissa cut, subnormals kept. */
uint16_t larql_scale_f16(float x);
void larql_f16_row(uint16_t *y, const float *x, size_t n);

/* n elements, a multiple of the block, in the layouts of GGUF. */
void larql_quantize_q4_k(void *blocks, const float *x, size_t n);
void larql_quantize_q8_0(void *blocks, const float *x, size_t n);
/* Blocks of n elements of LARQL's Q6_K as GGUF's: no bit is lost. */
void larql_q6_k_to_gguf(void *to, const void *from, size_t n);
void larql_q4_0_to_gguf(void *to, const void *from, size_t n);

/* 8-bit floats of 4 bits exponent and 3 mantissa (no infinity, 0x7f NaN). */
uint8_t e4m3_from_f32(float x); // to nearest even; from 448 on 448; below 2^-9 zero
float e4m3_to_f32(uint8_t x);
/* 4-bit floats: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives. */
uint8_t e2m1_from_f32(float x); // to nearest, ties to the even code

#endif
