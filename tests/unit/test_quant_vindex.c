/*
 * test_quant_vindex.c: the encodings of vindex files against the known answers of their
 * description: bytes from values, and values from these bytes within the format's step.
 */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "base/sha.h"
#include "compute/quant.h"
#include "compute/quant_larql.h"

#define N 512

static float wave[N];

static void make_wave(void)
{
    for (int i = 0; i < N; i++)
        wave[i] = (float)((37 * i) % 101 - 50) / 64;
}

static void check(const char *what, const void *data, size_t n, const char *sha, const char *first)
{
    sha_state s;
    char hex[65], begin[65];
    const uint8_t *p = data;
    sha256_init(&s);
    sha_add(&s, data, n);
    sha_end(&s, hex);
    for (size_t i = 0; i < 20 && i < n; i++)
        snprintf(begin + 2 * i, 3, "%02x", p[i]);
    if (first && strcmp(begin, first)) fail_msg("%s: begins %s, expected %s", what, begin, first);
    if (strncmp(hex, sha, strlen(sha))) fail_msg("%s: sha-256 %s, expected %s", what, hex, sha);
}

typedef void encoder(void *blocks, const float *x, size_t n);

static void q4_0(void *b, const float *x, size_t n)
{
    quant_formats[DT_LARQL_Q4_0]->quantize(b, x, NULL, n);
}
static void q6_k(void *b, const float *x, size_t n)
{
    quant_formats[DT_LARQL_Q6_K]->quantize(b, x, NULL, n);
}
static void fp4(void *b, const float *x, size_t n)
{
    quant_formats[DT_VINDEX_FP4]->quantize(b, x, NULL, n);
}
static void fp8(void *b, const float *x, size_t n)
{
    quant_formats[DT_VINDEX_FP8]->quantize(b, x, NULL, n);
}
static void f16(void *b, const float *x, size_t n) { larql_f16_row(b, x, n); }

static const struct {
    const char *name;
    encoder *fn;
    dtype type;
    float step; // largest error of the wave, decoded
    const char *first, *sha;
    const char *edges[4]; // of zero, pos, spike, tiny
} formats[] = {
    { "f16",
      f16,
      DT_F16,
      0.001f,
      "40ba80b2003600b900aa403880b7002f803900b5",
      "755e13ec73a763df414cf6b1c33f569b0f68091c56bb37ecbc93ba9e26118a4a",
      { NULL } },
    { "q4_0",
      q4_0,
      DT_LARQL_Q4_0,
      0.06f,
      "242f612bd8945e1ac7834df9b6723ce8a56f002f",
      "4b202729de4aa1999badaf62e60f41a3721c1c62b7e3e6a7e88226409c754e63",
      { "1748f91eae214a48", "0b6ce0f777e8a488", "93ee52034fbef78b", "0cfe644cfdd568da" } },
    { "q8_0",
      larql_quantize_q8_0,
      DT_Q8_0,
      0.004f,
      "4c1e81df3d9af856b41270cd2b89e745a2005ebb",
      "6026b04ae2034088e52febd74db92dcc091428ae7f7220b196ab2a7c1d33a454",
      { NULL } },
    { "q4_k",
      larql_quantize_q4_k,
      DT_Q4_K,
      0.0523f,
      "c5165922fffdfdfdfffcfeffceeefdceb0167bc2",
      "dfaa7c6dcb730594a8cb3d84c132dc0416d3e59b9f7bbd9bba0c879efbe723a9",
      { "81c611f35bff7949", "79f27b1f6f298e69", "387389815637898a", "6b8a920b45c1e066" } },
    { "q6_k",
      q6_k,
      DT_LARQL_Q6_K,
      0.0122f,
      "817f5e4d4b3b1a09f7d6c5c5b392817f6f5d4c2c",
      "f53d8521db3f9180da2009943a6cdf4d9d2fef3431afd219f4f82ab3b1d52e6e",
      { "76786a68747db5c1", "c030ac63e7a7bfe4", "334eb87e1ab6ca8a", "38b607694dfe0122" } },
    { "fp4",
      fp4,
      DT_VINDEX_FP4,
      0.13f,
      "bfe5692ec7f45a0ed6724cafe6613dc7f5692ed7",
      "e35653feebda1457c0e18d09cbd01751f38f66d9e290ae50d604b96b9ecae29a",
      { "4a93894f08d98d70", "36ed90afa9260a4a", "1c5a3141df898b36", "4a93894f08d98d70" } },
    { "fp8",
      fp8,
      DT_VINDEX_FP8,
      0.05f,
      "b8a930b59833b22137ad2bb8a531b40034b12538",
      "4d0a5987c41b605f3f205e39d6dd64d8070a058d98d977253df98e272bff8d60",
      { "6c934d0cdf9dba94", "8fccc59ab6c9104d", "cda4353293416a72", "6c934d0cdf9dba94" } },
};

static void wave_both_ways(void **state)
{
    (void)state;
    make_wave();
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        uint8_t out[4 * N];
        float back[N];
        formats[i].fn(out, wave, N);
        check(formats[i].name, out, quant_row_bytes(formats[i].type, N), formats[i].sha,
              formats[i].first);
        quant_formats[formats[i].type]->dequant(back, out, N);
        for (int k = 0; k < N; k++)
            if (fabsf(back[k] - wave[k]) > formats[i].step)
                fail_msg("%s: element %d: %g became %g", formats[i].name, k, (double)wave[k],
                         (double)back[k]);
    }
}

static void edge_blocks(void **state)
{
    (void)state;
    static float x[4][256];
    for (int i = 0; i < 256; i++) {
        x[1][i] = (float)(i % 32 + 1) / 32;
        x[2][i] = i == 100 ? -1 : 0;
        x[3][i] = (float)((double)(i % 16 - 8) * 1e-9);
    }
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (int e = 0; e < 4 && formats[i].edges[0]; e++) {
            uint8_t out[1024];
            char what[40];
            snprintf(what, sizeof what, "%s, block %d", formats[i].name, e);
            formats[i].fn(out, x[e], 256);
            check(what, out, quant_row_bytes(formats[i].type, 256), formats[i].edges[e], NULL);
        }
}

static void halves(void **state)
{
    (void)state;
    static const struct {
        float x;
        uint16_t storage, scale;
    } probes[] = {
        { 1.0f / 3, 0x3555, 0x3555 },
        { 0.1f, 0x2e66, 0x2e66 },
        { 6e-5f, 0, 0x03ee },
        { -6e-5f, 0x8000, 0x83ee },
        { 65520, 0x7bff, 0x7bff },
        { 0x1p-14f, 0x0400, 0x0400 },
        { 0x1p-15f, 0, 0x0200 },
        { 0x1p-24f, 0, 1 },
        { 0x1p-25f, 0, 0 },
        { 1023 * 0x1p-24f, 0, 0x03ff },
        { 65535.99f, 0x7bff, 0x7bff },
        { 65536, 0x7c00, 0x7c00 },
        { -0.0f, 0x8000, 0x8000 },
        { 2051, 0x6801, 0x6801 },
        { INFINITY, 0x7c00, 0x7c00 },
        { -INFINITY, 0xfc00, 0xfc00 },
        { 0x1p-140f, 0, 0 },
    };
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        assert_int_equal(larql_f16(probes[i].x), probes[i].storage);
        assert_int_equal(larql_scale_f16(probes[i].x), probes[i].scale);
    }
    assert_int_equal(larql_f16(NAN) & 0x7fff, 0x7e00);
}

static void small_floats(void **state)
{
    (void)state;
    static const struct {
        float x;
        uint8_t code;
    } e4m3[] = { { 0.04f, 0x12 },       { 0x1p-9f, 1 },
                 { 0.0009f, 0 },        { 500, 0x7e },
                 { 1, 0x38 },           { 0.3f, 0x2a },
                 { 1.0625f, 0x38 },     { 1.1875f, 0x3a },
                 { 432, 0x7e },         { 0.0155f, 7 },
                 { 0.0146484375f, 7 },  { 1.5f * 0x1p-9f, 2 },
                 { 2.5f * 0x1p-9f, 2 }, { 1.999f * 0x1p-10f, 0 },
                 { -1e-10f, 0x80 } };
    static const struct {
        float x;
        uint8_t code;
    } e2m1[] = { { .25f, 0 },     { .75f, 2 },       { 1.25f, 2 }, { 1.75f, 4 }, { 2.5f, 4 },
                 { 3.5f, 6 },     { 5, 6 },          { 7, 7 },     { -0.1f, 8 }, { -0.25f, 8 },
                 { INFINITY, 7 }, { -INFINITY, 15 }, { -0.0f, 8 } };
    for (size_t i = 0; i < sizeof e4m3 / sizeof *e4m3; i++)
        if (e4m3_from_f32(e4m3[i].x) != e4m3[i].code)
            fail_msg("e4m3 of %g: %02x, expected %02x", (double)e4m3[i].x, e4m3_from_f32(e4m3[i].x),
                     e4m3[i].code);
    for (size_t i = 0; i < sizeof e2m1 / sizeof *e2m1; i++)
        assert_int_equal(e2m1_from_f32(e2m1[i].x), e2m1[i].code);
    assert_int_equal(e4m3_from_f32(NAN) & 0x7f, 0x7f);
    assert_int_equal(e2m1_from_f32(NAN), 0);
    for (int c = 0; c < 256; c++) // every code is its own value's
        if ((c & 0x7f) != 0x7f) assert_int_equal(e4m3_from_f32(e4m3_to_f32((uint8_t)c)), c);
    assert_true(e4m3_to_f32(0x7e) == 448);
}

/* LARQL's Q6_K and GGUF's hold the same numbers in another order of bits. */
static void q6_k_shuffles_to_gguf(void **state)
{
    (void)state;
    uint8_t from[420], to[420] = { 0 };
    float a[N], b[N];
    make_wave();
    q6_k(from, wave, N);
    for (int block = 0; block < 2; block++) {
        const uint8_t *f = from + 210 * block;
        uint8_t *t = to + 210 * block;
        for (int e = 0; e < 256; e++) {
            int n = e / 128, q = e / 32 % 4, l = e % 32;
            int lo = f[e / 2] >> 4 * (e & 1) & 15, hi = f[128 + e / 4] >> 2 * (e & 3) & 3;
            t[64 * n + l + 32 * (q & 1)] |= (uint8_t)(lo << (q >= 2 ? 4 : 0));
            t[128 + 32 * n + l] |= (uint8_t)(hi << 2 * q);
        }
        memcpy(t + 192, f + 192, 18);
    }
    quant_formats[DT_LARQL_Q6_K]->dequant(a, from, N);
    quant_formats[DT_Q6_K]->dequant(b, to, N);
    assert_memory_equal(a, b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wave_both_ways),
        cmocka_unit_test(edge_blocks),
        cmocka_unit_test(halves),
        cmocka_unit_test(small_floats),
        cmocka_unit_test(q6_k_shuffles_to_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
