/*
 * coarse.h: a coarse copy of a matrix, four bits an element, from which the rows with the largest
 * products are found while most of the matrix itself is never read. docs/adr/0013-head-bound.md has
 * the idea and the proof; this file has the layout.
 *
 * Rows lie in panels of PANEL. A panel is, for each block of 32 columns (COARSE_BLOCK bytes),
 *
 *   byte 0 … 255    codes: 16 bytes of row i at 64 (i % 4) + 16 (i / 4); byte t has columns t (low
 *                   nibble) and 16 + t
 *        256 … 271  u: a row's scale of the block, in units of its d
 *        272 … 287  e: the norm of what the codes leave of the block, in units of its rho
 *
 * then for each row d, rho, along and size as float32 [4, PANEL]; a multiple of 64 bytes.
 *
 *   coarse element  c = d * u * (code - middle)
 *   rest            w - c = along * direction + r, and the norm of r in a block is at most rho * e
 *   size            bounds what rounding depends on; INFINITY: a row that is always read
 *
 * Q8_0 is cut in two: codes are the high nibbles of q + 128, and `rests` has the low ones and the
 * file's scale, 18 bytes a block, so that the copy takes the place of the file. Of any other format
 * a row that is needed exactly is read from the file.
 */
#ifndef COMPUTE_COARSE_H
#define COMPUTE_COARSE_H

#include "base/thread.h"
#include "compute/cpu/kernels.h"

#define COARSE_BLOCK 288
#define COARSE_REST 18 // bytes of a block's rest
#define COARSE_PACK_SCRATCH(n_cols) ((size_t)(n_cols)*10 + 1024)
#define COARSE_MOST 256      // largest k of a search
#define COARSE_ROWS 8        // most rows of activations in one
#define COARSE_LARGEST 1e18f // no sum overflows below this

typedef struct coarse {
    tensor w;                              // what it is a copy of
    uint8_t *panels;                       // [n_panels, panel_bytes]
    uint8_t *rests;                        // [n_rows, n_cols / 32, 18] of Q8_0, or NULL
    size_t panel_bytes, bytes, rest_bytes; // bytes: of all panels; rest_bytes: of a row
    float middle;
    int n_panels, n_threads;
    float *direction; // [n_cols] of length 1, or zeros; set before the first panel is packed
    int *packed;      // [n_threads] panels that each thread has packed, of its share
    uint8_t *scratch; // [n_threads, scratch_bytes]
    size_t scratch_bytes;
} coarse;

static inline size_t coarse_panel_bytes(int n_cols)
{
    return ((size_t)(n_cols / 32) * COARSE_BLOCK + 4 * PANEL * sizeof(float) + 63) / 64 * 64;
}

/* The search of one row of activations. */
typedef struct top_row {
    int k;               // 1 … COARSE_MOST
    const int32_t *also; // [n_also] ascending, each once: rows that are wanted whatever they are,
    int n_also;          // and do not count among the k
    int32_t *ids;        // [n_threads, room] out: a superset of the k largest and of `also` ...
    float *values;       // [n_threads, room] ... with their products; ascending within a thread
    int *n;              // [n_threads] found by each; -1: more than room
} top_row;

typedef struct top_args {
    const coarse *c;
    const act *x;  // at most COARSE_ROWS
    top_row *rows; // [x->n_rows]
    int room;
    float scale;          // of values; positive
    float *score, *upper; // [x->n_rows, stride] scratch
    size_t stride;
    float *best; // [n_threads, x->n_rows, COARSE_MOST] scratch
} top_args;

/* A row of activations as the search reads it; see the ADR for the letters. */
typedef struct coarse_act {
    const int8_t *q;     // [n_cols / 4, ACT_PLANES, 4]: g = scale * (256 hi + lo)
    const float *scale;  // [n_blocks]
    const float *offset; // [n_blocks] -middle * scale * sum of the block
    const float *norm;   // [n_blocks] of what is not along the direction, rounded up
    float along;         // its part along the direction
    float slack;         // times a row's size: all that rounding can do
} coarse_act;

#endif
