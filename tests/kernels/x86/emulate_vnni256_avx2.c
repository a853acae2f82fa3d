/* emulate_vnni256_avx2.c: the AVX-VNNI kernels over an emulated instruction, compiled for AVX2 alone: a
 * compiler that may use AVX-VNNI finds uses for it by itself. */
#include "dpbusd_emulated.h"

#include "emulated.h"

#define init_avxvnni_matmul init_avxvnni_emulated
#include "compute/cpu/x86/matmul_avxvnni.c"
