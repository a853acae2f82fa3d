/* emulate_amx.c: the AMX kernel over emulated tiles. */
#include "tile_emulated.h"

#include "emulated.h"

#define LEAST_ROWS 1
#define init_amx_matmul init_amx_emulated
#include "compute/cpu/x86/matmul_amx.c"
