/*
 * float_kernels.h: norms, rotary positions, activations and the rounding of activations, written
 * once over v16. A level's float_<level>.c includes its vec_<level>.h, then this file, and installs
 * what it finds with float_kernels_install. Everything is static: each level has its own copy.
 */
#ifndef COMPUTE_CPU_FLOAT_KERNELS_H
#define COMPUTE_CPU_FLOAT_KERNELS_H

#include <math.h>
#include <string.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/vec_math.h"

/* ---- norms ---- */

static void rms_norm(float *y, const float *x, const float *w, float offset, float eps, int n)
{
    d16 squares = d16_zero();
    int i = 0;
    for (; i + 16 <= n; i += 16)
        squares = d16_add_square(squares, v16_load(x + i));
    if (i < n) squares = d16_add_square(squares, v16_load_n(x + i, n - i));
    v16 scale = v16_set1((float)(1.0 / sqrt(d16_sum(squares) / n + (double)eps)));
    v16 off = v16_set1(offset);
    for (i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16 v = v16_mul(v16_load_n(x + i, m), scale);
        if (w) v = v16_mul(v, v16_add(off, v16_load_n(w + i, m)));
        v16_store_n(y + i, v, m);
    }
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, float offset,
                       float eps, int n)
{
    d16 sum = d16_zero(), squares = d16_zero();
    for (int i = 0; i < n; i += 16)
        sum = d16_add(sum, v16_load_n(x + i, n - i < 16 ? n - i : 16));
    // The deviations are taken from the mean rounded to float32: what this changes in the variance
    // is the square of that rounding.
    v16 mean = v16_set1((float)(d16_sum(sum) / n)), zero = v16_set1(0);
    for (int i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16 v = v16_sub(v16_load_n(x + i, m), mean);
        squares = d16_add_square(squares, v16_select(m16_range(0, m), v, zero));
    }
    v16 scale = v16_set1((float)(1.0 / sqrt(d16_sum(squares) / n + (double)eps)));
    v16 off = v16_set1(offset);
    for (int i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16 v = v16_mul(v16_sub(v16_load_n(x + i, m), mean), scale);
        if (w) v = v16_mul(v, v16_add(off, v16_load_n(w + i, m)));
        if (b) v = v16_add(v, v16_load_n(b + i, m));
        v16_store_n(y + i, v, m);
    }
}

/* ---- rotary positions ---- */

/* (a, b) to (a cos - b sin, a sin + b cos), each product and sum rounded. */
KERNEL_INLINE void rotate(v16 *a, v16 *b, v16 c, v16 s)
{
    v16 x = v16_sub(v16_mul(*a, c), v16_mul(*b, s));
    *b = v16_add(v16_mul(*a, s), v16_mul(*b, c));
    *a = x;
}

static void rope(float *x, const float *cos, const float *sin, int n_pairs, int gap,
                 rope_pairing pairing)
{
    int i = 0;
    if (pairing == ROPE_HALVES) {
        float *second = x + n_pairs + gap;
        for (; i < n_pairs; i += 16) {
            int m = n_pairs - i < 16 ? n_pairs - i : 16;
            v16 a = v16_load_n(x + i, m), b = v16_load_n(second + i, m);
            rotate(&a, &b, v16_load_n(cos + i, m), v16_load_n(sin + i, m));
            v16_store_n(x + i, a, m);
            v16_store_n(second + i, b, m);
        }
        return;
    }
    for (; i + 16 <= n_pairs; i += 16) {
        v16 a, b;
        v16_load_pairs(&a, &b, x + 2 * i);
        rotate(&a, &b, v16_load(cos + i), v16_load(sin + i));
        v16_store_pairs(x + 2 * i, a, b);
    }
    for (; i < n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
}

/* ---- activations ---- */

KERNEL_INLINE v16 activate(v16 x, activation f)
{
    switch (f) {
    case ACT_SILU: return v16_mul_sigmoid(x, x);
    case ACT_GELU_TANH: { // x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
        v16 cube = v16_mul(v16_mul(x, x), x);
        v16 u = v16_fma(cube, v16_set1(0.044715f), x);
        return v16_mul_sigmoid(x, v16_mul(u, v16_set1(1.5957691216057308f)));
    }
    case ACT_GELU_ERF: return v16_gelu_erf(x);
    case ACT_RELU: return v16_max(v16_set1(0), x);
    case ACT_RELU2: {
        v16 r = v16_max(v16_set1(0), x);
        return v16_mul(r, r);
    }
    case ACT_GELU_QUICK: return v16_mul_sigmoid(x, v16_mul(x, v16_set1(1.702f)));
    default: return x;
    }
}

KERNEL_INLINE void glu_as(float *y, const float *gate, const float *up, activation f, int n)
{
    for (int i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16 v = activate(v16_load_n(gate + i, m), f);
        if (up) v = v16_mul(v, v16_load_n(up + i, m));
        v16_store_n(y + i, v, m);
    }
}

static void glu(float *y, const float *gate, const float *up, activation f, int n)
{
    switch (f) { // a loop for each, without a choice inside
    case ACT_SILU: glu_as(y, gate, up, ACT_SILU, n); break;
    case ACT_GELU_TANH: glu_as(y, gate, up, ACT_GELU_TANH, n); break;
    case ACT_GELU_ERF: glu_as(y, gate, up, ACT_GELU_ERF, n); break;
    case ACT_RELU: glu_as(y, gate, up, ACT_RELU, n); break;
    case ACT_RELU2: glu_as(y, gate, up, ACT_RELU2, n); break;
    case ACT_GELU_QUICK: glu_as(y, gate, up, ACT_GELU_QUICK, n); break;
    default: glu_as(y, gate, up, ACT_NONE, n); break;
    }
}

/* ---- by element ---- */

static void add_scaled(float *y, const float *x, float scale, int n)
{
    v16 s = v16_set1(scale);
    for (int i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16 v = v16_add(v16_load_n(y + i, m), v16_mul(v16_load_n(x + i, m), s));
        v16_store_n(y + i, v, m);
    }
}

static void scale_by(float *y, float scale, int n)
{
    v16 s = v16_set1(scale);
    for (int i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16_store_n(y + i, v16_mul(v16_load_n(y + i, m), s), m);
    }
}

#define SUM_ROWS 8 // rows for which y is loaded and stored once

KERNEL_INLINE v16 row_values(const uint8_t *row, dtype type, int at)
{
    if (type == DT_F16) return v16_load_f16((const uint16_t *)(const void *)row + at);
    return v16_load((const float *)(const void *)row + at);
}

/* The last n < 16 values of a row, without reading past it. */
static v16 row_values_n(const uint8_t *row, dtype type, int at, int n)
{
    if (type == DT_F32) return v16_load_n((const float *)(const void *)row + at, n);
    uint16_t part[16] = { 0 };
    memcpy(part, row + (size_t)at * 2, (size_t)n * 2);
    return row_values((const uint8_t *)part, type, 0);
}

KERNEL_INLINE void sum_some_rows(float *y, const float *a, const uint8_t *const *row, dtype type,
                                 int count, int n)
{
    v16 s[SUM_ROWS];
    KERNEL_UNROLL for (int i = 0; i < count; i++) s[i] = v16_set1(a[i]);
    int c = 0;
    for (; c + 32 <= n; c += 32) { // two sums at once hide the latency of the additions
        v16 v = v16_load(y + c), u = v16_load(y + c + 16);
        KERNEL_UNROLL for (int i = 0; i < count; i++)
        {
            v = v16_fma(s[i], row_values(row[i], type, c), v);
            u = v16_fma(s[i], row_values(row[i], type, c + 16), u);
        }
        v16_store(y + c, v);
        v16_store(y + c + 16, u);
    }
    for (; c < n; c += 16) {
        int m = n - c < 16 ? n - c : 16;
        v16 v = v16_load_n(y + c, m);
        KERNEL_UNROLL for (int i = 0; i < count; i++) v =
            v16_fma(s[i], row_values_n(row[i], type, c, m), v);
        v16_store_n(y + c, v, m);
    }
}

KERNEL_INLINE void sum_rows_as(float *y, const float *a, const uint8_t *rows, size_t step,
                               dtype type, int n_rows, int n)
{
    // The rows to come are fetched meanwhile: no processor foresees which are left out.
    const uint8_t *row[2 * SUM_ROWS];
    float s[2 * SUM_ROWS];
    size_t bytes = (size_t)n * (type == DT_F16 ? 2 : 4);
    int count = 0;
    for (int i = 0; i < n_rows; i++) {
        if (a[i] == 0) continue;
        row[count] = rows + (size_t)i * step;
        for (size_t k = 0; k < bytes; k += 64)
            PREFETCH_FAR(row[count] + k);
        s[count++] = a[i];
        if (count < 2 * SUM_ROWS) continue;
        sum_some_rows(y, s, row, type, SUM_ROWS, n);
        count = SUM_ROWS;
        memcpy(s, s + SUM_ROWS, SUM_ROWS * sizeof *s);
        memcpy(row, row + SUM_ROWS, SUM_ROWS * sizeof *row);
    }
    if (count >= SUM_ROWS) {
        sum_some_rows(y, s, row, type, SUM_ROWS, n);
        count -= SUM_ROWS;
        memcpy(s, s + SUM_ROWS, SUM_ROWS * sizeof *s);
        memcpy(row, row + SUM_ROWS, SUM_ROWS * sizeof *row);
    }
    for (int i = 0; i < count; i++)
        sum_some_rows(y, s + i, row + i, type, 1, n);
}

static void sum_rows(float *y, const float *a, const uint8_t *rows, size_t step, dtype type,
                     int n_rows, int n)
{
    if (type == DT_F16)
        sum_rows_as(y, a, rows, step, DT_F16, n_rows, n);
    else
        sum_rows_as(y, a, rows, step, DT_F32, n_rows, n);
}

static void softcap(float *y, float cap, int n)
{
    v16 c = v16_set1(cap);
    for (int i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16_store_n(y + i, v16_softcap(v16_load_n(y + i, m), c), m);
    }
}

static double exp_sum(float *y, const float *x, float shift, int n)
{
    v16 s = v16_set1(shift);
    double sum = 0;
    for (int i = 0; i < n; i += 16) {
        int m = n - i < 16 ? n - i : 16;
        v16_store_n(y + i, v16_exp(v16_sub(v16_load_n(x + i, m), s)), m);
        for (int j = 0; j < m; j++)
            sum += (double)y[i + j];
    }
    return sum;
}

/* ---- rounding to 8 and 16 bits ---- */

/* The two planes of x * inv [16], quad by quad; returns the sum of 256 * hi + lo. */
KERNEL_INLINE int split_planes(int8_t *q, v16 x, v16 inv)
{
    v16 magic = v16_set1(0x1.8p23f), zero = v16_set1(0), least = v16_set1(-127);
    v16 t = v16_sub(v16_add(v16_mul(x, inv), magic), magic); // to nearest even
    v16 high = v16_sub(v16_add(v16_mul(t, v16_set1(0x1p-8f)), magic), magic);
    v16 rest = v16_sub(t, v16_mul(high, v16_set1(256)));
    rest = v16_max(rest, least);
    rest = v16_sub(zero, v16_max(v16_sub(zero, rest), least)); // at most 127
    return v16_store_planes(q, high, rest);
}

static void act_row_planes(int8_t *q, float *scale, int32_t *sum, const float *x, int n)
{
    for (int b = 0; b < n / 32; b++, x += 32, q += 32 * ACT_PLANES, sum += 2) {
        v16 first = v16_load(x), second = v16_load(x + 16);
        uint32_t most, rest;
        v16_wide_quad(&most, &rest, first, second);
        act_block a = act_block_of(most, n < ACT_NARROW ? 0 : rest);
        scale[b] = a.scale;
        if (!a.codes) {
            memset(q, 0, 32 * ACT_PLANES);
            sum[0] = sum[1] = 0;
            continue;
        }
        sum[0] = split_planes(q, first, v16_set1(a.inv));
        sum[1] = split_planes(q + 16 * ACT_PLANES, second, v16_set1(a.inv));
    }
}

static inline void float_kernels_install(cpu_kernels *k)
{
    k->act_row = act_row_planes;
    k->rms_norm = rms_norm;
    k->layer_norm = layer_norm;
    k->rope = rope;
    k->glu = glu;
    k->add_scaled = add_scaled;
    k->scale = scale_by;
    k->sum_rows = sum_rows;
    k->softcap = softcap;
    k->exp_sum = exp_sum;
}

#endif
