/* quant_larql.c: LARQL's encoders (quant_larql.h). Every product and sum is float32 in the order
 * that the format's definition has; rounding is half away from zero. */
#include "compute/quant_larql.h"

#include "compute/quant_block.h"

/* The exponent of a half and the cut mantissa; 0 where the half would be subnormal. */
static uint16_t cut_half(float x, int *exp)
{
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000, man = u & 0x7fffff;
    int e = (int)(u >> 23 & 255);
    *exp = e - 112;
    if (e == 255) return (uint16_t)(man ? sign | 0x7e00 : sign | 0x7c00);
    if (*exp >= 31) return (uint16_t)(sign | 0x7c00);
    if (*exp <= 0) return (uint16_t)sign;
    return (uint16_t)(sign | (uint32_t)*exp << 10 | man >> 13);
}

uint16_t larql_f16(float x)
{
    int exp;
    return cut_half(x, &exp);
}

uint16_t larql_scale_f16(float x)
{
    int exp;
    uint16_t h = cut_half(x, &exp);
    uint32_t u = f32_bits(x);
    if (exp > 0 || (u >> 23 & 255) == 0 || 14 - exp > 24) return h;
    return (uint16_t)(h | (0x800000u | (u & 0x7fffff)) >> (14 - exp));
}

void larql_f16_row(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = larql_f16(x[i]);
}

static int round_to(float v, int lo, int hi)
{
    return (int)roundf(clamp_float(v, (float)lo, (float)hi));
}

void larql_quantize_q4_k(void *blocks, const float *x, size_t n)
{
    uint8_t *out = blocks;
    for (; n >= 256; n -= 256, x += 256, out += 144) {
        float mn[8], mx[8], range = 0, lowest = 0;
        int s[8], m[8];
        for (int j = 0; j < 8; j++) {
            mn[j] = mx[j] = 0;
            for (int i = 0; i < 32; i++) {
                float v = x[32 * j + i];
                mn[j] = v < mn[j] ? v : mn[j];
                mx[j] = v > mx[j] ? v : mx[j];
            }
            range = mx[j] - mn[j] > range ? mx[j] - mn[j] : range;
            lowest = mn[j] < lowest ? mn[j] : lowest;
        }
        float d = range > 0 ? range / (15.0f * 63.0f) : 0, dmin = lowest < 0 ? -lowest / 63.0f : 0;
        store_u16(out, larql_scale_f16(d));
        store_u16(out + 2, larql_scale_f16(dmin));
        for (int j = 0; j < 8; j++) {
            s[j] = d > 0 ? round_to((mx[j] - mn[j]) / (15.0f * d), 0, 63) : 0;
            m[j] = dmin > 0 ? round_to(-mn[j] / dmin, 0, 63) : 0;
        }
        for (int j = 0; j < 4; j++) {
            out[4 + j] = (uint8_t)(s[j] | (s[j + 4] >> 4 & 3) << 6);
            out[8 + j] = (uint8_t)(m[j] | (m[j + 4] >> 4 & 3) << 6);
            out[12 + j] = (uint8_t)((s[j + 4] & 15) | (m[j + 4] & 15) << 4);
        }
        for (int j = 0; j < 8; j++) {
            float step = d * (float)s[j], inv = step > 0 ? 1.0f / step : 0;
            float shift = dmin * (float)m[j];
            for (int i = 0; i < 32; i++) {
                int q = round_to((x[32 * j + i] + shift) * inv, 0, 15);
                uint8_t *to = out + 16 + 32 * (j / 2) + i;
                *to = j % 2 ? (uint8_t)(*to | q << 4) : (uint8_t)q;
            }
        }
    }
}

void larql_quantize_q8_0(void *blocks, const float *x, size_t n)
{
    uint8_t *out = blocks;
    for (; n >= 32; n -= 32, x += 32, out += 34) {
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        float d = amax / 127.0f, inv = d > 0 ? 1.0f / d : 0;
        store_u16(out, larql_f16(d));
        for (int i = 0; i < 32; i++)
            out[2 + i] = (uint8_t)(int8_t)round_to(x[i] * inv, -128, 127);
    }
}

uint8_t e4m3_from_f32(float x)
{
    uint32_t u = f32_bits(x);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);
    float a = f32_from_bits(u & 0x7fffffff);
    if (a != a) return (uint8_t)(sign | 0x7f);
    if (a >= 448) return (uint8_t)(sign | 0x7e);
    if (a < 0x1p-9f) return sign;
    if (a < 0x1p-6f) { // subnormals: whole 2^-9, at most 7
        int man = (int)rintf(a * 0x1p9f);
        return (uint8_t)(sign | (man > 7 ? 7 : man));
    }
    uint32_t bits = u & 0x7fffffff;
    bits += 0x7ffff + (bits >> 20 & 1); // to nearest even, 3 bits left
    bits >>= 20;
    bits -= (uint32_t)(127 - 7) << 3;
    return (uint8_t)(sign | (bits > 0x7e ? 0x7e : bits));
}

float e4m3_to_f32(uint8_t x)
{
    uint32_t sign = (uint32_t)(x & 0x80) << 24, exp = x >> 3 & 15, man = x & 7;
    if ((x & 0x7f) == 0x7f) return f32_from_bits(sign | 0x7fc00000u);
    if (exp == 0) {
        float f = (float)man * 0x1p-9f;
        return sign ? -f : f;
    }
    return f32_from_bits(sign | (exp + 120) << 23 | man << 20);
}

uint8_t e2m1_from_f32(float x)
{
    // the largest value that still belongs to a code; odd codes lose their ties
    static const float bound[7] = { 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5 };
    uint32_t u = f32_bits(x);
    float a = f32_from_bits(u & 0x7fffffff);
    int code = 0;
    if (a != a) return 0;
    while (code < 7 && (code % 2 ? a >= bound[code] : a > bound[code]))
        code++;
    return (uint8_t)(code | (u >> 31) << 3);
}
