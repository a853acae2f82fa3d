/*
 * check.c: the kernel checker: every level that this machine has against the definitions.
 *
 *   check-kernels [--level NAME | --best NAME] [--quick] [--seed N] [--bench [FORMAT]]
 *
 * --best: that level, which must be the one chosen here; --quick: a fifth of the matrix products.
 */
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>


bool check_true(checker *c, bool ok, const char *fmt, ...)
{
    if (ok) {
        c->passed++;
        return true;
    }
    if (c->failed++ >= 50) return false;
    printf("%s: %s: ", c->k->name, c->op);
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    return false;
}

bool check_bits(checker *c, const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (f32_bits(a[i]) != f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            return check_true(c, false, "%s: [%zu] of %zu is %a, expected %a", what, i, n,
                              (double)a[i], (double)b[i]);
    return check_true(c, true, "%s", what);
}

bool check_near(checker *c, const float *a, const double *b, size_t n, double rel, double abs,
                const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        if (isinf(b[i]) ? a[i] == b[i] : fabs(a[i] - b[i]) <= abs + rel * fabs(b[i])) continue;
        return check_true(c, false, "%s: [%zu] of %zu is %.9g, expected %.9g", what, i, n,
                          (double)a[i], b[i]);
    }
    return check_true(c, true, "%s", what);
}

/* ---- random data ---- */

static uint64_t state = 1;

void random_seed(uint64_t seed) { state = seed * 0x9e3779b97f4a7c15u + 1; }
uint64_t random_bits(void)
{
    state += 0x9e3779b97f4a7c15u; // splitmix64
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
int random_below(int n) { return (int)(random_bits() % (uint64_t)n); }
float random_float(float lo, float hi)
{
    return lo + (hi - lo) * (float)(random_bits() >> 40) * 0x1p-24f;
}
float random_normal(void)
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += random_float(-1, 1);
    return s * 0.7071f;
}

const char *const pattern_names[PATTERN_COUNT] = {"random", "zeros", "huge", "tiny", "outlier"};

void fill(float *x, size_t n, pattern p)
{
    for (size_t i = 0; i < n; i++) {
        float v = random_normal();
        x[i] = p == ZEROS ? 0 : p == HUGE_VALUES ? v * 1e18f : p == TINY_VALUES ? v * 1e-38f : v;
    }
    if (p == OUTLIER && n) x[random_bits() % n] = 3e6f;
}

/* ---- memory ---- */

#define GUARD 256

fence fence_new(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fence f = {.n = n, .map_size = (n + GUARD + page - 1) / page * page + page};
    f.map = mmap(NULL, f.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f.map == MAP_FAILED || mprotect(f.map + f.map_size - page, page, PROT_NONE)) {
        perror("check-kernels: memory");
        exit(1);
    }
    f.data = f.map + f.map_size - page - n;
    memset(f.map, 0xa5, (size_t)(f.data - f.map));
    memset(f.data, 0xff, n);
    return f;
}
bool fence_intact(const fence *f)
{
    for (const uint8_t *p = f->map; p < f->data; p++)
        if (*p != 0xa5) return false;
    return true;
}
void fence_free(fence *f)
{
    if (f->map) munmap(f->map, f->map_size);
    f->map = NULL;
}

uint64_t hash_bytes(const void *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
    return h;
}

/* ---- the program ---- */

#if !defined(__x86_64__)
const emulated_level emulated_levels[] = {{NULL, NULL, NULL}};
#endif

static bool level_known(const char *name)
{
    for (const emulated_level *e = emulated_levels; e->name; e++)
        if (!strcmp(name, e->name)) return cpu_kernels_get(e->base) != NULL;
    return cpu_kernels_get(name) != NULL;
}

static void check_level(checker *c, bool products_only)
{
    int passed = c->passed, failed = c->failed;
    check_matmul(c);
    if (!products_only) {
        check_float(c);
        check_attn(c);
        check_dots(c);
        check_coarse(c);
    }
    printf("%-16s %d passed, %d failed\n", c->k->name, c->passed - passed, c->failed - failed);
}

int main(int argc, char **argv)
{
    const char *level = NULL, *only = NULL;
    uint64_t seed = 1;
    bool timing = false, quick = false, best = false;
    for (int i = 1; i < argc; i++) {
        if ((!strcmp(argv[i], "--level") || !strcmp(argv[i], "--best")) && i + 1 < argc) {
            best = argv[i][2] == 'b';
            level = argv[++i];
        } else if (!strcmp(argv[i], "--quick")) {
            quick = true;
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (!strcmp(argv[i], "--bench")) {
            timing = true;
            if (i + 1 < argc && argv[i + 1][0] != '-') only = argv[++i];
        } else {
            fprintf(stderr, "usage: check-kernels [--level NAME | --best NAME] [--quick] [--seed N] "
                            "[--bench [FORMAT]]\n");
            return 2;
        }
    }
    if (level && !level_known(level)) {
        fprintf(stderr, "check-kernels: level '%s': not here\n", level);
        return 2;
    }
    const char *chosen = cpu_kernels_get(NULL)->name;
    if (best && strcmp(level, chosen)) {
        fprintf(stderr, "check-kernels: the best level is '%s', expected '%s'\n", chosen, level);
        return 1;
    }
    checker c = {.ref = cpu_kernels_get("ref"), .quick = quick};
    if (!timing) printf("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; isa_levels[i].name; i++) {
        c.k = cpu_kernels_get(isa_levels[i].name);
        if (!c.k || (level && strcmp(level, c.k->name))) continue;
        random_seed(seed);
        if (timing)
            bench(c.k, c.ref, only);
        else
            check_level(&c, false);
    }
    for (const emulated_level *e = emulated_levels; e->name && !timing; e++) {
        const cpu_kernels *base = cpu_kernels_get(e->base);
        if (!base || (level && strcmp(level, e->name))) continue;
        cpu_kernels k = *base;
        e->init(&k);
        k.name = e->name;
        c.k = &k;
        random_seed(seed);
        check_level(&c, true);
    }
    if (!timing) printf("%d passed, %d failed\n", c.passed, c.failed);
    return c.failed != 0;
}
