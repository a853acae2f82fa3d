/*
 * isa.c: the levels of kernels and the choice among them. Tables are built once, each from its
 * predecessors upward, so that a level need only name what it improves.
 */
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#include <pthread.h>
#include <string.h>

#include "compute/cpu/levels.h"
#include "compute/cpu/scratch.h"

static bool have_ref(void) { return true; }

// The compiler's support functions ask CPUID and, for the registers' state, the OS (XGETBV).
#if defined(__x86_64__)
static bool have_avx2(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1; // F16C, a name clang 14 lacks
}
static bool have_avxvnni(void)
{
    unsigned a, b, c, d;
    return have_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
static bool have_avx512vnni(void)
{
    return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
/* Tiles are 8 KiB of state, which Linux saves only for processes that asked for it once; a kernel
 * that knows nothing of it refuses. */
static bool have_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, TILE_STATE = 3 << 17 };
    unsigned a, b, c, d, low, high;
    if (!have_avx512vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d >> 24 & 1) || !(d >> 22 & 1)) return false; // AMX-TILE, AMX-BF16
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & TILE_STATE) != TILE_STATE) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

// Vectors are part of armv8-a. The system says what else there is: a program may not ask the CPU.
#if defined(__aarch64__)
static bool have_neon(void) { return true; }
#if defined(__linux__)
static bool have_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }                 // ASIMDDP
static bool have_i8mm(void) { return have_dotprod() && getauxval(AT_HWCAP2) >> 13 & 1; } // I8MM
#elif defined(__APPLE__)
static bool apple_has(const char *feature)
{
    int has = 0;
    size_t size = sizeof has;
    return !sysctlbyname(feature, &has, &size, NULL, 0) && has;
}
static bool have_dotprod(void) { return apple_has("hw.optional.arm.FEAT_DotProd"); }
static bool have_i8mm(void) { return have_dotprod() && apple_has("hw.optional.arm.FEAT_I8MM"); }
#else
static bool have_dotprod(void) { return false; }
static bool have_i8mm(void) { return false; }
#endif
#endif

// clang-format off
#define INT8_LEVEL(name, by_float)                      \
    { #name, have_##name, init_##name, "int8 " #name,   \
      "int8 " #name ", plain unpack", by_float }
#define LEVEL(name) INT8_LEVEL(name, "float32 " #name)
// clang-format on
const isa_level isa_levels[] = {
    LEVEL(ref),
#if defined(__x86_64__)
    LEVEL(avx2),
    INT8_LEVEL(avxvnni, "float32 avx2"),
    LEVEL(avx512vnni),
    INT8_LEVEL(amx, "float32 avx512vnni"),
#endif
#if defined(__aarch64__)
    LEVEL(neon),
    INT8_LEVEL(dotprod, "float32 neon"),
    INT8_LEVEL(i8mm, "float32 neon"),
#endif
    { NULL, NULL, NULL, NULL, NULL, NULL },
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

/* The largest of the products' needs. */
size_t matmul_scratch_bytes(int n_cols)
{
    size_t n = (size_t)n_cols, pieces = 64 * 5 * 256; // rounding of pieces: five for each tile
    size_t rows = (size_t)int8_group(n_cols), chunk = INT8_CHUNK_MOST;
    size_t int8 = chunk * PANEL * 3 + chunk / 16 * 4 * (4 * PANEL + 2) // two panels' chunk, rows
                  + rows * PANEL * 2 * 4                               // sums
                  + PANEL * (n + n / 4)                                // the last panel's rows
                  + rows * (n * ACT_PLANES + n / 8 + n / 4 + n / 4);                // activations
    size_t f_rows = (size_t)f32_group(n_cols);
    size_t f32 = ((size_t)F32_CHUNK * 3 + 16) * PANEL * 4 + f_rows * PANEL * 2 * 4 + f_rows * n * 4;
    size_t a_rows = (size_t)amx_group(n_cols);
    size_t amx = chunk * PANEL * 3 + chunk / 16 * 4 * (4 * PANEL + 2) + PANEL * (n + n / 4) +
                 (size_t)AMX_CHUNK * PANEL * 2 * 2 + a_rows * PANEL * 2 * 4 +
                 a_rows * (n * 2 * ACT_PLANES + n / 8 + n / 4);
    size_t most = int8 > f32 ? int8 : f32;
    most = most > amx ? most : amx;
    size_t ref = n * 4 + 4096;
    return (most > ref ? most : ref) + pieces;
}
