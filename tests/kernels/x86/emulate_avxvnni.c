/* emulate_avxvnni.c: the AVX-VNNI kernels over an emulated instruction. */
#include "dpbusd_emulated.h"

#include "emulated.h"

#define init_avxvnni_matmul init_avxvnni_emulated
#include "compute/cpu/x86/matmul_avxvnni.c"
