/*
 * test_half.c: every binary16 value there and back, and rounding against a search for the nearest
 * value in double, which holds every float and every midpoint exactly.
 */
#include "test.h"

#include <math.h>

#include "base/half.h"

/* The value by the definition of the format, in double. */
static double value(int exponent_bits, int mantissa_bits, unsigned h)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int e = (int)(h >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double man = (double)(h & ((1u << mantissa_bits) - 1)), unit = ldexp(1, -mantissa_bits);
    double v = e ? ldexp(1 + man * unit, e - bias) : ldexp(man * unit, 1 - bias);
    return h >> (exponent_bits + mantissa_bits) & 1 ? -v : v;
}

/* Nearest of the format's values, ties to even, by bisection over the positive patterns; the
 * pattern of infinity stands for 2^(its exponent), as the rounding rule wants. */
static unsigned nearest(int exponent_bits, int mantissa_bits, double x)
{
    unsigned lo = 0, hi = ((1u << exponent_bits) - 1) << mantissa_bits, sign = 0;
    if (signbit(x)) sign = 1u << (exponent_bits + mantissa_bits), x = -x;
    if (x >= value(exponent_bits, mantissa_bits, hi)) return sign | hi;
    while (hi - lo > 1) {
        unsigned mid = (lo + hi) / 2;
        if (value(exponent_bits, mantissa_bits, mid) <= x)
            lo = mid;
        else
            hi = mid;
    }
    double below = x - value(exponent_bits, mantissa_bits, lo);
    double above = value(exponent_bits, mantissa_bits, hi) - x;
    if (below == above) return sign | (lo & 1 ? hi : lo);
    return sign | (below < above ? lo : hi);
}

static void f16_round_trip(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        unsigned back = f16_from_f32(f);
        if ((h & 0x7fff) > 0x7c00) { // NaN stays NaN, quiet, with its sign
            assert_true(isnan(f));
            assert_int_equal(back, h | 0x200);
            continue;
        }
        if ((h & 0x7fff) == 0x7c00)
            assert_true(isinf(f) && !!signbit(f) == (int)(h >> 15));
        else
            assert_true(f == (float)value(5, 10, h) && !!signbit(f) == (int)(h >> 15));
        assert_int_equal(back, h);
    }
}

static void bf16_round_trip(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        unsigned back = bf16_from_f32(f);
        if ((h & 0x7fff) > 0x7f80) {
            assert_true(isnan(f));
            assert_int_equal(back, h | 0x40);
            continue;
        }
        if ((h & 0x7fff) < 0x7f80) assert_true((double)f == value(8, 7, h));
        assert_int_equal(back, h);
    }
}

static void check_rounding(uint32_t u)
{
    float f = f32_from_bits(u);
    if (isnan(f)) {
        assert_true(isnan(f16_to_f32(f16_from_f32(f))));
        assert_true(isnan(bf16_to_f32(bf16_from_f32(f))));
        return;
    }
    unsigned h = f16_from_f32(f), b = bf16_from_f32(f);
    if (h != nearest(5, 10, f)) fail_msg("%a: f16 %04x, expected %04x", f, h, nearest(5, 10, f));
    if (b != nearest(8, 7, f)) fail_msg("%a: bf16 %04x, expected %04x", f, b, nearest(8, 7, f));
}

static void rounding(void **state)
{
    (void)state;
    // Every midpoint between neighbours of either format, and what lies next to it.
    for (unsigned h = 0; h < 0x7c00; h++) {
        float mid = (float)((value(5, 10, h) + value(5, 10, h + 1)) / 2);
        for (int d = -1; d <= 1; d++) {
            check_rounding(f32_bits(mid) + (uint32_t)d);
            check_rounding((f32_bits(mid) + (uint32_t)d) | 0x80000000u);
        }
    }
    for (unsigned h = 0; h < 0x7f80; h++)
        for (unsigned d = 0; d < 3; d++)
            check_rounding((h << 16) + 0x7fff + d);
    uint64_t r = 1;
    for (int i = 0; i < 300000; i++) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        check_rounding((uint32_t)(r >> 32));
    }
    static const uint32_t corners[] = { 0,          1,          0x7f800000, 0x7f7fffff,
                                        0x33000000, 0x33000001, 0x7f800001, 0x7fc00000,
                                        0x477fefff, 0x477ff000, 0x38800000 };
    for (size_t i = 0; i < sizeof corners / sizeof *corners; i++) {
        check_rounding(corners[i]);
        check_rounding(corners[i] | 0x80000000u);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_round_trip),
        cmocka_unit_test(bf16_round_trip),
        cmocka_unit_test(rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
