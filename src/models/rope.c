/*
 * rope.c: one function per way of scaling. Frequency i of dim rotated dimensions is
 * base^(-2i/dim); positions times it are angles.
 */
#include "models/rope.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    rope_scaling scaling;
} names[] = {
    { "default", ROPE_PLAIN },     { "none", ROPE_PLAIN },  { "linear", ROPE_LINEAR },
    { "llama3", ROPE_LLAMA3 },     { "yarn", ROPE_YARN },   { "dynamic", ROPE_DYNAMIC },
    { "longrope", ROPE_LONGROPE }, { "su", ROPE_LONGROPE },
    { "proportional", ROPE_PROPORTIONAL },
};
const char rope_scaling_names[] = "default, linear, llama3, yarn, dynamic, longrope, proportional";

int rope_scaling_find(const char *name, size_t n)
{
    for (int i = 0; i < COUNT_OF(names); i++)
        if (strlen(names[i].name) == n && memcmp(names[i].name, name, n) == 0)
            return (int)names[i].scaling;
    return -1;
}

// GGUF stops rotation by a divisor of 1e30
#define MAX_DIVISOR 1e31

static bool positive(double x) { return isfinite(x) && x > 0 && x < 1e30; }

void rope_check(const rope_spec *r, fault_list *faults, const char *where)
{
    if (!positive(r->base))
        fault_add(faults, "%s: base %g, expected a finite number above 0", where, r->base);
    if (!positive(r->factor))
        fault_add(faults, "%s: factor %g, expected a finite number above 0", where, r->factor);
    if (r->dim < 2 || r->dim % 2)
        fault_add(faults, "%s: %d rotated dimensions, expected an even number above 0", where,
                  r->dim);
    if (r->scaling == ROPE_LLAMA3) {
        if (!positive(r->low_freq) || !positive(r->high_freq) || r->high_freq <= r->low_freq)
            fault_add(faults,
                      "%s: low_freq_factor %g and high_freq_factor %g, expected "
                      "0 < low < high",
                      where, r->low_freq, r->high_freq);
    }
    if (r->scaling == ROPE_YARN) {
        if (!positive(r->beta_fast) || !positive(r->beta_slow))
            fault_add(faults, "%s: beta_fast %g and beta_slow %g, expected numbers above 0", where,
                      r->beta_fast, r->beta_slow);
        if (r->base == 1) fault_add(faults, "%s: base 1 cannot be scaled by yarn", where);
    }
    if (r->scaling == ROPE_DYNAMIC && r->dim == 2)
        fault_add(faults, "%s: dynamic scaling needs more than 2 rotated dimensions", where);
    if (r->scaling == ROPE_LONGROPE) {
        if (!r->short_factor || !r->long_factor || r->n_factors != r->dim / 2)
            fault_add(faults, "%s: %d short and long factors, expected %d", where, r->n_factors,
                      r->dim / 2);
        else
            for (int i = 0; i < r->n_factors; i++)
                if (!positive(r->short_factor[i]) || !positive(r->long_factor[i])) {
                    fault_add(faults, "%s: long or short factor %d is not above 0", where, i);
                    break;
                }
    }
    for (int i = 0; r->divisors && i < r->n_divisors; i++)
        if (!(r->divisors[i] > 0 && r->divisors[i] < MAX_DIVISOR)) {
            fault_add(faults, "%s: frequency divisor %d is %g, expected a number above 0", where, i,
                      (double)r->divisors[i]);
            break;
        }
    if (r->divisors && r->n_divisors != r->dim / 2)
        fault_add(faults, "%s: %d frequency divisors, expected %d", where, r->n_divisors,
                  r->dim / 2);
    if (!isfinite(r->attention_factor) || r->attention_factor < 0)
        fault_add(faults, "%s: attention_factor %g, expected a number above 0", where,
                  r->attention_factor);
    if (!isfinite(r->mscale) || !isfinite(r->mscale_all_dim))
        fault_add(faults, "%s: mscale %g, expected a number", where, r->mscale);
}

/* base^(2i/dim) in float32, rounded once from float64. */
static float period(double base, int i, int dim)
{
    float exponent = (float)(2 * i) / (float)dim;
    return (float)pow((double)(float)base, (double)exponent);
}

/* Long wavelengths are stretched by the factor, short ones stay, those between are blended. */
static void llama3(float *f, const rope_spec *r, int original)
{
    const float pi2 = (float)(2 * M_PI), factor = (float)r->factor;
    float longest = (float)(original / r->low_freq), shortest = (float)(original / r->high_freq);
    for (int i = 0; i < r->dim / 2; i++) {
        float wavelength = pi2 / f[i];
        if (wavelength > longest) {
            f[i] = f[i] / factor;
        } else if (wavelength >= shortest) {
            float smooth = ((float)original / wavelength - (float)r->low_freq) /
                           (float)(r->high_freq - r->low_freq);
            f[i] = (1.0f - smooth) * f[i] / factor + smooth * f[i];
        }
    }
}

double rope_yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The dimension whose frequency turns `turns` times within the original context. */
static double yarn_dimension(const rope_spec *r, int original, double turns)
{
    return r->dim * log(original / (turns * 2 * M_PI)) / (2 * log(r->base));
}

/* Fast frequencies stay, slow ones are stretched by the factor, a linear ramp between. */
static void yarn(float *f, const rope_spec *r, int original)
{
    double low = yarn_dimension(r, original, r->beta_fast);
    double high = yarn_dimension(r, original, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    if (low < 0) low = 0;
    if (high > r->dim - 1) high = r->dim - 1;
    if (low == high) high += 0.001; // a step instead of a ramp
    for (int i = 0; i < r->dim / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float p = period(r->base, i, r->dim), keep = 1.0f - ramp;
        f[i] = 1.0f / ((float)r->factor * p) * (1.0f - keep) + 1.0f / p * keep;
    }
}

static double attention_factor(const rope_spec *r, int original)
{
    if (r->scaling != ROPE_YARN && r->scaling != ROPE_LONGROPE) return 1;
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->scaling == ROPE_YARN) {
        if (r->mscale != 0 && r->mscale_all_dim != 0)
            return rope_yarn_mscale(r->factor, r->mscale) /
                   rope_yarn_mscale(r->factor, r->mscale_all_dim);
        return rope_yarn_mscale(r->factor, 1);
    }
    return r->factor <= 1 || original < 2 ? 1 : sqrt(1 + log(r->factor) / log(original));
}

infer_status rope_build(rope_plan *out, const rope_spec *r, rope_pairing pairing, int n_ctx,
                        arena *mem, infer_error *err)
{
    int n = r->dim / 2, original = r->original_len ? r->original_len : n_ctx;
    if (r->scaling == ROPE_DYNAMIC) original = n_ctx; // whatever the file names the original
    float *f = arena_alloc(mem, (size_t)n, sizeof(float)), *longer = NULL;
    if (f && r->scaling == ROPE_LONGROPE) longer = arena_alloc(mem, (size_t)n, sizeof(float));
    if (!f || (r->scaling == ROPE_LONGROPE && !longer))
        return error_set(err, INFER_NOMEM, "out of memory");

    // proportional: the frequencies of a fully rotated head, of which only the first rotate
    int full = r->scaling == ROPE_PROPORTIONAL && r->head_dim ? r->head_dim : r->dim;
    for (int i = 0; i < n; i++)
        f[i] = 1.0f / period(r->base, i, full);
    if (r->scaling == ROPE_LINEAR || r->scaling == ROPE_PROPORTIONAL)
        for (int i = 0; i < n; i++)
            f[i] /= (float)r->factor;
    if (r->scaling == ROPE_LLAMA3) llama3(f, r, original);
    if (r->scaling == ROPE_YARN) yarn(f, r, original);
    if (longer)
        for (int i = 0; i < n; i++) {
            float p = period(r->base, i, r->dim);
            f[i] = 1.0f / (r->short_factor[i] * p);
            longer[i] = 1.0f / (r->long_factor[i] * p);
        }
    if (r->divisors)
        for (int i = 0; i < n; i++)
            f[i] /= r->divisors[i];

    *out = (rope_plan){
        .n_pairs = n,
        .gap = full / 2 - n,
        .pairing = pairing,
        .inv_freq = f,
        .attention_factor = (float)attention_factor(r, original),
        .scaling = r->scaling,
        .base = r->base,
        .factor = r->factor,
        .dim = r->dim,
        .original_len = original,
        .inv_freq_long = longer,
    };
    return INFER_OK;
}
