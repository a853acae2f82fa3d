/* emulated.h: the initialisers of emulated.c's levels. */
#ifndef TESTS_KERNELS_X86_EMULATED_H
#define TESTS_KERNELS_X86_EMULATED_H

#include "../check.h"

void init_avxvnni_emulated(cpu_kernels *k);
void init_amx_emulated(cpu_kernels *k);

#endif
