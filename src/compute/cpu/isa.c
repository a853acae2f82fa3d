/*
 * isa.c: the levels of kernels and the choice among them. Tables are built once, each from its
 * predecessors upward, so that a level need only name what it improves.
 */
#include <pthread.h>
#include <string.h>

#include "compute/cpu/levels.h"

static bool have_ref(void) { return true; }

const isa_level isa_levels[] = {
    {"ref", have_ref, init_ref},
    {NULL, NULL, NULL},
};

#define MAX_LEVELS 8
static cpu_kernels tables[MAX_LEVELS]; // of isa_levels; name NULL: not on this machine
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    cpu_kernels k = {0};
    for (int i = 0; isa_levels[i].name; i++) {
        if (!isa_levels[i].have()) continue;
        isa_levels[i].init(&k);
        k.name = isa_levels[i].name;
        tables[i] = k;
    }
}

const cpu_kernels *cpu_kernels_get(const char *level)
{
    const cpu_kernels *best = NULL;
    pthread_once(&tables_once, fill_tables);
    for (int i = 0; isa_levels[i].name; i++) {
        if (!tables[i].name) continue;
        if (!level || !strcmp(level, isa_levels[i].name)) best = &tables[i];
    }
    return best;
}

size_t matmul_scratch_bytes(int n_cols)
{
    size_t n = ((size_t)n_cols + 255) / 256 * 256;
    return n * 4 + 4096;
}
