/* bench.c: times of the kernels on one core: the best of several runs. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/mem.h"
#include "check.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best time of a call: at least 5 calls and `seconds`. */
static double best_time(void (*fn)(const matmul_args *), const matmul_args *a, double seconds)
{
    double best = INFINITY, start = now();
    for (int i = 0; i < 5 || now() - start < seconds; i++) {
        double t = now();
        fn(a);
        t = now() - t;
        best = t < best ? t : best;
    }
    return best;
}

static void bench_matmul(const cpu_kernels *k, const cpu_kernels *ref, dtype type, bool exact,
                         bool in_panels, int n_outputs, int n_cols)
{
    fence weights, scratch = fence_new((matmul_scratch_bytes(n_cols) + 63) / 64 * 64);
    tensor w = random_weights(&weights, type, n_outputs, n_cols);
    fence panels = fence_new(in_panels ? panels_bytes(&w) : 64);
    if (in_panels) {
        panels_pack(panels.data, &w, 0, n_outputs);
        w.panels = panels.data;
    }
    static const int rows[] = {1, 4, 64};
    char name[64];
    snprintf(name, sizeof name, "%s%s", quant_formats[type]->name, exact       ? " f32"
                                                                  : in_panels ? " panels"
                                                                              : "");
    printf("%-11s %-12s %5dx%-5d", k->name, name, n_outputs, n_cols);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        act_memory m;
        act x = random_act(&m, rows[i], n_cols, RANDOM);
        float *y = mem_alloc((size_t)rows[i] * (size_t)n_outputs, 4);
        matmul_args a = {y, (size_t)n_outputs, &w, &x, 0, n_outputs, scratch.data};
        double t = best_time(exact ? k->matmul_f32 : k->matmul_int8, &a, 0.04), slow = 0;
        if (k != ref && i == 0) {
            matmul_args few = a;
            few.end = n_outputs / 16 * 16 < 64 ? n_outputs : 64;
            slow = best_time(exact ? ref->matmul_f32 : ref->matmul_int8, &few, 0) * n_outputs /
                   few.end;
        }
        printf("  | %2d: %9.1f us %6.2f GB/s %7.2f GMAC/s", rows[i], t * 1e6,
               (double)weights.n / t * 1e-9, 1e-9 * rows[i] * n_outputs * n_cols / t);
        if (slow > 0) printf(" %5.1fx ref", slow / t);
        mem_free(y);
        act_memory_free(&m);
    }
    printf("\n");
    fence_free(&weights);
    fence_free(&scratch);
    fence_free(&panels);
}

static void bench_attn(const cpu_kernels *k, int n_queries, int head_dim, kv_type type)
{
    static float q[64][256], acc[64][256] ATTR_ALIGNED(64);
    size_t bytes = (size_t)head_dim * KV_TILE * 4;
    fence kt = fence_new(bytes), vt = fence_new(bytes);
    memset(kt.data, 0, bytes);
    memset(vt.data, 0, bytes);
    fill(q[0], sizeof q / 4, RANDOM);
    kv_tile tile = {kt.data, vt.data, kv_takes_keys(type) ? type : KV_Q8_0, type, head_dim, head_dim};
    attn_query qs[64];
    double best = INFINITY;
    for (int i = 0; i < 200; i++) {
        for (int j = 0; j < n_queries; j++)
            qs[j] = (attn_query){q[j], acc[j], -INFINITY, 0, 0, KV_TILE};
        double t = now();
        k->attn_tile(qs, n_queries, &tile, 0.1f, 0);
        t = now() - t;
        best = t < best ? t : best;
    }
    printf("%-11s attn_tile %-4s head_dim %3d, %2d queries: %8.2f us %7.2f GMAC/s\n", k->name,
           kv_type_name(type), head_dim, n_queries, best * 1e6,
           2e-9 * n_queries * head_dim * KV_TILE / best);
    fence_free(&kt);
    fence_free(&vt);
}

void bench(const cpu_kernels *k, const cpu_kernels *ref, const char *only)
{
    static const int shapes[][2] = {{2048, 768}, {768, 2048}, {4096, 4096}};
    static const dtype exact_too[] = {DT_F32, DT_F16, DT_BF16, DT_Q4_K};
    for (int t = 0; t < DT_COUNT; t++) {
        if (only && strcasecmp(only, quant_formats[t]->name)) continue;
        if (!quant_formats[t]->sub) continue;
        tensor w = {.type = (dtype)t, .n_cols = 4096};
        for (int s = 0; s < 3 && (k != ref || s < 1); s++)
            for (int p = 0; p <= (k->reads_by_vectors && panels_take(&w)); p++)
                bench_matmul(k, ref, (dtype)t, false, p, shapes[s][0], shapes[s][1]);
    }
    for (size_t i = 0; i < sizeof exact_too / sizeof *exact_too; i++) {
        if (only && strcasecmp(only, quant_formats[exact_too[i]]->name)) continue;
        for (int s = 0; s < 3 && (k != ref || s < 1); s++)
            bench_matmul(k, ref, exact_too[i], true, false, shapes[s][0], shapes[s][1]);
    }
    if (only && strcasecmp(only, "attn")) return;
    for (int type = 0; type < KV_TYPE_COUNT; type++)
        for (int d = 64; d <= 256; d *= 2) {
            bench_attn(k, 1, d, (kv_type)type);
            bench_attn(k, 4, d, (kv_type)type);
            bench_attn(k, 64, d, (kv_type)type);
        }
}
