/* emulated.c: the levels whose instructions the checker emulates. */
#include "emulated.h"

const emulated_level emulated_levels[] = {
    {"avxvnni emulated", "avx2", init_avxvnni_emulated},
    {"amx emulated", "avx512vnni", init_amx_emulated},
    {NULL, NULL, NULL},
};
