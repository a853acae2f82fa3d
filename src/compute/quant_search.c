/*
 * quant_search.c: weighted least squares over a few candidates, for the quantisers.
 *
 * Once the codes q are chosen, the best scale (and min) is a small linear regression; once the
 * scale is chosen, the best codes are the nearest ones. The search starts from scales that put the
 * largest element near the last code, as many as the range's steps, solves the regression for each
 * and keeps the one with the least error; then it rounds and solves again from there while that
 * helps.
 *
 * Sums run in eight lanes, so that they vectorise without a change of float rules.
 */
#include "compute/quant_search.h"

#include "compute/quant_block.h"

#define LANES 8

static float lanes_sum(const float *a)
{
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

static float largest(const float *x, int n)
{
    float max = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(max)) max = x[i];
    return max;
}

void search_weights(float *w, const float *x, const float *importance, int n)
{
    float total = 0, sum_xx = 0;
    if (importance) {
        for (int i = 0; i < n; i++) {
            w[i] = importance[i] > 0 && importance[i] < INFINITY ? importance[i] : 0;
            total += w[i];
        }
    } else {
        for (int i = 0; i < n; i++)
            sum_xx += x[i] * x[i];
        float rms = sqrtf(sum_xx / (float)n);
        for (int i = 0; i < n; i++) {
            w[i] = rms + fabsf(x[i]); // large weights matter more, small ones are not left out
            total += w[i];
        }
    }
    if (!(total > 0 && total < INFINITY))
        for (int i = 0; i < n; i++)
            w[i] = 1;
}

// ---- one scale

static void codes_nearest(int8_t *restrict q, const float *restrict x, float inv, int n,
                          const code_range *range)
{
    if (!range->table) {
        int lo = range->lo, hi = range->hi;
        for (int i = 0; i < n; i++)
            q[i] = (int8_t)round_clamp(x[i] * inv, lo, hi);
        return;
    }
    // The code's index is the number of midpoints between neighbours that lie below.
    int8_t index[SEARCH_MAX] = { 0 };
    for (int k = 0; k < 15; k++) {
        float mid = 0.5f * (float)(range->table[k] + range->table[k + 1]);
        for (int i = 0; i < n; i++)
            index[i] = (int8_t)(index[i] + (x[i] * inv > mid));
    }
    for (int i = 0; i < n; i++)
        q[i] = range->table[index[i]];
}

// d of least error for these codes; *gain is how much of sum w x^2 it explains.
static float scale_fit(float *gain, const int8_t *restrict q, const float *restrict x,
                       const float *restrict w, int n)
{
    float xq[LANES] = { 0 }, qq[LANES] = { 0 };
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float wq = w[i + k] * (float)q[i + k];
            xq[k] += wq * x[i + k];
            qq[k] += wq * (float)q[i + k];
        }
    float sum_xq = lanes_sum(xq), sum_qq = lanes_sum(qq);
    float d = sum_qq > 0 ? sum_xq / sum_qq : 0;
    *gain = d * sum_xq;
    return d;
}

float search_scale(int8_t *q, const float *x, const float *w, int n, const code_range *range)
{
    float max = largest(x, n), best_gain = 0, best = 0;
    if (fabsf(max) > 1e-30f && fabsf(max) < INFINITY) {
        best = max / (float)range->lo;
        for (int k = -range->n_steps; k <= range->n_steps; k++) {
            float gain;
            codes_nearest(q, x, ((float)range->lo + range->step * (float)k) / max, n, range);
            float d = scale_fit(&gain, q, x, w, n);
            if (gain > best_gain && gain < INFINITY) best_gain = gain, best = d;
        }
        for (int round = 0; round < 2; round++) {
            float gain;
            codes_nearest(q, x, 1 / best, n, range);
            float d = scale_fit(&gain, q, x, w, n);
            if (!(gain > best_gain && gain < INFINITY)) break;
            best_gain = gain, best = d;
        }
    }
    codes_nearest(q, x, best != 0 ? 1 / best : 0, n, range);
    return best;
}

float search_codes(int8_t *q, float d, const float *x, const float *w, int n,
                   const code_range *range)
{
    float err[LANES] = { 0 };
    codes_nearest(q, x, d != 0 ? 1 / d : 0, n, range);
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float e = x[i + k] - d * (float)q[i + k];
            err[k] += w[i + k] * e * e;
        }
    return lanes_sum(err);
}

// ---- scale and min

/* The codes for given d and m, and the error they leave. */
static float search_codes_min(uint8_t *restrict q, float d, float m, const float *restrict x,
                              const float *restrict w, int n, int q_max)
{
    float err[LANES] = { 0 }, inv = d != 0 ? 1 / d : 0;
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            int code = round_clamp((x[i + k] + m) * inv, 0, q_max);
            float e = x[i + k] - (d * (float)code - m);
            q[i + k] = (uint8_t)code;
            err[k] += w[i + k] * e * e;
        }
    return lanes_sum(err);
}

// The regression of x on q: *d and *m of least error, m >= 0 unless free_min. Returns how much of
// sum w x^2 it explains, 0 where no d > 0 does.
static double min_fit(float *d, float *m, const uint8_t *restrict q, const float *restrict x,
                      const float *restrict w, int n, bool free_min)
{
    float w1[LANES] = { 0 }, wx[LANES] = { 0 }, wq[LANES] = { 0 }, xq[LANES] = { 0 },
          qq[LANES] = { 0 };
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float code = (float)q[i + k], weighted = w[i + k] * code;
            w1[k] += w[i + k];
            wx[k] += w[i + k] * x[i + k];
            wq[k] += weighted;
            xq[k] += weighted * x[i + k];
            qq[k] += weighted * code;
        }
    double s = lanes_sum(w1), sx = lanes_sum(wx), sq = lanes_sum(wq), sxq = lanes_sum(xq),
           sqq = lanes_sum(qq);
    double det = s * sqq - sq * sq, slope = 0, offset = 0;
    if (det > 0) {
        slope = (s * sxq - sx * sq) / det;
        offset = (sqq * sx - sq * sxq) / det;
    }
    if (!free_min && !(offset < 0)) {
        offset = 0;
        slope = sqq > 0 ? sxq / sqq : 0;
    }
    *d = (float)slope;
    *m = (float)-offset;
    return slope > 0 ? slope * sxq + offset * sx : 0;
}

static void codes_min_nearest(uint8_t *restrict q, float inv, float lo, const float *restrict x,
                              int n, int q_max)
{
    for (int i = 0; i < n; i++)
        q[i] = (uint8_t)round_clamp((x[i] - lo) * inv, 0, q_max);
}

/* x ~ d * q - m with q in 0..q_max and m >= 0; with free_min m may have any sign. Returns d >= 0.
 */
static float search_scale_min(uint8_t *q, float *m, const float *x, const float *w, int n,
                              int q_max, bool free_min)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    if (lo > 0 && !free_min) lo = 0;
    if (!(hi - lo > 1e-30f && hi - lo < INFINITY)) { // constant, or not finite
        *m = lo > -INFINITY && lo < INFINITY ? -lo : 0;
        memset(q, 0, (size_t)n);
        return 0;
    }

    float best_d = (hi - lo) / (float)q_max, best_m = -lo, d, try_m;
    double best_gain = 0, gain;
    for (int k = -10; k <= 10; k++) {
        codes_min_nearest(q, ((float)q_max + 0.1f * (float)k) / (hi - lo), lo, x, n, q_max);
        gain = min_fit(&d, &try_m, q, x, w, n, free_min);
        if (gain > best_gain) best_gain = gain, best_d = d, best_m = try_m;
    }
    for (int round = 0; round < 2; round++) {
        codes_min_nearest(q, 1 / best_d, -best_m, x, n, q_max);
        gain = min_fit(&d, &try_m, q, x, w, n, free_min);
        if (!(gain > best_gain)) break;
        best_gain = gain, best_d = d, best_m = try_m;
    }
    codes_min_nearest(q, 1 / best_d, -best_m, x, n, q_max);
    *m = best_m;
    return best_d;
}

// ---- blocks of 256

static float f16_round(float f) { return f16_to_f32(f16_from_f32(f)); }

float search_block(int8_t *q, int8_t *scale, const float *x, const float *importance, int n,
                   const code_range *range, int lo, int hi)
{
    float w[256], best[16] = { 0 };
    int8_t code[SEARCH_MAX];
    for (int s = 0; s < 256 / n; s++) {
        search_weights(w + s * n, x + s * n, importance ? importance + s * n : NULL, n);
        best[s] = search_scale(code, x + s * n, w + s * n, n, range);
    }
    float d = f16_round(largest(best, 256 / n) / (float)lo), inv = d != 0 ? 1 / d : 0;

    // With d settled each sub-block looks at its integer scale's neighbours too: rounding the scale
    // moved it off the best one, and another may suit the codes better.
    for (int s = 0; s < 256 / n; s++) {
        int mid = round_clamp(best[s] * inv, lo, hi);
        float least = INFINITY;
        scale[s] = (int8_t)mid;
        for (int sc = mid - 1; sc <= mid + 1; sc++) {
            if (sc < lo || sc > hi) continue;
            float err = search_codes(code, d * (float)sc, x + s * n, w + s * n, n, range);
            if (err < least) least = err, scale[s] = (int8_t)sc;
        }
        search_codes(q + s * n, d * (float)scale[s], x + s * n, w + s * n, n, range);
    }
    return d;
}

void search_block_min(uint8_t *q, uint8_t *scale, uint8_t *min, float *d, float *dmin,
                      const float *x, const float *importance, int n, int q_max, int scale_max)
{
    float w[256], best_d[16] = { 0 }, best_m[16] = { 0 }, max_d = 0, max_m = 0;
    uint8_t code[SEARCH_MAX];
    for (int s = 0; s < 256 / n; s++) {
        search_weights(w + s * n, x + s * n, importance ? importance + s * n : NULL, n);
        best_d[s] = search_scale_min(code, &best_m[s], x + s * n, w + s * n, n, q_max, false);
        max_d = best_d[s] > max_d ? best_d[s] : max_d;
        max_m = best_m[s] > max_m ? best_m[s] : max_m;
    }
    *d = f16_round(max_d / (float)scale_max);
    *dmin = f16_round(max_m / (float)scale_max);
    float inv_d = *d != 0 ? 1 / *d : 0, inv_m = *dmin != 0 ? 1 / *dmin : 0;

    for (int s = 0; s < 256 / n; s++) { // neighbours: as in search_block
        int mid_d = round_clamp(best_d[s] * inv_d, 0, scale_max);
        int mid_m = round_clamp(best_m[s] * inv_m, 0, scale_max);
        float least = INFINITY;
        scale[s] = (uint8_t)mid_d, min[s] = (uint8_t)mid_m;
        for (int sc = mid_d - 1; sc <= mid_d + 1; sc++)
            for (int mn = mid_m - 1; mn <= mid_m + 1; mn++) {
                if (sc < 0 || sc > scale_max || mn < 0 || mn > scale_max) continue;
                float err = search_codes_min(code, *d * (float)sc, *dmin * (float)mn, x + s * n,
                                             w + s * n, n, q_max);
                if (err < least) least = err, scale[s] = (uint8_t)sc, min[s] = (uint8_t)mn;
            }
        search_codes_min(q + s * n, *d * (float)scale[s], *dmin * (float)min[s], x + s * n,
                         w + s * n, n, q_max);
    }
}

// ---- the formats of gguf.quants

float search_legacy(uint8_t *q, const float *x, const float *importance, int half)
{
    if (importance) {
        float w[32];
        int8_t code[32];
        code_range range = { .lo = -half, .hi = half - 1, .step = 0.1f, .n_steps = 9 };
        search_weights(w, x, importance, 32);
        float d = f16_round(search_scale(code, x, w, 32, &range));
        search_codes(code, d, x, w, 32, &range);
        for (int i = 0; i < 32; i++)
            q[i] = (uint8_t)(code[i] + half);
        return d;
    }
    float d = largest(x, 32) / (float)-half, inv = d == 0 ? 0 : 1 / d;
    float middle = (float)half + 0.5f;
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)trunc_clamp(x[i] * inv + middle, 0, 2 * half - 1);
    return d;
}

float search_legacy_min(uint8_t *q, float *m, const float *x, const float *importance, int q_max)
{
    if (importance) {
        float w[32];
        search_weights(w, x, importance, 32);
        float d = f16_round(search_scale_min(q, m, x, w, 32, q_max, true));
        *m = f16_round(-*m);
        search_codes_min(q, d, -*m, x, w, 32, q_max);
        return d;
    }
    float lo = x[0], hi = x[0];
    for (int i = 1; i < 32; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    float d = (hi - lo) / (float)q_max, inv = d == 0 ? 0 : 1 / d;
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)trunc_clamp((x[i] - lo) * inv + 0.5f, 0, q_max);
    *m = lo;
    return d;
}
