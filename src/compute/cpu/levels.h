/* levels.h: the tables' initialisers, for isa.c and the files that define them. */
#ifndef COMPUTE_CPU_LEVELS_H
#define COMPUTE_CPU_LEVELS_H

#include "compute/cpu/kernels.h"

void init_ref(cpu_kernels *k);
void init_ref_float(cpu_kernels *k);
void init_ref_attn(cpu_kernels *k);
void init_ref_matmul(cpu_kernels *k);
void init_ref_dots(cpu_kernels *k);
void init_ref_coarse(cpu_kernels *k);

void init_avx2(cpu_kernels *k);
void init_avx2_float(cpu_kernels *k);
void init_avx2_attn(cpu_kernels *k);
void init_avx2_matmul(cpu_kernels *k);
void init_avx2_dots(cpu_kernels *k);
void init_avx2_coarse(cpu_kernels *k);

void init_avx512vnni(cpu_kernels *k);
void init_avx512vnni_float(cpu_kernels *k);
void init_avx512vnni_attn(cpu_kernels *k);
void init_avx512vnni_matmul(cpu_kernels *k);
void init_avx512vnni_dots(cpu_kernels *k);
void init_avx512vnni_coarse(cpu_kernels *k);

void init_avxvnni(cpu_kernels *k);
void init_avxvnni_matmul(cpu_kernels *k);

void init_amx(cpu_kernels *k);
void init_amx_matmul(cpu_kernels *k);

void init_neon(cpu_kernels *k);
void init_neon_float(cpu_kernels *k);
void init_neon_attn(cpu_kernels *k);
void init_neon_matmul(cpu_kernels *k);
void init_neon_dots(cpu_kernels *k);
void init_neon_coarse(cpu_kernels *k);

void init_dotprod(cpu_kernels *k);
void init_dotprod_matmul(cpu_kernels *k);
void init_dotprod_dots(cpu_kernels *k);
void init_dotprod_coarse(cpu_kernels *k);

void init_i8mm(cpu_kernels *k);
void init_i8mm_matmul(cpu_kernels *k);

#endif
