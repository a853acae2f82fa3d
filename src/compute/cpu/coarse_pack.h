/*
 * coarse_pack.h: makes the panels of a coarse copy (compute/coarse.h), written once over v16; a
 * level's coarse_<level>.c includes its vec_<level>.h before it.
 */
#ifndef COMPUTE_CPU_COARSE_PACK_H
#define COMPUTE_CPU_COARSE_PACK_H

#include <math.h>
#include <string.h>

#include "compute/coarse.h"

#define COARSE_UP 1.00001f // more than what the sums of a block and the steps after them round off

/* Codes of 16 elements as floats: the nearest of 0 … 15 to y * inv + middle; NaN to 0. */
KERNEL_INLINE v16 grid(v16 y, v16 inv, v16 middle)
{
    v16 zero = v16_set1(0), magic = v16_set1(0x1.8p23f);
    v16 t = v16_max(v16_fma(y, inv, middle), zero);
    t = v16_sub(zero, v16_max(v16_sub(zero, t), v16_set1(-15)));
    return v16_sub(v16_add(t, magic), magic);
}

/* Row `lane` of a block: codes [32] to the panel. */
KERNEL_INLINE void store_codes(uint8_t *p, int lane, const int8_t *code)
{
    uint8_t packed[16];
    for (int i = 0; i < 16; i++)
        packed[i] = (uint8_t)(code[i] | code[16 + i] << 4);
    memcpy(p + 64 * (lane % 4) + 16 * (lane / 4), packed, 16);
}

/* A block's scale: its largest element half a step outside the grid, which is the better end for
 * most others. */
KERNEL_INLINE float block_scale(const float *y)
{
    return f32_from_bits(v16_max_bits(v16_load(y), v16_load(y + 16))) / 8;
}

/* A row to be packed. */
typedef struct wide_row {
    const float *y;  // [n]
    const int8_t *q; // [n] of Q8_0, or NULL
    double spread;   // bounds the norm of y and of the terms that the exact product adds up
    float *scale;    // [n / 32] in: q's scales; then scratch
    float *rest;     // [n] scratch
} wide_row;

/* Row `lane` of a panel. */
static void pack_row(uint8_t *panel, int lane, const wide_row *w, int n, float middle,
                     const float *direction)
{
    int n_blocks = n / 32;
    float *row = (float *)(void *)(panel + (size_t)n_blocks * COARSE_BLOCK) + lane;
    float most = 0, rho = 0, *scale = w->scale, *rest = w->rest;
    double scales = 0;
    bool usable = w->spread < (double)COARSE_LARGEST;
    for (int b = 0; b < n_blocks; b++) {
        usable = usable && !(w->q && scale[b] < 0); // no file has that
        scale[b] = !usable ? 0 : w->q ? scale[b] * 16 : block_scale(w->y + b * 32);
        most = scale[b] > most ? scale[b] : most;
    }
    float d = most > 1e-30f ? most / 255 : 0;
    v16 dot = v16_set1(0), mid = v16_set1(middle);
    for (int b = 0; b < n_blocks; b++) {
        uint8_t *p = panel + (size_t)b * COARSE_BLOCK;
        int8_t code[32];
        // Of Q8_0 the grid is the file's: what is nearest to y / step is q's high nibble.
        float step = scale[b], u = d > 0 ? rintf(step / d) : 1;
        u = u < 1 ? 1 : u > 255 ? 255 : u;
        p[256 + lane] = (uint8_t)u;
        scale[b] = d * u;
        if (!w->q) step = scale[b];
        scales += (double)scale[b] * scale[b];
        v16 inv = v16_set1(step > 0 ? 1 / step : 0), sc = v16_set1(scale[b]);
        for (int h = 0; h < 32; h += 16) {
            v16 y = v16_load(w->y + b * 32 + h), t = grid(y, inv, mid);
            v16_store_i8(code + h, t);
            v16 r = v16_sub(y, v16_mul(sc, v16_sub(t, mid)));
            v16_store(rest + b * 32 + h, r);
            dot = v16_fma(r, v16_load(direction + b * 32 + h), dot);
        }
        if (w->q)
            for (int i = 0; i < 32; i++)
                code[i] = (int8_t)((w->q[b * 32 + i] + 128) >> 4);
        store_codes(p, lane, code);
    }
    float along = v16_sum(dot);
    for (int b = 0; b < n_blocks; b++) {
        v16 squares = v16_set1(0), back = v16_set1(-along);
        for (int h = b * 32; h < b * 32 + 32; h += 16) {
            v16 r = v16_fma(v16_load(direction + h), back, v16_load(rest + h));
            squares = v16_fma(r, r, squares);
        }
        scale[b] = sqrtf(v16_sum(squares)) * COARSE_UP;
        rho = scale[b] > rho ? scale[b] : rho;
    }
    rho = rho > 1e-30f ? rho * COARSE_UP / 255 : 0; // less than that is in the size, below
    double size = (w->spread + 128 * sqrt(scales)) * (double)COARSE_UP;
    size += 1e-15; // what squares that underflow, and a rho of 0, leave out
    usable = usable && size < (double)COARSE_LARGEST && rho < COARSE_LARGEST;
    for (int b = 0; b < n_blocks; b++) {
        float e = usable && rho > 0 ? ceilf(scale[b] / rho) : 0;
        panel[(size_t)b * COARSE_BLOCK + 272 + lane] = (uint8_t)(e > 255 ? 255 : e);
    }
    row[0] = usable ? d : 0;
    row[PANEL] = usable ? rho : 0;
    row[2 * PANEL] = usable ? along : 0;
    row[3 * PANEL] = usable ? (float)size : INFINITY;
}

/* Row r of w to y [n]; returns pack_row's spread. q [n], scale and min [n / 16] are scratch. */
static double unpack_row(float *y, const tensor *w, int r, int8_t *q, float *scale, float *min)
{
    const quant_format *f = quant_formats[w->type];
    size_t n = (size_t)w->n_cols;
    double spread = 0;
    if (!f->sub) {
        tensor_row(y, w, r);
        for (size_t i = 0; i < n; i++)
            spread += (double)y[i] * y[i];
        return sqrt(spread) * (1 + 1e-9);
    }
    f->unpack(q, scale, min, w->data + (size_t)r * w->row_bytes, n);
    double root = sqrt(f->sub);
    for (size_t b = 0; b < n / (size_t)f->sub; b++) {
        int squares = 0;
        float s = scale[b], m = f->has_min ? min[b] : 0;
        for (int i = 0; i < f->sub; i++) {
            int v = q[b * (size_t)f->sub + (size_t)i];
            squares += v * v;
            y[b * (size_t)f->sub + (size_t)i] = s * (float)v + m;
        }
        if (f->has_min) {
            double a = fabs((double)s) * sqrt(squares) + fabs((double)m) * root;
            spread += a * a;
        } else {
            spread += (double)s * s * squares;
        }
    }
    return sqrt(spread) * (1 + 1e-9);
}

/* The low nibbles of a row of Q8_0, and its scales. */
static void pack_rests(uint8_t *p, const int8_t *q, const uint8_t *row, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++, p += COARSE_REST, q += 32) {
        for (int i = 0; i < 16; i++)
            p[i] = (uint8_t)((q[i] & 15) | (q[16 + i] & 15) << 4);
        memcpy(p + 16, row + (size_t)b * 34, 2);
    }
}

/* Panel i of c; scratch of COARSE_PACK_SCRATCH(n_cols) bytes. */
static void coarse_pack(coarse *c, int i, void *scratch)
{
    int n = c->w.n_cols;
    uint8_t *panel = c->panels + (size_t)i * c->panel_bytes;
    float *y = scratch, *rest = y + n, *scale = rest + n, *min = scale + n / 16;
    int8_t *q = (int8_t *)(min + n / 16);
    for (int lane = 0; lane < PANEL; lane++) {
        int r = i * PANEL + lane;
        wide_row row = { .y = y, .q = c->rests ? q : NULL, .scale = scale, .rest = rest };
        if (r < c->w.n_rows) {
            row.spread = unpack_row(y, &c->w, r, q, scale, min);
        } else {
            memset(y, 0, (size_t)n * sizeof *y);
            row.q = NULL;
        }
        pack_row(panel, lane, &row, n, c->middle, c->direction);
        if (row.q)
            pack_rests(c->rests + (size_t)r * c->rest_bytes, q,
                       c->w.data + (size_t)r * c->w.row_bytes, n / 32);
    }
}

#endif
