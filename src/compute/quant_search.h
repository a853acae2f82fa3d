/*
 * quant_search.h: the searches behind the quantisers. All minimise sum_i w[i] * (x[i] - x'[i])^2
 * over the representable x' that they look at; none fails, and any float may come in: what is not
 * finite gives some block, never undefined behaviour.
 */
#ifndef COMPUTE_QUANT_SEARCH_H
#define COMPUTE_QUANT_SEARCH_H

#include "compute/quant.h"

#define SEARCH_MAX 32 // elements that a search takes; n is a multiple of 8

/* The integers that a code can be: lo..hi, or the 16 of an ascending table. */
typedef struct code_range {
    int lo, hi;
    const int8_t *table; // NULL: every integer
    float step;          // distance of the candidates for the largest element's code
    int n_steps;         // candidates on each side of lo
} code_range;

/* x ~ d * q. Returns d, which may be negative. */
float search_scale(int8_t *q, const float *x, const float *w, int n, const code_range *range);
/* The codes for a given d, and the error they leave. */
float search_codes(int8_t *q, float d, const float *x, const float *w, int n,
                   const code_range *range);

/* The weights of n elements for the searches above: the importance where one was passed (what is
 * negative or not finite counts as 0; all 0 counts as all 1), else |x| + rms(x). */
void search_weights(float *w, const float *x, const float *importance, int n);

/*
 * One block of 256 in sub-blocks of n elements whose scales are integers themselves, times one f16.
 * importance [256] or NULL.
 */
/* x ~ d * scale * q with scale [256/n] in lo..hi. Returns d, rounded to f16. */
float search_block(int8_t *q, int8_t *scale, const float *x, const float *importance, int n,
                   const code_range *range, int lo, int hi);
/* x ~ d * scale * q - dmin * min with scale, min [256/n] in 0..scale_max, q in 0..q_max. *d and
 * *dmin are rounded to f16. */
void search_block_min(uint8_t *q, uint8_t *scale, uint8_t *min, float *d, float *dmin,
                      const float *x, const float *importance, int n, int q_max, int scale_max);

/*
 * One block of 32 of the formats that gguf.quants can write, in that package's arithmetic when
 * importance is NULL, by search otherwise.
 */
/* x ~ d * (q - half) with q in 0..2*half-1. Returns d. */
float search_legacy(uint8_t *q, const float *x, const float *importance, int half);
/* x ~ d * q + m with q in 0..q_max. Returns d. */
float search_legacy_min(uint8_t *q, float *m, const float *x, const float *importance, int q_max);

#endif
