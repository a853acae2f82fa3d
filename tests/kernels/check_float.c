/* check_float.c: norms, rope, activations and the like: every level has ref's bits; ref is measured
 * against float64. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "check.h"

#define MOST 1100

static const int sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 257, 640, 1024};
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))

/* An output vector that ends at the fence, for one call. */
typedef struct output {
    fence f;
    float *y;
} output;
static output output_new(int n, const float *from)
{
    output o = {.f = fence_new((size_t)n * 4)};
    o.y = (float *)(void *)o.f.data;
    if (from) memcpy(o.y, from, (size_t)n * 4);
    return o;
}
static void output_done(checker *c, output *got, output *want, int n, const char *what)
{
    check_bits(c, got->y, want->y, (size_t)n, what);
    check_true(c, fence_intact(&got->f), "%s: wrote elsewhere", what);
    fence_free(&got->f);
    fence_free(&want->f);
}

static void check_norms(checker *c, int n, pattern p)
{
    float x[MOST], w[MOST], b[MOST];
    double want[MOST];
    fill(x, (size_t)n, p);
    fill(w, (size_t)n, RANDOM);
    fill(b, (size_t)n, RANDOM);
    double mean = 0, squares = 0, var = 0;
    for (int i = 0; i < n; i++) mean += (double)x[i] / n, squares += (double)x[i] * x[i] / n;
    for (int i = 0; i < n; i++) var += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
    for (int v = 0; v < 4; v++) {
        const float *ww = v & 1 ? w : NULL, *bb = v & 2 ? b : NULL;
        float offset = v & 2 ? 1.0f : 0.0f, eps = 1e-6f;
        output got = output_new(n, NULL), ref = output_new(n, NULL);
        c->op = "rms_norm";
        c->k->rms_norm(got.y, x, ww, offset, eps, n);
        c->ref->rms_norm(ref.y, x, ww, offset, eps, n);
        for (int i = 0; i < n; i++)
            want[i] = x[i] / sqrt(squares + (double)eps) * (ww ? (double)offset + ww[i] : 1);
        // three roundings of 2^-24
        if (c->k == c->ref) check_near(c, ref.y, want, (size_t)n, 4e-7, 1e-38, pattern_names[p]);
        output_done(c, &got, &ref, n, pattern_names[p]);

        got = output_new(n, x); // in place
        ref = output_new(n, NULL);
        c->op = "layer_norm";
        c->k->layer_norm(got.y, got.y, ww, bb, offset, eps, n);
        c->ref->layer_norm(ref.y, x, ww, bb, offset, eps, n);
        double biggest = 0;
        for (int i = 0; i < n; i++) {
            double s = 1 / sqrt(var + (double)eps);
            want[i] = (x[i] - mean) * s * (ww ? (double)offset + ww[i] : 1) + (bb ? bb[i] : 0);
            double part = fabs((double)x[i]) * s * (ww ? fabs((double)offset + ww[i]) : 1);
            biggest = part > biggest ? part : biggest;
        }
        // the mean is rounded to float32: an error in proportion to the largest x, not to y
        if (c->k == c->ref)
            check_near(c, ref.y, want, (size_t)n, 1e-6, 1e-6 * biggest + 1e-6, pattern_names[p]);
        output_done(c, &got, &ref, n, pattern_names[p]);
    }
}

static void check_rope(checker *c, int n_pairs)
{
    float x[MOST * 2], cs[MOST], sn[MOST];
    for (int i = 0; i < n_pairs; i++) {
        float angle = random_float(-3, 3);
        cs[i] = cosf(angle);
        sn[i] = sinf(angle);
    }
    c->op = "rope";
    for (int v = 0; v < 3; v++) {
        rope_pairing pairing = v == 2 ? ROPE_ADJACENT : ROPE_HALVES;
        int gap = v == 1 ? 7 : 0, n = 2 * n_pairs + gap;
        fill(x, (size_t)n, RANDOM);
        output got = output_new(n, x), ref = output_new(n, x);
        c->k->rope(got.y, cs, sn, n_pairs, gap, pairing);
        c->ref->rope(ref.y, cs, sn, n_pairs, gap, pairing);
        double want[MOST * 2];
        for (int i = 0; i < n; i++) want[i] = x[i];
        for (int i = 0; i < n_pairs; i++) {
            int a = v == 2 ? 2 * i : i, b = v == 2 ? a + 1 : i + n_pairs + gap;
            want[a] = (double)x[a] * cs[i] - (double)x[b] * sn[i];
            want[b] = (double)x[a] * sn[i] + (double)x[b] * cs[i];
        }
        if (c->k == c->ref) check_near(c, ref.y, want, (size_t)n, 2e-7, 1e-6, "against float64");
        output_done(c, &got, &ref, n, v == 2 ? "adjacent" : gap ? "halves with gap" : "halves");
    }
}

static double act_double(activation f, double x)
{
    switch (f) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_GELU_ERF: return 0.5 * x * erfc(-x / sqrt(2));
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    default: return x;
    }
}

static void check_glu(checker *c, int n)
{
    float g[MOST], u[MOST];
    double want[MOST];
    c->op = "glu";
    for (int f = 0; f < ACT_COUNT; f++) {
        for (int i = 0; i < n; i++) g[i] = random_normal() * (i % 3 ? 3.0f : 20.0f);
        if (n > 4) g[1] = 0, g[2] = 200, g[3] = -200;
        fill(u, (size_t)n, RANDOM);
        char what[32];
        snprintf(what, sizeof what, "activation %d", f);
        output got = output_new(n, NULL), ref = output_new(n, NULL);
        c->k->glu(got.y, g, u, (activation)f, n);
        c->ref->glu(ref.y, g, u, (activation)f, n);
        output_done(c, &got, &ref, n, what);
        got = output_new(n, g);
        ref = output_new(n, NULL);
        c->k->glu(got.y, got.y, NULL, (activation)f, n);
        c->ref->glu(ref.y, g, NULL, (activation)f, n);
        for (int i = 0; i < n; i++) want[i] = act_double((activation)f, g[i]);
        // exp's argument is rounded: relative 2^-24 |x| in the far tail, where little is left
        if (c->k == c->ref) check_near(c, ref.y, want, (size_t)n, 1e-6, 2e-7, what);
        output_done(c, &got, &ref, n, what);
    }
}

static void check_elements(checker *c, int n)
{
    float x[MOST], y[MOST];
    double want[MOST];
    fill(x, (size_t)n, RANDOM);
    fill(y, (size_t)n, RANDOM);
    output got = output_new(n, y), ref = output_new(n, y);
    c->op = "add_scaled";
    c->k->add_scaled(got.y, x, 0.3f, n);
    for (int i = 0; i < n; i++) {
        float product = x[i] * 0.3f;
        ref.y[i] = y[i] + product;
    }
    output_done(c, &got, &ref, n, "definition");

    got = output_new(n, y);
    ref = output_new(n, NULL);
    c->op = "scale";
    c->k->scale(got.y, 1.7f, n);
    for (int i = 0; i < n; i++) ref.y[i] = y[i] * 1.7f;
    output_done(c, &got, &ref, n, "definition");

    for (int v = 0; v < 3; v++) {
        for (int i = 0; i < n; i++) y[i] = random_normal() * (v == 0 ? 0.1f : v == 1 ? 30.0f : 1e4f);
        got = output_new(n, y);
        ref = output_new(n, y);
        c->op = "softcap";
        c->k->softcap(got.y, 30.0f, n);
        c->ref->softcap(ref.y, 30.0f, n);
        for (int i = 0; i < n; i++) want[i] = 30 * tanh(y[i] / 30.0);
        if (c->k == c->ref) check_near(c, ref.y, want, (size_t)n, 4e-7, 1e-37, "against float64");
        output_done(c, &got, &ref, n, "softcap");
    }

    for (int i = 0; i < n; i++) y[i] = random_float(-100, 90);
    if (n > 20) {
        y[0] = -INFINITY, y[1] = INFINITY, y[2] = NAN, y[3] = 88.722f, y[4] = 88.73f;
        y[5] = -87.336f, y[6] = -87.34f, y[7] = 0, y[8] = -0.0f, y[9] = -1e30f, y[10] = 1e-30f;
        uint32_t odd_nan = 0x7fc00001u; // a payload that an integer addition could lose
        memcpy(&y[11], &odd_nan, 4);
    }
    got = output_new(n, NULL);
    ref = output_new(n, NULL);
    c->op = "exp_sum";
    double a = c->k->exp_sum(got.y, y, 0, n), b = c->ref->exp_sum(ref.y, y, 0, n), in_order = 0;
    for (int i = 0; i < n; i++) {
        want[i] = y[i] < -87.3365448 ? 0 : exp(y[i]);
        if (want[i] > 3.4028235e38) want[i] = INFINITY;
    }
    for (int i = 0; i < n; i++) in_order += ref.y[i];
    if (c->k == c->ref) check_near(c, ref.y, want, (size_t)n, 1.8e-7, 0, "against float64");
    check_true(c, (a == b && b == in_order) || (isnan(a) && isnan(b)), "sum of %d", n);
    output_done(c, &got, &ref, n, "exp");
}

/* Rows that end at the fence, some activations 0; their rows hold NaN and are not read. */
static void check_sum_rows(checker *c, int n)
{
    enum { ROWS = 19 };
    static const dtype types[] = {DT_F32, DT_F16};
    float x[MOST], y[MOST], a[ROWS];
    fill(y, (size_t)n, RANDOM);
    c->op = "sum_rows";
    for (int t = 0; t < 2; t++)
        for (int zeros = 0; zeros < 3; zeros++) {
            size_t size = types[t] == DT_F32 ? 4 : 2, step = ((size_t)n + 3) * size;
            fence rows = fence_new(ROWS * step);
            output got = output_new(n, y), ref = output_new(n, y);
            for (int i = 0; i < ROWS; i++) {
                a[i] = zeros == 2 || (zeros == 1 && i % 3) ? 0 : random_normal();
                fill(x, (size_t)n, a[i] == 0 ? RANDOM : i == 4 ? HUGE_VALUES : RANDOM);
                for (int k = 0; k < n; k++) {
                    float v = a[i] == 0 ? NAN : x[k];
                    uint16_t half = f16_from_f32(v);
                    memcpy(rows.data + (size_t)i * step + (size_t)k * size,
                           size == 4 ? (void *)&v : (void *)&half, size);
                    if (size == 2) v = f16_to_f32(half);
                    if (a[i] != 0) ref.y[k] = fmaf(a[i], v, ref.y[k]);
                }
            }
            c->k->sum_rows(got.y, a, rows.data, step, types[t], ROWS, n);
            output_done(c, &got, &ref, n, quant_formats[types[t]]->name);
            fence_free(&rows);
        }
}

void check_float(checker *c)
{
    for (int i = 0; i < N_SIZES; i++) {
        for (int p = 0; p < PATTERN_COUNT; p++) check_norms(c, sizes[i], (pattern)p);
        check_rope(c, sizes[i]);
        check_glu(c, sizes[i]);
        check_elements(c, sizes[i]);
        check_sum_rows(c, sizes[i]);
    }
}
