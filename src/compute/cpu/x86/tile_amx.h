/*
 * tile_amx.h: the AMX instructions that matmul_amx.c uses, by the number of the tile register. Own
 * names, because the checker puts tests/kernels/x86/tile_emulated.h in their place, and because the
 * compilers' intrinsics do not tell that a tile load reads memory.
 *
 * A thread's tiles have no shape until tile_config; tile_release gives them back, so that the
 * system has nothing to save when it switches threads.
 */
#ifndef COMPUTE_CPU_X86_TILE_AMX_H
#define COMPUTE_CPU_X86_TILE_AMX_H

#include <stddef.h>
#include <stdint.h>

/* What LDTILECFG reads: of each tile the bytes of a row, at most 64, and the rows, at most 16. */
typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14]; // 1, 0
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

static inline void tile_config(const tile_shapes *s) { __asm__ volatile("ldtilecfg %0" ::"m"(*s)); }
static inline void tile_release(void) { __asm__ volatile("tilerelease"); }

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
/* Rows from p on, `stride` bytes apart. */
#define TILE_LOAD(t, p, stride)                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride)                                                                   \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((size_t)(stride)) : "memor" \
                                                                                           "y")
/* acc [m, n] += a [m, 2k] . b [k, n, 2]: bfloat16 products, sums of float32. */
#define TILE_DOT(acc, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #acc ::)

#endif
