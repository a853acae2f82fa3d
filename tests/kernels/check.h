/*
 * check.h: what the kernel checker's files share: counting, random data, memory that notices a write
 * past its end.
 *
 * Bits are compared with ==, two NaN counting as equal. A tolerance appears only where the reference
 * level itself is measured against float64.
 */
#ifndef TESTS_KERNELS_CHECK_H
#define TESTS_KERNELS_CHECK_H

#include "base/compiler.h"
#include "base/half.h"
#include "compute/cpu/kernels.h"

typedef struct checker {
    const cpu_kernels *k;   // the level under test
    const cpu_kernels *ref;
    const char *op;
    bool quick; // fewer cases
    int passed, failed;
} checker;

/* Counts one case; prints it where it fails. */
bool check_true(checker *c, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The n floats of a and b have the same bits. */
bool check_bits(checker *c, const float *a, const float *b, size_t n, const char *what);
/* |a - b| <= abs + rel |b|, NaN for NaN; b in float64. */
bool check_near(checker *c, const float *a, const double *b, size_t n, double rel, double abs,
                const char *what);

/* A level that the checker runs in place of one that the machine lacks: the integer products of that
 * level over emulated instructions, all else as in `base`. The list ends with a NULL name. */
typedef struct emulated_level {
    const char *name, *base;
    void (*init)(cpu_kernels *k);
} emulated_level;
extern const emulated_level emulated_levels[];

void random_seed(uint64_t seed);
uint64_t random_bits(void);
int random_below(int n);
float random_float(float lo, float hi);
float random_normal(void);

typedef enum pattern { RANDOM, ZEROS, HUGE_VALUES, TINY_VALUES, OUTLIER, PATTERN_COUNT } pattern;
extern const char *const pattern_names[PATTERN_COUNT];
void fill(float *x, size_t n, pattern p);

/* n bytes that end where a page without access begins, and that start, 64-byte aligned when n is a
 * multiple of 64, after guard bytes. Filled with 0xff: NaN as floats. */
typedef struct fence {
    uint8_t *data;
    size_t n, map_size;
    uint8_t *map;
} fence;
fence fence_new(size_t n);
/* False where bytes before data were written. */
bool fence_intact(const fence *f);
void fence_free(fence *f);
uint64_t hash_bytes(const void *p, size_t n);

void check_matmul(checker *c);
void check_float(checker *c);
void check_attn(checker *c);
void check_dots(checker *c);
void check_coarse(checker *c);
void bench(const cpu_kernels *k, const cpu_kernels *ref, const char *only);

/* Weights [n_rows, n_cols] of a type: random bytes with finite scales, or normal floats. */
tensor random_weights(fence *memory, dtype type, int n_rows, int n_cols);
/* Activations, prepared by quant_act_row. */
typedef struct act_memory {
    fence x, q, scale, sum;
} act_memory;
act random_act(act_memory *m, int n_rows, int n_cols, pattern p);
void act_memory_free(act_memory *m);

#endif
