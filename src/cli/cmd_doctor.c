/*
 * cmd_doctor.c: `infer doctor`: what this machine offers, what the engine chooses and why, and with
 * a model which kernel runs for which tensor type and what slows it down.
 */
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cli/cli.h"

#define MAX_TYPES 64

typedef struct doctor_options {
    cli_engine engine;
} doctor_options;

static const cli_option options[] = {
    MACHINE_OPTIONS(doctor_options),
    { 0 },
};

static double memory_available(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    double kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lf", &kb) == 1) break;
    if (f) fclose(f);
    return kb * 1024;
}

static void print_levels(const char *chosen, const char *why)
{
    printf("levels     ");
    bool here;
    const char *name;
    for (int i = 0; (name = infer_cpu_level(i, &here)); i++)
        printf("%s%s%s", i ? ", " : "", name, here ? "" : " (not on this machine)");
    printf("\nchosen     %s: %s\n", chosen, why);
}

static void print_machine(const doctor_options *o, const char *level)
{
    char text[160];
    const char *name, *summary;
    bool here;
    int threads = o->engine.threads ? o->engine.threads : infer_default_threads();
    printf("infer      %s\n", infer_version());
    infer_cpu_name(text, sizeof text);
    printf("processor  %s\n", text);
    print_levels(level, o->engine.cpu ? "as asked for" : "the best that this machine has");
    for (int i = 0; (name = infer_backend_name(i, &here, &summary)); i++)
        printf("%s %s: %s%s\n", i ? "          " : "backends  ", name, summary,
               here ? "" : " (not on this machine)");
    printf("threads    %d of %d hardware threads: %s\n", threads, thread_count_logical(),
           o->engine.threads ? "as asked for" : "the physical cores it may use");
    double available = memory_available();
    if (available > 0) printf("memory     %s available\n", cli_bytes(text, (uint64_t)available));
    cli_progress("measuring bandwidth");
    double gbs = infer_measure_bandwidth(threads) / 1e9;
    cli_progress_end();
    printf("bandwidth  %.1f GB/s read by %d thread%s\n", gbs, threads, threads == 1 ? "" : "s");
}

typedef struct kernel_row {
    const char *type;
    int n;
    uint64_t bytes;
} kernel_row;

// Matrices only: vectors (norms, biases) take no kernel of their own.
static int sum_matrices(const infer_file *file, kernel_row *rows)
{
    int n = 0;
    for (int i = 0; i < infer_file_n_tensors(file); i++) {
        infer_tensor_info t = infer_file_tensor(file, i);
        int k = 0;
        if (t.n_dims < 2) continue;
        while (k < n && strcmp(rows[k].type, t.type))
            k++;
        if (k == MAX_TYPES) continue;
        if (k == n) rows[n++] = (kernel_row){ .type = t.type };
        rows[k].n++;
        rows[k].bytes += t.bytes;
    }
    return n;
}

static int print_model(const infer_model *model, const infer_file *file, const char *level)
{
    infer_model_info m = infer_model_describe(model);
    kernel_row rows[MAX_TYPES];
    char size[32], other[32];
    int n = sum_matrices(file, rows), warnings = 0;
    printf("\nmodel      %s, ", m.arch);
    cli_put_text(stdout, m.path, strlen(m.path), 0);
    printf("\n\n%stype       matrices         size   kernel%s\n", cli_bold(stdout),
           cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        const char *kernel = infer_kernel_name(level, rows[i].type);
        printf("%-10s %8d %12s   %s\n", rows[i].type, rows[i].n, cli_bytes(size, rows[i].bytes),
               kernel ? kernel : "none");
    }
    putchar('\n');
    for (int i = 0; i < n; i++) {
        const char *kernel = infer_kernel_name(level, rows[i].type);
        bool slow = !kernel || strstr(kernel, "plain unpack") || strstr(kernel, " ref");
        if (slow && ++warnings)
            printf("slow       %s has no kernel of its own on %s (%.0f %% of the weights)\n",
                   rows[i].type, level, 100.0 * (double)rows[i].bytes / (double)m.weight_bytes);
    }
    if (strcmp(level, infer_cpu_best()) && ++warnings)
        printf("slow       %s was asked for, this machine has %s\n", level, infer_cpu_best());
    double available = memory_available();
    if (available > 0 && (double)m.weight_bytes > available && ++warnings)
        printf("slow       weights of %s, memory of %s: they will be read again and again\n",
               cli_bytes(size, m.weight_bytes), cli_bytes(other, (uint64_t)available));
    if (!warnings) printf("nothing slows this model down here\n");
    return EXIT_DONE;
}

static int run(int argc, char **argv)
{
    doctor_options o = { 0 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_doctor, &o, &args, argc, argv, &code)) return code;
    if ((code = cli_engine_check(&cmd_doctor, &o.engine))) return code;
    const char *level = o.engine.cpu ? o.engine.cpu : infer_cpu_best();
    infer_model *model = NULL;
    if (args.n && (code = cli_model_open(&model, args.v[0], &o.engine))) return code;
    print_machine(&o, level);
    if (model) {
        infer_file *file;
        infer_error err = { 0 };
        if (infer_file_open(&file, infer_model_describe(model).path, &err))
            code = cli_fail(&err);
        else
            code = print_model(model, file, level);
        if (!code) infer_file_close(file);
    }
    infer_model_close(model);
    return code;
}

const cli_command cmd_doctor = {
    .name = "doctor",
    .args = "[MODEL]",
    .min_args = 0,
    .max_args = 1,
    .summary = "what this machine offers and what slows a model down",
    .options = options,
    .run = run,
};
