/*
 * tile_emulated.h: tile_amx.h in plain C, so that every machine with AVX-512 checks the AMX kernel.
 * Includers put it before matmul_amx.c; it takes the other header's guard.
 *
 * It is stricter than the processor: a tile that has no shape, or shapes that do not fit each
 * other, end the program. Bytes past a row's end and rows past the last one read as zero.
 * The order of its float sums is that of Intel's manual; numbers so small that the processor takes
 * them as zero do not occur.
 */
#ifndef COMPUTE_CPU_X86_TILE_AMX_H
#define COMPUTE_CPU_X86_TILE_AMX_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;
_Static_assert(sizeof(tile_shapes) == 64, "what LDTILECFG reads");

static tile_shapes shapes;
static union tile {
    uint8_t bytes[16][64];
    uint16_t bf16[16][32];
    float f32[16][16];
} tiles[8];

static void tile_expect(int ok, const char *what, int t)
{
    if (ok) return;
    fprintf(stderr, "emulated tile %d: %s\n", t, what);
    abort();
}
static void tile_shaped(int t)
{
    tile_expect(shapes.palette == 1 && shapes.rows[t] && shapes.row_bytes[t], "has no shape", t);
}

static void tile_config(const tile_shapes *s)
{
    for (int t = 0; t < 16; t++) {
        tile_expect(s->rows[t] <= 16 && s->row_bytes[t] <= 64, "shape is too large", t);
        tile_expect(t < 8 || !(s->rows[t] || s->row_bytes[t]), "does not exist", t);
    }
    for (size_t i = 0; i < sizeof s->reserved; i++)
        tile_expect(s->reserved[i] == 0, "reserved byte is not 0", 0);
    shapes = *s;
    memset(tiles, 0, sizeof tiles);
}
static void tile_release(void)
{
    memset(&shapes, 0, sizeof shapes);
    memset(tiles, 0xee, sizeof tiles);
}
static void tile_zero(int t)
{
    tile_shaped(t);
    memset(&tiles[t], 0, sizeof tiles[t]);
}
static void tile_load(int t, const void *p, size_t stride)
{
    tile_zero(t);
    for (int r = 0; r < shapes.rows[t]; r++)
        memcpy(tiles[t].bytes[r], (const uint8_t *)p + (size_t)r * stride, shapes.row_bytes[t]);
}
static void tile_store(int t, void *p, size_t stride)
{
    tile_shaped(t);
    for (int r = 0; r < shapes.rows[t]; r++)
        memcpy((uint8_t *)p + (size_t)r * stride, tiles[t].bytes[r], shapes.row_bytes[t]);
}
static void tile_dot(int acc, int a, int b)
{
    tile_shaped(acc);
    tile_shaped(a);
    tile_shaped(b);
    tile_expect(acc != a && acc != b && a != b, "operands are not three tiles", acc);
    tile_expect(shapes.rows[a] == shapes.rows[acc], "rows of a differ", acc);
    tile_expect(shapes.row_bytes[a] == 4 * shapes.rows[b], "a and b do not fit", acc);
    tile_expect(shapes.row_bytes[b] == shapes.row_bytes[acc], "columns of b differ", acc);
    for (int m = 0; m < shapes.rows[acc]; m++)
        for (int n = 0; n < shapes.row_bytes[acc] / 4; n++) {
            float *sum = &tiles[acc].f32[m][n], even = 0, odd = 0;
            for (int k = 0; k < shapes.rows[b]; k++) {
                const uint16_t *x = &tiles[a].bf16[m][2 * k], *w = &tiles[b].bf16[k][2 * n];
                even = fmaf(bf16_to_f32(x[0]), bf16_to_f32(w[0]), even);
                odd = fmaf(bf16_to_f32(x[1]), bf16_to_f32(w[1]), odd);
            }
            *sum += even + odd;
        }
}

#define TILE_ZERO(t) tile_zero(t)
#define TILE_LOAD(t, p, stride) tile_load(t, p, stride)
#define TILE_STORE(t, p, stride) tile_store(t, p, stride)
#define TILE_DOT(acc, a, b) tile_dot(acc, a, b)

#endif
