/*
 * vec_math.h: functions of a v16 that have no instruction, as one sequence of operations for every
 * level. Included after a vec_<level>.h. The polynomials are minimax fits made for these ranges.
 */
#ifndef COMPUTE_CPU_VEC_MATH_H
#define COMPUTE_CPU_VEC_MATH_H

/* e^x within 1.5 ulp; 0 below 2^-126, infinity above the largest float; NaN stays. */
KERNEL_INLINE v16 v16_exp(v16 x)
{
    // x = n ln2 + r: adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    v16 shift = v16_set1(12582912.0f);
    v16 t = v16_fma(x, v16_set1(1.44269504f), shift);
    v16 n = v16_sub(t, shift);
    v16 r = v16_fma(n, v16_set1(-0.693145752f), x); // ln2 in two parts, the first of 16 bits
    r = v16_fma(n, v16_set1(-1.42860682e-06f), r);
    v16 p = v16_fma(v16_set1(0.00138144649f), r, v16_set1(0.00836878084f));
    p = v16_fma(p, r, v16_set1(0.0416683927f));
    p = v16_fma(p, r, v16_set1(0.166665196f));
    p = v16_fma(p, r, v16_set1(0.49999994f));
    p = v16_fma(v16_mul(r, r), p, r);
    p = v16_scale_bits(v16_add(p, v16_set1(1.0f)), t);
    p = v16_select(v16_less(x, v16_set1(-87.3365402f)), v16_set1(0), p);
    // x + infinity: NaN stays NaN, whatever the integer addition made of it.
    return v16_select(v16_less(x, v16_set1(88.7228394f)), p, v16_add(x, v16_set1(INFINITY)));
}

/* x / (1 + e^-u) */
KERNEL_INLINE v16 v16_mul_sigmoid(v16 x, v16 u)
{
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_sub(v16_set1(0), u))));
}

KERNEL_INLINE v16 v16_tanh(v16 x)
{
    v16 a = v16_abs(x), z = v16_mul(x, x), one = v16_set1(1.0f);
    // below 0.625: x + x^3 P(x^2); above: 1 - 2 / (e^2|x| + 1)
    v16 p = v16_fma(v16_set1(-0.00571703725f), z, v16_set1(0.0206505805f));
    p = v16_fma(p, z, v16_set1(-0.0537434965f));
    p = v16_fma(p, z, v16_set1(0.133314908f));
    p = v16_fma(p, z, v16_set1(-0.333332837f));
    p = v16_fma(v16_mul(p, z), x, x);
    v16 e = v16_exp(v16_add(a, a));
    v16 big = v16_sub(one, v16_div(v16_set1(2.0f), v16_add(e, one)));
    return v16_select(v16_less(a, v16_set1(0.625f)), p, v16_sign(big, x));
}

KERNEL_INLINE v16 v16_softcap(v16 x, v16 cap) { return v16_mul(cap, v16_tanh(v16_div(x, cap))); }

/* x * Phi(x), Phi from erfc(a) = e^(-a^2) t P(t), a = |x| / sqrt 2, t = 1 / (1 + 0.35 a): so that
 * the left tail keeps its relative precision. */
KERNEL_INLINE v16 v16_gelu_erf(v16 x)
{
    v16 one = v16_set1(1.0f), a = v16_mul(v16_abs(x), v16_set1(0.707106781f));
    v16 t = v16_div(one, v16_fma(a, v16_set1(0.35f), one));
    v16 p = v16_fma(v16_set1(0.0413144864f), t, v16_set1(-0.175027326f));
    p = v16_fma(p, t, v16_set1(0.220033422f));
    p = v16_fma(p, t, v16_set1(-0.0801956505f));
    p = v16_fma(p, t, v16_set1(0.131637186f));
    p = v16_fma(p, t, v16_set1(0.121524848f));
    p = v16_fma(p, t, v16_set1(0.159877002f));
    p = v16_fma(p, t, v16_set1(0.185989678f));
    p = v16_fma(p, t, v16_set1(0.197375134f));
    p = v16_fma(p, t, v16_set1(0.197471231f));
    v16 half_sq = v16_mul(v16_mul(x, x), v16_set1(-0.5f));
    v16 tail = v16_mul(v16_mul(v16_exp(half_sq), v16_set1(0.5f)), v16_mul(p, t)); // 1 - Phi(|x|)
    v16 phi = v16_select(v16_less(x, v16_set1(0)), tail, v16_sub(one, tail));
    return v16_mul(x, phi);
}

#endif
