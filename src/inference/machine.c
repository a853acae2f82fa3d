/* machine.c: what this machine offers: CPU levels, backends, threads, memory bandwidth. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/thread.h"
#include "compute/backend.h"
#include "compute/cpu/cpu_info.h"
#include "infer.h"

const char *infer_cpu_level(int i, bool *here)
{
    for (int k = 0; k <= i; k++)
        if (!isa_levels[k].name) return NULL;
    if (i < 0) return NULL;
    if (here) *here = isa_levels[i].have();
    return isa_levels[i].name;
}

const char *infer_cpu_best(void) { return cpu_kernels_get(NULL)->name; }

const char *infer_backend_name(int i, bool *here, const char **summary)
{
    for (int k = 0; k <= i; k++)
        if (!backends[k]) return NULL;
    if (i < 0) return NULL;
    if (here) *here = backends[i]->available();
    if (summary) *summary = backends[i]->summary;
    return backends[i]->name;
}

int infer_default_threads(void) { return thread_count_default(); }
void infer_cpu_name(char *text, size_t size) { cpu_name(text, size); }
void infer_guard_install(void) { map_guard_install(); }

const char *infer_kernel_name(const char *cpu_level, const char *type)
{
    const cpu_kernels *k = cpu_kernels_get(cpu_level);
    int t = quant_find_name(type);
    if (!k || t < 0) return NULL;
    const isa_level *level = isa_levels;
    while (strcmp(level->name, k->name))
        level++;
    if (!quant_formats[t]->sub) return level->by_float;
    return k->reads_by_vectors && k->reads_by_vectors((dtype)t) ? level->by_vectors
                                                                : level->by_unpack;
}

/* ---- bandwidth ---- */

#define BANDWIDTH_BYTES ((size_t)256 << 20)
#define BANDWIDTH_PASSES 4

typedef struct reading {
    thread_pool *pool;
    uint64_t *data;
    uint64_t sums[MAX_THREADS * 8]; // a cache line each: keeps the reads from being left out
} reading;

static void fill(void *arg, int thread, int n_threads)
{
    reading *r = arg;
    int begin, end;
    thread_share((int)(BANDWIDTH_BYTES / 4096), 1, thread, n_threads, &begin, &end);
    memset((char *)r->data + (size_t)begin * 4096, 1, (size_t)(end - begin) * 4096);
}

static void read_all(void *arg, int thread, int n_threads)
{
    reading *r = arg;
    int begin, end;
    thread_share((int)(BANDWIDTH_BYTES / 4096), 1, thread, n_threads, &begin, &end);
    const uint64_t *p = r->data + (size_t)begin * 512, *stop = r->data + (size_t)end * 512;
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
    for (; p < stop; p += 8) {
        a += p[0], b += p[1], c += p[2], d += p[3];
        e += p[4], f += p[5], g += p[6], h += p[7];
    }
    r->sums[thread * 8] = a + b + c + d + e + f + g + h;
}

double infer_measure_bandwidth(int n_threads)
{
    reading *r = mem_zero(1, sizeof *r);
    double best = 0;
    if (r) r->data = mem_pages(BANDWIDTH_BYTES);
    if (r && r->data && !pool_new(&r->pool, n_threads, NULL)) {
        pool_run(r->pool, fill, r);
        for (int i = 0; i < BANDWIDTH_PASSES; i++) {
            double from = clock_seconds();
            pool_run(r->pool, read_all, r);
            double rate = (double)BANDWIDTH_BYTES / (clock_seconds() - from);
            if (rate > best) best = rate;
        }
        pool_free(r->pool);
    }
    if (r) mem_free_pages(r->data, BANDWIDTH_BYTES);
    mem_free(r);
    return best;
}
