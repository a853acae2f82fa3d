/*
 * test_quant.c: every format against gguf-py's values and bytes (tests/golden/quants), the integer
 * form against the values, the quantisers' errors, and the two definitions: activation rounding and
 * dot product.
 */
#include "test.h"

#include <ctype.h>
#include <math.h>

#include "base/compiler.h"
#include "base/half.h"
#include "compute/quant.h"

#define GOLDEN "tests/golden/quants/"
#define TAME 1024 // leading elements of a .blocks file whose values are weight-like
#define ROW 256

// ---- files and numbers

static void *read_golden(const quant_format *f, const char *suffix, size_t *size)
{
    char path[200], name[20];
    size_t i = 0;
    for (; f && f->name[i] && i + 1 < sizeof(name); i++)
        name[i] = (char)toupper(f->name[i]);
    name[i] = 0;
    snprintf(path, sizeof(path), GOLDEN "%s%s", f ? name : "", suffix);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: not there (run from the repository's root)", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    void *data = malloc(*size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

static uint64_t seed;
static double uniform(void) // (0, 1)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed >> 12) + 0.5) * 0x1p-52;
}
static float normal(void)
{
    double r = sqrt(-2 * log(uniform()));
    return (float)(r * cos(6.283185307179586 * uniform()));
}

static bool same_float(float a, float b)
{
    return isnan(a) ? isnan(b) : f32_bits(a) == f32_bits(b);
}

static double relative_rms(const float *y, const float *x, const float *w, size_t n)
{
    double err = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)y[i] - (double)x[i], weight = w ? w[i] : 1;
        err += weight * e * e;
        all += weight * (double)x[i] * (double)x[i];
    }
    return sqrt(err / all);
}

/* Of GGUF files; those of vindex files have test_quant_vindex.c. */
#define FOR_EACH_FORMAT(f)                                                                         \
    for (int type_ = 0; type_ < DT_COUNT; type_++)                                                 \
        for (const quant_format *f = quant_formats[type_]; f && f->ggml_type >= 0; f = NULL)

// ---- the table

static void table(void **state)
{
    (void)state;
    FOR_EACH_FORMAT(f)
    {
        assert_int_equal(quant_find_ggml((uint32_t)f->ggml_type), type_);
        assert_int_equal(quant_find_name(f->name), type_);
        assert_non_null(f->dequant);
        assert_true(f->sub == 0 || f->sub == 16 || f->sub == 32);
        assert_int_equal(f->unpack != NULL, f->sub != 0);
        assert_int_equal(quant_row_bytes((dtype)type_, 1024),
                         1024 / (size_t)f->block_size * (size_t)f->block_bytes);
    }
    assert_int_equal(quant_find_name("Q4_K"), DT_Q4_K);
    assert_int_equal(quant_find_name("iq2_XXS"), DT_IQ2_XXS);
    assert_int_equal(quant_find_name("q4"), -1);
    assert_int_equal(quant_find_name("q4_kk"), -1);
    assert_int_equal(quant_find_name(""), -1);
    assert_int_equal(quant_find_ggml(4), -1); // a format that ggml removed
    assert_int_equal(quant_find_ggml(UINT32_MAX), -1);
    assert_int_equal(quant_row_bytes(DT_Q4_K, 128), 0);
    assert_int_equal(quant_row_bytes(DT_F32, SIZE_MAX / 2), 0);
}

// ---- decoding

static void dequant_bits(void **state)
{
    (void)state;
    FOR_EACH_FORMAT(f)
    {
        if (type_ == DT_F32) continue;
        size_t size, y_size;
        uint8_t *blocks = read_golden(f, ".blocks", &size);
        float *want = read_golden(f, ".f32", &y_size);
        size_t n = y_size / 4;
        assert_int_equal(size, quant_row_bytes((dtype)type_, n));

        // at every alignment that differs, with a guard behind
        for (size_t shift = 0; shift < 4; shift++) {
            uint8_t *moved = malloc(size + shift);
            float *y = malloc((n + 1) * 4);
            memcpy(moved + shift, blocks, size);
            y[n] = 12345;
            f->dequant(y, moved + shift, n);
            for (size_t i = 0; i < n; i++)
                if (!same_float(y[i], want[i]))
                    fail_msg("%s: element %zu is %a, expected %a", f->name, i, y[i], want[i]);
            assert_true(y[n] == 12345);
            free(moved);
            free(y);
        }
        free(blocks);
        free(want);
    }
}

static void f32_is_a_copy(void **state)
{
    (void)state;
    float x[5] = { 0.0f, -0.0f, 1e-42f, INFINITY, -3.5f }, y[5];
    uint8_t bytes[21];
    quant_formats[DT_F32]->quantize(bytes + 1, x, NULL, 5);
    quant_formats[DT_F32]->dequant(y, bytes + 1, 5);
    assert_memory_equal(x, y, sizeof(x));
}

static void unpack_gives_the_values(void **state)
{
    (void)state;
    FOR_EACH_FORMAT(f)
    {
        if (!f->sub) continue;
        size_t size, y_size;
        uint8_t *blocks = read_golden(f, ".blocks", &size);
        float *want = read_golden(f, ".f32", &y_size);
        size_t n = y_size / 4, n_sub = n / (size_t)f->sub;
        int8_t *q = malloc(n + 1);
        float *scale = malloc((n_sub + 1) * 4), *min = malloc((n_sub + 1) * 4);
        q[n] = 99;
        scale[n_sub] = 12345;
        for (size_t s = 0; s <= n_sub; s++)
            min[s] = 12345;
        f->unpack(q, scale, min, blocks, n);
        assert_true(q[n] == 99 && scale[n_sub] == 12345 && min[n_sub] == 12345);
        for (size_t i = 0; i < n; i++) {
            size_t s = i / (size_t)f->sub;
            if (!f->has_min) assert_true(min[s] == 12345);
            double y = (double)scale[s] * q[i] + (f->has_min ? (double)min[s] : 0);
            double bound = fabs((double)scale[s] * q[i]) + (f->has_min ? fabs((double)min[s]) : 0);
            if (isfinite(y) && isfinite(want[i])) {
                if (fabs(y - (double)want[i]) > 1.2e-7 * bound)
                    fail_msg("%s: element %zu is %g, expected %g", f->name, i, y, (double)want[i]);
            } else {
                assert_false(isfinite(y) && fabs(y) < 3.4e38);
                assert_false(isfinite(want[i]));
            }
        }
        free(blocks), free(want), free(q), free(scale), free(min);
    }
}

// ---- encoding

static void quantize_bytes(void **state)
{
    (void)state;
    static const dtype types[] = { DT_F16,  DT_BF16, DT_Q8_0,  DT_Q4_0,  DT_Q4_1,
                                   DT_Q5_0, DT_Q5_1, DT_TQ1_0, DT_TQ2_0, DT_MXFP4 };
    size_t x_size;
    float *x = read_golden(NULL, "rows.f32", &x_size);
    for (int t = 0; t < COUNT_OF(types); t++) {
        const quant_format *f = quant_formats[types[t]];
        size_t size;
        uint8_t *want = read_golden(f, ".quantized", &size), *blocks = malloc(size + 1);
        assert_int_equal(size, quant_row_bytes(types[t], x_size / 4));
        blocks[size] = 0x5a;
        f->quantize(blocks, x, NULL, x_size / 4);
        for (size_t i = 0; i < size; i++)
            if (blocks[i] != want[i])
                fail_msg("%s: byte %zu of block %zu is %02x, expected %02x", f->name,
                         i % (size_t)f->block_bytes, i / (size_t)f->block_bytes, blocks[i],
                         want[i]);
        assert_int_equal(blocks[size], 0x5a);
        free(want);
        free(blocks);
    }
    free(x);
}

/* The formats written by search, and ggml's relative RMS error on normal rows (ggml_quantize_chunk
 * of llama-cpp-python 0.3.36, 512,000 elements): ours may be 2 % worse. */
static const struct {
    dtype type;
    double ggml_error;
} searched[] = { { DT_Q2_K, 0.29681 },  { DT_Q3_K, 0.15105 }, { DT_Q4_K, 0.07144 },
                 { DT_Q5_K, 0.03616 },  { DT_Q6_K, 0.01779 }, { DT_IQ4_NL, 0.07621 },
                 { DT_IQ4_XS, 0.07681 } };

static void search_errors(void **state)
{
    (void)state;
    enum { N = 200 * ROW };
    float *x = malloc(N * 4), *w = malloc(N * 4), *y = malloc(N * 4);
    uint8_t *blocks = malloc(N * 2);
    for (int t = 0; t < COUNT_OF(searched); t++) {
        const quant_format *f = quant_formats[searched[t].type];
        seed = 1;
        for (int i = 0; i < N; i++) {
            x[i] = 0.02f * normal();
            w[i] = expf(normal());
        }
        f->quantize(blocks, x, NULL, N);
        f->dequant(y, blocks, N);
        double plain = relative_rms(y, x, NULL, N), plain_weighted = relative_rms(y, x, w, N);
        if (!(plain < 1.02 * searched[t].ggml_error))
            fail_msg("%s: error %g, ggml's %g", f->name, plain, searched[t].ggml_error);

        // An importance lowers the error that it measures.
        f->quantize(blocks, x, w, N);
        f->dequant(y, blocks, N);
        double weighted = relative_rms(y, x, w, N);
        if (!(weighted < 0.97 * plain_weighted))
            fail_msg("%s: weighted error %g, %g without", f->name, weighted, plain_weighted);
    }
    free(x), free(w), free(y), free(blocks);
}

static void importance_in_legacy_formats(void **state)
{
    (void)state;
    enum { N = 100 * ROW };
    static const dtype types[] = { DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_MXFP4 };
    float *x = malloc(N * 4), *w = malloc(N * 4), *y = malloc(N * 4);
    uint8_t *blocks = malloc(N * 2);
    seed = 2;
    for (int i = 0; i < N; i++)
        x[i] = normal(), w[i] = expf(normal());
    for (int t = 0; t < COUNT_OF(types); t++) {
        const quant_format *f = quant_formats[types[t]];
        f->quantize(blocks, x, NULL, N);
        f->dequant(y, blocks, N);
        double without = relative_rms(y, x, w, N);
        f->quantize(blocks, x, w, N);
        f->dequant(y, blocks, N);
        if (!(relative_rms(y, x, w, N) < 0.99 * without))
            fail_msg("%s: importance does not help", f->name);
    }
    free(x), free(w), free(y), free(blocks);
}

static void zeros_stay_zeros(void **state)
{
    (void)state;
    float x[ROW] = { 0 }, w[ROW], y[ROW];
    uint8_t blocks[ROW * 4];
    for (int i = 0; i < ROW; i++)
        w[i] = (float)(i % 3);
    FOR_EACH_FORMAT(f)
    {
        if (!f->quantize) continue;
        for (int pass = 0; pass < 2; pass++) {
            f->quantize(blocks, x, pass ? w : NULL, ROW);
            f->dequant(y, blocks, ROW);
            for (int i = 0; i < ROW; i++)
                if (y[i] != 0) fail_msg("%s: zero became %g", f->name, (double)y[i]);
        }
    }
}

/* Finite values keep their size as far as f16 scales reach; of others it is asked (by the
 * sanitizers too) that they do no harm and write blocks, not past them. */
static void extreme_values(void **state)
{
    (void)state;
    static const float bad[] = { NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-45f, 1e-38f };
    float x[ROW], w[ROW], y[ROW];
    uint8_t blocks[ROW * 4 + 1];
    seed = 3;
    FOR_EACH_FORMAT(f)
    {
        if (!f->quantize) continue;
        for (int size = -3; size <= 3; size++) {
            for (int i = 0; i < ROW; i++)
                x[i] = normal() * powf(10, (float)size);
            x[100] = 9 * powf(10, (float)size);
            f->quantize(blocks, x, NULL, ROW);
            f->dequant(y, blocks, ROW);
            bool ternary = type_ == DT_TQ1_0 || type_ == DT_TQ2_0;
            double err = relative_rms(y, x, NULL, ROW), bound = ternary ? 1.3 : 0.4;
            if (!(err < bound)) fail_msg("%s: error %g at 1e%d", f->name, err, size);
        }
        for (int k = 0; k < COUNT_OF(bad); k++)
            for (int pass = 0; pass < 4; pass++) {
                for (int i = 0; i < ROW; i++) {
                    x[i] = pass & 1 || i % 37 == 0 ? bad[k] : normal();
                    w[i] = i % 5 ? bad[k] : (float)(i % 3) - 1;
                }
                size_t end = quant_row_bytes((dtype)type_, ROW);
                blocks[end] = 0x5a;
                f->quantize(blocks, x, pass & 2 ? w : NULL, ROW);
                assert_int_equal(blocks[end], 0x5a);
                f->dequant(y, blocks, ROW);
            }
    }
}

// ---- activations and dots

static void activation_rounding(void **state)
{
    (void)state;
    float x[32] = { 127, 0.5f, 1.6f, 2.25f, -0.25f, -1.6f, -127, 126.5f };
    // 240 times x, or one from it where the low plane would be 128
    static const int want[8] = { 30480, 120, 385, 540, -60, -385, -30480, 30360 };
    int8_t q[32 * ACT_PLANES];
    float scale;
    int32_t sum[2];
    x[20] = -3;
    quant_act_row(q, &scale, sum, x, 32);
    assert_true(scale == 127 * (1.0f / ACT_REACH) / 127);
    for (int i = 0; i < 8; i++)
        assert_int_equal(act_value(q, (size_t)i), want[i]);
    assert_int_equal(act_value(q, 20), -720);
    assert_int_equal(sum[0], 30480 + 120 + 385 + 540 - 60 - 385 - 30480 + 30360);
    assert_int_equal(sum[1], -720);

    seed = 4;
    for (int trial = 0; trial < 2000; trial++) {
        float amax = 0, size = powf(10, (float)(uniform() * 60 - 30));
        for (int i = 0; i < 32; i++) {
            x[i] = normal() * size;
            amax = fmaxf(amax, fabsf(x[i]));
        }
        quant_act_row(q, &scale, sum, x, 32);
        assert_true(scale == amax * (1.0f / ACT_REACH) / 127);
        int sums[2] = { 0, 0 };
        for (int i = 0; i < 32; i++) {
            int v = act_value(q, (size_t)i);
            assert_true(abs(v) <= 127 * ACT_REACH + 1);
            // half a step, one more where the low plane was cut, and float32's own rounding
            assert_true(fabs((double)x[i] - (double)scale * v) <= 1.51 * (double)scale);
            sums[i / 16] += v;
        }
        assert_true(sum[0] == sums[0] && sum[1] == sums[1]);
    }
}

static void activation_specials(void **state)
{
    (void)state;
    static const float special[] = { 0,      -0.0f,   1e-45f,   1e-37f, 3.7e-37f,
                                     1e-34f, 3.4e38f, INFINITY, NAN };
    for (int k = 0; k < COUNT_OF(special); k++) {
        float x[64] = { 0 }, scale[2];
        int8_t q[64 * ACT_PLANES];
        int32_t sum[4];
        x[5] = -special[k];
        x[40] = 1;
        if (!isfinite(special[k])) x[6] = 7;
        quant_act_row(q, scale, sum, x, 64);
        // the other block is untouched
        assert_int_equal(act_value(q, 40), 127 * ACT_REACH);
        assert_true(sum[2] == 127 * ACT_REACH && sum[3] == 0);
        bool codes = special[k] >= 1e-34f && isfinite(special[k]);
        for (int i = 0; i < 32; i++)
            assert_int_equal(act_value(q, (size_t)i), codes && i == 5 ? -127 * ACT_REACH : 0);
        assert_int_equal(sum[0], codes ? -127 * ACT_REACH : 0);
        if (!isfinite(special[k]))
            assert_int_equal(f32_bits(scale[0]), 0x7fc00000);
        else
            assert_true(scale[0] == (codes ? special[k] * (1.0f / ACT_REACH) / 127 : 0));
    }
}

static void dot_is_the_dot(void **state)
{
    (void)state;
    FOR_EACH_FORMAT(f)
    {
        if (!f->sub) continue;
        size_t size;
        uint8_t *blocks = read_golden(f, ".blocks", &size);
        float x[TAME], w[TAME], scale[TAME / 32];
        int8_t q[TAME * ACT_PLANES];
        int32_t sum[TAME / 16];
        seed = 5;
        for (int trial = 0; trial < 20; trial++) {
            for (int i = 0; i < TAME; i++)
                x[i] = normal() * (i % 100 ? 1 : 30);
            quant_act_row(q, scale, sum, x, TAME);
            act_row act = { .q = q, .scale = scale, .sum = sum };
            f->dequant(w, blocks, TAME);
            for (size_t n = 256; n <= TAME; n += 256) {
                double want = 0, terms = 0;
                for (size_t i = 0; i < n; i++) {
                    double term = (double)w[i] * (double)scale[i / 32] * act_value(q, i);
                    want += term;
                    terms += fabs(term);
                }
                double got = (double)quant_dot((dtype)type_, blocks, &act, n);
                if (!(fabs(got - want) <= 1e-6 * terms))
                    fail_msg("%s: dot of %zu is %g, expected %g", f->name, n, got, want);
            }
        }
        free(blocks);
    }
}

/* The order of operations, which the kernels must reproduce, on one block written out. */
static void dot_order(void **state)
{
    (void)state;
    seed = 6;
    float x[ROW], y[ROW], scale[ROW / 32], w_scale[8], w_min[8];
    int8_t q[ROW * ACT_PLANES], w[ROW];
    int32_t sum[ROW / 16];
    uint8_t block[144];
    for (int trial = 0; trial < 100; trial++) {
        for (int i = 0; i < ROW; i++)
            x[i] = normal(), y[i] = normal();
        quant_act_row(q, scale, sum, x, ROW);
        quant_formats[DT_Q4_K]->quantize(block, y, NULL, ROW);
        quant_formats[DT_Q4_K]->unpack(w, w_scale, w_min, block, ROW);
        float acc = 0;
        for (int b = 0; b < 8; b++) {
            int dot = 0;
            for (int i = 32 * b; i < 32 * b + 32; i++)
                dot += w[i] * act_value(q, (size_t)i);
            acc = fmaf(w_scale[b] * scale[b], (float)dot, acc);
            acc = fmaf(w_min[b], scale[b] * (float)(sum[2 * b] + sum[2 * b + 1]), acc);
        }
        act_row act = { .q = q, .scale = scale, .sum = sum };
        float got = quant_dot(DT_Q4_K, block, &act, ROW);
        assert_int_equal(f32_bits(got), f32_bits(acc));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(dequant_bits),
        cmocka_unit_test(f32_is_a_copy),
        cmocka_unit_test(unpack_gives_the_values),
        cmocka_unit_test(quantize_bytes),
        cmocka_unit_test(search_errors),
        cmocka_unit_test(importance_in_legacy_formats),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(extreme_values),
        cmocka_unit_test(activation_rounding),
        cmocka_unit_test(activation_specials),
        cmocka_unit_test(dot_is_the_dot),
        cmocka_unit_test(dot_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
