/* check_dots.c: products of vectors of bytes: every level has the integers of a plain sum. */
#include <string.h>

#include "base/mem.h"
#include "check.h"

#define MOST 11

static void check_shape(checker *c, int n_q, int n_v, int n, bool extreme)
{
    fence q = fence_new((size_t)n_q * n), v = fence_new((size_t)n_v * n);
    fence out = fence_new(((size_t)(n_q - 1) * (MOST + 2) + n_v) * 4);
    const int8_t *qs[MOST], *vs[MOST];
    for (size_t i = 0; i < q.n; i++)
        q.data[i] = (uint8_t)(extreme ? (random_bits() & 1 ? 127 : -127) : random_below(255) - 127);
    for (size_t i = 0; i < v.n; i++)
        v.data[i] = (uint8_t)(extreme ? (i & 1 ? 127 : -127) : random_below(255) - 127);
    if (extreme) memcpy(q.data, v.data, q.n < v.n ? q.n : v.n); // the largest sum there is
    for (int i = 0; i < n_q; i++) qs[i] = (const int8_t *)q.data + (size_t)i * n;
    for (int j = 0; j < n_v; j++) vs[j] = (const int8_t *)v.data + (size_t)(n_v - 1 - j) * n;
    int32_t *got = (int32_t *)(void *)out.data;
    c->k->dots_i8(got, MOST + 2, qs, n_q, vs, n_v, n);
    int wrong = 0;
    for (int i = 0; i < n_q; i++)
        for (int j = 0; j < n_v; j++) {
            int64_t sum = 0;
            for (int k = 0; k < n; k++) sum += qs[i][k] * vs[j][k];
            wrong += got[(size_t)i * (MOST + 2) + j] != sum;
        }
    for (int i = 0; i + 1 < n_q; i++) // between the rows nothing is written
        for (int j = n_v; j < MOST + 2; j++) wrong += got[(size_t)i * (MOST + 2) + j] != -1;
    check_true(c, wrong == 0 && fence_intact(&out), "%d x %d of %d: %d wrong", n_q, n_v, n, wrong);
    fence_free(&q);
    fence_free(&v);
    fence_free(&out);
}

static void check_floats(checker *c, int n_q, int n_v, int n, bool half, pattern p)
{
    size_t size = half ? 2 : 4;
    fence q = fence_new((size_t)n_q * n * 4), v = fence_new((size_t)n_v * n * size);
    fence out = fence_new(((size_t)(n_q - 1) * (MOST + 2) + n_v) * 4);
    float want[MOST * (MOST + 2)], x[2600];
    const float *qs[MOST];
    const void *vs[MOST];
    for (int i = 0; i < n_q; i++) {
        fill(x, (size_t)n, p);
        qs[i] = memcpy(q.data + (size_t)i * n * 4, x, (size_t)n * 4);
    }
    for (int j = 0; j < n_v; j++) {
        uint8_t *to = v.data + (size_t)j * n * size;
        fill(x, (size_t)n, RANDOM);
        if (!half) memcpy(to, x, (size_t)n * 4);
        for (int k = 0; half && k < n; k++) {
            uint16_t h = f16_from_f32(x[k]);
            memcpy(to + 2 * k, &h, 2);
        }
        vs[j] = to;
    }
    float *got = (float *)(void *)out.data;
    memset(want, 0xff, sizeof want);
    c->k->dots_float(got, MOST + 2, qs, n_q, vs, n_v, n, half);
    c->ref->dots_float(want, MOST + 2, qs, n_q, vs, n_v, n, half);
    if (c->k == c->ref)
        for (int i = 0; i < n_q; i++)
            for (int j = 0; j < n_v; j++) {
                double sum = 0, mag = 0;
                for (int k = 0; k < n; k++) {
                    uint16_t h;
                    memcpy(&h, (const uint8_t *)vs[j] + 2 * k, 2);
                    double w = (double)(half ? f16_to_f32(h) : ((const float *)vs[j])[k]);
                    sum += w * (double)qs[i][k];
                    mag += w * (double)qs[i][k] < 0 ? -w * (double)qs[i][k] : w * (double)qs[i][k];
                }
                // n / 16 + 4 roundings of 2^-24 of partial sums
                check_near(c, got + (size_t)i * (MOST + 2) + j, &sum, 1, 0, mag * 1.1e-5, "sum");
            }
    check_bits(c, got, want, out.n / 4, half ? "f16" : "f32");
    check_true(c, fence_intact(&out), "wrote elsewhere");
    fence_free(&q);
    fence_free(&v);
    fence_free(&out);
}

void check_dots(checker *c)
{
    static const int sizes[] = {64, 128, 640, 2560};
    c->op = "dots_i8";
    for (int s = 0; s < 4; s++)
        for (int n_q = 1; n_q <= MOST; n_q += 2)
            for (int n_v = 1; n_v <= MOST; n_v++)
                check_shape(c, n_q, n_v, sizes[s], random_below(4) == 0);
    check_shape(c, 4, 4, DOTS_MAX, true);
    static const int widths[] = {1, 15, 16, 17, 100, 640, 2560};
    c->op = "dots_float";
    for (int w = 0; w < 7; w++)
        for (int half = 0; half < 2; half++)
            for (int n = 1; n <= MOST; n++)
                check_floats(c, random_below(MOST) + 1, n, widths[w], half,
                             random_below(3) ? RANDOM : OUTLIER);
}
